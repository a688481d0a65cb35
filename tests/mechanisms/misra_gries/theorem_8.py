"""How often PMG errs by more than Theorem 8 of its paper allows, over many random streams.

`python -m tests.mechanisms.misra_gries.theorem_8` takes 10,000 streams at every size from 16 to
4,096 (some minutes). A stream has Zipf counts with an exponent from 0 to 1.5, on between half and
four times as many labels as counters.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from workers.arrays.types import Longs
from workers.mechanisms.misra_gries.releases import PmgLaw
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.one_shot.algorithms import Cell, OneShotNoise, Sketched

EPSILON = 1
DELTA = 1e-9
BETA = 0.05
SIZES = tuple(1 << bits for bits in range(4, 13))
# Occurrences a counter, on average.
WEIGHT = 60


def printed_threshold(epsilon: float, delta: float) -> float:
    """Return the threshold of the paper's Algorithm 2: shown if not below it."""
    return 1 + 2 * math.log(3 / delta) / epsilon


def streams(size: int, number: int, seed: int) -> Iterator[Longs]:
    """Yield the exact counts of a stream's labels, all above zero."""
    rng = np.random.default_rng((seed, size))
    for _ in range(number):
        labels = int(size * 2.0 ** rng.uniform(-1, 2))
        shares = np.arange(1, labels + 1) ** -rng.uniform(0, 1.5)
        counts = rng.poisson(WEIGHT * size * shares / shares.sum())
        yield counts[counts > 0]


def shown(algorithm: Sketched, counts: Longs, noise: OneShotNoise, t: int) -> Longs:
    """Return the released counts, 0 where a label is not shown."""
    n = len(counts)
    tags = np.random.default_rng(t).integers(0, 1 << 63, (n, 2)).astype(np.uint64)
    key_tags = np.array([[1, t]], dtype=np.uint64)
    cell = Cell(tags, np.zeros(n, dtype=np.int32), counts, key_tags)
    rows, noisy = algorithm.release(cell, noise, (0, t))
    found = np.zeros(n, dtype=np.int64)
    found[rows] = noisy
    return found


def missed(size: int, number: int, *, epsilon: Fraction, seed: int = 1) -> float:
    """Return the share of streams with an error beyond Theorem 8 at EPSILON; noise at `epsilon`."""
    algorithm = Sketched("pmg", size, PmgLaw(size, 1, epsilon, DELTA))
    stream = NoiseKey(bytes([seed]) * 32).stream(size.to_bytes(16, "big"))
    noise = OneShotNoise(stream, algorithm.table)
    of_noise = 2 * math.log((size + 1) / BETA) / EPSILON
    beyond = 0
    for t, counts in enumerate(streams(size, number, seed), 1):
        errors = shown(algorithm, counts, noise, t) - counts
        lowest = of_noise + printed_threshold(EPSILON, DELTA)
        lowest += counts.sum() / (size + 1)
        beyond += bool(errors.max() > of_noise or errors.min() < -lowest)
    return beyond / number


def main() -> None:
    for size in SIZES:
        share = missed(size, 10_000, epsilon=Fraction(EPSILON))
        print(
            f"size {size:5}: {share:.2%} of 10,000 streams beyond Theorem 8, allowed 5%"
        )


if __name__ == "__main__":
    main()
