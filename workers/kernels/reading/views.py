"""From the logs of events to what each view sees of them, whatever format they came in.

A *view* is what one histogram looks at: stream key, items, counts, conditions, buckets. Views with
the same items, counts and buckets have one *column* of labels. This kernel says yes only where it
is sure; about every other event the general reader decides (`events.project`), whose rule this one
follows: no event of any view is accepted in part.

Its indices are not checked: a log's slots are those of the layout, rows of a list or an object that
the log has too few of are declined, and there is room for a label for each row of an event. Bytes
of events are read by `log_values`, which does check (198 ns an event of five views, 162 so).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel
from workers.kernels.reading.conditions import fulfilled
from workers.kernels.reading.labels import of_elements, of_value
from workers.kernels.reading.log import DECLINED, FALSE, KIND, LIST, NULL, SLOT, START, TRUE, VALUE
from workers.kernels.reading.log_values import WRITTEN_MAX, label, may_be_time, time_of
from workers.kernels.reading.wanted import (
    COLUMN,
    CONDITION,
    CONDITIONS_STOP,
    COUNT,
    ELEMENTS,
    FIELD,
    ITEMS,
    READ,
    SKIPPED,
    UNSEEN,
    VIEW_KEY,
)

__all__ = ["READ", "UNSEEN", "see"]

Bytes = NDArray[np.uint8]
Flags = NDArray[np.int8]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


@kernel
def see(
    data: Bytes, log: Longs, ends: Longs, begin: int,
    time_slot: int, unit: int, user_slot: int, key_slots: Longs, views: Longs, columns: Longs,
    conditions: Longs, text: Bytes, words: Longs, reals: Floats, edges: Floats, empty: bool,
    at: Longs, found: Longs, made: Bytes, made_used: int,
    status: Flags, times: Longs, users: Longs, keys: Longs, first: Longs, number: Longs,
    labels: Longs, amounts: Longs, uneven: Longs, used: Longs,
) -> tuple[int, int]:  # fmt: skip
    """Write what the views see of the events from `begin` on, until the room is used.

    Args:
        data: uint8 (b,), the bytes of the batch.
        log: int64 (rows, 4), the logs of its events end to end; see `kernels.log`.
        ends: int64 (n,), where the log of each event ends.
        begin: the first event to look at.
        time_slot: of the time; NOWHERE: it is the record's. unit: of the time.
        user_slot: of the user; NOWHERE and RECORD_KEY: it is no field.
        key_slots: int64 (k,), of the distinct stream keys, likewise.
        views: int64 (v, 4), see above.
        columns: int64 (c, 7), what labels are, each once whichever views count them; slots are
            NOWHERE where there is no such field.
        conditions: int64 (w, 4): slot, what is asked, and what with: rows of `words` from FIRST to
            LAST, a place in `reals`, or 1 and 0.
        text, words: uint8, and int64 (x, 2): the words of all conditions.
        reals: float64 (r,), the bounds of all conditions.
        edges: float64 (e,), the edges of all views' buckets.
        empty: whether items that are absent or null are none.
        at, found: int64 (slots,) and (c,), scratch.
        made: uint8, texts that the data does not hold; places from len(data) on mean these.
        made_used: how much of it is used.
        status: int8 (n,), DECLINED by a scanner before; written: READ, SKIPPED, DECLINED.
        times: int64 (n,), ms; written where there is such a field, and so are the next two.
        users: int64 (n, 2), start and stop.
        keys: int64 (k, n, 2), start and stop; (0, 0) where nothing looks.
        first, number: int64 (v, n), each event's first label and how many it has, or UNSEEN.
        labels: int64 (c, room, 2), start and stop of each label, or the number of a bucket first.
        amounts: int64 (c, room), how often the event brings each; written in `uneven` columns.
        uneven: int64 (c,), set to 1 where an amount is not 1.
        used: int64 (c,), how many labels of each column are there; advanced.

    Returns:
        the event to go on with when there is more room, n at the end; how much of `made` is used.
    """
    for event in range(begin, len(ends)):
        if status[event] == DECLINED:
            continue
        row, stop = ends[event - 1] if event > 0 else 0, ends[event]
        if made_used + WRITTEN_MAX * (len(views) + 2) * (stop - row + 2) > len(made):
            texts = 0
            for place in range(row, stop):
                texts += log[place, KIND] == VALUE or (log[place, KIND] in (TRUE, FALSE) and log[place, START] < 0)
            # Each may be a label of each column; keys, the user, and what a condition compares.
            if made_used + WRITTEN_MAX * (texts * len(columns) + len(key_slots) + 2) > len(made):
                return event, made_used
        for column in range(len(columns)):
            if used[column] + stop - row > labels.shape[1]:
                return event, made_used
            found[column] = UNSEEN
        for slot in range(len(at)):
            at[slot] = -1
        for place in range(row, stop):
            if at[log[place, SLOT]] < 0:
                at[log[place, SLOT]] = place
        status[event] = READ
        done = made_used
        for key in range(len(key_slots)):
            keys[key, event, 0], keys[key, event, 1] = 0, 0
            if key_slots[key] >= 0 and at[key_slots[key]] >= 0:
                start, end, done = label(data, made, done, log, at[key_slots[key]])
                keys[key, event, 0], keys[key, event, 1] = start, end
        wanted = False
        for view in range(len(views)):
            column = views[view, COLUMN]
            number[view, event], first[view, event] = UNSEEN, used[column]
            holds = 1
            for condition in range(views[view, CONDITION], views[view, CONDITIONS_STOP]):
                asked = conditions[condition]
                given = fulfilled(data, made, done, log, at[asked[FIELD]], asked, text, words, reals)
                if given == DECLINED:
                    status[event] = DECLINED
                holds &= given
            if holds == 0:
                continue
            wanted = True
            of_key = key_slots[views[view, VIEW_KEY]]
            if of_key >= 0 and (at[of_key] < 0 or keys[views[view, VIEW_KEY], event, 0] < 0):
                status[event] = DECLINED
            if found[column] != UNSEEN:
                number[view, event] = found[column]
                continue
            opened = columns[column, ELEMENTS]
            place = at[opened] if opened >= 0 else at[columns[column, ITEMS]]
            now = used[column]
            if place < 0 or log[place, KIND] == NULL:
                if not empty:
                    status[event] = DECLINED
            elif opened < 0:
                count = at[columns[column, COUNT]] if columns[column, COUNT] >= 0 else -1
                done, now = of_value(
                    data, made, done, log, place, stop, count, edges, columns[column], empty, labels[column],
                    amounts[column], uneven[column : column + 1], now,
                )  # fmt: skip
            elif log[place, KIND] == LIST:
                done, now = of_elements(
                    data, made, done, log, place, stop, edges, columns[column], empty, labels[column],
                    amounts[column], uneven[column : column + 1], now,
                )  # fmt: skip
            else:
                status[event] = DECLINED
            if done < 0:
                status[event], done = DECLINED, made_used
            found[column] = now - used[column]
            number[view, event] = found[column]
        if time_slot >= 0:
            times[event] = time_of(data, log, at[time_slot], unit) if at[time_slot] >= 0 else -1
            if times[event] < 0:
                # The general reader knows more ways to write a time, also that of a skipped event.
                if wanted or may_be_time(log, at[time_slot], unit):
                    status[event] = DECLINED
                elif status[event] == READ:
                    status[event] = SKIPPED
        if user_slot >= 0:
            users[event, 0], users[event, 1] = 0, 0
            if wanted:
                place = at[user_slot]
                if place < 0 or log[place, KIND] in (TRUE, FALSE):
                    status[event] = DECLINED
                else:
                    users[event, 0], users[event, 1], done = label(data, made, done, log, place)
                    if users[event, 0] < 0:
                        status[event] = DECLINED
        for key in range(len(key_slots)):
            if keys[key, event, 0] < 0:
                keys[key, event, 0], keys[key, event, 1] = 0, 0
        if status[event] != DECLINED:
            made_used = done
            for column in range(len(columns)):
                used[column] += max(found[column], 0)
    return len(ends), made_used
