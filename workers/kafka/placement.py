"""Partition of a record key under the two most common producer partitioners.

`privacy.unit = "user"` requires a user's records in one source partition; every record is checked.

    murmur2   Java, Faust, aiokafka, kafka-python: (murmur2(key) & 0x7fffffff) mod partitions
    crc32     librdkafka's default ("consistent_random"): crc32(key) mod partitions

Keys are data[start:stop], which lies within `data`: the parser of records has checked that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_part
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Bytes, Longs
from workers.runtime.frozen import read_only

# murmur2's multiplier, and Kafka's seed for it.
_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


MURMUR2 = "murmur2"
CRC32 = "crc32"
PARTITIONERS = (MURMUR2, CRC32)


def _crc_table() -> NDArray[np.uint32]:
    """Return the CRC-32 of every byte, uint32 (256,), computed bit by bit."""
    table: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ (table & np.uint32(1)) * np.uint32(0xEDB88320)
    return table


_TABLE = read_only(_crc_table())


@kernel_part
def murmur2(data: Bytes, start: int, stop: int) -> np.int64:
    """Return murmur2 of data[start:stop] as in Kafka's Java client, without the sign bit.

    `h` is the hash so far, `k` the next four bytes; 24, 13 and 15 are murmur2's own shifts.
    """
    length = stop - start
    h = _SEED ^ np.uint32(length)
    position = start
    while stop - position >= 4:
        # The lowest byte comes first.
        k = np.uint32(0)
        for i in range(4):
            k |= np.uint32(data[position + i]) << np.uint32(8 * i)
        k = np.uint32(k * _M)
        k = np.uint32((k ^ k >> np.uint32(24)) * _M)
        h = np.uint32(h * _M) ^ k
        position += 4
    # The remaining one to three bytes are the low bytes of a number.
    if position < stop:
        for i in range(stop - position - 1, -1, -1):
            h ^= np.uint32(data[position + i]) << np.uint32(8 * i)
        h = np.uint32(h * _M)
    h = np.uint32((h ^ h >> np.uint32(13)) * _M)
    h ^= h >> np.uint32(15)
    return np.int64(h & np.uint32(0x7FFFFFFF))


@kernel_part
def crc32(data: Bytes, start: int, stop: int, table: NDArray[np.uint32]) -> np.int64:
    """Return the CRC-32 of data[start:stop], as in zlib; `table` has that of every byte."""
    crc = np.uint32(0xFFFFFFFF)
    for i in range(start, stop):
        crc = table[(crc ^ np.uint32(data[i])) & np.uint32(255)] ^ crc >> np.uint32(8)
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


@kernel
def hash_partitions(
    data: Bytes,
    places: Longs,
    by_murmur2: bool,
    table: NDArray[np.uint32],
    partitions: int,
    out: Longs,
) -> None:
    """Write the partition of each key to `out`, int64 (n,): murmur2 or CRC-32, mod `partitions`.

    `places`, int64 (n, 2), has their starts and stops in `data`; `table` is for `crc32`.
    """
    for i in range(len(places)):
        start = places[i, 0]
        stop = places[i, 1]
        hashed = (
            murmur2(data, start, stop)
            if by_murmur2
            else crc32(data, start, stop, table)
        )
        out[i] = hashed % partitions


def partitions_of(
    data: Bytes, places: Longs, partitions: int, partitioner: str = MURMUR2
) -> Longs:
    """Return each user's partition, int64 (n,), of so many `partitions`.

    `places`, int64 (n, 2), has the starts and stops of the users, as texts, in `data`.
    """
    found = np.empty(len(places), dtype=np.int64)
    data = readonly_contiguous(data)
    places = readonly_contiguous(places)
    hash_partitions(data, places, partitioner == MURMUR2, _TABLE, partitions, found)
    return found


@dataclass(frozen=True)
class Placement:
    """Checks that users' records are in the partition where `partitioner` places those users.

    Record keys are users in UTF-8. The topic may have grown, so `placements` has event times (ms),
    ascending, each with the number of partitions from then on; the first number holds for all
    earlier times, too.
    """

    partitioner: str
    partition: int
    placements: Sequence[tuple[int, int]]

    def belongs(self, data: Bytes, places: Longs, times: Longs) -> Bools:
        """Return for each event whether its user belongs in this partition, bool (n,).

        `places`, int64 (n, 2), has the starts and stops of the users in `data`; `times`, int64
        (n,), are the events' in ms, which decide how many partitions the topic had.
        """
        (_, first), *later = self.placements
        found = partitions_of(data, places, first, self.partitioner)
        # For each event, the last number that holds at its time counts.
        for from_ms, partitions in later:
            moved = np.flatnonzero(times >= from_ms)
            if len(moved):
                found[moved] = partitions_of(
                    data, places[moved], partitions, self.partitioner
                )
        return np.equal(found, self.partition)
