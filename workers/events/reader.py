"""Events: from the bytes of records to where their stream keys, users, labels and times are, or to
a reason why not.

A compiled scanner reads the plain records of a batch (`kernels.json_events`). About each of the
others the general reader decides alone (`event_decoding`). Nothing here keeps a label or a key in a
message: reasons name fields of the configuration only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.events.columns import AMOUNT_MAX
from workers.events.decoding import GeneralReader
from workers.kafka.records import Records
from workers.kernels.json_events import DECLINED, ITEMS, KEY, TIME, TIME_MAX, USER, scan
from workers.kernels.json_parts import are_texts, depths
from workers.mechanisms.config import LABEL_BYTES_MAX
from workers.mechanisms.frozen import Frozen, read_only
from workers.mechanisms.texts import fixed
from workers.settings import ALL_KEYS, RECORD_KEY, EventsSettings

# Room for labels of an event, on average, before there has to be more.
LABELS_FORESEEN = 4

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

__all__ = ["AMOUNT_MAX", "TIME_MAX", "EventReader", "EventSpans", "Records", "Reject"]


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is no event: its place in the batch and a reason from a fixed set."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class EventSpans:
    """The valid events of a batch, in order; starts and stops are places in `data`, and all text is
    UTF-8.

    Attributes:
        data: uint8, the bytes of the records, and behind them what the general reader decoded.
        index: int64 (n,), which record each event is.
        times: int64 (n,), ms since 1970.
        keys: int64 (n, 2), start and stop of each stream key; None: events have none (`$all`).
        users: int64 (n, 2), start and stop of each user, a whole number as its decimal digits; None
            where users are not looked at.
        first: int64 (n,), each event's first label.
        number: int64 (n,), how many labels it has.
        labels: int64 (m, 2), start and stop of each label, m the sum of `number`. A list may repeat
            one; those of an object are distinct, with the last count at the place of the first.
        amounts: int64 (m,), counts of objects, at most AMOUNT_MAX; 1 for other labels. None: all
            are 1.
        declined: how many records the general reader decided about.
    """

    data: Bytes
    index: Longs
    times: Longs
    keys: Longs | None
    users: Longs | None
    first: Longs
    number: Longs
    labels: Longs
    amounts: Longs | None
    declined: int

    def __len__(self) -> int:
        return len(self.index)


class EventReader(Frozen):
    """Reader of events as `[events]` in the settings says; all threads of a worker share it."""

    def __init__(self, events: EventsSettings, user_field: str | None = None) -> None:
        """
        Args:
            events: names of the JSON fields, limits.
            user_field: what names an event's user (`Settings.user_field`); None where users are
                not looked at.
        """
        self._general = GeneralReader(events, user_field)
        self._max = events.max_bytes
        self._users = user_field is not None
        self._key_is_key, self._user_is_key = events.key == RECORD_KEY, user_field == RECORD_KEY
        self._keys = events.key != ALL_KEYS
        self._has_time = events.timestamp is not None
        names: dict[int, str | None] = {
            KEY: None if events.key in (ALL_KEYS, RECORD_KEY) else events.key,
            ITEMS: events.items,
            TIME: events.timestamp,
            USER: None if self._user_is_key else user_field,
        }
        texts = [(names[row] or "").encode() for row in sorted(names)]
        places = _spans(texts, 0)
        places[[names[row] is None for row in sorted(names)]] = (0, -1)
        self._names = np.frombuffer(b"".join(texts), dtype=np.uint8)
        self._places = read_only(places)

    def read(self, records: Records) -> tuple[EventSpans, list[Reject]]:
        """Return the valid events of a batch, and a reject for each other record, both in order."""
        named, values = self._named(records), records.values
        if not named.all():
            # The scanner declines what has no value; the general reader then looks for all faults.
            values = np.where(named[:, None], values, -1)
        return self._completed(records, named, self._scanned(records, values))

    def read_one_by_one(self, records: Records) -> tuple[EventSpans, list[Reject]]:
        """Return what `read` does, but the general reader decides about all records."""
        nothing = self._scanned(records, np.full_like(records.values, -1))
        return self._completed(records, self._named(records), nothing)

    def _named(self, records: Records) -> NDArray[np.bool_]:
        """Return which records have a key that is a label, where it has to be one."""
        if self._key_is_key or self._user_is_key:
            return are_texts(fixed(records.data), fixed(records.keys), LABEL_BYTES_MAX)
        return np.ones(len(records), dtype=np.bool_)

    def _scanned(self, records: Records, values: Longs) -> EventSpans:
        """Return a row for each record: what the scanner reads of it, or DECLINED labels."""
        n = len(values)
        # Columns of fields that events do not have are not written to.
        keys = np.empty((n if self._keys else 0, 2), dtype=np.int64)
        users = np.empty((n if self._users else 0, 2), dtype=np.int64)
        times = np.empty(n, dtype=np.int64)
        first, number = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        room = LABELS_FORESEEN * n
        labels, amounts = np.empty((room, 2), dtype=np.int64), np.empty(room, dtype=np.int64)
        data, values = fixed(records.data), fixed(values)
        done, used, counting = 0, 0, False
        while True:
            done, used, counted = scan(
                data, values, self._max, self._names, self._places, done,
                times, keys, users, first, number, labels, amounts, used,
            )  # fmt: skip
            counting |= counted
            if done == n:
                break
            # A label has two quotes at least: the record will go on now.
            more = len(labels) + int(values[done, 1] - values[done, 0])
            labels = np.concatenate([labels, np.empty((more, 2), dtype=np.int64)])
            amounts = np.concatenate([amounts, np.empty(more, dtype=np.int64)])
        return EventSpans(
            records.data,
            np.arange(n, dtype=np.int64),
            times if self._has_time else records.times,
            records.keys if self._key_is_key else keys if self._keys else None,
            records.keys if self._user_is_key else users if self._users else None,
            first,
            number,
            labels[:used],
            amounts[:used] if counting else None,
            0,
        )

    def _completed(
        self, records: Records, named: NDArray[np.bool_], rows: EventSpans
    ) -> tuple[EventSpans, list[Reject]]:
        """Have the general reader decide about declined rows, and keep those that are events."""
        declined = np.flatnonzero(rows.number == DECLINED)
        if not len(declined):
            return rows, []
        found, rejects = _Found(rows), []
        spans = records.values[declined]
        deep = depths(fixed(records.data), fixed(spans))
        for row, (start, stop), depth in zip(
            declined.tolist(), spans.tolist(), deep.tolist(), strict=True
        ):
            if start < 0:
                rejects.append(Reject(row, "no value"))
                continue
            event = self._general.read(records.data[start:stop].tobytes(), depth)
            if isinstance(event, str):
                rejects.append(Reject(row, event))
            elif not named[row]:
                rejects.append(Reject(row, "record key is no label"))
            else:
                found.add(row, event)
        return found.spans(len(declined)), rejects


class _Found:
    """Rows of a batch, filled with what the general reader finds where the scanner declined."""

    def __init__(self, rows: EventSpans) -> None:
        """
        Args:
            rows: what the scanner read; its columns are written to.
        """
        self._rows = rows
        self._texts: list[bytes] = []
        self._end = len(rows.data)
        self._labels: list[tuple[int, int]] = []
        self._amounts: list[int] = []
        self._counting = False

    def add(self, row: int, event: Any) -> None:
        """Write a decoded event to the row of its record."""
        rows, items = self._rows, event.items
        for name, column in (("key", rows.keys), ("user", rows.users)):
            if column is not None and hasattr(event, name):
                column[row] = self._text(str(getattr(event, name)))
        if hasattr(event, "time"):
            rows.times[row] = event.time
        labels = [items] if isinstance(items, str) else list(items)
        rows.first[row] = len(rows.labels) + len(self._labels)
        rows.number[row] = len(labels)
        self._labels += map(self._text, labels)
        if isinstance(items, dict):
            self._counting = True
            self._amounts += (min(count, AMOUNT_MAX) for count in items.values())
        else:
            self._amounts += [1] * len(labels)

    def _text(self, text: str) -> tuple[int, int]:
        """Return where a text is now in the bytes of the batch."""
        self._texts.append(text.encode())
        start, self._end = self._end, self._end + len(self._texts[-1])
        return start, self._end

    def spans(self, declined: int) -> EventSpans:
        """Return the rows that are events."""
        rows = self._rows
        index = np.flatnonzero(rows.number != DECLINED)
        data, labels, amounts = rows.data, rows.labels, rows.amounts
        if self._counting or amounts is not None:
            before = np.ones(len(labels), dtype=np.int64) if amounts is None else amounts
            amounts = np.concatenate([before, np.array(self._amounts, dtype=np.int64)])
        if self._texts:
            data = np.concatenate([data, np.frombuffer(b"".join(self._texts), dtype=np.uint8)])
            labels = np.concatenate([labels, np.array(self._labels, dtype=np.int64).reshape(-1, 2)])
        return EventSpans(
            data,
            index,
            rows.times[index],
            None if rows.keys is None else rows.keys[index],
            None if rows.users is None else rows.users[index],
            rows.first[index],
            rows.number[index],
            labels,
            amounts,
            declined,
        )


def _spans(texts: Sequence[bytes], begin: int) -> Longs:
    """Return start and stop of each of the texts, which lie end to end from `begin` on."""
    ends = np.cumsum([begin, *map(len, texts)], dtype=np.int64)
    return np.stack([ends[:-1], ends[1:]], axis=1)
