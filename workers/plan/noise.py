"""The noise and the thresholds of one mechanism over its ticks, and the plain errors that follow from a standard deviation.

    Symbol   Here
    T        `last_tick`: the horizon; of an unbounded epoch its first year
    s        standard deviation of what is published, an integer
    N        counts published: ticks times items

Mean absolute error: of an integer variable whose law is close to a normal density p of standard deviation s, the sum of |n| p(n) is
s sqrt(2/pi) - p(0)/6 (Euler and Maclaurin), and E|X| <= E X^2 = s^2 for any integers; the smaller of the two. 95 %: 1.96 s.
Laplace: q from s^2 = 2 q / (1 - q)^2, E|X| = 2 q / (1 - q^2), P(|X| >= x) = 2 q^x / (1 + q). A sum of several (`misra_gries`, pure) is
taken for one of the same s: its mean |n| is up to an eighth higher, its far tail lighter.
All counts at once: N sub-Gaussian variables stay below s sqrt(2 ln(2 N / beta)) with probability 1 - beta (union bound), and half a
count more where they were rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.config import HistogramConfig, UnkBaseConfig
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.misra_gries.pure import PureMisraGries
from workers.mechanisms.one_shot.mechanism import OneShot
from workers.mechanisms.one_shot.pay import PayWhatYouGet
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.running.meta import Meta
from workers.plan.curves import Curve, DigitCurve, TableCurve, curve_of
from workers.plan.model import Bucket, Noise, Thresholds, Tick

YEAR_MS = 365 * 86_400_000
LAPLACE = ("positive_laplace", "limit_dom_laplace")
NORMAL_95 = 1.959963984540054
NORMAL_ONE_SIDE_95 = 1.6448536269514722
BUCKETS = 64
# A histogram of this many ticks has every tick's threshold worked out: about 0.1 ms each (measured).
_EVERY_TICK = 1024
_MEAN_TICKS = 1 << 16
# Below this the closed form of the mean |noise| no longer holds; noise is mostly 0 then.
_NARROW_SD = 0.5
_SD_DIGITS = 4  # as a snapshot has it


class Figures(Protocol):
    """The part of a `Mechanism` that a plan reads of its noise."""

    @property
    def kind(self) -> str: ...

    def public(self) -> Mapping[str, object]: ...

    def sd(self, t: int) -> float: ...

    def threshold(self, t: int) -> int | None: ...


def last_tick(config: HistogramConfig) -> int:
    """The last tick that is looked at: of an unbounded epoch, that of its first year, 1,024 at least."""
    if config.horizon_ticks is not None:
        return config.horizon_ticks
    return min(max(YEAR_MS // config.tick_ms, 1024), 1 << 39)


def answers_queries(mechanism: Figures) -> bool:
    """Whether snapshots carry an answer without `sd`, rather than counts."""
    return isinstance(mechanism, (OrderStatistics, PayWhatYouGet))


def curve(mechanism: Figures, last: int) -> Curve:
    """The variance of the noise of a mechanism over its ticks."""
    if isinstance(mechanism, Meta):
        return DigitCurve(mechanism.radix, [mechanism.sd(1) ** 2] * mechanism.levels)
    if isinstance(mechanism, MisraGries):
        return DigitCurve(
            mechanism.tree.radix, [mechanism.cell_variance] * mechanism.tree.levels, rounding=mechanism.rounding
        )
    if isinstance(mechanism, OrderStatistics):
        most = mechanism.segments.most if mechanism.segments is not None else 1
        return TableCurve(np.array([mechanism.sd(t) ** 2 for t in range(1, min(most, last) + 1)]))
    counter = mechanism.public().get("counter")
    if not isinstance(counter, dict):
        return TableCurve(np.array([mechanism.sd(1) ** 2]))
    if counter["kind"] == "sqrt":
        return TableCurve(np.array([mechanism.sd(t) ** 2 for t in range(1, last + 1)]))
    return curve_of(counter)


def noise_of(mechanism: Figures, config: HistogramConfig) -> Noise:
    """The noise of a mechanism at chosen ticks, its worst and its root mean square over all of them."""
    last = last_tick(config)
    variance = curve(mechanism, last)
    worst = int(variance.loudest(last)[0])
    return Noise(
        on=_on(mechanism),
        law=law(mechanism),
        ticks_looked_at=last,
        worst_sd=mechanism.sd(worst),
        worst_tick=worst,
        rms_sd=math.sqrt(variance.mean(last)),
        ticks=tuple(_tick(mechanism, t) for t in chosen_ticks(config, last, worst)),
        curve=_buckets(variance, last),
    )


def law(mechanism: Figures) -> str:
    """The law of what is added to a count, or decides a pick."""
    if isinstance(mechanism, PayWhatYouGet):
        return "logistic"
    if isinstance(mechanism, OrderStatistics):
        return "sum"
    if isinstance(mechanism, PureMisraGries):
        return "laplace"
    return "laplace" if mechanism.kind in LAPLACE else "gaussian"


def mean_absolute_error(law: str, sd: float) -> float | None:
    """E|noise| of an integer of this standard deviation; None where the law is not one of counts."""
    if law == "laplace":
        q = laplace_q(sd)
        return 2 * q / (1 - q * q)
    if law == "gaussian":
        smooth = sd * math.sqrt(2 / math.pi) - 1 / (6 * sd * math.sqrt(2 * math.pi)) if sd > _NARROW_SD else math.inf
        return min(sd * sd, smooth)
    return None


def half_width_95(law: str, sd: float) -> float | None:
    """What |noise| exceeds with probability 1 in 20."""
    if law == "laplace":
        q = laplace_q(sd)
        return max(0.0, math.log(0.05 * (1 + q) / 2) / math.log(q))
    return NORMAL_95 * sd if law == "gaussian" else None


def worst_of_all(law: str, sd: float, counts: int, beta: float) -> float:
    """What none of so many noisy counts is off by, with probability 1 - beta, if none has more noise than `sd`."""
    if law == "laplace":
        q = laplace_q(sd)
        return math.log(2 * counts / (beta * (1 + q))) / -math.log(q)
    return sd * math.sqrt(2 * math.log(2 * counts / beta)) + 0.5


def mean_over_ticks(mechanism: Figures, last: int) -> float | None:
    """The mean absolute error of a count over all ticks; evenly spread ones where they are more than 65,536."""
    kind = law(mechanism)
    if mean_absolute_error(kind, 1.0) is None:
        return None
    ticks = np.unique(np.linspace(1, last, min(last, _MEAN_TICKS)).astype(np.int64))
    sds = np.sqrt(curve(mechanism, last).variance(ticks))
    values, times = np.unique(np.round(sds, 9), return_counts=True)
    errors = [mean_absolute_error(kind, sd) or 0.0 for sd in values.tolist()]
    return float(np.dot(errors, times) / len(ticks))


def laplace_q(sd: float) -> float:
    """q = e^(-1/b) of the discrete Laplace law with this standard deviation."""
    variance = sd * sd
    return ((variance + 1) - math.sqrt(2 * variance + 1)) / variance


def chosen_ticks(config: HistogramConfig, last: int, worst: int) -> list[int]:
    """Ticks worth a line: the first, powers of two (four, sixteen, ... on long horizons), the quarters, the last, the worst."""
    step = max(1, math.ceil(last.bit_length() / 7))
    ticks = {1 << bit for bit in range(0, last.bit_length(), step)} | {last * part // 4 for part in (1, 2, 3)}
    ticks |= {last, worst}
    if isinstance(config, UnkBaseConfig) and config.every is not None:
        ticks |= {config.every, last // config.every * config.every}
    return sorted(ticks - {0})


def thresholds_of(mechanism: Figures, config: HistogramConfig, noise: Noise) -> Thresholds | None:
    """The thresholds of all ticks, or of the loudest and of evenly spread ones where they are many."""
    last, variance = noise.ticks_looked_at, curve(mechanism, noise.ticks_looked_at)
    every = config.every or 1 if isinstance(config, UnkBaseConfig) else 1
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
    needed = values + NORMAL_ONE_SIDE_95 * _deciding_sd(mechanism, variance, at)
    return Thresholds(
        meaning=_meaning(mechanism),
        least=float(min(found)[0]),
        most=float(most),
        most_tick=tick,
        ticks_computed=len(found),
        likely_from=math.ceil(float(needed.max())),
    )


def _tick(mechanism: Figures, t: int) -> Tick:
    sd, kind = mechanism.sd(t), law(mechanism)
    threshold = mechanism.threshold(t)
    return Tick(
        tick=t,
        sd=None if answers_queries(mechanism) else round(sd, _SD_DIGITS),
        threshold=None if threshold is None else float(threshold),
        noise_sd=sd,
        mean_absolute_error=mean_absolute_error(kind, sd),
        half_width_95=half_width_95(kind, sd),
    )


def _buckets(variance: Curve, last: int) -> tuple[Bucket, ...]:
    """Up to 64 runs of ticks, equally long up to 4,096 ticks, else each longer than the one before by the same factor."""
    spread: Callable[..., NDArray[np.float64]] = np.linspace if last <= 4096 else np.geomspace
    edges = np.unique(np.round(spread(1, last + 1, BUCKETS + 1)).astype(np.int64))
    buckets = []
    for first, after in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        ticks = np.unique(np.linspace(first, after - 1, min(after - first, 256)).astype(np.int64))
        sds = np.sqrt(variance.variance(ticks))
        buckets.append(Bucket(first=first, last=after - 1, least=float(sds.min()), most=float(sds.max())))
    return tuple(buckets)


def _on(mechanism: Figures) -> str:
    if isinstance(mechanism, PayWhatYouGet):
        return "the comparison of two items that decides a pick"
    if isinstance(mechanism, OrderStatistics):
        return "a column's sum, at most; an answer also waits until it has grown enough: see the errors"
    if isinstance(mechanism, MisraGries):
        return "a count that all its blocks show; what the sketch leaves out comes on top"
    if isinstance(mechanism, Meta):
        return "a count that all its blocks show"
    return "each count of the tick itself" if isinstance(mechanism, OneShot) else "each running count"


def _meaning(mechanism: Figures) -> str:
    if mechanism.kind in ("unk_gauss", "limit_dom_laplace"):
        return "a noisy bar lies this far above the (kbar + 1)-th largest count; items above it are shown"
    if isinstance(mechanism, OneShot):
        return "an item is shown at each tick at which its noisy count is above"
    if isinstance(mechanism, (Meta, MisraGries)):
        return "one block of ticks shows an item whose noisy count in it is above"
    return "an item is shown once its noisy count is above, and then stays shown"


def _deciding_sd(mechanism: Figures, variance: Curve, ticks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the noise that decides whether an item is shown: a bar has noise of its own, and blocks decide one by one."""
    if isinstance(mechanism, (Meta, MisraGries)):
        ticks = np.ones_like(ticks)
    noisy_bar = math.sqrt(2) if mechanism.kind in ("unk_gauss", "limit_dom_laplace") else 1.0
    return np.sqrt(variance.variance(ticks)) * noisy_bar
