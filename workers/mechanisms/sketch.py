"""The Misra-Gries sketch on columns: k counters for a stream of any length over any domain.

What: `Sketch.feed` takes a whole tick at a time and ends exactly where Algorithm 1 ends when it is fed the same items one after another;
`Sketch.add` takes the tick as an exact histogram that is merged in; `merge` merges two sketches; `pamg` is Algorithm 4.
Why two ways in: fed one by one, neighbouring sketches differ in one counter, or in all by one (Lemma 2), and noise need not grow with k;
merged, they differ by one in up to k counters however many items one event has (Section 7, Lemma 1).

    Symbol      Here
    k           `size`
    T, c        `tags` (with `labels`), `counts`: a key may have count zero and stays until its counter is needed
    dummies     counters that were never used: size - len(counts) of them, larger than every key, as in the paper
    n           `total`, the items fed
    f(x)        true count of x; its estimate lies in [f(x) - n/(k+1), f(x)] at every step

Order: the items of a tick are fed by ascending 128-bit tag, all occurrences of an item in a row. The tags do not depend on the data,
so an event added or removed is an item inserted or removed at its place, which is what Lemma 2 is about; an order that looked at the
stream (arrival, count, first seen) would have to be the same for both neighbours, and is not. "Smallest key" is the smallest tag.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters using the Misra-Gries Sketch",
Algorithms 1 and 4; Agarwal et al., "Mergeable Summaries", for the merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.rows import Tags

Counts = NDArray[np.int64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one tick adds for one stream key: each item once, ascending by tag.

    Attributes:
        tags: uint64 (n, 2), strictly ascending.
        labels: labels of more items than these, UTF-8.
        rows: int64 (n,), where in `labels` each item's label stands.
        counts: int64 (n,), each above 0.
    """

    tags: Tags
    labels: Sequence[bytes]
    rows: Indices
    counts: Counts

    def __repr__(self) -> str:
        return f"Batch({len(self.counts)} items)"


def batch(tags: Tags, labels: Sequence[bytes], counts: Counts, rows: Indices | None = None) -> Batch:
    """The batch of items in any order, in which an item may occur several times.

    Args:
        tags: uint64 (n, 2).
        labels: where the items' labels stand.
        counts: int64 (n,), each above 0.
        rows: int64 (n,), which of `labels` is each item's; None: there are n, in the same order.
    """
    order = np.lexsort((tags[:, 1], tags[:, 0]))
    tags, counts = tags[order], counts[order]
    if len(counts):
        first = np.flatnonzero(np.concatenate(([True], (tags[1:] != tags[:-1]).any(axis=1))))
        if len(first) < len(counts):
            tags, order, counts = tags[first], order[first], np.add.reduceat(counts, first)
    rows = order.astype(np.int64) if rows is None else rows[order]
    return Batch(np.ascontiguousarray(tags), labels, rows, counts.astype(np.int64))


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
        self.labels: list[bytes] = []
        self.counts: Counts = np.empty(0, dtype=np.int64)
        self.total = 0

    def __repr__(self) -> str:
        return f"Sketch(size={self.size})"

    def feed(self, items: Batch) -> None:
        """Algorithm 1 for each occurrence of each item, in the order of the batch."""
        if not len(items.counts):
            return
        self.total += int(items.counts.sum())
        before, known = positions(self.tags, items.tags)
        feeding = _Feeding(self, items, before, known)
        feeding.run()
        slots = np.flatnonzero(feeding.source >= 0)
        source, counts = feeding.source[slots], feeding.counts[slots]
        # Sources below `held` are the counters the sketch had, the others items of the batch.
        held = len(self.counts)
        old = source < held
        tags = np.where(
            old[:, None],
            self.tags[np.where(old, source, 0)] if held else 0,
            items.tags[np.where(old, 0, source - held)],
        ).astype(np.uint64)
        rows = items.rows[np.where(old, 0, source - held)].tolist()
        labels = [
            self.labels[i] if own else items.labels[row]
            for i, own, row in zip(source.tolist(), old.tolist(), rows, strict=True)
        ]
        self._set(tags, labels, counts)

    def add(self, items: Batch) -> None:
        """Merges the batch in as an exact histogram; zero counters go."""
        self.total += int(items.counts.sum())
        self._merge(items)

    def merge(self, other: Sketch) -> None:
        """Merges another sketch of the same size in; zero counters go.

        Raises:
            ValueError: the sizes differ.
        """
        if other.size != self.size:
            raise ValueError(f"size = {other.size}: must be {self.size}, that of the sketch it is merged into")
        self.total += other.total
        self._merge(Batch(other.tags, other.labels, np.arange(len(other.counts), dtype=np.int64), other.counts))

    def _merge(self, items: Batch) -> None:
        """Adds the counters, subtracts the (size + 1)-th largest, and drops what is not above zero."""
        before, known = positions(self.tags, items.tags)
        strangers = np.flatnonzero(~known)
        sums = np.concatenate((self.counts[strangers], items.counts))
        sums[len(strangers) + before[known]] += self.counts[known]
        if len(sums) > self.size:
            sums -= np.partition(sums, len(sums) - self.size - 1)[len(sums) - self.size - 1]
        keep = np.flatnonzero(sums > 0)
        own, new = strangers[keep[keep < len(strangers)]], keep[keep >= len(strangers)] - len(strangers)
        labels = [self.labels[i] for i in own.tolist()]
        labels += [items.labels[row] for row in items.rows[new].tolist()]
        self._set(np.concatenate((self.tags[own], items.tags[new])), labels, sums[keep])

    def _set(self, tags: Tags, labels: list[bytes], counts: Counts) -> None:
        order = np.lexsort((tags[:, 1], tags[:, 0]))
        self.tags, self.counts = np.ascontiguousarray(tags[order]), counts[order]
        self.labels = [labels[i] for i in order.tolist()]


