"""Tags in ascending order, sorted once: a tick's items, or the labels of a declared domain.

The upper bits of a tag with its row behind them are one word. To sort such words takes three
fifths of the time of `argsort`, and no 16 bytes of a tag are moved: a million of them take as long
as half of the sort (measured: 4 and 8 ms). A tag is read where two share their upper bits,
which is rare, and where somebody asks for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.ledger import Tags

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
