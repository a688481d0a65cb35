"""Positions of fetched records agree with aiokafka, compiled or not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from tests.arrays.uncompiled import plain_python
from workers.arrays.texts import readonly_contiguous
from workers.kafka import records

HEADER = 61
WAYS = (vars(records), plain_python((records,))[records])


def batch(base: int, count: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i in range(count):
        key = (None, b"", b"k%d" % i)[i % 3]
        value = (b"value" * (i * 40), None, b"")[i % 4 % 3]
        builder.append(
            i, base + 7 * i, key, value, [("name", b"x" * i), ("none", None)][: i % 3]
        )
    made = bytearray(builder.build())
    made[:8] = base.to_bytes(8)
    return bytes(made)


def found(
    way: dict[str, Any],
    data: bytes,
    rows: Sequence[tuple[int, ...]],
    at_once: int = 1_000,
) -> tuple[int, list[tuple[Any, ...]]]:
    """Return the bad batch, and all records (offset, time, key, value), found `at_once` at a time."""
    left = sum(row[records.RECORD_COUNT] for row in rows)
    place = np.array([0, 0, 0, -1, 0])
    all_found: list[tuple[Any, ...]] = []

    def texts(places: Any) -> list[bytes | None]:
        return [
            None if start < 0 else data[start:stop] for start, stop in places.tolist()
        ]

    while left:
        n = min(left, at_once)
        keys = np.full((n, 2), -9)
        values = np.full((n, 2), -9)
        times = np.full(n, -9)
        offsets = np.full(n, -9)
        text = np.frombuffer(data, dtype=np.uint8)
        table = readonly_contiguous(np.array(rows))
        written = keys, values, times, offsets
        whole = way["read_batches"](readonly_contiguous(text), table, place, written)
        columns = offsets.tolist(), times.tolist(), texts(keys), texts(values)
        all_found += list(zip(*columns, strict=True))[: place[records.ROWS]]
        left -= n
        if not whole:
            break
    return int(place[records.BATCH]), all_found


@pytest.mark.parametrize("way", WAYS, ids=["compiled", "plain"])
def test_records_of_several_batches_are_those_that_aiokafka_reads(
    way: dict[str, Any],
) -> None:
    batches = [batch(0, 5), batch(100, 1), batch(3_000_000_000, 12)]
    wanted = []
    rows = []
    data = b""
    for base, count, made in zip(
        (0, 100, 3_000_000_000), (5, 1, 12), batches, strict=True
    ):
        rows.append((len(data) + HEADER, len(data) + len(made), base, base, -1, count))
        data += made
        wanted += [
            (r.offset, r.timestamp, r.key, r.value)
            for r in MemoryRecords(made).next_batch()
        ]
    assert found(way, data, rows) == (3, wanted)
    for at_once in (1, 2, 5, 6, 17):
        assert found(way, data, rows, at_once) == (3, wanted)
    appended = [(*row[:4], 77, row[5]) for row in rows]
    assert [row[1] for row in found(way, data, appended)[1]] == [77] * len(wanted)
    for place in range(3):
        changes = [
            (column, by)
            for column in (records.STOP, records.RECORD_COUNT)
            for by in (-1, 1)
        ]
        for column, change in (*changes, (records.START, 1)):
            other = [list(row) for row in rows]
            other[place][column] += change
            try:
                bad, _ = found(way, data, [tuple(row) for row in other])
            except IndexError:
                bad = 2
            assert bad == place


@pytest.mark.parametrize("way", WAYS, ids=["compiled", "plain"])
def test_offsets_that_do_not_ascend_are_no_records(way: dict[str, Any]) -> None:
    """Reading resumes after the last offset: other records would be counted twice, or never."""
    data = batch(0, 5) + batch(0, 5)
    half = len(data) // 2
    row = (HEADER, half, 0, 0, -1, 5)
    for base, bad in ((5, 2), (4, 1), (0, 1)):
        assert (
            found(way, data, [row, (half + HEADER, 2 * half, base, 0, -1, 5)])[0] == bad
        )
