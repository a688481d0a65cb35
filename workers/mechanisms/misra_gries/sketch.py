"""The Misra-Gries sketch on columns: k counters for a stream of any length over any domain.

`Sketch.feed` takes a whole tick and ends exactly where Algorithm 1 ends when fed the same items one
by one; `Sketch.add` merges the tick in as an exact histogram. Fed one by one, neighbouring sketches
differ in one counter, or in all by one (Lemma 2), and noise need not grow with k; merged, they
differ by one in up to k counters however many items one event has (Section 7, Lemma 1). With n
items fed, the estimate of a true count f(x) lies in [f(x) - n/(k+1), f(x)] at every step. Counters
never used are dummies, larger than every key, as in the paper.

Order: round j feeds the j-th occurrence of each item by ascending 128-bit tag; the last round
(`ROUNDS`) feeds all remaining occurrences of an item in a row. The order of the pairs (item,
occurrence number) is therefore independent of the data, and an item added to a tick is one element
inserted at its pair's place: the neighbours of Lemma 2. An order that depends on the stream
(arrival, count, first seen, the sketch's own items first) would differ between neighbours.
"Smallest key" is the smallest tag.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1; Agarwal et al., "Mergeable Summaries", for the merge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import NO_TEXTS, Texts, readonly_contiguous
from workers.arrays.types import Bools, Longs, Tags
from workers.mechanisms.misra_gries.feeding import Counters, feed_rest, feed_rounds


class SortedTags:
    """Distinct 128-bit tags (n, 2), in any order, which can be looked up by bisection. Secret.

    `rows` (n,) has their indices in ascending order, `_uppers` (n,) their upper bits in that order;
    the tags are not copied. Usually no two tags have the same upper bits.
    """

    def __init__(self, tags: Tags) -> None:
        """Sort the indices of distinct tags (n, 2) by all 128 bits; the tags stay as they are."""
        n = len(tags)
        self.tags = tags
        # A row's number fits the lowest bits of a word, whose other bits are a tag's upper ones.
        self._bits = np.uint64(max(n - 1, 1).bit_length())
        # Sorting such words takes three fifths of `argsort`'s time (measured).
        uppers = tags[:, 0] >> self._bits
        uppers <<= self._bits
        uppers |= np.arange(n, dtype=np.uint64)
        uppers.sort()
        self.rows: Longs = (
            uppers & ((np.uint64(1) << self._bits) - np.uint64(1))
        ).view(np.int64)
        uppers >>= self._bits
        self._uppers = uppers
        # The few tags that share their upper bits are sorted again, by all bits. They stay in
        # their group, as groups are ascending by upper bits.
        shared = np.zeros(n, dtype=bool)
        shared[1:] = uppers[1:] == uppers[:-1]
        shared[:-1] |= shared[1:]
        if len(places := np.flatnonzero(shared)):
            rows = self.rows[places]
            alike = tags.take(rows, axis=0)
            self.rows[places] = rows[np.lexsort((alike[:, 1], alike[:, 0]))]

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, places: Longs) -> SortedTags:
        """Return the tags at these places of `rows`, ascending, without sorting again."""
        part = object.__new__(SortedTags)
        part.rows = self.rows[places]
        part._uppers = self._uppers[places]
        part.tags = self.tags
        part._bits = self._bits
        return part

    def take(self, places: Longs) -> Tags:
        """Return the tags at these places of `rows` (n,): uint64 (m, 2)."""
        return self.tags.take(self.rows[places], axis=0)

    def all(self) -> Tags:
        """Return the tags in ascending order, uint64 (n, 2)."""
        return self.tags.take(self.rows, axis=0)

    def places(self, keys: Tags) -> tuple[Longs, Bools]:
        """Return the index in `tags` of each key (m, 2), and whether it is known.

        The index of an unknown key means nothing.
        """
        before, is_known = self.positions(keys)
        if not len(self):
            return before, is_known
        # An unknown key may be above all tags.
        return self.rows[np.minimum(before, len(self) - 1)], is_known

    def positions(self, keys: Tags) -> tuple[Longs, Bools]:
        """Return for every key (m, 2) the number of smaller tags, and whether the next is equal."""
        n = len(self.rows)
        uppers = keys[:, 0] >> self._bits
        # A key's position is in low..high: tags before low have smaller upper bits, those from high
        # on have larger ones.
        low = np.searchsorted(self._uppers, uppers).astype(np.int64)
        high = low.copy()
        # Open keys are those whose upper bits a tag has: one as a rule, rarely several.
        open_keys = np.flatnonzero(low < n)
        open_keys = open_keys[self._uppers[low[open_keys]] == uppers[open_keys]]
        high[open_keys] += 1
        next_tags = np.minimum(high[open_keys], n - 1)
        several = open_keys[self._uppers[next_tags] == uppers[open_keys]]
        high[several] = np.searchsorted(self._uppers, uppers[several], side="right")
        is_known = np.zeros(len(keys), dtype=bool)
        # Bisection of all open keys at once, until low meets high: tags before low are smaller,
        # those from high on are not. Usually one tag has a key's upper bits: it loops once.
        while len(open_keys := open_keys[low[open_keys] < high[open_keys]]):
            middle = (low[open_keys] + high[open_keys]) // 2
            tags = self.take(middle)
            sought = keys[open_keys]
            smaller = _smaller(tags, sought)
            same = (tags == sought).all(axis=1)
            is_known[open_keys[same]] = True
            low[open_keys[smaller]] = middle[smaller] + 1
            low[open_keys[same]] = middle[same]
            high[open_keys[~smaller]] = middle[~smaller]
        return low, is_known


def _smaller(tags: Tags, others: Tags) -> Bools:
    """Return which tags (n, 2) are smaller than the others of the same row."""
    upper = tags[:, 0]
    other = others[:, 0]
    smaller: Bools = (upper < other) | ((upper == other) & (tags[:, 1] < others[:, 1]))
    return smaller


# Incremented when the sketch of the same items changes.
SKETCH_VERSION = 3
# Rounds per tick; the last takes all that is left. A change needs a new SKETCH_VERSION.
ROUNDS = 24


@dataclass(frozen=True, slots=True)
class SketchBatch:
    """One tick's n distinct items of a stream key, ascending by tag."""

    tags: SortedTags
    labels: Texts
    rows: Longs  # indices in `labels`, which may hold other labels too
    counts: Longs  # above 0

    def __repr__(self) -> str:
        return f"SketchBatch({len(self.counts)} items)"

    def part(self, places: Longs) -> SketchBatch:
        """Return the items at these places, ascending."""
        tags = self.tags.part(places)
        rows = self.rows[places]
        return SketchBatch(tags, self.labels, rows, self.counts[places])

    def within(self, domain: SortedTags) -> SketchBatch:
        """Return the items that a domain lists."""
        is_known = domain.positions(self.tags.all())[1]
        return self if is_known.all() else self.part(np.flatnonzero(is_known))


