"""Evaluate views on event logs, whatever the record format.

A *view* is the input of one histogram: stream key, items, counts, conditions and buckets, or that
of its sums. Views with the same items, counts, buckets and sums share one *column* of labels. A
`Layout` is a shape of events in this form: the fields that scanners log, and the `Program` that
`project_views` runs on the logs. The kernel declines every event that it is unsure of to the
general reader (`events.project`), and accepts none in part. It is unsure where it knows a number
only between two floats, and these do not agree about a condition, bucket or step.

In steps: a sum adds up numbers from `from` to `to`, rounded to multiples of `step` above `from`.

A *slot* is the number of a wanted field, which every row of a log has. Kernels write the text of a
binary format's numbers and booleans to `written`, whose positions count on from len(data), and
return how many bytes of it are used then.

Indices are not bounds-checked (162 ns per event of five views, 198 with checks): slots come from
the layout, logs with too few rows for a list or object are declined, and the output has room for a
label per log row. `log_values` checks its reads of event bytes.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from workers.arrays.compiled import kernel, kernel_inline, kernel_part
from workers.arrays.types import Bytes, Floats, Longs
from workers.arrays.words import WORD, WRITTEN_MAX
from workers.events import log as kinds
from workers.events.json_scanner import same
from workers.events.log import DECLINED, KIND, SLOT, START, STOP, Flags, longs
from workers.events.log_values import (
    EXACT_DIGITS,
    ISO,
    MS,
    NS,
    PART,
    PART_DIGITS,
    POWERS,
    US,
    WHOLE_MAX,
    S,
    decimal_parts,
    item_count,
    kind_in_text,
    label,
    may_be_time,
    number_bounds,
    parse_time,
)
from workers.events.tree import NO_SLOT, Node, Wanted, build
from workers.mechanisms.config.sums import Sum
from workers.mechanisms.config.views import (
    ALL_KEYS,
    RECORD_KEY,
    Condition,
    Path,
    Shape,
    View,
    parse,
)
from workers.runtime.frozen import Frozen, read_only

# Slots of a stream key or user that is not a field.
NOWHERE = -1
RECORD_KEY_SLOT = -2

_UNITS = MappingProxyType({"ms": MS, "s": S, "us": US, "ns": NS, "iso": ISO})

READ = 0
SKIPPED = 1
# The label count of an event that the view excludes.
UNSEEN = -1
# Splits a PART in two factors of eight digits, whose products fit in 64 bits.
LOW_PART = 10**8
# Columns of `views`; COLUMN is the view's row in `columns`.
VIEW_KEY, COLUMN, CONDITION, CONDITIONS_STOP = range(4)
VIEW_COLUMNS = 4
# Columns of `columns`: the slots of the items, of the list of objects that has them, and of their
# count or number, NOWHERE without one. The others are flags: one value is no list of items
# (ONLY_LIST); labels are numbers of buckets, between edges[EDGE:EDGES_STOP] (BUCKETS); amounts are
# numbers in steps (SUMS); there is one count or number for all items of an event (OF_EVENT).
ITEMS, ELEMENTS, COUNT, ONLY_LIST, BUCKETS, EDGE, EDGES_STOP, SUMS, OF_EVENT = range(9)
COLUMN_COLUMNS = 9
# Columns of `sums`: `from`, `step`, the number of steps from `from` to `to`, and a bound on the
# error of a number in steps that is computed in floats.
LEAST, STEP, STEPS, STEPS_ERROR = range(4)
# Columns of `exact_sums`: `from` and half a step, each as a whole number and parts of 1 / PART.
# Where every edge between steps has at most 15 digits, both in units of 10^-DIGITS too, else DIGITS
# is -1.
FROM_WHOLE, FROM_PART, HALF_WHOLE, HALF_PART, FROM_UNITS, HALF_UNITS, DIGITS = range(7)
EXACT_COLUMNS = 7
# Columns of `conditions`: the slot of a field, what is asked of it, and the operand. That is for IN
# and NOT_IN words[OPERAND:WORDS_STOP], for AT_LEAST and AT_MOST reals[OPERAND], for EXISTS an
# OPERAND of 1 or 0.
FIELD, ASKS, OPERAND, WORDS_STOP = range(4)
CONDITION_COLUMNS = 4
IN, NOT_IN, AT_LEAST, AT_MOST, EXISTS = range(5)


class Logs(NamedTuple):
    """The logs of a batch's events (`events.log`).

    `data` (bytes): the records. `rows` int64 (r, 4) and `ends` int64 (n,): event i's log is
    rows[ends[i - 1]:ends[i]]. `written`, uint8: the texts of a binary format's numbers and
    booleans, at positions from len(data) on.
    """

    data: Bytes
    rows: Longs
    ends: Longs
    written: Bytes


class Program(NamedTuple):
    """The wanted fields and views as tables, whose columns are named above.

    Slots are negative if not a field; `key_slots` has one per distinct key. `words`, int64 (x, 2),
    has start and stop in `text` of the words of all conditions, `reals` their bounds, `edges` the
    bucket edges of all views. `empty`: an absent or null item means no items, and is no reject.
    """

    time_slot: int
    unit: int
    user_slot: int
    key_slots: Longs
    views: Longs
    columns: Longs
    conditions: Longs
    text: Bytes
    words: Longs
    reals: Floats
    edges: Floats
    sums: Floats  # (c, 4), see LEAST; 0 for a column of counts
    exact_sums: Longs  # (c, EXACT_COLUMNS), see FROM_WHOLE
    empty: bool


class Spans(NamedTuple):
    """The events of a part as `project_views` writes them; times, users and keys only if fields.

    Attributes:
        status: int8 (n,), in: DECLINED by the scanner; out: READ, SKIPPED or DECLINED.
        times: int64 (n,), ms.
        users, keys: int64 (n, 2) and (k, n, 2), start and stop; (0, 0) for a key no view needs.
        label_starts, label_counts: int64 (v, n), by view: an event's first label in the view's
            column, and how many it has, or UNSEEN.
        labels: int64 (c, room, 2), start and stop; for buckets, the bucket number comes first.
        amounts: int64 (c, room), count of each label in its event, or its number in steps; written
            if `uneven`.
        uneven: int64 (c,), set to 1 at the first amount other than 1.
        used: int64 (c,), labels in each column; advanced.
    """

    status: Flags
    times: Longs
    users: Longs
    keys: Longs
    label_starts: Longs
    label_counts: Longs
    labels: Longs
    amounts: Longs
    uneven: Longs
    used: Longs


class Target(NamedTuple):
    """One column of labels, for the kernels that write an event's labels to it.

    All but `program` are the column's own rows in the tables of `Program` and `Spans`.
    """

    column: Longs  # of `columns`
    sums: Floats
    exact_sums: Longs
    program: Program
    labels: Longs  # written, like the next two
    amounts: Longs
    uneven: Longs  # (1,), a view and not a number, so that it can be set


@kernel_inline
def is_listed(
    logs: Logs,
    written_used: int,
    row: int,
    program: Program,
    first_word: int,
    words_stop: int,
) -> bool:
    """Return whether the value in log row `row`, in label form, is one of a condition's words.

    Those are words[first_word:words_stop]. Label form is how the value is written as a label: 5 is
    "5". A number's or boolean's is written behind the `written_used` bytes in use, and dropped. A
    value without a label form is none of the words.
    """
    start = logs.rows[row, START]
    stop = logs.rows[row, STOP]
    # A text is compared in place: `label` would refuse one longer than a label. What `label` writes
    # for other values is not kept: the next value overwrites it.
    if logs.rows[row, KIND] not in (kinds.TEXT, kinds.WHOLE):
        start, stop, _ = label(logs.data, logs.written, written_used, logs.rows, row)
        if start < 0:
            return False
    # Text of a binary format's number or boolean is in `written`, numbered from len(data) on.
    in_written = start >= len(logs.data)
    text_in = logs.data
    if in_written:
        text_in = logs.written
        start -= len(logs.data)
        stop -= len(logs.data)
    words = program.words
    word = first_word
    while word < words_stop and not same(
        text_in, start, stop, program.text, words[word, 0], words[word, 1]
    ):
        word += 1
    return word < words_stop


@kernel_inline
def check_condition(
    logs: Logs, written_used: int, row: int, condition: Longs, program: Program
) -> int:
    """Return 1 if a condition holds for the value in log row `row`, 0 if not, DECLINED if unsure.

    A `row` of -1 means that the field is absent. `condition` is a row of `conditions`: its operand
    says where `program` has the words or the bound; for EXISTS it is 1 or 0.
    """
    asks = condition[ASKS]
    operand = condition[OPERAND]
    there = row >= 0 and logs.rows[row, KIND] != kinds.NULL
    if asks == EXISTS:
        return int(there == (operand == 1))
    if not there:
        return int(asks == NOT_IN)
    if asks in (IN, NOT_IN):
        words_stop = condition[WORDS_STOP]
        found = is_listed(logs, written_used, row, program, operand, words_stop)
        return int(found == (asks == IN))
    # The number lies between `low` and `high`: sure is only what holds for both, or for none.
    low, high, is_number = number_bounds(logs.data, logs.rows, row)
    if not is_number:
        return 0
    bound = program.reals[operand]
    if asks == AT_LEAST:
        low_holds = low >= bound
        high_holds = high >= bound
    else:
        low_holds = low <= bound
        high_holds = high <= bound
    return int(low_holds) if low_holds == high_holds else DECLINED


# Up to this many bucket edges are compared linearly: branches of a binary search mispredict.
LINEAR_SEARCH_MAX = 16


@kernel_part
def find_bucket(value: float, edges: Floats, first: int, stop: int) -> int:
    """Return the number of edges[first:stop], ascending, that are at most `value`.

    A binary search down to the last few edges, which are faster to compare one by one.
    """
    low = first
    high = stop
    while high - low > LINEAR_SEARCH_MAX:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    found = low - first
    for i in range(low, high):
        found += edges[i] <= value
    return found


@kernel_part
def exact_steps(logs: Logs, row: int, exact: Longs, least: int, most: int) -> int:
    """Return a sum's number, in log row `row`, rounded to steps; -1 if unsure.

    It is unsure about a text that the general reader has to read, and about a float if DIGITS is
    -1. The caller knows that the number is from `least` to `most` steps, but floats cannot tell
    which. This function decides in whole numbers: a bisection finds the largest k for which the
    edge from + (2k - 1) step / 2 is at most the number, as halves of a step round up. `exact` is
    the sum's row of `exact_sums`: `from` and half a step as whole numbers and parts of 1 / PART,
    and, to compare floats, in units of 10^-DIGITS; DIGITS is -1 where an edge would have more than
    15 digits.

    A float counts as its shortest decimal. That is at least an edge of at most 15 digits if the
    float is at least the edge's nearest float: no other decimal of so few digits has the same.
    """
    kind = logs.rows[row, KIND]
    start = logs.rows[row, START]
    stop = logs.rows[row, STOP]
    # The number: `real` if it is a float, else a whole number and parts of 1 / PART.
    integer = 0
    part = 0
    real = 0.0
    if kind == kinds.TEXT and kind_in_text(logs.data, start, stop) == kinds.TEXT:
        return -1
    if kind == kinds.REAL:
        if exact[DIGITS] < 0:
            return -1
        real = np.int64(start).view(np.float64)
    elif kind == kinds.VALUE:
        # No edge is as large as WHOLE_MAX, so larger numbers compare like it.
        integer = min(max(start, -WHOLE_MAX), WHOLE_MAX)
    else:
        integer, part = decimal_parts(logs.data, start, stop)
    while least < most:
        steps = (least + most + 1) // 2
        halves = 2 * steps - 1
        if kind == kinds.REAL:
            units = exact[FROM_UNITS] + halves * exact[HALF_UNITS]
            reached = real >= float(units) / float(POWERS[exact[DIGITS]])
        else:
            # The edge's whole and part, multiplied in pieces that fit in 64 bits.
            low = halves * (exact[HALF_PART] % LOW_PART)
            high = halves * (exact[HALF_PART] // LOW_PART) + low // LOW_PART
            edge_part = exact[FROM_PART] + high % LOW_PART * LOW_PART + low % LOW_PART
            edge = exact[FROM_WHOLE] + halves * exact[HALF_WHOLE] + high // LOW_PART
            edge += edge_part // PART
            reached = integer > edge or (integer == edge and part >= edge_part % PART)
        if reached:
            least = steps
        else:
            most = steps - 1
    return least


@kernel_inline
def amount_of(logs: Logs, row: int, to: Target) -> int:
    """Return the count in log row `row` or, in a column of sums, the number in steps; -1 if unsure.

    The number in steps, before rounding, is between (low - from) / step - e and
    (high - from) / step + e, with bounds low and high on its nearest float and e = STEPS_ERROR.
    If both round to the same step, it is that one.
    """
    if to.column[SUMS] == 0:
        return item_count(logs.data, logs.rows, row)
    low, high, is_number = number_bounds(logs.data, logs.rows, row)
    if not is_number:
        return -1
    from_ = to.sums[LEAST]
    step = to.sums[STEP]
    steps_max = to.sums[STEPS]
    error = to.sums[STEPS_ERROR]
    # Rounded: half a step is added, then the fraction cut off. Clamped before, at 0 too: numbers
    # may be infinite.
    lower = min(max((low - from_) / step - error + 0.5, 0.0), steps_max)
    upper = min(max((high - from_) / step + error + 0.5, 0.0), steps_max)
    least = int(lower)
    most = int(upper)
    if least == most:
        return least
    return exact_steps(logs, row, to.exact_sums, least, most)


@kernel_inline
def add_item(
    logs: Logs, written_used: int, row: int, amount: int, to: Target, n_labels: int
) -> int:
    """Write the value in `row` as its column's label number `n_labels`, with its amount.

    Returns the used bytes of `written`, or DECLINED if the value is no label, or its bucket or
    amount is unsure (a negative amount).
    """
    column = to.column
    labels = to.labels
    # As long as every amount is 1, none is written: the first other one writes those before it.
    if amount != 1 and to.uneven[0] == 0:
        to.uneven[0] = 1
        for before in range(n_labels):
            to.amounts[before] = 1
    if to.uneven[0] != 0:
        to.amounts[n_labels] = amount
    if column[BUCKETS]:
        # The number lies between `low` and `high`, which must be in the same bucket.
        low, high, is_number = number_bounds(logs.data, logs.rows, row)
        edges = to.program.edges
        first = column[EDGE]
        edges_stop = column[EDGES_STOP]
        found = find_bucket(low, edges, first, edges_stop)
        labels[n_labels, 0] = found
        sure = low == high or found == find_bucket(high, edges, first, edges_stop)
        return written_used if is_number and sure and amount >= 0 else DECLINED
    labels[n_labels, 0], labels[n_labels, 1], written_used = label(
        logs.data, logs.written, written_used, logs.rows, row
    )
    return written_used if labels[n_labels, 0] >= 0 and amount >= 0 else DECLINED


@kernel_inline
def find_slot(log: Longs, row: int, stop: int, slot: int) -> int:
    """Return the first log row from `row` on, itself included, of this slot; `stop` if none."""
    while row < stop and log[row, SLOT] != slot:
        row += 1
    return row


@kernel_inline
def add_elements(
    logs: Logs,
    written_used: int,
    row: int,
    stop: int,
    of_event: int,
    to: Target,
    n_labels: int,
) -> tuple[int, int]:
    """Add the items of a list of objects; return bytes used in `written`, or DECLINED, and labels.

    `of_event` is the amount of every item, unless each has its own. It is negative if it is absent
    or unsure, which declines the event as soon as it has an item. The list's log begins in `row`,
    its event's ends before `stop`. The n-th row with the slot of the items belongs to the n-th
    object, as does the n-th with that of the counts: where an object lacks its row, the rows run
    out before the objects, and the event is declined.
    """
    log = logs.rows
    column = to.column
    # Where the next item and the next count are looked for.
    item = row + 1
    count = row + 1
    for _ in range(log[row, START]):
        item = find_slot(log, item, stop, column[ITEMS])
        amount = of_event
        if column[COUNT] >= 0 and column[OF_EVENT] == 0:
            count = find_slot(log, count, stop, column[COUNT])
            if count == stop:
                return DECLINED, n_labels
            amount = amount_of(logs, count, to)
            count += 1
        if item == stop:
            return DECLINED, n_labels
        if log[item, KIND] != kinds.NULL or not to.program.empty:
            written_used = add_item(logs, written_used, item, amount, to, n_labels)
            if written_used < 0:
                return DECLINED, n_labels
            n_labels += 1
        item += 1
    return written_used, n_labels


@kernel_inline
def add_value(
    logs: Logs,
    written_used: int,
    row: int,
    stop: int,
    of_event: int,
    to: Target,
    n_labels: int,
) -> tuple[int, int]:
    """Add the items of a value that is no list of objects: a list of labels, a map or one label.

    The log of the value begins in `row`, and that of its event ends before `stop`. `of_event` is
    the amount of every item, unless a map states them. It is negative if it is absent or unsure,
    which declines the event as soon as it has an item. The column has `n_labels` labels so far.
    Returns bytes used in `written`, or DECLINED to the general reader, and the new number of
    labels.
    """
    log = logs.rows
    column = to.column
    kind = log[row, KIND]
    # With a field for the count, the value must be one item. (In a column of sums, COUNT is the
    # slot of the number, which holds for all items.)
    counts_one = column[COUNT] >= 0 and column[SUMS] == 0
    # Both bounds on START keep the loops within the event's log if it has fewer rows.
    if kind == kinds.LIST:
        if counts_one or log[row, START] > stop - row - 1:
            return DECLINED, n_labels
        for item in range(row + 1, row + 1 + log[row, START]):
            if log[item, KIND] == kinds.NULL and to.program.empty:
                continue
            written_used = add_item(logs, written_used, item, of_event, to, n_labels)
            if written_used < 0:
                return DECLINED, n_labels
            n_labels += 1
        return written_used, n_labels
    if column[ONLY_LIST] or kind == kinds.OTHER:
        return DECLINED, n_labels
    # Of a map the names are the labels, never numbers; the log has a name and a value for each.
    if kind == kinds.MAP:
        if counts_one or column[BUCKETS] or 2 * log[row, START] > stop - row - 1:
            return DECLINED, n_labels
        for entry in range(log[row, START]):
            name = row + 1 + 2 * entry
            # A column of sums takes the event's number; the map's counts are read for the column
            # of counts that has the same items.
            amount = of_event if column[SUMS] else item_count(logs.data, log, name + 1)
            written_used = add_item(logs, written_used, name, amount, to, n_labels)
            if written_used < 0:
                return DECLINED, n_labels
            n_labels += 1
        return written_used, n_labels
    return add_item(logs, written_used, row, of_event, to, n_labels), n_labels + 1


@kernel
def project_views(
    logs: Logs,
    begin: int,
    program: Program,
    row_of: Longs,
    added: Longs,
    written_used: int,
    out: Spans,
) -> tuple[int, int]:
    """Evaluate the views on the events from `begin` on, until the output is full.

    Of each event it writes status, time, user and keys, and of each view where the event's labels
    begin in the view's column, and how many they are (`Spans`). Labels, users and keys are spans of
    the record, or of `written`, which gets those that a record has in other bytes.

    For each event: see that there is room for the most that it may write; note where each slot is
    in its log; look up the keys; for each view, check the conditions and add the labels, once a
    column; then the time and the user.

    Returns the event to resume from with more room, or n; and the bytes used in `written`. Without
    views, users and times of all events are read.

    Scratch: `row_of`, int64 (slots,), the first log row of each slot in the event, -1 if absent;
    `added`, int64 (c,), the labels that it adds to each column, UNSEEN before any view looks.
    """
    data, log, ends, written = logs
    (
        status,
        times,
        users,
        keys,
        label_starts,
        label_counts,
        labels,
        amounts,
        uneven,
        used,
    ) = out
    key_slots = program.key_slots
    views = program.views
    columns = program.columns
    time_slot = program.time_slot
    unit = program.unit
    for event in range(begin, len(ends)):
        if status[event] == DECLINED:
            continue
        row = ends[event - 1] if event > 0 else 0
        stop = ends[event]

        # Stop where `written` might overflow: there are no index checks. The first bound needs no
        # look at the log, which saves the exact one at nearly all events.
        if written_used + WRITTEN_MAX * (len(views) + 2) * (stop - row + 2) > len(
            written
        ):
            texts = 0
            for text_row in range(row, stop):
                kind = log[text_row, KIND]
                texts += kind == kinds.VALUE or (
                    kind in (kinds.TRUE, kinds.FALSE) and log[text_row, START] < 0
                )
            # Every text may be a label in every column; plus keys, user and one condition operand.
            if written_used + WRITTEN_MAX * (
                texts * len(columns) + len(key_slots) + 2
            ) > len(written):
                return event, written_used
        # The same for labels: at most one for each row of the log.
        for column in range(len(columns)):
            if used[column] + stop - row > labels.shape[1]:
                return event, written_used
            added[column] = UNSEEN

        # Views look fields up by slot, in any order, so each slot's place is noted once. The first
        # row is the value itself, the list or the object; its elements follow.
        for slot in range(len(row_of)):
            row_of[slot] = -1
        for log_row in range(row, stop):
            if row_of[log[log_row, SLOT]] < 0:
                row_of[log[log_row, SLOT]] = log_row

        # `written_used` and `used` move on only once the event is read: the next event overwrites
        # what a declined one has written.
        status[event] = READ
        written_stop = written_used

        # A key that is no label counts against the event only if a view with this key includes it.
        for key in range(len(key_slots)):
            keys[key, event, 0] = 0
            keys[key, event, 1] = 0
            if key_slots[key] >= 0 and row_of[key_slots[key]] >= 0:
                start, end, written_stop = label(
                    data, written, written_stop, log, row_of[key_slots[key]]
                )
                keys[key, event, 0] = start
                keys[key, event, 1] = end

        # Without views, every event is wanted for its user. (A flag made before the loop would have
        # the compiler write the loop twice: 175 ns per event of five views instead of 120.)
        included = len(views) == 0
        for view in range(len(views)):
            column = views[view, COLUMN]
            label_counts[view, event] = UNSEEN
            label_starts[view, event] = used[column]

            # One unsure condition declines the event, whatever the others say.
            holds = 1
            for condition in range(
                views[view, CONDITION], views[view, CONDITIONS_STOP]
            ):
                asked = program.conditions[condition]
                answer = check_condition(
                    logs, written_stop, row_of[asked[FIELD]], asked, program
                )
                if answer == DECLINED:
                    status[event] = DECLINED
                else:
                    holds &= answer
            if holds == 0:
                continue
            included = True
            key_slot = key_slots[views[view, VIEW_KEY]]
            if key_slot >= 0 and (
                row_of[key_slot] < 0 or keys[views[view, VIEW_KEY], event, 0] < 0
            ):
                status[event] = DECLINED

            # The labels of a column are written once, however many views share them.
            if added[column] != UNSEEN:
                label_counts[view, event] = added[column]
                continue
            source = columns[column]
            is_uneven = uneven[column : column + 1]
            to = Target(
                source,
                program.sums[column],
                program.exact_sums[column],
                program,
                labels[column],
                amounts[column],
                is_uneven,
            )
            list_slot = source[ELEMENTS]
            items_row = row_of[list_slot] if list_slot >= 0 else row_of[source[ITEMS]]
            labels_used = used[column]
            # One amount for all items of the event, unless each has its own. With a negative one,
            # `add_item` declines the event. A literal 1 would compile `add_item` a second time.
            of_event = int(np.int64(1))
            if (list_slot < 0 or source[OF_EVENT]) and source[COUNT] >= 0:
                count_row = row_of[source[COUNT]]
                of_event = amount_of(logs, count_row, to) if count_row >= 0 else -1
            if items_row < 0 or log[items_row, KIND] == kinds.NULL:
                if not program.empty:
                    status[event] = DECLINED
            elif list_slot < 0:
                written_stop, labels_used = add_value(
                    logs, written_stop, items_row, stop, of_event, to, labels_used
                )
            elif log[items_row, KIND] == kinds.LIST:
                written_stop, labels_used = add_elements(
                    logs, written_stop, items_row, stop, of_event, to, labels_used
                )
            else:
                status[event] = DECLINED
            if written_stop < 0:
                status[event] = DECLINED
                written_stop = written_used
            added[column] = labels_used - used[column]
            label_counts[view, event] = added[column]

        # An event that no view includes still moves the clock, if it has a time.
        if time_slot >= 0:
            time_row = row_of[time_slot]
            times[event] = (
                parse_time(data, log, time_row, unit) if time_row >= 0 else -1
            )
            if times[event] < 0:
                # The general reader accepts more time formats, including for skipped events.
                if included or may_be_time(log, time_row, unit):
                    status[event] = DECLINED
                elif status[event] == READ:
                    status[event] = SKIPPED

        # Nobody counts users of events that no view includes, so these need none.
        if program.user_slot >= 0:
            users[event, 0] = 0
            users[event, 1] = 0
            if included:
                user_row = row_of[program.user_slot]
                # Booleans are labels but no users.
                if user_row < 0 or log[user_row, KIND] in (kinds.TRUE, kinds.FALSE):
                    status[event] = DECLINED
                else:
                    users[event, 0], users[event, 1], written_stop = label(
                        data, written, written_stop, log, user_row
                    )
                    if users[event, 0] < 0:
                        status[event] = DECLINED

        # Keys that only excluding views have may be missing; they are looked up as "".
        for key in range(len(key_slots)):
            if keys[key, event, 0] < 0:
                keys[key, event, 0] = 0
                keys[key, event, 1] = 0

        if status[event] != DECLINED:
            written_used = written_stop
            for column in range(len(columns)):
                used[column] += max(added[column], 0)
    return len(ends), written_used


@dataclass(frozen=True, slots=True)
class Items:
    """The source of a column's labels and amounts, whichever views count them.

    Attributes:
        path: of the items.
        count: path of an item's count or, with a `sum`, of the number that is added up; None: each
            item counts once, or an object of items has their counts.
        edges: of the buckets whose numbers are the labels; None: the items are.
        sum: range and step of the numbers; None: items are counted.
    """

    path: Path
    count: Path | None
    edges: tuple[float, ...] | None
    sum: Sum | None


class Layout(Frozen):
    """Wanted fields: a tree for the scanners, and the `program` of `project_views`.

    Attributes:
        tree: for scanners; `slots` is the number of its slots.
        names: of the views; `key_of` and `column_of` have, in this order, the index of a view's
            stream key in `keys`, and of its labels in `items_of`.
        keys: the distinct stream keys, a path or "$key" or "$all", in the order of `key_slots`.
        items_of: the source of each column of labels, in the order of the program's `columns`.
    """

    tree: Node

    def __init__(self, shape: Shape) -> None:
        """Number the fields that `shape` wants, and write its views as the program's tables."""
        self.shape = shape
        # Gathers slots, words and edges as views are added; the tables are made from them.
        rows = _Rows()
        views = shape.views.values()
        self.names = tuple(shape.views)
        self.keys = tuple(dict.fromkeys(view.key for view in views))
        self.key_of = tuple(self.keys.index(view.key) for view in views)
        key_slots = np.array([rows.slot_of(key) for key in self.keys], dtype=np.int64)
        self.time_slot = NO_SLOT if shape.time is None else rows.slot_of(shape.time)
        self.user_slot = NO_SLOT if shape.user is None else rows.slot_of(shape.user)
        view_rows = [
            rows.of_view(view, key)
            for view, key in zip(views, self.key_of, strict=True)
        ]
        self.items_of = tuple(rows.columns)
        self.column_of = tuple(row[COLUMN] for row in view_rows)
        lengths = np.array([len(word) for word in rows.words], dtype=np.int64)
        ends = np.cumsum(lengths)
        # Padding lets the last word be compared a machine word at a time as well.
        text = np.frombuffer(b"".join(rows.words) + bytes(WORD), dtype=np.uint8)
        self.program = Program(
            time_slot=self.time_slot,
            unit=_UNITS[shape.unit],
            user_slot=self.user_slot,
            key_slots=read_only(key_slots),
            views=longs(view_rows, VIEW_COLUMNS),
            columns=longs([*rows.columns.values()], COLUMN_COLUMNS),
            conditions=longs(rows.conditions, CONDITION_COLUMNS),
            text=text,
            words=read_only(np.stack((ends - lengths, ends), axis=1)),
            reals=read_only(np.array(rows.reals, dtype=np.float64)),
            edges=read_only(np.array(rows.edges, dtype=np.float64)),
            sums=read_only(np.array(rows.sums, dtype=np.float64)).reshape(-1, 4),
            exact_sums=longs(rows.exact_sums, EXACT_COLUMNS),
            empty=shape.empty,
        )
        self.tree = build(list(rows.wanted.values()))
        self.slots = rows.slots


