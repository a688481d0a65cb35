"""Events as columns of codes: how replay reads millions of them a second.

The worker's lists of labels (`events.Events`) and these columns hold the same events. A label or stream key is a code of a `Vocabulary`,
so that bounding and adding up are operations on whole arrays (`column_tallies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.agents.events import Events
from workers.mechanisms.bounding import Items

# Far above the largest `max_count`, and so far below 2^63 that a batch of them adds up in 64 bits.
AMOUNT_MAX = 1 << 40
# Texts of a vocabulary before a new one begins: about 150 MB.
TEXTS_MAX = 1_000_000
# Events whose labels are compared pair by pair; longer ones are sorted.
PAIRWISE_MAX = 8

Codes = NDArray[np.int32]
Longs = NDArray[np.int64]


class _Texts(dict[str, int]):
    """Text -> code; a text met for the first time gets the next one."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self.names)
        self.names.append(text)
        return code


class Vocabulary:
    """Codes of texts, the same from batch to batch, until there are too many texts: then a new one begins."""

    def __init__(self, texts_max: int = TEXTS_MAX) -> None:
        self._max = texts_max
        self._texts = _Texts()

    @property
    def names(self) -> Sequence[str]:
        """The texts by code; those that are met later are added to it."""
        return self._texts.names

    def begin(self) -> None:
        """Called before a batch, whose codes are those of one vocabulary."""
        if len(self._texts) > self._max:
            self._texts = _Texts()

    def code(self, text: str) -> int:
        """Return the code of a text."""
        return self._texts[text]

    def codes(self, texts: Iterable[str], count: int) -> Codes:
        """Return the codes of `count` texts."""
        return np.fromiter(map(self._texts.__getitem__, texts), dtype=np.int32, count=count)


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The valid events of a batch, in order.

    Attributes:
        times: int64 (n,), ms since 1970.
        keys: int32 (n,), code of each event's stream key.
        key_names: text of each key's code.
        labels: int32 (m,), codes of the events' labels end to end: within an event each once, in the order of first occurrence.
        amounts: int64 (m,), how often the event brings the label, up to AMOUNT_MAX; None: once each.
        ends: int64 (n,), where each event's labels end.
        label_names: text of each label's code.
        users: each event's user; None where users are not looked at.
    """

    times: Longs
    keys: Codes
    key_names: Sequence[str]
    labels: Codes
    amounts: Longs | None
    ends: Longs
    label_names: Sequence[str]
    users: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.times)

    @property
    def lengths(self) -> Longs:
        """Labels of each event."""
        return np.diff(self.ends, prepend=0)

    def events(self) -> Events:
        """Return the same events as lists, for what looks at one event after the other."""
        keys = [self.key_names[code] for code in self.keys.tolist()]
        names = [self.label_names[code] for code in self.labels.tolist()]
        ends = self.ends.tolist()
        starts = [0, *ends][: len(ends)]
        items: list[Items]
        if self.amounts is None:
            items = [names[a:b] for a, b in zip(starts, ends, strict=True)]
        else:
            amounts = self.amounts.tolist()
            items = [dict(zip(names[a:b], amounts[a:b], strict=True)) for a, b in zip(starts, ends, strict=True)]
        return Events(keys, items, self.times, self.users)


def columns_of_events(events: Events, keys: Vocabulary, labels: Vocabulary) -> EventColumns:
    """Return the columns of events that were read as lists; `distinct` of them, or of several joined, is to follow."""
    n = len(events.times)
    key_codes = keys.codes(events.keys, n)
    kinds = set(map(type, events.items))
    amounts: Longs | None = None
    flat: Iterable[str]
    items: Sequence[Any] = events.items
    if kinds == {str}:
        lengths, flat = np.ones(n, dtype=np.int64), items
    else:
        if str in kinds:
            items = [[each] if isinstance(each, str) else each for each in items]
        lengths, flat = np.fromiter(map(len, items), dtype=np.int64, count=n), chain.from_iterable(items)
        if dict in kinds:
            amounts = _amounts(items, int(lengths.sum()))
    ends = np.cumsum(lengths)
    codes = labels.codes(flat, int(ends[-1]) if n else 0)
    return EventColumns(events.times, key_codes, keys.names, codes, amounts, ends, labels.names, events.users)


def _amounts(items: Sequence[Any], count: int) -> Longs:
    """Return how often each label occurs in its event: the counts of objects, one for a label of a list."""
    flat = chain.from_iterable(each.values() if isinstance(each, dict) else (1,) * len(each) for each in items)
    return np.fromiter((min(amount, AMOUNT_MAX) for amount in flat), dtype=np.int64, count=count)


def joined(parts: Sequence[EventColumns]) -> EventColumns:
    """Return columns with the same codes, one after the other."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    before = np.cumsum([0, *(len(part.labels) for part in parts[:-1])])
    amounts: Longs | None = None
    if any(part.amounts is not None for part in parts):
        amounts = np.concatenate(
            [np.ones_like(p.labels, dtype=np.int64) if p.amounts is None else p.amounts for p in parts]
        )
    return EventColumns(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.keys for part in parts]),
        first.key_names,
        np.concatenate([part.labels for part in parts]),
        amounts,
        np.concatenate([part.ends + start for part, start in zip(parts, before.tolist(), strict=True)]),
        first.label_names,
        None if first.users is None else list(chain.from_iterable(part.users or () for part in parts)),
    )


