"""Quantiles of a numeric histogram: exact without noise, with valid intervals under noise."""

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workers.arrays.types import Floats
from workers.mechanisms.config.buckets import Buckets, parse_buckets
from workers.mechanisms.counters.ranks import (
    RankColumns,
    Ranked,
    ranked_counter,
    ranked_lines,
)
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.snapshots import NORMAL_95, Numeric
from workers.runtime.sizes import VALUE_BYTES

EDGES = (0.0, 10.0, 50.0, 100.0)
NUMBERS = Numeric(Buckets(EDGES), (0.5,))
Q = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.75, 0.95, 0.999])


def quantile(
    counts: Sequence[float], sd: float = 0.0, q: float = 0.5
) -> dict[str, Any]:
    return NUMBERS.quantile(np.array(counts, dtype=np.float64), sd, q)


def interpolated(counts: Sequence[int], q: float) -> float | None:
    """Return the x below which a share q of the counts lies, in fractions."""
    wanted = Fraction(q) * sum(counts)
    below = Fraction(counts[0])
    if wanted <= below or wanted > sum(counts[:-1]):
        return None
    for k, count in enumerate(counts[1:-1]):
        if below < wanted <= below + count:
            low = Fraction(EDGES[k])
            high = Fraction(EDGES[k + 1])
            return float(low + (high - low) * (wanted - below) / count)
        below += count
    raise AssertionError


@given(st.lists(st.integers(0, 10_000), min_size=5, max_size=5), Q)
def test_without_noise_it_is_the_quantile_of_the_counts(
    counts: list[int], q: float
) -> None:
    """Linear between the edges; the interval is then the value itself."""
    assume(sum(counts) and interpolated(counts, q) is not None)
    exact = interpolated(counts, q)
    found = quantile(counts, q=q)
    assert found["value"] == pytest.approx(exact, abs=1e-3)
    assert found["low"] == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 10, 10, 0, 0), {"bucket": "[0,10)", "value": 10.0}),
        ((0, 0, 8, 0, 0), {"bucket": "[10,50)", "value": 30.0}),
        ((9, 1, 1, 1, 1), {"bucket": "<0", "value": None, "low": None}),
        ((1, 1, 1, 1, 9), {"bucket": ">=100", "value": None, "high": None}),
        ((0, 0, 0, 0, 0), {"bucket": None, "value": None, "low": None, "high": None}),
        ((5, 0, -5, 0, 0), {"bucket": None, "value": None, "low": None, "high": None}),
        # At the edges 4 and 6 are on either side of 10, but for a dip that noise made: 14 and 6
        # become 10 and 10.
        ((0, 4, 10, -8, 14), {"bucket": "[10,50)", "value": 50.0}),
    ],
)
def test_the_value_by_hand(counts: tuple[int, ...], expected: dict[str, Any]) -> None:
    found = quantile(counts)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(st.integers(-3_000, 10_000), min_size=5, max_size=5),
    Q,
    st.floats(0.5, 3_000),
)
def test_value_and_interval_fit_together(
    counts: list[int], q: float, sd: float
) -> None:
    """For any noise in the counts; nothing is reported where all counts may be noise."""
    found = quantile(counts, sd, q)
    said = sum(counts) > 1.96 * sd * math.sqrt(5)
    assert (found["bucket"] is not None) is said
    known = [
        found[name] for name in ("low", "value", "high") if found[name] is not None
    ]
    assert known == sorted(known)
    if said and found["value"] is None:
        assert found["low" if found["bucket"] == "<0" else "high"] is None
    if found["value"] is not None:
        place = NUMBERS.labels.index(found["bucket"])
        assert EDGES[place - 1] <= found["value"] <= EDGES[place]


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.integers(-500, 5_000), min_size=5, max_size=5), Q, st.floats(1, 500))
def test_the_interval_is_what_no_test_rejects(
    counts: list[int], q: float, sd: float
) -> None:
    """Against the definition: every x of a fine grid, tested by itself."""
    found = quantile(counts, sd, q)
    assume(found["bucket"] is not None)
    size = np.array(counts, dtype=float)

    def tested(b: int, f: float) -> tuple[float, float]:
        """Return G and 1.96 sd at a fraction of a bucket, from each count's weight in it."""
        weights = np.array([1 - q] * b + [f - q] + [-q] * (4 - b))
        return float(weights @ size), NORMAL_95 * sd * math.sqrt(
            float(weights @ weights)
        )

    first = tested(1, 0)
    last = tested(3, 1)
    # Open where the first edge is not clearly too low, or the last one not clearly too high.
    assert (found["low"] is None) is (first[0] >= -first[1])
    assert (found["high"] is None) is (last[0] <= last[1])
    low = found["low"] or EDGES[0]
    high = EDGES[-1] if found["high"] is None else found["high"]
    for b in (1, 2, 3):
        for f in np.linspace(0, 1, 201).tolist():
            x = EDGES[b - 1] + f * (EDGES[b] - EDGES[b - 1])
            (g, most) = tested(b, f)
            assert low - 1e-3 <= x <= high + 1e-3 or abs(g) > most, "rejected outside"
        for end in (found["low"], found["high"]):
            if end is not None and EDGES[b - 1] < end < EDGES[b]:
                g, most = tested(b, (end - EDGES[b - 1]) / (EDGES[b] - EDGES[b - 1]))
                assert abs(g) == pytest.approx(most, abs=0.02), (
                    "the ends are where that begins"
                )


