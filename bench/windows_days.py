"""Whether a board without epochs stays flat: 30 days of labels that nobody meets again (`python -m bench --only windows`).

`unk_base` with windows of an hour and a day, stage 2 alone, with the worker's local copy (RocksDB).
Each day brings a million new labels, each with three events within an hour, one in 10,000 of them
with so many that it is shown for a day or more; and there are 10,000 items that stay on the board.
Ticks of an hour, so that it takes minutes; `--windows-minutes` sets others. What is remembered is a
matter of days, and hardly changes with the tick.

    E      ticks for which a hidden label is remembered after its last event: about six days. Until
           then all that was ever met is alive, and everything grows
    2 E    fewer than half of the rows are alive for the first time: a tick begins without the others.
           From here on rows go up and down between once and twice those alive

So days up to 2 E and one more are the first cycle, and everything is flat after it. Exit 1 where

    rows   of any day are more than twice the labels with an event in E ticks and an hour, the
           items that stay and all labels that were ever shown, and those of one tick; or
    later  a day has more than 1.25 times the most of the first cycle in rows, memory, stored bytes or
           blocks, bytes written, the largest commit or snapshots; or on disk 1.25 times that and the
           largest commit, as RocksDB merges its files when it likes; or
    next   the tick after the last day has other bytes after a restart from what is stored.

Times are those of the thread, and no exit depends on them. `written` is what the state topic takes
in a day before compression; compacted, it holds `stored` and what was written since.
"""

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench.long_run import folder_bytes
from bench.throughput.process import memory
from tests.pipeline.pipeline import histogram_of
from workers.arrays.texts import Texts
from workers.arrays.types import Longs, Tags
from workers.kafka.store import Disk
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import expect_type
from workers.mechanisms.registry import MECHANISMS
from workers.mechanisms.running.sliding import LEAST_ROWS, Sliding, SlidingState
from workers.pipeline.histogram import HistogramProgress
from workers.runtime.sizes import Change

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: Days since 1970 of the first day: ticks have the numbers that they have without `start`.
FIRST_DAY = 20_000
KEY = "shop"
#: Events of a label after its first one, within an hour.
FURTHER = 2
#: One new label in so many is popular: each of its events stands for POPULAR_EVENTS.
POPULAR_IN = 10_000
POPULAR_EVENTS = 1_000
#: Events a day of an item that stays.
STABLE_EVENTS = 1_000
FLAT = 1.25


