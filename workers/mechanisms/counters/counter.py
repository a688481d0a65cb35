"""Choice of a counter, and the base class of mechanisms with one counter per item.

A counter gives the noise of one item's running sum at every tick. It is stateless: the noise of
(item, t) is a function of the key, so every item uses the counter that started at tick 1. A counter
that started when the item first occurred would reveal that tick, which is data.

A counter's cost covers an event that changes one count by one (neighbours: the content of one event
emptied, or the reverse). An event touches at most D0 items by at most Dinf, so every item's counter
gets rho / (D0 Dinf^2) (000 Alg. 2 and 3). Parts a_1 + ... <= Dinf of a user's item at different
ticks shift the counter by at most Dinf times the longest unit shift and cost no more.

Kinds: `lifted` (default: the least error without O(T) state), `tree` (the papers' baseline, about
two and a half times its error), `sqrt` (a tenth less than `lifted`, O(T) state and time per item:
for declared domains of few items, at most 2^16 ticks).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from workers.arrays.number_blocks import add_by_key
from workers.arrays.tag_index import Rows
from workers.arrays.types import Longs, Tags
from workers.mechanisms.about import RowBytes
from workers.mechanisms.budget import Budgeted
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.base import Counter, last_tick_of, tick_block
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.counters.sqrt import SqrtCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.curves import ROUNDING, Curve
from workers.mechanisms.mechanism import Noise, Noisy, Release, State
from workers.mechanisms.noise.keyed import NoiseKey, NoiseStream
from workers.runtime.frozen import memoized, read_only

KINDS = ("lifted", "tree", "sqrt")


@memoized(512)
def make_counter(
    kind: str,
    horizon: int | None,
    rho_item: float,
    radix: int | None = None,
    end_share: float | None = None,
) -> Counter:
    """Return a counter that costs at most rho_item; equal arguments share its cached ticks."""
    if kind != "tree" and radix is not None:
        raise ValueError(f"radix = {radix}: only counter 'tree' has one")
    if kind != "lifted" and end_share is not None:
        raise ValueError(f"end_share = {end_share}: only counter 'lifted' has one")
    if kind == "lifted":
        return LiftedCounter(horizon, rho_item, end_share)
    if kind == "sqrt":
        return SqrtCounter(horizon, rho_item)
    if kind == "tree":
        return TreeCounter(horizon, rho_item, radix)
    raise ValueError(f"counter = {kind!r}: must be one of {', '.join(KINDS)}")


def counter_of(config: HistogramConfig, rho_item: float) -> Counter:
    ticks = config.horizon_ticks
    return make_counter(config.counter, ticks, rho_item, config.radix, config.end_share)


def _any_stream() -> NoiseStream:
    """Return a stream whose noise nobody draws: caches are as large with any."""
    return NoiseKey(bytes(32)).stream(bytes(16))


def cached_bytes(noise: object) -> int:
    """Return the bytes a row that cached noise takes; 0 without a cache."""
    return int(getattr(noise, "bytes_per_row", 0))


class CounterMechanism(Budgeted):
    """Base class of mechanisms whose counts have a counter's noise at every tick."""

    _counter: Counter

    @property
    def rho_item(self) -> float:
        return self._counter.rho_item

    def noise_bytes(self, counter: Counter) -> int:
        """Return the bytes a row that noise of a counter takes in this mechanism."""
        return cached_bytes(counter.columns(_any_stream()))

    def row_bytes(self) -> RowBytes:
        note = ""
        if self._counter.kind == "sqrt":
            note = "at the end of the epoch; it grows with every tick"
        return RowBytes(noise=cached_bytes(self.noise(_any_stream())), note=note)

    def curve(self, last: int) -> Curve:
        return self._counter.curve()

    def other_counter(self, kind: str, radix: int | None) -> tuple[Curve, int]:
        ticks = self.config.horizon_ticks
        counter = make_counter(kind, ticks, self.rho_item, radix)
        return counter.curve(), self.noise_bytes(counter)

    def worst_variance(self, last: int) -> float:
        """Return the largest variance of noise up to a tick, without rounding."""
        curve = self._counter.curve()
        return float(curve.variance(curve.noisiest(last)[:1])[0]) - ROUNDING

    def sd(self, t: int) -> float:
        ticks = tick_block(t, last_tick_of(self._counter.horizon))
        return (
            _sds(self._counter, ticks)[t - ticks.start]
            if t in ticks
            else self._counter.sd(t)
        )

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
        super().__init__(config, unit, discovers=discovers)
        rho = Fraction(self._budget.rho)
        items = config.max_items
        of_sums = Fraction(0) if config.sum is None else Fraction(config.sum.share)
        of_totals = Fraction(config.total_share or 0)
        # By share of rho: how many units of rho an event may cost a counter of rho 1 per unit.
        parts = [(1 - of_sums - of_totals, items * config.max_count**2)]
        if config.sum is not None:
            parts.append((of_sums, items * (config.sum.steps * config.max_count) ** 2))
        if of_totals:
            parts.append((of_totals, (items * config.max_count) ** 2))
        # rho is rounded down.
        each = [
            math.nextafter(float(rho * share / units), 0.0) for share, units in parts
        ]
        counters = [counter_of(config, each[0])]
        if config.sum is not None:
            try:
                counters.append(counter_of(config, each[1]))
            except ValueError:
                raise ValueError(
                    f"{config.where()}sum.step = {config.sum.step}: so small that the noise is more than "
                    "16 million steps: take a larger step, or a larger budget"
                ) from None
        counters += [counter_of(config, rho_item) for rho_item in each[len(counters) :]]
        spent = sum(
            Fraction(counter.rho_item) * units
            for counter, (_, units) in zip(counters, parts, strict=True)
        )
        self._counter = counters[0]
        self._of_sums = counters[1] if config.sum is not None else None
        self._of_totals = counters[-1] if of_totals else None
        spent_up = math.nextafter(float(spent), math.inf)
        self._set_cost(spent_up, 0.0)  # no sampler has a part in it

    @property
    def of_sums(self) -> Counter | None:
        return self._of_sums

    @property
    def of_totals(self) -> Counter | None:
        return self._of_totals

    def sum_curve(self) -> Curve | None:
        return None if self._of_sums is None else self._of_sums.curve()

    def total_curve(self) -> Curve | None:
        return None if self._of_totals is None else self._of_totals.curve()

    def public(self) -> Mapping[str, object]:
        """Return the parameters, those of sums and total included if there are any."""
        found = dict(super().public())
        if self._of_sums is not None and self.config.sum is not None:
            of = self.config.sum
            ends = {"from": str(of.from_), "to": str(of.to), "step": str(of.step)}
            found["sum"] = {
                **ends,
                "share": repr(of.share),
                "counter": self._of_sums.public(),
            }
        if self._of_totals is not None:
            found["total_share"] = repr(self.config.total_share)
            found["total_counter"] = self._of_totals.public()
        return found

    def noise(self, stream: NoiseStream) -> Noise:
        counts = self._counter.columns(stream)
        if self._of_sums is None and self._of_totals is None:
            return counts
        sums = None if self._of_sums is None else self._of_sums.columns(stream)
        totals = None if self._of_totals is None else self._of_totals.columns(stream)
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
        if isinstance(noise, NoiseOfParts):
            if (
                noise.sums is not None
                and self._of_sums is not None
                and self.config.sum is not None
            ):
                # In the order in which rows were shown, so that columns only grow.
                order = np.argsort(ledger.shown[rows], kind="stable")
                drawn = np.empty(len(rows), dtype=np.int64)
                drawn[order] = noise.sums.at(t, ledger.tags[rows[order]] ^ _SUMS)
                centred = (
                    2 * ledger.sums[rows] - self.config.sum.steps * ledger.counts[rows]
                )
                sums = Noisy(centred + drawn, self._of_sums.sd(t))
            if noise.totals is not None and self._of_totals is not None:
                values = noise.totals.at(t, state.key_tags)
                add_by_key(ledger.keys, ledger.counts, values)
                totals = Noisy(values, self._of_totals.sd(t))
        return Release(rows, counts, self.sd(t), threshold, sums, totals)


@dataclass(frozen=True, slots=True)
class NoiseOfParts:
    """The noise of counts, of sums and of totals, each a counter of its own for every row."""

    counts: Noise
    sums: Noise | None
    totals: Noise | None

    def at(self, t: int, tags: Tags) -> Longs:
        return self.counts.at(t, tags)

    @property
    def bytes_per_row(self) -> int:
        parts = (self.counts, self.sums)
        return sum(int(getattr(part, "bytes_per_row", 0)) for part in parts)


# The cells of sums: their levels have this bit, which no counter's have.
_SUMS = read_only(np.array([1 << 56, 0], dtype=np.uint64))


# A worker's owner partitions ask one by one.
@memoized(1024)
def _sds(counter: Counter, ticks: range) -> tuple[float, ...]:
    return tuple(map(counter.sd, ticks))
