"""Words, samples and goodness of fit of the inversion tables."""

import numpy as np

from tests.mechanisms.small import STREAM
from workers.arrays.types import Longs, Words
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
