"""Intervals: the inner level of paper 001, which closes an interval when a watched value has grown by a step
(public parameters and bounds; the run is in `engine`). The paper calls a run of this level a partition; here that
word is Kafka's.

What: s = h + G + N with N the noise of a continual counter H after the intervals closed so far (0 before the first), G the noise of the
segment's start. AboveThreshold compares the watched values g_i(s) with thresholds K_i, all with one tau and one mu a tick; when it stops,
H takes the interval's counts, s and the answers are made anew, and thresholds that were reached rise by `step`.
Why: within an interval nothing is paid for, so H runs over intervals, of which there are about as many as the value is steps high.

    Symbol      Here
    k           values watched; with k = 1 the one threshold always rises (Algorithms 2, 7)
    u_i         k > 1: noise on each g_i that decides whether K_i rises: g_i(s) + u_i > K_i - C (Algorithms 8, 12, 13, 17)
    C           `clearance` = low + alpha_U
    reach       Delta: how much the watched values of h + G may grow; c_max, or what a segment allows
    n           `capacity`: intervals H has noise for; no interval closes after so many
    e           H's error over n intervals
    low, high   AboveThreshold's bounds

Costs, each once for all intervals (and for all segments, which are disjoint in ticks): AboveThreshold; H; and for k > 1
k Dinf^2 / (2 s_U^2) rho, or pure k Dinf / scale.

Error at a tick of one run, promised with probability 1 - beta. A tick that closes publishes g_i(s), off by e. At one that does not,
g_i(h) <= K_i + high + e. The close that raised K_i had g_i(s) > K_i - step - low (k > 1: - C - alpha_U), and values only grow. So
    k = 1: step + low + high + 3 e            k > 1: step + C + alpha_U + high + 3 e           (+ alpha_G in a segment)
and thresholds cannot have been raised more often than (reach + low + e) / step times (k > 1: k (reach + C + alpha_U + e) / step).

zCDP: n is the power of two that makes this error smallest, step follows from n. Pure: step, C and n as printed, step = 3 (e + low (k > 1:
C) + alpha_G) and n = reach (k > 1: k reach), with alpha_mu + alpha_tau for low.

Source: 001 Algorithms 2, 3, 7, 8, 12, 13, 17.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace, discrete_laplace, round_up_scale
from workers.mechanisms.noise.gaussian import IntegerGaussian, integer_gaussian, round_up_sigma_squared
from workers.mechanisms.order_statistics.above_threshold import AboveThreshold
from workers.mechanisms.order_statistics.column_sums import (
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
    """The numbers of one run: of a segment, or of the epoch where there are none.

    Attributes:
        step: how much a threshold rises.
        clearance: C; 0 where one value is watched.
        capacity: n.
        error: promised for this run's values.
        spread: e + alpha_G; by so much more may the sums that named labels stand for fall short.
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
        update: what u_i are drawn from; None where one value is watched.
        sums: rho, or pure epsilon, that H may cost.
        k: values watched.
    """

    above: AboveThreshold
    update: IntegerGaussian | DiscreteLaplace | None
    sums: Fraction
    k: int
    config: MaxConfig

    @classmethod
    def of(cls, config: MaxConfig, k: int, test: Fraction, sums: Fraction, update: Fraction | None) -> IntervalRule:
        """Return the rule calibrated to what the test, H, and the updates may each cost."""
        reach = config.max_count
        if config.accounting == "pure":
            laplace = discrete_laplace(round_up_scale(k * reach / update)) if update is not None else None
            return cls(AboveThreshold.of_epsilon(test, reach), laplace, sums, k, config)
        gaussian = integer_gaussian(round_up_sigma_squared(k * reach**2 / (2 * update))) if update is not None else None
        return cls(AboveThreshold.of_rho(test, reach), gaussian, sums, k, config)

    def spent(self) -> tuple[Fraction, Fraction, Fraction]:
        """(test, sums, update): rho, or pure epsilon."""
        reach = self.config.max_count
        if isinstance(self.update, DiscreteLaplace):
            update = self.k * reach / self.update.scale
        else:
            update = self.k * reach**2 / (2 * self.update.sigma_squared) if self.update is not None else Fraction(0)
        return self.above.span if self._pure else self.above.rho, self.sums, update

    @property
    def tv(self) -> float:
        """Distance of the noise an event's true values are under."""
        tau, mu = self.above.tv
        return tau + self.config.ticks * mu + (self.config.items * MOST_INTERVALS.bit_length() + self.k) * CELL_TV

    def intervals(self, reach: int, beta: float, start_error: float = 0.0) -> Intervals:
        """The numbers of one run: of a segment, or of the epoch where there are none.

        Args:
            reach: Delta.
            beta: failure probability of this run's promise.
            start_error: alpha_G, of the sums it starts from.
        """
        if self._pure:
            return self._printed(reach, beta, start_error)
        best: Intervals | None = None
        for exponent in range(MOST_INTERVALS.bit_length()):
            n = 1 << exponent
            low, high = self._bounds(n, beta)
            noise = self._sums_error(n, beta / 3)
            if self.update is None:
                step = math.ceil((reach + low + noise) / n)
                found = Intervals(step, 0, n, step + low + high + 3 * noise + start_error, noise + start_error)
            else:
                extra = self._update_error(n, beta / 6)
                clearance = math.ceil(low + extra)
                step = math.ceil(self.k * (reach + clearance + extra + noise) / n)
                error = step + clearance + extra + high + 3 * noise + start_error
                found = Intervals(step, clearance, n, error, noise + start_error)
            if best is None or found.error < best.error:
                best = found
            if n >= self.config.ticks:
                break
        if best is None:
            raise ValueError(f"reach = {reach}: no partition found")
        return best

    def noise(self, capacity: int) -> SumNoise:
        """H, for so many intervals."""
        config = self.config
        if self._pure:
            return laplace_tree(capacity, self.sums, config.items * config.max_count)
        return counter_of(config.counter, capacity, self._rho_item, config.radix)

    def column_variance(self, capacity: int) -> float:
        """The largest variance of one column's noise over so many intervals."""
        if self._pure:
            tree = laplace_tree(capacity, self.sums, self.config.items * self.config.max_count)
            return tree.levels * discrete_laplace(tree.scale).variance
        return worst_variance(self.config.counter, capacity, self._rho_item, self.config.radix)

    def public(self) -> dict[str, object]:
        """Every parameter that changes a noise value; `intervals` adds to them."""
        update = self.update.scale if isinstance(self.update, DiscreteLaplace) else None
        if isinstance(self.update, IntegerGaussian):
            update = self.update.sigma_squared
        return {
            "above_threshold": self.above.public(),
            "sums": str(self.sums),
            "counter": "laplace tree" if self._pure else self.config.counter,
            "radix": self.config.radix,
            "update": None if update is None else str(update),
        }

    @property
    def _pure(self) -> bool:
        return self.config.accounting == "pure"

    @property
    def _rho_item(self) -> float:
        return math.nextafter(float(self.sums / (self.config.items * self.config.max_count**2)), 0.0)

    def _printed(self, reach: int, beta: float, start_error: float) -> Intervals:
        n = min(self.k * reach, MOST_INTERVALS)
        low, high = self._bounds(n, beta)
        noise = self._sums_error(n, beta / 3)
        if self.update is None:
            step = math.ceil(3 * (noise + low + start_error))
            return Intervals(step, 0, n, step + low + high + 3 * noise + start_error, noise + start_error)
        extra = self._update_error(n, beta / 6)
        # 18/eps (k ln(6 k Delta / beta) + ln(6 T / beta)); the update's scale is 3 k / eps for Dinf = 1.
        printed = 3 * float(self.above.tau_scale)
        printed *= self.k * math.log(6 * n / beta) + math.log(6 * self.config.ticks / beta)
        clearance = math.ceil(max(printed, low + extra))
        step = math.ceil(3 * (clearance + noise + start_error))
        return Intervals(
            step, clearance, n, step + clearance + extra + high + 3 * noise + start_error, noise + start_error
        )

    def _bounds(self, n: int, beta: float) -> tuple[float, float]:
        return self.above.bounds(beta / (6 * (n + 1)), beta / (6 * self.config.ticks))

    def _sums_error(self, n: int, beta: float) -> float:
        """e: |N| of every column after every interval."""
        each = beta / (len(self.config.domain) * n)
        if self._pure:
            tree = laplace_tree(n, self.sums, self.config.items * self.config.max_count)
            return laplace_sum_bound(tree.levels, float(tree.scale), each)
        return gaussian_bound(worst_variance(self.config.counter, n, self._rho_item, self.config.radix), each)

    def _update_error(self, n: int, beta: float) -> float:
        """alpha_U: |u_i| of every value at every close."""
        each = beta / (self.k * n)
        if isinstance(self.update, DiscreteLaplace):
            return float(self.update.scale) * math.log(1 / each) + 1
        if self.update is None:
            return 0.0
        return gaussian_bound(float(self.update.sigma_squared), each)
