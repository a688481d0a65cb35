"""Plain JSON events, read by a compiled scanner that says yes only where it is sure.

For each record the scanner says where its stream key, user, labels and time are, or it declines:
then the general reader (`events.reader`) decides about that record alone. It never rejects one.
`tests/kernels/json_corpus.py` holds the two against each other. What the scanner reads is:

    record  one object between white space, with each wanted field once; names without a backslash
    key     a string without a backslash, of at most LABEL_BYTES_MAX bytes; so are all labels
    time    1 to 16 digits without a leading zero, at most TIME_MAX
    user    a string like a key, or 1 to 18 digits without a leading zero
    items   a label, a list of labels, or an object of at most MAP_LABELS_MAX labels, each once,
            whose values have 1 to 12 digits without a leading zero
    others  what `json_parts.skip` knows
"""

from __future__ import annotations

from workers.kernels.compiled import reads_outside
from workers.kernels.json_parts import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    OPEN_LIST,
    OPEN_OBJECT,
    QUOTE,
    REFUSED,
    Bytes,
    Longs,
    look,
    same,
    skip,
    space,
    text,
    whole,
)

# The longest label, stream key or user, in bytes of UTF-8; `mechanisms.config` says the same.
LABEL_BYTES_MAX = 1024
TIME_MAX = 2**53
TIME_DIGITS, USER_DIGITS, COUNT_DIGITS = 16, 18, 12
# Each label of an object is compared with those before it: with many that would take long.
MAP_LABELS_MAX = 64

# The fields of an event, as rows of `places`.
KEY, ITEMS, TIME, USER = 0, 1, 2, 3

# There is no room left for labels: the caller makes some, and the record is read again.
FULL = -2
# The number of labels of a record that the scanner does not read.
DECLINED = -1


@reads_outside
def label(data: Bytes, at: int, stop: int) -> int:
    """Return the closing quote of a string without escapes that is no longer than a label."""
    end = text(data, at, stop)
    return end if end - at - 1 <= LABEL_BYTES_MAX else REFUSED


@reads_outside
def items(
    data: Bytes, at: int, stop: int, labels: Longs, amounts: Longs, used: int
) -> tuple[int, int, bool]:
    """Read the items of an event, the value at `at`.

    Args:
        labels: int64 (room, 2), start and stop of each label; they are added from `used` on.
        amounts: int64 (room,), how often the event brings each.

    Returns:
        where the value ends (REFUSED; FULL: no room for another label), how many labels are used
        now, whether it is an object.
    """
    kind = look(data, at, stop)
    first, close = used, CLOSE_OBJECT if kind == OPEN_OBJECT else CLOSE_LIST
    if kind != QUOTE:
        if kind != OPEN_LIST and kind != OPEN_OBJECT:
            return REFUSED, used, False
        at = space(data, at + 1, stop)
        if look(data, at, stop) == close:
            return at + 1, used, kind == OPEN_OBJECT
    while True:
        end = label(data, at, stop)
        if end == REFUSED:
            return REFUSED, used, False
        if used == len(labels):
            return FULL, used, False
        labels[used, 0], labels[used, 1], amounts[used] = at + 1, end, 1
        at = end + 1
        if kind == OPEN_OBJECT:
            if used - first == MAP_LABELS_MAX:
                return REFUSED, used, False
            for other in range(first, used):
                if same(data, labels[used, 0], end, data, labels[other, 0], labels[other, 1]):
                    return REFUSED, used, False
            at = space(data, at, stop)
            if look(data, at, stop) != COLON:
                return REFUSED, used, False
            amounts[used], at = whole(data, space(data, at + 1, stop), stop, COUNT_DIGITS)
            if at == REFUSED:
                return REFUSED, used, False
        used += 1
        if kind == QUOTE:
            return at, used, False
        at = space(data, at, stop)
        byte = look(data, at, stop)
        if byte == close:
            return at + 1, used, kind == OPEN_OBJECT
        if byte != COMMA:
            return REFUSED, used, False
        at = space(data, at + 1, stop)


@reads_outside
def field(data: Bytes, start: int, stop: int, names: Bytes, places: Longs) -> int:
    """Return which field of an event data[start:stop] names, a row of `places`; else REFUSED."""
    for row in range(len(places)):
        if same(data, start, stop, names, places[row, 0], places[row, 1]):
            return row
    return REFUSED


