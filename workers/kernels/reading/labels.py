"""Columns of labels: what an event has of the items that views count.

Indices are not checked, as in `kernels.reading.views`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel_in_place, kernel_part
from workers.kernels.reading.log import DECLINED, KIND, LIST, MAP, NULL, OTHER, SLOT, START
from workers.kernels.reading.log_values import amount, label, number
from workers.kernels.reading.wanted import BUCKETS, COUNT, EDGE, EDGES_STOP, ITEMS, ONLY_LIST

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]

# Edges of buckets that are compared with a number one by one.
COUNTED = 16


@kernel_part
def bucket_of(value: float, edges: Floats, first: int, stop: int) -> int:
    """Return how many of edges[first:stop], ascending, are at most `value`."""
    low, high = first, stop
    while high - low > COUNTED:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    # The last ones are compared all, several at a time: which half comes next nobody can guess.
    found = low - first
    for i in range(low, high):
        found += edges[i] <= value
    return found


@kernel_in_place
def add(
    data: Bytes, made: Bytes, done: int, log: Longs, row: int, times: int, edges: Floats, column: Longs,
    labels: Longs, amounts: Longs, uneven: Longs, used: int,
) -> int:  # fmt: skip
    """Add one item of a column, the value in row `row`, and return how much of `made` is used then.

    Args:
        uneven: int64 (1,), whether the column has an amount that is not 1; before that none is
            written.

    Returns:
        DECLINED where the value is no label (no number, of buckets) or `times` is no count.
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


@kernel_in_place
def next_of(log: Longs, row: int, stop: int, slot: int) -> int:
    """Return the first row from `row` on that is about a slot; `stop`: there is none."""
    while row < stop and log[row, SLOT] != slot:
        row += 1
    return row


@kernel_in_place
def of_elements(
    data: Bytes, made: Bytes, done: int, log: Longs, row: int, stop: int, edges: Floats, column: Longs, empty: bool,
    labels: Longs, amounts: Longs, uneven: Longs, used: int,
) -> tuple[int, int]:  # fmt: skip
    """Add the items of a list of objects, log[row:stop] its rows, with one item in each element.

    Returns:
        how much of `made` is used then, or DECLINED; how many labels are.
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
            done = add(data, made, done, log, item, times, edges, column, labels, amounts, uneven, used)
            if done < 0:
                return DECLINED, used
            used += 1
        item += 1
    return done, used


@kernel_in_place
def of_value(
    data: Bytes, made: Bytes, done: int, log: Longs, row: int, stop: int, count: int, edges: Floats, column: Longs,
    empty: bool, labels: Longs, amounts: Longs, uneven: Longs, used: int,
) -> tuple[int, int]:  # fmt: skip
    """Add the items of a column that are one value, row `row`; `count` is the row of their count.

    Returns:
        as `of_elements`.
    """
    kind = log[row, KIND]
    if kind == LIST:
        if column[COUNT] >= 0 or log[row, START] > stop - row - 1:
            return DECLINED, used
        for item in range(row + 1, row + 1 + log[row, START]):
            if log[item, KIND] == NULL and empty:
                continue
            # For a 1 that is written here `add` would be compiled once more.
            once = int(np.int64(1))
            done = add(data, made, done, log, item, once, edges, column, labels, amounts, uneven, used)
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
            done = add(data, made, done, log, name, times, edges, column, labels, amounts, uneven, used)
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
