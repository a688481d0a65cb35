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
from types import MappingProxyType

from aiokafka.partitioner import murmur2

USERS_HELD = 100_000
PARTITIONERS: Mapping[str, Callable[[bytes], int]] = MappingProxyType(
    {"murmur2": lambda key: int(murmur2(key)) & 0x7FFFFFFF, "crc32": zlib.crc32}
)


class Placement:
    """Tells whether a user's records belong in the partition that is read."""

    def __init__(self, partitioner: str, partition: int, partitions: int) -> None:
        """Take one of `PARTITIONERS`, the partition that is read, and how many the topic has."""
        self._hash = PARTITIONERS[partitioner]
        self._partition, self._partitions = partition, partitions
        self._known: dict[str, bool] = {}

    def __call__(self, user: str) -> bool:
        found = self._known.get(user)
        if found is None:
            if len(self._known) >= USERS_HELD:
                self._known.clear()
            found = self._known[user] = self._hash(user.encode()) % self._partitions == self._partition
        return found
