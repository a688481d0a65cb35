"""Extract user and timestamp for re-keying (`agents/rekey.py`).

A compiled scanner reads only these two fields, and declines what it is unsure of to the general
reader. Without a user, `EventReader` decides whether the record is a reject or an event that no
histogram includes.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from workers.arrays.compiled import checked_kernel
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Bytes, Longs
from workers.events.json import Json
from workers.events.json_scanner import valid_texts
from workers.events.layout import Layout
from workers.events.log import DECLINED, FALSE, KIND, SLOT, TRUE, Flags, Format
from workers.events.log_values import WRITTEN_MAX, label, parse_time
from workers.events.project import Projection
from workers.events.reader import AHEAD, EventReader, Reject, with_unit
from workers.events.view_kernels import READ, Logs, Program
from workers.kafka.records import Records, varint
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import RECORD_KEY, Shape
from workers.runtime.frozen import Frozen

NO_TIME = -1
# Flag after the 8 bytes of a time: the record key follows.
HAS_KEY = 1


@checked_kernel
def read_users(
    logs: Logs, program: Program, status: Flags, times: Longs, users: Longs
) -> int:
    """Write user and time, ms or NO_TIME, if fields; return the bytes used in `logs.made`.

    `made` has WRITTEN_MAX bytes per event. Changes `status`, DECLINED if by the scanner, to READ or
    DECLINED.
    """
    data, log, ends, made = logs
    time_slot = program.time_slot
    unit = program.unit
    user_slot = program.user_slot
    # a literal 0 would compile `label` a second time
    used = int(np.int64(0))
    row = 0
    for event in range(len(ends)):
        time = -1
        user = -1
        while row < ends[event]:
            if log[row, SLOT] == time_slot:
                time = row
            if log[row, SLOT] == user_slot:
                user = row
            row += 1
        if status[event] == DECLINED:
            continue
        status[event] = READ
        if user_slot >= 0:
            if user < 0 or log[user, KIND] in (TRUE, FALSE):
                status[event] = DECLINED
                continue
            users[event, 0], users[event, 1], used = label(data, made, used, log, user)
            if users[event, 0] < 0:
                status[event] = DECLINED
                continue
        if time_slot >= 0:
            times[event] = NO_TIME
            if time >= 0:
                times[event] = parse_time(data, log, time, unit)
                if times[event] < 0:
                    status[event] = DECLINED
    return used


@checked_kernel
def parse_markers(
    data: Bytes, values: Longs, name: Bytes, keys: Longs, marks: Longs
) -> None:
    """Parse the re-key marker if it is a record's first header; headers follow the value.

    Writes `keys`, start and stop of the original key, and `marks`, the earliest time at which the
    event counts, or NO_TIME. A start of -1 is a null value or key.
    """
    for i in range(len(values)):
        keys[i, 0] = -1
        keys[i, 1] = -1
        marks[i] = NO_TIME
        if values[i, 0] < 0:
            continue
        number, at = varint(data, values[i, 1])
        if number < 1:
            continue
        length, at = varint(data, at)
        if length != len(name):
            continue
        same = True
        for place in range(length):
            same &= data[at + place] == name[place]
        if not same:
            continue
        length, at = varint(data, at + length)
        if length < 9:
            continue
        mark = np.int64(0)
        for place in range(8):
            mark = mark << 8 | np.int64(data[at + place])
        marks[i] = mark
        if data[at + 8] == HAS_KEY:
            keys[i, 0] = at + 9
            keys[i, 1] = at + length


@dataclass(frozen=True, slots=True, repr=False)
class RecordUsers:
    """The users of a batch; `data` and `declined` as in `reader.EventSpans`.

    `users`, int64 (n, 2), has start and stop in `data`, (0, 0) where not `known`; `times`, int64
    (n,), ms or NO_TIME if unreadable or rejected. No view includes a record without user or reject.
    """

    data: Bytes
    users: Longs
    known: Bools
    times: Longs
    rejects: list[Reject]
    declined: int


class UserReader(Frozen):
    """Reader of users and times, shared by all threads of a worker. `shape.user` is not None."""

    def __init__(self, shape: Shape, *, max_bytes: int) -> None:
        self._layout = Layout(replace(shape, views=MappingProxyType({})))
        self._json = Json(self._layout.tree)
        self._projection = Projection(self._layout.shape)
        self._whole = EventReader(shape, max_bytes=max_bytes)
        self._max = max_bytes
        self.user_is_key = shape.user == RECORD_KEY
        self.tree = self._layout.tree

    def read(
        self,
        records: Records,
        latest_ms: int,
        fmt: Format | None = None,
        whole: Format | None = None,
    ) -> RecordUsers:
        """`fmt` reads users and times, `whole` all wanted fields; None means JSON.

        Records after `latest_ms` have no user if the event's time is the record's timestamp.
        """
        layout = self._layout
        n = len(records)
        lengths = records.values[:, 1] - records.values[:, 0]
        plain = (records.values[:, 0] >= 0) & (lengths <= self._max)
        if self.user_is_key:
            data = readonly_contiguous(records.data)
            keys = readonly_contiguous(records.keys)
            plain &= valid_texts(data, keys, LABEL_BYTES_MAX)
        users = np.zeros((n, 2), dtype=np.int64)
        known = np.empty(n, dtype=np.bool_)
        of_record = layout.time_slot < 0
        times = (
            records.times.copy() if of_record else np.full(n, NO_TIME, dtype=np.int64)
        )
        behind = [records.data]
        end = len(records.data)
        number = 0
        for logs in (fmt or self._json).scan(records.data, records.values, plain):
            part = slice(logs.begin, logs.begin + len(logs.status))
            status = logs.status
            made = np.empty(WRITTEN_MAX * len(status), dtype=np.uint8)
            rows = readonly_contiguous(logs.rows)
            ends = readonly_contiguous(logs.ends)
            read = Logs(readonly_contiguous(logs.data), rows, ends, made)
            used = read_users(read, layout.program, status, times[part], users[part])
            of_part = users[part]
            of_part[of_part[:, 0] >= len(records.data)] += end - len(records.data)
            behind += [logs.data[len(records.data) :], made[:used]]
            end += len(logs.data) - len(records.data) + used
            declined = np.flatnonzero(status == DECLINED)
            number += len(declined)
            texts = bytearray()
            for row in declined[plain[part][declined]].tolist():
                try:
                    user, time = self._projection.user_and_time(
                        logs.decode(logs.begin + row)
                    )
                except ValueError:
                    continue
                if not of_record:
                    times[part.start + row] = time
                if user is not None:
                    status[row] = READ
                    begin = end + len(texts)
                    texts += user.encode()
                    of_part[row] = begin, end + len(texts)
            behind.append(np.frombuffer(texts, dtype=np.uint8))
            end += len(texts)
            known[part] = status == READ
        if of_record:
            known &= times <= latest_ms
        users = np.where(known[:, None], records.keys if self.user_is_key else users, 0)
        rejects = self._rejects(records, np.flatnonzero(~known), times, whole)
        data = np.concatenate(behind) if end > len(records.data) else records.data
        return RecordUsers(data, users, known, times, rejects, number)

    def _rejects(
        self, records: Records, unknown: Longs, times: Longs, whole: Format | None
    ) -> list[Reject]:
        """Return rejects for records without a user, and clear their `times`."""
        if not len(unknown):
            return []
        columns = ("keys", "values", "times", "offsets")
        some = replace(
            records, **{name: getattr(records, name)[unknown] for name in columns}
        )
        found: list[Reject] = []
        for spans, rejects, _ in self._whole.read(some, whole):
            # These have a user, but their time keeps them from being forwarded.
            late = spans.in_any_view
            rows = zip(
                spans.index[late].tolist(), spans.times[late].tolist(), strict=True
            )
            rejects += [Reject(row, with_unit(AHEAD, time, "ms")) for row, time in rows]
            found += [
                Reject(int(unknown[reject.index]), reject.reason) for reject in rejects
            ]
        times[[reject.index for reject in found]] = NO_TIME
        return sorted(found, key=lambda reject: reject.index)