@reads_outside
def event(
    data: Bytes, at: int, stop: int, names: Bytes, places: Longs,
    row: int, times: Longs, keys: Longs, users: Longs,
    labels: Longs, amounts: Longs, used: int,
) -> tuple[int, bool]:  # fmt: skip
    """Read one record, data[at:stop], into row `row` of the columns; see `scan`.

    Returns:
        how many labels are used now, and whether they are of an object; else DECLINED or FULL.
    """
    found = 0  # a bit for each field
    counted = False
    at = space(data, at, stop)
    if look(data, at, stop) != OPEN_OBJECT:
        return DECLINED, False
    while True:
        # `at` is the brace, or the comma behind a value.
        at = space(data, at + 1, stop)
        end = text(data, at, stop)
        if end == REFUSED:
            return DECLINED, False
        which = field(data, at + 1, end, names, places)
        at = space(data, end + 1, stop)
        if look(data, at, stop) != COLON:
            return DECLINED, False
        at = space(data, at + 1, stop)
        if which == REFUSED:
            at = skip(data, at, stop)
        elif found >> which & 1:
            return DECLINED, False
        else:
            found |= 1 << which
            if which == ITEMS:
                at, used, counted = items(data, at, stop, labels, amounts, used)
                if at == FULL:
                    return FULL, False
            elif which == TIME:
                times[row], at = whole(data, at, stop, TIME_DIGITS)
                if times[row] > TIME_MAX:
                    return DECLINED, False
            elif which == USER and look(data, at, stop) != QUOTE:
                users[row, 0] = at
                _, at = whole(data, at, stop, USER_DIGITS)
                users[row, 1] = at
            else:
                end = label(data, at, stop)
                spans = keys if which == KEY else users
                spans[row, 0], spans[row, 1] = at + 1, end
                at = end + 1 if end != REFUSED else REFUSED
        if at == REFUSED:
            return DECLINED, False
        at = space(data, at, stop)
        byte = look(data, at, stop)
        if byte == CLOSE_OBJECT:
            break
        if byte != COMMA:
            return DECLINED, False
    for which in range(len(places)):
        if places[which, 0] <= places[which, 1] and not found >> which & 1:
            return DECLINED, False
    if space(data, at + 1, stop) != stop:
        return DECLINED, False
    return used, counted


@reads_outside
def scan(
    data: Bytes, values: Longs, bytes_max: int, names: Bytes, places: Longs, begin: int,
    times: Longs, keys: Longs, users: Longs, first: Longs, number: Longs,
    labels: Longs, amounts: Longs, used: int,
) -> tuple[int, int, bool]:  # fmt: skip
    """Read the records from `begin` on, until the room for labels is used.

    Args:
        data: uint8 (b,), the bytes of the batch.
        values: int64 (n, 2), start and stop of each record; a negative start: it has no value.
        bytes_max: a longer record is declined.
        names: uint8, the names of the fields, end to end.
        places: int64 (4, 2), start and stop of the names of KEY, ITEMS, TIME and USER; a stop below
            its start: events have no such field.
        begin: the first record to read.
        times: int64 (n,), written where there is such a field; likewise the next two.
        keys: int64 (n, 2), start and stop of each stream key.
        users: int64 (n, 2), start and stop of each user.
        first: int64 (n,), each event's first label.
        number: int64 (n,), how many labels it has, or DECLINED; what the other columns then hold
            means nothing.
        labels: int64 (room, 2), start and stop of each label.
        amounts: int64 (room,), how often an event brings it.
        used: how many labels are there already.

    Returns:
        the record to begin with when there is more room, n at the end; how many labels are used
        now; whether any event read in this call counts its labels.
    """
    counting = False
    for row in range(begin, len(values)):
        first[row], number[row] = used, DECLINED
        start, stop = values[row, 0], values[row, 1]
        if start < 0 or stop - start > bytes_max:
            continue
        now, counted = event(
            data, start, stop, names, places, row, times, keys, users, labels, amounts, used
        )
        if now == FULL:
            return row, used, counting
        if now != DECLINED:
            number[row] = now - used
            used = now
            counting |= counted
    return len(values), used, counting
