"""Which partition a record key belongs in, by the two partitioners that nearly all producers use.

What: a promise to users (`privacy.unit = "user"`) needs all records of a user in one source
partition. That is checked, record by record, by computing the user's partition.

    murmur2   Java's default, and that of Faust, aiokafka, kafka-python: (murmur2(key) & 0x7fffffff)
              mod partitions
    crc32     librdkafka's default ("consistent_random"): crc32(key) mod partitions
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from aiokafka.partitioner import murmur2

USERS_HELD = 100_000
PARTITIONERS: Mapping[str, Callable[[bytes], int]] = MappingProxyType(
    {"murmur2": lambda key: int(murmur2(key)) & 0x7FFFFFFF, "crc32": zlib.crc32}
)


def placement(partitioner: str, partition: int, partitions: int) -> Callable[[str], bool]:
    """Return a test of whether a user's records belong in one of a topic's partitions."""
    place = PARTITIONERS[partitioner]
    return lru_cache(USERS_HELD)(lambda user: place(user.encode()) % partitions == partition)
