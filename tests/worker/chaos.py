"""Chaos test: two workers are killed at random moments while events come in; then all sums must be
exact.

Half of the events precede the workers; they are dated into the minute before, some later than the
grace allows. The rest come in live, dated ahead of the clock. The expected contents of every tick
follow from the rule in interfaces and architecture alone. The suite runs a short version; the long
one is

    python -m tests.worker.chaos --events 1000000 --kills 20 [--bootstrap B] [--seed N] [--directory
    D]
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bounding import bound
from tests.broker import LASTING, broker
from tests.pipeline.pipeline import Contributed
from tests.worker.harness import Site, assert_contiguous, known, now_ms, sale, unk
from workers.mechanisms.config.histogram import Lane

SOURCES, OWNERS = 4, 2
GRACE_MS = 8_000
# Lead of event times over the clock. Otherwise an event would be late where sending it, or the
# broker, takes longer than the grace.
AHEAD_MS = 20_000
KEYS = [f"k{i}" for i in range(10)]
LABELS = [f"item-{i}" for i in range(2_000)]
BOUNDED = {"max_items": 3, "max_count": 2, "domain": LABELS[:50]}
HISTOGRAMS = unk("unknown"), known("known", tick="2s", keys=KEYS, **BOUNDED)


@dataclass
class Oracle:
    lanes: list[Lane]
    watermarks: list[int | None] = field(default_factory=lambda: [None] * SOURCES)
    total: Counter[Contributed] = field(default_factory=Counter)

    def take(self, partition: int, event: dict[str, Any]) -> None:
        at, before = event["ts"], self.watermarks[partition]
        mark = at if before is None else max(before, at - GRACE_MS)
        self.watermarks[partition] = mark
        for lane in self.lanes:
            tick = (max(at, mark) - lane.start_ms) // lane.tick_ms + 1
            for label, n in bound(event["items"], lane.max_items, lane.max_count).items():
                if n:
                    self.total[Contributed(lane, tick, event["key"], label)] += n


def make_event(rng: random.Random, at: int) -> dict[str, Any]:
    most = len(LABELS) - 1
    number = rng.choice((1, 2, 2, 3, 4))
    labels = [LABELS[min(int(rng.paretovariate(0.9)) - 1, most)] for _ in range(number)]
    items: object = labels if rng.random() < 0.8 else {label: rng.randrange(4) for label in labels}
    return sale(items, at, rng.choice(KEYS))


def backlog(
    rng: random.Random, events: int, end_ms: int, span_ms: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return past events, nearly in order; one in twenty is late, some beyond the grace."""
    for i in range(events):
        at = end_ms - span_ms + span_ms * i // events
        late = rng.randrange(2 * GRACE_MS) if rng.random() < 0.05 else 0
        yield i % SOURCES, make_event(rng, at - late)


def chaos(
    bootstrap: str,
    directory: Path,
    *,
    events: int,
    kills: int,
    seed: int,
    gap_s: tuple[float, float],
    topics: Sequence[int] = (),
) -> dict[str, Any]:
    """Run the test, assert every result, and return figures.

    `events` is the total, half of it before the workers start; `gap_s` is the range between kills;
    `topics` gives partitions per events topic, `SOURCES` in all (default: one topic).
    """
    rng = random.Random(seed)
    events_of = {"grace": f"{GRACE_MS}ms"}
    site = Site(bootstrap, directory, HISTOGRAMS, topics=topics, owners=OWNERS, events=events_of)
    lanes = list(dict.fromkeys(histogram.lane for histogram in site.settings.histograms))
    oracle = Oracle(lanes)
    # The backlog lies in the past: an event dated ahead moves the watermark no further than the
    # clock.
    begun_ms = now_ms()
    for partition, event in backlog(rng, events // 2, begun_ms - GRACE_MS, 60_000):
        site.produce(partition, [event], flush=False)
        oracle.take(partition, event)
    site.produce(0, [])  # flush
    workers = [site.worker("one"), site.worker("two")]
    gaps = [rng.uniform(*gap_s) for _ in range(kills)]
    rate = (events - events // 2) / max(sum(gaps), 1.0)
    killed, sent, next_kill, restarts = 0, 0, time.monotonic() + gaps[0] if kills else 0.0, []
    started = time.monotonic()
    last = begun_ms
    try:
        while killed < kills or sent < events - events // 2:
            due = min(int((time.monotonic() - started) * rate) + 1, events - events // 2)
            for _ in range(due - sent):
                last = now_ms() + AHEAD_MS
                partition = rng.randrange(SOURCES)
                event = make_event(rng, last - rng.randrange(2_000))
                site.produce(partition, [event], flush=False)
                oracle.take(partition, event)
            sent = max(sent, due)
            # flush: an event is in the log long before the clock can close its tick
            site.produce(0, [])
            if killed < kills and time.monotonic() >= next_kill:
                victim = rng.randrange(2)
                log = workers[victim].output()[-3000:]
                assert workers[victim].running(), f"a worker ended by itself:\n{log}"
                workers[victim].kill()
                killed += 1
                restarts.append((time.monotonic() + rng.uniform(0, 1.5), victim))
                next_kill = time.monotonic() + (gaps[killed] if killed < kills else 0.0)
            for at, victim in list(restarts):
                if time.monotonic() >= at:
                    restarts.remove((at, victim))
                    workers[victim] = site.worker(("one", "two")[victim])
            time.sleep(0.02)
        for _, victim in restarts:
            workers[victim] = site.worker(("one", "two")[victim])
        site.wait_published(last + 2_000)
        ended = [worker.stop() for worker in workers]
        assert ended == [0, 0], "\n".join(worker.output()[-2000:] for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
    seconds = round(time.monotonic() - started, 1)
    return check(site, oracle) | {"seconds": seconds, "kills": killed, "events": events}


def check(site: Site, oracle: Oracle) -> dict[str, Any]:
    found = site.contributed()
    wrong = [(what, found[what], n) for what, n in oracle.total.items() if found[what] != n]
    extra = [(what, n) for what, n in found.items() if what not in oracle.total]
    assert not wrong and not extra, (
        f"{len(wrong)} wrong of {len(oracle.total)}, such as {wrong[:5]}; {len(extra)} too many, such as {extra[:5]}; "
        f"{found.total()} counted, {oracle.total.total()} produced"
    )
    snapshots = site.snapshots()
    assert_contiguous(snapshots)
    served = {(s["histogram"], s["key"]) for s in snapshots}
    assert served == {(name, key) for name in ("unknown", "known") for key in KEYS}
    audit = site.audit()
    assert audit.returncode == 0, audit.stdout + audit.stderr
    ticks = len({(s["histogram"], s["end"]) for s in snapshots})
    return {"counted": found.total(), "snapshots": len(snapshots), "ticks": ticks}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--least-gap", type=float, default=1.0)
    parser.add_argument("--most-gap", type=float, default=18.0)
    which = f"partitions of each events topic, {SOURCES} in all"
    parser.add_argument("--topics", type=int, nargs="*", default=(), help=which)
    kept = "kept; default: a temporary one"
    parser.add_argument("--directory", type=Path, default=None, help=kept)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with broker(LASTING) as bootstrap, tempfile.TemporaryDirectory() as temporary:
        directory = given.directory or Path(temporary)
        gap = (given.least_gap, given.most_gap)
        sizes: dict[str, Any] = {n: getattr(given, n) for n in ("events", "kills", "topics")}
        print(chaos(bootstrap, directory, seed=seed, gap_s=gap, **sizes))


if __name__ == "__main__":
    main()
