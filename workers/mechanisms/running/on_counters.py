"""The base class of mechanisms with one counter per item, and what they pay for it.

A counter's cost covers an event that changes one count by one (neighbours: the content of one event
emptied, or the reverse). An event touches at most D0 items by at most Dinf, so every item's counter
gets rho / (D0 Dinf^2) (Cardoso, Rogers, Alg. 2, 3). Parts a_1 + ... <= Dinf of a user's item at
different ticks shift the counter by at most Dinf times the longest unit shift and cost no more.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from workers.arrays.number_blocks import add_by_key
from workers.arrays.tag_index import Rows
from workers.arrays.types import Longs, Tags
from workers.mechanisms.about import RowBytes
from workers.mechanisms.budget import Budgeted
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.counters.ranks import (
    RankColumns,
    Ranked,
    ranked_counter,
    ranks_of,
)
from workers.mechanisms.curves import ROUNDING, Curve
from workers.mechanisms.mechanism import Noise, Noisy, Release, State
from workers.mechanisms.noise.keyed import NoiseKey, NoiseStream
from workers.runtime.frozen import memoized, read_only

C = TypeVar("C", bound=Counter)


def counters_of_parts(
    config: HistogramConfig, rho: float, make: Callable[[float], tuple[C, ...]]
) -> tuple[dict[str, tuple[C, ...]], float]:
    """Return the counters of "counts", "sums" and "totals", and the rho they cost, rounded up.

    The parts that a configuration has share `rho`. `make` gets the zCDP that a change by one of one
    count (sum, total) may cost, rounded down. It returns counters that together cost at most that,
    all with the same noise: one, or one for each window.
    """
    items = config.max_items
    sums_share = Fraction(0) if config.sum is None else Fraction(config.sum.share)
    totals_share = Fraction(config.total_share or 0)
    # What `init --private` has spent on choosing the bounds is paid first.
    bounds = Fraction(config.bounds_rho or 0)
    if 2 * bounds > Fraction(rho):
        raise ValueError(
            f"{config.where()}bounds_rho = {config.bounds_rho}: more than half of the budget, rho {rho:.6g}"
        )
    of_noise = Fraction(rho) - bounds
    # By part: its share of rho, and the most that an event may cost, in units of the cost of a
    # change by one. With independent noise that is the sum of the squares of its changes; buckets
    # of ranks share noise, and cost more.
    items_units = Fraction(items)
    if config.ranks:
        items_units = ranks_of(len(config.declared)).units(items)
    counts_share = 1 - sums_share - totals_share
    parts = {"counts": (counts_share, items_units * config.max_count**2)}
    if config.sum is not None:
        most = config.sum.steps * config.max_count
        parts["sums"] = sums_share, Fraction(items * most**2)
    if totals_share:
        # One number, to which all items of an event add.
        parts["totals"] = totals_share, Fraction((items * config.max_count) ** 2)
    counters = {}
    spent = bounds
    for part, (share, units) in parts.items():
        rho_item = math.nextafter(float(of_noise * share / units), 0.0)
        try:
            counters[part] = make(rho_item)
        except ValueError:
            # The noise is too much for a counter, an sd above 2^24 (`base.rounded_up`). That of
            # sums is only if their step is too small.
            if config.sum is None or part != "sums":
                raise
            raise ValueError(
                f"{config.where()}sum.step = {config.sum.step}: so small that the noise is more than "
                "16 million steps: take a larger step, or a larger budget"
            ) from None
        # Each window's counter has the cost of all windows.
        spent += Fraction(counters[part][0].rho_item) * units
    return counters, math.nextafter(float(spent), math.inf)


def describe_parts(
    config: HistogramConfig,
    of_sums: Mapping[str, object] | None,
    of_totals: Mapping[str, object] | None,
) -> dict[str, object]:
    """Return what sums and totals add to a mechanism's `public` parameters.

    `of_sums` and `of_totals` are the parameters of their counters, None without one.
    """
    parameters: dict[str, object] = {}
    summed = config.sum
    if summed is not None and of_sums is not None:
        parameters["sum"] = {
            "from": str(summed.from_),
            "to": str(summed.to),
            "step": str(summed.step),
            "share": repr(summed.share),
            "counter": of_sums,
        }
    if of_totals is not None:
        parameters["total_share"] = repr(config.total_share)
        parameters["total_counter"] = of_totals
    return parameters


def counter_of(config: HistogramConfig, rho_item: float) -> Counter:
    """Return the counter that the settings name, for a cost of at most `rho_item`."""
    ticks = config.horizon_ticks
    if config.ranks:
        buckets = len(config.declared)
        return ranked_counter(buckets, ticks, rho_item, config.end_share)
    return make_counter(config.counter, ticks, rho_item, config.radix, config.end_share)


def any_stream() -> NoiseStream:
    """Return a noise stream of a known key, for measuring caches: nothing is drawn from it."""
    return NoiseKey(bytes(32)).stream(bytes(16))


def cached_bytes(noise: object) -> int:
    """Return how many bytes a row the cache of some noise takes; 0 without a cache."""
    return int(getattr(noise, "bytes_per_row", 0))


class CounterMechanism(Budgeted):
    """Base class of mechanisms whose counts have a counter's noise at every tick."""

    _counter: Counter

    @property
    def rho_item(self) -> float:
        return self._counter.rho_item

    def noise_bytes(self, counter: Counter) -> int:
        """Return how many bytes a row the noise of a counter takes in this mechanism."""
        return cached_bytes(counter.columns(any_stream()))

    def row_bytes(self) -> RowBytes:
        grows = "at the end of the epoch; it grows with every tick"
        note = grows if self._counter.grows else ""
        return RowBytes(noise=cached_bytes(self.noise(any_stream())), note=note)

    def curve(self, last: int) -> Curve:
        return self._counter.curve()

    def other_counter(self, kind: str, radix: int | None) -> tuple[Curve, int] | None:
        """Return the curve and the bytes a row with another counter at the same cost, for a plan.

        None for ranks, which have a counter of their own.
        """
        if self.config.ranks:
            return None
        ticks = self.config.horizon_ticks
        counter = make_counter(kind, ticks, self.rho_item, radix)
        return counter.curve(), self.noise_bytes(counter)

    def worst_variance(self, last: int) -> float:
        """Return the largest variance of the noise up to tick `last`, before it is rounded."""
        curve = self._counter.curve()
        return float(curve.variance(curve.noisiest(last)[:1])[0]) - ROUNDING

    def sd(self, t: int) -> float:
        return sd_at(self._counter, t)

    def difference_sd(self, t: int, since: int) -> float:
        return self._counter.difference_sd(t, since)