def _sum_row(range_: Sum) -> tuple[float, float, float, float]:
    """Return a sum's row of `sums`, from which `amount_of` computes steps in floats.

    With M the larger of |from| and |to|: a number v of at most 2 M is off by 2^-53 |v| as a float,
    so are `from` and `step`, and each operation rounds once. In steps that is at most
    (16 M / step + 4) 2^-53, and so below STEPS_ERROR; numbers further out are clamped whatever
    their error. The larger the bound, the more numbers are left to `exact_steps`.
    """
    least = float(range_.from_)
    step = float(range_.step)
    error = (float(max(abs(range_.from_), abs(range_.to)) / range_.step) + 1) * 2.0**-48
    return least, step, float(range_.steps), error


def _exact_sum_row(range_: Sum) -> list[int]:
    """Return a sum's row of `exact_sums`, from which `exact_steps` computes edges between steps.

    It has `from` and half a step twice: as whole numbers and parts of 1 / PART, and as integers in
    units of 10^-digits, followed by `digits`. The last three are 0, 0 and -1 if the integers would
    have more than 15 digits.
    """
    half = range_.step / 2
    row = [
        *divmod(int(range_.from_.scaleb(PART_DIGITS)), PART),
        *divmod(int(half.scaleb(PART_DIGITS)), PART),
    ]
    # Digits behind the point of every edge; each edge is from + an odd number of halves.
    digits = max(
        -int(number.as_tuple().exponent) for number in (range_.from_, range_.to, half)
    )
    digits = max(digits, 0)
    largest = max(abs(range_.from_), abs(range_.to)).scaleb(digits)
    if largest >= 10**EXACT_DIGITS:
        return [*row, 0, 0, -1]
    return [*row, int(range_.from_.scaleb(digits)), int(half.scaleb(digits)), digits]


