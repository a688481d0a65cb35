"""Statistics that paper 001's mechanisms add noise to (`mechanisms.md` 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.contract.adapters import NAME, block, counter_moves
from tests.contract.coupling import Adapter, Events, Moves, Test, World
from tests.contract.stage import Run, Tick
from workers.arrays.types import Longs
from workers.mechanisms.counters.haar import HaarCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.order_statistics import engine
from workers.mechanisms.order_statistics.column_sums import LaplaceTree
from workers.mechanisms.order_statistics.engine import KeyState, MaxState, OrderStatistics


@dataclass(frozen=True)
class Stand:
    segment: int
    interval: int
    thresholds: Longs
    start: Longs
    noise: Longs


class Maxima(Adapter):
    """bounded_max, doubling, two_level, two_level_k.

    The event lies in one segment J and one interval I of it. Its part in the sums ends with the
    columns' fresh noise at the end of J, and with the counter's noise at the close of I; until then
    it affects the comparisons of J, and of I.
    """

    def note(self, run: Run) -> object:
        one = _key_state(run)
        columns = (one.thresholds, one.start, one.noise)
        return Stand(one.segment, one.interval, *(column.copy() for column in columns))

    def private(self, run: Run) -> object:
        """Return all noisy sums (a query shows one, or a label) and the thresholds from them."""
        one = _key_state(run)
        return one.segment, one.interval, one.thresholds.tolist(), one.shown.tolist()

    def moves(self, first: World, other: Sequence[Tick], events: Events, sign: int) -> Moves:
        mechanism, found = self.mechanism, Moves()
        assert isinstance(mechanism, OrderStatistics)
        [(tick, items)] = events
        notes = [note for note in first.notes if isinstance(note, Stand)]
        ticks = range(tick, len(first.stream) + 1)
        j, i = notes[tick - 1].segment, notes[tick - 1].interval
        ended = next((t for t in ticks if notes[t].segment > j), None)
        closed = next((t for t in ticks if notes[t].segment == j and notes[t].interval > i), None)
        streams = (first.stream, other) if sign > 0 else (other, first.stream)
        if mechanism.segments is not None and j < mechanism.segments.most:
            last = ended or len(first.stream)
            moved = [self._outer(streams, notes[t - 1], t) for t in range(tick, last + 1)]
            found.tests.append(
                _test((engine.OUTER_TAU << 56, j), engine.OUTER_MU, ended, moved, sign)
            )
            if ended:
                for label, amount in items.items():
                    found.add(block(label, (engine.OUTER_COLUMNS << 56, j)), -sign * amount)
        if mechanism.inner is not None and i <= mechanism.intervals(j).capacity and ended != tick:
            last = closed or (ended - 1 if ended else len(first.stream))
            moved = [self._inner(streams, notes[t - 1], t) for t in range(tick, last + 1)]
            found.tests.append(
                _test((engine.INNER_TAU << 56 | j, i), engine.INNER_MU, closed, moved, sign)
            )
        if closed:
            place = engine.INNER_COLUMNS << 56 | j << 8
            for label, amount in items.items():
                for (high, low), change in self._sums(j, i, amount):
                    found.add(block(label, (place ^ high, low)), -sign * change)
            if mechanism.queries.k > 1:
                stand = notes[closed - 1]
                begun = stand.start + stand.noise
                sums = (self._exact(stream, closed) + begun for stream in (first.stream, other))
                one, two = map(mechanism.queries.values, sums)
                for index, change in enumerate((two - one).tolist()):
                    found.add(block(None, (engine.UPDATES << 56 | j, i << 32 ^ index)), -change)
        return found

    def _outer(self, streams: Sequence[Sequence[Tick]], stand: Stand, t: int) -> int:
        assert isinstance(self.mechanism, OrderStatistics)
        sums = (self._exact(one, t) + stand.start for one in streams)
        without, more = (self.mechanism.queries.values(one).max() for one in sums)
        return int(more - without)

    def _inner(self, streams: Sequence[Sequence[Tick]], stand: Stand, t: int) -> int:
        assert isinstance(self.mechanism, OrderStatistics)
        sums = (self._exact(one, t) + stand.start + stand.noise for one in streams)
        values = map(self.mechanism.queries.values, sums)
        without, more = ((one - stand.thresholds).max() for one in values)
        return int(more - without)

    def _sums(
        self, segment: int, interval: int, amount: int
    ) -> Iterator[tuple[tuple[int, int], int]]:
        """Move the counter over intervals; the event is in one of them."""
        assert isinstance(self.mechanism, OrderStatistics)
        noise = self.mechanism.sum_noise(segment)
        if isinstance(noise, LaplaceTree):
            for level in range(noise.levels):
                yield (level, (interval - 1) >> level), amount
        else:
            assert isinstance(noise, HaarCounter | TreeCounter)
            public: Mapping[str, object] = noise.public()
            yield from counter_moves(public, interval, amount)

    def _exact(self, stream: Sequence[Tick], t: int) -> Longs:
        labels = [label.decode() for label in self.mechanism.domain()]
        ticks = [tick.get(NAME, {}) for tick in stream[:t]]
        return np.array([sum(tick.get(label, 0) for tick in ticks) for label in labels])


def _key_state(run: Run) -> KeyState:
    assert isinstance(run.state, MaxState)
    [one, *_] = run.state.of.values()
    assert one is not None
    return one


def _test(
    threshold: tuple[int, int], use: int, stop: int | None, moved: Sequence[int], sign: int
) -> Test:
    """Return a run's moves: the threshold by the largest change, the last test by the rest."""
    reach, last = max(moved), None
    if stop is not None:
        last = block(None, (use << 56, stop)), reach - moved[-1] if sign > 0 else moved[-1]
    return Test((block(None, threshold), reach if sign > 0 else 0), last, reach)
