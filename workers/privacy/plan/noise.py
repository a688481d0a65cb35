"""Noise and thresholds of a mechanism over its ticks, and the resulting errors.

    T            `last_tick`, `last`: the horizon, or the first year of an unbounded epoch
    s            standard deviation of a published figure, an integer
    N            counts published: ticks times items
    d_j          digits of t, as in `tree`

Mean absolute error: the smaller of two bounds. For an integer with nearly a normal density p of
standard deviation s, the sum of |n| p(n) is s sqrt(2/pi) - p(0)/6 (Euler and Maclaurin); for any
integer, E|X| <= E X^2 = s^2. 95 %: 1.96 s.

Laplace: q = e^(-1/b) from s^2 = 2 q / (1 - q)^2, E|X| = 2 q / (1 - q^2), and P(|X| >= x) = 2 q^x /
(1 + q). A sum of several (`misra_gries`, pure) is treated as one of the same s: its mean |n| is up
to an eighth higher, its far tail lighter.

All counts at once: N sub-Gaussian variables stay below s sqrt(2 ln(2 N / beta)) with probability 1
- beta (union bound), plus half a count if they were rounded.

Families in `KINDS`: "running" counts since the epoch began, "tick" each tick's own counts, "labels"
the largest now and then, "statistic" order statistics of running counts. A `Curve` is the variance
of published noise by tick, for any horizon, computed from a counter's public parameters
(`Counter.public`). Nothing here is released, so floats suffice.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.arrays.types import Floats
from workers.mechanisms.config.histogram import HistogramConfig, UnkBaseConfig
from workers.mechanisms.counters.lifted_variance import LiftedVariance
from workers.mechanisms.counters.tree import Tree
from workers.mechanisms.mechanism import Differences, Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.running.meta import Meta
from workers.privacy.plan.model import Bucket, Change, Noise, Thresholds, Tick

_ANSWER = "a column's sum, at most; an answer also waits until it has grown enough: see the errors"
_OF_BLOCKS = "one block of ticks shows an item whose noisy count in it is above"
_OF_TICKS = "an item is shown at each tick at which its noisy count is above"
_OVER_A_BAR = "a noisy bar lies this far above the (kbar + 1)-th largest count; items above it are shown"
_CLEARLY = "each tick's counts clearly above the (kbar + 1)-th"
_PASSED = "each tick's counts above the threshold"


class Kind(NamedTuple):
    """A mechanism: `on` names the noisy figures, `shown` its threshold, itself noisy if `bar`."""

    family: str
    answers: str
    on: str = "each running count"
    shown: str = "an item is shown once its noisy count is above, and then stays shown"
    bar: bool = False


_of_tick = partial(Kind, "tick", on="each count of the tick itself", shown=_OF_TICKS)
_of_blocks = partial(Kind, "running", shown=_OF_BLOCKS)
_statistic = partial(Kind, "statistic", on=_ANSWER)

# In comparison order.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "known_base": Kind("running", "running counts of every declared label"),
        "unk_base": Kind(
            "running", "running counts of labels that passed the threshold"
        ),
        "sparse_gumb": Kind("running", "running counts of a top k of declared labels"),
        "misra_gries": _of_blocks(
            "running counts of frequent labels, too low by up to a share of all",
            on="a count that all its blocks show; what the sketch leaves out comes on top",
        ),
        "meta": _of_blocks(
            "running counts as sums of one-shot releases",
            on="a count that all its blocks show",
        ),
        "known_gauss": _of_tick("each tick's counts of every declared label"),
        "known_gumbel": _of_tick("each tick's top k of declared labels"),
        "positive_gauss": _of_tick(_PASSED),
        "positive_laplace": _of_tick(_PASSED),
        "unk_gauss": _of_tick(_CLEARLY, shown=_OVER_A_BAR, bar=True),
        "limit_dom": _of_tick("each tick's top k, fewer where they are not clear"),
        "limit_dom_laplace": _of_tick(_CLEARLY, shown=_OVER_A_BAR, bar=True),
        "pay_what_you_get": Kind(
            "labels",
            "labels of the largest so far, without counts",
            "the comparison of two items that decides a pick",
        ),
        "bounded_max": _statistic("one order statistic, a bound on it known"),
        "doubling": _statistic("one order statistic, its order of magnitude"),
        "two_level": _statistic("one order statistic, no bound known"),
        "two_level_k": _statistic("several order statistics"),
    }
)


def alternatives_to(name: str) -> tuple[str, ...]:
    """Return the mechanisms for the same or a similar question, this one included."""
    family = KINDS[name].family
    if family == "labels":
        return ("unk_base", "sparse_gumb", "misra_gries", "limit_dom")
    further = {"tick": ("unk_base", "known_base"), "statistic": ("known_base",)}.get(
        family, ()
    )
    return (*(name for name, kind in KINDS.items() if kind.family == family), *further)


Ticks = NDArray[np.int64]

_ROUNDING = 1 / 12


class Curve:
    """The variance of the published figures at each tick; `mean` averages ticks 1..last."""

    def variance(self, ticks: Ticks) -> Floats:
        raise NotImplementedError

    def mean(self, last: int) -> float:
        raise NotImplementedError

    def noisiest(self, last: int) -> Ticks:
        """Return ticks up to `last` of largest variance, largest first; at least one."""
        ticks = self._candidates(last)
        return ticks[np.argsort(-self.variance(ticks), kind="stable")]

    def _candidates(self, last: int) -> Ticks:
        raise NotImplementedError


class LiftedCurve(Curve):
    """`lifted`: the variance of its noise, and of rounding."""

    def __init__(self, exact: LiftedVariance) -> None:
        self._exact = exact

    def variance(self, ticks: Ticks) -> Floats:
        return self._exact.at(ticks) + _ROUNDING

    def _candidates(self, last: int) -> Ticks:
        return self._exact.candidates(last)

    def mean(self, last: int) -> float:
        return self._exact.mean(last) + _ROUNDING


class DigitCurve(Curve):
    """`tree` and mechanisms that add up its cells: sum_j d_j sigma_j^2 plus rounding."""

    def __init__(
        self, radix: int, variances: Sequence[float], *, rounding: float = 0.0
    ) -> None:
        self.radix = radix
        self.levels = len(variances)
        self._variances = variances
        self._rounding = rounding

    def variance(self, ticks: Ticks) -> Floats:
        total = np.full(len(ticks), self._rounding)
        rest = ticks
        for variance in self._variances:
            total += (rest % self.radix) * variance
            rest = rest // self.radix
        return total

    def _candidates(self, last: int) -> Ticks:
        return np.array(Tree(last, self.radix).fullest(), dtype=np.int64)

    def mean(self, last: int) -> float:
        total = self._rounding
        for level, variance in enumerate(self._variances):
            width = self.radix**level
            cycles, rest = divmod(last + 1, width * self.radix)
            digit, more = divmod(rest, width)
            whole = (self.radix * (self.radix - 1) // 2) * width
            digits = cycles * whole + digit * (digit - 1) // 2 * width + digit * more
            total += variance * (digits / last)
        return total


class TableCurve(Curve):
    """Variances of the first ticks; later ticks have the last one."""

    def __init__(self, variances: Floats) -> None:
        self._variances = variances

    def variance(self, ticks: Ticks) -> Floats:
        found: Floats = self._variances[np.minimum(ticks, len(self._variances)) - 1]
        return found

    def _candidates(self, last: int) -> Ticks:
        return np.arange(1, min(last, len(self._variances)) + 1)

    def mean(self, last: int) -> float:
        own = self._variances[:last]
        return float((own.sum() + self._variances[-1] * (last - len(own))) / last)


def counter_of(mechanism: Mechanism) -> dict[str, Any]:
    """Return the public parameters of a mechanism's counter; empty without one."""
    found = mechanism.public().get("counter")
    return found if isinstance(found, dict) else {}


