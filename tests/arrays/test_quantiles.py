"""Buckets of numbers and quantiles of their counts, compiled or not."""

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.arrays.uncompiled import WAYS
from workers.arrays import quantiles
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Floats
from workers.events.views import find_bucket
from workers.pipeline.snapshots import rank_variances

MANY = st.lists(st.integers(-200, 200), min_size=1, max_size=80, unique=True).map(
    sorted
)


@settings(max_examples=80)
@given(MANY, st.integers(-201, 201))
def test_edges_at_most_the_number_are_counted(edges: list[int], value: int) -> None:
    """Bisection ends in a linear scan; other views' edges lie around them."""
    around = readonly_contiguous(np.array([-9.0, 7.0, *edges, 3.0]))
    for way in WAYS:
        found = way(find_bucket)(float(value), around, 2, 2 + len(edges))
        assert found == sum(edge <= value for edge in edges)


def quantile_in_columns(
    counts: Floats, sd: float, q: float, normal: float, ranks: bool
) -> tuple[int, float, int, float, int, float]:
    """Compute the same in whole columns, as `pipeline.snapshots` specifies."""
    n = len(counts) - 1
    below = np.cumsum(counts)
    total = float(below[-1])
    if total <= normal * sd * math.sqrt(rank_variances(n, q, ranks)[2]):
        return quantiles.OPEN, 0.0, quantiles.OPEN, 0.0, quantiles.OPEN, 0.0
    g = below[:-1] - q * total
    at_edges, beside, _ = rank_variances(n, q, ranks)
    reach = normal * (sd * np.sqrt(at_edges))

    def passes(bucket: int, side: int) -> float:
        low = 0.0
        high = 1.0
        while high - low > 2.0**-40:
            f = (low + high) / 2
            rest = 1 - f
            v = rest * rest * at_edges[bucket - 1] + 2 * rest * f * beside[bucket - 1]
            v += f * f * at_edges[bucket]
            noise = side * normal * sd * math.sqrt(max(v, 0.0))
            above = g[bucket - 1] + f * counts[bucket] + noise >= 0
            low, high = (low, f) if above else (f, high)
        return (low + high) / 2

    upper = g + reach >= 0
    lower = g - reach <= 0
    low = (
        quantiles.OPEN
        if upper[0]
        else int(np.argmax(upper))
        if upper.any()
        else quantiles.EDGE
    )
    passed = n - int(np.argmax(lower[::-1])) if lower.any() else quantiles.EDGE
    high = quantiles.OPEN if lower[-1] else passed
    ends = (
        low,
        passes(low, 1) if low > 0 else 0.0,
        high,
        passes(high, -1) if high > 0 else 0.0,
    )
    bucket = int(np.argmin(np.concatenate(([0.0], np.cumsum(g)))))
    if bucket in (0, n):
        return bucket, 0.0, *ends
    left = max(
        float((np.cumsum(g[bucket - 1 :: -1]) / np.arange(1, bucket + 1)).max()),
        -q * total,
    )
    least = (np.cumsum(g[bucket:]) / np.arange(1, n - bucket + 1)).min()
    right = min(float(least), (1 - q) * total)
    return bucket, -left / (right - left) if right > left else 0.0, *ends


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(st.integers(-50, 500), min_size=3, max_size=14),
    st.sampled_from([0.0, 0.5, 3.3, 20.123]),
    st.sampled_from([0.01, 0.25, 0.5, 0.95, 0.999]),
    st.booleans(),
)
@example([100, 0, 0, 5], 1.0, 0.01, False)  # below the first edge
@example([1, 0, 0, 500], 1.0, 0.95, False)  # beyond the last
@example([1, 0, 1], 0.0, 0.5, True)  # at an edge, exactly
def test_a_quantile_is_the_same_to_the_last_bit(
    counts: list[int], sd: float, q: float, ranks: bool
) -> None:
    """Snapshot bytes must not depend on how quantiles are computed."""
    column = np.array(counts, dtype=np.float64)
    wanted = quantile_in_columns(column, sd, q, 1.96, ranks)
    variances = rank_variances(len(column) - 1, q, ranks)
    for way in WAYS:
        parts = {
            name: way(getattr(quantiles, name))
            for name in ("crossing", "interval", "fit_crossing")
        }
        with patch.multiple(quantiles, **parts):
            scratch = np.empty(len(column) - 1)
            found = way(quantiles.quantile)(
                readonly_contiguous(column), sd, q, 1.96, *variances, scratch
            )
            assert found == wanted
