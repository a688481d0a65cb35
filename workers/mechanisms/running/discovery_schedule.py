"""One discovery threshold for all ticks, beside `discovery.Discovery`'s equal shares of delta.

Why valid: it is fixed before any data, and D0 sum_t P(X_t >= x_t) <= delta (union bound).

    Symbol          Here
    X_t, x_t, m     as in `discovery`; m is the smallest integer with D0 sum_t tail_t(m + 1/2 -
                    Dinf) <= delta
    tail_t(x)       the smaller of the bounds (a), (b) of `discovery` on P(X_t >= x)
    v_t, q_t        sum_j c_j^2 sigma_j^2 and sum_j c_j^2 at t

The bounds rise with v_t, q_t and the theta of t. So ticks of nearly equal v_t (one part in a
thousand) are taken together, each group with its largest figures: the sum is bounded from above,
and costs the same for any horizon. The normal tail is bounded by Q(z) <= phi(z) 4 / (3 z + sqrt(z^2
+ 8)) for z > 0 (Sampford 1953), within 0.2 % of it for z > 4.

Source: 000 Alg. 3 (the union bound admits any public schedule); mechanisms.md 3.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.counters.levels import Counter, check_tick
from workers.mechanisms.running.discovery import _OUTWARD, _SHIFTS, _SMOOTHING_VARIANCES, Discovery, constants_of
from workers.runtime.frozen import kept, read_only

_CHUNK_TICKS = 1 << 14
_GROUPS_PER_OCTAVE = 700  # of the variance: 0.1 % each
# Far above what numpy's exp and sqrt lose over a sum of this length.
_SUM_OUTWARD = 1 + 1e-9

Floats = NDArray[np.float64]


@kept(256)
def make_discovery(
    counter: Counter, max_items: int, max_count: int, delta: float, schedule: str = "per_tick", every: int | None = None
) -> Discovery:
    """Return thresholds by a schedule, "per_tick", "constant" or "every"; equal ones are one.

    Raises:
        ValueError: a parameter is outside its range.
    """
    if (every is not None) is not (schedule == "every"):
        raise ValueError(f"every = {every}: exactly with schedule 'every', here {schedule!r}")
    if schedule == "constant":
        return ConstantDiscovery(counter, max_items, max_count, delta)
    if schedule not in ("per_tick", "every"):
        raise ValueError(f"schedule = {schedule!r}: must be one of per_tick, constant, every")
    return Discovery(counter, max_items, max_count, delta, every)


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

    def __init__(self, counter: Counter, max_items: int, max_count: int, delta: float) -> None:
        super().__init__(counter, max_items, max_count, delta)
        if counter.horizon is None:
            raise ValueError("horizon = unbounded: a constant threshold needs a number of ticks")
        self._horizon = counter.horizon
        # Tree noise is an integer at every tick: it reaches m + 1/2 - Dinf only at m + 1 - Dinf.
        self._margin = 1.0 if counter.kind == "tree" else 0.5
        self._groups = _grouped(self._noise_of(first) for first in range(1, self._horizon + 1, _CHUNK_TICKS))
        self._threshold = self._solve()

    def public(self) -> dict[str, object]:
        return super().public() | {"schedule": "constant"}

    def delta_at(self, t: int) -> float:
        """Return the bound on what tick t spends on one item."""
        check_tick("discovery", t, self._horizon)
        return float(_tails(self._noise_of(t, 1), self._threshold + self._margin - self.max_count)[0])

    def threshold(self, t: int) -> int:
        check_tick("discovery", t, self._horizon)
        return self._threshold

    def _solve(self) -> int:
        """Return the smallest valid threshold, by bisection: every step keeps `high` valid."""

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
        """Return the noise of some ticks, by the counter's public parameters or its terms."""
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

        public: Mapping[str, Any] = self.counter.public()
        sigmas = [Fraction(text) for text in public["sigma_squared"]] if self.counter.kind != "sqrt" else []
        if self.counter.kind == "tree":
            rest = t.copy()
            for sigma_squared in sigmas:
                digit = (rest % public["radix"]).astype(np.float64)
                add((digit > 0).astype(np.float64), digit, sigma_squared)
                rest //= public["radix"]
        elif self.counter.kind == "haar":
            one, place = np.ones(len(t)), t + public.get("offset", 0)
            for level, sigma_squared in enumerate(sigmas[1:], start=1):
                inside = place & ((1 << level) - 1)
                add(np.minimum(inside, (1 << level) - inside) / 2.0**level, one, sigma_squared)
            add(place / 2.0 ** (len(sigmas) - 1), one, sigmas[0])
        else:
            for row, tick in enumerate(t.tolist()):
                hot = np.zeros(len(t))
                hot[row] = 1.0
                for coefficient, sigma_squared in self.counter.terms(tick):
                    add(float(coefficient) * hot, hot, sigma_squared)
        return _Noise(variance * _OUTWARD, square * _OUTWARD, log_theta * _OUTWARD, np.ones(len(t)))


def _tails(noise: _Noise, x: float) -> Floats:
    """Return a bound on P(X >= x) for each group, at most 1."""
    smallest = np.ones(len(noise.variance))
    if x <= 0:
        return smallest
    np.minimum(smallest, np.exp(-x * x / (2 * noise.variance)), out=smallest)
    for column, smoothing in enumerate(_SMOOTHING_VARIANCES):
        added = smoothing * noise.square
        sd_all = np.sqrt(noise.variance + added)
        factor = np.exp(np.minimum(noise.log_theta[:, column], 700.0))
        for shift, remains in _SHIFTS:
            z = (x - shift * np.sqrt(added)) / sd_all
            np.minimum(smallest, factor * _normal_tail(z) / remains, out=smallest)
    return np.minimum(smallest * _OUTWARD, 1.0)


def _normal_tail(z: Floats) -> Floats:
    """Return an upper bound on P(N(0, 1) > z): Sampford's above 0, and 1 below."""
    above = np.maximum(z, 0.0)
    density = np.exp(-above * above / 2) / math.sqrt(2 * math.pi)
    return np.where(z > 0, density * 4 / (3 * above + np.sqrt(above * above + 8)), 1.0)


def _grouped(parts: Iterator[_Noise]) -> _Noise:
    """Take ticks of nearly equal variance together, in each part and then in all."""
    groups = [_group(part) for part in parts]
    joined = (np.concatenate([getattr(one, column.name) for one in groups]) for column in fields(_Noise))
    return _group(_Noise(*joined))


def _group(noise: _Noise) -> _Noise:
    """Return a row for each variance up to 0.1 %, with the largest figures of those it replaces."""
    names = np.floor(np.log2(noise.variance) * _GROUPS_PER_OCTAVE)
    order = np.argsort(names, kind="stable")
    starts = np.flatnonzero(np.diff(names[order], prepend=names[order][0] - 1))
    columns = (noise.variance, noise.square, noise.log_theta)
    variance, square, log_theta = (read_only(np.maximum.reduceat(column[order], starts)) for column in columns)
    return _Noise(variance, square, log_theta, read_only(np.add.reduceat(noise.ticks[order], starts)))
