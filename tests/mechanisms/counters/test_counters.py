"""Contract tests of every counter."""

import math
from fractions import Fraction
from itertools import starmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.small import KEY, STREAM, assert_variance, numbered
from workers.arrays.types import Tags
from workers.mechanisms.counters.base import Counter, LevelCounter
from workers.mechanisms.counters.counter import KINDS, make_counter
from workers.mechanisms.noise.gaussian import integer_gaussian, reach, round_up_sigma_squared
from workers.mechanisms.noise.keyed import CHUNK_ROWS
from workers.runtime.errors import HorizonExceeded
from workers.runtime.frozen import thawed

pytestmark = pytest.mark.slow

# Parameters of every arithmetic path: one group in int32, one in int64, several groups, int16 and
# int32 columns.
ARGUMENTS: list[tuple[Any, ...]] = [
    ("lifted", 1, 0.5),
    ("lifted", 100, 0.01),
    ("lifted", 2**16, 1e-6),
    ("lifted", 2**40, 0.001),
    ("lifted", None, 0.004),
    ("lifted", None, 1e-4),
    ("lifted", 1, 0.5, None, 0.6),
    ("lifted", 100, 0.01, None, 0.6),
    ("lifted", 2**39 + 1, 0.001, None, 0.99),
    ("tree", 1, 0.5),
    ("tree", 100, 0.01),
    ("tree", 100, 0.01, 2),
    ("tree", 5000, 1e-6),
    ("tree", None, 0.01),
    ("tree", None, 1e-4, 2),
    ("sqrt", 1, 0.5),
    ("sqrt", 100, 0.01),
    ("sqrt", 300, 50.0),
]
every_counter = pytest.mark.parametrize("counter", ARGUMENTS, indirect=True, ids=str)


@pytest.fixture(scope="module")
def counter(request: pytest.FixtureRequest) -> Counter:
    """Return the counter, built on demand: its tables take up to a second."""
    return make_counter(*request.param)


def random_tags(rows: int, seed: int = 1) -> Tags:
    return np.random.default_rng(seed).integers(0, 2**64, size=(rows, 2), dtype=np.uint64)


def last_tick(counter: Counter) -> int:
    return counter.horizon or 2**40 - 1


