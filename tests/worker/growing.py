"""Growth test: topics get more partitions under load, and workers are killed meanwhile.

Two workers, one event topic or two, with or without re-keying by user, or more owner partitions.
The suite runs short forms; the long one is

    python -m tests.worker.growing --kills 12 [--rekey] [--two-topics] [--owners] [--seed N]
"""

import argparse
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # a re-export

from tests.broker import LASTING, broker
from tests.client.signed import Copy, missed_changes, record_of
from tests.forked import QUICKER
from tests.worker.harness import Site, Worker, now_ms, sale, succeed, unk, until
from workers.agents.progress import read_states
from workers.commands.key import new_signing_key, rotate_signing_key
from workers.kafka.placement import partitions_of
from workers.pipeline.signing_key import read_signing_key

LABELS = [f"item-{i}" for i in range(20)]
KEYS = ("k0", "k1", "k2")
#: In QUICKER: workers let stream keys move soon.
SOON = "workers.agents.contribute.NOTICE_MS=20000"


def grow(site: Site, topic: str, partitions: int) -> None:
    """Add partitions to an events topic, and know them as places to send to."""
    known = sum(name == topic for name, _ in site.places)
    if known == partitions:
        return
    for future in site.admin.create_partitions(
        [NewPartitions(topic, partitions)]
    ).values():
        future.result()

    def seen() -> int:
        # Of the producer, which would learn of them after minutes.
        return len(site.producer.list_topics(timeout=60).topics[topic].partitions)

    until(lambda: seen() == partitions, "the new partitions")
    site.places += [(topic, partition) for partition in range(known, partitions)]


def home(user: bytes, partitions: int) -> int:
    data = np.frombuffer(user, dtype=np.uint8)
    place = np.array([[0, len(user)]])
    return int(partitions_of(data, place, partitions)[0])


