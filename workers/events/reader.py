"""Decode batches of records into event spans (keys, users, labels and times) and rejects.

A compiled scanner logs the wanted fields of plain records, and `view_kernels` turns the logs into
columns. The general reader (the format's decoder plus `events.project`) alone decides about all
other records. Large batches are returned in parts, to bound memory.

Reject reasons come from a fixed set and name configuration fields only, never a label, key or time.
For an implausible time they suggest a unit: seconds read as ms fall in January 1970.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Bytes, Longs
from workers.events.json import Json
from workers.events.json_scanner import valid_texts
from workers.events.layout import Layout
from workers.events.log import (
    DECLINED,
    FieldSpans,
    Format,
    longest_log,
    longest_value,
    outcomes,
)
from workers.events.project import Event, Projection
from workers.events.times import PER_SECOND, PLAUSIBLE_MS, UNIT_WORDS
from workers.events.view_kernels import READ, UNSEEN, Logs, Output, project_views
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import ALL_KEYS, RECORD_KEY, Path, Shape
from workers.runtime.frozen import Frozen, read_only

#: 2000-01-01; earlier events are rejected.
EARLIEST_MS = PLAUSIBLE_MS[0]
EARLY = "dated before 2000"
AHEAD = "dated too far ahead"
BEHIND = "dated too far behind"


def with_unit(reason: str, time_ms: int, unit: str) -> str:
    for other, per_second in PER_SECOND.items():
        read = time_ms * PER_SECOND.get(unit, 0) // per_second
        if other != unit and PLAUSIBLE_MS[0] <= read < PLAUSIBLE_MS[1]:
            return f"{reason}: {UNIT_WORDS[other]} instead of {unit}?"
    return reason


# Initial labels per event and column. malloc returns memory beyond 64 MiB per thread after every
# batch, to be zeroed again: with five histograms, a quarter of the worker's time.
LABELS_EXPECTED = 2
# Initial capacity in bytes for the text of a binary format's numbers.
MADE_EXPECTED = 1 << 16
# Shared amounts for the common case; few batches have more labels.
_ONES: Longs = read_only(np.ones(1 << 17, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected record: its batch index and a reason from a fixed set."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class LabelSpans:
    """A column of labels, used by one or more views.

    `labels`, int64 (m, 2), has start and stop, or the bucket number first; an event's labels may
    repeat if they are from a list. `amounts`, int64 (m,), has the count of each label in its event,
    at most AMOUNT_MAX; `once` is True only if all are 1.
    """

    labels: Longs
    amounts: Longs
    once: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class EventSpans:
    """The valid events in one part of a batch, in order; starts and stops index `data`.

    Attributes:
        data: uint8, the record bytes followed by text that readers decoded, in UTF-8.
        index: int64 (n,), the batch index of each event's record.
        times: int64 (n,), ms since 1970.
        keys: per distinct stream key of the layout, int64 (n, 2), start and stop; None for `$all`.
        users: int64 (n, 2), start and stop; integers as decimal digits. None if not read.
        first, number: int64 (v, n), first label in the view's column, and label count or UNSEEN.
        columns: in layout order.
        declined: number of records that went to the general reader.
    """

    data: Bytes
    index: Longs
    times: Longs
    keys: tuple[Longs | None, ...]
    users: Longs | None
    first: Longs
    number: Longs
    columns: tuple[LabelSpans, ...]
    declined: int

    def __len__(self) -> int:
        return len(self.index)

    @property
    def in_any_view(self) -> Bools:
        """Return a bool (n,) mask of the events that some view includes."""
        seen: Bools = (self.number != UNSEEN).any(axis=0)
        return seen


#: Events, rejects (both in order), and the number of batch records read, including this part.
Part = tuple[EventSpans, list[Reject], int]


class EventReader(Frozen):
    """Reader of events and rejects, shared by all threads of a worker."""

    def __init__(self, shape: Shape, *, max_bytes: int = 1_000_000) -> None:
        self.layout = Layout(shape)
        self._json = Json(self.layout.tree)
        self._max = max_bytes
        self._projection = Projection(shape)
        self._of_record_key = tuple(
            view.key == RECORD_KEY for view in shape.views.values()
        )
        self._user_is_key = shape.user == RECORD_KEY

    def read(self, records: Records, fmt: Format | None = None) -> Iterator[Part]:
        """Yield the events of a batch, at least one part. A `fmt` of None means JSON."""
        named = self._named(records)
        plain = None
        if (
            named is not None
            or longest_value(readonly_contiguous(records.values)) > self._max
        ):
            # For a record without a value, the general reader finds the fault.
            plain = records.values[:, 1] - records.values[:, 0] <= self._max
            plain = plain if named is None else plain & named
        for logs in (fmt or self._json).scan(records.data, records.values, plain):
            yield self._completed(records, named, logs)

    def read_general(
        self, records: Records, fmt: Format | None = None
    ) -> Iterator[Part]:
        """As `read`, with the general reader for every record."""
        named = self._named(records)
        nothing = np.zeros(len(records), dtype=np.bool_)
        for logs in (fmt or self._json).scan(records.data, records.values, nothing):
            yield self._completed(records, named, logs)

    def read_objects(
        self, objects: Sequence[object]
    ) -> tuple[EventSpans, list[Reject]]:
        """Read decoded records, in which every wanted field must have been decoded."""
        n = len(objects)
        none = np.empty(0, dtype=np.uint8)
        logs = FieldSpans.declined(none, n, objects.__getitem__)
        found = _PartReader(self.layout, logs)
        rejects = []
        for row, decoded in enumerate(objects):
            event = self._projection.event(decoded)
            if isinstance(event, str):
                rejects.append(Reject(row, event))
            elif event.time >= 0:
                found.add(row, event)
        nowhere = np.zeros((n, 2), dtype=np.int64)
        return found.spans(nowhere[:, 0], nowhere), rejects

    def decode_all(
        self, records: Records, row: int, fmt: Format | None = None
    ) -> object:
        """Return a record with all fields (Protobuf: wanted ones), or raise ValueError(reason)."""
        if fmt is None:
            return self._json.decode_all(records.value(row) or b"")
        nothing = np.zeros(1, dtype=np.bool_)
        return next(
            fmt.scan(records.data, records.values[row : row + 1], nothing)
        ).decode(0)

    def _named(self, records: Records) -> Bools | None:
        """Return a mask of the records with a valid label as key; None if all pass or none must."""
        if not self._user_is_key and not any(self._of_record_key):
            return None
        data = readonly_contiguous(records.data)
        keys = readonly_contiguous(records.keys)
        named = valid_texts(data, keys, LABEL_BYTES_MAX)
        return None if named.all() else named

    def _completed(
        self, records: Records, named: Bools | None, logs: FieldSpans
    ) -> Part:
        found = _PartReader(self.layout, logs)
        begin = logs.begin
        rejects = []
        part = slice(begin, begin + len(logs.status))
        for row in (
            np.flatnonzero(logs.status == DECLINED).tolist() if found.declined else ()
        ):
            at = begin + row
            event = self._read_one(logs, at, *records.values[at].tolist())
            unnamed = named is not None and not named[at]
            if unnamed and isinstance(event, Event) and self._needs_name(event):
                event = "record key is no label"
            if isinstance(event, str):
                rejects.append(Reject(at, event))
            elif event.time >= 0:
                found.add(row, event)
        keys = records.keys[part]
        if named is not None:
            keys = np.where(named[part, None], keys, 0)
        return found.spans(records.times[part], keys), rejects, part.stop

    def _read_one(
        self, logs: FieldSpans, row: int, start: int, stop: int
    ) -> Event | str:
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
        looks = [view is not None for view in event.views]
        keys = zip(self._of_record_key, looks, strict=True)
        return any(all(pair) for pair in keys) or (self._user_is_key and any(looks))


class _PartReader:
    """Reads one part: all rows with the kernel, then `add` the general reader's events."""

    def __init__(self, layout: Layout, logs: FieldSpans) -> None:
        self._layout = layout
        self._begin = logs.begin
        n = len(logs.status)
        views = len(layout.names)
        columns = len(layout.items_of)
        rows = readonly_contiguous(logs.rows)
        ends = readonly_contiguous(logs.ends)
        longest = longest_log(ends)
        room = min(len(rows), LABELS_EXPECTED * n + longest)
        out = Output(
            logs.status,
            _longs(n if layout.time_slot >= 0 else 0),
            _longs(n if layout.user_slot >= 0 else 0, 2),
            _longs(len(layout.keys), n, 2),
            _longs(views, n),
            _longs(views, n),
            _longs(columns, room, 2),
            _longs(columns, room),
            np.zeros(columns, dtype=np.int64),
            np.zeros(columns, dtype=np.int64),
        )
        made = np.empty(MADE_EXPECTED, dtype=np.uint8)
        read = Logs(readonly_contiguous(logs.data), rows, ends, made)
        at = _longs(layout.slots)
        found = _longs(columns)
        begin = 0
        filled = 0
        while True:
            begin, filled = project_views(
                read, begin, layout.program, at, found, filled, out
            )
            if begin == n:
                break
            if room < len(rows) and int(out.used.max(initial=0)) + longest > room:
                room = min(len(rows), 2 * room)
                labels = _wider(out.labels, room)
                amounts = _wider(out.amounts, room)
                out = out._replace(labels=labels, amounts=amounts)
            else:
                read = read._replace(
                    made=np.concatenate([read.made, np.empty_like(read.made)])
                )
        self._out = out
        self._data = (
            np.concatenate([logs.data, read.made[:filled]]) if filled else logs.data
        )
        # Packed arrays, not lists of objects: a record may have one label per two bytes.
        self._texts = bytearray()
        self._used: list[int] = out.used.tolist()
        self._labels = [array("q") for _ in range(columns)]
        self._amounts = [array("q") for _ in range(columns)]
        self.declined, valid = outcomes(logs.status, READ)
        self._all_valid = valid == n

    def add(self, row: int, event: Event) -> None:
        out = self._out
        layout = self._layout
        out.status[row] = READ
        if layout.time_slot >= 0:
            out.times[row] = event.time
        if layout.user_slot >= 0:
            out.users[row] = self._text(event.user)
        out.keys[:, row] = 0
        labels: dict[int, tuple[int, int]] = {}
        for view, (seen, key, column) in enumerate(
            zip(event.views, layout.key_of, layout.column_of, strict=True)
        ):
            if seen is None:
                out.first[view, row] = 0
                out.number[view, row] = UNSEEN
                continue
            if isinstance(layout.keys[key], Path):
                out.keys[key, row] = self._text(seen.key)
            if column not in labels:
                places = self._labels[column]
                labels[column] = self._used[column] + len(places) // 2, len(seen.labels)
                for label in seen.labels:
                    places.extend(
                        self._text(label) if isinstance(label, str) else (label, 0)
                    )
                self._amounts[column].extend(seen.amounts)
            out.first[view, row], out.number[view, row] = labels[column]

    def _text(self, text: str) -> tuple[int, int]:
        start = len(self._data) + len(self._texts)
        self._texts += text.encode()
        return start, len(self._data) + len(self._texts)

    def _column(self, column: int, used: int) -> LabelSpans:
        labels = _joined(self._out.labels[column, :used], self._labels[column])
        even = self._out.uneven[column] == 0
        more = self._amounts[column]
        if even and (
            not more or bool((np.frombuffer(more, dtype=np.int64) == 1).all())
        ):
            return LabelSpans(labels, _ones(used + len(more)), True)
        amounts = _ones(used) if even else self._out.amounts[column, :used]
        return LabelSpans(labels, _joined(amounts, more))

    def spans(self, record_times: Longs, record_keys: Longs) -> EventSpans:
        """Return the valid events; record times and keys fill in where the layout has no field."""
        out = self._out
        layout = self._layout
        data = self._data
        if self._texts:
            data = np.concatenate([data, np.frombuffer(self._texts, dtype=np.uint8)])
        whole = self._all_valid or bool((out.status == READ).all())
        events = (
            np.arange(len(out.status)) if whole else np.flatnonzero(out.status == READ)
        )

        def kept(column: Longs, axis: int = 0) -> Longs:
            return column if whole else column.take(events, axis)

        user = layout.shape.user
        keys = zip(layout.keys, out.keys, strict=True)
        places = [
            (key, record_keys if key == RECORD_KEY else of_key) for key, of_key in keys
        ]
        return EventSpans(
            data,
            events + self._begin if self._begin else events,
            kept(out.times if layout.time_slot >= 0 else record_times),
            tuple(None if key == ALL_KEYS else kept(of_key) for key, of_key in places),
            None
            if user is None
            else kept(record_keys if user == RECORD_KEY else out.users),
            kept(out.first, 1),
            kept(out.number, 1),
            tuple(self._column(column, used) for column, used in enumerate(self._used)),
            self.declined,
        )


def _longs(*shape: int) -> Longs:
    return np.empty(shape, dtype=np.int64)


def _wider(columns: Longs, room: int) -> Longs:
    wider = _longs(len(columns), room, *columns.shape[2:])
    wider[:, : columns.shape[1]] = columns
    return wider


def _ones(number: int) -> Longs:
    return _ONES[:number] if number <= len(_ONES) else np.ones(number, dtype=np.int64)


def _joined(column: Longs, more: array[int]) -> Longs:
    if not more:
        return column
    added = np.frombuffer(more, dtype=np.int64).reshape(-1, *column.shape[1:])
    return np.concatenate([column, added])
