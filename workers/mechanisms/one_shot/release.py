"""One-shot releases of a histogram, over columns: all stream keys of a partition at once.

What: the algorithms that MetaAlgo runs in its cells and that the one-shot mechanisms run on each
tick's own contributions. Each is calibrated once (`algorithms.make_algorithm`) and then is a
function of a histogram and of the noise of one place.

    Symbol      Here
    h           `Cell.counts`; the counts of a stream key are a histogram of their own, as an event
                has one stream key
    h_(i)       i-th largest count of a stream key, 0 where there are fewer items; ties by tag: were
                their order to depend on the data, one event could change more than D0 of the kbar
                largest
    place       (level, block): which release it is; (0, t) for a tick's own

Noise cells: hi = (use << 56) | (level << 40) | pick, lo = block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.ledger import Rows, Tags
from workers.mechanisms.noise.inversion import InversionTable
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.noise.selection import kth_largest

Place = tuple[int, int]

USE_ITEMS = 0x10
USE_THRESHOLD = 0x11
USE_PICKS = 0x12
USE_KBAR = 0x13


@dataclass(frozen=True, slots=True)
class Cell:
    """The exact histograms that one release is made from (sensitive).

    Attributes:
        tags: uint64 (n, 2).
        keys: int32 (n,), index of the stream key.
        counts: int64 (n,); above 0 where the domain is unknown.
        key_tags: uint64 (number of stream keys, 2).
    """

    tags: Tags
    keys: NDArray[np.int32]
    counts: NDArray[np.int64]
    key_tags: Tags

    def __repr__(self) -> str:
        return f"Cell({len(self.counts)} rows)"

    def rows_by_key(self) -> Iterator[tuple[int, Rows]]:
        """Yield (stream key, its rows ascending) for every stream key that has rows."""
        if len(self.keys) and (self.keys == self.keys[0]).all():
            yield int(self.keys[0]), np.arange(len(self.keys))
            return
        order = np.argsort(self.keys, kind="stable")
        edges = np.flatnonzero(np.diff(self.keys[order], prepend=-1))
        for rows in np.split(order, edges[1:]) if len(edges) else ():
            yield int(self.keys[rows[0]]), rows

    def largest(self, rows: Rows, k: int) -> Rows:
        """Return the k rows of largest count among `rows`, or all, largest first, ties by tag."""
        if len(rows) > k:
            counts = self.counts[rows]
            least = kth_largest(counts, k)
            larger, equal = rows[counts > least], rows[counts == least]
            # Of many equal ones only those with the smallest tags are sorted.
            if len(larger) + len(equal) > k:
                upper, missing = self.tags[equal, 0], k - len(larger)
                equal = equal[upper <= np.partition(upper, missing - 1)[missing - 1]]
            rows = np.concatenate((larger, equal))
        tags = self.tags.take(rows, axis=0)
        return rows[np.lexsort((tags[:, 1], tags[:, 0], -self.counts[rows]))[:k]]


class OneShotNoise:
    """The noise of one-shot releases: a function of place, item or stream key, and mechanism.

    Args:
        stream: the mechanism's words.
        table: law of the noise on counts and thresholds; None where only picks are made.
    """

    def __init__(self, stream: NoiseStream, table: InversionTable | None) -> None:
        self._stream = stream
        self._table = table

    def __repr__(self) -> str:
        return "OneShotNoise(<secret>)"

    def at(self, t: int, tags: Tags) -> NDArray[np.int64]:
        """Return the noise on each item's count in the release of tick t alone."""
        return self.items((0, t), tags)

    def items(self, place: Place, tags: Tags) -> NDArray[np.int64]:
        """Return the noise on each item's count in the release at `place`."""
        return self._draw(_cell(USE_ITEMS, place), tags)

    def threshold(self, place: Place, key_tag: NDArray[np.uint64]) -> int:
        """Return the noise on the threshold of a stream key."""
        return int(self._draw(_cell(USE_THRESHOLD, place), key_tag.reshape(1, 2))[0])

    def _draw(self, cell: tuple[int, int], tags: Tags) -> NDArray[np.int64]:
        if self._table is None:
            raise ValueError("table = None: this mechanism shows no counts, and so has no noise for them")
        out = np.empty(len(tags), dtype=self._table.dtype)
        self._table.draw(self._stream, cell, tags, out)
        return out.astype(np.int64)

    def picks(self, use: int, place: Place, key_tag: NDArray[np.uint64], k: int) -> list[tuple[int, int]]:
        """Return k words for the picks of a stream key: word j is of the cell with `pick` = j."""
        tags = np.tile(key_tag.astype(np.uint64), (k, 1))
        # The word is AES(tag XOR cell): the pick is set in the cell's low bits, which are 0.
        tags[:, 0] ^= np.arange(k, dtype=np.uint64)
        return [(high, low) for high, low in self._stream.words(tags, _cell(use, place)).tolist()]


def _cell(use: int, place: Place) -> tuple[int, int]:
    level, block = place
    return (use << 56) | (level << 40), block
