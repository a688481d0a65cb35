"""Evaluate views on event logs, whatever the record format.

A *view* is what one histogram reads: stream key, items, counts, conditions and buckets. Views with
the same items, counts and buckets share one *column* of labels. The kernel answers only where it is
sure and declines all other events to the general reader (`events.project`), whose rule it follows:
an event is never accepted in part.

Indices are not bounds-checked here, which is safe: slots come from the layout, logs with too few
rows for a list or object are declined, and the output has room for a label per log row. Event bytes
are read by `log_values`, which does check (162 ns an event of five views, 198 checking all).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_inline, kernel_part
from workers.events.json_parts import same
from workers.events.layout import (
    ASKS,
    AT_LEAST,
    BUCKETS,
    COLUMN,
    CONDITION,
    CONDITIONS_STOP,
    COUNT,
    EDGE,
    EDGES_STOP,
    ELEMENTS,
    EXISTS,
    FIELD,
    FIRST,
    IN,
    ITEMS,
    LAST,
    NOT_IN,
    ONLY_LIST,
    READ,
    SKIPPED,
    UNSEEN,
    VIEW_KEY,
)
from workers.events.log import (
    DECLINED,
    FALSE,
    KIND,
    LIST,
    MAP,
    NULL,
    OTHER,
    SLOT,
    START,
    STOP,
    TEXT,
    TRUE,
    VALUE,
    WHOLE,
)
from workers.events.log_values import (
    FALSE_WORD,
    TRUE_WORD,
    WRITTEN_MAX,
    amount,
    copied,
    label,
    may_be_time,
    number,
    time_of,
    written,
)

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


@kernel_inline
def is_word(
    data: Bytes,
    made: Bytes,
    used: int,
    log: Longs,
    row: int,
    text: Bytes,
    words: Longs,
    first: int,
    last: int,
) -> tuple[bool, bool]:
    """Return whether a value equals one of words[first:last], and whether it has a text form."""
    kind, start, stop = log[row, KIND], log[row, START], log[row, STOP]
    made_here = False
    if kind == VALUE:
        start, stop, made_here = used, written(made, used, start), True
    elif (kind in (TRUE, FALSE)) and start < 0:
        start, stop, made_here = (
            used,
            copied(made, used, TRUE_WORD if kind == TRUE else FALSE_WORD),
            True,
        )
    elif kind not in (TEXT, WHOLE, TRUE, FALSE):
        return False, False
    for word in range(first, last):
        if same(made if made_here else data, start, stop, text, words[word, 0], words[word, 1]):
            return True, True
    return False, True


@kernel_inline
def fulfilled(
    data: Bytes,
    made: Bytes,
    used: int,
    log: Longs,
    row: int,
    condition: Longs,
    text: Bytes,
    words: Longs,
    reals: Floats,
) -> int:
    """Return 1 if a condition holds, 0 if not, DECLINED if unsure.

    `row` is -1 if the field is absent; `condition` is a row of `conditions`, int64 (4,).
    """
    asks, first, last = condition[ASKS], condition[FIRST], condition[LAST]
    there = row >= 0 and log[row, KIND] != NULL
    if asks == EXISTS:
        return int(there == (first == 1))
    if not there:
        return int(asks == NOT_IN)
    if asks in (IN, NOT_IN):
        found, _ = is_word(data, made, used, log, row, text, words, first, last)
        return int(found == (asks == IN))
    low, high, is_number = number(data, log, row)
    if not is_number:
        return 0
    if asks == AT_LEAST:
        low_holds, high_holds = low >= reals[first], high >= reals[first]
    else:
        low_holds, high_holds = low <= reals[first], high <= reals[first]
    return int(low_holds) if low_holds == high_holds else DECLINED


# Up to this many bucket edges are compared linearly.
COUNTED = 16


@kernel_part
def bucket_of(value: float, edges: Floats, first: int, stop: int) -> int:
    """Return the number of edges[first:stop], ascending, that are at most `value`."""
    low, high = first, stop
    while high - low > COUNTED:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    # Compare the rest linearly, several at once: branches of a binary search are unpredictable.
    found = low - first
    for i in range(low, high):
        found += edges[i] <= value
    return found


@kernel_inline
def add(
    data: Bytes,
    made: Bytes,
    done: int,
    log: Longs,
    row: int,
    times: int,
    edges: Floats,
    column: Longs,
    labels: Longs,
    amounts: Longs,
    uneven: Longs,
    used: int,
) -> int:
    """Add the value in `row` to a column as one item; return the bytes used in `made`.

    Returns DECLINED if the value is no label (for buckets: no number) or `times` is no count.
    `uneven`, int64 (1,), is set at the first amount other than 1; `amounts` is not written before.
    """
    if times != 1 and uneven[0] == 0:
        uneven[0] = 1
        for before in range(used):
            amounts[before] = 1
    if uneven[0] != 0:
        amounts[used] = times
    if column[BUCKETS]:
        low, high, is_number = number(data, log, row)
        found = bucket_of(low, edges, column[EDGE], column[EDGES_STOP])
        labels[used, 0] = found
        sure = low == high or found == bucket_of(high, edges, column[EDGE], column[EDGES_STOP])
        return done if is_number and sure and times >= 0 else DECLINED
    labels[used, 0], labels[used, 1], done = label(data, made, done, log, row)
    return done if labels[used, 0] >= 0 and times >= 0 else DECLINED


@kernel_inline
def next_of(log: Longs, row: int, stop: int, slot: int) -> int:
    while row < stop and log[row, SLOT] != slot:
        row += 1
    return row


@kernel_inline
def of_elements(
    data: Bytes,
    made: Bytes,
    done: int,
    log: Longs,
    row: int,
    stop: int,
    edges: Floats,
    column: Longs,
    empty: bool,
    labels: Longs,
    amounts: Longs,
    uneven: Longs,
    used: int,
) -> tuple[int, int]:
    """Add one item per element of a list of objects; log[row:stop] are its rows.

    Returns the bytes used in `made`, or DECLINED; and the labels used.
    """
    elements, item, count = log[row, START], row + 1, row + 1
    for _ in range(elements):
        item = next_of(log, item, stop, column[ITEMS])
        times = 1
        if column[COUNT] >= 0:
            count = next_of(log, count, stop, column[COUNT])
            if count == stop:
                return DECLINED, used
            times = amount(data, log, count)
            count += 1
        if item == stop:
            return DECLINED, used
        if log[item, KIND] != NULL or not empty:
            done = add(
                data, made, done, log, item, times, edges, column, labels, amounts, uneven, used
            )
            if done < 0:
                return DECLINED, used
            used += 1
        item += 1
    return done, used


@kernel_inline
def of_value(
    data: Bytes,
    made: Bytes,
    done: int,
    log: Longs,
    row: int,
    stop: int,
    count: int,
    edges: Floats,
    column: Longs,
    empty: bool,
    labels: Longs,
    amounts: Longs,
    uneven: Longs,
    used: int,
) -> tuple[int, int]:
    """Add the items of the value in `row`; its count, if any, is in row `count`.

    Returns the same as `of_elements`.
    """
    kind = log[row, KIND]
    if kind == LIST:
        if column[COUNT] >= 0 or log[row, START] > stop - row - 1:
            return DECLINED, used
        for item in range(row + 1, row + 1 + log[row, START]):
            if log[item, KIND] == NULL and empty:
                continue
            # A literal 1 would compile `add` a second time.
            once = int(np.int64(1))
            done = add(
                data, made, done, log, item, once, edges, column, labels, amounts, uneven, used
            )
            if done < 0:
                return DECLINED, used
            used += 1
        return done, used
    if column[ONLY_LIST] or kind == OTHER:
        return DECLINED, used
    if kind == MAP:
        if column[COUNT] >= 0 or column[BUCKETS] or 2 * log[row, START] > stop - row - 1:
            return DECLINED, used
        for entry in range(log[row, START]):
            name = row + 1 + 2 * entry
            times = amount(data, log, name + 1)
            done = add(
                data, made, done, log, name, times, edges, column, labels, amounts, uneven, used
            )
            if done < 0:
                return DECLINED, used
            used += 1
        return done, used
    times = 1
    if column[COUNT] >= 0:
        if count < 0:
            return DECLINED, used
        times = amount(data, log, count)
    done = add(data, made, done, log, row, times, edges, column, labels, amounts, uneven, used)
    return done, used + 1


Flags = NDArray[np.int8]


@kernel
def project_views(
    data: Bytes,
    log: Longs,
    ends: Longs,
    begin: int,
    time_slot: int,
    unit: int,
    user_slot: int,
    key_slots: Longs,
    views: Longs,
    columns: Longs,
    conditions: Longs,
    text: Bytes,
    words: Longs,
    reals: Floats,
    edges: Floats,
    empty: bool,
    at: Longs,
    found: Longs,
    made: Bytes,
    made_used: int,
    status: Flags,
    times: Longs,
    users: Longs,
    keys: Longs,
    first: Longs,
    number: Longs,
    labels: Longs,
    amounts: Longs,
    uneven: Longs,
    used: Longs,
) -> tuple[int, int]:
    """Evaluate the views on the events from `begin` on, until the output is full.

    Returns the event to resume from with more room, or n; and the bytes used in `made`.

    Args:
        data: uint8 (b,), the bytes of the batch.
        log, ends: int64 (rows, 4) and (n,), the concatenated logs and their ends; see `events.log`.
        time_slot: NOWHERE if the record timestamp is used.
        user_slot: NOWHERE or RECORD_KEY_SLOT if not a field.
        key_slots: int64 (k,), likewise, one per distinct stream key.
        views, columns: int64 (v, 4) and (c, 7), see `events.layout`; slots are NOWHERE if not a
            field. Columns are distinct, however many views count them.
        conditions: int64 (w, 4): slot, operator and operands: rows FIRST to LAST of `words`, an
            index into `reals`, or 1 and 0.
        text, words: uint8, and int64 (x, 2) start and stop, the words of all conditions.
        reals, edges: float64, the bounds of all conditions and the bucket edges of all views.
        empty: whether an absent or null item means no items.
        at, found: int64 (slots,) and (c,), scratch.
        made, made_used: uint8, text not present in the data, and the bytes used; positions from
            len(data) on index it.
        status: int8 (n,), in: DECLINED by the scanner; out: READ, SKIPPED or DECLINED.
        times: int64 (n,), ms; like `users` and `keys`, written only if it is a field.
        users: int64 (n, 2), start and stop.
        keys: int64 (k, n, 2), start and stop; (0, 0) if missing or invalid where no view needs it.
        first, number: int64 (v, n), first label and label count of each event, or UNSEEN.
        labels: int64 (c, room, 2), start and stop; for buckets, the bucket number comes first.
        amounts: int64 (c, room), count of each label in its event; written if `uneven`.
        uneven: int64 (c,), set to 1 if an amount is not 1.
        used: int64 (c,), labels in each column; advanced.
    """
    for event in range(begin, len(ends)):
        if status[event] == DECLINED:
            continue
        row, stop = ends[event - 1] if event > 0 else 0, ends[event]
        if made_used + WRITTEN_MAX * (len(views) + 2) * (stop - row + 2) > len(made):
            texts = 0
            for place in range(row, stop):
                texts += log[place, KIND] == VALUE or (
                    log[place, KIND] in (TRUE, FALSE) and log[place, START] < 0
                )
            # Every text may be a label in every column; plus keys, user and one condition operand.
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
                given = fulfilled(
                    data, made, done, log, at[asked[FIELD]], asked, text, words, reals
                )
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
                    data,
                    made,
                    done,
                    log,
                    place,
                    stop,
                    count,
                    edges,
                    columns[column],
                    empty,
                    labels[column],
                    amounts[column],
                    uneven[column : column + 1],
                    now,
                )
            elif log[place, KIND] == LIST:
                done, now = of_elements(
                    data,
                    made,
                    done,
                    log,
                    place,
                    stop,
                    edges,
                    columns[column],
                    empty,
                    labels[column],
                    amounts[column],
                    uneven[column : column + 1],
                    now,
                )
            else:
                status[event] = DECLINED
            if done < 0:
                status[event], done = DECLINED, made_used
            found[column] = now - used[column]
            number[view, event] = found[column]
        if time_slot >= 0:
            times[event] = time_of(data, log, at[time_slot], unit) if at[time_slot] >= 0 else -1
            if times[event] < 0:
                # The general reader accepts more time formats, including for skipped events.
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
