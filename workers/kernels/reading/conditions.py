"""Conditions of views: whether a field of an event is what one asks for.

Indices are not checked, as in `kernels.reading.views`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel_in_place
from workers.kernels.reading.json_parts import same
from workers.kernels.reading.log import DECLINED, FALSE, KIND, NULL, START, STOP, TEXT, TRUE, VALUE, WHOLE
from workers.kernels.reading.log_values import FALSE_WORD, TRUE_WORD, copied, number, written
from workers.kernels.reading.wanted import ASKS, AT_LEAST, EXISTS, FIRST, IN, LAST, NOT_IN

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


@kernel_in_place
def is_word(
    data: Bytes, made: Bytes, used: int, log: Longs, row: int, text: Bytes, words: Longs, first: int, last: int
) -> tuple[bool, bool]:
    """Return whether a value is written as one of words[first:last], and whether it has a text."""
    kind, start, stop = log[row, KIND], log[row, START], log[row, STOP]
    made_here = False
    if kind == VALUE:
        start, stop, made_here = used, written(made, used, start), True
    elif (kind in (TRUE, FALSE)) and start < 0:
        start, stop, made_here = used, copied(made, used, TRUE_WORD if kind == TRUE else FALSE_WORD), True
    elif kind not in (TEXT, WHOLE, TRUE, FALSE):
        return False, False
    for word in range(first, last):
        if same(made if made_here else data, start, stop, text, words[word, 0], words[word, 1]):
            return True, True
    return False, True


@kernel_in_place
def fulfilled(
    data: Bytes, made: Bytes, used: int, log: Longs, row: int, condition: Longs, text: Bytes, words: Longs, reals: Floats
) -> int:
    """Return whether a condition holds, 1 or 0; DECLINED where that is not sure.

    Args:
        row: of the field in the log; -1: it is absent.
        condition: int64 (4,), a row of `conditions`.
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
