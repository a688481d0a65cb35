"""What windows count, by hops, against plain sums over ticks; and hops as stored blocks."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest

from workers.arrays.types import Longs
from workers.mechanisms.counters.line import LineCounter, WindowShape, levels_of
from workers.mechanisms.running.hops import HEAD, Entries, Hops, decode, encode
from workers.runtime.errors import StateRefused

ROWS = 40
NONE = np.empty(0, dtype=np.int64)
# Windows and their hops, in ticks.
BOARDS = [
    [(1, 1)],
    [(7, 1)],
    [(8, 4)],
    [(16, 16), (40, 8), (9, 2)],
    [(5, 1), (30, 8), (64, 8), (100, 32)],
    [(64, 32), (40, 8)],
]
STORED = [(6, 2)]


def windows_of(board: Sequence[tuple[int, int]]) -> tuple[LineCounter, ...]:
    levels = levels_of(max(window + hop - 1 for window, hop in board))
    return tuple(LineCounter(WindowShape(*pair, levels), 0.1) for pair in board)


class Run:
    """Hops beside the window counts that they keep, as `SlidingState` does; and the store."""

    def __init__(
        self,
        board: Sequence[tuple[int, int]],
        *,
        has_sums: bool = True,
        has_ages: bool = True,
    ) -> None:
        self.board = board
        self.options = {"has_sums": has_sums, "has_ages": has_ages}
        self.hops = Hops(windows_of(board), **self.options)
        self.last = np.zeros(ROWS, dtype=np.int64)
        self.stored_last = np.zeros(ROWS, dtype=np.int64)
        self.counts = np.zeros((2, len(board), ROWS), dtype=np.int64)
        self.stored: dict[str, bytes] = {}
        self.written = Counter[str]()

    def step(self, t: int, rng: random.Random) -> Entries:
        rows = np.array(sorted(rng.sample(range(ROWS), rng.choice([0, 1, 5]))))
        rows = rows.astype(np.int64)
        counts = np.array([rng.randint(1, 300) for _ in rows], dtype=np.int64)
        steps = np.array([rng.randint(0, 70_000) for _ in rows], dtype=np.int64)
        entries = Entries(rows, counts, steps if self.options["has_sums"] else NONE)
        before = self.hops.tick
        self.last[rows] = t
        self.hops.add(t, entries, self.last)
        for i in range(len(self.board)):
            self._add(i, entries, 1)
            for leaving in self.hops.leaving(i, before):
                self._add(i, leaving, -1)
        for dated in self.hops.drop(self.last):
            self.stored_last[dated] = self.last[dated]
        return entries

    def _add(self, i: int, entries: Entries, sign: int) -> None:
        self.counts[0, i][entries.rows] += sign * entries.counts
        if len(entries.steps):
            self.counts[1, i][entries.rows] += sign * entries.steps

    def store(self) -> None:
        for name, block in self.hops.changed():
            if block is None:
                del self.stored[name]
            else:
                self.stored[name] = block
                self.written[name] += 1

    def restart(self) -> None:
        self.store()
        restored = Hops(windows_of(self.board), **self.options)
        last = self.stored_last.copy()
        restored.restore(self.stored, ROWS, last)
        if self.options["has_ages"]:
            assert last.tolist() == self.last.tolist()
        assert restored.changed() == []
        self.hops = restored
        self.counts[:] = 0
        for i in range(len(self.board)):
            for entries in restored.window(i):
                self._add(i, entries, 1)


def begin_of(window: int, hop: int, t: int) -> int:
    return (t - window) // hop * hop


@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS, ids=str)
@pytest.mark.parametrize(
    ("has_sums", "has_ages", "first", "gaps"),
    [
        (True, True, 3, [1]),
        (False, True, 1, [1]),
        (False, False, 1, [1]),
        (True, True, (1 << 39) + 5, [1, 1, 1, 2, 7, 9, 40, 200]),
    ],
)
def test_windows_count_what_their_ticks_added(
    board: list[tuple[int, int]],
    has_sums: bool,
    has_ages: bool,
    first: int,
    gaps: list[int],
) -> None:
    """Through restarts: what is counted anew is what was kept, and so is every row's last tick."""
    rng = random.Random(str(board))
    run = Run(board, has_sums=has_sums, has_ages=has_ages)
    ticks = [first]
    sums = [np.zeros((2, ROWS), dtype=np.int64)]
    t = first
    for _ in range(250):
        t += rng.choice(gaps)
        added = run.step(t, rng)
        ticks.append(t)
        sums.append(sums[-1].copy())
        sums[-1][0, added.rows] += added.counts
        if has_sums:
            sums[-1][1, added.rows] += added.steps
        if rng.random() < 0.2:
            run.restart()
        elif rng.random() < 0.3:
            run.store()
        for i, (window, hop) in enumerate(board):
            before = max(0, bisect_right(ticks, begin_of(window, hop, t)) - 1)
            expected = sums[-1] - sums[before]
            assert (run.counts[:, i] == expected).all(), (t, window, hop)


