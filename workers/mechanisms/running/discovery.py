"""Discovery thresholds for UnkBase: the noisy count above which a tick may show a new item.

An item of true count at most Dinf (one event's contribution) is shown at tick t with probability at
most delta_t, in total at most delta over all ticks and the event's D0 items. Neighbours are as in
`accounting`.

    Symbol          Here
    D0, Dinf        `max_items`, `max_count`
    delta_t         `delta_at(t)`: delta / (D0 T), or unbounded delta 6 / (pi^2 (1 + k)^2 2^k D0),
                    k = floor(log2 t); with `every` = n only the ticks n, 2n, ... test, the first as
                    test 1: then T and t count tests. With haar and n a power of two these ticks
                    have the least noise: levels up to n contribute nothing at a multiple of n
    X, X_t          sum_j c_j Z_j, the counter's noise at t before it is rounded; s^2 its variance
    x_t             a value with P(X >= x_t) <= delta_t, proved
    m_t             `threshold(t)`, an integer: shown iff count + floor(X + 1/2) > m_t

With count <= Dinf, "shown" means floor(X + 1/2) >= m_t + 1 - Dinf, that is X >= m_t + 1/2 - Dinf;
so m_t is the smallest integer with m_t + 1/2 - Dinf >= x_t (m_t + 1 - Dinf >= x_t where all c_j are
integers, and therefore X).

For small configurations x_t is exact (`gaussian.exact_quantile`). Otherwise it is the smaller of
two bounds that hold for every sum of independent discrete Gaussians with real coefficients:
(a) Chernoff. N_Z(0, s2) is sub-Gaussian with proxy s2, so P(X >= x) <= exp(-x^2 / (2 s^2)).
(b) Smoothing. With G ~ N(0, u) independent, N_Z(0, s2) + G has a density of at most theta(v) times
    that of N(0, s2 + u), v = s2 u / (s2 + u), theta(v) = 1 + 2 sum_{n >= 1} exp(-2 pi^2 n^2 v):
    complete the square; Poisson summation bounds the numerator from above, and the normaliser of
    N_Z is at least sqrt(2 pi s2). Densities of independent sums convolve, so with
    W = sum_j c_j G_j and any w >= 0
      P(X >= x) P(W >= -w) <= P(X + W >= x - w) <= prod_j theta_j * Q((x - w) / sqrt(s^2 + Var W)).
    Any u and w are valid; a small grid comes within a few per cent of the exact quantile.

`ConstantDiscovery` has one threshold m for all ticks, valid because m is fixed before any data and
D0 sum_t P(X_t >= x_t) <= delta (union bound).

    m               the smallest integer with D0 sum_t tail_t(m + 1/2 - Dinf) <= delta
    tail_t(x)       the smaller of the bounds (a), (b) on P(X_t >= x)
    v_t, q_t        sum_j c_j^2 sigma_j^2 and sum_j c_j^2 at t

The bounds rise with v_t, q_t and the theta of t, so ticks of nearly equal v_t (0.1 %) form a group
with its largest figures, at the same computing cost for any horizon. The normal tail is bounded by
Q(z) <= phi(z) 4 / (3 z + sqrt(z^2 + 8)) for z > 0 (Sampford 1953), within 0.2 % of it for z > 4.

Source: Cardoso, Rogers (000), Algorithm 3 (the union bound over ticks allows any public schedule);
mechanisms.md 3; Canonne, Kamath, Steinke, Lemma 19 for (a); (b) is derived here.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from workers.arrays.types import Floats
from workers.mechanisms.accounting import float_up
from workers.mechanisms.counters.levels import Counter, check_tick, tick_block
from workers.mechanisms.noise.gaussian import exact_quantile
from workers.runtime.frozen import Frozen, memoized, read_only

_NORMAL = NormalDist()
# Far above the error of one evaluation, far below what is visible in a threshold.
_OUTWARD = 1 + 1e-12
_INWARD = 1 - 1e-12
_SMOOTHING_VARIANCES = (0.15, 0.25, 0.5, 1.0)
# (w / sd(W), P(W >= -w) rounded down)
_SHIFTS = tuple(
    (shift, _NORMAL.cdf(shift) * _INWARD) for shift in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
)
_LEAST_PROBABILITY = 1e-300
_LAST_TICK = 1 << 62
# From here on, exact quantiles (up to a ms each) are rare, so blocks of ticks are computed at once.
_LONG = 4096
_CHUNK_TICKS = 1 << 14
_GROUPS_PER_OCTAVE = 700  # of the variance: 0.1 % each
# Far above the error of numpy's exp and sqrt over a sum of this length.
_SUM_OUTWARD = 1 + 1e-9


class Discovery(Frozen):
    """The thresholds of one histogram for the noise of `counter`.

    `every` is n, from 1 to the horizon; None tests at every tick. Ticks outside the counter's
    horizon raise `HorizonExceeded`.
    """

    def __init__(
        self,
        counter: Counter,
        max_items: int,
        max_count: int,
        delta: float,
        every: int | None = None,
    ) -> None:
        for name, value in (("max_items", max_items), ("max_count", max_count)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        if not 0 < delta < 1:
            raise ValueError(f"delta = {delta}: must be a number above 0 and below 1")
        if every is not None and not 1 <= every <= (counter.horizon or every):
            horizon = counter.horizon or "unbounded"
            raise ValueError(f"every = {every}: must be from 1 to the horizon, {horizon}")
        self.counter, self.max_items, self.max_count = counter, max_items, max_count
        self.delta, self._every = delta, every
        self._last_tick = _LAST_TICK if counter.horizon is None else counter.horizon

    def public(self) -> dict[str, object]:
        if self._every is None:
            return {"delta": repr(self.delta), "schedule": "per_tick"}
        return {"delta": repr(self.delta), "schedule": "every", "every": self._every}

    def discovers(self, t: int) -> bool:
        return t % (self._every or 1) == 0

    def delta_at(self, t: int) -> float:
        """Return tick t's delta for one item, 0 where nothing is tested."""
        horizon, every = self.counter.horizon, self._every or 1
        check_tick("discovery", t, self._last_tick)
        if not self.discovers(t):
            return 0.0
        if horizon is not None:
            return self.delta / (self.max_items * (horizon // every)) * _INWARD
        octave = (t // every).bit_length() - 1
        parts = math.pi**2 * (1 + octave) ** 2 * 2.0**octave * self.max_items
        return self.delta * 6 / parts * _INWARD

    def threshold(self, t: int) -> int:
        """Return m_t; raise `ValueError` where nothing is tested."""
        if not self.discovers(t):
            raise ValueError(f"t = {t}: discovery only at multiples of {self._every}")
        check_tick("discovery", t, self._last_tick)
        if self._last_tick < _LONG:
            return _threshold(self, t)
        ticks = tick_block(t, self._last_tick)
        return _thresholds(self, ticks)[t - ticks.start]

    def _compute_threshold(self, t: int) -> int:
        denominator, multiples = self.counter.multiples(t)
        # Integer noise reaches m_t + 1/2 - Dinf only at m_t + 1 - Dinf.
        integral = math.gcd(denominator, *(a for a, _ in multiples)) == denominator
        delta = self.delta_at(t)
        exact = exact_quantile(denominator, multiples, delta)
        quantile = self._quantile(delta, denominator, multiples) if exact is None else exact
        return math.ceil(quantile + self.max_count - (1.0 if integral else 0.5))

    def _quantile(
        self, delta: float, denominator: int, multiples: Sequence[tuple[int, Fraction]]
    ) -> float:
        """Return x_t from the bounds (a) and (b), rounded up."""
        squares = [(a / denominator) ** 2 for a, _ in multiples]
        constants = [smoothing_constants(*s2.as_integer_ratio()) for _, s2 in multiples]
        terms = zip(squares, constants, strict=True)
        variance = sum(square * row[0] for square, row in terms) * _OUTWARD
        smallest = math.sqrt(-2 * math.log(delta) * variance) * _OUTWARD
        square = sum(squares) * _OUTWARD
        for index, smoothing in enumerate(_SMOOTHING_VARIANCES, start=1):
            log_theta = sum(row[index] for row in constants) * _OUTWARD
            added = smoothing * square
            sd_added, sd_all = math.sqrt(added), math.sqrt(variance + added)
            for shift, normal in _normal_quantiles(delta, log_theta):
                quantile = (shift * sd_added - normal * sd_all) * _OUTWARD
                smallest = min(smallest, max(quantile, 0.0))
        return smallest


@memoized(1024)
def _thresholds(discovery: Discovery, ticks: range) -> tuple[int, ...]:
    """Return the threshold at every tick; 0 where nothing is tested."""
    return tuple(discovery._compute_threshold(t) if discovery.discovers(t) else 0 for t in ticks)


# A worker's owner partitions ask for the same thresholds.
@memoized(4096)
def _threshold(discovery: Discovery, t: int) -> int:
    return discovery._compute_threshold(t)


@memoized(1024)
def smoothing_constants(numerator: int, denominator: int) -> tuple[float, ...]:
    """Return sigma^2 and ln theta per smoothing variance, rounded up; integers hash faster."""
    v = float_up(Fraction(numerator, denominator))
    return (v, *(_log_theta(v * smoothing / (v + smoothing)) for smoothing in _SMOOTHING_VARIANCES))


@memoized(1024)
def _normal_quantiles(delta: float, log_theta: float) -> tuple[tuple[float, float], ...]:
    """Return every shift, with the normal quantile of the delta left after smoothing."""
    left = ((shift, delta * remains * math.exp(-log_theta) * _INWARD) for shift, remains in _SHIFTS)
    return tuple(
        (shift, _NORMAL.inv_cdf(least)) for shift, least in left if least > _LEAST_PROBABILITY
    )


def _log_theta(variance: float) -> float:
    """Return ln theta(v) rounded up: terms after n add at most n-th / (1 - exp(-2 pi^2 v))."""
    decay = 2 * math.pi**2 * variance * _INWARD
    if decay < 0.01:
        return math.inf
    total, n = 0.0, 1
    while (term := math.exp(-decay * n * n)) > 1e-18:
        total += term
        n += 1
    rest = term / -math.expm1(-decay)
    return math.log1p(2 * (total + rest)) * _OUTWARD


@memoized(256)
def make_discovery(
    counter: Counter,
    max_items: int,
    max_count: int,
    delta: float,
    schedule: str = "per_tick",
    every: int | None = None,
) -> Discovery:
    if (every is not None) is not (schedule == "every"):
        raise ValueError(f"every = {every}: exactly with schedule 'every', here {schedule!r}")
    if schedule == "constant":
        return ConstantDiscovery(counter, max_items, max_count, delta)
    if schedule not in ("per_tick", "every"):
        raise ValueError(f"schedule = {schedule!r}: must be one of per_tick, constant, every")
    return Discovery(counter, max_items, max_count, delta, every)


class _Noise(NamedTuple):
    """Upper bounds on the tail parameters of n groups of ticks."""

    variance: Floats  # v_t
    square: Floats  # q_t
    log_theta: Floats  # (n, smoothing variances)
    ticks: Floats  # their number


class ConstantDiscovery(Discovery):
    def __init__(self, counter: Counter, max_items: int, max_count: int, delta: float) -> None:
        super().__init__(counter, max_items, max_count, delta)
        if counter.horizon is None:
            raise ValueError("horizon = unbounded: a constant threshold needs a number of ticks")
        # Integer noise reaches m + 1/2 - Dinf only at m + 1 - Dinf.
        self._margin = 1.0 if counter.integral else 0.5
        self._groups = _grouped(
            self._noise_of(first) for first in range(1, self._last_tick + 1, _CHUNK_TICKS)
        )
        self._threshold = self._solve()

    def public(self) -> dict[str, object]:
        return super().public() | {"schedule": "constant"}

    def delta_at(self, t: int) -> float:
        check_tick("discovery", t, self._last_tick)
        x = self._threshold + self._margin - self.max_count
        return float(_tails(self._noise_of(t, 1), x)[0])

    def threshold(self, t: int) -> int:
        check_tick("discovery", t, self._last_tick)
        return self._threshold

    def _solve(self) -> int:
        """Return m, by bisection: every step keeps `high` valid."""

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
        t = np.arange(first, min(first + ticks, self._last_tick + 1), dtype=np.int64)
        variance, square = np.zeros(len(t)), np.zeros(len(t))
        log_theta = np.zeros((len(t), len(_SMOOTHING_VARIANCES)))
        for coefficient, times, sigma_squared in self.counter.coefficients(t):
            constants = smoothing_constants(*sigma_squared.as_integer_ratio())
            variance += times * coefficient**2 * constants[0]
            square += times * coefficient**2
            # An absent term adds 0, also where theta has no bound (inf).
            there = (coefficient > 0) & (times > 0)
            for column, value in enumerate(constants[1:]):
                log_theta[there, column] += times[there] * value
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
    """Return Sampford's upper bound on P(N(0, 1) > z), and 1 below 0."""
    above = np.maximum(z, 0.0)
    density = np.exp(-above * above / 2) / math.sqrt(2 * math.pi)
    return np.where(z > 0, density * 4 / (3 * above + np.sqrt(above * above + 8)), 1.0)


def _grouped(parts: Iterator[_Noise]) -> _Noise:
    columns = zip(*map(_group, parts), strict=True)
    return _group(_Noise(*map(np.concatenate, columns)))


def _group(noise: _Noise) -> _Noise:
    """Return a row per 0.1 % of variance, with the largest figures of the rows it replaces."""
    names = np.floor(np.log2(noise.variance) * _GROUPS_PER_OCTAVE)
    order = np.argsort(names, kind="stable")
    starts = np.flatnonzero(np.diff(names[order], prepend=names[order][0] - 1))
    largest = (np.maximum.reduceat(column[order], starts) for column in noise[:3])
    ticks = np.add.reduceat(noise.ticks[order], starts)
    return _Noise(*map(read_only, (*largest, ticks)))
