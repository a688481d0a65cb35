"""Contract tests of every counter."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.counters.drawn import assert_drawn, random_tags
from tests.mechanisms.small import (
    KEY,
    STREAM,
    assert_variance,
    fail_at_second_draw,
    numbered,
)
from workers.mechanisms.counters.active import ActiveColumns, ActiveCounter
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.kinds import KINDS, make_counter
from workers.mechanisms.counters.line import LineColumns, line_counters
from workers.mechanisms.counters.sqrt import SqrtCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream
from workers.runtime.errors import HorizonExceeded
from workers.runtime.frozen import thawed

pytestmark = pytest.mark.slow

# Parameters of every arithmetic path: state of 32 and of 64 bits, with and without an end.
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
    rows = 0
    t = data.draw(st.integers(1, last_tick(counter)))
    for _ in range(data.draw(st.integers(1, 12))):
        rows = min(len(tags), rows + data.draw(st.integers(0, 9)))
        if data.draw(st.integers(0, 3)):
            t = min(t + data.draw(st.integers(0, 3)), last_tick(counter))
        else:
            t = data.draw(st.integers(1, last_tick(counter)))
        assert (
            columns.at(t, tags[:rows]).tolist()
            == counter.draw(STREAM, t, tags[:rows]).tolist()
        )


#: Also of counters whose columns are made otherwise.
every_kind = pytest.mark.parametrize("kind", [*KINDS, "line", "active"])


def columns_of(kind: str, stream: NoiseStream) -> tuple[tuple[Counter, ...], Any]:
    if kind == "line":
        board = line_counters((3, 9), (1, 2), 0.01)
        return board, LineColumns(board, stream)
    if kind == "active":
        active = ActiveCounter(6, 2, 4, 0.01)
        return (active,), ActiveColumns(active, stream)
    counter = make_counter(kind, 50, 0.01)
    return (counter,), counter.columns(stream)


@every_kind
def test_cached_noise_equals_drawn_noise_across_chunks_and_capacity(kind: str) -> None:
    """Rows beyond a chunk and grown columns keep their noise; a shorter prefix is answered."""
    counters, columns = columns_of(kind, STREAM)
    tags = random_tags(2 * CHUNK_ROWS + 100)
    asked = [
        (3, 10),
        (3, 1500),
        (4, CHUNK_ROWS + 5),
        (5, 100),
        (5, len(tags)),
        (6, len(tags)),
    ]
    for t, rows in (*asked, (2, 7), (6, 9000)):
        assert_drawn(counters, columns, t, tags[:rows])


@every_kind
def test_a_draw_that_fails_half_way_leaves_no_wrong_noise_in_the_cache(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a MemoryError the tick is retried; half-updated columns must not look whole."""
    stream = thawed(KEY.stream(bytes(16)))
    tags = random_tags(2 * CHUNK_ROWS)
    counters, columns = columns_of(kind, stream)
    columns.at(5, tags)
    fail_at_second_draw(monkeypatch, stream)
    with pytest.raises(MemoryError):
        columns.at(7, tags)
    monkeypatch.undo()
    for t in (5, 7, 6):
        assert_drawn(counters, columns, t, tags, stream)


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
        assert abs(noise.mean()) < 0.035 * counter.sd(t)


@every_counter
def test_variances_of_many_ticks_are_those_of_the_ticks_nodes(counter: Counter) -> None:
    """Thresholds and `plan` use them; snapshots publish the sd."""
    last = last_tick(counter)
    ticks = sorted({1, min(2, last), last // 3 + 1, last})
    for t, variance in zip(
        ticks, counter.variances(np.array(ticks)).tolist(), strict=True
    ):
        nodes = counter.nodes(t).items()
        exact = sum((a * a * counter.variance_of(v) for v, a in nodes), Fraction(0))
        assert counter.variance(t) == exact / counter._denominator**2
        assert variance == pytest.approx(float(counter.variance(t)), rel=1e-12)
        assert variance <= counter.worst_variance() * (1 + 1e-12)
        assert (
            math.sqrt(variance) * 0.2
            <= counter.sd(t)
            <= math.sqrt(variance + 1 / 12) * (1 + 1e-9)
        )


@every_counter
def test_columns_and_floats_give_the_exactly_rounded_noise(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the bound is so coarse that the columns decide no row."""
    tags = random_tags(3)
    last = min(last_tick(counter), 9)
    coarse = thawed(counter)
    monkeypatch.setattr(
        coarse, "fixed", counter.fixed._replace(error=1 << counter.fixed.point)
    )
    columns = counter.columns(STREAM)
    others = coarse.columns(STREAM)
    for t in range(1, last + 1):
        noise = columns.at(t, tags).tolist()
        assert (
            noise
            == others.at(t, tags).tolist()
            == counter.draw(STREAM, t, tags).tolist()
        )
    assert noise[0] == counter.exact(STREAM, last, tags[:1])


def test_cost_is_at_most_what_was_asked_and_close_to_it() -> None:
    """Variances are rounded up, the private side; one part in ten thousand is not worth more."""
    for kind in KINDS:
        for rho_item in (1e-6, 0.0123, 0.01, 2.0, 100.0):
            made = make_counter(kind, 365, rho_item)
            assert rho_item * (1 - 1e-4) <= made.rho_item <= rho_item


@every_counter
def test_ticks_outside_the_horizon_are_refused(counter: Counter) -> None:
    columns = counter.columns(STREAM)
    for t in (-1, 0, last_tick(counter) + 1):
        for attempt in (
            lambda t=t: counter.draw(STREAM, t, random_tags(1)),
            lambda t=t: columns.at(t, random_tags(1)),
            lambda t=t: counter.variance(t),
            lambda t=t: counter.sd(t),
            lambda t=t: counter.nodes(t),
        ):
            with pytest.raises(HorizonExceeded, match=f"tick {t} "):
                attempt()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cube", 10, 0.1), "counter = 'cube': must be one of lifted, tree, sqrt"),
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
        (("lifted", 10, 1e-16), "sigma_squared"),
        (("lifted", None, 0.1, None, 0.5), "end_share = 0.5: an unbounded horizon"),
        (
            ("lifted", 10, 0.1, None, 1.0),
            "end_share = 1.0: must be a number above 0 and below 1",
        ),
        (("lifted", 10, 0.1, None, math.nan), "end_share = nan"),
        (
            ("tree", 10, 0.1, None, 0.5),
            'end_share = 0.5: only with counter = "lifted"',
        ),
    ],
)
def test_parameters_outside_their_range_are_refused(
    arguments: tuple[str, int | None, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_counter(*arguments)


@every_counter
def test_stated_bytes_per_row_are_those_of_the_columns(counter: Counter) -> None:
    """`plan` sizes the machine by it: four or eight bytes a number that is kept."""
    kept = min((last_tick(counter) - 1).bit_length(), 40) + 1
    if isinstance(counter, TreeCounter):
        kept = counter._tree.levels
    elif isinstance(counter, SqrtCounter):
        kept = last_tick(counter)
    assert counter.columns(STREAM).bytes_per_row in (4 * kept, 8 * kept)
