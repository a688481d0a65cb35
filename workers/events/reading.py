"""Read events: from records to columns of codes, with a reason for each reject.

    records -> logs       a scanner logs the wanted fields of plain records      json, formats, log
    logs    -> spans      `project_views` finds each view's key and labels       views
                          the general reader decides about the other records     project
    spans   -> columns    keys and labels become codes; misplaced, untimely and  vocabulary, columns
                          undeclared events become rejects

A `Reading` goes this way with one part of a batch. An `EventReader`, shared by the threads of a
worker, takes it to spans (start and stop of each text in the bytes), and the `SourceReader` of a
source partition to columns. Large batches are read in parts, to bound memory.

A *view* is what a histogram reads of an event: its stream key and its labels. Views with the same
labels share one *column* of them, and views may share a *key*: `views.Layout` numbers all three.

Reject reasons come from a fixed set and name configuration fields only, never a label, key or time.
For an implausible time they suggest a unit: seconds read as ms fall in January 1970.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Bytes, Codes, Longs
from workers.events.columns import (
    ADDED_UP,
    FIRST,
    NO_AMOUNTS,
    EventColumns,
    Events,
    LabelEncoder,
    Names,
    user_digests,
)
from workers.events.json import Json
from workers.events.json_scanner import valid_texts
from workers.events.log import DECLINED, FieldSpans, Format
from workers.events.project import Event, Projection
from workers.events.times import PER_SECOND, PLAUSIBLE_MS, UNIT_WORDS
from workers.events.views import READ, UNSEEN, Layout, Logs, Spans, project_views
from workers.kafka.placement import Placement
from workers.kafka.records import Records
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import ALL_KEYS, RECORD_KEY, Path, Shape
from workers.runtime.frozen import Frozen
from workers.settings.settings import ALL_STREAM_KEY

#: 2000-01-01; earlier events are rejected.
EARLIEST_MS = PLAUSIBLE_MS[0]
EARLY = "dated before 2000"
AHEAD = "dated too far ahead"
BEHIND = "dated too far behind"
MISPLACED = "user's records belong in another partition"
NOT_DECLARED = "key not declared"
NO_RECORD_TIME = "record without a time"
# Kafka uses -1 for no timestamp; `rekey` forwards such records with 1, since 0 means now.
_NO_RECORD_TIME_MAX = 1
_REASONS = ("", MISPLACED, AHEAD, NOT_DECLARED, EARLY)
_MISPLACED, _AHEAD, _NOT_DECLARED, _EARLY = range(1, len(_REASONS))
# Of an event in no view: neither counted nor a reject, and must not close a tick.
_PASSED_OVER = len(_REASONS)

# Initial labels per event and column. malloc returns memory beyond 64 MiB per thread after every
# batch, to be zeroed again: with five histograms, a quarter of the worker's time.
LABELS_EXPECTED = 2
# Initial capacity in bytes for the text of a binary format's numbers.
WRITTEN_EXPECTED = 1 << 16

#: By view: the stream keys that its histograms serve; None means all.
Declared = Mapping[str, frozenset[str] | None]
A = TypeVar("A", bound=np.generic)


def with_unit(reason: str, time_ms: int, unit: str) -> str:
    """Append the unit to a reason if the time would be plausible in another one."""
    for other, per_second in PER_SECOND.items():
        # An ISO time has no unit, and gets none.
        other_ms = time_ms * PER_SECOND.get(unit, 0) // per_second
        if other != unit and PLAUSIBLE_MS[0] <= other_ms < PLAUSIBLE_MS[1]:
            return f"{reason}: {UNIT_WORDS[other]} instead of {unit}?"
    return reason


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected record: its batch index and a reason from a fixed set."""

    index: int
    reason: str