def distinct(columns: EventColumns, *, last: bool = False) -> EventColumns:
    """Make each label occur once in its event, where it came first.

    Args:
        columns: in which a label may be repeated.
        last: whether the last amount counts (a map in which a name is repeated), or all of them together.
    """
    lengths = columns.lengths
    repeating = _repeating(columns.labels, columns.ends, lengths)
    if not len(repeating):
        return columns
    m = len(columns.labels)
    inside = np.zeros(len(columns), dtype=np.bool_)
    inside[repeating] = True
    rows = np.flatnonzero(np.repeat(inside, lengths))  # of the events in question
    event = np.repeat(repeating, lengths[repeating])
    order = np.lexsort((columns.labels[rows], event))  # stable: of equal ones the first comes first
    rows, event = rows[order], event[order]
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = (columns.labels[rows[1:]] != columns.labels[rows[:-1]]) | (event[1:] != event[:-1])
    starts = np.flatnonzero(begins)
    stops = np.append(starts[1:], len(rows))
    amounts = np.ones(m, dtype=np.int64) if columns.amounts is None else columns.amounts.copy()
    if last:
        amounts[rows[starts]] = amounts[rows[stops - 1]]
    else:
        amounts[rows[starts]] = np.minimum(np.add.reduceat(amounts[rows], starts), AMOUNT_MAX)
    kept = np.ones(m, dtype=np.bool_)
    kept[rows[~begins]] = False
    lengths[repeating] -= np.bincount(np.searchsorted(repeating, event[~begins]), minlength=len(repeating))
    return EventColumns(
        columns.times,
        columns.keys,
        columns.key_names,
        columns.labels[kept],
        amounts[kept],
        np.cumsum(lengths),
        columns.label_names,
        columns.users,
    )


def _repeating(labels: Codes, ends: Longs, lengths: Longs) -> Longs:
    """Return the events that hold a label twice, ascending."""
    longest = int(lengths.max(initial=0))
    if longest > PAIRWISE_MAX:
        pairs = np.repeat(np.arange(len(lengths)) << 32, lengths) | labels
        pairs.sort()
        return np.unique(pairs[1:][pairs[1:] == pairs[:-1]] >> 32)
    found: list[Longs] = []
    for apart in range(1, longest):
        same = np.flatnonzero(labels[apart:] == labels[:-apart])
        event = np.searchsorted(ends, same, side="right")
        found.append(event[ends[event] > same + apart])  # both lie in the event that holds the first of them
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