DRAWS = 2_000
# Four standard errors of a share of 0.95 among 2,000: false alarms once in 16,000 runs.
TOLERANCE = 4 * math.sqrt(0.95 * 0.05 / DRAWS)


def counts_of(seed: int, values: int, buckets: Buckets) -> Floats:
    """Return the buckets' counts of values of a skewed distribution."""
    drawn = np.random.default_rng(seed).gamma(2, 60, values)
    return np.histogram(drawn, bins=[-np.inf, *buckets.edges, np.inf])[0].astype(
        np.float64
    )


def covered(
    counts: Floats, numbers: Numeric, q: float, drawn: float, sd: float
) -> float:
    """Return the share of draws whose interval holds the noiseless quantile."""
    truth = numbers.quantile(counts, 0.0, q)["value"]
    rng = np.random.default_rng(20_261_122)
    hits = 0
    for _ in range(DRAWS):
        found = numbers.quantile(
            np.round(counts + rng.normal(0, drawn, len(counts))), sd, q
        )
        assert found["bucket"] is not None
        reaches_down = found["low"] is None or found["low"] <= truth
        hits += reaches_down and (found["high"] is None or truth <= found["high"])
    return hits / DRAWS


@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_interval_holds_the_quantile_19_times_in_20(q: float, scale: str) -> None:
    """With the stated noise; half or double must fail."""
    buckets = parse_buckets({"from": 1, "to": 500, "count": 25, "scale": scale})
    counts = counts_of(1, 400_000, buckets)
    numbers = Numeric(buckets, (q,))
    sd = 200.0
    assert abs(covered(counts, numbers, q, sd, sd) - 0.95) < TOLERANCE
    assert covered(counts, numbers, q, sd / 2, sd) > 0.95 + TOLERANCE
    assert covered(counts, numbers, q, 2 * sd, sd) < 0.95 - TOLERANCE


@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("never", [False, True])
def test_intervals_of_ranks_hold_the_quantile_19_times_in_20(
    q: float, never: bool
) -> None:
    """With the released noise of ranks, of ticks or of a window; half or double must fail.

    With intervals for independent noise too: they are much too long.
    """
    buckets = parse_buckets({"from": 1, "to": 500, "count": 62, "scale": "linear"})
    counts = counts_of(1, 400_000, buckets)
    size = len(counts)
    counter: Ranked = ranked_counter(size, 1, 2e-4, None)
    if never:
        (counter,) = ranked_lines(size, (3,), (1,), 2e-4)
    key = NoiseKey(b"k" * 32)
    tags = key.tags("k", [b"%d" % i for i in range(DRAWS)])
    columns = RankColumns((counter,), key.stream(b"i" * 16))
    noise = columns.at(1, tags).reshape(DRAWS, size)
    numbers = Numeric(buckets, (q,), ranks=True)
    truth = numbers.quantile(counts, 0.0, q)["value"]

    def covered(numbers: Numeric, factor: float) -> float:
        hits = 0
        for row in noise:
            released = counts + np.round(factor * row)
            found = numbers.quantile(released, counter.sd(1), q)
            assert found["bucket"] is not None
            reaches_down = found["low"] is None or found["low"] <= truth
            hits += reaches_down and (found["high"] is None or truth <= found["high"])
        return hits / DRAWS

    assert abs(covered(numbers, 1) - 0.95) < TOLERANCE
    assert covered(numbers, 0.5) > 0.95 + TOLERANCE
    assert covered(numbers, 2) < 0.95 - TOLERANCE
    assert covered(Numeric(buckets, (q,)), 1) > 0.95 + TOLERANCE


def test_fields_do_not_depend_on_the_order_of_the_items() -> None:
    items = list(zip(NUMBERS.labels, (3, 900, 700, 20, -4), strict=True))
    found = NUMBERS.fields(items, 5.0)
    assert found == NUMBERS.fields(items[::-1], 5.0)
    assert list(found) == ["edges", "quantiles"]
    assert json.dumps(found["quantiles"]) == (
        '[{"q": 0.5, "bucket": "[0,10)", "value": 8.96111, "low": 8.84445, "high": 9.07871}]'
    )
    assert Numeric(Buckets(EDGES), ()).fields(items[:2], 5.0) == {"edges": EDGES}


def test_the_longest_snapshot_of_numbers_is_far_from_needing_two_pages() -> None:
    """4,095 edges of full precision, 20 quantiles, and counts of 19 digits."""
    edges = tuple(-(1 + i / 7) * 1.2345678901234567e-300 for i in range(4_095))[::-1]
    numbers = Numeric(Buckets(edges), tuple((i + 1) / 21 for i in range(20)))
    items = [(label, 2**62 + i) for i, label in enumerate(numbers.labels)]
    text = orjson.dumps({"items": items, **numbers.fields(items, 1e15)})
    assert len(orjson.dumps(numbers.fields(items, 1e15))) < 110_000
    assert len(text) < VALUE_BYTES / 2
