"""Events as columns of codes: what every reader gives, and what is bounded and counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tallies import are_alone, distinct_labels
from workers.arrays.texts import fixed
from workers.events.vocabulary import Codes, Vocabulary
from workers.runtime.frozen import read_only

# Far above the largest `max_count`, and so far below 2^63 that a batch of them adds up in 64 bits.
AMOUNT_MAX = 1 << 40

Longs = NDArray[np.int64]
NO_AMOUNTS: Longs = read_only(np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class EventColumns:
    """What one view sees of the events of a batch, in order. Sensitive: the repr shows no content.

    Attributes:
        keys: int32 (n,), code of each event's stream key in `key_names`.
        key_names: vocabulary of the stream keys.
        ends: int64 (n,), where each event's labels end.
        labels: int32 (m,), codes of the events' labels end to end: within an event each once, in
            the order of first occurrence.
        amounts: int64 (m,), how often the event brings the label, at most AMOUNT_MAX; (0,): all 1.
        label_names: vocabulary of the labels.
        seen: bool (n,), whether the view looks at the event; None: it looks at all of them. Labels
            of others may be there, for views that look at other events share the columns; they are
            no part of what this one sees.
    """

    keys: Codes
    key_names: Vocabulary
    ends: Longs
    labels: Codes
    amounts: Longs
    label_names: Vocabulary
    seen: NDArray[np.bool_] | None = None

    def __repr__(self) -> str:
        return f"EventColumns({len(self.ends)} events)"

    def select(self, events: Longs) -> EventColumns:
        """Return those of some of the events, int64 (k,), ascending."""
        number = np.diff(self.ends, prepend=0)[events]
        rows = rows_of(self.ends[events] - number, number)
        return EventColumns(
            self.keys[events],
            self.key_names,
            np.cumsum(number),
            self.labels[rows],
            self.amounts[rows] if len(self.amounts) else self.amounts,
            self.label_names,
            None if self.seen is None else self.seen[events],
        )


@dataclass(frozen=True, slots=True)
class Events:
    """The valid events of a batch, in order. Sensitive: the repr shows their number only.

    Attributes:
        index: int64 (n,), which record of the batch each event is.
        times: int64 (n,), ms since 1970.
        users: uint64 (n, 2), digest of each event's user; None where users are not looked at.
        views: what each view sees of them, by its name.
    """

    index: Longs
    times: Longs
    users: NDArray[np.uint64] | None
    views: Mapping[str, EventColumns]

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        return f"Events({len(self)})"

    @property
    def looked_at(self) -> NDArray[np.bool_]:
        """Return which events some view looks at, bool (n,); the others are skipped."""
        found = np.zeros(len(self), dtype=np.bool_)
        for columns in self.views.values():
            if columns.seen is None:
                return np.ones(len(self), dtype=np.bool_)
            found |= columns.seen
        return found

    def select(self, events: Longs) -> Events:
        """Return some of the events, int64 (k,), ascending."""
        return Events(
            self.index[events],
            self.times[events],
            None if self.users is None else self.users[events],
            {name: columns.select(events) for name, columns in self.views.items()},
        )


class Names:
    """The vocabulary of one partition's stream keys, or of the labels of a field, as it grows."""

    def __init__(self, first: Collection[str] = ()) -> None:
        """
        Args:
            first: texts that have the first codes of every vocabulary.
        """
        self._first = tuple(first)
        self.vocabulary = Vocabulary(self._first)

    def begin(self) -> None:
        """Begin a batch, whose codes are those of one vocabulary."""
        if self.vocabulary.full:
            self.vocabulary = Vocabulary(self._first)


class Coder:
    """What turns the labels of one field into columns; scratch space."""

    def __init__(self, labels: Names) -> None:
        """
        Args:
            labels: of the field; others may have the same.
        """
        self.labels = labels
        self._met, self._upto = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    def columns(
        self,
        keys: Codes,
        key_names: Vocabulary,
        first: Longs,
        number: Longs,
        labels: Codes,
        amounts: Longs,
        *,
        last: bool = False,
    ) -> EventColumns:
        """Return columns with each label of an event once.

        Args:
            keys: int32 (n,), codes of `key_names`.
            key_names: of the stream keys.
            first, number: int64 (n,): event i brings labels[first[i] : first[i] + number[i]], which
                no other event does; number[i] < 0: the view does not look at it.
            labels: int32 (m,), codes of `self.labels`.
            amounts: int64 (m,), or (0,): 1 each. Amounts of a label that an event repeats add up.
            last: whether the last amount of a repeated label counts, instead of the sum.
        """
        names, n = self.labels.vocabulary, len(first)
        if len(labels) == n and not len(amounts) and are_alone(fixed(first), fixed(number)):
            # A label an event, as of most fields: they are what is wanted.
            if n > len(self._upto):
                self._upto = np.arange(1, 2 * n + 1)
            return EventColumns(keys, key_names, self._upto[:n], labels, NO_AMOUNTS, names, None)
        if len(self._met) < len(names):
            self._met = np.full(2 * len(names), -1, dtype=np.int64)
        ends, seen = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.bool_)
        found, sums = np.empty(len(labels), dtype=np.int32), np.empty(len(labels), dtype=np.int64)
        uneven, all_seen = distinct_labels(
            fixed(first), fixed(number), fixed(labels), fixed(amounts), AMOUNT_MAX, last, self._met,
            ends, seen, found, sums,
        )  # fmt: skip
        m = int(ends[-1]) if n else 0
        return EventColumns(
            keys, key_names, ends, found[:m], sums[:m] if uneven else NO_AMOUNTS, names, None if all_seen else seen
        )


def rows_of(first: Longs, number: Longs) -> Longs:
    """Return the indices first[i] .. first[i] + number[i] - 1 of all i, end to end."""
    ends = np.cumsum(number)
    rows: Longs = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - number), number)
    return rows
