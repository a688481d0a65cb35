"""The exact boards of one tick, worked out once for all runs held against the same counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Rows
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Items
from workers.mechanisms.noise.keyed import NoiseKey
from workers.replay.backtest.truth import Truth

# Stream keys that are measured one by one: the first ones.
KEYS_MAX = 8

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Top:
    """The largest items of one stream key.

    Attributes:
        rows: at most n rows with a count, largest first, ties by row.
        floor: count of the last of them: whatever has it belongs to them.
    """

    rows: Rows
    floor: int

    @property
    def size(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class KeyView:
    """One stream key at a tick.

    Attributes:
        rows: its rows; None: all of them.
        top, top_unbounded: its largest items, bounded and not; the latter's rows are the unbounded
            truth's own.
        total, total_unbounded: sums of the counts.
    """

    rows: Rows | None
    top: Top
    top_unbounded: Top
    total: int
    total_unbounded: int


class View:
    """Exact counts, bounded and unbounded, as of the tick both have counted last."""

    def __init__(self, truth: Truth, wide: Truth, key: NoiseKey, top: int) -> None:
        """Take bounded counts, whose rows are meant everywhere, unbounded ones, root key, and n."""
        self.truth, self._wide, self._key, self.top = truth, wide, key, top
        self._columns: Ledger | None = None
        self._wide_columns: Ledger | None = None
        self._place: Rows = np.empty(0, dtype=np.int64)
        self.keys: list[KeyView] = []
        self.counts = self.unbounded = np.empty(0, dtype=np.int64)
        self.total = self.total_unbounded = 0

    def look(self) -> None:
        """Bring the view to the truths' tick."""
        columns, wide = self.truth.columns, self._wide.columns
        if columns is not self._columns or wide is not self._wide_columns:
            self._columns, self._wide_columns = columns, wide
            self._place = np.empty(0, dtype=np.int64)
        place = np.full(columns.n, -1, dtype=np.int64)
        place[: len(self._place)] = self._place
        missing = np.flatnonzero(place < 0)
        place[missing] = wide.find(columns.tags[missing])
        self._place = place
        self.counts = columns.counts
        self.unbounded = np.where(place >= 0, wide.counts[place], 0) if wide.n else np.zeros_like(self.counts)
        self.total, self.total_unbounded = int(self.counts.sum()), int(wide.counts.sum())
        self.keys = [self._key_view(columns, wide, index) for index in range(min(len(self.names), KEYS_MAX))]

    @property
    def names(self) -> Sequence[str]:
        """The stream keys by index, also those that are not measured one by one."""
        return self.truth.names

    def _key_view(self, columns: Ledger, wide: Ledger, index: int) -> KeyView:
        alone = len(self.names) == 1
        rows = None if alone else np.flatnonzero(columns.keys == index)
        of_wide = None if alone else np.flatnonzero(wide.keys == index)
        return KeyView(
            rows,
            largest(columns.counts, rows, self.top),
            largest(wide.counts, of_wide, self.top),
            int((columns.counts if rows is None else columns.counts[rows]).sum()),
            int((wide.counts if of_wide is None else wide.counts[of_wide]).sum()),
        )

    def rows_of(self, index: int, labels: Sequence[bytes]) -> Rows:
        """Return the rows of labels of one stream key; -1 where there is none."""
        return self.truth.columns.find(self._key.tags(self.names[index], labels))

    def rows_of_items(self, items: Items) -> Rows:
        """Return the rows of what a mechanism without rows shows."""
        rows = np.full(len(items.counts), -1, dtype=np.int64)
        for index in np.unique(items.keys).tolist():
            here = np.flatnonzero(items.keys == index)
            labels = items.labels if len(here) == len(rows) else [items.labels[i] for i in here.tolist()]
            rows[here] = self.rows_of(index, labels)
        return rows

    def rank(self, index: int, row: int) -> int:
        """Return the place of a row among those of its stream key by exact count, from 1."""
        rows = self.keys[index].rows
        counts = self.counts if rows is None else self.counts[rows]
        numbers = np.arange(len(counts)) if rows is None else rows
        own = self.counts[row]
        return int((counts > own).sum() + ((counts == own) & (numbers < row)).sum()) + 1

    def label(self, row: int) -> str:
        return self.truth.columns.label(row).decode()


def largest(counts: Counts, rows: Rows | None, n: int) -> Top:
    """Return the n largest of the counts above 0 of `rows`; None: of all."""
    own = counts if rows is None else counts[rows]
    least = max(1, int(np.partition(own, len(own) - n)[len(own) - n])) if len(own) > n else 1
    found = np.flatnonzero(own >= least)
    found = found[np.lexsort((found, -own[found]))][:n]
    floor = int(own[found[-1]]) if len(found) else 1
    return Top(found if rows is None else rows[found], floor)


def released_top(rows: Rows, counts: Counts, n: int) -> NDArray[np.int64]:
    """Return the places in `rows` of the n largest published counts, by count, ties by row."""
    places = np.arange(len(rows))
    if len(rows) > n:
        least = np.partition(counts, len(rows) - n)[len(rows) - n]
        places = np.flatnonzero(counts >= least)
    return places[np.lexsort((rows[places], -counts[places]))][:n]


def kendall(exact: NDArray[np.int64], published: NDArray[np.int64]) -> float:
    """Return Kendall's tau-b; nan where either is all ties."""
    a, b = _order(exact), _order(published)
    scale = math.sqrt(int(np.abs(a).sum()) * int(np.abs(b).sum()))
    return int((a * b).sum()) / scale if scale else math.nan


def _order(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 where a value is above another, -1 where below; a difference could overflow."""
    rows, columns = values[:, None], values[None, :]
    return (rows > columns).astype(np.int64) - (rows < columns)