def curve_of(counter: Mapping[str, Any]) -> Curve:
    if counter["kind"] == "lifted":
        pairs = [
            (_float(inside), _float(edge)) for inside, edge in counter["sigma_squared"]
        ]
        return LiftedCurve(LiftedVariance(pairs, counter["offset"]))
    if counter["kind"] == "tree":
        return DigitCurve(counter["radix"], variances(counter), rounding=_ROUNDING)
    k = np.arange(1, counter["horizon"], dtype=np.float64)
    factors = np.cumprod(np.concatenate(([1.0], (2 * k - 1) / (2 * k))))
    of_ticks = np.cumsum(factors**2) * _float(counter["sigma_squared"]) + _ROUNDING
    return TableCurve(of_ticks.astype(np.float64))


def _float(value: str) -> float:
    return float(Fraction(value))


def variances(counter: Mapping[str, Any]) -> list[float]:
    values = counter["sigma_squared"]
    if not isinstance(values, list):
        raise TypeError(f"sigma_squared = {values!r}: not a list")
    return [float(Fraction(value)) for value in values]


YEAR_MS = 365 * 86_400_000
COUNT_LAWS = ("gaussian", "laplace")
NORMAL_95 = 1.959963984540054
NORMAL_ONE_SIDE_95 = 1.6448536269514722
BUCKETS = 64
# Up to this many ticks, compute every threshold: about 0.1 ms each (measured).
_EVERY_TICK = 1024
_MEAN_TICKS = 1 << 16
# Solving a constant threshold takes every tick: 0.1 s at this horizon (measured).
CONSTANT_MOST = 1 << 16
_WINDOW_TICKS = 512
# Below this, noise is mostly 0 and the closed form of the mean |noise| does not hold.
_NARROW_SD = 0.5
_SD_DIGITS = 4  # as a snapshot has it


