"""The columns that every per-item mechanism works on: one row an item of a stream key, in first-seen order.

    tags    uint64 (n, 2)   128-bit keyed tag of (stream key, label): the row's identity, and what its noise is made from
    keys    int32  (n,)     index of the stream key
    counts  int64  (n,)     the exact running count (sensitive)
    shown   int32  (n,)     first tick at which the row was shown, 0 while it never was; int64 once a tick needs it
    labels                  UTF-8 bytes of all rows, end to end, with their ends

Rows are only ever appended. A label is a slice of one byte column, never a Python object of its own; a row is found by its tag in
an open-addressing index that is probed for whole arrays at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Tags = NDArray[np.uint64]
Rows = NDArray[np.int64]

FIRST_CAPACITY = 1024
A = TypeVar("A", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Contributions:
    """What one message contributes to one tick of one lane, as columns.

    Within one `Contributions` a (stream key, label) occurs once, so that adding is one indexed `+=`.

    Attributes:
        keys: the stream keys, each once.
        key_of_row: int32 (n,), index into `keys`.
        tags: uint64 (n, 2).
        labels: n labels, UTF-8.
        counts: int64 (n,), each above 0.
    """

    keys: tuple[str, ...]
    key_of_row: NDArray[np.int32]
    tags: Tags
    labels: Sequence[bytes]
    counts: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Contributions({len(self.keys)} keys, {len(self.counts)} rows)"


def grown(column: NDArray[A], n: int) -> NDArray[A]:
    """`column` with room for `n` rows: itself, or a copy of at least twice its length with zeros behind."""
    capacity = len(column)
    if n <= capacity:
        return column
    wider = np.zeros((max(n, 2 * capacity), *column.shape[1:]), dtype=column.dtype)
    wider[:capacity] = column
    return wider


class TagIndex:
    """Tag -> row, by linear probing over a table of row numbers; at most half full, 8 bytes a slot."""

    def __init__(self) -> None:
        self._slots = np.full(2 * FIRST_CAPACITY, -1, dtype=np.int64)
        self._used = 0

    def find(self, tags: Tags, of_rows: Tags) -> Rows:
        """Rows of `tags` (n, 2), -1 where absent; `of_rows` holds the tag of every row."""
        n = len(tags)
        found = np.full(n, -1, dtype=np.int64)
        mask = len(self._slots) - 1
        slot = (tags[:, 0] & np.uint64(mask)).astype(np.int64)
        left = np.arange(n)
        while len(left):
            row = self._slots[slot]
            taken = row >= 0
            left, slot, row = left[taken], slot[taken], row[taken]
            # `take` of rows: a tenth of the time of [row].
            halves = of_rows.take(row, axis=0) == tags.take(left, axis=0)
            same = halves[:, 0] & halves[:, 1]
            found[left[same]] = row[same]
            other = ~same
            left, slot = left[other], (slot[other] + 1) & mask
        return found

    def insert(self, rows: Rows, of_rows: Tags) -> None:
        """Enters `rows`, none of which is in the index, and whose tags differ from each other."""
        self._used += len(rows)
        if 2 * self._used > len(self._slots):
            self._slots = np.full(1 << (4 * self._used - 1).bit_length(), -1, dtype=np.int64)
            rows = np.arange(self._used, dtype=np.int64)
        mask = len(self._slots) - 1
        slot = (of_rows[rows, 0] & np.uint64(mask)).astype(np.int64)
        while len(rows):
            free = self._slots[slot] < 0
            self._slots[slot[free]] = rows[
                free
            ]  # of several rows that want one free slot one gets it; the others go on
            lost = self._slots[slot] != rows
            rows, slot = rows[lost], (slot[lost] + 1) & mask

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes


class Ledger:
    """The rows of one histogram and epoch in one owner partition. Sensitive: its repr shows no counts.

    The arrays are updated in place by `merge` and by the mechanism that owns the state; `touched`, `newly_shown` and `clean_rows` say
    what changed since `clean` was called, so that the ledger writes only those blocks.
    """

    def __init__(self) -> None:
        self.n = 0
        self._tags = np.zeros((FIRST_CAPACITY, 2), dtype=np.uint64)
        self._keys = np.zeros(FIRST_CAPACITY, dtype=np.int32)
        self._counts = np.zeros(FIRST_CAPACITY, dtype=np.int64)
        self._shown: NDArray[np.int32] | NDArray[np.int64] = np.zeros(FIRST_CAPACITY, dtype=np.int32)
        self._ends = np.zeros(FIRST_CAPACITY, dtype=np.int64)
        self._text = np.zeros(16 * FIRST_CAPACITY, dtype=np.uint8)
        self._index = TagIndex()
        self.touched: list[Rows] = []
        self.newly_shown: list[Rows] = []
        self.clean_rows = 0

    def __repr__(self) -> str:
        return f"Ledger({self.n} rows)"

    @property
    def tags(self) -> Tags:
        return self._tags[: self.n]

    @property
    def keys(self) -> NDArray[np.int32]:
        return self._keys[: self.n]

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts[: self.n]

    @property
    def shown(self) -> NDArray[np.int32] | NDArray[np.int64]:
        return self._shown[: self.n]

    def _grow_shown(self, n: int) -> None:
        shown: NDArray[Any] = self._shown
        self._shown = grown(shown, n)

    def shown_to(self, tick: int) -> NDArray[np.int32] | NDArray[np.int64]:
        """Return `shown`, wide enough for `tick`.

        Four bytes an item suffice for 68 years of ticks of a second. Where ticks are narrower, an epoch without an end passes 2^31 (in
        25 days with ticks of 1 ms): from then on, and only there, it takes eight.
        """
        if tick > np.iinfo(self._shown.dtype).max:
            self._shown = self._shown.astype(np.int64)
        return self.shown

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        held = (self._tags, self._keys, self._counts, self._shown, self._ends, self._text)
        return self._index.nbytes + sum(a.nbytes for a in held)

    def label(self, row: int) -> bytes:
        """UTF-8 of one row's label."""
        start = int(self._ends[row - 1]) if row else 0
        return self._text[start : int(self._ends[row])].tobytes()

    def label_column(self, start: int, stop: int) -> tuple[NDArray[np.int64], bytes]:
        """Lengths and text of the labels of rows start..stop-1."""
        before = int(self._ends[start - 1]) if start else 0
        ends = self._ends[start:stop]
        text = self._text[before : int(ends[-1]) if len(ends) else before].tobytes()
        return np.diff(ends, prepend=before), text

    def find(self, tags: Tags) -> Rows:
        """Rows of `tags` (n, 2); -1 where there is none."""
        return self._index.find(tags, self._tags)

    def append(self, tags: Tags, keys: NDArray[np.int32], lengths: NDArray[np.int64], text: bytes) -> Rows:
        """Appends rows whose tags are new and differ from each other; returns their numbers.

        Args:
            tags: uint64 (m, 2).
            keys: int32 (m,).
            lengths: int64 (m,), bytes of each label.
            text: the labels end to end.
        """
        first, n = self.n, self.n + len(tags)
        start = int(self._ends[first - 1]) if first else 0
        self._tags, self._keys = grown(self._tags, n), grown(self._keys, n)
        self._counts = grown(self._counts, n)
        self._grow_shown(n)
        self._ends, self._text = grown(self._ends, n), grown(self._text, start + len(text))
        self._tags[first:n] = tags
        self._keys[first:n] = keys
        self._ends[first:n] = start + np.cumsum(lengths)
        self._text[start : start + len(text)] = np.frombuffer(text, dtype=np.uint8)
        self.n = n
        rows = np.arange(first, n, dtype=np.int64)
        self._index.insert(rows, self._tags)
        return rows

    def merge(self, contributions: Contributions, key_index: NDArray[np.int32], *, add_rows: bool) -> None:
        """Adds one message's columns to the counts.

        Args:
            contributions: the columns of one message and tick.
            key_index: int32 (len(contributions.keys),): index of each stream key here, -1 for one that is not served.
            add_rows: whether an item seen for the first time gets a row; else it is left out.
        """
        key, tags, counts = key_index[contributions.key_of_row], contributions.tags, contributions.counts
        labels = contributions.labels
        if (key < 0).any():
            served = np.flatnonzero(key >= 0)
            key, tags, counts = key[served], tags.take(served, axis=0), counts[served]
            labels = [labels[i] for i in served.tolist()]
        rows = self.find(tags)
        new = np.flatnonzero(rows < 0)
        if len(new):
            if add_rows:
                fresh = [labels[i] for i in new.tolist()] if len(new) < len(labels) else labels
                lengths = np.fromiter(map(len, fresh), dtype=np.int64, count=len(fresh))
                rows[new] = self.append(tags.take(new, axis=0), key[new], lengths, b"".join(fresh))
            else:
                known = np.flatnonzero(rows >= 0)
                rows, counts = rows[known], counts[known]
        self._counts[rows] += counts  # each row once: see Contributions
        self.touched.append(rows)

    def mark_shown(self, rows: Rows, tick: int) -> None:
        """Notes `tick` as the first tick at which `rows` were shown."""
        self.shown_to(tick)[rows] = tick
        self.newly_shown.append(rows)

    def clean(self) -> None:
        """Forgets what changed: the ledger has written it."""
        self.touched, self.newly_shown, self.clean_rows = [], [], self.n
