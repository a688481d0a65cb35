"""Record batches as Kafka sends them (message format 2): where each record's key and value lie.

    batch     61 bytes of header, then records end to end, compressed together
    record    length, attributes, time delta, offset delta, key length, key, value length, value,
              number of headers, headers; lengths and deltas are zigzag varints, -1 is null

Source: Kafka's protocol guide, "Record Batch". aiokafka's reader is the oracle of the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel, kernel_part, part_reads_outside, reads_outside

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

# The reversed polynomial of CRC-32C (Castagnoli).
POLYNOMIAL = 0x82F63B78
# Columns of the batches of `read_batches`.
START, STOP, BASE_OFFSET, BASE_MS, APPEND_MS, NUMBER = range(6)
# What `place` says to `read_batches`, and it to the next call.
BATCH, FOUND, AT, LAST_OFFSET, ROWS = range(5)
# A varint of 64 bits has at most ten bytes.
_VARINT_BITS = 70


def crc_tables() -> NDArray[np.uint32]:
    """Return uint32 (8, 256): the CRC-32C of each byte, followed by 0 to 7 bytes of zero."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for zeros in range(1, 8):
        before = tables[zeros - 1]
        tables[zeros] = tables[0][before & 255] ^ before >> 8
    return tables


@kernel_part
def crc32c(data: Bytes, start: int, stop: int, tables: NDArray[np.uint32]) -> np.int64:
    """Return the CRC-32C of data[start:stop].

    Eight bytes at a time: 1.6 GB/s, one at a time 0.4.
    """
    crc = np.uint32(0xFFFFFFFF)
    whole = stop - (stop - start) % 8
    for at in range(start, whole, 8):
        crc = (
            tables[7, data[at] ^ (crc & np.uint32(255))]
            ^ tables[6, data[at + 1] ^ (crc >> np.uint32(8) & np.uint32(255))]
            ^ tables[5, data[at + 2] ^ (crc >> np.uint32(16) & np.uint32(255))]
            ^ tables[4, data[at + 3] ^ crc >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
    for at in range(whole, stop):
        crc = tables[0, data[at] ^ (crc & np.uint32(255))] ^ crc >> np.uint32(8)
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


@kernel
def first_damaged(data: Bytes, places: Longs, crcs: Longs, tables: NDArray[np.uint32]) -> int:
    """Return which part of `data` is the first whose CRC-32C is another; their number: none is.

    Args:
        data: uint8 (n,).
        places: int64 (m, 2), start and stop of each part, within the data.
        crcs: int64 (m,), what the CRC-32C of each should be.
        tables: uint32 (8, 256), from `crc_tables`.
    """
    for part in range(len(places)):
        if crc32c(data, places[part, 0], places[part, 1], tables) != crcs[part]:
            return part
    return len(places)


@part_reads_outside
def varint(data: Bytes, at: int) -> tuple[Any, int]:
    """Return the zigzag number at a place, and the place behind it, -1 where it is longer than 64
    bits.
    """
    bits = np.uint64(0)
    for shift in range(0, _VARINT_BITS, 7):
        byte = np.uint64(data[at])
        at += 1
        bits |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < np.uint64(128):
            half = np.int64(bits >> np.uint64(1))
            return (~half if bits & np.uint64(1) else half), at
    return 0, -1


@part_reads_outside
def _past_headers(data: Bytes, at: int, end: int) -> int:
    """Return the place behind a record's headers, -1 where they are none."""
    number, at = varint(data, at)
    if at < 0 or number < 0:
        return -1
    for _ in range(number):
        for part in range(2):
            length, at = varint(data, at)
            if at < 0 or at > end or length > end - at or (part == 0 and length < 0):
                return -1
            at += max(length, 0)
    return at


@part_reads_outside
def _read_records(
    data: Bytes,
    batch: Longs,
    at: int,
    last: int,
    first: int,
    end_row: int,
    keys: Longs,
    values: Longs,
    times: Longs,
    offsets: Longs,
) -> tuple[int, int]:
    """Find the records of one batch from place `at` on and write rows first..end_row-1; return the
    row and the place of the first that is no whole record, or is not behind offset `last` and those
    before it; end_row where all are.
    """
    stop, base_offset = batch[STOP], batch[BASE_OFFSET]
    base_ms, append_ms = batch[BASE_MS], batch[APPEND_MS]
    for i in range(first, end_row):
        start = at
        length, at = varint(data, at)
        end = at + length
        if at < 0 or at > stop or length < 1 or end > stop:
            return i, start
        delta_ms, at = varint(data, at + 1)
        if at < 0:
            return i, start
        delta, at = varint(data, at)
        offset = base_offset + delta
        if at < 0 or offset <= last:
            return i, start
        last = offset
        times[i] = append_ms if append_ms >= 0 else base_ms + delta_ms
        offsets[i] = offset
        for place in (keys, values):
            length, at = varint(data, at)
            if at < 0 or length > end - at:
                return i, start
            if length < 0:
                place[i, 0] = place[i, 1] = -1
            else:
                place[i, 0] = at
                at += length
                place[i, 1] = at
        if at >= end:
            return i, start
        at = _past_headers(data, at, end)
        if at != end:
            return i, start
    return end_row, at


@reads_outside
def read_batches(
    data: Bytes,
    batches: Longs,
    place: Longs,
    keys: Longs,
    values: Longs,
    times: Longs,
    offsets: Longs,
) -> bool:
    """Find the next n records of some batches; return whether there was no obstacle: all n were
    found, and if they were the last, nothing follows them.

    Args:
        data: uint8, in which the records of each batch lie, uncompressed.
        batches: int64 (m, 6): where they begin and end, offset and time that their deltas add to,
            the time of all of them where the broker gives it (LogAppendTime), else -1, and how many
            the header told.
        place: int64 (5,), updated: the batch, how many of its records were found, where the next
            one begins, the last offset, and how many rows this call wrote.
        keys, values: int64 (n, 2), written: start and stop of each in `data`; start -1 for null.
        times, offsets: int64 (n,), written. Offsets must ascend.

    Raises:
        IndexError: a record leads beyond the data; no record was found.
    """
    place[ROWS] = row = 0
    last = place[LAST_OFFSET]
    for number in range(place[BATCH], len(batches)):
        batch = batches[number]
        found, at = (place[FOUND], place[AT]) if number == place[BATCH] else (0, 0)
        if found == 0:
            at = batch[START]
        end_row = min(row + batch[NUMBER] - found, len(offsets))
        stopped, at = _read_records(
            data, batch, at, last, row, end_row, keys, values, times, offsets
        )
        found += stopped - row
        if stopped > row:
            last = offsets[stopped - 1]
        row = stopped
        if row < end_row or found < batch[NUMBER] or at != batch[STOP]:
            place[BATCH], place[FOUND], place[AT] = number, found, at
            place[LAST_OFFSET], place[ROWS] = last, row
            return bool(row == end_row and found < batch[NUMBER])
    place[BATCH], place[FOUND], place[AT] = len(batches), 0, batches[len(batches) - 1, STOP]
    place[LAST_OFFSET], place[ROWS] = last, row
    return row == len(offsets)
