"""Columns of the line counter: noise of windows at consecutive ticks, bit for bit what is drawn."""

from collections.abc import Iterable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from tests.mechanisms.counters.drawn import assert_drawn, random_tags
from tests.mechanisms.counters.line import difference, unit
from tests.mechanisms.counters.test_lifted import number
from tests.mechanisms.small import (
    KEY,
    STREAM,
    assert_variance,
    numbered,
)
from workers.arrays.types import Tags, Words
from workers.mechanisms.counters import line
from workers.mechanisms.counters.base import Counter, Node
from workers.mechanisms.counters.line import (
    LONGEST_PAST,
    LineColumns,
    LineCounter,
    PastBegin,
    line_counters,
)
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream
from workers.runtime.errors import HorizonExceeded
from workers.runtime.frozen import thawed

RHO = 0.01
LAST_TICK = 2**40 - 1
# Windows, hops, and a rho: one window and several; rows of 32 and of 64 bits.
BOARDS: list[tuple[tuple[int, ...], tuple[int, ...], float]] = [
    ((1,), (1,), RHO),
    ((2,), (2,), RHO),
    ((7,), (1,), RHO),
    ((8, 1), (8, 1), RHO),
    ((7, 30, 150), (1, 8, 2), RHO),
    ((5, 64), (1, 16), 1e-12),
]
LONG = (30, 1_800, 43_200), (1, 16, 512), 0.001
every_board = pytest.mark.parametrize(
    ("windows", "hops", "rho_item"), [*BOARDS, LONG], ids=str
)


# ---- law


@pytest.mark.slow
@pytest.mark.parametrize(
    ("windows", "hops", "rho_item"),
    [((7, 30), (1, 4), 1e-3), ((3,), (1,), 2.0), ((2, 5), (2, 1), 1e-12)],
)
def test_noise_is_that_of_the_closed_form_in_exact_numbers(
    windows: tuple[int, ...], hops: tuple[int, ...], rho_item: float
) -> None:
    """Coefficients of the record and numbers to 200 bits, by another library."""
    counters = line_counters(windows, hops, rho_item)
    columns = LineColumns(counters, STREAM)
    tags = numbered("line", 2)
    levels = counters[0].levels
    numbers: dict[tuple[int, Node], mpmath.mpf] = {}

    def exact(counter: LineCounter, t: int, row: int) -> int:
        moved = 2 << levels
        nodes = difference(t + moved, counter.begin(t) + moved, levels)
        total = mpmath.mpf(0)
        for node, coefficient in nodes.items():
            if (row, node) not in numbers:
                variance = counter.variance_of(node)
                tag = tags[row : row + 1]
                numbers[row, node] = number(STREAM, tag, node, variance)
            total += coefficient * numbers[row, node]
        return int(mpmath.floor(total / unit(levels) + 0.5))

    with mp.workprec(260):
        for t in range(1, (2 << levels) + 2):
            found = columns.at(t, tags)
            for counter, noise in zip(counters, found, strict=True):
                expected = [exact(counter, t, row) for row in range(len(tags))]
                assert noise.tolist() == expected
                assert counter.draw(STREAM, t, tags).tolist() == expected
                if t % 8 == 1:
                    assert counter.exact(STREAM, t, tags[:1]) == expected[0]


# n = 6,000 independent rows: a sample variance has relative sd sqrt(2/n) = 0.018, a mean
# sd/sqrt(n), so five of each are 9.2 % and 0.065 sd. Half and double the variance lie far outside.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("windows", "hops", "rho_item"), [BOARDS[2], BOARDS[4], LONG], ids=str
)
def test_noise_has_the_stated_standard_deviation_and_not_half_or_double_the_variance(
    windows: tuple[int, ...], hops: tuple[int, ...], rho_item: float
) -> None:
    tags = numbered("sd", 6_000)
    counters = line_counters(windows, hops, rho_item)
    columns = LineColumns(counters, STREAM)
    for t in (1, 2, 33, 500, 65_536, 65_537, 2**33 + 12_345):
        for counter, noise in zip(counters, columns.at(t, tags), strict=True):
            assert_variance(noise.var(), counter.sd(t) ** 2, tolerance=0.092)
            assert abs(noise.mean()) < 0.065 * counter.sd(t)


def test_windows_of_one_path_share_their_noise() -> None:
    """Adjacent windows add up: what is added to an hour is added to its halves."""
    tags = numbered("sum", 300)
    long, short = line_counters((16, 8), (1, 1), 1e-6)
    for t in (20, 31, 40):
        halves = short.draw(STREAM, t, tags) + short.draw(STREAM, t - 8, tags)
        assert np.abs(long.draw(STREAM, t, tags) - halves).max() <= 1


# ---- columns


