"""The sqrt counter: its factors, what an event costs, and noise kept from tick to tick."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.running.test_histograms import known, unk
from tests.mechanisms.small import KEY, STREAM
from workers.mechanisms.counters.sqrt import LEVEL, SqrtCounter


def strategy(counter: SqrtCounter) -> list[Fraction]:
    """Return the first column of C = B^-1 A, B from the counter's nodes, in fractions."""
    horizon = counter._last_tick
    factors = [Fraction(f, counter._denominator) for f in counter._column]
    nodes = counter.nodes(horizon)
    assert [nodes[LEVEL, horizon - k] for k in range(horizon)] == list(counter._column)
    column: list[Fraction] = []
    for t in range(horizon):  # sum over s of f'_(t-s) c_s is 1
        before = sum((factors[t - s] * column[s] for s in range(t)), Fraction(0))
        column.append((1 - before) / factors[0])
    return column


@pytest.mark.parametrize(
    ("horizon", "rho_item"), [(1, 0.5), (7, 0.1), (30, 0.02), (40, 40.0)]
)
def test_an_event_costs_the_longest_column_and_not_more_than_is_stated(
    horizon: int, rho_item: float
) -> None:
    """In fractions, with the rounded factors; a variance lower by 1 % would be noticed."""
    counter = SqrtCounter(horizon, rho_item)
    norms = [
        sum(c**2 for c in strategy(counter)[: horizon - s]) for s in range(horizon)
    ]
    assert max(norms) == norms[0]
    spent = norms[0] / (2 * counter.variance_of((LEVEL, 1)))
    assert (
        Fraction(rho_item) * Fraction(9999, 10000)
        <= spent
        <= Fraction(counter.rho_item)
    )
    assert spent * 100 / 99 > Fraction(rho_item)


@pytest.mark.parametrize("horizon", [1, 100, 3000])
def test_the_factors_are_the_rounded_square_root_of_the_prefix_sums(
    horizon: int,
) -> None:
    """f_k = binom(2k, k) / 4^k from exact binomials, whose self-convolution is all ones."""
    checked = min(horizon, 400)
    exact = [Fraction(math.comb(2 * k, k), 4**k) for k in range(checked)]
    for k in range(min(checked, 40)):
        assert sum(exact[i] * exact[k - i] for i in range(k + 1)) == 1
    counter = SqrtCounter(horizon, 0.1)
    for f, rounded in zip(exact, counter._column, strict=False):
        assert abs(f - Fraction(rounded, 1 << 90)) <= Fraction(1, 1 << 90)


@pytest.mark.parametrize(
    ("horizon", "worst", "root_mean_square"),
    [(2**10, 3.273, 3.110), (2**16, 4.596, 4.434)],
)
def test_error_per_unit_of_mu_is_that_stated(
    horizon: int, worst: float, root_mean_square: float
) -> None:
    counter = SqrtCounter(horizon, 0.005)
    variances = counter.variances(np.arange(1, horizon + 1)) * 2 * counter.rho_item
    assert math.sqrt(variances[-1]) == pytest.approx(worst, abs=0.001)
    assert math.sqrt(variances.mean()) == pytest.approx(root_mean_square, abs=0.001)


def test_noise_made_tick_by_tick_across_blocks_and_parts_is_that_made_at_once() -> None:
    """A restart uses blocks of 64 ticks and parts of 1,024; a running worker, single ticks."""
    counter = SqrtCounter(1200, 0.01)
    tags = KEY.tags("blocks", [b"a", b"b", b"c"])
    columns = counter.columns(STREAM)
    for t in range(1, 1201):
        running = columns.at(t, tags)
        if t in (63, 64, 65, 1023, 1024, 1025, 1200):
            assert running.tolist() == counter.draw(STREAM, t, tags).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 2**16 + 1}, "at most 65,536 ticks"),
        (
            {"horizon": "unbounded", "start": "2026-01-01T00:00:00Z", "tick_ms": 10},
            "at most 65,536 ticks",
        ),
        ({"radix": 2}, "radix = 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changes: dict[str, object], message: str
) -> None:
    """The state grows with the horizon, and an unknown domain needs tails not proved here."""
    with pytest.raises(ValueError, match=message):
        known(["x"], counter="sqrt", **changes)
    with pytest.raises(ValueError, match="only with a declared domain"):
        unk(counter="sqrt")
