"""Which partition a record key belongs in, by the two partitioners that nearly all producers use.

What: a promise to users (`privacy.unit = "user"`) needs all records of a user in one source
partition. That is checked, record by record, by computing the user's partition.

    murmur2   Java's default, and that of Faust, aiokafka, kafka-python: (murmur2(key) & 0x7fffffff)
              mod partitions
    crc32     librdkafka's default ("consistent_random"): crc32(key) mod partitions
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.placement import crc32_table, placed, places_of
from workers.mechanisms.frozen import read_only
from workers.mechanisms.texts import fixed

MURMUR2, CRC32 = "murmur2", "crc32"
PARTITIONERS = (MURMUR2, CRC32)
_TABLE = read_only(crc32_table())


class Placement:
    """Tells which users' records belong in the partition that is read."""

    def __init__(self, partitioner: str, partition: int, partitions: int) -> None:
        """
        Args:
            partitioner: one of `PARTITIONERS`; the record key is the user's UTF-8.
            partition: the one that is read.
            partitions: of the topic.
        """
        self._by_murmur2 = partitioner == MURMUR2
        self._partition, self._partitions = partition, partitions

    def here(self, data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which users belong here, bool (n,).

        Args:
            data: uint8.
            places: int64 (n, 2), start and stop of each user's text in `data`.
        """
        found = np.empty(len(places), dtype=np.bool_)
        placed(fixed(data), fixed(places), self._by_murmur2, _TABLE, self._partition, self._partitions, found)
        return found


def partitions_of(data: NDArray[np.uint8], places: NDArray[np.int64], partitions: int) -> NDArray[np.int64]:
    """Return the partition of each user by murmur2, int64 (n,).

    Args:
        data: uint8.
        places: int64 (n, 2), start and stop of each user's text in `data`.
        partitions: of the topic.
    """
    found = np.empty(len(places), dtype=np.int64)
    places_of(fixed(data), fixed(places), partitions, found)
    return found