@every_board
@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_columns_give_what_is_drawn_for_any_order_of_ticks_and_growing_rows(
    windows: tuple[int, ...],
    hops: tuple[int, ...],
    rho_item: float,
    data: st.DataObject,
) -> None:
    tags = random_tags(30)
    counters = line_counters(windows, hops, rho_item)
    columns = LineColumns(counters, STREAM)
    rows = 0
    t = data.draw(st.integers(1, LAST_TICK))
    for _ in range(data.draw(st.integers(1, 12))):
        rows = min(len(tags), rows + data.draw(st.integers(0, 9)))
        kind = data.draw(st.integers(0, 4))
        if kind == 0:
            t = data.draw(st.integers(1, LAST_TICK))
        elif kind == 1:  # about the end of a block
            t = (t >> counters[0].levels << counters[0].levels) + data.draw(
                st.integers(0, 3)
            )
        else:
            t += data.draw(st.integers(0, 3))
        t = min(max(t, 1), LAST_TICK)
        assert_drawn(counters, columns, t, tags[:rows])


def restarted(
    counters: tuple[LineCounter, ...], ticks: Iterable[int], tags: Tags, seed: int
) -> None:
    """Compare at ticks, with skipped ticks, restarts and new rows at random."""
    rng = np.random.default_rng(seed)
    columns = LineColumns(counters, STREAM)
    rows = 2
    for t in ticks:
        chance = rng.random()
        if chance < 0.1:
            continue
        if chance < 0.11:
            columns = LineColumns(counters, STREAM)
        if chance > 0.97:
            rows = min(rows + 1, len(tags))
        assert_drawn(counters, columns, t, tags[:rows])


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "hops", "rho_item"), BOARDS, ids=str)
def test_columns_give_what_is_drawn_over_many_blocks(
    windows: tuple[int, ...], hops: tuple[int, ...], rho_item: float
) -> None:
    counters = line_counters(windows, hops, rho_item)
    restarted(counters, range(1, 801), random_tags(12), seed=1)


@pytest.mark.slow
def test_columns_give_what_is_drawn_about_the_end_of_a_long_block() -> None:
    """t passes into a block; then the begins of a minute, an hour and a day do."""
    counters = line_counters(*LONG)
    levels = counters[0].levels
    begin = 5 << levels
    for seed, window in enumerate((0, 30, 1_800, 43_200)):
        ticks = range(begin + window - 60, begin + window + 120)
        restarted(counters, ticks, random_tags(12), seed)