def batch(
    tags: Tags, labels: Texts, counts: Longs, rows: Longs | None = None
) -> SketchBatch:
    """Return the batch of distinct items, given in any order.

    `rows` are their indices in `labels`; None: `labels` are in the order of the items.
    """
    ascending = SortedTags(tags)
    counts = counts.take(ascending.rows)
    rows = ascending.rows if rows is None else rows[ascending.rows]
    return SketchBatch(ascending, labels, rows, counts)


class Sketch:
    """At most `size` counters (k), ascending by tag. Sensitive."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size = {size}: must be at least 1")
        self.size = size
        self.tags: Tags = np.empty((0, 2), dtype=np.uint64)
        self.labels: Texts = NO_TEXTS
        self.counts: Longs = np.empty(0, dtype=np.int64)
        self.total = 0  # items fed

    def feed(self, items: SketchBatch, rounds: Rounds | None = None) -> Rounds | None:
        """Run Algorithm 1 on every occurrence of the items.

        Returns the `rounds` of the items, for the next sketch that is fed with them: those given,
        else new ones, or None if none were needed.
        """
        if not len(items.counts):
            return rounds
        before, known = items.tags.positions(self.tags)
        self.total += int(items.counts.sum())
        keys = len(known) + len(items.counts) - np.count_nonzero(known)
        # Every miss finds an unused counter, and none at zero, which it would take first. So
        # nothing is decremented or replaced, and exact counts are added.
        if keys <= self.size and (self.counts > 0).all():
            self._merge(items)
            return rounds
        rounds = rounds or Rounds(items.counts)
        is_new, places, counts = _fed(self.size, rounds, self.counts, before, known)
        # Tags and labels of the counters: from the batch, or from this sketch as it was.
        new = places[is_new]
        tags = np.empty((len(places), 2), dtype=np.uint64)
        tags[is_new] = items.tags.take(new)
        tags[~is_new] = self.tags.take(places[~is_new], axis=0)
        rows = places.copy()
        rows[is_new] = len(self.labels) + np.arange(len(new))
        self.labels = Texts.concat(
            (self.labels, items.labels.take(items.rows[new]))
        ).take(rows)
        self.tags = tags
        self.counts = counts
        return rounds

    def add(self, items: SketchBatch) -> None:
        """Merge the batch in as an exact histogram; zero counters are dropped."""
        self.total += int(items.counts.sum())
        self._merge(items)

    def _merge(self, items: SketchBatch) -> None:
        """Add the batch's counts; if more than k are left, subtract the (k + 1)-th largest."""
        # For a counter with an item of the batch (`known`), `before` is the item's place there.
        before, known = items.tags.positions(self.tags)
        # First the counters whose item is not in the batch, then the items of the batch.
        absent = np.flatnonzero(~known)
        sums = np.concatenate((self.counts[absent], items.counts))
        sums[len(absent) + before[known]] += self.counts[known]
        if len(sums) > self.size:
            rank = len(sums) - self.size - 1
            sums -= np.partition(sums, rank)[rank]
        keep = np.flatnonzero(sums > 0)
        old = absent[keep[keep < len(absent)]]
        new = keep[keep >= len(absent)] - len(absent)
        labels = Texts.concat(
            (self.labels.take(old), items.labels.take(items.rows[new]))
        )
        tags = np.concatenate((self.tags[old], items.tags.take(new)))
        order = np.lexsort((tags[:, 1], tags[:, 0]))
        self.tags = np.ascontiguousarray(tags[order])
        self.counts = sums[keep][order]
        self.labels = labels.take(order)