def positions(keys: Tags, among: Tags) -> tuple[Indices, NDArray[np.bool_]]:
    """For each of `keys` (m, 2) how many of `among` (n, 2, strictly ascending) are smaller, and whether the next one is equal."""
    if not len(among):
        return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=bool)
    before = np.searchsorted(among[:, 0], keys[:, 0], side="left").astype(np.int64)
    n = len(among)
    while True:  # goes round once more only where upper halves are equal and lower ones are not
        at = np.minimum(before, n - 1)
        same_half = (before < n) & (among[at, 0] == keys[:, 0])
        smaller = same_half & (among[at, 1] < keys[:, 1])
        if not smaller.any():
            return before, same_half & (among[at, 1] == keys[:, 1])
        before = before + smaller


class _Feeding:
    """One `feed` under way: stretches of items that do the same are taken at once.

    A counter is a slot. An item whose key is in the sketch when the batch begins is *pending* at its slot; all other items are misses,
    and so is a pending one whose key is replaced before its turn (`turned`). A key occurs once in a batch, so a key that the batch puts
    in is not met again. Two kinds of stretches alternate, each of a few whole-array operations over the k slots:

        no counter is zero: misses only lower all counters, until the first one is zero
        z counters are zero: the next z misses take them, smallest key first

    The second kind ends early where a pending item raises a zero counter. A batch of weight W has at most 2 W / (k + 1) + 2 stretches
    and one more for every item that ended one early or has turned.
    """

    def __init__(self, sketch: Sketch, items: Batch, before: Indices, known: NDArray[np.bool_]) -> None:
        k, held, n = sketch.size, len(sketch.counts), len(items.counts)
        self.n, self.weights, self.held = n, items.counts, held
        self.counts = np.zeros(k, dtype=np.int64)
        self.counts[:held] = sketch.counts
        self.source = np.full(k, -1, dtype=np.int64)
        self.source[:held] = np.arange(held)
        # Place in the order of all keys of sketch and batch together; dummies come last.
        strangers = before[~known]
        self.rank = np.arange(k, dtype=np.int64) + 2 * (n + k)
        self.rank[:held] = before + np.cumsum(~known) - ~known
        self.rank_of_item = np.arange(n, dtype=np.int64) + np.searchsorted(strangers, np.arange(n), side="right")
        self.due = np.full(k, n, dtype=np.int64)  # which item of the batch is pending at the slot; n: none
        self.due[:held][known] = before[known]
        miss = np.ones(n, dtype=bool)
        miss[before[known]] = False
        self.misses = np.flatnonzero(miss)
        self.lost = np.zeros(n + 1, dtype=np.int64)  # weight of the misses before each item
        np.cumsum(np.where(miss, items.counts, 0), out=self.lost[1:])
        self.turned: list[int] = []
        self.at = 0

    def run(self) -> None:
        while self.at < self.n:
            limit = min(self.turned, default=self.n)
            if self.at == limit:
                self.turned.remove(limit)
                self._one(limit)
                self.at += 1
                continue
            zero = np.flatnonzero(self.counts == 0)
            if len(zero):
                self._replace(zero, limit)
            else:
                self._lower(limit)

    def _replace(self, zero: Indices, limit: int) -> None:
        """The next misses take the zero counters."""
        raised = int(self.due[zero].min())  # the first pending item of a zero counter ends the stretch
        start = int(np.searchsorted(self.misses, self.at))
        stop = int(np.searchsorted(self.misses, min(limit, raised)))
        taken = self.misses[start : min(stop, start + len(zero))]
        end = int(taken[-1]) + 1 if len(taken) == len(zero) else min(limit, raised)
        self._hit(end)
        smallest = zero[np.argsort(self.rank[zero])][: len(taken)]
        self._put(smallest, taken, self.weights[taken])
        self.at = end
        if end == raised and raised < self.n and raised not in self.turned:
            self._hit(end + 1)
            self.at += 1

    def _lower(self, limit: int) -> None:
        """Misses lower all counters until one is zero."""
        gone = self.lost[self.at]
        pending = self.due < self.n
        raise_by = np.where(pending, self.weights[np.minimum(self.due, self.n - 1)], 0)
        in_time = pending & (self.lost[self.due] - gone < self.counts)
        until = int((self.counts + np.where(in_time, raise_by, 0)).min())
        # The miss that brings the weight to `until`, or past it.
        last = int(np.searchsorted(self.lost, gone + until, side="left")) - 1
        if last >= limit:
            self._hit(limit)
            self.counts -= self.lost[limit] - gone
            self.at = limit
            return
        self._hit(last)
        self.counts -= until
        self._leftover(last, int(self.lost[last + 1] - gone) - until)
        self.at = last + 1

    def _one(self, item: int) -> None:
        """One miss by itself."""
        weight = int(self.weights[item])
        by = min(weight, int(self.counts.min()))
        self.counts -= by
        self._leftover(item, weight - by)

    def _leftover(self, item: int, weight: int) -> None:
        """What of a miss is left when a counter is zero takes the smallest such key's counter."""
        if weight:
            zero = np.flatnonzero(self.counts == 0)
            slot = zero[np.argmin(self.rank[zero])]
            self._put(slot[None], np.array([item]), np.array([weight]))

    def _put(self, slots: Indices, items: Indices, weights: Counts) -> None:
        pending = self.due[slots]
        self.turned += pending[pending < self.n].tolist()
        self.due[slots] = self.n
        self.source[slots] = self.held + items
        self.rank[slots] = self.rank_of_item[items]
        self.counts[slots] = weights

    def _hit(self, end: int) -> None:
        """Pending items before `end` have their turn."""
        slots = np.flatnonzero(self.due < end)
        if len(slots):
            self.counts[slots] += self.weights[self.due[slots]]
            self.due[slots] = self.n


