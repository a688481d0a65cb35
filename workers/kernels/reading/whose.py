"""Whose each event is, and when: all that is read of an event in order to send it on.

Like `views.see` this says yes only where it is sure; about every other event the general reader
decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import reads_outside
from workers.kernels.reading.log import DECLINED, FALSE, KIND, SLOT, TRUE
from workers.kernels.reading.log_values import label, time_of
from workers.kernels.reading.views import READ
from workers.kernels.records import varint

Bytes = NDArray[np.uint8]
Flags = NDArray[np.int8]
Longs = NDArray[np.int64]

# In place of a time: there is none that can be read, or none is said.
NO_TIME = -1
# Behind the 8 bytes of a time: the record key follows.
HAS_KEY = 1


@reads_outside
def whose(
    data: Bytes, log: Longs, ends: Longs, time_slot: int, unit: int, user_slot: int, made: Bytes,
    status: Flags, times: Longs, users: Longs,
) -> int:  # fmt: skip
    """Write the user and the time of each event; return how much of `made` is used.

    Args:
        data: uint8 (b,), the bytes of the batch.
        log: int64 (rows, 4), the logs of its events end to end; see `kernels.reading.log`.
        ends: int64 (n,), where the log of each event ends.
        time_slot: of the time, negative: it is no field. unit: of the time.
        user_slot: of the user, negative: it is no field.
        made: uint8, room for WRITTEN_MAX bytes an event; places from b on mean these.
        status: int8 (n,), DECLINED by a scanner before; written: READ or DECLINED.
        times: int64 (n,), ms or NO_TIME; written where there is such a field.
        users: int64 (n, 2), start and stop; written where there is such a field.
    """
    used, row = int(np.int64(0)), 0  # for a 0 that is written here `label` is compiled once more
    for event in range(len(ends)):
        time, user = -1, -1
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
                times[event] = time_of(data, log, time, unit)
                if times[event] < 0:
                    status[event] = DECLINED
    return used


@reads_outside
def origins(data: Bytes, values: Longs, name: Bytes, keys: Longs, marks: Longs) -> None:
    """Write what the first header of each record says of the record that it was.

    A header that is none of ours says nothing: no key, and no time.

    Args:
        data: uint8, with the headers of a record behind its value, as Kafka sends them.
        values: int64 (n, 2), start and stop of each value; start -1 for null.
        name: uint8, of our header.
        keys: int64 (n, 2), written: start and stop of the record's first key, -1 for null.
        marks: int64 (n,), written: the time at the earliest that the event counts at, or NO_TIME.
    """
    for i in range(len(values)):
        keys[i, 0], keys[i, 1], marks[i] = -1, -1, NO_TIME
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
            keys[i, 0], keys[i, 1] = at + 9, at + length