class _Rows:
    """Builder of a program's rows, and of the wanted fields with their slots, view by view.

    A slot is the number with which scanners log a field. A list of objects has one too, by which
    its elements are told apart: `cart[].sku` with `cart[].qty` beside it has a slot for each, and
    one for `cart`. The `list_at` of such a path is 1, the steps before the list's `[]`.
    """

    def __init__(self) -> None:
        # By the steps of a path and its `list_at`; None without a list of objects.
        self.wanted: dict[tuple[tuple[str, ...], int | None], Wanted] = {}
        # Slots of lists, by their steps.
        self._lists: dict[tuple[str, ...], int] = {}
        self.columns: dict[Items, list[int]] = {}
        self.conditions: list[tuple[int, int, int, int]] = []
        self.words: list[bytes] = []
        self.reals: list[float] = []
        self.edges: list[float] = []
        self.sums: list[tuple[float, float, float, float]] = []
        self.exact_sums: list[list[int]] = []

    @property
    def slots(self) -> int:
        return len(self.wanted) + len(self._lists)

    def slot_of(self, field: Path | str, *, many: bool = False) -> int:
        """Return the slot of a field, the next free one if it is new; not a field: negative.

        With `many`, the items of a list or object there are read.
        """
        if not isinstance(field, Path):
            return {ALL_KEYS: NOWHERE, RECORD_KEY: RECORD_KEY_SLOT}[field]
        # A `[]` at the end only says that the items are a list: ONLY_LIST.
        list_at = None if field.list_at == len(field.steps) else field.list_at
        list_slot = (
            NO_SLOT if list_at is None else self._list_slot(field.steps[:list_at])
        )
        known = self.wanted.get((field.steps, list_at))
        slot = self.slots
        if known is not None:
            slot = known.slot
            many |= known.many
        wanted = Wanted(field.steps, list_at, slot, many, list_slot)
        self.wanted[field.steps, list_at] = wanted
        return slot

    def _list_slot(self, steps: tuple[str, ...]) -> int:
        """Return the slot of a list of objects, the next free one if it is new."""
        return self._lists.setdefault(steps, self.slots)

    def of_view(self, view: View, key: int) -> list[int]:
        """Add a view's column and conditions; return its row of `views`.

        `key` is the index of its stream key in `Layout.keys`.
        """
        # A view of sums has a number, any other may have a count: one field of `Items` holds both.
        items = Items(view.items, view.number or view.count, view.edges, view.sum)
        if items not in self.columns:
            self.columns[items] = self._of_column(items)
        row = [NOWHERE] * VIEW_COLUMNS
        row[VIEW_KEY] = key
        row[COLUMN] = list(self.columns).index(items)
        row[CONDITION] = len(self.conditions)
        for condition in view.where:
            self._add_condition(condition)
        row[CONDITIONS_STOP] = len(self.conditions)
        return row

    def _of_column(self, items: Items) -> list[int]:
        """Add the edges or the sum of a column of labels; return its row of `columns`.

        Its entries are slots or flags, at ITEMS to OF_EVENT.
        """
        path = items.path
        # Items are a label in each object of a list; or else a value that is opened if it is a list
        # of labels or an object of counts. `[]` at the path's end says that it must be a list.
        in_objects = path.list_at is not None and path.list_at < len(path.steps)
        row = [NOWHERE] * COLUMN_COLUMNS
        row[ITEMS] = self.slot_of(path, many=not in_objects)
        if in_objects:
            row[ELEMENTS] = self._list_slot(path.steps[: path.list_at])
        if items.count is not None:
            row[COUNT] = self.slot_of(items.count)
        row[ONLY_LIST] = int(path.list_at == len(path.steps))
        row[BUCKETS] = int(items.edges is not None)
        row[EDGE] = len(self.edges)
        self.edges += items.edges or ()
        row[EDGES_STOP] = len(self.edges)
        row[SUMS] = int(items.sum is not None)
        # One count or number for all items of an event, not one beside each in a list of objects.
        row[OF_EVENT] = int(items.count is not None and items.count.list_at is None)
        # Both tables have a row for every column, so that one index serves all.
        if items.sum is None:
            self.sums.append((0.0, 0.0, 0.0, 0.0))
            self.exact_sums.append([0] * EXACT_COLUMNS)
        else:
            self.sums.append(_sum_row(items.sum))
            self.exact_sums.append(_exact_sum_row(items.sum))
        return row

    def _add_condition(self, condition: Condition) -> None:
        """Add a row of `conditions` for each thing that a condition asks of its field.

        A row is FIELD, ASKS, OPERAND and WORDS_STOP; the last is 0 unless words are asked for.
        """
        field = self.slot_of(parse(condition.field))
        for asks, given in (
            (IN, condition.in_),
            (NOT_IN, condition.not_in),
        ):
            if given is not None:
                first = len(self.words)
                self.words += [word.encode() for word in given]
                self.conditions.append((field, asks, first, len(self.words)))
        for asks, bound in (
            (AT_LEAST, condition.min),
            (AT_MOST, condition.max),
        ):
            if bound is not None:
                self.conditions.append((field, asks, len(self.reals), 0))
                self.reals.append(bound)
        if condition.exists is not None:
            self.conditions.append((field, EXISTS, int(condition.exists), 0))
