"""What MetaAlgo remembers of each level: open cells' exact counts, released cells' noisy ones.

    open[j]     int64 (n,)   exact counts of the open cell of level j, less those of open cells of
                             lower levels; j = 1..L-1 (sensitive)
    sums[j]     int64 (n,)   sum of the noisy counts of the released cells of level j that the
                             present digits name; j = 0..L-1
    has[j]      bool  (n,)   whether a cell of those showed the item

Stored in blocks of rows, "mo<level>/<block>" and "mn<level>/<block>", each written only when
changed: a version byte, the number of rows (uint16), then the counts little-endian and, for noisy
ones, the flags; no rows where all are 0.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.errors import StateRefused
from workers.mechanisms.ledger import Rows, grown
from workers.mechanisms.mechanism import State

BLOCK_ROWS = 4096
# 2: says how many rows it has, so that one that lost some is seen.
_VERSION = 2
_HEAD = struct.Struct("<BH")
_COUNT = np.dtype("<i8")


class MetaState(State):
    """See the module. Sensitive: its repr shows no counts."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self._open = [np.zeros(0, dtype=np.int64) for _ in range(levels)]
        self._sums = [np.zeros(0, dtype=np.int64) for _ in range(levels)]
        self._has = [np.zeros(0, dtype=np.bool_) for _ in range(levels)]
        self._dirty: set[tuple[str, int, int]] = set()

    def __repr__(self) -> str:
        return f"MetaState({self.ledger.n} rows, {len(self._sums)} levels)"

    @property
    def nbytes(self) -> int:
        """Return the bytes held beside the ledger."""
        return sum(column.nbytes for kind in (self._open, self._sums, self._has) for column in kind)

    def grow(self) -> None:
        """Make room for every row of the ledger."""
        n = self.ledger.n
        self._open = [grown(column, n) for column in self._open]
        self._sums = [grown(column, n) for column in self._sums]
        self._has = [grown(column, n) for column in self._has]

    def add_open(self, level: int, counts: NDArray[np.int64]) -> None:
        """Add exact counts of every row to the open cell of a level."""
        rows = np.flatnonzero(counts)
        self._open[level][rows] += counts[rows]
        self._mark("o", level, rows)

    def close(self, level: int) -> NDArray[np.int64]:
        """Return the exact counts of a cell that is complete; its successor is empty."""
        n = self.ledger.n
        counts = self._open[level][:n].copy()
        self._open[level][:n] = 0
        self._mark("o", level, np.flatnonzero(counts))
        return counts

    def add_noisy(self, level: int, rows: Rows, counts: NDArray[np.int64]) -> None:
        """Add what a cell of a level showed."""
        n = self.ledger.n
        shown = slice(n) if len(rows) == n else rows  # all of them: a third of the time
        self._sums[level][shown] += counts
        self._has[level][shown] = True
        self._mark("n", level, rows)

    def forget(self, level: int) -> None:
        """Forget what a level showed: its present digit has become 0."""
        self._mark("n", level, np.flatnonzero(self._has[level]))
        self._sums[level][:] = 0
        self._has[level][:] = False

    def shown(self) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows that a cell of the present digits showed, with their noisy sums."""
        n = self.ledger.n
        has = np.zeros(n, dtype=np.bool_)
        total = np.zeros(n, dtype=np.int64)
        for sums, flags in zip(self._sums, self._has, strict=True):
            if flags[:n].any():
                has |= flags[:n]
                total += sums[:n]
        rows = np.flatnonzero(has)
        return rows, total[rows]

    def changed(self) -> Sequence[tuple[str, bytes]]:
        found = []
        for kind, level, block in sorted(self._dirty):
            rows = slice(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, self.ledger.n))
            counts = (self._open if kind == "o" else self._sums)[level][rows]
            flags = self._has[level][rows] if kind == "n" else np.zeros(0, dtype=np.bool_)
            if not counts.any() and not flags.any():
                counts, flags = counts[:0], flags[:0]
            body = counts.astype(_COUNT).tobytes() + flags.tobytes()
            found.append((f"m{kind}{level:02x}/{block:08x}", _HEAD.pack(_VERSION, len(counts)) + body))
        self._dirty = set()
        return found

    def restore(self, name: str, block: bytes) -> None:
        if name[:2] not in ("mo", "mn") or len(name) != 13 or name[4] != "/":
            super().restore(name, block)
        level, start = int(name[2:4], 16), int(name[5:], 16) * BLOCK_ROWS
        noisy = name[1] == "n"
        self.grow()
        version, rows = _HEAD.unpack_from(block) if len(block) >= _HEAD.size else (None, 0)
        body = block[_HEAD.size :]
        whole = version == _VERSION and len(body) == rows * (_COUNT.itemsize + noisy)
        if not whole or level >= len(self._sums) or start + rows > self.ledger.n:
            raise StateRefused(f"stored state: block {name!r} is damaged or of another version")
        counts = np.frombuffer(body, dtype=_COUNT, count=rows)
        (self._sums if noisy else self._open)[level][start : start + rows] = counts
        if noisy:
            self._has[level][start : start + rows] = np.frombuffer(body[rows * 8 :], dtype=np.bool_)

    def _mark(self, kind: str, level: int, rows: Rows) -> None:
        # np.unique takes ten times as long (measured).
        blocks = np.zeros(-(-self.ledger.n // BLOCK_ROWS), dtype=np.bool_)
        blocks[rows // BLOCK_ROWS] = True
        self._dirty.update((kind, level, block) for block in np.flatnonzero(blocks).tolist())