class Reading:
    """One part of a batch, from logs to columns. Sensitive; starts and stops index `data`.

    The kernel writes a row for each record, then `add` fills those of the general reader, and
    `finish` keeps the valid events, in order. The attributes from `index` on exist from then on.

    Attributes:
        start, stop: the part's records in the batch.
        unread: rows of the part that are left to the general reader.
        rejects: those found so far, in order.
        data: uint8, the record bytes followed by text that readers decoded, in UTF-8.
        index: int64 (n,), the batch index of each event's record.
        times: int64 (n,), ms since 1970; without views, -1 if unreadable.
        keys: per distinct stream key of the layout, int64 (n, 2), start and stop; None for `$all`.
        users: int64 (n, 2), start and stop; integers as decimal digits. None if not read.
        label_starts, label_counts: int64 (v, n), by view: first label of each event in the view's
            column, and number of labels, or UNSEEN if the view excludes the event.
        labels: per column of the layout, int64 (m, 2), start and stop, or the bucket number first;
            an event's labels may repeat if they are from a list.
        amounts: per column, int64 (m,), the count of each label in its event, at most AMOUNT_MAX;
            (0,) if all are 1.
        events: the columns, from `SourceReader.encode` on.
    """

    index: Longs
    times: Longs
    keys: tuple[Longs | None, ...]
    users: Longs | None
    label_starts: Longs
    label_counts: Longs
    labels: tuple[Longs, ...]
    amounts: tuple[Longs, ...]
    events: Events

    def __init__(self, layout: Layout, logs: FieldSpans) -> None:
        n = len(logs.status)
        self.start = logs.begin
        self.stop = logs.begin + n
        self.rejects: list[Reject] = []
        self._layout = layout
        self._project(logs)
        self.unread: list[int] = np.flatnonzero(logs.status == DECLINED).tolist()
        # What the general reader adds: its texts, and by column its labels, two numbers each, and
        # amounts. Packed arrays, not lists of objects: a record may have one label per two bytes.
        columns = range(len(layout.items_of))
        self._texts = bytearray()
        self._more_labels = [array("q") for _ in columns]
        self._more_amounts = [array("q") for _ in columns]

    def __repr__(self) -> str:
        return f"Reading({self.start}..{self.stop})"

    def __len__(self) -> int:
        return len(self.index)

    @property
    def in_any_view(self) -> Bools:
        """Whether at least one view includes each event, bool (n,)."""
        included: Bools = (self.label_counts != UNSEEN).any(axis=0)
        return included

    @property
    def declined(self) -> int:
        """Return how many records went to the general reader."""
        return len(self.unread)

    def _project(self, logs: FieldSpans) -> None:
        """Run the kernel on all logs; repeat from where its room ended, with twice as much."""
        layout = self._layout
        n = len(logs.status)
        views = len(layout.names)
        columns = len(layout.items_of)
        rows = readonly_contiguous(logs.rows)
        ends = readonly_contiguous(logs.ends)
        # Labels for which there is room in each column: never more than there are log rows, and
        # always enough for one more event, which has no more labels than log rows.
        longest = int(np.diff(ends, prepend=0).max(initial=0))
        room = min(len(rows), LABELS_EXPECTED * n + longest)
        spans = Spans(
            status=logs.status,
            times=_longs(n if layout.time_slot >= 0 else 0),
            users=_longs(n if layout.user_slot >= 0 else 0, 2),
            keys=_longs(len(layout.keys), n, 2),
            label_starts=_longs(views, n),
            label_counts=_longs(views, n),
            labels=_longs(columns, room, 2),
            amounts=_longs(columns, room),
            uneven=np.zeros(columns, dtype=np.int64),
            used=np.zeros(columns, dtype=np.int64),
        )
        written = np.empty(WRITTEN_EXPECTED, dtype=np.uint8)
        read = Logs(readonly_contiguous(logs.data), rows, ends, written)
        # Scratch of the kernel.
        row_of = _longs(layout.slots)
        added = _longs(columns)
        begin = 0
        filled = 0
        while True:
            begin, filled = project_views(
                read, begin, layout.program, row_of, added, filled, spans
            )
            if begin == n:
                break
            # It stopped for lack of room: for labels if the longest event might not fit in the
            # fullest column, else in `written`.
            if room < len(rows) and int(spans.used.max(initial=0)) + longest > room:
                room = min(len(rows), 2 * room)
                spans = spans._replace(
                    labels=_wider(spans.labels, room),
                    amounts=_wider(spans.amounts, room),
                )
            else:
                read = read._replace(
                    written=np.concatenate([read.written, np.empty_like(read.written)])
                )
        self._spans = spans
        self.data: Bytes = logs.data
        if filled:
            self.data = np.concatenate([logs.data, read.written[:filled]])

    def add(self, row: int, event: Event | str) -> None:
        """Add the general reader's event, or its reason for a reject, in a row of the part."""
        layout = self._layout
        spans = self._spans
        if isinstance(event, str):
            self.rejects.append(Reject(self.start + row, event))
            return
        if event.time < 0 and layout.names:
            return  # no view includes it, and without a time it moves no clock
        spans.status[row] = READ
        if layout.time_slot >= 0:
            spans.times[row] = event.time
        if layout.user_slot >= 0:
            spans.users[row] = self._text(event.user)
        if not event.views:
            return
        # "", unless a view that includes the event has its key in a field.
        spans.keys[:, row] = 0
        # By column, for the views that share it: the first of the event's labels, and how many.
        added: dict[int, tuple[int, int]] = {}
        for view, (values, key, column) in enumerate(
            zip(event.views, layout.key_of, layout.column_of, strict=True)
        ):
            if values is None:
                spans.label_starts[view, row] = 0
                spans.label_counts[view, row] = UNSEEN
                continue
            if isinstance(layout.keys[key], Path):
                spans.keys[key, row] = self._text(values.key)
            if column not in added:
                more = self._more_labels[column]
                # `finish` puts these labels, two numbers each, behind the kernel's.
                start = int(spans.used[column]) + len(more) // 2
                added[column] = start, len(values.labels)
                for label in values.labels:
                    # Start and stop of a text, or the number of a bucket.
                    more.extend(
                        self._text(label) if isinstance(label, str) else (label, 0)
                    )
                self._more_amounts[column].extend(values.amounts)
            spans.label_starts[view, row], spans.label_counts[view, row] = added[column]

    def _text(self, text: str) -> tuple[int, int]:
        """Append a text of the general reader to the data; return its start and stop."""
        start = len(self.data) + len(self._texts)
        self._texts += text.encode()
        return start, len(self.data) + len(self._texts)

    def finish(self, record_times: Longs, record_keys: Longs) -> None:
        """Keep the valid events: set the attributes from `index` on.

        `record_times` (n,), and start and stop of `record_keys` (n, 2), are used where no field has
        the time, the stream key or the user.
        """
        layout = self._layout
        spans = self._spans
        if self._texts:
            texts = np.frombuffer(self._texts, dtype=np.uint8)
            self.data = np.concatenate([self.data, texts])
        whole = bool((spans.status == READ).all())
        rows = (
            np.arange(len(spans.status))
            if whole
            else np.flatnonzero(spans.status == READ)
        )

        def of_events(column: Longs, axis: int = 0) -> Longs:
            return column if whole else column.take(rows, axis)

        self.index = rows + self.start if self.start else rows
        self.times = of_events(spans.times if layout.time_slot >= 0 else record_times)
        keys: list[Longs | None] = []
        for key, places in zip(layout.keys, spans.keys, strict=True):
            used = record_keys if key == RECORD_KEY else places
            keys.append(None if key == ALL_KEYS else of_events(used))
        self.keys = tuple(keys)
        self.users = None
        if layout.shape.user is not None:
            of_record = layout.shape.user == RECORD_KEY
            self.users = of_events(record_keys if of_record else spans.users)
        self.label_starts = of_events(spans.label_starts, 1)
        self.label_counts = of_events(spans.label_counts, 1)
        columns = range(len(layout.items_of))
        self.labels = tuple(
            _joined(spans.labels[column, : spans.used[column]], more)
            for column, more in zip(columns, self._more_labels, strict=True)
        )
        self.amounts = tuple(self._amounts(column) for column in columns)
        # Free what the kernel wrote and no event needs, while the events are counted.
        del self._spans, self._more_labels, self._more_amounts

    def _amounts(self, column: int) -> Longs:
        """Return a column's amounts, or NO_AMOUNTS if all are 1 (the kernel writes no ones)."""
        spans = self._spans
        used = int(spans.used[column])
        more = self._more_amounts[column]
        if spans.uneven[column]:
            return _joined(spans.amounts[column, :used], more)
        if not more or bool((np.frombuffer(more, dtype=np.int64) == 1).all()):
            return NO_AMOUNTS
        # The kernel's are all 1.
        return _joined(np.ones(used, dtype=np.int64), more)


