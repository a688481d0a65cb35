"""The sqrt counter: noise depends only on the integer release C x + z, and is A C^-1 z, rounded."""

import math
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.running.test_histograms import known, unk
from tests.mechanisms.small import KEY, STREAM
from workers.arrays.types import Codes, Longs
from workers.mechanisms.counters.sqrt import LEVEL, SqrtCounter, _Range, _rounded_column
from workers.runtime.frozen import thawed


class Planted:
    dtype = np.dtype(np.int32)

    def __init__(self, z: Longs) -> None:
        self.z = z

    def draw(self, stream: object, cell: tuple[int, int], tags: object, out: Codes) -> None:
        assert cell[0] == LEVEL
        out[:] = self.z[cell[1] - 1]


def noise_of(counter: SqrtCounter, z: Longs, t: int) -> list[int]:
    counter = thawed(counter)
    with patch.object(counter, "_table", Planted(z)):
        rows = _Range(0, z.shape[1])
        rows.advance(counter, STREAM, t, np.zeros((z.shape[1], 2), dtype=np.uint64))
        return [int(value) for value in rows.release(counter, t).tolist()]


def matrix_of(counter: SqrtCounter) -> Longs:
    column = counter._column.astype(np.int64)
    i, j = np.indices((len(column), len(column)))
    return np.where(i >= j, column[np.maximum(i - j, 0)], 0)


@pytest.mark.parametrize(("horizon", "rho_item"), [(1, 0.5), (7, 0.1), (150, 0.02), (200, 40.0)])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_noise_shifted_by_a_column_of_the_matrix_shifts_every_release_by_the_events_true_count(
    horizon: int, rho_item: float, data: st.DataObject
) -> None:
    """Exactly: z - C w under counts x + w releases what z does under x, so C x + z suffices."""
    counter = SqrtCounter(horizon, rho_item)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    z = random.integers(-counter._table.bound, counter._table.bound + 1, size=(horizon, 3))
    w = np.zeros((horizon, 3), dtype=np.int64)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, horizon - 1)), data.draw(st.integers(0, 2))
        w[place] += data.draw(st.integers(-5, 5))
    t = data.draw(st.integers(1, horizon))
    there = noise_of(counter, z - matrix_of(counter) @ w, t)
    here = noise_of(counter, z, t)
    assert (np.array(there) + w[:t].sum(axis=0)).tolist() == here


def test_a_shift_that_is_not_the_matrix_times_an_integer_vector_is_seen() -> None:
    """Negative control: one unit less at one tick does not match any count."""
    counter = SqrtCounter(50, 0.02)
    z = np.random.default_rng(1).integers(-500, 500, size=(50, 40))
    shifted = z - matrix_of(counter)[:, [10]]
    shifted[30] += int(counter._column[0]) // 2
    there = np.array(noise_of(counter, shifted, 45))
    assert (there + 1).tolist() != noise_of(counter, z, 45)


@pytest.mark.parametrize(("horizon", "rho_item"), [(1, 0.5), (20, 0.01), (30, 30.0)])
def test_noise_is_the_exact_inverse_applied_to_z_and_rounded(horizon: int, rho_item: float) -> None:
    """In fractions, without the split: solve C u = z tick by tick, sum u; only ties may differ."""
    counter = SqrtCounter(horizon, rho_item)
    column = [Fraction(int(c)) for c in counter._column.tolist()]
    bound = counter._table.bound
    z = np.random.default_rng(2).integers(-bound, bound + 1, size=(horizon, 20))
    got = {t: noise_of(counter, z, t) for t in range(1, horizon + 1)}
    for row in range(z.shape[1]):
        u: list[Fraction] = []
        for t in range(1, horizon + 1):
            before = sum((column[t - 1 - s] * u[s] for s in range(t - 1)), Fraction(0))
            u.append((int(z[t - 1, row]) - before) / column[0])
            assert abs(got[t][row] - sum(u, Fraction(0))) <= Fraction(1, 2) + Fraction(1, 2**14)


@pytest.mark.parametrize(("horizon", "bits"), [(1, 2), (100, 6), (3000, 8)])
def test_the_column_is_the_rounded_square_root_of_the_prefix_sums(horizon: int, bits: int) -> None:
    """f_k = binom(2k, k) / 4^k from exact binomials, whose self-convolution is all ones."""
    checked = min(horizon, 400)
    exact = [Fraction(math.comb(2 * k, k), 4**k) for k in range(checked)]
    for k in range(min(checked, 40)):
        assert sum(exact[i] * exact[k - i] for i in range(k + 1)) == 1
    column = _rounded_column(horizon, bits)
    assert column[:checked].tolist() == [math.floor(f * 2**bits + Fraction(1, 2)) for f in exact]
    assert (np.diff(column) <= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("horizon", "rho_item"), [(1, 0.5), (64, 0.01), (1000, 0.3), (365, 1e-5)])
def test_sigma_comes_from_the_largest_norm_of_the_rounded_columns(
    horizon: int, rho_item: float
) -> None:
    """An event adds one column of C, at most as long as the first; rho covers it in fractions."""
    counter = SqrtCounter(horizon, rho_item)
    norms = (matrix_of(counter) ** 2).sum(axis=0)
    assert int(norms.max()) == int(norms[0]) == counter._norm_squared
    spent = int(norms[0]) / (2 * counter._sigma_squared)
    assert spent <= Fraction(counter.rho_item) <= Fraction(rho_item)


@pytest.mark.parametrize(
    ("horizon", "worst", "root_mean_square"), [(2**10, 3.27, 3.11), (2**13, 3.94, 3.77)]
)
def test_error_is_that_of_the_design_in_spite_of_rounding(
    horizon: int, worst: float, root_mean_square: float
) -> None:
    """mechanisms.md 2 at 2^10, and ||f||^2 at 2^13: rounding the matrix costs at most 1 %."""
    counter = SqrtCounter(horizon, 0.005)
    unit = math.sqrt(2 * counter.rho_item)
    mean = sum(counter._squares) / horizon / counter._denominator**2 * float(counter._sigma_squared)
    assert math.sqrt(counter.variance(horizon)) * unit == pytest.approx(worst, rel=0.01)
    assert math.sqrt(mean) * unit == pytest.approx(root_mean_square, rel=0.01)


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
        ({"horizon": "unbounded", "start": "2026-01-01T00:00:00Z"}, "at most 65,536 ticks"),
        ({"radix": 2}, "radix = 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    """The state grows with the horizon, and an unknown domain needs tails not proved here."""
    with pytest.raises(ValueError, match=message):
        known(["x"], counter="sqrt", **changes)
    with pytest.raises(ValueError, match="only with a declared domain"):
        unk(counter="sqrt")