@dataclass(frozen=True)
class Load:
    """What a run feeds: `labels` new ones a day, of which those of a tick are `born`."""

    labels: int = 1_000_000
    stable: int = 10_000
    days: int = 30
    tick_ms: int = HOUR_MS

    @property
    def ticks(self) -> int:
        """Return the ticks of a day."""
        return DAY_MS // self.tick_ms

    @property
    def hour(self) -> int:
        """Return the ticks of an hour."""
        return HOUR_MS // self.tick_ms

    @property
    def born(self) -> int:
        return self.labels // self.ticks

    @property
    def popular(self) -> int:
        """Return the popular labels of a tick: the first ones of those that are born."""
        return -(-self.born // POPULAR_IN)

    def config(self) -> HistogramConfig:
        return MECHANISMS["unk_base"](
            name="board",
            tick_ms=self.tick_ms,
            horizon="never",
            windows=(HOUR_MS, DAY_MS),
            keys=(KEY,),
            max_items=1,
            epsilon=1.0,
            delta=1e-9,
        )


@dataclass(frozen=True)
class Cohort:
    """The labels that are born in one tick, and how many ticks later their further events are."""

    tick: int
    tags: Tags
    labels: Texts
    delays: Longs  # (rows, FURTHER)

    def events(self, tick: int, popular: int) -> Contributions:
        delay = tick - self.tick
        counts = (self.delays == delay).sum(axis=1) + (delay == 0)
        counts[:popular] *= POPULAR_EVENTS
        return contributions(self.tags, self.labels, counts)


def contributions(tags: Tags, labels: Texts, counts: Longs) -> Contributions:
    """Return one message's columns: the labels with a count."""
    rows = np.flatnonzero(counts)
    keys = np.zeros(len(rows), dtype=np.int32)
    return Contributions((KEY,), keys, tags[rows], labels.take(rows), counts[rows])


class Source:
    """Draws what every tick counts, one after another. The same seed draws the same."""

    def __init__(self, load: Load, seed: int) -> None:
        self._load = load
        self._rng = np.random.default_rng(seed)
        self._born = 0
        self._stable = self._draw_labels(load.stable)
        self._cohorts: deque[Cohort] = deque(maxlen=load.hour + 1)

    def tick(self, tick: int) -> list[Contributions]:
        load = self._load
        delays = self._rng.integers(0, load.hour + 1, size=(load.born, FURTHER))
        self._cohorts.append(Cohort(tick, *self._draw_labels(load.born), delays))
        counts = self._rng.poisson(STABLE_EVENTS / load.ticks, load.stable)
        new = [cohort.events(tick, load.popular) for cohort in self._cohorts]
        return [contributions(*self._stable, counts), *new]

    def _draw_labels(self, number: int) -> tuple[Tags, Texts]:
        """Return new tags, and labels of 16 characters."""
        first = self._born
        self._born += number
        numbers = np.arange(first, first + number, dtype=">u8")
        text = numbers.tobytes().hex().encode()
        labels = Texts.from_lengths(text, np.full(number, 16))
        tags = self._rng.integers(0, 2**64, size=(number, 2), dtype=np.uint64)
        return tags, labels


class Stored:
    """What was committed: on disk as the worker keeps it, and the sizes of all blocks."""

    def __init__(self, path: Path) -> None:
        self.disk = Disk(path)
        self.bytes = 0
        self._sizes: dict[bytes, int] = {}

    @property
    def blocks(self) -> int:
        return len(self._sizes)

    def write(self, changes: Sequence[Change]) -> int:
        """Write a commit; return its bytes."""
        self.disk.write(changes, None)
        written = 0
        for key, value in changes:
            self.bytes -= self._sizes.pop(key, 0)
            written += len(key)
            if value is not None:
                size = len(key) + len(value)
                self.bytes += size
                self._sizes[key] = size
                written += len(value)
        return written


@dataclass
class Day:
    """The most of each in a day, but sums of `written`, `snapshots` and `cpu_s`; `alive` at its end."""

    number: int
    rows: int = 0
    alive: int = 0
    state: int = 0
    memory: int = 0
    peak: int = 0
    stored: int = 0
    blocks: int = 0
    disk: int = 0
    written: int = 0
    commit: int = 0
    snapshots: int = 0
    slowest_s: float = 0.0
    cpu_s: float = 0.0
    compactions: int = 0


COMPARED = {
    "rows": "rows",
    "state": "state",
    "memory": "memory",
    "peak": "memory so far",
    "stored": "stored bytes",
    "blocks": "stored blocks",
    "disk": "disk",
    "written": "written",
    "commit": "largest commit",
    "snapshots": "snapshots",
}
_HEADER = (
    "day | rows | alive | state MB | memory MB | memory so far MB | stored MB | stored blocks | disk MB"
    " | written MB | largest commit MB | snapshots MB | CPU s, slowest tick | CPU s, all | compactions"
)


def line(day: Day) -> str:
    sizes = (day.state, day.memory, day.peak, day.stored, day.disk)
    state, resident, peak, stored, disk = (f"{size / 1e6:,.1f}" for size in sizes)
    sums = (day.written, day.commit, day.snapshots)
    cells = [str(day.number), f"{day.rows:,}", f"{day.alive:,}"]
    cells += [state, resident, peak, stored, f"{day.blocks:,}", disk]
    cells += [f"{size / 1e6:,.1f}" for size in sums]
    cells += [f"{day.slowest_s:.2f}", f"{day.cpu_s:.1f}", str(day.compactions)]
    return " | ".join(cells)


class Run:
    """A histogram that is fed day after day, in one directory."""

    def __init__(self, load: Load, directory: Path, seed: int = 1) -> None:
        self.load = load
        self.config = load.config()
        self._directory = directory
        self._source = Source(load, seed)
        self._stored = Stored(directory)
        self._histogram = histogram_of(self.config)
        mechanism = expect_type(Sliding, self._histogram.mechanism)
        # E, of the longest window.
        self.remembered = max(map(mechanism.memory_of, range(len(mechanism.windows))))
        self._tick = FIRST_DAY * load.ticks
        self._histogram.start_at(self._tick + 1)

    @property
    def cycle_days(self) -> int:
        """Return the days after which everything is flat."""
        return -(-2 * (self.remembered + self.load.hour) // self.load.ticks) + 1

    def most_rows(self, day: int) -> int:
        """Return how many rows there may be up to the end of a day."""
        load = self.load
        recent = (self.remembered + load.hour + 1) * load.born
        shown = day * load.ticks * load.popular
        alive = recent + load.stable + shown
        return max(2 * alive, LEAST_ROWS) + load.born

    def days(self) -> Iterator[Day]:
        for number in range(1, self.load.days + 1):
            day = Day(number)
            for _ in range(self.load.ticks):
                self._step(day)
            day.disk = folder_bytes(self._directory)
            yield day

    def _step(self, day: Day) -> None:
        self._tick += 1
        parts = self._source.tick(self._tick)
        histogram = self._histogram
        before = histogram.columns
        begun_s = time.thread_time()
        for snapshot in histogram.step(parts):
            day.snapshots += len(snapshot.value)
        changes = histogram.changes()
        commit = self._stored.write(changes)
        spent_s = time.thread_time() - begun_s
        ledger = histogram.columns
        state = expect_type(SlidingState, histogram._state)
        day.rows = max(day.rows, ledger.n)
        day.alive = state.alive or 0
        day.state = max(day.state, ledger.nbytes + state.nbytes)
        day.memory = max(day.memory, memory(os.getpid()))
        day.peak = memory(os.getpid(), "VmHWM")
        day.stored = max(day.stored, self._stored.bytes)
        day.blocks = max(day.blocks, self._stored.blocks)
        day.written += commit
        day.commit = max(day.commit, commit)
        day.slowest_s = max(day.slowest_s, spent_s)
        day.cpu_s += spent_s
        # The first tick's ledger follows the one that no epoch has opened.
        day.compactions += ledger is not before and before.n > 0

    def restarted(self) -> tuple[bool, float]:
        """Return whether a restart gives the same next tick, and the seconds that it took.

        This histogram ends with it.
        """
        life = msgspec.json.encode(self._histogram.life)
        parts = self._source.tick(self._tick + 1)
        expected = list(self._histogram.step(parts))
        del self._histogram
        begun_s = time.thread_time()
        histogram = histogram_of(self.config)
        progress = msgspec.json.decode(life, type=HistogramProgress)
        histogram.restore(progress, self._stored.disk.items(histogram.prefix.encode()))
        spent_s = time.thread_time() - begun_s
        return list(histogram.step(parts)) == expected, spent_s

    def close(self) -> None:
        self._stored.disk.close()


def grown(days: Sequence[Day], run: Run) -> list[str]:
    """Return what is not flat, as in the module's text."""
    found = []
    for day in days:
        most = run.most_rows(day.number)
        if day.rows > most:
            found.append(f"rows: {day.rows:,} on day {day.number}, at most {most:,}")
            break
    first = days[: run.cycle_days]
    for name, text in COMPARED.items():
        before = max(getattr(day, name) for day in first)
        if name == "disk":
            before += max(day.commit for day in first)
        for day in days[run.cycle_days :]:
            value = getattr(day, name)
            if value > FLAT * before:
                found.append(
                    f"{text}: at most {before:,} in {len(first)} days, {value:,} on day {day.number}"
                )
                break
    return found


def table(load: Load) -> bool:
    """Print the days; return whether they are flat, and a restart goes on as if nothing was."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(load, Path(folder))
        if load.days <= run.cycle_days:
            raise ValueError(f"more than {run.cycle_days} days are needed")
        print(
            f"\nwindows of an hour and a day for {load.days} days, ticks of {load.tick_ms // 60_000} min, "
            f"{load.born * load.ticks:,} new labels a day, {load.stable:,} items that stay\n"
            f"a label is remembered for {run.remembered:,} ticks, {run.remembered / load.ticks:.1f} days: "
            f"flat after day {run.cycle_days}\n{_HEADER}",
            flush=True,
        )
        days = []
        for day in run.days():
            print(line(day), flush=True)
            days.append(day)
        found = grown(days, run)
        if found:
            print("grew: " + "; ".join(found))
        same, spent_s = run.restarted()
        run.close()
    next_tick = "the same next tick" if same else "ANOTHER next tick"
    stored = days[-1].stored / 1e6
    print(f"a restart reads {stored:,.1f} MB in {spent_s:.1f} s: {next_tick}")
    return same and not found
