"""Events: from the bytes of records to where their stream keys, users, labels and times are, or to
a reason why not.

A compiled scanner of the format logs the wanted fields of the plain records of a batch, and
`view_kernels` says what each view sees of them. About each other record the general reader decides
alone: the format's decoder, and `events.project`. A batch that is large once it is read comes in
parts, so that memory is bounded. Nothing here keeps a label or a key in a message: reasons name
fields of the configuration only.

Which times an event may have, and the unit that explains a time outside of them.

Seconds read as milliseconds are a day of January 1970, microseconds the year 58,000. The reasons
are from a fixed set and never show the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import fixed
from workers.events.json import Json
from workers.events.json_parts import are_texts
from workers.events.layout import READ, UNSEEN, Layout
from workers.events.log import DECLINED, longest_log, outcomes, widest
from workers.events.logs import Format, Logs
from workers.events.project import PER_SECOND, PLAUSIBLE_MS, UNIT_WORDS, Event, Projection
from workers.events.view_kernels import see
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import ALL_KEYS, RECORD_KEY, Path, Shape
from workers.runtime.frozen import Frozen, read_only

#: Events dated earlier, before 2000-01-01, are rejected.
EARLIEST_MS = PLAUSIBLE_MS[0]
EARLY = "dated before 2000"
AHEAD = "dated too far ahead"
BEHIND = "dated too far behind"
NO_RECORD_TIME = "record without a time"

# Kafka has -1 for no time; `rekey` sends such a record on with 1, since 0 means the present.
_NO_RECORD_TIME_MAX = 1


def early(time_ms: int, unit: str, *, of_record: bool) -> str:
    """Return why an event dated before EARLIEST_MS is rejected.

    Args:
        time_ms: its time as it was read.
        unit: the unit that it was read in.
        of_record: whether it is the record's own time.
    """
    return (
        NO_RECORD_TIME
        if of_record and time_ms <= _NO_RECORD_TIME_MAX
        else with_unit(EARLY, time_ms, unit)
    )


def with_unit(reason: str, time_ms: int, unit: str) -> str:
    """Return a reason with the unit that makes the time plausible, if there is one."""
    for other, per_second in PER_SECOND.items():
        read = time_ms * PER_SECOND.get(unit, 0) // per_second
        if other != unit and PLAUSIBLE_MS[0] <= read < PLAUSIBLE_MS[1]:
            return f"{reason}: {UNIT_WORDS[other]} instead of {unit}?"
    return reason


Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

# Room for labels of an event in a column, before there has to be more. What a batch takes beyond
# the 64 MiB that malloc keeps for a thread is the system's again after it, which clears it each
# time: with five histograms that was a quarter of the worker's time.
LABELS_FORESEEN = 2
# Room for texts of a binary format's numbers, before there has to be more.
MADE_FORESEEN = 1 << 16
# Amounts of most columns, of as many labels as a batch seldom has more of.
_ONES: Longs = read_only(np.ones(1 << 17, dtype=np.int64))
_NONE: Longs = read_only(np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is no event: its place in the batch and a reason from a fixed set."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class ViewSpans:
    """What one view sees of the events of a batch.

    Attributes:
        first: int64 (n,), each event's first label in the view's column.
        number: int64 (n,), how many it has; UNSEEN where the view's conditions do not hold.
    """

    first: Longs
    number: Longs


@dataclass(frozen=True, slots=True, repr=False)
class LabelSpans:
    """A column of labels, of one view or of several.

    Attributes:
        labels: int64 (m, 2), start and stop of each label; of buckets the number of each first. A
            list may repeat one; those of an object are distinct.
        amounts: int64 (m,), how often the event brings each, at most AMOUNT_MAX.
        once: whether every amount is 1. Where it is not said, some may be all the same.
    """

    labels: Longs
    amounts: Longs
    once: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class EventSpans:
    """The valid events of a part of a batch, in order; starts and stops are places in `data`, and
    all text is UTF-8.

    Attributes:
        data: uint8, the bytes of the records, and behind them what the readers decoded.
        index: int64 (n,), which record of the batch each event is.
        times: int64 (n,), ms since 1970.
        keys: for each distinct stream key of the layout, start and stop of each event's, int64
            (n, 2); None: events have none (`$all`).
        users: int64 (n, 2), start and stop of each user, a whole number as its decimal digits; None
            where users are not looked at.
        views, columns: in the order of the layout.
        declined: how many records the general reader decided about.
    """

    data: Bytes
    index: Longs
    times: Longs
    keys: tuple[Longs | None, ...]
    users: Longs | None
    views: tuple[ViewSpans, ...]
    columns: tuple[LabelSpans, ...]
    declined: int

    def __len__(self) -> int:
        return len(self.index)

    @property
    def looked_at(self) -> NDArray[np.bool_]:
        """Return which events some view looks at, bool (n,); the others are skipped."""
        found = np.zeros(len(self), dtype=np.bool_)
        for view in self.views:
            found |= view.number != UNSEEN
        return found


class EventReader(Frozen):
    """Reader of events as the settings say; all threads of a worker share it."""

    def __init__(self, shape: Shape, *, max_bytes: int = 1_000_000) -> None:
        """
        Args:
            shape: what is read of an event.
            max_bytes: a longer record is rejected.
        """
        self.layout = Layout(shape)
        self._json, self._max = Json(self.layout.tree), max_bytes
        self._projection = Projection(shape)
        self._of_record_key = tuple(view.key == RECORD_KEY for view in shape.views.values())
        self._user_is_key = shape.user == RECORD_KEY

    def read(
        self, records: Records, form: Format | None = None
    ) -> Iterator[tuple[EventSpans, list[Reject], int]]:
        """Yield what is in a batch, part by part, at least one.

        Args:
            records: the batch.
            form: how they are encoded; None: as JSON.

        Yields:
            The valid events of a part; a reject for each other record, both in order; and how many
            records of the batch are read with it.
        """
        named, plain = self._named(records), None
        if named is not None or widest(fixed(records.values)) > self._max:
            # The scanner declines what has no value; the general reader then looks for all faults.
            plain = records.values[:, 1] - records.values[:, 0] <= self._max
            plain = plain if named is None else plain & named
        for logs in (form or self._json).scan(records.data, records.values, plain):
            yield self._completed(records, named, logs)

    def read_one_by_one(
        self, records: Records, form: Format | None = None
    ) -> Iterator[tuple[EventSpans, list[Reject], int]]:
        """Yield what `read` does, but the general reader decides about all records."""
        named, nothing = self._named(records), np.zeros(len(records), dtype=np.bool_)
        for logs in (form or self._json).scan(records.data, records.values, nothing):
            yield self._completed(records, named, logs)

    def of_objects(self, objects: Sequence[object]) -> tuple[EventSpans, list[Reject]]:
        """Return the valid events of decoded records, whose fields hold all that is wanted."""
        n, none = len(objects), np.empty(0, dtype=np.uint8)
        logs = Logs.declined(none, n, objects.__getitem__)
        rows = _Rows(self.layout, logs)
        found, rejects = _Found(self.layout, rows, 0), []
        for row, decoded in enumerate(objects):
            event = self._projection.event(decoded)
            if isinstance(event, str):
                rejects.append(Reject(row, event))
            elif event.time >= 0:
                found.add(row, event)
        nowhere = np.zeros((n, 2), dtype=np.int64)
        return found.spans(nowhere[:, 0], nowhere), rejects

    def whole(self, records: Records, row: int, form: Format | None = None) -> object:
        """Return a record with all of its fields, as plain objects; of Protobuf the wanted ones.

        Raises:
            ValueError: it cannot be decoded; the message is the reason of its reject.
        """
        if form is None:
            return self._json.whole(records.value(row) or b"")
        nothing = np.zeros(1, dtype=np.bool_)
        return next(form.scan(records.data, records.values[row : row + 1], nothing)).decode(0)

    def _named(self, records: Records) -> NDArray[np.bool_] | None:
        """Return which records have a key that is a label, where it has to be one; None: all."""
        if not self._user_is_key and not any(self._of_record_key):
            return None
        named = are_texts(fixed(records.data), fixed(records.keys), LABEL_BYTES_MAX)
        return None if named.all() else named

    def _completed(
        self, records: Records, named: NDArray[np.bool_] | None, logs: Logs
    ) -> tuple[EventSpans, list[Reject], int]:
        """Have the general reader decide about declined records of a part; see `read`."""
        rows, begin = _Rows(self.layout, logs), logs.begin
        part = slice(begin, begin + len(rows.status))
        found, rejects = _Found(self.layout, rows, begin), []
        declined = np.flatnonzero(rows.status == DECLINED) + begin if found.declined else _NONE
        for row, (start, stop) in zip(
            declined.tolist(), records.values[declined].tolist(), strict=True
        ):
            event = self._read_one(logs, row, start, stop)
            if (
                isinstance(event, Event)
                and named is not None
                and not named[row]
                and self._needs_name(event)
            ):
                event = "record key is no label"
            if isinstance(event, str):
                rejects.append(Reject(row, event))
            elif event.time >= 0:
                found.add(row - begin, event)
        keys = records.keys[part]
        if named is not None:
            keys = np.where(named[part, None], keys, 0)
        return found.spans(records.times[part], keys), rejects, part.stop

    def _read_one(self, logs: Logs, row: int, start: int, stop: int) -> Event | str:
        """Return the event of one record, or the reason why it is none."""
        if start < 0:
            return "no value"
        if stop - start > self._max:
            return "record too large"
        try:
            decoded = logs.decode(row)
        except ValueError as reason:
            return str(reason)
        return self._projection.event(decoded)

    def _needs_name(self, event: Event) -> bool:
        """Return whether the record key is the stream key of a view that looks, or the user."""
        looks = [view is not None for view in event.views]
        of_key = any(
            needed and looked for needed, looked in zip(self._of_record_key, looks, strict=True)
        )
        return of_key or (self._user_is_key and any(looks))


class _Rows:
    """What the views see of logs: the columns of `view_kernels.see`, a row a record."""

    def __init__(self, layout: Layout, logs: Logs) -> None:
        n, views, columns = len(logs.status), len(layout.views), len(layout.columns)
        self.data, self.status = logs.data, logs.status
        self.times = np.empty(n if layout.time_slot >= 0 else 0, dtype=np.int64)
        self.users = np.empty((n if layout.user_slot >= 0 else 0, 2), dtype=np.int64)
        self.keys = np.empty((len(layout.keys), n, 2), dtype=np.int64)
        self.first, self.number = (
            np.empty((views, n), dtype=np.int64),
            np.empty((views, n), dtype=np.int64),
        )
        self.used, self.uneven = (
            np.zeros(columns, dtype=np.int64),
            np.zeros(columns, dtype=np.int64),
        )
        data, rows, ends = fixed(logs.data), fixed(logs.rows), fixed(logs.ends)
        longest = longest_log(ends)
        room = min(len(logs.rows), LABELS_FORESEEN * n + longest)
        self.labels, self.amounts = (
            np.empty((columns, room, 2), dtype=np.int64),
            np.empty((columns, room), dtype=np.int64),
        )
        # Only binary formats make texts, of their whole numbers.
        self.made = np.empty(MADE_FORESEEN, dtype=np.uint8)
        at, found = np.empty(layout.slots, dtype=np.int64), np.empty(columns, dtype=np.int64)
        begin, made = 0, 0
        while True:
            begin, made = see(
                data,
                rows,
                ends,
                begin,
                layout.time_slot,
                layout.unit,
                layout.user_slot,
                layout.key_slots,
                layout.views,
                layout.columns,
                layout.conditions,
                layout.text,
                layout.words,
                layout.reals,
                layout.edges,
                layout.shape.empty,
                at,
                found,
                self.made,
                made,
                self.status,
                self.times,
                self.users,
                self.keys,
                self.first,
                self.number,
                self.labels,
                self.amounts,
                self.uneven,
                self.used,
            )
            if begin == n:
                break
            if room < len(logs.rows) and int(self.used.max(initial=0)) + longest > room:
                room = min(len(logs.rows), 2 * room)
                self.labels, self.amounts = _wider(self.labels, room), _wider(self.amounts, room)
            else:
                self.made = np.concatenate([self.made, np.empty_like(self.made)])
        if made:
            self.data = np.concatenate([logs.data, self.made[:made]])


def _wider(columns: Longs, room: int) -> Longs:
    """Return columns with room for more rows."""
    number, rows, *rest = columns.shape
    wider = np.empty((number, room, *rest), dtype=columns.dtype)
    wider[:, :rows] = columns
    return wider


class _Found:
    """The rows of a part, filled with what the general reader finds where others declined."""

    def __init__(self, layout: Layout, rows: _Rows, begin: int) -> None:
        self._layout, self._rows, self._begin = layout, rows, begin
        # Numbers side by side, not objects: a record may have one for each two of its bytes.
        self._texts = bytearray()
        self._used: list[int] = rows.used.tolist()
        self._labels = [array("q") for _ in layout.columns]
        self._amounts = [array("q") for _ in layout.columns]
        #: How many records nobody has read yet.
        self.declined, read = outcomes(rows.status, READ)
        self._whole = read == len(rows.status)

    def add(self, row: int, event: Event) -> None:
        """Write an event to the row of its record."""
        rows, layout = self._rows, self._layout
        rows.status[row] = READ
        if layout.time_slot >= 0:
            rows.times[row] = event.time
        if layout.user_slot >= 0:
            rows.users[row] = self._text(event.user)
        rows.keys[:, row] = 0
        labels: dict[int, tuple[int, int]] = {}
        for view, (seen, key, column) in enumerate(
            zip(event.views, layout.key_of, layout.column_of, strict=True)
        ):
            if seen is None:
                rows.first[view, row], rows.number[view, row] = 0, UNSEEN
                continue
            if isinstance(layout.keys[key], Path):
                rows.keys[key, row] = self._text(seen.key)
            if column not in labels:
                places = self._labels[column]
                labels[column] = self._used[column] + len(places) // 2, len(seen.labels)
                for label in seen.labels:
                    places.extend(self._text(label) if isinstance(label, str) else (label, 0))
                self._amounts[column].extend(seen.amounts)
            rows.first[view, row], rows.number[view, row] = labels[column]

    def _amounts_of(self, column: int, used: int) -> tuple[Longs, bool]:
        """Return the amounts of a column that the kernel used so much of, and whether all are 1."""
        even, more = self._rows.uneven[column] == 0, self._amounts[column]
        if even and (not more or bool((np.frombuffer(more, dtype=np.int64) == 1).all())):
            return _ones(used + len(more)), True
        return _joined(_ones(used) if even else self._rows.amounts[column, :used], more), False

    def _text(self, text: str) -> tuple[int, int]:
        """Return where a text is now in the bytes of the part."""
        start = len(self._rows.data) + len(self._texts)
        self._texts += text.encode()
        return start, len(self._rows.data) + len(self._texts)

    def spans(self, record_times: Longs, record_keys: Longs) -> EventSpans:
        """Return the rows that are events; times and keys of the records are where no field is."""
        rows, layout = self._rows, self._layout
        data = rows.data
        if self._texts:
            data = np.concatenate([data, np.frombuffer(self._texts, dtype=np.uint8)])
        whole = self._whole or bool((rows.status == READ).all())
        events = np.arange(len(rows.status)) if whole else np.flatnonzero(rows.status == READ)
        index = events + self._begin if self._begin else events

        def kept(column: Longs) -> Longs:
            return column if whole else column[events]

        keys = tuple(
            None
            if key == ALL_KEYS
            else kept(record_keys if key == RECORD_KEY else rows.keys[place])
            for place, key in enumerate(layout.keys)
        )
        user = layout.shape.user
        users = None if user is None else kept(record_keys if user == RECORD_KEY else rows.users)
        views = tuple(
            ViewSpans(kept(first), kept(number))
            for first, number in zip(rows.first, rows.number, strict=True)
        )
        columns = tuple(
            LabelSpans(
                _joined(rows.labels[column, :used], self._labels[column]),
                *self._amounts_of(column, used),
            )
            for column, used in enumerate(self._used)
        )
        times = rows.times if layout.time_slot >= 0 else record_times
        return EventSpans(data, index, kept(times), keys, users, views, columns, self.declined)


def _ones(number: int) -> Longs:
    """Return so many amounts that are all 1."""
    return _ONES[:number] if number <= len(_ONES) else np.ones(number, dtype=np.int64)


def _joined(column: Longs, more: array[int]) -> Longs:
    """Return a column with the numbers of further rows behind it."""
    if not more:
        return column
    return np.concatenate(
        [column, np.frombuffer(more, dtype=np.int64).reshape(-1, *column.shape[1:])]
    )
