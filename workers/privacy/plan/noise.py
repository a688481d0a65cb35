"""The noise and the thresholds of one mechanism over its ticks, and the errors that follow.

    Symbol   Here
    T        `last_tick`: the horizon; of an unbounded epoch its first year
    s        standard deviation of what is published, an integer
    N        counts published: ticks times items

Mean absolute error: of an integer variable whose law is close to a normal density p of standard
deviation s, the sum of |n| p(n) is s sqrt(2/pi) - p(0)/6 (Euler and Maclaurin), and
E|X| <= E X^2 = s^2 for any integers; the smaller of the two. 95 %: 1.96 s.
Laplace: q from s^2 = 2 q / (1 - q)^2, E|X| = 2 q / (1 - q^2), P(|X| >= x) = 2 q^x / (1 + q). A sum
of several (`misra_gries`, pure) is taken for one of the same s: its mean |n| is up to an eighth
higher, its far tail lighter.
All counts at once: N sub-Gaussian variables stay below s sqrt(2 ln(2 N / beta)) with probability
1 - beta (union bound), and half a count more where they were rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.config.histogram import HistogramConfig, UnkBaseConfig
from workers.mechanisms.mechanism import Differences, Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.running.meta import Meta
from workers.privacy.plan.curves import Curve, DigitCurve, TableCurve, curve_of
from workers.privacy.plan.kinds import KINDS
from workers.privacy.plan.model import Bucket, Change, Noise, Thresholds, Tick

YEAR_MS = 365 * 86_400_000
COUNT_LAWS = ("gaussian", "laplace")
NORMAL_95 = 1.959963984540054
NORMAL_ONE_SIDE_95 = 1.6448536269514722
BUCKETS = 64
# A histogram of this many ticks has every tick's threshold computed: about 0.1 ms each (measured).
_EVERY_TICK = 1024
_MEAN_TICKS = 1 << 16
_WINDOW_TICKS = 512
# Below this the closed form of the mean |noise| no longer holds; noise is mostly 0 then.
_NARROW_SD = 0.5
_SD_DIGITS = 4  # as a snapshot has it


class Blocks(NamedTuple):
    """The tree of blocks of ticks that a mechanism adds up; the variance is that of one block."""

    radix: int
    levels: int
    variance: float
    rounding: float


def blocks_of(mechanism: Mechanism) -> Blocks | None:
    """Return the tree of a mechanism that adds up blocks, None for any other."""
    if isinstance(mechanism, Meta):
        return Blocks(mechanism.radix, mechanism.levels, mechanism.sd(1) ** 2, 0.0)
    if isinstance(mechanism, MisraGries):
        tree = mechanism.tree
        return Blocks(tree.radix, tree.levels, mechanism.cell_variance, mechanism.rounding)
    return None


def last_tick(config: HistogramConfig) -> int:
    """Return the last tick looked at: if unbounded that of the first year, at least 1,024."""
    if config.horizon_ticks is not None:
        return config.horizon_ticks
    return min(max(YEAR_MS // config.tick_ms, 1024), 1 << 39)


def curve(mechanism: Mechanism, last: int) -> Curve:
    """Return the variance of a mechanism's noise over its ticks."""
    if blocks := blocks_of(mechanism):
        return DigitCurve(blocks.radix, [blocks.variance] * blocks.levels, rounding=blocks.rounding)
    counter, ticks = mechanism.public().get("counter"), 1
    if isinstance(mechanism, OrderStatistics):
        ticks = min(mechanism.segments.most if mechanism.segments is not None else 1, last)
    elif isinstance(counter, dict):
        if counter["kind"] != "sqrt":
            return curve_of(counter)
        ticks = last
    return TableCurve(np.array([mechanism.sd(t) ** 2 for t in range(1, ticks + 1)]))


def worst_and_rms(curve: Curve, last: int) -> tuple[float, float]:
    """Return the largest and the root mean square sd over all ticks."""
    return math.sqrt(curve.variance(curve.loudest(last)[:1])[0]), math.sqrt(curve.mean(last))


def noise_of(mechanism: Mechanism, config: HistogramConfig) -> Noise:
    """Return a mechanism's noise at chosen ticks, its worst and its root mean square over all."""
    last = last_tick(config)
    variance = curve(mechanism, last)
    worst = int(variance.loudest(last)[0])
    return Noise(
        on=KINDS[mechanism.kind].on,
        law=mechanism.law,
        ticks_looked_at=last,
        worst_sd=mechanism.sd(worst),
        worst_tick=worst,
        rms_sd=math.sqrt(variance.mean(last)),
        ticks=tuple(_tick(mechanism, t) for t in chosen_ticks(config, last, worst)),
        curve=buckets_of(variance, last),
        windows=tuple(_changes(mechanism, config, last)),
    )


