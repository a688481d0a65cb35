"""Growth test: the events topics get more partitions under load, and workers are killed meanwhile.

Two workers, one event topic or two, with or without re-keying by user. The suite runs short forms;
the long one is

    python -m tests.worker.growing --kills 12 [--rekey] [--topics 1 1] [--seed N]
"""

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # a re-export

from tests.broker import LASTING, broker
from tests.worker.harness import Site, Worker, now_ms, sale, unk, until

LABELS = [f"item-{i}" for i in range(20)]
KEYS = ("k0", "k1", "k2")


def grow(site: Site, topic: str, partitions: int) -> None:
    """Add partitions to an events topic, and know them as places to send to."""
    known = sum(name == topic for name, _ in site.places)
    if known == partitions:
        return
    for future in site.admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result()

    def seen() -> int:
        # Of the producer, which would learn of them after minutes.
        return len(site.producer.list_topics(timeout=60).topics[topic].partitions)

    until(lambda: seen() == partitions, "the new partitions")
    site.places += [(topic, partition) for partition in range(known, partitions)]


class Load:
    """Events at a steady rate, to every partition that there is."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self._site, self._rng = site, rng
        self.sent: Counter[str] = Counter()
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
        label, self.last_ms = self._rng.choice(LABELS), now_ms()
        event = sale([label], self.last_ms, self._rng.choice(KEYS), who=f"u{self._rng.random()}")
        self._site.produce(place, [event], flush=False)
        self.sent[label] += 1


def growing(
    bootstrap: str,
    directory: Path,
    *,
    steps: Sequence[Sequence[int]],
    kills: int,
    seed: int,
    rekey: bool = False,
) -> dict[str, Any]:
    """Run the test, assert every result, and return figures.

    `steps` are partitions by topic, the first at the start; `kills` workers are killed in each.
    """
    rng = random.Random(seed)
    given: dict[str, Any] = {"partitions": steps[0][0]}
    if len(steps[0]) > 1:
        given = {"topics": steps[0]}
    if rekey:
        given |= {
            "events": {"user": "who", "grace": "2s"},
            "privacy": {"unit": "user", "rekey": True},
        }
        given |= {"worker": {"user_partitions": 2}}
    bounds = {"max_items_per_user": 2} if rekey else {}
    site = Site(bootstrap, directory, [unk(**bounds), unk("wide", tick="3s", **bounds)], **given)
    workers = {name: site.worker(name) for name in ("one", "two")}
    load, killed, joined_s = Load(site, rng), 0, []
    try:
        with load.running():
            site.wait_published(now_ms())
            for step in steps[1:]:
                for topic, partitions in zip(site.topics, step, strict=True):
                    grow(site, topic, partitions)
                began = time.monotonic()
                for _ in range(kills):
                    time.sleep(rng.uniform(0, 6))
                    victim = rng.choice(list(workers))
                    assert workers[victim].running(), workers[victim].output()[-3000:]
                    workers[victim].kill()
                    killed += 1
                    workers[victim] = site.worker(victim)
                wanted = f"release-{sum(step)}"
                until(lambda: joined(site, workers.values()) == sum(step), f"{wanted} joined")
                joined_s.append(round(time.monotonic() - began, 1))
                site.wait_published(now_ms())
        assert site.producer.flush(60) == 0
        site.wait_published(load.last_ms + 2_000)
        ended = [worker.stop() for worker in workers.values()]
        assert ended == [0, 0], "\n".join(one.output()[-2000:] for one in workers.values())
    finally:
        for worker in workers.values():
            worker.kill()
    lane = site.settings.histograms[0].lane
    found: Counter[str] = Counter()
    for what, n in site.contributed().items():
        if what.lane == lane:
            found[what.label] += n
    assert found == load.sent, (found - load.sent, load.sent - found)
    assert site.reasons() == []
    site.assert_clean()
    figures = {"events": load.sent.total(), "kills": killed, "joined_s": joined_s}
    return figures | {"snapshots": len(site.snapshots())}


def joined(site: Site, workers: Any) -> int:
    """Return how many partitions of events a worker's log counts."""
    counts = [0]
    for worker in workers:
        for line in worker.output().splitlines():
            if " are counted" in line and "joined" in line:
                counts.append(int(line.rpartition(": ")[2].split()[0]))
    return max(counts)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rekey", action="store_true")
    parser.add_argument("--two-topics", action="store_true")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    steps = ((1, 1), (3, 1), (3, 4)) if given.two_topics else ((2,), (4,), (7,))
    with broker(LASTING) as bootstrap, tempfile.TemporaryDirectory() as directory:
        of: dict[str, Any] = {"kills": given.kills, "seed": seed, "rekey": given.rekey}
        print(growing(bootstrap, Path(directory), steps=steps, **of))


if __name__ == "__main__":
    main()
