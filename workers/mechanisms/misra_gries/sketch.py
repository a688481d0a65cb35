"""The Misra-Gries sketch on columns: k counters for a stream of any length over any domain.

What: `Sketch.feed` takes a whole tick at a time and ends exactly where Algorithm 1 ends when it is
fed the same items one after another; `Sketch.add` takes the tick as an exact histogram that is
merged in. Why two ways in: fed one by one, neighbouring sketches differ in one counter, or in all
by one (Lemma 2), and noise need not grow with k; merged, they differ by one in up to k counters
however many items one event has (Section 7, Lemma 1).

    Symbol      Here
    k           `size`
    T, c        `tags` (with `labels`), `counts`: a key with count zero stays until needed
    dummies     counters never used: size - len(counts), larger than every key, as in the paper
    n           `total`, the items fed
    f(x)        true count of x; its estimate lies in [f(x) - n/(k+1), f(x)] at every step

Order: a tick is fed in rounds, each by ascending 128-bit tag: one of every item, one more of every
item that has a second, and so on; the last round (`ROUNDS`) takes all that an item has left in a
row. That is a fixed order of the pairs (item, how-manieth), which does not depend on the data. So
an item added to a tick, an n-th of its kind, is one element inserted at the place of its pair, with
all others in the order they had: the neighbours that Lemma 2 is about. An order that looked at the
stream (arrival, count, first seen, the sketch's own items first) would have to be the same for both
neighbours, and is not. "Smallest key" is the smallest tag. Rounds are what makes it fast, see
`feeding`: where items weigh one, each takes a few steps whatever k is; only the last round takes a
few more, the weights' logarithm at most.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1; Agarwal et al., "Mergeable Summaries", for the merge.

Tags in ascending order, sorted once: a tick's items, or the labels of a declared domain.

The upper bits of a tag with its row behind them are one word. To sort such words takes three
fifths of the time of `argsort`, and no 16 bytes of a tag are moved: a million of them take as long
as half of the sort (measured: 4 and 8 ms). A tag is read where two share their upper bits,
which is rare, and where somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Tags
from workers.arrays.texts import NO_TEXTS, Texts, fixed

Indices = NDArray[np.int64]


class SortedTags:
    """The order of tags that stay where they are. Secret, as tags are.

    Attributes:
        order: int64 (n,), the rows of all tags, ascending; equal ones in the order in which they
            stand.
        starts: int64 (m,), where in `order` each different tag begins; None where all differ.
        rows: int64 (m,), a row of each different tag, ascending.
    """

    def __init__(self, tags: Tags) -> None:
        """
        Args:
            tags: uint64 (n, 2), in any order; they are kept, not copied.
        """
        n = len(tags)
        self._tags = tags
        self._bits = np.uint64(max(n - 1, 1).bit_length())
        uppers = tags[:, 0] >> self._bits
        uppers <<= self._bits
        uppers |= np.arange(n, dtype=np.uint64)
        uppers.sort()
        order: Indices = (uppers & ((np.uint64(1) << self._bits) - np.uint64(1))).view(np.int64)
        uppers >>= self._bits
        self.order, self.rows, self._uppers = order, order, uppers
        self.starts: Indices | None = None
        alike = np.flatnonzero(uppers[1:] == uppers[:-1])
        if len(alike):
            self._tell_apart(alike)

    def __repr__(self) -> str:
        return f"SortedTags({len(self.rows)} tags)"

    def __len__(self) -> int:
        return len(self.rows)

    def _tell_apart(self, alike: Indices) -> None:
        """Put those in order that share their upper bits, and find the equal ones.

        Args:
            alike: places whose upper bits are those of the next.
        """
        shared = np.zeros(len(self.order), dtype=bool)
        shared[alike] = shared[alike + 1] = True
        places = np.flatnonzero(shared)
        rows = self.order[places]
        tags = self._tags.take(rows, axis=0)
        # They stay among themselves: each group is ascending by what it has in common.
        self.order[places] = rows[np.lexsort((tags[:, 1], tags[:, 0]))]
        first, second = (self._tags.take(self.order[alike + i], axis=0) for i in range(2))
        again = alike[(first == second).all(axis=1)] + 1
        if len(again):
            starts = np.delete(np.arange(len(self.order)), again)
            self.starts, self.rows, self._uppers = starts, self.order[starts], self._uppers[starts]

    def part(self, places: Indices) -> SortedTags:
        """Those at some places of `rows` (m,), ascending."""
        part = object.__new__(SortedTags)
        part.order = part.rows = self.rows[places]
        part.starts, part._uppers = None, self._uppers[places]
        part._tags, part._bits = self._tags, self._bits
        return part

    def take(self, places: Indices) -> Tags:
        """The tags at these places of `rows` (m,): uint64 (m, 2)."""
        return self._tags.take(self.rows[places], axis=0)

    def all(self) -> Tags:
        """All of them, each once, ascending: uint64 (m, 2)."""
        return self._tags.take(self.rows, axis=0)

    def positions(self, keys: Tags) -> tuple[Indices, NDArray[np.bool_]]:
        """For each of `keys` (m, 2), in any order, how many of the tags are smaller, and whether
        the next one is equal.
        """
        n, uppers = len(self.rows), keys[:, 0] >> self._bits
        low = np.searchsorted(self._uppers, uppers).astype(np.int64)
        high = low.copy()
        near = np.flatnonzero(low < n)
        near = near[self._uppers[low[near]] == uppers[near]]
        high[near] += 1
        more = near[self._uppers[np.minimum(high[near], n - 1)] == uppers[near]]
        high[more] = np.searchsorted(self._uppers, uppers[more], side="right")
        known = np.zeros(len(keys), dtype=bool)
        # Of the tags with a key's upper bits, mostly one: then this goes round once.
        while len(near := near[low[near] < high[near]]):
            middle = (low[near] + high[near]) // 2
            there, sought = self.take(middle), keys[near]
            smaller, same = _smaller(there, sought), (there == sought).all(axis=1)
            known[near[same]] = True
            low[near[smaller]] = middle[smaller] + 1
            low[near[same]] = middle[same]
            high[near[~smaller]] = middle[~smaller]
        return low, known


def _smaller(tags: Tags, others: Tags) -> NDArray[np.bool_]:
    """Whether each of `tags` (n, 2) is smaller than the other one in its place."""
    upper, other = tags[:, 0], others[:, 0]
    smaller: NDArray[np.bool_] = (upper < other) | ((upper == other) & (tags[:, 1] < others[:, 1]))
    return smaller


Counts = NDArray[np.int64]


# What a sketch of the same items holds, raised when that changes: 2 since a tick is fed in rounds,
# 3 since these are 24.
SKETCH_VERSION = 3
# In this many rounds a tick is fed, the last of which takes what is left. Part of what a sketch
# holds: never to change without its version.
ROUNDS = 24


@dataclass(frozen=True, slots=True)
class SketchBatch:
    """What one tick adds for one stream key: each item once, ascending by tag.

    Attributes:
        tags: n different ones.
        labels: labels of these items and perhaps of others, UTF-8.
        rows: int64 (n,), where in `labels` each item's label stands.
        counts: int64 (n,), each above 0.
    """

    tags: SortedTags
    labels: Texts
    rows: Indices
    counts: Counts

    def __repr__(self) -> str:
        return f"SketchBatch({len(self.counts)} items)"

    def part(self, places: Indices) -> SketchBatch:
        """The items at some places, ascending."""
        return SketchBatch(
            self.tags.part(places), self.labels, self.rows[places], self.counts[places]
        )


def batch(tags: Tags, labels: Texts, counts: Counts, rows: Indices | None = None) -> SketchBatch:
    """The batch of items in any order, in which an item may occur several times.

    Args:
        tags: uint64 (n, 2).
        labels: where the items' labels stand.
        counts: int64 (n,), each above 0.
        rows: int64 (n,), which of `labels` is each item's; None: there are n, in the same order.
    """
    ascending = SortedTags(tags)
    counts = counts.take(ascending.order)
    if ascending.starts is not None:  # several messages have the item
        counts = np.add.reduceat(counts, ascending.starts)
    return SketchBatch(
        ascending, labels, ascending.rows if rows is None else rows[ascending.rows], counts
    )


class Sketch:
    """At most `size` counters, ascending by tag. Sensitive: its repr shows none of them."""

    def __init__(self, size: int) -> None:
        """
        Args:
            size: k, at least 1.

        Raises:
            ValueError: size is below 1.
        """
        if size < 1:
            raise ValueError(f"size = {size}: must be at least 1")
        self.size = size
        self.tags: Tags = np.empty((0, 2), dtype=np.uint64)
        self.labels: Texts = NO_TEXTS
        self.counts: Counts = np.empty(0, dtype=np.int64)
        self.total = 0

    def __repr__(self) -> str:
        return f"Sketch(size={self.size})"

    def feed(self, items: SketchBatch, rounds: Rounds | None = None) -> Rounds | None:
        """Algorithm 1 for each occurrence of each item, in the order of the batch.

        Args:
            items: the batch.
            rounds: its rounds, where another sketch needed them before.

        Returns:
            Its rounds, where they are known now.
        """
        if not len(items.counts):
            return rounds
        before, known = items.tags.positions(self.tags)
        self.total += int(items.counts.sum())
        if (self.counts > 0).all() and len(self.counts) + len(items.counts) - np.count_nonzero(
            known
        ) <= self.size:
            self._merge(items)  # every miss finds a counter that was never used
            return rounds
        rounds = rounds or Rounds(items.counts)
        of_batch, number, self.counts = _Feeding(
            self.size, rounds, self.counts, before, known
        ).feed()
        new = number[of_batch]
        tags = np.empty((len(number), 2), dtype=np.uint64)
        tags[of_batch], tags[~of_batch] = (
            items.tags.take(new),
            self.tags.take(number[~of_batch], axis=0),
        )
        # Its own labels, and behind them those of the batch that came in.
        rows = number.copy()
        rows[of_batch] = len(self.labels) + np.arange(len(new))
        self.labels = Texts.concat((self.labels, items.labels.take(items.rows[new]))).take(rows)
        self.tags = tags
        return rounds

    def add(self, items: SketchBatch) -> None:
        """Merges the batch in as an exact histogram; zero counters go."""
        self.total += int(items.counts.sum())
        self._merge(items)

    def _merge(self, items: SketchBatch) -> None:
        """Add the counters, subtract the (size + 1)-th largest, drop what is not above zero."""
        before, known = items.tags.positions(self.tags)
        strangers = np.flatnonzero(~known)
        sums = np.concatenate((self.counts[strangers], items.counts))
        sums[len(strangers) + before[known]] += self.counts[known]
        if len(sums) > self.size:
            sums -= np.partition(sums, len(sums) - self.size - 1)[len(sums) - self.size - 1]
        keep = np.flatnonzero(sums > 0)
        own, new = (
            strangers[keep[keep < len(strangers)]],
            keep[keep >= len(strangers)] - len(strangers),
        )
        labels = Texts.concat((self.labels.take(own), items.labels.take(items.rows[new])))
        self._set(np.concatenate((self.tags[own], items.tags.take(new))), labels, sums[keep])

    def _set(self, tags: Tags, labels: Texts, counts: Counts) -> None:
        order = np.lexsort((tags[:, 1], tags[:, 0]))
        self.tags, self.counts = np.ascontiguousarray(tags[order]), counts[order]
        self.labels = labels.take(order)


def feed(sketches: Iterable[Sketch], items: SketchBatch) -> None:
    """Algorithm 1 in each of several sketches; what they have in common is done once."""
    rounds = None
    for sketch in sketches:
        rounds = sketch.feed(items, rounds)


class Rounds:
    """The rounds in which a batch is fed, the same for every sketch. Sensitive.

    Attributes:
        n: items in the batch.
        ones: uint32 (rounds, words), which items are in each round of ones, 32 a word.
        items: int64 (m,), which are left for the last round, ascending.
        weights: int64 (m,), how many of each.
    """

    def __init__(self, counts: Counts) -> None:
        """
        Args:
            counts: int64 (n,), how often each item occurs, at least once.
        """
        self.n = len(counts)
        # Bytes are compared eight times as fast as words.
        most = np.minimum(counts, ROUNDS, out=np.empty(self.n, dtype=np.uint8), casting="unsafe")
        bits = np.zeros((min(ROUNDS - 1, int(most.max())), -(-self.n // 32) * 4), dtype=np.uint8)
        for fed, items in enumerate(bits):
            items[: -(-self.n // 8)] = np.packbits(most > fed, bitorder="little")
        left = np.flatnonzero(most == ROUNDS)
        self.ones: NDArray[np.uint32] = fixed(bits.view(np.uint32))
        self.items, self.weights = fixed(left), fixed(counts[left] - (ROUNDS - 1))

    def __repr__(self) -> str:
        return f"Rounds({self.n} items)"


class _Feeding:
    """The counters while a batch is fed; see `feeding`. Sensitive."""

    def __init__(
        self, size: int, rounds: Rounds, counts: Counts, before: Indices, known: NDArray[np.bool_]
    ) -> None:
        """
        Args:
            size: k.
            rounds: the batch.
            counts: int64 (held,), the counters in use, ascending by key.
            before: int64 (held,), how many items of the batch have a smaller key than each.
            known: bool (held,), whether the next item has that very key.
        """
        self._rounds, self._held = rounds, len(counts)
        self._bits = size.bit_length()
        self._ones = (1 << self._bits) - 1
        self._heights: Counts = np.zeros(size, dtype=np.int64)
        self._heights[: self._held] = counts
        self._ranks: Indices = (rounds.n << self._bits) + np.arange(size, dtype=np.int64)
        own = np.where(known, self._ones, np.arange(self._held))
        self._ranks[: self._held] = (before << self._bits) + own
        # Pages of it that nobody writes to take no memory.
        self._slot_of = np.empty(rounds.n, dtype=np.int32)
        self._slot_of[before[known]] = np.flatnonzero(known)
        of_batch = np.zeros(-(-rounds.n // 32) * 32, dtype=bool)
        of_batch[before[known]] = True
        self._of_batch = np.packbits(of_batch, bitorder="little").view(np.uint32)

    def __repr__(self) -> str:
        return f"_Feeding({len(self._heights)} counters, {self._rounds.n} items)"

    def feed(self) -> tuple[NDArray[np.bool_], Indices, Counts]:
        """Feed the batch; return the counters in use, ascending by key.

        Returns:
            Whether the key is one of the batch, (m,) bool; the item's number there, or else the
            counter's own before, (m,); counts, (m,).
        """
        from workers.mechanisms.misra_gries.feeding import feed_rest, feed_rounds

        rounds = self._rounds
        counters = self._heights, self._ranks, self._slot_of, self._of_batch, self._bits
        lowered = feed_rounds(rounds.ones, *counters)
        if len(rounds.items):
            by_rank = np.argsort(self._ranks).astype(np.int32)
            lowered = feed_rest(rounds.items, rounds.weights, by_rank, lowered, *counters)
        slots = np.argsort(self._ranks)
        number = self._ranks[slots] & self._ones
        of_batch = number == self._ones
        used = of_batch | (number < self._held)
        slots, number, of_batch = slots[used], number[used], of_batch[used]
        return (
            of_batch,
            np.where(of_batch, self._ranks[slots] >> self._bits, number),
            self._heights[slots] - lowered,
        )