def pamg(size: int, users: Iterable[Sequence[bytes]]) -> dict[bytes, int]:
    """Algorithm 4: every user raises each of its items by one, and then lowers everybody by one at most once.

    Guarantee (sensitivity): of neighbours that differ by one user one has all counters of the other, and each is the same or one higher
    (Lemma 9): l2 is sqrt(size) whatever the number of items of a user; `sketch_release.sparse_gaussian` releases it. The estimate lies in
    [f - floor(N/(k+1)), f] for N items of all users together (Lemma 8).

    Args:
        size: k.
        users: the distinct items of each user, as labels.

    Returns:
        The counters above zero, at most `size`, sorted by label.

    Raises:
        ValueError: a user has an item twice.
    """
    raised: dict[bytes, int] = {}  # count + lowered
    at: dict[int, set[bytes]] = {}  # raised value -> its labels: those that become zero are found without a search
    lowered = 0
    for labels in users:
        if len(set(labels)) < len(labels):
            raise ValueError(f"a user has {len(labels) - len(set(labels))} items twice: each at most once")
        for label in labels:
            old = raised.get(label, lowered)
            if old > lowered:
                at[old].remove(label)
                if not at[old]:
                    del at[old]
            raised[label] = old + 1
            at.setdefault(old + 1, set()).add(label)
        if len(raised) > size:
            lowered += 1
            for label in at.pop(lowered, ()):
                del raised[label]
    return {label: raised[label] - lowered for label in sorted(raised)}
