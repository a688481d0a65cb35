"""How discovery is spread over the ticks, beside `discovery.Discovery`'s equal share for every tick.

What: two further public schedules. "constant" tests every tick against one threshold; "every" tests only each n-th tick, and so
spends a share n times as large there. With the haar counter and n a power of two, those ticks also have the least noise: the levels up
to n contribute nothing at a multiple of n.
Why valid: whether an item is tested at t, and against what, is fixed before any data, and D0 sum_t P(X_t >= x_t) <= delta (union
bound over the ticks that test; a tick that does not test shows no new item with any probability).

    Symbol          Here
    n               `every`
    X_t, x_t, m     as in `discovery`; a constant m is the smallest integer with D0 sum_t tail_t(m + 1/2 - Dinf) <= delta
    tail_t(x)       the smaller of the two bounds (a), (b) of `discovery` on P(X_t >= x), as a function of x
    v_t, q_t        sum_j c_j^2 sigma_j^2 and sum_j c_j^2 at t

The bounds rise with v_t, q_t and the theta of t. So ticks of nearly equal v_t (one part in a thousand) are taken together, each group
with its largest figures: the sum is bounded from above, and costs the same for any horizon. The normal tail is bounded by
Q(z) <= phi(z) 4 / (3 z + sqrt(z^2 + 8)) for z > 0 (Sampford 1953), within 0.2 % of it for z > 4.

Source: 000 Alg. 3 (the union bound admits any public schedule); mechanisms.md 3.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.counters.counter import Counter
from workers.mechanisms.counters.noise_columns import check_tick
from workers.mechanisms.frozen import read_only
from workers.mechanisms.running.discovery import (
    _LAST_TICK,
    _OUTWARD,
    _SHIFTS,
    _SMOOTHING_VARIANCES,
    Discovery,
    constants_of,
)

SCHEDULES = ("per_tick", "constant", "every")

_CHUNK_TICKS = 1 << 14
_GROUPS_PER_OCTAVE = 700  # of the variance: 0.1 % each
# Far above what numpy's exp and sqrt lose over a sum of this length.
_SUM_OUTWARD = 1 + 1e-9

Floats = NDArray[np.float64]


def make_discovery(
    counter: Counter, max_items: int, max_count: int, delta: float, schedule: str = "per_tick", every: int | None = None
) -> Discovery:
    """The thresholds of one histogram by one of SCHEDULES; see `Discovery`.

    Raises:
        ValueError: a parameter is outside its range.
    """
    if (every is not None) is not (schedule == "every"):
        raise ValueError(f"every = {every}: exactly with schedule 'every', here {schedule!r}")
    if schedule == "per_tick":
        return Discovery(counter, max_items, max_count, delta)
    if schedule == "constant":
        return ConstantDiscovery(counter, max_items, max_count, delta)
    if schedule == "every" and every is not None:
        return EveryDiscovery(counter, max_items, max_count, delta, every)
    raise ValueError(f"schedule = {schedule!r}: must be one of {', '.join(SCHEDULES)}")


class EveryDiscovery(Discovery):
    """New items only at the ticks n, 2n, 3n, ...; `threshold` and `delta_at` are those ticks' own.

    Args:
        every: n, from 1 to the horizon.

    Raises:
        ValueError: a parameter is outside its range.
    """

    schedule = "every"

    def __init__(self, counter: Counter, max_items: int, max_count: int, delta: float, every: int) -> None:
        super().__init__(counter, max_items, max_count, delta)
        if every < 1 or (counter.horizon is not None and every > counter.horizon):
            raise ValueError(f"every = {every}: must be from 1 to the horizon, {counter.horizon or 'unbounded'}")
        self.every = every

    def public(self) -> dict[str, object]:
        return super().public() | {"every": self.every}

    def discovers(self, t: int) -> bool:
        return t % self.every == 0

    def delta_at(self, t: int) -> float:
        """What tick t may spend on one item, 0 where nothing is tested."""
        horizon = self.counter.horizon
        check_tick("discovery", t, _LAST_TICK if horizon is None else horizon)
        if not self.discovers(t):
            return 0.0
        return self._share(t // self.every, None if horizon is None else horizon // self.every)

    def threshold(self, t: int) -> int:
        """m_t of a tick that tests.

        Raises:
            ValueError: t is not a multiple of `every`.
        """
        if not self.discovers(t):
            raise ValueError(f"t = {t}: discovery only at multiples of {self.every}")
        return super().threshold(t)


@dataclass(frozen=True, slots=True)
class _Noise:
    """Upper bounds on what the tails of groups of ticks depend on.

    Attributes:
        variance: (n,), of v_t.
        square: (n,), of q_t.
        log_theta: (n, smoothing variances).
        ticks: (n,), how many ticks.
    """

    variance: Floats
    square: Floats
    log_theta: Floats
    ticks: Floats


class ConstantDiscovery(Discovery):
    """One threshold for all ticks: the smallest whose tails add up to no more than delta.

    Raises:
        ValueError: a parameter is outside its range, or the horizon is unbounded.
    """

    schedule = "constant"

    def __init__(self, counter: Counter, max_items: int, max_count: int, delta: float) -> None:
        super().__init__(counter, max_items, max_count, delta)
        if counter.horizon is None:
            raise ValueError("horizon = unbounded: a constant threshold needs a number of ticks")
        self._horizon = counter.horizon
        # Tree noise is an integer at every tick: it reaches m + 1/2 - Dinf only at m + 1 - Dinf.
        self._margin = 1.0 if counter.kind == "tree" else 0.5
        self._groups = _grouped(self._noise_of(first) for first in range(1, self._horizon + 1, _CHUNK_TICKS))
        self._threshold = self._solve()

    def delta_at(self, t: int) -> float:
        """The bound on what tick t spends on one item."""
        check_tick("discovery", t, self._horizon)
        return float(_tails(self._noise_of(t, 1), self._threshold + self._margin - self.max_count)[0])

    def threshold(self, t: int) -> int:
        check_tick("discovery", t, self._horizon)
        return self._threshold

    def _solve(self) -> int:
        """By bisection; every step keeps `high` valid."""

        def valid(threshold: int) -> bool:
            tails = _tails(self._groups, threshold + self._margin - self.max_count)
            return self.max_items * float(tails @ self._groups.ticks) * _SUM_OUTWARD <= self.delta

        low, high = self.max_count - 1, 2 * self.max_count
        while not valid(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if valid(middle) else (middle, high)
        return high

    def _noise_of(self, first: int, ticks: int = _CHUNK_TICKS) -> _Noise:
        """Ticks first, first + 1, ..., at most so many, each for itself; from the counter's public parameters, or else its terms."""
        t = np.arange(first, min(first + ticks, self._horizon + 1), dtype=np.int64)
        variance, square = np.zeros(len(t)), np.zeros(len(t))
        log_theta = np.zeros((len(t), len(_SMOOTHING_VARIANCES)))

        def add(coefficient: Floats, times: Floats, sigma_squared: Fraction) -> None:
            constants = constants_of(sigma_squared)
            variance[:] += times * coefficient**2 * constants[0]
            square[:] += times * coefficient**2
            there = np.where(coefficient > 0, times, 0.0)
            # A term that is not there adds 0, also where theta has no bound (inf).
            for column, value in enumerate(constants[1:]):
                log_theta[there > 0, column] += there[there > 0] * value

        public = self.counter.public()
        if self.counter.kind == "tree":
            radix, sigmas = _integer(public["radix"]), _fractions(public["sigma_squared"])
            rest = t.copy()
            for sigma_squared in sigmas:
                digit = (rest % radix).astype(np.float64)
                add((digit > 0).astype(np.float64), digit, sigma_squared)
                rest //= radix
        elif self.counter.kind == "haar":
            one = np.ones(len(t))
            sigmas = _fractions(public["sigma_squared"])
            for level, sigma_squared in enumerate(sigmas[1:], start=1):
                inside = t & ((1 << level) - 1)
                add(np.minimum(inside, (1 << level) - inside) / 2.0**level, one, sigma_squared)
            add(t / 2.0 ** (len(sigmas) - 1), one, sigmas[0])
        else:
            for row, tick in enumerate(t.tolist()):
                hot = np.zeros(len(t))
                hot[row] = 1.0
                for coefficient, sigma_squared in self.counter.terms(tick):
                    add(float(coefficient) * hot, hot, sigma_squared)
        return _Noise(variance * _OUTWARD, square * _OUTWARD, log_theta * _OUTWARD, np.ones(len(t)))


