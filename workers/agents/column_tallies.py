"""What columns of events add up to: stage 1's sums for replay, without a Python object for an event.

The worker counts lists in dictionaries and sends them as messages (`intake`, `contributions`). This counts arrays and hands them to the
merge as they are; that both count the same, whatever the events, is held against each other in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.agents.contributions import Section
from workers.agents.event_columns import EventColumns, Longs
from workers.mechanisms.config import Lane
from workers.mechanisms.ledger import Contributions, Tags
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.texts import NO_TEXTS, Texts

# Up to this many times the rows, counting by index beats sorting.
DENSE = 8
# This many sums of one tick are added up to one.
PARTS_MAX = 16
# At most this many tags are held by code, of all stream keys together: 17 bytes each.
TAGS_HELD = 1 << 22


@dataclass(frozen=True, slots=True)
class Counted:
    """What some events add to one tick, each (stream key, label) once.

    Attributes:
        present: int64, codes of the stream keys in the order of their first event; also of those that add nothing.
        keys, labels: int64 (n,), codes.
        counts: int64 (n,), above 0.
        key_names, label_names: the vocabularies of the codes.
    """

    present: Longs
    keys: Longs
    labels: Longs
    counts: Longs
    key_names: Sequence[str]
    label_names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Ready:
    """A part of a tick that was never encoded: replay hands it over in memory, as a section only where it must wait."""

    lane: Lane
    tick: int
    columns: Contributions

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        return 40 * len(self.columns.labels) + 64 * len(self.columns.keys) + 200

    def encoded(self) -> bytes:
        """Return it as a section in MessagePack."""
        columns = self.columns
        order = np.argsort(columns.key_of_row, kind="stable")
        labels = list(columns.labels.take(order))
        key_of_row, counts = columns.key_of_row[order], columns.counts[order]
        return Section.of(self.lane, self.tick, list(columns.keys), key_of_row, labels, counts).encoded()

    def contributions(self, key: NoiseKey) -> Contributions:
        """Return the columns, whose rows have their tags already."""
        return self.columns


class CodeTags:
    """The tags of a vocabulary's labels, made once each and then found by code; where there are too many, made again each time."""

    def __init__(self, key: NoiseKey) -> None:
        self.key = key
        self._texts: list[bytes] = []
        self._column = NO_TEXTS
        self._of: dict[str, tuple[Tags, NDArray[np.bool_]]] = {}

    def named(self, names: Sequence[str], codes: Longs) -> Texts:
        """Return the labels of codes; `names` is the vocabulary, which only grows."""
        new = [name.encode() for name in names[len(self._texts) :]]
        if new:
            self._texts += new
            self._column = Texts.concat((self._column, Texts.of(new)))
        return self._column.take(codes)

    def tags(self, name: str, codes: Longs) -> Tags:
        """Return those of some labels of a stream key, which were named before."""
        made, known = self._of.get(name) or (np.empty((0, 2), dtype=np.uint64), np.empty(0, dtype=np.bool_))
        size = len(self._texts)
        if len(known) < size:
            if sum(len(others) for _, others in self._of.values()) - len(known) + 2 * size > TAGS_HELD:
                return self.key.tags(name, [self._texts[code] for code in codes.tolist()])
            more = 2 * size - len(known)
            made = np.concatenate((made, np.zeros((more, 2), dtype=np.uint64)))
            known = np.concatenate((known, np.zeros(more, dtype=np.bool_)))
            self._of[name] = made, known
        if not known[codes].all():
            new = codes[~known[codes]]
            made[new] = self.key.tags(name, [self._texts[code] for code in new.tolist()])
            known[new] = True
        return made.take(codes, axis=0)


class ColumnTallies:
    """Sums of one source partition since its last commit. Sensitive."""

    def __init__(self) -> None:
        self._open: dict[tuple[Lane, int], list[Counted]] = {}
        self._names: Sequence[str] = ()
        self._tags: CodeTags | None = None

    def __bool__(self) -> bool:
        return bool(self._open)

    def __repr__(self) -> str:
        return f"ColumnTallies({len(self._open)} ticks)"

    def add(self, columns: EventColumns, lane: Lane, ticks: Longs) -> None:
        """Count events.

        Args:
            columns: of the events.
            lane: whose bounds apply.
            ticks: int64 (n,), the tick that each event goes into; below 1: none.
        """
        for tick, counted in added_up(columns, lane, ticks):
            parts = self._open.setdefault((lane, tick), [])
            parts.append(counted)
            if len(parts) >= PARTS_MAX:
                parts[:] = _joined(parts)

    def take(self, key: NoiseKey) -> list[Ready]:
        """Return what was counted since the last call, with the tags that `key` gives its rows."""
        taken, self._open = self._open, {}
        return [
            Ready(lane, tick, self._contributions(part, key))
            for (lane, tick), parts in taken.items()
            for part in (parts if len(parts) == 1 else _joined(parts))
        ]

    def _contributions(self, part: Counted, key: NoiseKey) -> Contributions:
        if part.label_names is not self._names or self._tags is None or self._tags.key is not key:
            self._names, self._tags = part.label_names, CodeTags(key)
        labels = self._tags.named(part.label_names, part.labels)
        by_code = np.argsort(part.present, kind="stable")
        of_row = by_code[np.searchsorted(part.present[by_code], part.keys)]
        names = [part.key_names[code] for code in part.present.tolist()]
        tags = np.empty((len(labels), 2), dtype=np.uint64)
        # Rows are in the order of their keys' codes.
        starts = np.searchsorted(part.keys, part.present).tolist()
        stops = np.searchsorted(part.keys, part.present, side="right").tolist()
        for name, start, stop in zip(names, starts, stops, strict=True):
            tags[start:stop] = self._tags.tags(name, part.labels[start:stop])
        return Contributions(tuple(names), of_row.astype(np.int32), tags, labels, part.counts)


