"""Words, samples and goodness of fit of the inversion tables."""

import math

import numpy as np

from tests.mechanisms.small import STREAM
from workers.arrays.types import Floats, Longs, Words
from workers.mechanisms.noise.inversion import InversionTable

WORDS = 1 << 128


def words_of(values: list[int]) -> Words:
    halves = [divmod(value, 1 << 64) for value in values]
    return np.array(halves, dtype=np.uint64).reshape(-1, 2)


def random_words(rows: int, seed: int) -> Words:
    return np.random.default_rng(seed).integers(
        0, 2**64, size=(rows, 2), dtype=np.uint64
    )


def sample(table: InversionTable, words: Words) -> Longs:
    out = np.empty(len(words), dtype=table.dtype)
    table.sample(words, out)
    return out.astype(np.int64)


def drawn(table: InversionTable, rows: int, seed: int) -> Longs:
    return table.values(STREAM, (1, 2), random_words(rows, seed))


def follows(values: Longs, lowest: int, probabilities: Floats) -> bool:
    """Return whether Pearson's statistic is within six sd, and 12, of its mean.

    Expectations under 10 are pooled. Its mean is the degrees of freedom, df, its sd sqrt(2 df).
    """
    expected = probabilities * len(values)
    observed = np.bincount(values - lowest, minlength=len(expected))
    often = expected >= 10
    rest = expected[~often].sum()
    freedom = int(often.sum())
    statistic = ((observed[often] - expected[often]) ** 2 / expected[often]).sum()
    statistic += (observed[~often].sum() - rest) ** 2 / max(rest, 1.0)
    return bool(statistic < freedom + 6 * math.sqrt(2 * freedom) + 12)