class EventReader(Frozen):
    """Reader of the spans of events, shared by all threads of a worker.

    If the shape has no views, users and times of all events are read, and nothing else. A record
    with a value of more than `max_bytes` is a reject.
    """

    def __init__(self, shape: Shape, *, max_bytes: int = 1_000_000) -> None:
        self.layout = Layout(shape)
        self._json = Json(self.layout.tree)
        self._max_bytes = max_bytes
        self._projection = Projection(shape)
        # By view: whether the record's key is its stream key.
        self._stream_key_is_key = tuple(
            view.key == RECORD_KEY for view in shape.views.values()
        )
        self._user_is_key = shape.user == RECORD_KEY

    def read(self, records: Records, fmt: Format | None = None) -> Iterator[Reading]:
        """Yield the events of a batch, at least one part. A `fmt` of None means JSON."""
        with_key = self._with_key(records)
        # The scanner tries plain records; the others, too long or without a key, go to the general
        # reader at once. It finds the fault of a record without a value, too.
        plain = records.values[:, 1] - records.values[:, 0] <= self._max_bytes
        if with_key is not None:
            plain &= with_key
        return self._parts(records, fmt, with_key, plain)

    def decode_all(
        self, records: Records, row: int, fmt: Format | None = None
    ) -> object:
        """Return a record as plain objects, or raise ValueError(reason).

        JSON and Avro have all fields; Protobuf and JSON with a schema id have only the wanted ones.
        """
        if fmt is None:
            return self._json.decode_all(records.value(row) or b"")
        # A batch of this record alone; with no `plain` one, nothing is scanned.
        plain = np.zeros(1, dtype=np.bool_)
        return next(
            fmt.scan(records.data, records.values[row : row + 1], plain)
        ).decode(0)

    def _with_key(self, records: Records) -> Bools | None:
        """Return a mask (n,) of the records with a valid label as key.

        None if all have one, or no record needs one: the key is neither user nor stream key.
        """
        if not self._user_is_key and not any(self._stream_key_is_key):
            return None
        data = readonly_contiguous(records.data)
        keys = readonly_contiguous(records.keys)
        with_key = valid_texts(data, keys, LABEL_BYTES_MAX)
        return None if with_key.all() else with_key

    def _parts(
        self,
        records: Records,
        fmt: Format | None,
        with_key: Bools | None,
        plain: Bools,
    ) -> Iterator[Reading]:
        """Yield the parts of a batch; the general reader reads what is not `plain` or declined.

        `with_key` is as `_with_key` returns it.
        """
        for logs in (fmt or self._json).scan(records.data, records.values, plain):
            reading = Reading(self.layout, logs)
            for row in reading.unread:
                index = reading.start + row
                event = self._event(records, index, logs.decode)
                # Only the event says whether a view that includes it needs the record's key.
                lacks_key = with_key is not None and not with_key[index]
                if lacks_key and isinstance(event, Event) and self._needs_key(event):
                    event = "record key is no label"
                reading.add(row, event)
            part = slice(reading.start, reading.stop)
            keys = records.keys[part]
            if with_key is not None:
                # An invalid key that no view needs is read as "".
                keys = np.where(with_key[part, None], keys, 0)
            reading.finish(records.times[part], keys)
            yield reading

    def _event(
        self, records: Records, index: int, decode: Callable[[int], object]
    ) -> Event | str:
        """Return the general reader's event of a record, or the reason why it is a reject."""
        start, stop = records.values[index].tolist()
        if start < 0:
            return "no value"
        if stop - start > self._max_bytes:
            return "record too large"
        try:
            decoded = decode(index)
        except ValueError as reason:
            return str(reason)
        return self._projection.event(decoded)

    def _needs_key(self, event: Event) -> bool:
        """Return whether the record's key is a stream key or the user of a counted event."""
        includes = [view is not None for view in event.views]
        by_view = zip(self._stream_key_is_key, includes, strict=True)
        if any(is_key and included for is_key, included in by_view):
            return True
        # Without views, every event is wanted for its user.
        return self._user_is_key and (any(includes) or not includes)


