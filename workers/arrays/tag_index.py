"""Index from tags to rows, beside a growing column of tags.

It holds only row numbers and a part of every tag; its owner holds the column of tags.
`workers/arrays/tag_table.py` explains the slot format, and why tags need no further hash.
"""

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Longs, Words

Rows = Longs
Tags = Words

_FIRST_SLOTS = 2048
# A slot holds a row's number in 32 bits.
_SLOTS_MAX = 1 << 32


class TagIndex:
    """Tag -> row. At most three quarters full, 4 bytes a slot: 5 to 11 bytes a row."""

    def __init__(self) -> None:
        self._slots: NDArray[np.uint32] = np.zeros(_FIRST_SLOTS, dtype=np.uint32)
        self._used = 0

    def find(self, tags: Tags, row_tags: Tags) -> Rows:
        """Return the rows of `tags` (n, 2), -1 where absent; `row_tags` has every row's tag."""
        from workers.arrays.tag_table import find_rows

        rows = np.empty(len(tags), dtype=np.int64)
        find_rows(self._slots, row_tags, readonly_contiguous(tags), rows)
        return rows

    def add(
        self, totals: Longs, row_tags: Tags, tags: Tags, counts: Longs
    ) -> tuple[Rows, int]:
        """Add counts (n,) to totals of rows as in `find`; return these, and how many are -1."""
        from workers.arrays.tag_table import BATCH_TAGS, add_to_rows

        if len(counts) != len(tags):
            raise ValueError(f"counts: {len(counts)} of {len(tags)} tags")
        rows = np.empty(len(tags), dtype=np.int64)
        scratch = np.empty(BATCH_TAGS, dtype=np.int64)
        tags = readonly_contiguous(tags)
        counts = readonly_contiguous(counts)
        return rows, add_to_rows(
            self._slots, row_tags, totals, tags, counts, rows, scratch
        )

    def enter(self, n: int, row_tags: Tags) -> None:
        """Enter all rows up to n - 1 not yet in the index; their tags must be new and distinct."""
        from workers.arrays.tag_table import enter_rows

        self.reserve(n, row_tags)
        enter_rows(self._slots, row_tags, self._used, n)
        self._used = n

    def reserve(self, n: int, row_tags: Tags) -> None:
        """Make room for n rows; raise OverflowError if a slot cannot hold such a row number."""
        from workers.arrays.tag_table import enter_rows

        slots = len(self._slots)
        while 4 * n > 3 * slots:
            slots *= 2
        if slots > _SLOTS_MAX:
            raise OverflowError(
                f"{n:,} rows: an index holds at most {3 * _SLOTS_MAX // 4:,}"
            )
        if slots > len(self._slots):
            self._slots = np.zeros(slots, dtype=np.uint32)
            enter_rows(self._slots, row_tags, 0, self._used)

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes
