"""Noise and thresholds of a mechanism over its ticks, and the resulting errors.

    T            `last_tick`, `last`: the horizon, or the first year of an unbounded epoch
    s            standard deviation of a published figure, an integer
    N            counts published: ticks times items
    variance     a `Curve`: the noise's variance by tick, as an array function
    law          distribution of the noise; only those in COUNT_LAWS are of counts

Mean absolute error: the smaller of two bounds. For an integer with nearly a normal density p of
standard deviation s, the sum of |n| p(n) is s sqrt(2/pi) - p(0)/6 (Euler and Maclaurin); for any
integer, E|X| <= E X^2 = s^2. 95 %: 1.96 s.

Laplace: q = e^(-1/b) from s^2 = 2 q / (1 - q)^2, E|X| = 2 q / (1 - q^2), and P(|X| >= x) = 2 q^x /
(1 + q). A sum of several (`misra_gries`, pure) is treated as one of the same s: its mean |n| is up
to an eighth higher, its far tail lighter.

All counts at once: N sub-Gaussian variables stay below s sqrt(2 ln(2 N / beta)) with probability 1
- beta (union bound), plus half a count if they were rounded.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.curves import Curve, Ticks
from workers.mechanisms.mechanism import Differences, Mechanism
from workers.mechanisms.registry import MECHANISMS
from workers.privacy.model import Bucket, Change, Noise, Thresholds, Tick


def alternatives_to(name: str) -> list[str]:
    """Return the mechanisms for the same or a similar question as `name`'s, that one included.

    Mechanisms of a family answer the same question, except in the family "labels". `about.beside`
    names further ones.
    """
    about = MECHANISMS[name].about
    same = [
        other
        for other, config in MECHANISMS.items()
        if config.about.family == about.family != "labels"
    ]
    return [*same, *about.beside]


YEAR_MS = 365 * 86_400_000
COUNT_LAWS = ("gaussian", "laplace")
NORMAL_95 = 1.959963984540054
NORMAL_ONE_SIDE_95 = 1.6448536269514722
BUCKETS = 64
# Up to this many ticks, compute every threshold: about 0.1 ms each (measured).
_EVERY_TICK = 1024
# At most so many ticks are looked at for a mean error, and for each window.
_MEAN_TICKS = 1 << 16
_WINDOW_TICKS = 512
# Below this, noise is mostly 0 and the closed form of the mean |noise| does not hold.
_NARROW_SD = 0.5
_SD_DIGITS = 4  # as a snapshot has it


def last_tick(config: HistogramConfig) -> int:
    """Return the last tick that a plan looks at: the horizon, or without one the last of a year.

    If a year has fewer than 1,024 ticks, it is tick 1,024.
    """
    if config.horizon_ticks is not None:
        return config.horizon_ticks
    return max(YEAR_MS // config.tick_ms, 1024)


def noise_of(mechanism: Mechanism, config: HistogramConfig) -> Noise:
    """Return the noise of a histogram over its ticks, and of changes over its windows."""
    last = last_tick(config)
    variance = mechanism.curve(last)
    worst = int(variance.noisiest(last)[0])  # the first has the largest variance
    return Noise(
        on=mechanism.about.noise_is_on,
        law=mechanism.law,
        ticks_looked_at=last,
        worst_sd=mechanism.sd(worst),
        worst_tick=worst,
        rms_sd=math.sqrt(variance.mean(last)),
        ticks=tuple(_tick(mechanism, t) for t in chosen_ticks(config, last, worst)),
        curve=buckets_of(variance, last),
        windows=tuple(_changes(mechanism, config, last)),
    )


def _changes(
    mechanism: Mechanism, config: HistogramConfig, last: int
) -> Iterator[Change]:
    """Yield the noise of a count's change over each window, for counts that can be subtracted.

    It is computed at up to `_WINDOW_TICKS` evenly spaced ticks.
    """
    if config.without_epochs or not isinstance(mechanism, Differences):
        return
    for length in config.windows:
        window = min(length // config.tick_ms, last)
        ticks = _spaced(window, last, _WINDOW_TICKS).tolist()
        sds = [mechanism.difference_sd(t, t - window) for t in ticks]
        # If the noise of the counts at both ends were independent; an epoch begins without any.
        apart_variances = [
            mechanism.sd(t) ** 2
            + (mechanism.sd(t - window) ** 2 if t > window else 0.0)
            for t in ticks
        ]
        yield Change(
            ms=length,
            ticks=window,
            ticks_computed=len(ticks),
            least_sd=min(sds),
            most_sd=max(sds),
            rms_sd=math.sqrt(sum(sd * sd for sd in sds) / len(sds)),
            last_sd=sds[-1],
            apart_sd=math.sqrt(sum(apart_variances) / len(apart_variances)),
        )


def _spaced(first: int, last: int, most: int) -> Ticks:
    """Return up to `most` evenly spaced ticks from `first` to `last`, both included."""
    return np.unique(
        np.linspace(first, last, min(last - first + 1, most)).astype(np.int64)
    )


def mean_absolute_error(law: str, sd: float) -> float | None:
    """Return E|noise|; None if the law is not one of counts.

    The formulas are those of the module; up to _NARROW_SD, the first of its two bounds does not
    hold.
    """
    if law == "laplace":
        q = laplace_q(sd)
        return 2 * q / (1 - q * q)
    if law != "gaussian":
        return None
    smooth = math.inf
    if sd > _NARROW_SD:
        smooth = sd * math.sqrt(2 / math.pi) - 1 / (6 * sd * math.sqrt(2 * math.pi))
    return min(sd * sd, smooth)


def half_width_95(law: str, sd: float) -> float | None:
    """Return the error that a count exceeds with probability 5 %; None if the law has no counts."""
    if law == "laplace":
        q = laplace_q(sd)
        return max(0.0, math.log(0.05 * (1 + q) / 2) / math.log(q))
    return NORMAL_95 * sd if law == "gaussian" else None


def worst_of_all(law: str, sd: float, counts: int, beta: float) -> float:
    """Bound all errors of `counts` counts, of at most this sd, with probability 1 - beta."""
    if law == "laplace":
        q = laplace_q(sd)
        return math.log(2 * counts / (beta * (1 + q))) / -math.log(q)
    return sd * math.sqrt(2 * math.log(2 * counts / beta)) + 0.5


def mean_over_ticks(mechanism: Mechanism, last: int) -> float | None:
    """Return the mean absolute error over all ticks, or over 65,536 evenly spaced ones."""
    if mechanism.law not in COUNT_LAWS:
        return None
    ticks = _spaced(1, last, _MEAN_TICKS)
    sds = np.sqrt(mechanism.curve(last).variance(ticks))
    # Rounded, there are few different sds, and one error is computed for each.
    values, times = np.unique(np.round(sds, 9), return_counts=True)
    errors = [mean_absolute_error(mechanism.law, sd) or 0.0 for sd in values.tolist()]
    return float(np.dot(errors, times) / len(ticks))


def laplace_q(sd: float) -> float:
    """Return q of the discrete Laplace law with this sd, as in the module's docstring."""
    variance = sd * sd
    return ((variance + 1) - math.sqrt(2 * variance + 1)) / variance


