"""Discovery thresholds for UnkBase: the noisy count above which a tick may show a new item.

An item of true count at most Dinf (one event's contribution) is shown at tick t with probability at
most delta_t, in total at most delta over all ticks and the event's D0 items. Neighbours are as in
`accounting`.

    Symbol          Here
    D0, Dinf        `max_items`, `max_count`
    delta_t         `delta_at(t)`: delta / (D0 T), or unbounded delta 6 / (pi^2 (1 + k)^2 2^k D0),
                    k = floor(log2 t); with `every` = n only the ticks n, 2n, ... test, the first as
                    test 1: then T and t count tests. With `lifted` and n a power of two these ticks
                    have the least noise
    N, s_t          the counter's noise at t before it is rounded, and its standard deviation
    q               Q^-1(delta_t), Q the upper tail of the standard normal law
    m_t             `threshold(t)`, an integer: shown iff count + floor(N + 1/2) > m_t

With count <= Dinf, "shown" means floor(N + 1/2) >= m_t + 1 - Dinf, that is N >= m_t + 1/2 - Dinf;
so m_t is the smallest integer with m_t + 1/2 - Dinf >= q s_t, q and s_t rounded up.

`ConstantDiscovery` has one threshold m for all ticks, valid because m is fixed before any data and
D0 sum_t P(N_t >= m + 1/2 - Dinf) <= delta (union bound); m is the smallest such integer, with the
normal tail bounded by Q(z) <= phi(z) 4 / (3 z + sqrt(z^2 + 8)) for z > 0 (Sampford 1953), within
0.2 % of it for z > 4. Ticks of nearly equal s_t^2 (0.1 %) form a group with the largest of them, at
the same computing cost for any horizon.

Source: Cardoso, Rogers, Algorithm 3 (the union bound over ticks allows any public schedule).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from workers.arrays.types import Floats
from workers.mechanisms.accounting import float_up
from workers.mechanisms.counters.base import Counter, check_tick, last_tick_of
from workers.mechanisms.noise.normal import quantile_up
from workers.runtime.frozen import Frozen, memoized, read_only

# Factors that round to the safe side: far above the error of one evaluation in floats, far below
# what is visible in a threshold.
_OUTWARD = 1 + 1e-12
_INWARD = 1 - 1e-12
_CHUNK_TICKS = 1 << 14  # in memory at once
_GROUPS_PER_OCTAVE = 700  # of the variance: 0.1 % each
# Far above the error of numpy's exp and sqrt over a sum of this length.
_SUM_OUTWARD = 1 + 1e-9


def window_threshold(
    counter: Counter, tests: int, max_items: int, max_count: int, delta: float
) -> int:
    """Return one threshold for all ticks of a sliding window.

    An item that occurs in one event is tested at most `tests` times. The threshold is m_t of the
    module, for the s_t of the noisiest tick and delta_t = delta / (D0 tests)
    (docs/decisions/0036-windows-without-epochs.md, T4).
    """
    # 1e-11: above the error of a counter's variance in floats.
    sd = math.sqrt(counter.worst_variance() * (1 + 1e-11)) * _OUTWARD
    quantile = quantile_up(delta / (max_items * tests) * _INWARD)
    return math.ceil(quantile * sd * _OUTWARD + max_count - 0.5)


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
        """Check the settings. Symbols are as in the module; `every` is n, None to test every tick.

        `delta` is for all ticks and all items of an event together.
        """
        for name, value in (("max_items", max_items), ("max_count", max_count)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        if not 0 < delta < 1:
            raise ValueError(f"delta = {delta}: must be a number above 0 and below 1")
        # Without a horizon any number is allowed.
        if every is not None and not 1 <= every <= (counter.horizon or every):
            horizon = counter.horizon or "unbounded"
            raise ValueError(
                f"every = {every}: must be from 1 to the horizon, {horizon}"
            )
        self.counter = counter
        self.max_items = max_items
        self.max_count = max_count
        self.delta = delta
        self._every = every
        self._last_tick = last_tick_of(counter.horizon)

    def public(self) -> dict[str, object]:
        """Return the parameters that change a threshold, as JSON.

        They are part of the mechanism's id (`Mechanism.public`, which has max_items and max_count).
        Floats are texts, so that equal ones give equal ids.
        """
        if self._every is None:
            return {"delta": repr(self.delta), "schedule": "per_tick"}
        return {"delta": repr(self.delta), "schedule": "every", "every": self._every}

    def discovers(self, t: int) -> bool:
        """Return whether tick t may show new items."""
        return t % (self._every or 1) == 0

    def delta_at(self, t: int) -> float:
        """Return delta_t, tick t's delta for one item, rounded down; 0 where nothing is tested."""
        horizon = self.counter.horizon
        every = self._every or 1
        check_tick("discovery", t, self._last_tick)
        if not self.discovers(t):
            return 0.0
        if horizon is not None:
            return self.delta / (self.max_items * (horizon // every)) * _INWARD
        # k of the module; t // every is the number of the test.
        octave = (t // every).bit_length() - 1
        parts = math.pi**2 * (1 + octave) ** 2 * 2.0**octave * self.max_items
        return self.delta * 6 / parts * _INWARD

    def threshold(self, t: int) -> int:
        """Return m_t; raise `ValueError` where nothing is tested."""
        if not self.discovers(t):
            raise ValueError(f"t = {t}: discovery only at multiples of {self._every}")
        check_tick("discovery", t, self._last_tick)
        return _threshold(self, t)

    def _compute_threshold(self, t: int) -> int:
        """Return m_t for the standard deviation at this tick, rounded up."""
        sd = math.sqrt(float_up(self.counter.variance(t))) * _OUTWARD
        return math.ceil(
            quantile_up(self.delta_at(t)) * sd * _OUTWARD + self.max_count - 0.5
        )


@memoized(1 << 14)
def _threshold(discovery: Discovery, t: int) -> int:
    """Return m_t, computed once for all owner partitions."""
    return discovery._compute_threshold(t)


@memoized(256)
def make_discovery(
    counter: Counter,
    max_items: int,
    max_count: int,
    delta: float,
    every: int | None = None,
    *,
    constant: bool = False,
) -> Discovery:
    """Return the thresholds for these settings; equal arguments share cached ones."""
    if constant:
        return ConstantDiscovery(counter, max_items, max_count, delta)
    return Discovery(counter, max_items, max_count, delta, every)


class _Noise(NamedTuple):
    """Groups of ticks (n,): an upper bound on the variances in each, and how many ticks it has."""

    variance: Floats
    ticks: Floats


class ConstantDiscovery(Discovery):
    """One threshold for all ticks of a bounded horizon; see the module."""

    def __init__(
        self, counter: Counter, max_items: int, max_count: int, delta: float
    ) -> None:
        """Solve for the threshold; ValueError without a horizon."""
        super().__init__(counter, max_items, max_count, delta)
        if counter.horizon is None:
            raise ValueError(
                "horizon = unbounded: a constant threshold needs a number of ticks"
            )
        self._groups = _grouped(
            self._noise_of(first)
            for first in range(1, self._last_tick + 1, _CHUNK_TICKS)
        )
        self._threshold = self._solve()

    def public(self) -> dict[str, object]:
        return super().public() | {"schedule": "constant"}

    def delta_at(self, t: int) -> float:
        """Return a bound on the probability that tick t shows one event's item."""
        check_tick("discovery", t, self._last_tick)
        return float(
            _tails(self._noise_of(t, 1), self._threshold + 0.5 - self.max_count)[0]
        )

    def threshold(self, t: int) -> int:
        check_tick("discovery", t, self._last_tick)
        return self._threshold

    def _solve(self) -> int:
        """Return the smallest valid m, by doubling, then by bisection."""

        def valid(threshold: int) -> bool:
            """Return whether the module's union bound over all ticks and items is at most delta."""
            tails = _tails(self._groups, threshold + 0.5 - self.max_count)
            return (
                self.max_items * float(tails @ self._groups.ticks) * _SUM_OUTWARD
                <= self.delta
            )

        # Not valid: an item of count Dinf is above it without any noise.
        low = self.max_count - 1
        high = 2 * self.max_count
        while not valid(high):
            low = high
            high = 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if valid(middle):
                high = middle
            else:
                low = middle
        return high

    def _noise_of(self, first: int, ticks: int = _CHUNK_TICKS) -> _Noise:
        """Return the noise of `ticks` ticks from `first` on, each a group of one tick."""
        t = np.arange(first, min(first + ticks, self._last_tick + 1), dtype=np.int64)
        # 1e-11: above the error of a counter's variance in floats.
        return _Noise(self.counter.variances(t) * (1 + 1e-11), np.ones(len(t)))


def _tails(noise: _Noise, x: float) -> Floats:
    """Return Sampford's upper bound on P(N >= x) for each group, 1 for x <= 0."""
    if x <= 0:
        return np.ones(len(noise.variance))
    z = x / np.sqrt(noise.variance)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return np.minimum(density * 4 / (3 * z + np.sqrt(z * z + 8)) * _OUTWARD, 1.0)


def _grouped(parts: Iterator[_Noise]) -> _Noise:
    """Join groups of nearly equal variance in all parts together."""
    # Part by part at first, so that the ticks of only one part are in memory.
    columns = zip(*map(_group, parts), strict=True)
    return _group(_Noise(*map(np.concatenate, columns)))


def _group(noise: _Noise) -> _Noise:
    """Join groups whose variances are within 0.1 %: the largest of them, and all their ticks."""
    # Joined are those of one number.
    numbers = np.floor(np.log2(noise.variance) * _GROUPS_PER_OCTAVE)
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    # Where the number is another than before; `prepend` makes the first place one of them.
    starts = np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1))
    variance = np.maximum.reduceat(noise.variance[order], starts)
    ticks = np.add.reduceat(noise.ticks[order], starts)
    return _Noise(read_only(variance), read_only(ticks))
