"""That columns give the noise that their counters draw, bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.mechanisms.small import STREAM
from workers.arrays.types import Tags
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.noise.keyed import NoiseStream


def random_tags(rows: int, seed: int = 1) -> Tags:
    return np.random.default_rng(seed).integers(0, 2**64, (rows, 2), dtype=np.uint64)


def assert_drawn(
    counters: Sequence[Counter],
    columns: Any,
    t: int,
    tags: Tags,
    stream: NoiseStream = STREAM,
) -> None:
    """Of a board's windows, one after the other, or of one counter."""
    found = np.atleast_2d(columns.at(t, tags))
    for counter, noise in zip(counters, found, strict=True):
        assert noise.dtype == np.int64
        np.testing.assert_array_equal(noise, counter.draw(stream, t, tags))