@pytest.mark.parametrize("board", BOARDS, ids=str)
def test_a_block_is_written_once_and_only_what_is_needed_is_kept(
    board: list[tuple[int, int]],
) -> None:
    """Exactly the hops of each window, and of the open hop above: after 10 windows as after 50."""
    rng = random.Random(1)
    run = Run(board)
    hops = sorted({1, *(hop for _, hop in board)})
    longest = max(window for window, _ in board)
    kept = dict.fromkeys(hops, 0)
    met = {hop: set[int]() for hop in hops}
    for t in range(1, 12 * longest + 1):
        rows = run.step(t, rng).rows
        for hop in hops if len(rows) else ():
            met[hop].add((t - 1) // hop)
        run.store()
        expected = 0
        for hop, above in pairwise((*hops, 0)):
            begins = [begin_of(w, g, t) for w, g in board if g == hop]
            if above:
                begins.append(t // above * above)
            numbers = range(max(0, min(begins) // hop), t // hop)
            kept[hop] = max(kept[hop], len(numbers))
            expected += len(met[hop].intersection(numbers))
        assert run.hops.number == expected == len(run.stored) - 1
    del run.written[HEAD]
    assert set(run.written.values()) == {1}
    for hop, above in pairwise((*hops, 0)):
        own = [window // hop for window, g in board if g == hop]
        assert kept[hop] <= max([*own, above // hop - 1]) + 1


def test_renumbered_rows_keep_all_that_is_counted() -> None:
    """As if the rows had always had these numbers; all of it is to be stored."""
    board = BOARDS[3]
    run = Run(board)
    rng = random.Random(3)
    for t in range(1, 90):
        run.step(t, rng)
    places = np.arange(ROWS) + 5
    last = np.concatenate((np.zeros(5, dtype=np.int64), run.last))
    moved = run.hops.renumbered(places, last)
    for i in range(len(board)):
        before = list(run.hops.window(i))
        for old, new in zip(before, moved.window(i), strict=True):
            assert new.rows.tolist() == (old.rows + 5).tolist()
            assert new.counts.tolist() == old.counts.tolist()
            assert new.steps.tolist() == old.steps.tolist()
    assert len(moved.changed()) == moved.number + 1


def blocks() -> dict[str, bytes]:
    run = Run(STORED)
    rng = random.Random(4)
    for t in range(1, 12):
        run.step(t, rng)
    run.store()
    return run.stored


def load(stored: dict[str, bytes]) -> None:
    hops = Hops(windows_of(STORED), has_sums=True, has_ages=True)
    hops.restore(stored, ROWS, np.zeros(ROWS, dtype=np.int64))


def damages(block: bytes) -> Iterator[bytes]:
    for length in range(len(block)):
        yield block[:length]
    yield block + b"\0"
    for place in range(len(block)):
        for bit in range(8):
            flipped = bytes((block[place] ^ (1 << bit),))
            yield block[:place] + flipped + block[place + 1 :]


@pytest.mark.slow
def test_blocks_that_are_damaged_are_refused_or_at_least_sound() -> None:
    """Cut short or of another version: refused. Where a bit of a count differs nobody can tell."""
    stored = blocks()
    load(stored)
    refused = Counter[str]()
    for name, block in stored.items():
        for i, bad in enumerate(damages(block)):
            try:
                load({**stored, name: bad})
            except StateRefused:
                refused[name] += 1
                continue
            assert i > len(block), f"{name} cut to {len(bad)} bytes was read"
            assert bad[0] == block[0], f"{name} of another version was read"
    assert set(refused) == set(stored)


def test_a_missing_or_foreign_block_is_refused() -> None:
    stored = blocks()
    for name in stored:
        with pytest.raises(StateRefused, match="missing"):
            load({other: block for other, block in stored.items() if other != name})
    later = next(iter(stored))
    for name in ("m", "mx", "m00-0", "mff-00000000001", "m00-0000000000g", "mhead2"):
        with pytest.raises(StateRefused, match="does not know"):
            load({**stored, name: stored[later]})
    tick = next(name for name in stored if name.startswith("m00-"))
    with pytest.raises(StateRefused, match="not counted yet"):
        load({**stored, "m00-00000000fff": stored[tick]})


@pytest.mark.parametrize(
    ("rows", "counts", "ages"),
    [
        ([ROWS], [1], [0]),
        ([3, 3], [1, 1], [0, 0]),
        ([1], [0], [0]),
        ([1], [1 << 63], [0]),
        ([1], [1], [2]),
        ([], [], []),
    ],
    ids=str,
)
def test_entries_that_no_tick_can_add_are_refused(
    rows: list[int], counts: list[int], ages: list[int]
) -> None:
    """A kernel would write beyond an array, or a count would be that of another row."""
    stored = blocks()
    name = next(name for name in stored if name.startswith("m01-"))
    columns = [np.array(column, dtype=np.uint64) for column in (rows, counts, ages)]
    entries = Entries(columns[0].astype(np.int64), columns[1], columns[0] * 0)  # type: ignore[arg-type]  # any integers
    with pytest.raises(StateRefused, match=name):
        load({**stored, name: encode(entries, columns[2])})  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("largest", [1, 255, 256, 65_535, 65_536, 1 << 32, (1 << 62)])
def test_numbers_of_every_width_are_read_back(largest: int) -> None:
    def column(*numbers: int) -> Longs:
        return np.array(numbers, dtype=np.int64)

    rows = column(0, 1, 1 + largest)
    for steps in (NONE, column(0, largest, 1)):
        for ages in (NONE, column(0, 0, largest)):
            entries, found = decode(
                encode(Entries(rows, column(1, largest, 2), steps), ages)
            )
            assert entries.rows.tolist() == rows.tolist()
            assert entries.counts.tolist() == [1, largest, 2]
            assert entries.steps.tolist() == steps.tolist()
            assert found.tolist() == ages.tolist()
