"""The hashes by which producers choose partitions: murmur2 (Java) and crc32 (librdkafka)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel, kernel_part

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


def crc32_table() -> NDArray[np.uint32]:
    """Return uint32 (256,): the CRC-32 of each byte, as zlib has it."""
    table = np.zeros(256, dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        table[byte] = crc
    return table


@kernel_part
def murmur2(data: Bytes, start: int, stop: int) -> np.int64:
    """Return murmur2 of data[start:stop] as Kafka's Java client has it, without the sign bit."""
    length = stop - start
    h = _SEED ^ np.uint32(length)
    at = start
    while stop - at >= 4:
        k = (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        k = np.uint32(k * _M)
        k = np.uint32((k ^ k >> np.uint32(24)) * _M)
        h = np.uint32(h * _M) ^ k
        at += 4
    if at < stop:
        for i in range(stop - at - 1, -1, -1):
            h ^= np.uint32(data[at + i]) << np.uint32(8 * i)
        h = np.uint32(h * _M)
    h = np.uint32((h ^ h >> np.uint32(13)) * _M)
    h ^= h >> np.uint32(15)
    return np.int64(h & np.uint32(0x7FFFFFFF))


@kernel_part
def crc32(data: Bytes, start: int, stop: int, table: NDArray[np.uint32]) -> np.int64:
    """Return the CRC-32 of data[start:stop], with `crc32_table`."""
    crc = np.uint32(0xFFFFFFFF)
    for at in range(start, stop):
        crc = table[(crc ^ np.uint32(data[at])) & np.uint32(255)] ^ crc >> np.uint32(8)
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


@kernel
def places_of(data: Bytes, places: Longs, partitions: int, out: Longs) -> None:
    """Write the partition of each text by murmur2.

    Args:
        data: uint8.
        places: int64 (n, 2), start and stop of each text in `data`.
        partitions: how many there are.
        out: int64 (n,), written.
    """
    for i in range(len(places)):
        out[i] = murmur2(data, places[i, 0], places[i, 1]) % partitions


@kernel
def placed(
    data: Bytes, places: Longs, by_murmur2: bool, table: NDArray[np.uint32], partition: int, partitions: int, out: NDArray[np.bool_]
) -> None:
    """Write which texts belong in a partition.

    Args:
        data: uint8.
        places: int64 (n, 2), start and stop of each text in `data`.
        by_murmur2: else by crc32.
        table: of crc32.
        partition, partitions: the one in question, of how many.
        out: bool (n,), written.
    """
    for i in range(len(places)):
        start, stop = places[i, 0], places[i, 1]
        hashed = murmur2(data, start, stop) if by_murmur2 else crc32(data, start, stop, table)
        out[i] = hashed % partitions == partition
