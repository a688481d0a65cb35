"""The run of paper 001's mechanisms: segments end, intervals close, answers hold in between.

What: one tick of every stream key of a partition. A tick that ends and closes nothing costs a few
integer comparisons a stream key, and a look at the columns only where one of them changed.

    use     noise, hi = use << 56 | ...          lo
    0x30    outer tau                            segment
    0x31    outer mu                             tick
    0x32    G, of each column                    segment that ends
    0x33    inner tau          | segment         interval
    0x34    inner mu                             tick
    0x35    N, of each column  | segment << 8 | level of the counter's own cell     its node
    0x36    u_i                | segment         interval << 32 | i

Columns' noise is made from the columns' tags, all other from the stream key's.

Source: 001 Algorithms 2, 5 to 8, 10 to 13, 15 to 17, as corrected in `segments`, `intervals`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.accounting import Cost
from workers.mechanisms.counters.noise_columns import check_tick
from workers.mechanisms.ledger import Tags
from workers.mechanisms.mechanism import Answers, Domained, Guarantee, Noise, State, head
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.order_statistics.above_threshold import BLOCK_BITS, BLOCK_TICKS, AboveThreshold
from workers.mechanisms.order_statistics.column_sums import SumNoise
from workers.mechanisms.order_statistics.config import MaxConfig, domain_hash, settle, shares_of
from workers.mechanisms.order_statistics.intervals import IntervalRule, Intervals
from workers.mechanisms.order_statistics.queries import Queries
from workers.mechanisms.order_statistics.segments import Segments
from workers.mechanisms.order_statistics.state import KeyState, MaxState
from workers.mechanisms.tick_rows import Parts

OUTER_TAU, OUTER_MU, OUTER_COLUMNS, INNER_TAU, INNER_MU, INNER_COLUMNS, UPDATES = range(0x30, 0x37)
_INDEX_BITS = 32


class MaxNoise:
    """The noise of one epoch, by what it is for."""

    def __init__(self, mechanism: OrderStatistics, stream: NoiseStream) -> None:
        self._mechanism = mechanism
        self._stream = stream
        self._blocks: dict[tuple[int, int], tuple[int, list[int]]] = {}

    def __repr__(self) -> str:
        return "MaxNoise(<secret>)"

    def at(self, t: int, tags: Tags) -> NDArray[np.int64]:
        """Raise, as no row has noise at a tick: exact sums are never mistaken for noisy ones."""
        raise TypeError("this mechanism has no noise of a row at a tick: its columns are noised when an interval closes")

    def outer_tau(self, tag: Tags, segment: int) -> int:
        """Return the noise of the segment's threshold."""
        return int(self._mechanism.segments_in_use.above.tau(self._stream, (OUTER_TAU << 56, segment), tag)[0])

    def outer_mu(self, key: int, tag: Tags, t: int) -> int:
        """Return the noise of the outer comparison at tick t."""
        return self._mu(self._mechanism.segments_in_use.above, OUTER_MU, key, tag, t)

    def outer_columns(self, tags: Tags, segment: int) -> NDArray[np.int64]:
        """Return what is added to each column's G when the segment ends."""
        return self._mechanism.segments_in_use.column.draw(self._stream, (OUTER_COLUMNS << 56, segment), tags)

    def inner_tau(self, tag: Tags, segment: int, interval: int) -> int:
        """Return the noise of the interval's thresholds."""
        test, cell = self._mechanism.inner_in_use.above, (INNER_TAU << 56 | segment, interval)
        return int(test.tau(self._stream, cell, tag)[0])

    def inner_mu(self, key: int, tag: Tags, t: int) -> int:
        """Return the noise of the inner comparison at tick t."""
        return self._mu(self._mechanism.inner_in_use.above, INNER_MU, key, tag, t)

    def inner_columns(self, tags: Tags, segment: int, interval: int) -> NDArray[np.int64]:
        """Return N, the noise of each column after `interval` intervals of the segment."""
        place = np.array([INNER_COLUMNS << 56 | segment << 8, 0], dtype=np.uint64)
        # A word is AES(tag XOR cell), so the segment's part of the cell may be on the tag's side.
        return self._mechanism.sum_noise(segment).draw(self._stream, interval, tags ^ place)

    def updates(self, tag: Tags, segment: int, interval: int, k: int) -> NDArray[np.int64]:
        """Return u, the noise of the watched values when an interval closes."""
        update = self._mechanism.inner_in_use.update
        if update is None:
            return np.zeros(k, dtype=np.int64)
        cells = np.zeros((k, 2), dtype=np.uint64)
        cells[:, 1] = np.arange(k, dtype=np.uint64)
        return update.draw(self._stream, (UPDATES << 56 | segment, interval << _INDEX_BITS), cells ^ tag)

    def _mu(self, test: AboveThreshold, use: int, key: int, tag: Tags, t: int) -> int:
        block, held = t >> BLOCK_BITS, self._blocks.get((use, key))
        if held is None or held[0] != block:
            held = block, test.mu_block(self._stream, use << 56, tag, block)
            self._blocks[use, key] = held
        return held[1][t & (BLOCK_TICKS - 1)]