def reduced(sketch: Sketch) -> Longs:
    """Return max(0, (k+1) c - sum of all c), of l1 sensitivity at most 2k - 1 (Algorithm 3)."""
    lowered = (sketch.size + 1) * sketch.counts - int(sketch.counts.sum())
    return np.maximum(lowered, 0)


def rounded(parts: Longs, size: int) -> Longs:
    """Return the counts from counts times size + 1: floor(x / (size + 1) + 1/2)."""
    return (2 * parts + size + 1) // (2 * size + 2)


def feed(sketches: Iterable[Sketch], items: SketchBatch) -> None:
    """Run Algorithm 1 in several sketches, sharing the batch's rounds."""
    rounds = None
    for sketch in sketches:
        rounds = sketch.feed(items, rounds)


class Rounds:
    """The rounds in which a batch of `n` items is fed, the same for every sketch. Sensitive.

    `counts` are the items' occurrences, ascending by tag: round j feeds one of each item that has
    at least j, the last round all that are left.
    """

    def __init__(self, counts: Longs) -> None:
        """Distribute `counts` (n,), above 0, to the rounds; items are ascending by tag."""
        self.n = len(counts)
        # As bytes, which compare eight times as fast as words.
        most = np.minimum(
            counts, ROUNDS, out=np.empty(self.n, dtype=np.uint8), casting="unsafe"
        )
        # A row for each round but the last, in bytes, padded to whole words of 32 bits.
        bits = np.zeros(
            (min(ROUNDS - 1, int(most.max())), -(-self.n // 32) * 4), dtype=np.uint8
        )
        for fed, items in enumerate(bits):
            items[: -(-self.n // 8)] = np.packbits(most > fed, bitorder="little")
        left = np.flatnonzero(most == ROUNDS)
        # (rounds, words): the items in each round but the last, a bit each, 32 a word.
        self.ones: NDArray[np.uint32] = readonly_contiguous(bits.view(np.uint32))
        # The items of the last round, ascending, and how many occurrences of each are left.
        self.items = readonly_contiguous(left)
        self.weights = readonly_contiguous(counts[left] - (ROUNDS - 1))


def _fed(
    size: int, rounds: Rounds, counts: Longs, before: Longs, is_known: Bools
) -> tuple[Bools, Longs, Longs]:
    """Feed a batch to a sketch, by the kernels of `feeding`.

    Args:
        size: the sketch's counters.
        rounds: of the batch.
        counts: of the counters in use, ascending by key.
        before: for each of them, how many items of the batch are smaller than its key.
        is_known: for each, whether the next item of the batch is its key.

    Returns for the counters in use afterwards, ascending by key: whether the key is an item of the
    batch; its place among these, or else among the counters before; and the count.
    """
    # The arrays of `Counters`. A rank's upper bits are how many items of the batch are smaller than
    # the counter's key; its lowest `slot_bits` are ones (`of_tick`) if the key is the next item,
    # else its slot. So ranks ascend as keys do, and counters never used come last.
    in_use = len(counts)
    slot_bits = size.bit_length()
    of_tick = (1 << slot_bits) - 1
    heights = np.zeros(size, dtype=np.int64)
    heights[:in_use] = counts
    ranks = (rounds.n << slot_bits) + np.arange(size, dtype=np.int64)
    ranks[:in_use] = (before << slot_bits) + np.where(
        is_known, of_tick, np.arange(in_use)
    )
    slot_of = np.empty(rounds.n, dtype=np.int32)  # untouched pages take no memory
    slot_of[before[is_known]] = np.flatnonzero(is_known)
    items = np.zeros(-(-rounds.n // 32) * 32, dtype=bool)
    items[before[is_known]] = True
    held_bits = np.packbits(items, bitorder="little").view(np.uint32)
    counters = Counters(heights, ranks, slot_of, held_bits, slot_bits)

    # Both change the arrays, and return by how much every counter has been decremented so far.
    lowered = feed_rounds(rounds.ones, counters)
    if len(rounds.items):
        by_rank = np.argsort(ranks).astype(np.int32)
        lowered = feed_rest(rounds.items, rounds.weights, by_rank, lowered, counters)

    # Read the keys back from the ranks, and drop counters that were never used.
    slots = np.argsort(ranks)
    counters_before = ranks[slots] & of_tick
    is_used = (counters_before == of_tick) | (counters_before < in_use)
    slots = slots[is_used]
    counters_before = counters_before[is_used]
    is_item = counters_before == of_tick
    places = np.where(is_item, ranks[slots] >> slot_bits, counters_before)
    return is_item, places, heights[slots] - lowered