class OnCounters(CounterMechanism):
    """Base class of mechanisms with one counter per item.

    With `sum` in the configuration another counter adds noise to D = 2 S - R n of every item, n its
    count and S its sum in R steps: D changes by at most R Dinf where n does by Dinf. With
    `total_share` one more adds noise to each stream key's total, which an event changes by at most
    D0 Dinf. The parts of rho add up: all noise is independent and Gaussian
    (docs/decisions/0033-sums-and-totals.md).

    Guarantee: as `Budgeted`, also on streams that react to released values, if counts come from
    `_counter`, discoveries cost at most `delta_discovery`, and sums are those of shown items.
    """

    def __init__(self, config: HistogramConfig, unit: str, *, discovers: bool) -> None:
        """Make the counters that the budget pays for, and set what they cost."""
        super().__init__(config, unit, discovers=discovers)
        rho = self._cost.rho
        counters, spent = counters_of_parts(
            config, rho, lambda rho_item: (counter_of(config, rho_item),)
        )
        (self._counter,) = counters["counts"]
        of_sums: tuple[Counter | None, ...] = counters.get("sums", (None,))
        of_totals: tuple[Counter | None, ...] = counters.get("totals", (None,))
        (self.of_sums,) = of_sums
        (self.of_totals,) = of_totals
        self._set_cost(spent, 0.0)  # no sampler has a part in it

    def sum_curve(self) -> Curve | None:
        return None if self.of_sums is None else self.of_sums.curve()

    def total_curve(self) -> Curve | None:
        return None if self.of_totals is None else self.of_totals.curve()

    def public(self) -> Mapping[str, object]:
        """Return the parameters, those of sums and total included if there are any."""
        parts = [
            None if counter is None else counter.public()
            for counter in (self.of_sums, self.of_totals)
        ]
        return dict(super().public()) | describe_parts(self.config, *parts)

    def noise(self, stream: NoiseStream) -> Noise:
        """Return the noise of counts, with that of sums and totals if there are any."""
        counts: Noise = (
            RankColumns((self._counter,), stream)
            if isinstance(self._counter, Ranked)
            else self._counter.columns(stream)
        )
        if self.of_sums is None and self.of_totals is None:
            return counts
        sums = None if self.of_sums is None else self.of_sums.columns(stream)
        totals = None if self.of_totals is None else self.of_totals.columns(stream)
        return NoiseOfParts(counts, sums, totals)

    def release(
        self,
        state: State,
        t: int,
        rows: Rows,
        counts: Longs,
        threshold: int | None,
        noise: Noise,
    ) -> Release:
        """Return the noisy `counts` of rows, with their sums and the totals if there are any."""
        ledger = state.ledger
        sums = None
        totals = None
        summed = self.config.sum
        if isinstance(noise, NoiseOfParts):
            if summed and self.of_sums and noise.sums:
                # Cached noise is fast if new tags come only after those of the last tick. Shown
                # rows stay shown, so take them in the order in which they were first shown. With
                # `SUM_CELLS` a row's tag names noise other than that of its count.
                order = np.argsort(ledger.shown[rows], kind="stable")
                drawn = np.empty(len(rows), dtype=np.int64)
                drawn[order] = noise.sums.at(t, ledger.tags[rows[order]] ^ SUM_CELLS)
                # 2 S - R n, as in `Release.sums`.
                centred = 2 * ledger.sums[rows] - summed.steps * ledger.counts[rows]
                sums = Noisy(centred + drawn, self.of_sums.sd(t))
            if self.of_totals and noise.totals:
                values = noise.totals.at(t, state.key_tags)
                add_by_key(ledger.keys, ledger.counts, values)
                totals = Noisy(values, self.of_totals.sd(t))
        return Release(rows, counts, self.sd(t), threshold, sums, totals)


@dataclass(frozen=True, slots=True)
class NoiseOfParts:
    """The noise of counts, of sums and of totals (None: not published); `at` draws that of counts.

    `bytes_per_row` leaves out totals, which are of stream keys.
    """

    counts: Noise
    sums: Noise | None
    totals: Noise | None

    def at(self, t: int, tags: Tags) -> Longs:
        return self.counts.at(t, tags)

    @property
    def bytes_per_row(self) -> int:
        return cached_bytes(self.counts) + cached_bytes(self.sums)


# A row's tag xored with this draws noise of its sum, independent of that of its count. Noise is
# AES(tag XOR cell), and the bit is in the level of a cell (the first word): no counter has such
# levels.
SUM_CELLS = read_only(np.array([1 << 56, 0], dtype=np.uint64))


@memoized(1 << 14)
def sd_at(counter: Counter, t: int) -> float:
    """Return `counter.sd(t)`, computed once for all owner partitions."""
    return counter.sd(t)