def _tails(noise: _Noise, x: float) -> Floats:
    """A bound on P(X >= x) for each group, at most 1."""
    smallest = np.ones(len(noise.variance))
    if x <= 0:
        return smallest
    np.minimum(smallest, np.exp(-x * x / (2 * noise.variance)), out=smallest)
    for column, smoothing in enumerate(_SMOOTHING_VARIANCES):
        added = smoothing * noise.square
        sd_all = np.sqrt(noise.variance + added)
        factor = np.exp(np.minimum(noise.log_theta[:, column], 700.0))
        for shift, kept in _SHIFTS:
            z = (x - shift * np.sqrt(added)) / sd_all
            np.minimum(smallest, factor * _normal_tail(z) / kept, out=smallest)
    return np.minimum(smallest * _OUTWARD, 1.0)


def _normal_tail(z: Floats) -> Floats:
    """An upper bound on P(N(0, 1) > z): Sampford's above 0, and 1 below."""
    above = np.maximum(z, 0.0)
    density = np.exp(-above * above / 2) / math.sqrt(2 * math.pi)
    return np.where(z > 0, density * 4 / (3 * above + np.sqrt(above * above + 8)), 1.0)


def _grouped(parts: Iterator[_Noise]) -> _Noise:
    """Ticks of nearly equal variance together, each figure the largest of its group's."""
    groups: dict[int, tuple[float, float, Floats, float]] = {}
    for part in parts:
        names = np.floor(np.log2(part.variance) * _GROUPS_PER_OCTAVE).astype(np.int64)
        order = np.argsort(names, kind="stable")
        starts = np.flatnonzero(np.diff(names[order], prepend=names[order][0] - 1))
        variance = np.maximum.reduceat(part.variance[order], starts)
        square = np.maximum.reduceat(part.square[order], starts)
        log_theta = np.maximum.reduceat(part.log_theta[order], starts, axis=0)
        ticks = np.add.reduceat(part.ticks[order], starts)
        for row, name in enumerate(names[order][starts].tolist()):
            found = groups.get(name, (0.0, 0.0, np.zeros(log_theta.shape[1]), 0.0))
            groups[name] = (
                max(found[0], float(variance[row])),
                max(found[1], float(square[row])),
                np.maximum(found[2], log_theta[row]),
                found[3] + float(ticks[row]),
            )
    rows = list(groups.values())
    return _Noise(
        read_only(np.array([row[0] for row in rows])),
        read_only(np.array([row[1] for row in rows])),
        read_only(np.array([row[2] for row in rows])),
        read_only(np.array([row[3] for row in rows])),
    )


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r}: not a whole number")
    return value


def _fractions(value: object) -> list[Fraction]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r}: not a list")
    return [Fraction(text) for text in value]
