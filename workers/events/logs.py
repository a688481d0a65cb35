"""What every format of events is: a compiled scanner of plain records, and a decoder of any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.kernels.reading.log import COLUMNS, DECLINED, ended

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Flags = NDArray[np.int8]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, repr=False)
class Logs:
    """What a scanner found of a batch.

    Attributes:
        data: uint8, the bytes of the records, and behind them what the scanner adds.
        rows: int64 (m, 4), the logs of the records end to end; see `kernels.reading.log`.
        ends: int64 (n,), where each record's end.
        status: int8 (n,), DECLINED where the scanner does not read a record.
        decode: returns a record, by its place in the batch, as plain objects; raises ValueError
            with the reason why it is none.
    """

    data: Bytes
    rows: Longs
    ends: Longs
    status: Flags
    decode: Callable[[int], object]

    @classmethod
    def of(cls, data: Bytes, rows: Longs, number: Longs, decode: Callable[[int], object]) -> Logs:
        """Return the logs of records that have so many rows each, or are DECLINED, int64 (n,)."""
        ends, status = np.empty(len(number), dtype=np.int64), np.empty(len(number), dtype=np.int8)
        ended(number, ends, status)
        return cls(data, rows, ends, status, decode)

    @classmethod
    def declined(cls, data: Bytes, n: int, decode: Callable[[int], object]) -> Logs:
        """Return the logs of n records none of which was scanned."""
        rows, ends = np.empty((0, COLUMNS), dtype=np.int64), np.zeros(n, dtype=np.int64)
        return cls(data, rows, ends, np.full(n, DECLINED, dtype=np.int8), decode)


class Format(Protocol):
    """How records are encoded."""

    def scan(self, data: Bytes, values: Longs, plain: Bools | None = None) -> Logs:
        """Log the wanted fields of records.

        Args:
            data: uint8 (b,).
            values: int64 (n, 2), start and stop of each; a negative start: it has no value.
            plain: bool (n,), the others are declined unseen; None: all are looked at.
        """
