"""Check the law of the counters' noise and its rounding: `python -m bench.normal_noise`.

Law: the numbers of `--draws` words (default 10^9, minutes) in bins of an eighth of a standard
deviation, up to 6 and beyond, by chi squared; and that it refuses half and twice the variance.
Rounding: counts of `lifted` at `--cells` cells (default 10^6, ten minutes) equal
those of the definition's recursion at 200 bits, by mpmath. Exits with 1 where a check fails.
"""

import argparse
import sys
import time

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tests.mechanisms.counters.test_lifted import synthesized
from workers.arrays.compiled import kernel
from workers.arrays.types import Floats, Longs, Words
from workers.mechanisms.counters.base import cells_of
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseKey

PER_SD = 8
FARTHEST = 6
BINS = 2 * PER_SD * FARTHEST + 2
FALSE_ALARM = 1e-6
HORIZON = 64


@kernel
def count(words: Words, scale: float, table: Floats, bins: Longs) -> None:
    """Count the numbers of words (n, 2), times `scale`, by bin; the first and last are tails."""
    middle = len(bins) // 2
    for i in range(len(words)):
        for half in range(2):
            place = int(np.floor(normal.rough(words[i, half], table) * scale)) + middle
            bins[min(max(place, 0), len(bins) - 1)] += 1


def p_value(bins: Longs) -> float:
    """Return the chance of a chi squared as large, under the standard normal law."""
    edges = np.arange(-FARTHEST * PER_SD, FARTHEST * PER_SD + 1) / PER_SD
    upper = stats.norm.sf(edges)
    expected = (
        np.concatenate(([upper[-1]], upper[:-1] - upper[1:], [upper[-1]])) * bins.sum()
    )
    many = expected >= 5
    both: list[NDArray[np.float64]] = [
        np.append(column[many], column[~many].sum())
        for column in (bins.astype(float), expected)
    ]
    observed, expected = both
    chi_squared = float(((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    return float(stats.chi2.sf(chi_squared, len(observed) - 1))


def law(draws: int) -> bool:
    """Print the p-values of the law as it is, and with half and twice the variance."""
    stream = NoiseKey(bytes(32)).stream(bytes(16))
    table = normal.table()
    tags = np.random.default_rng(1).integers(
        0, 1 << 64, (CHUNK_ROWS, 2), dtype=np.uint64
    )
    factors = (1.0, 0.5, 2.0)
    found = [np.zeros(BINS, dtype=np.int64) for _ in factors]
    open_rows = np.empty(CHUNK_ROWS, dtype=np.int64)
    begun = time.perf_counter()
    for cell in range(-(-draws // (2 * CHUNK_ROWS))):
        words = stream.chunk(tags, cells_of([(1, cell)]))
        normal.raise_small(words, open_rows)
        for factor, bins in zip(factors, found, strict=True):
            # A thousandth suffices to refuse a wrong variance.
            if factor == 1.0 or cell % 1000 == 0:
                count(words, PER_SD * factor**0.5, table, bins)
    values = [p_value(bins) for bins in found]
    beyond = int(found[0][0] + found[0][-1])
    expected = 2 * stats.norm.sf(FARTHEST) * found[0].sum()
    print(
        f"{found[0].sum():,} numbers in {time.perf_counter() - begun:.0f} s: p = {values[0]:.3g}; "
        f"beyond {FARTHEST} sd {beyond} ({expected:.1f} expected); "
        f"half the variance p = {values[1]:.3g}, twice {values[2]:.3g}"
    )
    return values[0] > FALSE_ALARM > max(values[1:])


def rounding(cells: int) -> bool:
    """Compare counts at `cells` cells with the recursion at 200 bits."""
    stream = NoiseKey(bytes(32)).stream(bytes(16))
    counter = LiftedCounter(HORIZON, 0.001)
    items = -(-cells // HORIZON)
    tags = np.random.default_rng(2).integers(0, 1 << 64, (items, 2), dtype=np.uint64)
    columns = counter.columns(stream)
    begun = time.perf_counter()
    fast = np.array([columns.at(t, tags) for t in range(1, HORIZON + 1)])
    wrong = 0
    for item in range(items):
        exact = synthesized(counter, stream, tags[item : item + 1])
        wrong += int((fast[:, item] != np.array(exact)).sum())
    print(f"{fast.size:,} cells in {time.perf_counter() - begun:.0f} s: {wrong} differ")
    return wrong == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--draws", type=int, default=10**9)
    parser.add_argument("--cells", type=int, default=10**6)
    given = parser.parse_args()
    right = [law(given.draws), rounding(given.cells)]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