@every_counter
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_cached_noise_equals_drawn_noise_for_any_order_of_ticks_and_growing_rows(
    counter: Counter, data: st.DataObject
) -> None:
    """The cache is an optimisation: a recovered worker must publish the same bytes."""
    tags = random_tags(40)
    columns = counter.columns(STREAM)
    rows, t = 0, data.draw(st.integers(1, last_tick(counter)))
    for _ in range(data.draw(st.integers(1, 12))):
        rows = min(len(tags), rows + data.draw(st.integers(0, 9)))
        if data.draw(st.integers(0, 3)):
            t = min(t + data.draw(st.integers(0, 3)), last_tick(counter))
        else:
            t = data.draw(st.integers(1, last_tick(counter)))
        assert columns.at(t, tags[:rows]).tolist() == counter.draw(STREAM, t, tags[:rows]).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_cached_noise_equals_drawn_noise_across_chunks_and_capacity(kind: str) -> None:
    """Rows beyond a chunk and grown columns keep their noise; a shorter prefix is answered."""
    counter = make_counter(kind, 50, 0.01)
    tags = random_tags(2 * CHUNK_ROWS + 100)
    columns = counter.columns(STREAM)
    asked = [(3, 10), (3, 1500), (4, CHUNK_ROWS + 5), (5, 100), (5, len(tags)), (6, len(tags))]
    for t, rows in (*asked, (2, 7), (6, 9000)):
        assert (columns.at(t, tags[:rows]) == counter.draw(STREAM, t, tags[:rows])).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_that_fails_half_way_leaves_no_wrong_noise_in_the_cache(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a MemoryError the tick is retried; half-updated columns must not look whole."""
    counter = make_counter(kind, 50, 0.01)
    stream = thawed(KEY.stream(bytes(16)))
    tags = random_tags(2 * CHUNK_ROWS)
    columns = counter.columns(stream)
    columns.at(5, tags)
    original, calls = stream.chunk, 0

    def fail_later(part: Tags, cell: tuple[int, int]) -> Tags:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return original(part, cell)

    monkeypatch.setattr(stream, "chunk", fail_later)
    with pytest.raises(MemoryError):
        columns.at(7, tags)
    monkeypatch.undo()
    for t in (5, 7, 6):
        assert (columns.at(t, tags) == counter.draw(stream, t, tags)).all()


@every_counter
def test_noise_is_a_pure_function_of_the_row(counter: Counter) -> None:
    """Neither the other rows nor an earlier call change an item's noise."""
    tags = random_tags(300)
    t = last_tick(counter) // 3 + 1
    whole = counter.draw(STREAM, t, tags)
    assert whole.dtype == np.int64
    assert (counter.draw(STREAM, t, tags[::-1].copy())[::-1] == whole).all()
    assert counter.draw(STREAM, t, tags[17:18]).tolist() == [whole[17]]
    assert counter.draw(STREAM, t, tags[:0]).tolist() == []


# n = 20,000 independent rows: a sample variance has relative sd sqrt(2/n) = 0.01, a mean
# sd/sqrt(n), so five of each are 5 % and 0.035 sd. Half and double the variance lie far outside.
ROWS = 20_000


@pytest.mark.parametrize(
    ("counter", "ticks"),
    [
        (("lifted", 1000, 0.01), (1, 2, 341, 512, 683, 999)),
        (("lifted", None, 0.01), (1, 2, 341, 4096, 2**33 + 12345)),
        (("lifted", 1000, 0.01, None, 0.6), (1, 2, 341, 488, 999, 1000)),
        (("tree", 1000, 0.01), (1, 2, 341, 512, 683, 999)),
        (("tree", None, 0.01), (1, 4, 341, 4096, 2**33 + 12345)),
        (("lifted", 1000, 3.0), (2, 341, 683)),
        (("sqrt", 150, 0.01), (1, 2, 77, 150)),
        (("sqrt", 150, 4.0), (1, 150)),
    ],
    indirect=["counter"],
    ids=str,
)
def test_noise_has_the_stated_standard_deviation_and_not_half_or_double_the_variance(
    counter: Counter, ticks: tuple[int, ...]
) -> None:
    """The published sd must be that of the published integer, rounding included."""
    tags = numbered("sd", ROWS)
    for t in ticks:
        noise = counter.draw(STREAM, t, tags)
        assert_variance(noise.var(), counter.sd(t) ** 2)
        # floor(x + 1/2) of multiples of 2^-k is above x by 2^-(k+1) on average, at most 1/4.
        assert abs(noise.mean()) < 0.035 * counter.sd(t) + 0.25


@every_counter
def test_variance_is_that_of_the_terms(counter: Counter) -> None:
    """Thresholds use the terms and snapshots publish the sd: both must describe the same noise."""
    last = last_tick(counter)
    for t in {1, min(2, last), last // 3 + 1, last}:
        terms = counter.terms(t)
        assert sum(c * c * sigma_squared for c, sigma_squared in terms) == counter.variance(t)
        assert all(0 < c <= 1 for c, _ in terms)
        most = counter.variance(t) + Fraction(1, 12)
        assert math.sqrt(counter.variance(t)) <= counter.sd(t) <= math.sqrt(most)


@every_counter
def test_cost_is_at_most_what_was_asked_and_close_to_it(counter: Counter) -> None:
    """Variances are rounded up, the private side; one part in ten thousand is not worth more."""
    for kind in KINDS:
        for rho_item in (1e-6, 0.0123, 0.01, 2.0, 100.0):
            made = make_counter(kind, 365, rho_item)
            assert rho_item * (1 - 1e-4) <= made.rho_item <= rho_item
    assert counter.cells_per_event * 2**-127 <= counter.tv < 2**-100


@pytest.mark.parametrize("sigma_squared", [1e-3, 0.01, 0.2, 1.0, 7.7, 123.4, 5e4, 1e7])
def test_the_reach_stated_before_a_table_is_made_bounds_what_the_table_gives(
    sigma_squared: float,
) -> None:
    """An overflow or an understated distance would go unnoticed; 4 % more costs nothing."""
    value = round_up_sigma_squared(Fraction(sigma_squared))
    table = integer_gaussian(value)
    assert table.bound <= reach(value) <= 1.04 * table.bound + 1


def test_the_distance_stated_before_the_tables_are_made_is_at_least_that_of_the_tables() -> None:
    """Privacy is charged by the stated distance, before any noise is drawn."""
    nearly = 1 - Fraction(1, 10**9)
    for counter in starmap(make_counter, ARGUMENTS):
        if isinstance(counter, LevelCounter):
            tables = counter._tables
            for table, most in zip(tables, counter._reach, strict=True):
                assert table.bound <= most
            tv = sum(Fraction(table.tv) for table in tables)
            # Within a few units a table: noise of a fraction of a count has a bound of one or two.
            assert tv * nearly <= Fraction(counter.tv) <= 2 * tv
            assert Fraction(counter.test_tv) >= Fraction(tables[0].test_tv) * nearly


@every_counter
def test_ticks_outside_the_horizon_are_refused(counter: Counter) -> None:
    columns = counter.columns(STREAM)
    for t in (-1, 0, last_tick(counter) + 1):
        for attempt in (
            lambda t=t: counter.draw(STREAM, t, random_tags(1)),
            lambda t=t: columns.at(t, random_tags(1)),
            lambda t=t: counter.variance(t),
            lambda t=t: counter.sd(t),
            lambda t=t: counter.terms(t),
            lambda t=t: counter.cells(t),
        ):
            with pytest.raises(HorizonExceeded, match=f"tick {t} "):
                attempt()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cube", 10, 0.1), "counter = 'cube': must be one of haar, tree, sqrt"),
        (("sqrt", None, 0.1), "horizon = unbounded"),
        (("sqrt", 2**16 + 1, 0.1), "horizon = 65537"),
        (("sqrt", 10, 0.1, 3), "radix = 3"),
        (("lifted", 0, 0.1), "horizon = 0"),
        (("tree", 0, 0.1), "horizon = 0"),
        (("lifted", 2**40 + 1, 0.1), "horizon = "),
        (("lifted", 10, 0.0), "rho_item = 0.0"),
        (("tree", 10, -1.0), "rho_item = -1.0"),
        (("lifted", 10, math.nan), "rho_item = nan"),
        (("lifted", 10, math.inf), "rho_item = inf"),
        (("lifted", 10, 0.1, 3), "radix = 3"),
        (("tree", 10, 0.1, 1), "radix = 1"),
        (("lifted", 10, 1e-12), "sigma_squared"),
        (("lifted", None, 0.1, None, 0.5), "end_share = 0.5: an unbounded horizon"),
        (("lifted", 10, 0.1, None, 1.0), "end_share = 1.0: must be a number above 0 and below 1"),
        (("lifted", 10, 0.1, None, math.nan), "end_share = nan"),
        (("tree", 10, 0.1, None, 0.5), "end_share = 0.5: only counter 'haar' has one"),
    ],
)
def test_parameters_outside_their_range_are_refused(
    arguments: tuple[str, int | None, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_counter(*arguments)


@every_counter
def test_stated_bytes_per_row_are_those_of_the_columns(counter: Counter) -> None:
    """`plan` sizes the machine by it: two bytes a column if the noise fits, else four or eight."""
    cells = counter.cells_per_event
    assert 2 * cells <= counter.columns(STREAM).bytes_per_row <= 8 * cells
