"""Intervals: the inner level of paper 001, which closes one when a watched value grew by a step.

Here are its public parameters and bounds; the run is in `engine`. The paper calls a run of this
level a partition; here that word is Kafka's.

What: s = h + G + N with N the noise of a continual counter H after the intervals closed so far (0
before the first), G the noise of the segment's start. AboveThreshold compares the watched values
g_i(s) with thresholds K_i, all with one tau and one mu a tick; when it stops, H takes the
interval's counts, s and the answers are made again, and thresholds reached rise by `step`.
Why: within an interval nothing is paid for, so H runs over intervals, of which there are about as
many as the value is steps high.

    Symbol      Here
    k           values watched; with k = 1 the one threshold always rises (Algorithms 2, 7)
    u_i         k > 1: noise on each g_i that decides whether K_i rises: g_i(s) + u_i > K_i - C
                (Algorithms 8, 12, 13, 17)
    C           `clearance` = low + alpha_U
    reach       Delta: how much watched values of h + G may grow; c_max, or by the segment
    n           `capacity`: intervals H has noise for; none closes after that
    e           H's error over n intervals
    low, high   AboveThreshold's bounds

Costs, each once for all intervals (and for all segments, which are disjoint in ticks):
AboveThreshold; H; and for k > 1 k Dinf^2 / (2 s_U^2) rho, or pure k Dinf / scale.

Error at a tick of one run, promised with probability 1 - beta. A tick that closes publishes g_i(s),
off by e. At one that does not, g_i(h) <= K_i + high + e. The close that raised K_i had
g_i(s) > K_i - step - low (k > 1: - C - alpha_U), and values only grow. So
    k = 1: step + low + high + 3 e    k > 1: step + C + alpha_U + high + 3 e   (segments: + alpha_G)
and thresholds cannot have been raised more often than (reach + low + e) / step times
(k > 1: k (reach + C + alpha_U + e) / step).

zCDP: n is the power of two that makes this error smallest, step follows from n. Pure: step, C and n
as printed, step = 3 (e + low (k > 1: C) + alpha_G) and n = reach (k > 1: k reach), with alpha_mu +
alpha_tau for low.

Source: 001 Algorithms 2, 3, 7, 8, 12, 13, 17.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from workers.mechanisms.noise.discrete_laplace import discrete_laplace
from workers.mechanisms.order_statistics.above_threshold import AboveThreshold
from workers.mechanisms.order_statistics.column_sums import (
    LaplaceTree,
    OneVector,
    SumNoise,
    counter_of,
    gaussian_bound,
    laplace_sum_bound,
    laplace_tree,
    worst_variance,
)
from workers.mechanisms.order_statistics.config import CELL_TV, MaxConfig

MOST_INTERVALS = 1 << 30


@dataclass(frozen=True, slots=True)
class Intervals:
    """The public numbers of one run: of a segment, or of the epoch where there are none.

    Attributes:
        step: how much a threshold rises.
        clearance: C; 0 where one value is watched.
        capacity: n.
        error: promised for this run's values.
        spread: e + alpha_G, by which the sums of labels that are named may fall further short.
    """

    step: int
    clearance: int
    capacity: int
    error: float
    spread: float


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """The inner level: when an interval closes, and with which noise. Public parameters.

    Attributes:
        above: its AboveThreshold.
        update: the noise u of the watched values; None where one value is watched.
        sums: rho, or pure epsilon, that H may cost.
        k: values watched.
        config: of the mechanism.
    """

    above: AboveThreshold
    update: OneVector | None
    sums: Fraction
    k: int
    config: MaxConfig

    @classmethod
    def of(cls, config: MaxConfig, k: int, test: Fraction, sums: Fraction, update: Fraction | None) -> IntervalRule:
        """Return the rule calibrated to what the test, H, and the updates may each cost."""
        above = AboveThreshold.of(test, config.max_count, pure=config.pure)
        vector = None if update is None else OneVector.of(update, k, config.max_count, pure=config.pure)
        return cls(above, vector, sums, k, config)

    @property
    def spent(self) -> dict[str, Fraction]:
        """Return what each part costs: rho, or pure epsilon."""
        updates = {} if self.update is None else {"updates": self.update.spent}
        return {"test": self.above.spent, "sums": self.sums, **updates}

    @property
    def tv(self) -> float:
        """Return the distance of the noise that an event's true values are under."""
        cells = self.config.most_columns * MOST_INTERVALS.bit_length() + self.k
        return self.above.tv(self.config.ticks) + cells * CELL_TV

    def intervals(self, reach: int, beta: float, start_error: float = 0.0) -> Intervals:
        """Return the numbers of one run: of a segment, or of the epoch where there are none.

        Args:
            reach: Delta.
            beta: failure probability of this run's promise.
            start_error: alpha_G, of the sums it starts from.
        """
        if self.config.pure:
            return self._numbers(min(self.k * reach, MOST_INTERVALS), reach, beta, start_error)
        best: Intervals | None = None
        for exponent in range(MOST_INTERVALS.bit_length()):
            found = self._numbers(1 << exponent, reach, beta, start_error)
            if best is None or found.error < best.error:
                best = found
            if 1 << exponent >= self.config.ticks:
                break
        if best is None:
            raise ValueError(f"reach = {reach}: no partition found")
        return best

    def noise(self, capacity: int) -> SumNoise:
        """Return H, with noise for `capacity` intervals."""
        if self.config.pure:
            return self._tree(capacity)
        return counter_of(self.config.counter, capacity, self._rho_item, self.config.radix)

    def column_variance(self, capacity: int) -> float:
        """Return the largest variance of one column's noise over `capacity` intervals."""
        if self.config.pure:
            tree = self._tree(capacity)
            return tree.levels * discrete_laplace(tree.scale).variance
        return worst_variance(self.config.counter, capacity, self._rho_item, self.config.radix)

    def public(self) -> dict[str, object]:
        """Return every parameter that changes a noise value; `intervals` adds to them."""
        return {
            "above_threshold": self.above.public(),
            "sums": str(self.sums),
            "counter": "laplace tree" if self.config.pure else self.config.counter,
            "radix": self.config.radix,
            "update": None if self.update is None else str(self.update.parameter),
        }

    @property
    def _rho_item(self) -> float:
        return math.nextafter(float(self.sums / (self.config.most_columns * self.config.max_count**2)), 0.0)

    def _tree(self, capacity: int) -> LaplaceTree:
        return laplace_tree(capacity, self.sums, self.config.most_columns * self.config.max_count)

    def _numbers(self, n: int, reach: int, beta: float, start_error: float) -> Intervals:
        """Return the numbers of at most n intervals; in pure epsilon with step and C as printed."""
        low, high = self.above.bounds(beta / (6 * (n + 1)), beta / (6 * self.config.ticks))
        noise = self._sums_error(n, beta / 3)
        clearance, extra, short = 0, 0.0, low
        if self.update is not None:
            extra = self.update.bound(beta / 6 / (self.k * n))
            least = low + extra
            if self.config.pure:
                # 18/eps (k ln(6 k Delta / beta) + ln(6 T / beta)); tau has scale 6/eps.
                logs = self.k * math.log(6 * n / beta) + math.log(6 * self.config.ticks / beta)
                least = max(3 * float(self.above.tau_scale) * logs, least)
            short = clearance = math.ceil(least)
        wanted = 3 * (short + noise + start_error)
        if not self.config.pure:
            wanted = self.k * (reach + short + extra + noise) / n
        step = math.ceil(wanted)
        error = step + short + extra + high + 3 * noise + start_error
        return Intervals(step, clearance, n, error, noise + start_error)

    def _sums_error(self, n: int, beta: float) -> float:
        """Return e: a bound on |N| of every column after every interval."""
        each = beta / (len(self.config.domain) * n)
        if self.config.pure:
            tree = self._tree(n)
            return laplace_sum_bound(tree.levels, float(tree.scale), each)
        return gaussian_bound(self.column_variance(n), each)