@pytest.mark.parametrize("fault", ["step", "ends", "begin"])
def test_a_fault_in_the_columns_is_noticed(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forgotten step, ends relative to the block before, a begin that does not move."""
    counters = line_counters((7, 16), (1, 4), RHO)
    if fault == "step":
        monkeypatch.setattr(line.Cursor, "step_before", lambda *_: 0)
    elif fault == "ends":
        monkeypatch.setattr(line.Cursor, "_enter", lambda *_: None)
    columns = LineColumns(counters, STREAM)
    if fault == "begin":
        stuck = columns._begins[0]
        set_place = stuck.set_place
        monkeypatch.setattr(
            stuck, "set_place", lambda place, rows: set_place(place - place % 2, rows)
        )
    tags = random_tags(8)

    def compare() -> None:
        for t in range(1, 60):
            assert_drawn(counters, columns, t, tags)

    with pytest.raises(AssertionError):
        compare()


def test_columns_decide_nearly_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would be right, and slow. 1 row in 1,000 may be left to `draw`."""
    counters = line_counters(*LONG)
    left = 0
    draw = Counter.draw

    def counted(self: Counter, stream: NoiseStream, t: int, tags: Tags) -> Any:
        nonlocal left
        left += len(tags)
        return draw(self, stream, t, tags)

    monkeypatch.setattr(LineCounter, "draw", counted)
    columns = LineColumns(counters, STREAM)
    tags = random_tags(20_000)
    ticks = 5
    for t in range(100_000, 100_000 + ticks):
        columns.at(t, tags)
    assert 0 < left < len(tags) * len(counters) * ticks / 1_000


def test_a_coarse_bound_leaves_every_row_to_the_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters = tuple(map(thawed, line_counters(*BOARDS[4])))
    for counter in counters:
        fixed = counter.fixed
        coarse = fixed._replace(error=1 << fixed.point)
        monkeypatch.setattr(counter, "fixed", coarse)
    columns = LineColumns(counters, STREAM)
    for t in range(1, 20):
        assert_drawn(counters, columns, t, random_tags(3))


def test_new_ticks_need_few_words_and_new_rows_a_few_a_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row starts from nothing with at most three nodes a level and place, and two steps."""
    stream = thawed(KEY.stream(bytes(16)))
    counters = line_counters((1_000,), (1,), RHO)
    levels = counters[0].levels
    chunk = stream.chunk
    words = 0

    def counted(tags: Tags, cells: Words) -> Words:
        nonlocal words
        words += len(tags) * len(cells)
        return chunk(tags, cells)

    monkeypatch.setattr(stream, "chunk", counted)
    monkeypatch.setattr(line, "decide_difference", lambda *_: 0)
    columns = LineColumns(counters, stream)
    tags = random_tags(1)
    columns.at(5_001, tags)
    assert words <= 2 * (2 * levels + 1) + 1
    words = 0
    ticks = 4 << levels
    for t in range(5_002, 5_002 + ticks):
        columns.at(t, tags)
    assert words < 2.2 * ticks


@pytest.mark.parametrize("window", [1, 7, LONGEST_PAST])
def test_a_short_window_draws_nothing_for_its_begin_once_rows_are_older_than_it(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Its begin is a place at which the cursor at t has been, whose noise is kept, and no more."""
    stream = thawed(KEY.stream(bytes(16)))
    columns = LineColumns(line_counters((window,), (1,), RHO), stream)
    (begin,) = columns._begins
    assert isinstance(begin, PastBegin)
    moved = []
    of_young = begin._young.move_chunk

    def move(tags: Tags, row: int, first: int) -> None:
        moved.append(len(tags) - first)
        of_young(tags, row, first)

    monkeypatch.setattr(begin._young, "move_chunk", move)
    tags = random_tags(50)
    # Rows come at the first tick and at the fifth.
    rows_at = {t: 20 if t < 5 else 50 for t in range(1, 4 * window + 10)}
    for t, rows in rows_at.items():
        assert_drawn(columns._counters, columns, t, tags[:rows], stream)
    expected = [rows_at[t] - rows_at.get(t - window, 0) for t in rows_at]
    assert moved == [young for young in expected if young]
    assert not sum(state.nbytes for state in begin._young._states)


def test_a_begin_that_takes_the_noise_of_another_tick_is_noticed() -> None:
    columns = LineColumns(line_counters((7,), (1,), RHO), STREAM)
    (begin,) = columns._begins
    assert isinstance(begin, PastBegin)
    tags = random_tags(10)
    for t in range(1, 20):
        assert_drawn(columns._counters, columns, t, tags)
    begin._past[0] = np.roll(begin._past[0], 1, axis=0)
    with pytest.raises(AssertionError):
        assert_drawn(columns._counters, columns, 20, tags)


class OftenSmall(NoiseStream, shared=False):
    """A stream in which one word in 1,000 is too small for `normal.rough`."""

    def __init__(self) -> None:
        super().__init__(bytes(32))

    def chunk(self, tags: Tags, cells: Words) -> Words:
        words = super().chunk(tags, cells)
        small = words % np.uint64(1_000) == 7
        words[small] &= np.uint64(normal.ROUGH_LEAST - 1)
        return words


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "hops", "rho_item"), [BOARDS[2], BOARDS[4]])
def test_rows_with_small_words_are_drawn_until_the_words_have_no_part(
    windows: tuple[int, ...], hops: tuple[int, ...], rho_item: float
) -> None:
    """A path has no end: rows that were drawn for ever would be all rows, some day."""
    stream = OftenSmall()
    counters = line_counters(windows, hops, rho_item)
    columns = LineColumns(counters, stream)
    tags = random_tags(30)
    drawn = []
    for t in range(1, 400):
        assert_drawn(counters, columns, t, tags, stream)
        drawn.append(len(columns._inexact(0)))
    assert 0 < np.mean(drawn) < len(tags) / 2
    healed = np.diff(drawn) < 0
    assert healed.sum() > 5


def test_rows_take_the_stated_bytes() -> None:
    """`plan` sizes the machine by it: 4 or 8 bytes a number that is kept."""
    for windows, hops, rho_item in (*BOARDS, LONG):
        counters = line_counters(windows, hops, rho_item)
        columns = LineColumns(counters, STREAM)
        columns.at(1, random_tags(CHUNK_ROWS))
        cursors = [columns._end]
        states = []
        for begin in columns._begins:
            if isinstance(begin, PastBegin):
                states += begin._past
                cursors.append(begin._young)
            else:
                cursors.append(begin)
        states += [state for cursor in cursors for state in cursor._states]
        kept = sum(state.nbytes for state in states)
        assert columns.bytes_per_row == kept / CHUNK_ROWS


def test_ticks_outside_the_line_are_refused() -> None:
    (counter,) = line_counters((7,), (1,), RHO)
    columns = LineColumns((counter,), STREAM)
    for t in (-1, 0, LAST_TICK + 1):
        with pytest.raises(HorizonExceeded, match=f"tick {t} "):
            columns.at(t, random_tags(1))
        with pytest.raises(HorizonExceeded, match=f"tick {t} "):
            counter.draw(STREAM, t, random_tags(1))
