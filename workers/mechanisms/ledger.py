"""The ledger: columns with one row per item of a stream key, in first-seen order.

    tags    uint64 (n, 2)   keyed tag of (stream key, label): the row's identity, and its noise
    keys    int32  (n,)     index of the stream key
    counts  int64  (n,)     the exact running count (sensitive)
    sums    int64  (n,)     with `sum`: the exact running sum, in steps (sensitive)
    shown   int32  (n,)     first tick at which the row was shown, else 0; int64 once needed
    last    int64  (n,)     without epochs: the tick of its last event, 0 for none (sensitive)
    left    int64  (n,)     without epochs: the tick at which its label left, else 0
    ends    uint32 (n,)     end of the row's label in the text; int64 beyond 4 GiB
    text    uint8           UTF-8 bytes of all labels, end to end

Rows are append-only. A label is a slice of one byte column, never a Python object; rows are found
by tag. An item takes 41 to 47 bytes plus its label, 8 with a sum and 16 without epochs; pages of
unused capacity are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Rows, TagIndex
from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Longs, Tags, Words

# Messages, each with the ledger's index of every one of its stream keys, -1 for a key that this
# process does not serve.
Parts = Sequence[tuple["Contributions", Codes]]
Shown = Codes | Longs


class TickRows(NamedTuple):
    """One tick's contributions, each item once. Sensitive: its repr shows none of them."""

    tags: Tags  # distinct
    keys: Codes
    counts: Longs  # above 0
    labels: Texts

    def __repr__(self) -> str:
        return f"TickRows({len(self.counts)} rows)"


def tick_rows(contributions: Parts) -> TickRows:
    """Add up one tick's messages, for the stream keys that are served."""
    parts = [_served(part, key_index) for part, key_index in contributions]
    if len(parts) == 1:
        return parts[0]
    # With room for the rows of all messages; an item of several messages takes one row.
    most = sum(len(part.counts) for part in parts)
    tags = np.empty((most, 2), dtype=np.uint64)
    keys = np.empty(most, dtype=np.int32)
    counts = np.zeros(most, dtype=np.int64)
    labels: list[Texts] = []
    index = TagIndex()
    n = 0
    for part in parts:
        rows, unknown = index.add(counts, tags, part.tags, part.counts)
        if unknown:
            new = np.flatnonzero(rows < 0)
            added = slice(n, n + unknown)
            tags[added] = part.tags.take(new, axis=0)
            keys[added] = part.keys[new]
            # Set, not added up: a message has each item once.
            counts[added] = part.counts[new]
            labels.append(part.labels.take(new))
            n += unknown
            index.enter(n, tags)
    return TickRows(tags[:n], keys[:n], counts[:n], Texts.concat(labels))


def _served(part: Contributions, key_index: Codes) -> TickRows:
    """Return the rows of a message, without those of stream keys that this histogram lacks.

    `key_index` has the ledger's index of each of the message's stream keys, -1 where it lacks one.
    """
    keys = key_index[part.key_of_row]
    if not (keys < 0).any():
        return TickRows(part.tags, keys, part.counts, part.labels)
    rows = np.flatnonzero(keys >= 0)
    tags = part.tags.take(rows, axis=0)
    return TickRows(tags, keys[rows], part.counts[rows], part.labels.take(rows))


def rows_by_key(keys: Codes) -> Iterator[tuple[int, Rows]]:
    """Yield (stream key, its rows in ascending order) for keys that have rows."""
    # One stream key alone, as often, needs no sorting.
    if len(keys) and (keys == keys[0]).all():
        yield int(keys[0]), np.arange(len(keys))
        return
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order], prepend=-1))
    for rows in np.split(order, edges[1:]) if len(edges) else ():
        yield int(keys[rows[0]]), rows