class OrderStatistics(Domained):
    """What the order statistics share: up to two levels, as their weights say.

    Guarantee: of `guarantee`, for the content of one event, over all ticks of an epoch together, on
    streams that may react to what was published (zCDP: at integer orders). Nothing of the segments
    depends on the intervals in them, so the outer level is one mechanism and the inner ones, given
    its outcome, are disjoint in ticks: their costs add, each taken once.

    Args:
        config: public parameters.
        unit: whose presence is hidden.

    Raises:
        ValueError: the budget cannot be met, or needs noise that no table has.
    """

    kind = ""
    law = "sum"
    # Of each part, its weight in the budget: in zCDP, and as printed in pure epsilon. The parts
    # also say which levels there are: segments ("outer_test", "columns"), intervals ("test",
    # "sums").
    weights: Mapping[str, tuple[int, int]] = MappingProxyType({})
    weights_of_several: Mapping[str, tuple[int, int]] = MappingProxyType({})
    segments: Segments | None = None
    inner: IntervalRule | None = None

    def __init__(self, config: MaxConfig, unit: str = "event") -> None:
        self.config = config
        self.queries = Queries(config.asked, config.domain)
        self._domain = tuple(label.encode() for label in config.domain)
        share = shares_of(config, self.weights if self.queries.k == 1 else self.weights_of_several)
        spent: dict[str, Fraction] = {}
        tv = 0.0
        if "columns" in share:
            beta = config.beta / (2 if "sums" in share else 1)
            self.segments = Segments.of(config, share["outer_test"], share["columns"], beta)
            spent, tv = self.segments.spent, self.segments.tv
        if "sums" in share:
            test, sums, updates = share["test"], share["sums"], share.get("updates")
            self.inner = IntervalRule.of(config, self.queries.k, test, sums, updates)
            spent, tv = spent | self.inner.spent, tv + self.inner.tv
        self._guarantee, self._cost = settle(config, unit, share, spent, tv)
        # Every segment's numbers, so that what no table can serve is refused now and not at a tick.
        last = self.segments.most if self.segments is not None else 1
        numbered = range(1, last + 1) if self.inner is not None else ()
        self._intervals = tuple(self._make_intervals(self.inner_in_use, segment) for segment in numbered)

    def intervals(self, segment: int) -> Intervals:
        """Return the inner level's numbers in a segment, from 1."""
        return self._intervals[segment - 1]

    def _make_intervals(self, inner: IntervalRule, segment: int) -> Intervals:
        segments = self.segments_in_use
        # Segment j's part of half of beta: 1 / (j (j + 1)) adds up to 1.
        beta = self.config.beta / (2 * segment * (segment + 1))
        return inner.intervals(segments.growth(segment), beta, segments.column_error(segment))

    def error(self, segment: int) -> float:
        """Return the bound on this segment's answers, with probability 1 - beta over the epoch.

        For a query of labels: how far the sums it names may fall short of those it should name.
        """
        if self.inner is not None:
            numbers = self.intervals(segment)
            return numbers.error + (numbers.spread if self.queries.names_labels else 0.0)
        segments = self.segments_in_use
        return segments.growth(segment) + segments.column_error(segment)

    # ---- what every mechanism has
    # ----------------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        return self._guarantee

    def cost(self) -> Cost:
        return self._cost

    def public(self) -> Mapping[str, object]:
        config = self.config
        found: dict[str, object] = {
            **head(self.kind, config, self.guarantee),
            "accounting": config.accounting,
            "beta": repr(config.beta),
            "horizon": config.ticks,
            "queries": list(self.queries.names),
            "domain": domain_hash(config.domain),
        }
        if self.segments is not None:
            found["segments"] = self.segments.public()
        if self.inner is not None:
            found["partition"] = {
                **self.inner.public(),
                "intervals": [[one.step, one.clearance, one.capacity] for one in self._intervals],
            }
        return found

    def sd(self, t: int) -> float:
        """Return a bound on the sd of a column's noise at tick t; `error` adds what closes late."""
        check_tick(self.kind, t, self.config.ticks)
        variance, segment = 0.0, 1
        if self.segments is not None:
            segment = min(t + 1, self.segments.most)
            variance += self.segments.column_variance(segment)
        if self.inner is not None:
            capacity = max(self.intervals(one).capacity for one in range(1, segment + 1))
            variance += self.inner.column_variance(capacity)
        return float(np.sqrt(variance))

    def init(self) -> State:
        return MaxState()

    def noise(self, stream: NoiseStream) -> Noise:
        return MaxNoise(self, stream)

    def meet_key(self, state: State, key: int, tags: Tags, labels: Sequence[bytes]) -> None:
        """Give every column of the domain its row; all sums are 0."""
        super().meet_key(state, key, tags, labels)
        zeros = np.zeros(len(self._domain), dtype=np.int64)
        _of(state).set(key, KeyState(1, 1, 0, self._first_thresholds(zeros, 1), zeros, zeros, zeros))

    def step(self, state: State, t: int, contributions: Parts, noise: Noise) -> tuple[State, Answers]:
        """Answer as of the last segment or interval that ended; see `Mechanism.step`."""
        check_tick(self.kind, t, self.config.ticks)
        own = _of(state)
        if not isinstance(noise, MaxNoise):
            raise TypeError(f"noise = {noise!r}: must be this mechanism's own")
        columns = state.ledger
        for part, key_index in contributions:
            columns.merge(part, key_index, add_rows=False)
            for key in key_index[key_index >= 0].tolist():
                own.key(key).stale = True
        return state, Answers({key: self._tick(own, key, t, noise) for key in range(len(own.of))}, None)

    # ---- one stream key
    # --------------------------------------------------------------------------------------------

    def _tick(self, state: MaxState, key: int, t: int, noise: MaxNoise) -> Mapping[str, object]:
        one, tag = state.key(key), state.key_tags[key : key + 1]
        if one.stale:
            self._look(state, key, one)
        if self.segments is not None and one.segment < self.segments.most:
            if one.outer_tau is None:
                one.outer_tau = noise.outer_tau(tag, one.segment)
            threshold = self.segments.threshold(one.segment) + one.outer_tau
            if one.outer + noise.outer_mu(key, tag, t) > threshold:
                self._end_segment(state, key, one, t, noise)
                return self._answer(one)
        if self.inner is not None and one.interval <= self.intervals(one.segment).capacity:
            if one.tau is None:
                one.tau = noise.inner_tau(tag, one.segment, one.interval)
            if one.gap + noise.inner_mu(key, tag, t) > one.tau:
                self._close_interval(state, key, one, t, noise)
        return self._answer(one)

    def _look(self, state: MaxState, key: int, one: KeyState) -> None:
        """Work out what the comparisons need, after a column, G, N or a threshold changed."""
        sums = self._sums(state, key) + one.start
        if self.segments is not None:
            one.outer = int(self.queries.values(sums).max())
        if self.inner is not None:
            one.gap = int((self.queries.values(sums + one.noise) - one.thresholds).max())
        one.stale = False

    def _end_segment(self, state: MaxState, key: int, one: KeyState, t: int, noise: MaxNoise) -> None:
        one.start = one.start + noise.outer_columns(self._tags(state, key), one.segment)
        one.noise = np.zeros_like(one.noise)
        one.segment, one.interval, one.outer_tau = one.segment + 1, 1, None
        one.shown = self._sums(state, key) + one.start
        one.thresholds = self._first_thresholds(one.shown, one.segment)
        self._note(one, t)

    def _close_interval(self, state: MaxState, key: int, one: KeyState, t: int, noise: MaxNoise) -> None:
        numbers, sums = self.intervals(one.segment), self._sums(state, key) + one.start
        if self.queries.k == 1:
            one.thresholds = one.thresholds + numbers.step
        else:
            tag = state.key_tags[key : key + 1]
            update = noise.updates(tag, one.segment, one.interval, self.queries.k)
            reached = self.queries.values(sums + one.noise) + update > one.thresholds - numbers.clearance
            one.thresholds = one.thresholds + numbers.step * reached
        one.noise = noise.inner_columns(self._tags(state, key), one.segment, one.interval)
        one.interval += 1
        one.shown = sums + one.noise
        self._note(one, t)

    def _note(self, one: KeyState, t: int) -> None:
        one.since, one.tau, one.answer = t, None, {}
        one.changed = one.stale = True

    def _first_thresholds(self, sums: NDArray[np.int64], segment: int) -> NDArray[np.int64]:
        if self.inner is None:
            return np.zeros(0, dtype=np.int64)
        return self.queries.values(sums) + self.intervals(segment).step

    def _answer(self, one: KeyState) -> Mapping[str, object]:
        if not one.answer:
            answers = self.queries.answers(one.shown, made=one.since > 0)
            head = answers[0] if len(answers) == 1 else {"answers": answers}
            one.answer = {**head, "since": one.since, "error": round(self.error(one.segment), 4)}
        return one.answer

    def _sums(self, state: MaxState, key: int) -> NDArray[np.int64]:
        d = len(self._domain)
        return state.ledger.counts[key * d : (key + 1) * d]

    def _tags(self, state: MaxState, key: int) -> Tags:
        d = len(self._domain)
        return state.ledger.tags[key * d : (key + 1) * d]

    # ---- levels that are in use
    # ------------------------------------------------------------------------------------

    @property
    def segments_in_use(self) -> Segments:
        if self.segments is None:
            raise TypeError(f"{self.kind} has no segments")
        return self.segments

    @property
    def inner_in_use(self) -> IntervalRule:
        if self.inner is None:
            raise TypeError(f"{self.kind} has no intervals")
        return self.inner

    def sum_noise(self, segment: int) -> SumNoise:
        """Return H in a segment."""
        return self.inner_in_use.noise(self.intervals(segment).capacity)


def _of(state: State) -> MaxState:
    if not isinstance(state, MaxState):
        raise TypeError(f"state = {state!r}: must be this mechanism's own")
    return state