class Load:
    """Events at a steady rate, to every partition that there is."""

    def __init__(self, site: Site, rng: random.Random, *, by_user: bool) -> None:
        """`by_user`: record keys are users, each of one event, and place them."""
        self._site = site
        self._rng = rng
        self._by_user = by_user
        #: Label, event time, user and place of every event.
        self.sent: list[tuple[str, int, bytes, int]] = []
        self.last_ms = 0

    @contextmanager
    def running(self, per_s: int = 400) -> Iterator[None]:
        ended = threading.Event()

        def send() -> None:
            while not ended.wait(0.05):
                for _ in range(per_s // 20):
                    self.send(self._rng.randrange(len(self._site.places)))

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def send(self, place: int) -> None:
        label = self._rng.choice(LABELS)
        self.last_ms = now_ms()
        who = f"u{self._rng.random()}"
        event = sale([label], self.last_ms, self._rng.choice(KEYS), who=who)
        user = who.encode()
        if self._by_user:
            place = home(user, len(self._site.places))
        self._site.produce(place, [event], key=user, flush=False)
        self.sent.append((label, self.last_ms, user, place))


def growing(
    bootstrap: str,
    directory: Path,
    *,
    steps: Sequence[Sequence[int]],
    kills: int,
    seed: int,
    rekey: bool = False,
    users: bool = False,
    owners: Sequence[int] = (2,),
) -> dict[str, Any]:
    """Run the test, assert every result, and return figures.

    `steps` are partitions by topic, the first at the start; `kills` workers are killed in each.
    `users`: record keys place them on the partitions of the only topic, without `rekey`. `owners`
    are the numbers of owner partitions, which grow after that.
    """
    rng = random.Random(seed)
    ceiling: dict[str, Any] = {
        "max_epsilon": 100.0,
        "max_delta": 1e-4,
        "period": "epoch",
    }
    given: dict[str, Any] = {"partitions": steps[0][0], "privacy": ceiling}
    if len(steps[0]) > 1:
        given |= {"topics": steps[0]}
    if rekey:
        given |= {
            "events": {"user": "who", "grace": "2s"},
            "privacy": ceiling | {"unit": "user", "rekey": True},
            "worker": {"user_partitions": 2},
        }
    bounds: dict[str, Any] = {"max_items_per_user": 2} if rekey or users else {}
    if users:
        of = {
            "user": "$key",
            "partitioner": "murmur2",
            "grace": "2s",
            "max_ahead": "1s",
        }
        given |= {"events": of, "privacy": {"unit": "user"}}
        bounds |= {"horizon": 20}
    histograms = [unk(**bounds), unk("wide", tick="3s", **bounds)]
    moves_keys = len(owners) > 1
    if moves_keys:
        given |= {"events": given.get("events", {}) | {"max_ahead": "1s"}}
        given |= {"worker": {"signing_key_file": "old.key"}}
        histograms = [
            one | {"horizon": n} for one, n in zip(histograms, (12, 4), strict=True)
        ]
        histograms.append(unk("parts", tick="3s", horizon=4, split=2))
    site = Site(bootstrap, directory, histograms, **given, owners=owners[0])
    if moves_keys:
        new_signing_key(directory / "old.key")
    workers = {name: site.worker(name) for name in ("one", "two")}
    load = Load(site, rng, by_user=users)
    killed = 0
    joined_s = []

    def kill_some(within_s: float) -> int:
        for _ in range(kills):
            time.sleep(rng.uniform(0, within_s))
            victim = rng.choice(list(workers))
            assert workers[victim].running(), workers[victim].output()[-3000:]
            workers[victim].kill()
            workers[victim] = site.worker(victim)
        return kills

    try:
        with load.running():
            site.wait_published(now_ms())
            charged = spent(site)
            for step in steps[1:]:
                for topic, partitions in zip(site.topics, step, strict=True):
                    grow(site, topic, partitions)
                began = time.monotonic()
                killed += kill_some(6)
                wait_joined(workers.values(), sum(step))
                joined_s.append(round(time.monotonic() - began, 1))
                if users:
                    time.sleep(
                        max(0, moves_of(workers.values())[-1] / 1000 - time.time() + 10)
                    )
                site.wait_published(now_ms())
            for number in owners[1:]:
                site.set("worker", owner_partitions=number)
                site.create_topics()
                killed += kill_some(30)
                said = f"{number} owner partitions are counted from "
                until(lambda: times_of(directory, said), f"there are {number} owners")  # noqa: B023
                moved_ms = times_of(directory, said)[-1]
                time.sleep(max(0, moved_ms / 1000 - time.time() + 4))
                site.wait_published(max(moved_ms, now_ms()))
            if moves_keys:
                site.verify("old.key")
                ended = [worker.stop() for worker in workers.values()]
                assert ended == [0, 0]
                rotate_signing_key(directory / "old.key", directory / "new.key")
                site.set("worker", signing_key_file="new.key")
                workers |= {name: site.worker(name) for name in workers}
                site.wait_published(now_ms())
        assert site.producer.flush(60) == 0
        site.wait_published(load.last_ms + 2_000)
        ended = [worker.stop() for worker in workers.values()]
        assert ended == [0, 0], "\n".join(
            one.output()[-2000:] for one in workers.values()
        )
    finally:
        for worker in workers.values():
            worker.kill()
    moves = list(
        zip(moves_of(workers.values()), [sum(step) for step in steps[1:]], strict=False)
    )
    expected: Counter[str] = Counter()
    for label, at, user, place in load.sent:
        number = max([n for from_ms, n in moves if at >= from_ms], default=steps[0][0])
        expected[label] += not users or home(user, number) == place
    lane = site.settings.histograms[0].lane
    found: Counter[str] = Counter()
    for what, n in site.contributed().items():
        if what.lane == lane:
            found[what.label] += n
    assert found == expected, (found - expected, expected - found)
    assert users or moves_keys or spent(site) == charged  # of the one epoch
    states = read_states(site.connection, site.name) or []
    begun = [
        one is not None and one.histograms["items"].next is not None for one in states
    ]
    assert begun == [True] * owners[-1]
    assert len(site.reasons()) == len(load.sent) - expected.total()
    site.assert_clean()
    if moves_keys:
        check_signed(site)
    figures = {"events": len(load.sent), "kills": killed, "joined_s": joined_s}
    figures["rejected"] = len(load.sent) - expected.total()
    return figures | {"snapshots": len(site.snapshots())}


def check_signed(site: Site) -> None:
    """Verify the topics and exports of them, and that a thousand changes of the topics are found."""
    site.verify("old.key")
    for kind in ("csv", "parquet"):
        output = site.directory / kind
        chosen = ["--format", kind, "--histogram", "items", "--histogram", "wide"]
        succeed("export", "-c", str(site.config), "--output", str(output), *chosen)
        site.verify("old.key", str(output))
    signing = [site.settings.signatures_topic or ""]
    copy = Copy(
        tuple(record_of(one) for topic in signing for one in site.read(topic)),
        tuple(
            (topic.removeprefix(f"{site.name}."), record_of(one))
            for topic in site.settings.output_topics
            for one in site.read(topic)
        ),
    )
    old = read_signing_key(site.directory / "old.key")
    new = read_signing_key(site.directory / "new.key")
    copy.verify(old.public)
    assert missed_changes(copy, old.public, new, 1_000) == []


def spent(site: Site) -> object:
    """Return what was charged, and how many epochs of each histogram."""
    found = json.loads(succeed("budget", "-c", str(site.config), "--json"))
    epochs = [
        (one["name"], [len(each["epochs"]) for each in one["generations"]])
        for one in found["histograms"]
    ]
    return found["total"]["epsilon"], found["total"]["delta"], epochs


def moves_of(workers: Iterable[Worker]) -> list[int]:
    """Return the times from which users are placed on more partitions, in ms."""
    directory = next(iter(workers)).log.parent
    return times_of(directory, "users are placed on all of them from ")


def times_of(directory: Path, said: str) -> list[int]:
    """Return the times that follow some words in the logs, in ms."""
    found = set()
    for log in directory.glob("worker-*.log"):
        for line in log.read_text().splitlines():
            if said in line:
                text = line.rpartition(said)[2].split()[0].replace("Z", "+00:00")
                found.add(round(datetime.fromisoformat(text).timestamp() * 1000))
    return sorted(found)


def wait_joined(workers: Iterable[Worker], number: int) -> None:
    """Wait until a worker reads `number` source partitions or origins."""
    said = f" to {number - 1} are those of topic "
    directory = next(iter(workers)).log.parent
    until(
        lambda: any(said in log.read_text() for log in directory.glob("worker-*.log")),
        f"{number} partitions are read",
    )


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rekey", action="store_true")
    parser.add_argument("--users", action="store_true")
    parser.add_argument("--two-topics", action="store_true")
    parser.add_argument("--owners", action="store_true")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    if given.owners:
        os.environ[QUICKER] = SOON
    steps = ((1, 1), (3, 1), (3, 4)) if given.two_topics else ((2,), (4,), (7,))
    with broker(LASTING) as bootstrap, tempfile.TemporaryDirectory() as directory:
        print(
            growing(
                bootstrap,
                Path(directory),
                steps=steps,
                kills=given.kills,
                seed=seed,
                rekey=given.rekey,
                users=given.users,
                owners=(2, 4, 8) if given.owners else (2,),
            )
        )


if __name__ == "__main__":
    main()
