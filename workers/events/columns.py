"""Events as columns of codes: what every reader gives, and what is bounded and counted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.events.vocabulary import Codes, Vocabulary
from workers.kernels.tallies import distinct_labels
from workers.mechanisms.frozen import read_only
from workers.mechanisms.texts import fixed

# Far above the largest `max_count`, and so far below 2^63 that a batch of them adds up in 64 bits.
AMOUNT_MAX = 1 << 40

Longs = NDArray[np.int64]
NO_AMOUNTS: Longs = read_only(np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The valid events of a batch, in order. Sensitive: the repr shows their number only.

    Attributes:
        times: int64 (n,), ms since 1970.
        keys: int32 (n,), code of each event's stream key in `key_names`.
        key_names: vocabulary of the stream keys.
        ends: int64 (n,), where each event's labels end.
        labels: int32 (m,), codes of the events' labels end to end: within an event each once, in
            the order of first occurrence.
        amounts: int64 (m,), how often the event brings the label, at most AMOUNT_MAX; (0,): all 1.
        label_names: vocabulary of the labels.
        users: uint64 (n, 2), digest of each event's user; None where users are not looked at.
    """

    times: Longs
    keys: Codes
    key_names: Vocabulary
    ends: Longs
    labels: Codes
    amounts: Longs
    label_names: Vocabulary
    users: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        return f"EventColumns({len(self)} events)"

    def select(self, events: Longs) -> EventColumns:
        """Return some of the events.

        Args:
            events: int64 (k,), ascending.
        """
        number = np.diff(self.ends, prepend=0)[events]
        rows = rows_of(self.ends[events] - number, number)
        return EventColumns(
            self.times[events],
            self.keys[events],
            self.key_names,
            np.cumsum(number),
            self.labels[rows],
            self.amounts[rows] if len(self.amounts) else self.amounts,
            self.label_names,
            None if self.users is None else self.users[events],
        )


class Coder:
    """What turns the texts of one partition's events into codes: two vocabularies and scratch
    space.
    """

    def __init__(self, declared: Collection[str] = ()) -> None:
        """
        Args:
            declared: stream keys that have the first codes of every vocabulary of keys.
        """
        self._declared = tuple(declared)
        self.keys, self.labels = Vocabulary(self._declared), Vocabulary()
        self._met = np.empty(0, dtype=np.int64)

    def begin(self) -> None:
        """Begin a batch, whose codes are those of one pair of vocabularies."""
        if self.keys.full:
            self.keys = Vocabulary(self._declared)
        if self.labels.full:
            self.labels = Vocabulary()

    def columns(
        self,
        times: Longs,
        keys: Codes,
        first: Longs,
        number: Longs,
        labels: Codes,
        amounts: Longs,
        users: NDArray[np.uint64] | None,
        *,
        last: bool = False,
    ) -> EventColumns:
        """Return events whose labels are once each.

        Args:
            times: int64 (n,), ms.
            keys: int32 (n,), codes of `keys`.
            first, number: int64 (n,): event i brings labels[first[i] : first[i] + number[i]].
            labels: int32 (m,), codes of `labels`.
            amounts: int64 (m,), or (0,): 1 each. Amounts of a label that an event repeats add up.
            users: uint64 (n, 2), or None.
            last: whether the last amount of a repeated label counts, instead of the sum.
        """
        if len(self._met) < len(self.labels):
            self._met = np.full(2 * len(self.labels), -1, dtype=np.int64)
        n, most = len(times), int(number.sum())
        ends = np.empty(n, dtype=np.int64)
        found, sums = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int64)
        uneven = distinct_labels(
            fixed(first), fixed(number), fixed(labels), fixed(amounts), AMOUNT_MAX, last, self._met, ends, found, sums
        )
        m = int(ends[-1]) if n else 0
        return EventColumns(
            times, keys, self.keys, ends, found[:m], sums[:m] if uneven else NO_AMOUNTS, self.labels, users
        )


def rows_of(first: Longs, number: Longs) -> Longs:
    """Return the indices first[i] .. first[i] + number[i] - 1 of all i, end to end."""
    ends = np.cumsum(number)
    rows: Longs = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - number), number)
    return rows
