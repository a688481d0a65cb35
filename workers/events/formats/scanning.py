"""What a format's scanner finds of a batch, whatever the format."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from workers.events.logs import Logs
from workers.kernels.reading.log import COLUMNS

# Room for rows of an event, on average, before there has to be more.
ROWS_FORESEEN = 8

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
#: From a record on, into `number` and the log behind what is used of it: where it stopped, and how
#: much is used now.
Logging = Callable[[int, Longs, Longs, int], tuple[int, int]]


def logged(data: Bytes, records: int, logging: Logging, decode: Callable[[int], object]) -> Logs:
    """Scan a batch, with as much room for the log as it turns out to need."""
    rows = np.empty((ROWS_FORESEEN * records + 64, COLUMNS), dtype=np.int64)
    number = np.empty(records, dtype=np.int64)
    done = used = 0
    while True:
        done, used = logging(done, number, rows, used)
        if done == records:
            break
        rows = np.concatenate([rows, np.empty_like(rows)])
    return Logs.of(data, rows[:used], number, decode)