def chosen_ticks(config: HistogramConfig, last: int, worst: int) -> list[int]:
    """Return the ticks to list in a plan: some powers of two, the quarters, the last, the worst.

    If new items can be shown only at every `discovery_step`, also the first and last of these.
    """
    # At most seven powers of two.
    step = max(1, math.ceil(last.bit_length() / 7))
    ticks = {1 << bit for bit in range(0, last.bit_length(), step)}
    ticks |= {last // 4, last * 2 // 4, last * 3 // 4, last, worst}
    if every := config.discovery_step:
        ticks |= {every, last // every * every}
    return sorted(ticks - {0})


def thresholds_of(
    mechanism: Mechanism, config: HistogramConfig, noise: Noise
) -> Thresholds | None:
    """Return the range of the thresholds over all ticks; None if the mechanism shows everything.

    New items can be shown only at every `discovery_step`. `noise` is that of the mechanism.
    """
    last = noise.ticks_looked_at
    variance = mechanism.curve(last)
    every = config.discovery_step or 1
    if mechanism.threshold(last // every * every) is None:
        return None
    # Look at all ticks that can show new items; if they are many, at the noisiest, those listed in
    # the plan, and evenly spaced ones.
    if last // every <= _EVERY_TICK:
        ticks = list(range(every, last + 1, every))
    else:
        noisiest: NDArray[np.int64] = variance.noisiest(last)[: _EVERY_TICK // 8]
        even = np.linspace(1, last // every, _EVERY_TICK // 4).astype(np.int64) * every
        listed = np.array([tick.tick for tick in noise.ticks], dtype=np.int64)
        # The multiple of `every` at or before each of these.
        near = np.maximum(np.concatenate((noisiest, listed)) // every * every, every)
        ticks = np.unique(np.concatenate((near, even))).tolist()
    pairs = [
        (value, tick)
        for tick in ticks
        if (value := mechanism.threshold(tick)) is not None
    ]
    # The highest threshold, at the first of the ticks that have it.
    most, most_tick = max(pairs, key=lambda pair: (pair[0], -pair[1]))
    values, decided_at = (
        np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)
    )
    about = mechanism.about
    # The noise that decides whether an item is shown. If every block of ticks decides for itself,
    # it is that of one block, as at tick 1. A "bar" is another item's noisy count, with as much
    # noise of its own.
    if mechanism.blocks():
        decided_at = np.ones_like(decided_at)
    deciding = np.sqrt(variance.variance(decided_at))
    if about.threshold_rule == "bar":
        deciding = deciding * math.sqrt(2)
    # A count passes with probability 95 % if it is above the threshold by 1.645 sd of its noise.
    needed = values + NORMAL_ONE_SIDE_95 * deciding
    return Thresholds(
        meaning=about.shown,
        least=float(min(pairs)[0]),
        most=float(most),
        most_tick=most_tick,
        ticks_computed=len(pairs),
        likely_from=math.ceil(float(needed.max())),
    )


def _tick(mechanism: Mechanism, t: int) -> Tick:
    """Return the noise and the threshold at a tick; `sd` only if the noise is on counts."""
    sd = mechanism.sd(t)
    threshold = mechanism.threshold(t)
    return Tick(
        tick=t,
        sd=round(sd, _SD_DIGITS) if mechanism.law in COUNT_LAWS else None,
        threshold=None if threshold is None else float(threshold),
        noise_sd=sd,
        mean_absolute_error=mean_absolute_error(mechanism.law, sd),
        half_width_95=half_width_95(mechanism.law, sd),
    )


def buckets_of(variance: Curve, last: int) -> tuple[Bucket, ...]:
    """Return the least and the largest sd in up to 64 ranges of the ticks 1..last.

    The ranges are equally wide up to 4,096 ticks, else geometric.
    """
    spread: Callable[..., NDArray[np.float64]] = (
        np.linspace if last <= 4096 else np.geomspace
    )
    edges = np.unique(np.round(spread(1, last + 1, BUCKETS + 1)).astype(np.int64))
    firsts = edges[:-1].tolist()
    lasts = (edges[1:] - 1).tolist()
    # At most 256 ticks of a range are looked at.
    ticks = [_spaced(*ends, 256) for ends in zip(firsts, lasts, strict=True)]
    # The ticks of all ranges are joined; those of a range start at its place in `begins`.
    begins = np.cumsum([0, *map(len, ticks[:-1])])
    # In one call: numpy's cost is a call's, not an element's.
    sds = np.sqrt(variance.variance(np.concatenate(ticks)))
    least = np.minimum.reduceat(sds, begins).tolist()
    most = np.maximum.reduceat(sds, begins).tolist()
    columns = zip(firsts, lasts, least, most, strict=True)
    return tuple(
        Bucket(first=i, last=j, least=low, most=high) for i, j, low, high in columns
    )
