"""What a binary format's scanner finds of a batch, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from workers.events.logs import Logs, parts

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
#: From a record on, into `number` and the log behind what is used of it: where it stopped, and how
#: much is used now.
Logging = Callable[[int, Longs, Longs, int], tuple[int, int]]


def logged(
    data: Bytes, values: Longs, logging: Logging, decode: Callable[[int], object]
) -> Iterator[Logs]:
    """Scan the records of a batch; see `events.logs.parts`."""
    return parts(values, lambda begin, number, rows: (data, logging(begin, number, rows, 0)[0]), decode)
