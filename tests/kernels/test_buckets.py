"""A number lies in the bucket whose interval holds it, compiled or not."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kernels.uncompiled import WAYS
from workers.kernels import buckets as kernels
from workers.kernels.reading.views import bucket_of
from workers.mechanisms.texts import fixed

EDGES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=12, unique=True).map(sorted)


def expected(value: float, edges: list[float]) -> int:
    """By the definition: between `edges[k - 1]` and, not included, `edges[k]`."""
    if math.isnan(value):
        return -1
    bounds = [-math.inf, *edges, math.inf]
    if value == math.inf:
        return len(edges)
    return next(k for k in range(len(edges) + 1) if bounds[k] <= value < bounds[k + 1])


@settings(max_examples=80, deadline=None)
@given(EDGES, st.lists(st.floats(), max_size=8))
@example([0.0, 1.0], [-0.0, math.nan, math.inf, -math.inf])
def test_each_number_is_in_the_interval_that_holds_it(edges: list[float], values: list[float]) -> None:
    """An edge belongs to the bucket above it; NaN to none."""
    values = [*values, *edges, *(math.nextafter(edge, -math.inf) for edge in edges)]
    wanted = [expected(value, edges) for value in values]
    for way in WAYS:
        found = np.empty(len(values), dtype=np.int64)
        with patch.object(kernels, "bucket", way(kernels.bucket)):
            way(kernels.buckets)(fixed(np.array(values)), fixed(np.array(edges)), found)
            assert [way(kernels.bucket)(value, fixed(np.array(edges))) for value in values] == wanted
        assert found.tolist() == wanted


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-200, 200), min_size=1, max_size=80, unique=True).map(sorted), st.integers(-201, 201))
def test_of_many_edges_as_of_few_those_at_most_the_number_are_counted(edges: list[int], value: int) -> None:
    """Halves are left out until so few are left that each is compared; other views' edges lie around them."""
    around = fixed(np.array([-9.0, 7.0, *edges, 3.0]))
    for way in WAYS:
        assert way(bucket_of)(float(value), around, 2, 2 + len(edges)) == sum(edge <= value for edge in edges)
