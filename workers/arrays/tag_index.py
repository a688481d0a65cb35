"""Index from 128-bit tags to rows, beside a growing column of tags: an open-addressing table.

    tags     uint64 (n, 2)      the tag of every row; the index's owner holds this column
    slots    uint32 (2^b,)      0 where a slot is free; else the row + 1 in the lower b bits, and
                                above them a fingerprint: as many bits of the tag as fit

A tag's own slot is the lowest b bits of its first half; it is in that one or the next that was
free. The fingerprint comes from the second half: a slot of another tag is passed over without
reading that tag, which would be a cache miss. Tags are hashes with a secret key: nobody who chooses
labels can choose where they meet, so the table needs no hash of its own.
"""

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_part
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Longs, Tags

Rows = Longs
Slots = NDArray[np.uint32]

# Tags per batch: their scratch space stays in the nearest cache.
BATCH_TAGS = 1024
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
        rows = np.empty(len(tags), dtype=np.int64)
        find_rows(self._slots, row_tags, readonly_contiguous(tags), rows)
        return rows

    def add(
        self, totals: Longs, row_tags: Tags, tags: Tags, counts: Longs
    ) -> tuple[Rows, int]:
        """Add counts (n,) to the totals of their tags' rows.

        `totals` and `row_tags` are by row, `tags` (n, 2). Return the row of every tag, -1 where
        absent, and how many are absent.
        """
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
        self.reserve(n, row_tags)
        enter_rows(self._slots, row_tags, self._used, n)
        self._used = n

    def reserve(self, n: int, row_tags: Tags) -> None:
        """Make room for n rows; raise OverflowError if a slot cannot hold such a row number.

        The table is doubled until it is at most three quarters full, and filled again.
        """
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


@kernel_part
def row_of(slots: Slots, row_tags: Tags, first: np.uint64, second: np.uint64) -> int:
    """Return the row of the tag (first, second), -1 if absent."""
    mask = np.int64(len(slots) - 1)
    fingerprint = np.int64(second >> np.uint64(32)) & ~mask
    slot = np.int64(first & np.uint64(mask))
    while slots[slot]:
        entry = np.int64(slots[slot])
        if entry & ~mask == fingerprint:
            row = int(entry & mask) - 1
            if row_tags[row, 0] == first and row_tags[row, 1] == second:
                return row
        slot = (slot + 1) & mask
    return -1


@kernel
def find_rows(slots: Slots, row_tags: Tags, tags: Tags, rows: Rows) -> None:
    """Write the row of each of m tags, -1 where absent."""
    for i in range(len(tags)):
        rows[i] = row_of(slots, row_tags, tags[i, 0], tags[i, 1])


@kernel
def add_to_rows(
    slots: Slots,
    row_tags: Tags,
    totals: Longs,
    tags: Tags,
    counts: Longs,
    rows: Rows,
    collided: Longs,
) -> int:
    """Add counts to the totals of m tags' rows; return the number of tags without a row.

    Writes `rows` (m,), -1 where absent. `collided` is scratch for `BATCH_TAGS` numbers.
    """
    mask = np.int64(len(slots) - 1)
    unknown = 0
    # Each access to the table, the tags and the totals is a cache miss. Separate loops have many
    # under way at once. Which tags are not in their own slot is unpredictable, so they are
    # noted without a branch and looked up afterwards: a fifth less time.
    for begin in range(0, len(tags), BATCH_TAGS):
        stop = min(begin + BATCH_TAGS, len(tags))
        # `rows` has what each tag's own slot holds, and only then the row in it: -1 if it is free.
        for i in range(begin, stop):
            rows[i] = np.int64(slots[np.int64(tags[i, 0] & np.uint64(mask))])
        collisions = 0
        for i in range(begin, stop):
            entry = rows[i]
            fingerprint = np.int64(tags[i, 1] >> np.uint64(32)) & ~mask
            # Overwritten by the next one unless this is a collision.
            collided[collisions] = i
            collisions += (entry != 0) & (entry & ~mask != fingerprint)
            rows[i] = (entry & mask) - 1
        for k in range(collisions):
            i = collided[k]
            slot = (np.int64(tags[i, 0] & np.uint64(mask)) + 1) & mask
            fingerprint = np.int64(tags[i, 1] >> np.uint64(32)) & ~mask
            entry = np.int64(slots[slot])
            while entry and entry & ~mask != fingerprint:
                slot = (slot + 1) & mask
                entry = np.int64(slots[slot])
            rows[i] = (entry & mask) - 1
        for i in range(begin, stop):
            row = rows[i]
            if row >= 0 and (
                row_tags[row, 0] != tags[i, 0] or row_tags[row, 1] != tags[i, 1]
            ):
                # Another tag with the same fingerprint: one of millions, or billions.
                rows[i] = row_of(slots, row_tags, tags[i, 0], tags[i, 1])
        for i in range(begin, stop):
            if rows[i] < 0:
                unknown += 1
            else:
                totals[rows[i]] += counts[i]
    return unknown


@kernel
def enter_rows(slots: Slots, row_tags: Tags, first: int, stop: int) -> None:
    """Enter rows first..stop-1; their tags must be new and distinct, and fit the table."""
    mask = np.int64(len(slots) - 1)
    for row in range(first, stop):
        slot = np.int64(row_tags[row, 0] & np.uint64(mask))
        while slots[slot]:
            slot = (slot + 1) & mask
        fingerprint = np.int64(row_tags[row, 1] >> np.uint64(32)) & ~mask
        slots[slot] = np.uint32(fingerprint | (row + 1))
