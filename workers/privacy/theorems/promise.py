"""What a promise about accuracy is, and the tails that all of them are made from.

Neighbours, costs and noise are those of `workers.mechanisms`; nothing here changes a release.
Figures are floats: they state an error, they do not make one.

    Symbol      Here
    beta        probability that a promise fails, over an epoch of one stream key
    T, d        ticks, labels
    tau         the papers' noise at this budget: known budget rho, tau^2 = D0 Dinf^2 / (2 rho)
    s_j^2       variance of level j of a counter
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

from workers.mechanisms.budget import DISCOVERY_SHARE
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.tree import digits_of
from workers.mechanisms.mechanism import Mechanism
from workers.privacy.plan.curves import DigitCurve, curve_of, variances

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What a promise assumes about the data; where data break it, privacy holds all the same.

    Attributes:
        items: labels that occur, for an unknown domain (a declared one has its own number).
        value: most that a watched value reaches (order statistics without a bound).
        weight: all counts of an epoch together (sketches).
        ticks: ticks looked at where the horizon is unbounded.
    """

    items: int = 1_000
    value: int = 1_000
    weight: int = 100_000
    ticks: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("items", "value", "weight", "ticks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """An error that is not passed, with probability 1 - beta.

    Attributes:
        name: which error: "counts", "hidden", "selection" or "answer".
        bounds: the same in words.
        assumes: what of the data, in words; empty where nothing.
        beta: probability that it is passed somewhere.
        printed: for the paper's own algorithm, accounting and constants, at the same settings;
            infinite where it promises nothing.
        ours: for what is built here.
        source: paper and theorem.
    """

    name: str
    bounds: str
    assumes: str
    beta: float
    printed: float
    ours: float
    source: str


def paper_rho(config: HistogramConfig, *, discovers: bool) -> float:
    """Return the zCDP by the papers' conversion, rho + 2 sqrt(rho ln(1/delta)), or `rho`."""
    if config.rho is not None:
        return config.rho
    log = -math.log(config.delta * (1 - (DISCOVERY_SHARE if discovers else 0.0)))
    return (math.sqrt(log + (config.epsilon or 0.0)) - math.sqrt(log)) ** 2


def ticks_of(config: HistogramConfig, data: Data) -> int:
    """Return T."""
    return config.horizon_ticks or data.ticks


def normal_bound(variance: float, values: float, beta: float) -> float:
    """Bound all |sub-Gaussian values|: P(|X| > x) <= 2 exp(-x^2 / (2 v)) each (000 Theorem 2)."""
    return math.sqrt(2 * variance * math.log(2 * values / beta))


def laplace_bound(scale: float, values: float, beta: float) -> float:
    """Bound all |Laplace values| of this scale: P(|X| > x) = exp(-x / b) each (001 Fact 6)."""
    return scale * math.log(values / beta)


def laplace_sum(terms: int, scale: float, values: float, beta: float) -> float:
    """Bound all |sums of `terms` Laplace values| (001 Lemma 2)."""
    log = math.log(2 * values / beta)
    return 2 * scale * math.sqrt(2 * log) * max(math.sqrt(terms), math.sqrt(log))


def subset_bound(variance: float, terms: int, values: float, beta: float) -> float:
    """Bound the sums over every subset of `terms` values, in every group, by a union over 2^terms.

    Cells show an item when its noise is high, so which of them do depends on the noise.
    """
    return math.sqrt(2 * terms * variance * (terms * math.log(2) + math.log(2 * values / beta)))


def most_blocks(ticks: int, radix: int) -> int:
    """Return the most blocks that are added at any t <= ticks: the largest sum of base-r digits."""
    digits = DigitCurve(radix, [1.0] * digits_of(ticks, radix))
    return int(digits.variance(digits.loudest(ticks)[:1])[0])


def tree_variance(tau_squared: float, ticks: int, radix: int) -> float:
    """Return (r - 1) L_r^2 tau^2 (000 Theorem 2)."""
    return float((radix - 1) * digits_of(ticks, radix) ** 2) * tau_squared


def worst_variance(mechanism: Mechanism, ticks: int) -> float:
    """Return at least the largest variance of the counter at any tick, at most about a fifth more.

    haar: with c_j = min(m_j, 2^j - m_j) / 2^j, c_(j-1) is 2 c_j below 1/4 and 1 - 2 c_j above, and
    c_0 = 0. For phi(y) = 4 y / 9 - y^2 / 3 that gives c_j^2 <= 1/9 + phi(c_j) - phi(c_(j-1)) (equal
    above 1/4). Weighted with s_j^2, which never fall with j, and phi >= 0, the sum up to level J is
    at most sum_j s_j^2 / 9 + s_J^2 phi(c_J). Levels of blocks twice as long as `ticks` or more have
    c_j = t / 2^j.
    tree: the digits of the worst t. sqrt: the variance never falls with t.
    """
    counter = mechanism.public()["counter"]
    if not isinstance(counter, dict):
        raise TypeError(f"counter = {counter!r}: not a counter's parameters")
    if counter["kind"] == "sqrt":
        return mechanism.sd(ticks) ** 2
    if counter["kind"] == "tree":
        worst = curve_of(counter)
        return float(worst.variance(worst.loudest(ticks)[:1])[0])
    total, *levels = variances(counter)
    if not levels:
        return total
    height = min(ticks.bit_length(), len(levels))
    below = sum(levels[:height]) / 9
    beyond = sum(s2 * (ticks / 2.0**j) ** 2 for j, s2 in enumerate(levels, start=1) if j > height)
    share = ticks / 2.0 ** len(levels)
    whole = total * share**2
    if counter["horizon"] is not None and height == len(levels):
        # phi(c) and the total's share grow together in t up to the horizon, for weights 1 and 2.
        rest = min(1 - share, share)
        return below + levels[-1] * (4 * rest / 9 - rest**2 / 3) + whole
    return below + levels[height - 1] * 5 / 36 + beyond + whole


def normal_quantile(tail: float) -> float:
    """Return PhiInv(1 - tail); 1 - tail as a float would lose a small tail."""
    return -_NORMAL.inv_cdf(tail)


def discovery_delta(mechanism: Mechanism) -> float:
    """Return what may be spent on showing labels that are there because of one event."""
    return dict(mechanism.cost().deltas).get("discovery", 0.0)


def scales(mechanism: Mechanism) -> list[float]:
    """Return the published scales of a mechanism that chooses, in their order."""
    found = mechanism.public()["scales"]
    if not isinstance(found, list):
        raise TypeError(f"scales = {found!r}: not a list")
    return [float(Fraction(text)) for text in found]


def bottom_of(public: Mapping[str, object]) -> int | None:
    """Return BOTTOM's height above h_(kbar+1), from a mechanism's or an algorithm's parameters."""
    bottom, algorithm = public.get("bottom"), public.get("algorithm")
    if isinstance(bottom, dict):
        return int(bottom["above"])
    return bottom_of(algorithm) if isinstance(algorithm, dict) else None
