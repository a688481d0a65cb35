"""What every format of events is: a compiled scanner of plain records, and a decoder of any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Flags = NDArray[np.int8]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, repr=False)
class Logs:
    """What a scanner found of a batch.

    Attributes:
        data: uint8, the bytes of the records, and behind them what the scanner adds.
        rows: int64 (m, 4), the logs of the records end to end; see `kernels.log`.
        ends: int64 (n,), where each record's end.
        status: int8 (n,), DECLINED where the scanner does not read a record.
    """

    data: Bytes
    rows: Longs
    ends: Longs
    status: Flags


class Format(Protocol):
    """How records are encoded; all threads of a worker share it."""

    def scan(self, data: Bytes, values: Longs) -> Logs:
        """Log the wanted fields of records.

        Args:
            data: uint8 (b,).
            values: int64 (n, 2), start and stop of each; a negative start is declined.
        """

    def decode(self, value: bytes) -> object:
        """Return a record as plain objects; raises ValueError with a reason."""

    def whole(self, value: bytes) -> object:
        """Return what `decode` does, with every field that the record has."""
