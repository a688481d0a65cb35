"""Errors of a histogram of numbers by what it is for: of a bucket, of ranks, of ranges.

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
    bucket, _ = mechanism.curve(last).worst_and_rms(last)
    # Of a bucket before rounding, which is of one number, or of two ranks.
    variance = bucket**2 - (2 * ROUNDING if ranked else ROUNDING)
    at_edges, _, _ = rank_variances(buckets - 1, _MEDIAN, ranked)
    length = max(1, buckets // _RANGES)
    of_range = float(length)
    rounding = length * ROUNDING
    if ranked:
        ranks = ranks_of(buckets)
        begins = np.arange(buckets + 1 - length)
        ends = begins + length
        apart = ranks.covariance(begins, begins) + ranks.covariance(ends, ends)
        apart -= 2 * ranks.covariance(begins, ends)
        of_range = float(apart.mean()) / ranks.of_bucket
        rounding = 2 * ROUNDING
    # Ranks are rounded once each; without them, so is every bucket, with weights of 1/2.
    of_median = (1 + _MEDIAN**2) * ROUNDING if ranked else buckets * ROUNDING / 4
    return RankChoice(
        purpose=purpose,
        chosen=(config.for_ or "counts") == purpose,
        bucket_sd=bucket,
        median_rank_sd=math.sqrt(variance * float(at_edges.mean()) + of_median),
        range_buckets=length,
        range_sd=math.sqrt(variance * of_range + rounding),
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