FIRST_CAPACITY = 1024
_INT32_MAX = (1 << 31) - 1
A = TypeVar("A", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Contributions:
    """One message's columns for one tick of one lane; each (stream key, label) pair occurs once.

    For unique users each (stream key, label, user) occurs once, with the user's digest, (n, 2).
    """

    keys: tuple[str, ...]  # distinct
    key_of_row: Codes  # index into `keys`
    tags: Tags
    labels: Texts
    counts: Longs  # above 0
    # True: the counts are steps of numbers (`config.sums`), in a lane of their own.
    of_sums: bool = False
    # None except for unique users.
    users: Words | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the columns are not of one length."""
        lengths = (
            len(self.key_of_row),
            len(self.tags),
            len(self.labels),
            len(self.counts),
            len(self.counts if self.users is None else self.users),
        )
        if min(lengths) != max(lengths):
            raise ValueError(
                f"key_of_row, tags, labels, counts, users: columns of {lengths} rows"
            )

    def __repr__(self) -> str:
        return f"Contributions({len(self.keys)} keys, {len(self.counts)} rows)"


def with_capacity(array: NDArray[A], n: int, axis: int = 0) -> NDArray[A]:
    """Return `array`, or a zero-padded copy at least 1.5 times as long, with capacity for n."""
    length = array.shape[axis]
    if n <= length:
        return array
    shape = list(array.shape)
    shape[axis] = max(n, length + length // 2)
    wider = np.zeros(shape, dtype=array.dtype)
    wider[tuple(map(slice, array.shape))] = array
    return wider


class Ledger:
    """Sensitive rows of one histogram, epoch and owner partition; columns as in the module's table.

    The mechanism updates them.
    """

    def __init__(self) -> None:
        self.n = 0
        self._tags = np.zeros((FIRST_CAPACITY, 2), dtype=np.uint64)
        self._keys = np.zeros(FIRST_CAPACITY, dtype=np.int32)
        self._counts = np.zeros(FIRST_CAPACITY, dtype=np.int64)
        # Those that not every histogram has get their capacity when they are first used.
        self._sums = np.zeros(0, dtype=np.int64)
        self._shown: Shown = np.zeros(FIRST_CAPACITY, dtype=np.int32)
        self._last = np.zeros(0, dtype=np.int64)
        self._left = np.zeros(0, dtype=np.int64)
        self._ends: NDArray[Any] = np.zeros(FIRST_CAPACITY, dtype=np.uint32)
        self._text = np.zeros(16 * FIRST_CAPACITY, dtype=np.uint8)
        self._index = TagIndex()
        # By column: rows whose number has changed since it was stored (`clean`).
        self.counts_changed: list[Rows] = []
        self.sums_changed: list[Rows] = []
        self.shown_changed: list[Rows] = []
        self.last_changed: list[Rows] = []
        self.left_changed: list[Rows] = []
        # How many rows are stored.
        self.stored_rows = 0

    @property
    def tags(self) -> Tags:
        return self._tags[: self.n]

    @property
    def keys(self) -> Codes:
        return self._keys[: self.n]

    @property
    def counts(self) -> Longs:
        return self._counts[: self.n]

    @property
    def sums(self) -> Longs:
        self._sums = with_capacity(self._sums, self.n)
        return self._sums[: self.n]

    @property
    def shown(self) -> Shown:
        return self._shown[: self.n]

    def shown_for(self, tick: int) -> Shown:
        """Return `shown`, made int64 if `tick` does not fit int32 (after 25 days of 1 ms ticks)."""
        if tick > _INT32_MAX and self._shown.dtype == np.int32:
            self._shown = self._shown.astype(np.int64)
        return self.shown

    @property
    def last(self) -> Longs:
        self._last = with_capacity(self._last, self.n)
        return self._last[: self.n]

    @property
    def left(self) -> Longs:
        self._left = with_capacity(self._left, self.n)
        return self._left[: self.n]

    @property
    def nbytes(self) -> int:
        """Return the memory of all columns, with their capacity, and of the index of tags."""
        ticks = (self._shown, self._last, self._left)
        numbers = (self._keys, self._counts, self._sums, *ticks)
        columns = (self._tags, *numbers, self._ends, self._text)
        return self._index.nbytes + sum(column.nbytes for column in columns)

    def label(self, row: int) -> bytes:
        start = int(self._ends[row - 1]) if row else 0
        return self._text[start : int(self._ends[row])].tobytes()

    def label_column(self, start: int, stop: int) -> Texts:
        """Return the labels of rows start..stop - 1."""
        before = int(self._ends[start - 1]) if start else 0
        ends = self._ends[start:stop].astype(np.int64)
        return Texts(
            self._text[before : int(ends[-1]) if len(ends) else before], ends - before
        )

    def find(self, tags: Tags) -> Rows:
        """Return the rows of `tags` (n, 2), -1 where absent."""
        return self._index.find(tags, self._tags)

    def append(self, tags: Tags, keys: Codes, labels: Texts) -> Rows:
        """Append rows of count 0 with new, distinct tags; return their numbers."""
        first = self.n
        n = self.n + len(tags)
        start = int(self._ends[first - 1]) if first else 0
        end = start + len(labels.text)
        self._tags = with_capacity(self._tags, n)
        self._keys = with_capacity(self._keys, n)
        self._counts = with_capacity(self._counts, n)
        ends = with_capacity(self._ends, n)
        shown: NDArray[Any] = self._shown
        self._shown = with_capacity(shown, n)
        # Past 4 GiB of labels.
        self._ends = ends.astype(np.int64) if end > np.iinfo(ends.dtype).max else ends
        self._text = with_capacity(self._text, end)
        self._tags[first:n] = tags
        self._keys[first:n] = keys
        self._ends[first:n] = labels.ends + start
        self._text[start:end] = labels.text
        self._index.enter(n, self._tags)
        self.n = n
        return np.arange(first, n, dtype=np.int64)

    def merge(
        self, contributions: Contributions, key_index: Codes, *, add_rows: bool
    ) -> None:
        """Add one message's columns to the counts; without `add_rows`, skip new items.

        `key_index` has the ledger's index of each of the message's stream keys; rows of keys that
        are not served (-1) are skipped.
        """
        key_of_row = contributions.key_of_row
        tags = contributions.tags
        counts = contributions.counts
        # Which rows of the message are served; None: all.
        served = None
        if len(key_index) and int(key_index.min()) < 0:
            served = np.flatnonzero(key_index[key_of_row] >= 0)
            key_of_row = key_of_row[served]
            tags = tags.take(served, axis=0)
            counts = counts[served]
        rows, unknown = self._index.add(self._counts, self._tags, tags, counts)
        if unknown and add_rows:
            new = np.flatnonzero(rows < 0)
            labels = contributions.labels
            if served is not None or len(new) < len(labels):
                labels = labels.take(new if served is None else served[new])
            keys = key_index[key_of_row[new]]
            added = self.append(tags.take(new, axis=0), keys, labels)
            rows[new] = added
            # Set, not added up: a message has each item once.
            self._counts[added] = counts[new]
        elif unknown:
            rows = rows[rows >= 0]
        self.counts_changed.append(rows)

    def add_sums(self, contributions: Contributions) -> None:
        """Add one message's sums to the rows of its items.

        Their counts have been merged before: an item without a row is left out.
        """
        tags = contributions.tags
        steps = contributions.counts
        rows, unknown = self._index.add(self.sums, self._tags, tags, steps)
        self.sums_changed.append(rows[rows >= 0] if unknown else rows)

    def mark_shown(self, rows: Rows, tick: int) -> None:
        """Note that rows are shown from a tick on."""
        self.shown_for(tick)[rows] = tick
        self.shown_changed.append(rows)

    def mark_returned(self, rows: Rows, tick: int) -> None:
        """Note that rows are shown from a tick on; those that had left no longer count as left."""
        self.mark_shown(rows, tick)
        returned = rows[self.left[rows] != 0]
        if len(returned):
            self.left[returned] = 0
            self.left_changed.append(returned)

    def mark_left(self, rows: Rows, tick: int) -> None:
        """Note that labels left at a tick, after which they are not shown."""
        self.shown[rows] = 0
        self.shown_changed.append(rows)
        self.left[rows] = tick
        self.left_changed.append(rows)

    def selected(self, rows: Rows) -> Ledger:
        """Return a ledger of only these rows, in this order, with nothing stored yet.

        As rows are append-only, this is how a mechanism without epochs forgets items that are gone.
        """
        selection = Ledger()
        labels = self.label_column(0, self.n).take(rows)
        selection.append(self.tags.take(rows, axis=0), self.keys[rows], labels)
        shown = selection.shown_for(int(self.shown.max(initial=0)))
        columns: list[tuple[NDArray[Any], NDArray[Any], list[Rows]]] = [
            (self.counts, selection.counts, selection.counts_changed),
            (self.shown, shown, selection.shown_changed),
        ]
        if len(self._sums):
            columns.append((self.sums, selection.sums, selection.sums_changed))
        if len(self._last):
            columns.append((self.last, selection.last, selection.last_changed))
        if len(self._left):
            columns.append((self.left, selection.left, selection.left_changed))
        for before, column, changed in columns:
            column[:] = before[rows]
            # Zeros need not be stored.
            changed.append(np.flatnonzero(column))
        return selection

    def clean(self) -> None:
        """Forget which rows have changed: the caller has stored them."""
        self.counts_changed = []
        self.sums_changed = []
        self.shown_changed = []
        self.last_changed = []
        self.left_changed = []
        self.stored_rows = self.n
