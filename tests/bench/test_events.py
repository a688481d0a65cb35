"""The benchmarks' events: record batches that Kafka's clients read, with what was drawn in them."""

import json

import numpy as np
import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record.default_records import DefaultRecordBatch

from bench.throughput import events
from bench.throughput.events import RECORD_BYTES_MAX, Events, Shape
from bench.throughput.producing import batches, blocks
from tests.arrays.uncompiled import WAYS

PARTITIONS = 4
NUMBER = 30_000
END_MS = 1_767_225_600_000
SHAPES = (
    Shape(),
    Shape(domain=3, users=1_000),
    Shape(domain=2 * NUMBER, in_turn=True, keys=1),
)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_record_batches_hold_what_was_drawn(shape: Shape) -> None:
    seen = 0
    last = 0
    for drawn, times in blocks(shape, PARTITIONS, NUMBER, END_MS, 1_000):
        for partition, data in batches(drawn, times, PARTITIONS).items():
            batch = DefaultRecordBatch(data)
            assert batch.validate_crc()
            rows = np.flatnonzero(drawn.partitions == partition).tolist()
            for i, record in zip(rows, batch, strict=True):
                event = json.loads(record.value)
                users = {"user": f"user-{drawn.users[i]}"} if shape.users else {}
                items = [f"product-{item}" for item in drawn.items[i]]
                key = f"shop-{drawn.keys[i]}"
                assert event == {"key": key, "items": items, "ts": times[i], **users}
                assert record.timestamp == times[i] and items[0] != items[1]
                assert record.key == (event["user"].encode() if shape.users else None)
                if shape.users:
                    assert (murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS == partition
            seen += len(rows)
        last = int(times[-1])
    assert (seen, last) == (NUMBER, END_MS)


def test_items_in_turn_occur_once() -> None:
    drawn = Events(Shape(domain=2 * NUMBER, in_turn=True), 1).draw(NUMBER)
    assert np.array_equal(np.sort(drawn.items.ravel()), np.arange(2 * NUMBER))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_records_are_the_same_uncompiled(shape: Shape) -> None:
    drawn = Events(shape, 1).draw(200)
    times = END_MS + 7 * np.arange(200)
    written = []
    for way in WAYS:
        out = np.zeros(RECORD_BYTES_MAX * 200, dtype=np.uint8)
        end = way(events.put_records)(out, drawn.keys, drawn.items, times, drawn.users)
        written.append(out[:end].tobytes())
    assert written[0] == written[1]
