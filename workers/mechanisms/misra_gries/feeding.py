"""Algorithm 1 of Misra-Gries for many items at once: it ends where feeding one item after another ends, without doing that.

What: `Feeding` has the counters of a sketch, and makes passes over a batch of items ascending by key. A pass feeds each of its items once,
or some number of times in a row.
Why two ways: where every item counts one, whole rounds are arithmetic. With m counters at zero, m + 1 misses put in m keys and lower
everybody by one, again and again, with m growing as counters get to zero; only the last round's keys stay. That goes on until a counter
is at zero that is still to be hit. Such a stretch is a few array operations over the k counters, whatever the number of items. Where
weights differ, which counter is next depends on every single item: a heap says so, in O(log k) for each item, not for each occurrence.

    Symbol      Here
    k           len(counts)
    hit, miss   an item whose key is, is not in the sketch at its turn
    dummies     counters that were never used: larger than every key, as in the paper
    rank        place of a counter's key among all keys of sketch and batch: "the smallest key with count zero" has the smallest
    due         which item of the pass will be a hit at this counter; if the key is replaced before, it *turns* into a miss

The heap holds the k counters and one more, *idle*, that stands for "lower everybody", by height: the count plus how often everybody was
lowered. A miss of weight w takes the lowest counter, at height h, and leaves it at h + w. If that was the idle one (it comes last among
equals, so no counter was zero), everybody was lowered to the end of the miss, or down to the next lowest counter; in the second case the
miss gets that counter and the rest of its weight. Either way the lower of the two is idle from now on.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters using the Misra-Gries Sketch",
Algorithm 1. That both ways end where it ends is derived here, and tested item by item.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
# Which items, ascending (None: all), and how many of each in a row, at least one (None: one).
Pass = tuple[Integers | None, Integers | None]

# Measured, in microseconds: a stretch, and for each counter in it; a counter or an item of the heap.
_STRETCH_US, _STRETCH_COUNTER_US, _HEAP_US = 40.0, 0.04, 0.5
# So many stretches a pass takes that is short, derived: hits, a first round, whole rounds, a last one.
_FEW_STRETCHES = 4


class Feeding:
    """The counters while a batch is fed. Sensitive: its repr shows none of them."""

    def __init__(self, size: int, items: int, counts: Integers, before: Integers, known: NDArray[np.bool_]) -> None:
        """
        Args:
            size: k.
            items: how many the batch has.
            counts: int64 (held,), the counters in use, ascending by key.
            before: int64 (held,), how many items of the batch have a smaller key than each.
            known: bool (held,), whether the next item has that very key.
        """
        self._held = held = len(counts)
        self._items = items
        # A rank is (items before the key, number of the counter), or (number of the item, all ones) for a key of the batch.
        self._bits = size.bit_length()
        self._ones = (1 << self._bits) - 1
        self._counts: Integers = np.zeros(size, dtype=np.int64)
        self._counts[:held] = counts
        self._rank: Integers = (items << self._bits) + np.arange(size, dtype=np.int64)
        self._rank[:held] = (before << self._bits) + np.where(known, self._ones, np.arange(held))

    def __repr__(self) -> str:
        return f"Feeding({len(self._counts)} counters, {self._items} items)"

    def result(self) -> tuple[NDArray[np.bool_], Integers, Integers]:
        """The counters in use, ascending by key.

        Returns:
            Whether the key is one of the batch, (n,) bool; the item's number there, or else the counter's own before, (n,); counts, (n,).
        """
        slots = np.argsort(self._rank)
        number = self._rank[slots] & self._ones
        of_batch = number == self._ones
        used = of_batch | (number < self._held)
        slots, number, of_batch = slots[used], number[used], of_batch[used]
        return of_batch, np.where(of_batch, self._rank[slots] >> self._bits, number), self._counts[slots]

    def feed(self, passes: Sequence[Pass]) -> None:
        """Feeds passes one after another.

        Args:
            passes: none of them empty.
        """
        k = len(self._counts)
        stretch_us = _STRETCH_US + k * _STRETCH_COUNTER_US
        lengths = [self._items if chosen is None else len(chosen) for chosen, _ in passes]
        if (k + sum(lengths)) * _HEAP_US < len(passes) * _FEW_STRETCHES * stretch_us:
            self._by_heap(passes)
            return
        for n, (chosen, weights) in zip(lengths, passes, strict=True):
            under_way = _Pass(self, np.arange(n) if chosen is None else chosen, weights)
            stretches = int(n * _HEAP_US / stretch_us) + 2 * _FEW_STRETCHES
            while under_way.at < n and stretches and (weights is None or not under_way.misses):
                stretches -= 1
                under_way.stretch()
            if under_way.at < n:
                left = np.arange(under_way.at, n)
                self._by_heap([(left if chosen is None else chosen[left], weights)])

    def _by_heap(self, passes: Sequence[Pass]) -> None:
        """Feeds passes item by item."""
        bits, ones = self._bits, self._ones
        # A counter is one number: height, then rank. `idle` has the largest rank.
        idle = (self._items + 1) << bits
        shift = idle.bit_length()
        ranks_only = (1 << shift) - 1
        ranks = self._rank.tolist()
        heap = [count << shift | rank for count, rank in zip(self._counts.tolist(), ranks, strict=True)]
        now = dict(zip(ranks, heap, strict=True))  # a hit is noted here; the heap is told when it comes to the counter
        heap.append(idle)
        now[idle] = idle
        heapify(heap)

        def lowest() -> int:
            low: int = heap[0]
            while now[low & ranks_only] != low:
                heapreplace(heap, now[low & ranks_only])
                low = heap[0]
            return low

        for chosen, weights in passes:
            items = np.arange(self._items) if chosen is None else chosen
            of_pass = (items << bits | ones).tolist()
            added = [1 << shift] * len(of_pass) if weights is None else [weight << shift for weight in weights.tolist()]
            for rank, height in zip(of_pass, added, strict=True):
                if rank in now:
                    now[rank] += height
                    continue
                low = heap[0]
                name = low & ranks_only
                if now[name] != low:
                    low = lowest()
                    name = low & ranks_only
                after = low - name + height + rank
                if name == idle:
                    heappop(heap)
                    low = lowest()
                    name = low & ranks_only
                    now[idle] = min(after, low) >> shift << shift | idle
                    heappush(heap, now[idle])
                    if after >> shift <= low >> shift:
                        continue
                del now[name]
                now[rank] = after
                heapreplace(heap, after)
        base = now.pop(idle) >> shift
        self._rank[:] = list(now)
        self._counts[:] = [(counter >> shift) - base for counter in now.values()]


class _Pass:
    """One pass under way.

    Attributes:
        n: items of the pass.
        at: how many of them have been fed.
        misses: how many of those that are left are misses, as far as is known: one that turns is one more.
    """

    def __init__(self, feeding: Feeding, chosen: Integers, weights: Integers | None) -> None:
        self._counts, self._rank = feeding._counts, feeding._rank  # changed in place
        self._bits, self._ones = feeding._bits, feeding._ones
        self._chosen, self._weights = chosen, weights
        self.n, self.at = len(chosen), 0
        item = np.where(self._rank & self._ones == self._ones, self._rank >> self._bits, feeding._items)
        place = np.searchsorted(chosen, item)
        self._due = np.where(chosen[np.minimum(place, self.n - 1)] == item, place, self.n)
        self._hits = np.sort(self._due[self._due < self.n])  # had or to come; what turned is taken out
        self.misses, self._fed = self.n - len(self._hits), 0

    def hit(self, end: int) -> None:
        """Goes on to item `end`: those before it that are still due have their turn."""
        slots = np.flatnonzero(self._due < end)
        self._counts[slots] += 1 if self._weights is None else self._weights[self._due[slots]]
        self._due[slots] = self.n
        self.at = end

    def stretch(self) -> None:
        """Feeds items that weigh one: whole rounds, or part of one where it ends or a counter at zero may be hit."""
        if not self.misses:
            self.hit(self.n)
            return
        counts, due = self._counts, self._due < self.n
        zero = np.flatnonzero(counts == 0)
        if due[zero].any():
            self._round(zero)
            return
        if self.misses <= len(zero):
            items = self._misses(self.misses)
            self.hit(self.n)
            self._put(self._first(zero, len(items)), items, 1)
            return
        rounds, spent = self._whole_rounds(np.sort(counts[~due]), int(counts.min(where=due, initial=self.misses)))
        taken = np.flatnonzero(~due & (counts < rounds))
        items = self._misses(spent, len(taken) + 1)
        self.hit(int(items[-1]) + 1)
        counts -= rounds
        self._put(taken, items[:-1], 0)

    def _whole_rounds(self, free: Integers, most: int) -> tuple[int, int]:
        """How often everybody can be lowered, at most `most` times, and how many misses that takes.

        A round takes one, and one for each counter that is at zero by then. To lower by d takes d + sum of max(0, d - c) over the counters
        c that nothing is due at (a hit, ascending); those where something is due stay above zero until then.
        """
        free = np.minimum(free, self.misses + 1)  # which is already too much: larger ones could pass 64 bits in the sums
        j = np.arange(1, len(free) + 1)
        cost = (j + 1) * free - np.cumsum(free)  # for d = c_j: the j smallest have been at zero for c_j - c rounds
        below = int(np.searchsorted(cost, self.misses, side="right"))
        rounds = min(most, (self.misses + int(free[:below].sum())) // (below + 1))
        below = int(np.searchsorted(free, rounds))
        return rounds, (below + 1) * rounds - int(free[:below].sum())

    def _round(self, zero: Integers) -> None:
        """Misses take the counters that are zero, but for those that are hit before it is their turn."""
        due = self._due[zero]
        waiting = np.flatnonzero(due < self.n)
        places = _places(self._rank[zero], waiting)  # in the order in which counters are taken
        by_due = np.argsort(due[waiting])
        waiting, places = waiting[by_due], places[by_due]
        rooms = due[waiting] - np.searchsorted(self._hits, due[waiting]) - self._fed  # misses before each
        raised: list[int] = []  # their places, ascending
        is_taken = np.ones(len(zero), dtype=np.bool_)
        turned = 0
        for index, place, room in zip(waiting.tolist(), places.tolist(), rooms.tolist(), strict=True):
            if room + turned >= len(zero) - len(raised):
                break  # all others are taken by then
            if place - bisect(raised, place) < room + turned:
                turned += 1
            else:
                insort(raised, place)
                is_taken[index] = False
        taken = zero[is_taken]
        misses = self._due[taken]
        misses = misses[misses < self.n]
        self._hits = np.delete(self._hits, np.searchsorted(self._hits, misses))
        self.misses += len(misses)
        self._due[taken] = self.n
        items = self._misses(min(len(taken), self.misses))
        if len(items) < len(taken):
            self.hit(self.n)
        else:
            self.hit(int(items[-1] if len(items) else due[~is_taken].max()) + 1)
        self._put(self._first(taken, len(items)), items, 1)

    def _first(self, slots: Integers, count: int) -> Integers:
        """Those of the smallest keys, in no order: which of them gets which item makes no difference."""
        return slots if count == len(slots) else slots[np.argpartition(self._rank[slots], count)[:count]]

    def _misses(self, count: int, last: int | None = None) -> Integers:
        """Which items the next `count` misses are; of those the `last` ones, or all."""
        self._fed += count
        self.misses -= count
        numbers = np.arange(self._fed - (count if last is None else last), self._fed)
        return numbers + np.searchsorted(self._hits - np.arange(len(self._hits)), numbers, side="right")

    def _put(self, slots: Integers, items: Integers, count: int) -> None:
        """Gives counters to items; nothing is due there."""
        self._rank[slots] = self._chosen[items] << self._bits | self._ones
        self._counts[slots] = count


def _places(ranks: Integers, chosen: Integers) -> Integers:
    """How many of `ranks`, which all differ, are smaller than each of those that `chosen` names."""
    order = np.argsort(ranks[chosen])
    between = np.searchsorted(ranks[chosen][order], ranks, side="right")
    places = np.empty(len(chosen), dtype=np.int64)
    places[order] = np.cumsum(np.bincount(between, minlength=len(chosen)))[: len(chosen)]
    return places