def _changes(mechanism: Mechanism, config: HistogramConfig, last: int) -> Iterator[Change]:
    """Yield the noise of the change over each window, at all ticks or at evenly spread ones."""
    if not isinstance(mechanism, Differences):
        return
    for length in config.windows:
        window = min(length // config.tick_ms, last)
        ticks = np.unique(np.linspace(window, last, min(last - window + 1, _WINDOW_TICKS)).astype(np.int64)).tolist()
        sds = [mechanism.difference_sd(t, t - window) for t in ticks]
        apart = [mechanism.sd(t) ** 2 + (mechanism.sd(t - window) ** 2 if t > window else 0.0) for t in ticks]
        yield Change(
            ms=length,
            ticks=window,
            ticks_computed=len(ticks),
            least_sd=min(sds),
            most_sd=max(sds),
            rms_sd=math.sqrt(sum(sd * sd for sd in sds) / len(sds)),
            last_sd=sds[-1],
            apart_sd=math.sqrt(sum(apart) / len(apart)),
        )


def mean_absolute_error(law: str, sd: float) -> float | None:
    """Return E|noise| of an integer of this sd; None where the law is not one of counts."""
    if law == "laplace":
        q = laplace_q(sd)
        return 2 * q / (1 - q * q)
    if law == "gaussian":
        smooth = sd * math.sqrt(2 / math.pi) - 1 / (6 * sd * math.sqrt(2 * math.pi)) if sd > _NARROW_SD else math.inf
        return min(sd * sd, smooth)
    return None


def half_width_95(law: str, sd: float) -> float | None:
    """Return what |noise| exceeds with probability 1 in 20."""
    if law == "laplace":
        q = laplace_q(sd)
        return max(0.0, math.log(0.05 * (1 + q) / 2) / math.log(q))
    return NORMAL_95 * sd if law == "gaussian" else None


def worst_of_all(law: str, sd: float, counts: int, beta: float) -> float:
    """Bound the error of all counts at once, each of at most this sd, with probability 1 - beta."""
    if law == "laplace":
        q = laplace_q(sd)
        return math.log(2 * counts / (beta * (1 + q))) / -math.log(q)
    return sd * math.sqrt(2 * math.log(2 * counts / beta)) + 0.5


def mean_over_ticks(mechanism: Mechanism, last: int) -> float | None:
    """Return the mean absolute error over all ticks, or over 65,536 evenly spread ones."""
    if mechanism.law not in COUNT_LAWS:
        return None
    ticks = np.unique(np.linspace(1, last, min(last, _MEAN_TICKS)).astype(np.int64))
    sds = np.sqrt(curve(mechanism, last).variance(ticks))
    values, times = np.unique(np.round(sds, 9), return_counts=True)
    errors = [mean_absolute_error(mechanism.law, sd) or 0.0 for sd in values.tolist()]
    return float(np.dot(errors, times) / len(ticks))


def laplace_q(sd: float) -> float:
    """Return q = e^(-1/b) of the discrete Laplace law with this standard deviation."""
    variance = sd * sd
    return ((variance + 1) - math.sqrt(2 * variance + 1)) / variance


def chosen_ticks(config: HistogramConfig, last: int, worst: int) -> list[int]:
    """Return ticks worth a line: powers of two (four, ...), the quarters, the last, the worst."""
    step = max(1, math.ceil(last.bit_length() / 7))
    ticks = {1 << bit for bit in range(0, last.bit_length(), step)} | {last * part // 4 for part in (1, 2, 3)}
    ticks |= {last, worst}
    if every := discovery_step(config):
        ticks |= {every, last // every * every}
    return sorted(ticks - {0})


def discovery_step(config: HistogramConfig) -> int | None:
    """Return which multiples of a tick alone may show new items; None where every tick may."""
    return config.every if isinstance(config, UnkBaseConfig) else None


def thresholds_of(mechanism: Mechanism, config: HistogramConfig, noise: Noise) -> Thresholds | None:
    """Return the thresholds of all ticks; of many, of the loudest and of evenly spread ones."""
    last, variance = noise.ticks_looked_at, curve(mechanism, noise.ticks_looked_at)
    every = discovery_step(config) or 1
    if mechanism.threshold(last // every * every) is None:
        return None
    if last // every <= _EVERY_TICK:
        ticks = list(range(every, last + 1, every))
    else:
        loudest: NDArray[np.int64] = variance.loudest(last)[: _EVERY_TICK // 8]
        even = np.linspace(1, last // every, _EVERY_TICK // 4).astype(np.int64) * every
        shown = np.array([tick.tick for tick in noise.ticks], dtype=np.int64)
        near = np.maximum(np.concatenate((loudest, shown)) // every * every, every)
        ticks = np.unique(np.concatenate((near, even))).tolist()
    found = [(value, tick) for tick in ticks if (value := mechanism.threshold(tick)) is not None]
    most, tick = max(found, key=lambda pair: (pair[0], -pair[1]))
    values, at = (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
    kind = KINDS[mechanism.kind]
    # Of the noise that decides: blocks decide one by one, and a bar has noise of its own.
    deciding = np.sqrt(variance.variance(np.ones_like(at) if kind.blocks else at))
    needed = values + NORMAL_ONE_SIDE_95 * (deciding * (math.sqrt(2) if kind.bar else 1.0))
    return Thresholds(
        meaning=kind.shown,
        least=float(min(found)[0]),
        most=float(most),
        most_tick=tick,
        ticks_computed=len(found),
        likely_from=math.ceil(float(needed.max())),
    )


def _tick(mechanism: Mechanism, t: int) -> Tick:
    sd, threshold = mechanism.sd(t), mechanism.threshold(t)
    return Tick(
        tick=t,
        sd=round(sd, _SD_DIGITS) if KINDS[mechanism.kind].counts else None,
        threshold=None if threshold is None else float(threshold),
        noise_sd=sd,
        mean_absolute_error=mean_absolute_error(mechanism.law, sd),
        half_width_95=half_width_95(mechanism.law, sd),
    )


def buckets_of(variance: Curve, last: int) -> tuple[Bucket, ...]:
    """Return up to 64 runs of ticks, equally long up to 4,096 ticks, else growing by one factor."""
    spread: Callable[..., NDArray[np.float64]] = np.linspace if last <= 4096 else np.geomspace
    edges = np.unique(np.round(spread(1, last + 1, BUCKETS + 1)).astype(np.int64))
    buckets = []
    for first, after in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        ticks = np.unique(np.linspace(first, after - 1, min(after - first, 256)).astype(np.int64))
        sds = np.sqrt(variance.variance(ticks))
        buckets.append(Bucket(first=first, last=after - 1, least=float(sds.min()), most=float(sds.max())))
    return tuple(buckets)