def _joined(parts: Sequence[Counted]) -> list[Counted]:
    """Return one for each vocabulary: several only where a new one began between them."""
    joined: list[Counted] = []
    while parts:
        first = parts[0]
        same = [p for p in parts if p.key_names is first.key_names and p.label_names is first.label_names]
        parts = [p for p in parts if p.key_names is not first.key_names or p.label_names is not first.label_names]
        if len(same) == 1:
            joined.append(first)
            continue
        texts = max(len(first.label_names), 1)
        codes = np.concatenate([part.keys * texts + part.labels for part in same])
        codes, counts = _added(codes, np.concatenate([part.counts for part in same]), len(first.key_names) * texts)
        present = _first_seen(np.concatenate([part.present for part in same]), len(first.key_names))
        keys = codes // texts
        joined.append(Counted(present, keys, codes - keys * texts, counts, first.key_names, first.label_names))
    return joined


def added_up(columns: EventColumns, lane: Lane, ticks: Longs) -> Iterator[tuple[int, Counted]]:
    """Yield what the events add to each tick, bounded. Ticks below 1 are left out.

    Args:
        columns: of the events.
        lane: whose `max_items` and `max_count` bound each event.
        ticks: int64 (n,), the tick that each event goes into.
    """
    numbers, place = _numbered(ticks)
    keys, texts = len(columns.key_names), max(len(columns.label_names), 1)
    pair = place * keys + columns.keys
    group, labels, amounts = _bounded(columns, lane, pair)
    codes, counts = _added(group * texts + labels, amounts, len(numbers) * keys * texts)
    of_pair = codes // texts
    label_of = codes - of_pair * texts
    present = _first_seen(pair, len(numbers) * keys)
    # By tick; within one in the order of first occurrence.
    present = present[np.argsort(present // keys, kind="stable")]
    bounds = np.arange(len(numbers) + 1) * keys
    rows = np.searchsorted(of_pair, bounds).tolist()
    pairs = np.searchsorted(present // keys, np.arange(len(numbers) + 1)).tolist()
    for i, tick in enumerate(numbers.tolist()):
        if tick >= 1:
            here, of_tick = slice(rows[i], rows[i + 1]), slice(pairs[i], pairs[i + 1])
            yield (
                tick,
                Counted(
                    present[of_tick] - i * keys,
                    of_pair[here] - i * keys,
                    label_of[here],
                    counts[here],
                    columns.key_names,
                    columns.label_names,
                ),
            )


def _bounded(columns: EventColumns, lane: Lane, pair: Longs) -> tuple[Longs, NDArray[np.int32], Longs | None]:
    """Return the rows that count: the (tick, key) of each, its label, and how much (None: 1 each)."""
    lengths = columns.lengths
    labels, amounts = columns.labels, columns.amounts
    longest = int(lengths.max(initial=0))
    group = pair if longest == 1 and len(labels) == len(pair) else np.repeat(pair, lengths)
    if longest > lane.max_items:
        rank = np.arange(len(labels)) - np.repeat(columns.ends - lengths, lengths)
        kept = np.flatnonzero(rank < lane.max_items)
        group, labels = group[kept], labels[kept]
        amounts = None if amounts is None else amounts[kept]
    if amounts is not None:
        amounts = np.minimum(amounts, np.int64(lane.max_count))
        if not amounts.all():
            kept = np.flatnonzero(amounts)
            group, labels, amounts = group[kept], labels[kept], amounts[kept]
    return group, labels, amounts


def _numbered(ticks: Longs) -> tuple[Longs, Longs]:
    """Return the distinct ticks, ascending, and the place of each event's tick among them."""
    if (ticks[1:] >= ticks[:-1]).all():
        steps = np.zeros(len(ticks), dtype=np.int64)
        np.cumsum(ticks[1:] != ticks[:-1], out=steps[1:])
        return ticks[np.flatnonzero(np.diff(steps, prepend=-1))], steps
    numbers, place = np.unique(ticks, return_inverse=True)
    return numbers, place.astype(np.int64)


def _added(codes: Longs, amounts: Longs | None, space: int) -> tuple[Longs, Longs]:
    """Return the distinct codes, ascending, each with the sum of its amounts (None: 1 each)."""
    if space <= DENSE * len(codes):
        if amounts is None:
            sums = np.bincount(codes, minlength=space)
        else:
            sums = np.zeros(space, dtype=np.int64)
            np.add.at(sums, codes, amounts)
        found = np.flatnonzero(sums)
        return found, sums[found]
    if amounts is None:
        found, counts = np.unique(codes, return_counts=True)
        return found, counts.astype(np.int64, copy=False)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return ordered[starts], np.add.reduceat(amounts[order], starts) if len(starts) else amounts[:0]


def _first_seen(codes: Longs, space: int) -> Longs:
    """Return the distinct codes in the order in which they first occur."""
    n = len(codes)
    if space <= DENSE * n:
        first = np.full(space, n, dtype=np.int64)
        first[codes[::-1]] = np.arange(n - 1, -1, -1)  # of several the last assignment stays: the earliest event
        found = np.flatnonzero(first < n)
        return found[np.argsort(first[found])]
    found, index = np.unique(codes, return_index=True)
    return found[np.argsort(index)]
