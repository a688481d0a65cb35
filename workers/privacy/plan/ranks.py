"""Errors of a histogram of numbers by what it is for: of a bucket, of ranks, of ranges.

With `for = "counts"` every bucket has noise of its own. With `for = "quantiles"` the noise is on
ranks, the counts of all numbers below an edge; a bucket is the difference of two neighbouring ones.

All figures are standard deviations at the worst tick, at the same budget. The rank of the median is
what decides where it lies: the count below an edge less half of all, as root mean square over the
edges; a range is one of an eighth of the buckets, as root mean square over where it begins.
"""

import math

import numpy as np
from msgspec import structs

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.ranks import ranks_of
from workers.mechanisms.curves import ROUNDING
from workers.mechanisms.registry import build
from workers.pipeline.snapshots import rank_variances
from workers.privacy.model import RankChoice
from workers.privacy.plan.noise import last_tick

_RANGES = 8
_MEDIAN = 0.5
# Advise the other choice if it makes the median so many times as exact.
_WORTHWHILE = 1.5


def rank_choices(config: HistogramConfig, unit: str) -> tuple[RankChoice, ...]:
    """Return the errors for counts and for quantiles; none where there is no choice."""
    if config.buckets is None or not config.about.takes_for_quantiles:
        return ()
    choices = []
    for purpose in ("counts", "quantiles"):
        try:
            choices.append(_choice(config, purpose, unit))
        except ValueError:
            # Such as with a counter or sums that noise of ranks does not take.
            return ()
    return tuple(choices)


def _choice(config: HistogramConfig, purpose: str, unit: str) -> RankChoice:
    """Return the errors with `for` = `purpose`; ValueError if these settings do not allow it."""
    mechanism = build(structs.replace(config, for_=purpose), unit)
    ranked = purpose == "quantiles"
    buckets = len(config.declared)
    last = last_tick(config)
    bucket_sd, _ = mechanism.curve(last).worst_and_rms(last)
    # Subtract what rounding adds: one integer is rounded for a bucket, or two ranks.
    unrounded = bucket_sd**2 - (2 * ROUNDING if ranked else ROUNDING)
    # The variance of the median's rank at each edge, in units of `unrounded`, that of a bucket.
    # Covariances of neighbours and the variance of all are not needed.
    at_edges, _, _ = rank_variances(buckets - 1, _MEDIAN, ranked)
    # What rounding adds to it, as the rank minus half of all. For counts, every bucket is rounded
    # and has a weight of 1/2 or -1/2. For quantiles, the rank is rounded, and so is the count of
    # all, which has a weight of 1/2.
    median_rounding = (1 + _MEDIAN**2) * ROUNDING if ranked else buckets * ROUNDING / 4
    length = max(1, buckets // _RANGES)
    range_noise = float(length)
    range_rounding = length * ROUNDING
    if ranked:
        # A range is the rank at its end less that at its begin.
        ranks = ranks_of(buckets)
        begins = np.arange(buckets + 1 - length)
        ends = begins + length
        noise = ranks.covariance(begins, begins) + ranks.covariance(ends, ends)
        noise -= 2 * ranks.covariance(begins, ends)
        range_noise = float(noise.mean()) / ranks.of_bucket
        range_rounding = 2 * ROUNDING
    return RankChoice(
        purpose=purpose,
        chosen=(config.for_ or "counts") == purpose,
        bucket_sd=bucket_sd,
        median_rank_sd=math.sqrt(unrounded * float(at_edges.mean()) + median_rounding),
        range_buckets=length,
        range_sd=math.sqrt(unrounded * range_noise + range_rounding),
    )


def rank_advice(choices: tuple[RankChoice, ...]) -> str:
    """Return a sentence on the other choice where it is clearly better for quantiles; else ""."""
    if len(choices) < 2 or choices[1].chosen:
        return ""
    counts, quantiles = choices
    times = counts.median_rank_sd / quantiles.median_rank_sd
    if times < _WORTHWHILE:
        return ""
    more = quantiles.bucket_sd / counts.bucket_sd
    return (
        f'for = "quantiles" would place the median {times:.1f} times as exactly, and give ranges of '
        f"{quantiles.range_buckets:,} buckets a noise of sd {quantiles.range_sd:,.3g} instead of {counts.range_sd:,.3g}; "
        f"a single bucket would have up to {more:.1f} times the noise."
    )
