"""Many transactions with late EndTxns on a real broker: all atomic, once, and in order.

    python -m tests.kafka.late_end_txn --transactions 10000 --seed 1

Several chains run at a time, each with its own shard and transactional id. Transaction n of a chain
writes n, `COPIES` times, to each of two partitions, and n + 1 to its state. Some attempts are
aborted, as a broker may require at any time. The seed decides, request by request, what the proxy
holds, loses, repeats, swaps or delays; it delivers held requests in the middle of a later
transaction of the same chain. When a shard fails, its chain continues with a new one, as in the
hand-over.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError

from tests.kafka.harness import (
    Keeper,
    abort,
    before_commit,
    create_topic,
    read,
    settled,
    unique,
)
from tests.kafka.proxy import Api, Fate, Proxy, Request, proxied_broker
from workers.kafka.clients import Connection
from workers.kafka.records import Outgoing
from workers.kafka.shard import Assignment
from workers.kafka.store import Changelog, Store
from workers.runtime.errors import Fenced, KafkaAway

COPIES = 2
PARTITIONS = 2
ABORTED = 0.05
# Probability of each fate by kind of request; the rest passes.
FATES: Mapping[Api, Mapping[Fate, float]] = {
    Api.END_TXN: {Fate.HOLD: 0.06, Fate.LOSE: 0.02, Fate.REPEAT: 0.02},
    Api.PRODUCE: {
        Fate.HOLD: 0.001,
        Fate.LOSE: 0.001,
        Fate.REPEAT: 0.005,
        Fate.SWAP: 0.005,
    },
    Api.ADD_PARTITIONS: {Fate.HOLD: 0.002, Fate.LOSE: 0.002, Fate.REPEAT: 0.01},
    Api.INIT_PRODUCER_ID: {Fate.HOLD: 0.03, Fate.LOSE: 0.03},
}
# Share of passing requests that are delayed, and the largest delay: longer than a request that is
# sent once may take.
DELAYED = 0.01
DELAY_S = 0.7


class Faults:
    """Proxy rule with seeded fates, independent of thread timing."""

    def __init__(
        self, proxy: Proxy, seed: int, fates: Mapping[Api, Mapping[Fate, float]] = FATES
    ) -> None:
        self._proxy = proxy
        self._seed = seed
        self._fates = fates
        self.delivered: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fate:
        place = f"{request.transactional_id}/{request.key}/{request.number}"
        chance = random.Random(f"{self._seed}/{place}")
        if request.key == Api.PRODUCE and chance.random() < 0.4:
            for late, error in self._proxy.release(request.transactional_id):
                kind = {Api.END_TXN: "commit" if late.commits else "abort"}.get(
                    late.key, "other"
                )
                answer = "answered" if kind == "other" else KafkaError(error).name()
                with self._lock:
                    self.delivered[f"{kind}: {answer}"] += 1
        drawn = chance.random()
        for fate, share in self._fates.get(request.key, {}).items():
            if drawn < share:
                return fate
            drawn -= share
        if drawn < DELAYED:
            time.sleep(DELAY_S * chance.random())
        return Fate.PASS


class Chain(Keeper):
    topic = ""
    aborted = 0

    def step(self, chance: random.Random) -> None:
        """Commit the next transaction, perhaps after an aborted attempt."""
        if chance.random() < ABORTED:
            before_commit(self.transactions, self._abort)
        number = self.offset or 0
        places = [PARTITIONS * self.partition + place for place in range(PARTITIONS)]
        value = str(number).encode()
        messages = [
            Outgoing(self.topic, place, None, value) for place in places
        ] * COPIES
        self.transact(messages, [(b"offset", str(number + 1).encode())], number + 1)
        self.offset = number + 1

    def _abort(self) -> None:
        self.aborted += 1
        abort()


@dataclass
class Report:
    """The work done, and the errors visible to readers of committed records."""

    transactions: int = 0
    aborted: int = 0
    epochs: int = 0
    # Failed shards by error class; their chains continued with new ones.
    failed: Counter[str] = field(default_factory=Counter)
    # Requests delivered late, and the broker's answers.
    delivered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def run(
    proxy: Proxy, directory: Path, transactions: int, seed: int, chains: int = 6
) -> Report:
    connection = Connection(f"127.0.0.1:{proxy.port}")
    name = unique("chains")
    topic = f"{name}.out"
    state = f"{name}.state"
    create_topic(connection, topic, PARTITIONS * chains)
    create_topic(connection, state, chains)
    report = Report(transactions)
    faults = Faults(proxy, seed)

    def shard(chain: int) -> Chain:
        store = Store(directory / f"{name}-{chain}", Changelog(state, chain))
        made = Chain(Assignment(connection, f"{name}-{chain}", chain, store))
        made.topic = topic
        return made

    def work(chain: int) -> None:
        chance = random.Random(f"{seed}/{chain}")
        aborted = 0
        failed = Counter[str]()
        count = transactions // chains + (chain < transactions % chains)
        done = 0
        while done < count:
            one = shard(chain)
            try:
                one.open()
                while (done := one.offset or 0) < count:
                    one.step(chance)
            except (Fenced, KafkaAway) as error:
                failed[type(error).__name__] += 1
            finally:
                aborted += one.aborted
                one.close()
        report.aborted += aborted
        report.failed += failed
        wanted = [n for n in range(count) for _ in range(COPIES)]
        for place in range(PARTITIONS * chain, PARTITIONS * (chain + 1)):
            report.wrong += check(connection, topic, place, wanted)
        report.wrong += check(connection, state, chain, list(range(1, count + 1)))

    proxy.rule = faults
    with ThreadPoolExecutor(chains) as pool:
        list(pool.map(work, range(chains)))
    proxy.rule = lambda _: Fate.PASS
    report.delivered = faults.delivered
    report.epochs = sum(
        n
        for (key, of), n in proxy.seen.items()
        if key == Api.INIT_PRODUCER_ID and of.startswith(name)
    )
    return report


def check(
    connection: Connection, topic: str, partition: int, expected: list[int]
) -> list[str]:
    """Return the differences between a partition and its expected records."""
    settled(connection, topic, partition)
    shown = [
        int(message.value() or b"") for message in read(connection, topic, partition)
    ]
    if shown == expected:
        return []
    more = Counter(shown) - Counter(expected)
    less = Counter(expected) - Counter(shown)
    wrong = f"too many of {dict(more)}, too few of {dict(less)}, of {len(expected)} in order"
    return [f"{topic}[{partition}]: {wrong}"]


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    for option, default in (("--transactions", 1_000), ("--seed", 1), ("--chains", 6)):
        parser.add_argument(option, type=int, default=default)
    options = parser.parse_args()
    started = time.perf_counter()
    with proxied_broker() as proxy, tempfile.TemporaryDirectory() as directory:
        report = run(
            proxy, Path(directory), options.transactions, options.seed, options.chains
        )
    print(
        f"{report.transactions:,} transactions and {report.aborted:,} aborted attempts "
        f"in {time.perf_counter() - started:.0f} s; "
        f"{report.epochs:,} epochs; failed shards: {dict(report.failed)}"
    )
    for kind, count in sorted(report.delivered.items()):
        print(f"late {kind}: {count:,}")
    for line in report.wrong:
        print(line)
    print(
        "none torn, lost, doubled or visible after an abort"
        if not report.wrong
        else "WRONG"
    )
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