class SourceReader:
    """Reads the batches of one source partition, in order, and refuses events. Not thread-safe.

    Refused are events dated before `earliest_ms`, of stream keys that are not declared, and with a
    `placement` those of users whose records belong in another partition.
    """

    def __init__(
        self,
        reader: EventReader,
        declared: Declared,
        placement: Placement | None = None,
        fmt: Format | None = None,
        earliest_ms: int = EARLIEST_MS,
    ) -> None:
        """`declared`, per view: the stream keys that its histograms serve; None means all.

        A `fmt` of None means JSON.
        """
        self._reader = reader
        self._placement = placement
        self._fmt = fmt
        self._earliest_ms = earliest_ms
        layout = reader.layout
        # By key of the layout: the names of its stream keys, and how many are declared, or None
        # where all are served. The declared ones have the first codes.
        self._key_names = [Names() for _ in layout.keys]
        self._declared: list[int | None] = [None for _ in layout.keys]
        for key in range(len(layout.keys)):
            views = zip(layout.names, layout.key_of, strict=True)
            served = [declared[name] for name, key_of in views if key_of == key]
            # Undeclared keys are rejects only if every view of this key declares its own.
            given = [keys for keys in served if keys is not None]
            if len(given) == len(served):
                declared_keys = frozenset().union(*given)
                self._declared[key] = len(declared_keys)
                self._key_names[key] = Names(declared_keys)
        # By column: columns of one field share a vocabulary.
        of_fields: dict[Path, Names] = {}
        self._label_names = [
            of_fields.setdefault(items.path, Names())
            if items.edges is None
            else Names(Buckets(items.edges).labels)
            for items in layout.items_of
        ]
        self._encoders = [LabelEncoder(names) for names in self._label_names]

    def read(self, records: Records, latest_ms: int | None = None) -> Iterator[Reading]:
        """Read a batch part by part; reject events after `latest_ms`, if not None.

        Such events would close ticks for all others.
        """
        for reading in self.spans(records):
            yield self.encode(reading, latest_ms)

    def spans(self, records: Records) -> Iterator[Reading]:
        """Yield a batch's parts, to `encode` in order. Changes no state: any thread may do it."""
        return self._reader.read(records, self._fmt)

    def decode_all(self, records: Records, row: int) -> object:
        return self._reader.decode_all(records, row, self._fmt)

    def encode(self, reading: Reading, latest_ms: int | None = None) -> Reading:
        """Encode the events as columns of codes; add those refused here to the rejects."""
        layout = self._reader.layout
        keys = [self._key_codes(key, reading) for key in range(len(layout.keys))]
        for names in self._label_names:
            names.begin()  # as in `_key_codes`
        columns = range(len(self._label_names))
        labels = [self._codes(column, reading) for column in columns]
        refused = self._refused(reading, keys, latest_ms)
        users = None
        if reading.users is not None:
            users = user_digests(reading.data, reading.users)
        index = reading.index
        times = reading.times
        # The accepted events; None: all.
        accepted = None
        if refused.any():
            rejected = np.flatnonzero((refused != 0) & (refused != _PASSED_OVER))
            rows = zip(
                index[rejected].tolist(),
                refused[rejected].tolist(),
                times[rejected].tolist(),
                strict=True,
            )
            reading.rejects += [
                Reject(row, self._reason(why, time)) for row, why, time in rows
            ]
            reading.rejects.sort(key=lambda reject: reject.index)
            accepted = np.flatnonzero(refused == 0)
            index = index[accepted]
            times = times[accepted]
            users = None if users is None else users[accepted]
        views: dict[str, EventColumns] = {}
        for column in columns:
            views.update(self._columns(column, reading, keys, labels[column], accepted))
        reading.events = Events(
            index, times, users, {name: views[name] for name in layout.names}
        )
        return reading

    def _key_codes(self, key: int, reading: Reading) -> Codes:
        """Return the code of every event's stream key, int32 (n,), by `key` of the layout."""
        names = self._key_names[key]
        places = reading.keys[key]
        names.begin()  # replaces a full vocabulary, before codes are made
        if places is None:
            # "$all": every event has the same one.
            code = names.vocabulary.code_of(ALL_STREAM_KEY)
            return np.full(len(reading), code, dtype=np.int32)
        return names.vocabulary.codes(reading.data, places)

    def _codes(self, column: int, reading: Reading) -> Codes:
        """Return the code of every label of a column, int32 (m,); of buckets, their numbers."""
        labels = reading.labels[column]
        if self._reader.layout.items_of[column].edges is not None:
            return labels[:, 0].astype(np.int32)
        return self._label_names[column].vocabulary.codes(reading.data, labels)

    def _refused(
        self, reading: Reading, keys: list[Codes], latest_ms: int | None
    ) -> NDArray[np.int8]:
        """Return for each event, int8 (n,), the first reason against it.

        That is 0 if it is accepted, else an index in `_REASONS`, or _PASSED_OVER for a wrong time
        of an event that no view includes. Events after `latest_ms` are refused (None: none are).
        `keys` are the codes of the events' stream keys, by key of the layout.
        """
        refused = np.zeros(len(reading), dtype=np.int8)
        times = reading.times
        if self._placement is not None and reading.users is not None:
            belongs = self._placement.belongs(reading.data, reading.users, times)
            refused[reading.in_any_view & ~belongs] = _MISPLACED
        if int(times.min(initial=self._earliest_ms)) < self._earliest_ms:
            before = (times < self._earliest_ms) & (refused == 0)
            refused[before] = np.where(
                reading.in_any_view[before], _EARLY, _PASSED_OVER
            )
        if latest_ms is not None and int(times.max(initial=0)) > latest_ms:
            late = (times > latest_ms) & (refused == 0)
            refused[late] = np.where(reading.in_any_view[late], _AHEAD, _PASSED_OVER)
        key_of_view = self._reader.layout.key_of
        for counts, key in zip(reading.label_counts, key_of_view, strict=True):
            declared = self._declared[key]
            # Declared keys have the first codes.
            if declared is not None and int(keys[key].max(initial=0)) >= declared:
                undeclared = (counts != UNSEEN) & (keys[key] >= declared)
                refused[undeclared & (refused == 0)] = _NOT_DECLARED
        return refused

    def _reason(self, why: int, time_ms: int) -> str:
        """Return the text of a refusal; for a wrong time, with the unit that it may have.

        A record without a time has -1, or 1 if it was forwarded by user.
        """
        shape = self._reader.layout.shape
        reason = _REASONS[why]
        if reason == EARLY and shape.time is None and time_ms <= _NO_RECORD_TIME_MAX:
            return NO_RECORD_TIME
        if reason in (EARLY, AHEAD):
            return with_unit(reason, time_ms, shape.unit)
        return reason

    def _columns(
        self,
        column: int,
        reading: Reading,
        keys: Sequence[Codes],
        labels: Codes,
        accepted: Longs | None,
    ) -> Iterator[tuple[str, EventColumns]]:
        """Yield name and columns of each view with this column of labels.

        Labels are deduplicated once for all these views, of the events that any of them includes.
        `keys` are the codes of stream keys by key of the layout, `labels` those of the column.
        `accepted` are the events to keep; None: all.
        """
        layout = self._reader.layout
        views = [view for view, its in enumerate(layout.column_of) if its == column]
        view_starts = [_select(reading.label_starts[view], accepted) for view in views]
        view_counts = [_select(reading.label_counts[view], accepted) for view in views]
        starts = view_starts[0]
        counts = view_counts[0]
        for other_starts, other in zip(view_starts[1:], view_counts[1:], strict=True):
            if int(counts.min(initial=0)) > UNSEEN:
                break  # the views so far include all events
            # All views that include an event share the location of its labels; UNSEEN is below all
            # counts.
            starts = np.where(counts == UNSEEN, other_starts, starts)
            counts = np.maximum(counts, other)
        # A label that an event repeats has the sum of its counts, but the first of its numbers.
        repeated = ADDED_UP if layout.items_of[column].sum is None else FIRST
        key = layout.key_of[views[0]]
        shared = self._encoders[column].columns(
            _select(keys[key], accepted),
            self._key_names[key].vocabulary,
            starts,
            counts,
            labels,
            reading.amounts[column],
            repeated=repeated,
        )
        for view, own_counts in zip(views, view_counts, strict=True):
            if own_counts is counts:
                # The first view, if no other one had events to add to its own.
                yield layout.names[view], shared
                continue
            key = layout.key_of[view]
            yield (
                layout.names[view],
                replace(
                    shared,
                    keys=_select(keys[key], accepted),
                    key_names=self._key_names[key].vocabulary,
                    included=own_counts != UNSEEN,
                ),
            )


def _select(column: NDArray[A], events: Longs | None) -> NDArray[A]:
    """Return the rows of these events; None means all."""
    return column if events is None else column[events]


def _longs(*shape: int) -> Longs:
    return np.empty(shape, dtype=np.int64)


def _wider(columns: Longs, room: int) -> Longs:
    """Copy columns, (columns, used, ...), into arrays with `room` for more labels."""
    wider = _longs(len(columns), room, *columns.shape[2:])
    wider[:, : columns.shape[1]] = columns
    return wider


def _joined(column: Longs, more: array[int]) -> Longs:
    """Append the general reader's values, which `array` packs end to end, to a column."""
    if not more:
        return column
    added = np.frombuffer(more, dtype=np.int64).reshape(-1, *column.shape[1:])
    return np.concatenate([column, added])