def blocks_of(mechanism: Mechanism) -> DigitCurve | None:
    """Return the curve of a mechanism that adds up blocks of ticks, each with its own threshold."""
    if isinstance(mechanism, Meta):
        return DigitCurve(mechanism.radix, [mechanism.sd(1) ** 2] * mechanism.levels)
    if isinstance(mechanism, MisraGries):
        tree = mechanism.tree
        of_blocks = [mechanism.cell_variance] * mechanism.tree.levels
        return DigitCurve(tree.radix, of_blocks, rounding=mechanism.rounding)
    return None


def last_tick(config: HistogramConfig) -> int:
    """Return the horizon; if unbounded, the last tick of the first year, at least 1,024."""
    if config.horizon_ticks is not None:
        return config.horizon_ticks
    return min(max(YEAR_MS // config.tick_ms, 1024), 1 << 39)


def curve(mechanism: Mechanism, last: int) -> Curve:
    """Return the variance of a mechanism's published figures by tick."""
    if blocks := blocks_of(mechanism):
        return blocks
    ticks = 1
    if isinstance(mechanism, OrderStatistics):
        ticks = min(
            mechanism.segments.most if mechanism.segments is not None else 1, last
        )
    elif counter := counter_of(mechanism):
        return curve_of(counter)
    return TableCurve(np.array([mechanism.sd(t) ** 2 for t in range(1, ticks + 1)]))


def worst_and_rms(curve: Curve, last: int) -> tuple[float, float]:
    return math.sqrt(curve.variance(curve.noisiest(last)[:1])[0]), math.sqrt(
        curve.mean(last)
    )


def noise_of(mechanism: Mechanism, config: HistogramConfig) -> Noise:
    """Return the noise of a histogram over its ticks, and of changes over its windows."""
    last = last_tick(config)
    variance = curve(mechanism, last)
    worst = int(variance.noisiest(last)[0])
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


def _changes(
    mechanism: Mechanism, config: HistogramConfig, last: int
) -> Iterator[Change]:
    if not isinstance(mechanism, Differences):
        return
    for length in config.windows:
        window = min(length // config.tick_ms, last)
        ticks = _spaced(window, last, _WINDOW_TICKS).tolist()
        sds = [mechanism.difference_sd(t, t - window) for t in ticks]
        apart = [
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
            apart_sd=math.sqrt(sum(apart) / len(apart)),
        )


def _spaced(first: int, last: int, most: int) -> Ticks:
    return np.unique(
        np.linspace(first, last, min(last - first + 1, most)).astype(np.int64)
    )


def mean_absolute_error(law: str, sd: float) -> float | None:
    """Return E|noise|; None if the law is not one of counts."""
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
    if law == "laplace":
        q = laplace_q(sd)
        return max(0.0, math.log(0.05 * (1 + q) / 2) / math.log(q))
    return NORMAL_95 * sd if law == "gaussian" else None


def worst_of_all(law: str, sd: float, counts: int, beta: float) -> float:
    """Bound the error of all counts at once, of at most this sd, with probability 1 - beta."""
    if law == "laplace":
        q = laplace_q(sd)
        return math.log(2 * counts / (beta * (1 + q))) / -math.log(q)
    return sd * math.sqrt(2 * math.log(2 * counts / beta)) + 0.5


def mean_over_ticks(mechanism: Mechanism, last: int) -> float | None:
    """Return the mean absolute error over all ticks, or over 65,536 evenly spaced ones."""
    if mechanism.law not in COUNT_LAWS:
        return None
    ticks = _spaced(1, last, _MEAN_TICKS)
    sds = np.sqrt(curve(mechanism, last).variance(ticks))
    values, times = np.unique(np.round(sds, 9), return_counts=True)
    errors = [mean_absolute_error(mechanism.law, sd) or 0.0 for sd in values.tolist()]
    return float(np.dot(errors, times) / len(ticks))


def laplace_q(sd: float) -> float:
    variance = sd * sd
    return ((variance + 1) - math.sqrt(2 * variance + 1)) / variance


def chosen_ticks(config: HistogramConfig, last: int, worst: int) -> list[int]:
    """Return powers of two (four, ...), the quarters, the last and the worst tick."""
    step = max(1, math.ceil(last.bit_length() / 7))
    ticks = {1 << bit for bit in range(0, last.bit_length(), step)}
    ticks |= {last // 4, last * 2 // 4, last * 3 // 4, last, worst}
    if every := discovery_step(config):
        ticks |= {every, last // every * every}
    return sorted(ticks - {0})


def discovery_step(config: HistogramConfig) -> int | None:
    """Return the step between ticks that may show new items; None if every tick may."""
    return config.every if isinstance(config, UnkBaseConfig) else None


def thresholds_of(
    mechanism: Mechanism, config: HistogramConfig, noise: Noise
) -> Thresholds | None:
    """Return the thresholds over all ticks; if many, over the noisiest and evenly spaced ones."""
    last = noise.ticks_looked_at
    variance = curve(mechanism, noise.ticks_looked_at)
    every = discovery_step(config) or 1
    if mechanism.threshold(last // every * every) is None:
        return None
    if last // every <= _EVERY_TICK:
        ticks = list(range(every, last + 1, every))
    else:
        noisiest: NDArray[np.int64] = variance.noisiest(last)[: _EVERY_TICK // 8]
        even = np.linspace(1, last // every, _EVERY_TICK // 4).astype(np.int64) * every
        shown = np.array([tick.tick for tick in noise.ticks], dtype=np.int64)
        near = np.maximum(np.concatenate((noisiest, shown)) // every * every, every)
        ticks = np.unique(np.concatenate((near, even))).tolist()
    found = [
        (value, tick)
        for tick in ticks
        if (value := mechanism.threshold(tick)) is not None
    ]
    most, tick = max(found, key=lambda pair: (pair[0], -pair[1]))
    values, at = (
        np.array(column, dtype=np.int64) for column in zip(*found, strict=True)
    )
    kind = KINDS[mechanism.kind]
    # Use the deciding noise: blocks decide separately, and a bar has its own noise.
    deciding = np.sqrt(
        variance.variance(np.ones_like(at) if blocks_of(mechanism) else at)
    )
    needed = values + NORMAL_ONE_SIDE_95 * (
        deciding * (math.sqrt(2) if kind.bar else 1.0)
    )
    return Thresholds(
        meaning=kind.shown,
        least=float(min(found)[0]),
        most=float(most),
        most_tick=tick,
        ticks_computed=len(found),
        likely_from=math.ceil(float(needed.max())),
    )


def _tick(mechanism: Mechanism, t: int) -> Tick:
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
    """Split 1..last into up to 64 ranges, equally wide up to 4,096 ticks, else geometric."""
    spread: Callable[..., NDArray[np.float64]] = (
        np.linspace if last <= 4096 else np.geomspace
    )
    edges = np.unique(np.round(spread(1, last + 1, BUCKETS + 1)).astype(np.int64))
    firsts = edges[:-1].tolist()
    lasts = (edges[1:] - 1).tolist()
    ticks = [_spaced(*ends, 256) for ends in zip(firsts, lasts, strict=True)]
    begins = np.cumsum([0, *map(len, ticks[:-1])])
    # In one call: numpy's cost is a call's, not an element's.
    sds = np.sqrt(variance.variance(np.concatenate(ticks)))
    least, most = (of.reduceat(sds, begins).tolist() for of in (np.minimum, np.maximum))
    columns = zip(firsts, lasts, least, most, strict=True)
    return tuple(
        Bucket(first=i, last=j, least=low, most=high) for i, j, low, high in columns
    )
