"""The benchmarks' events in three forms: what other libraries read of them is what was drawn, the same in all."""

import io
import json
from typing import Any

import fastavro
import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from google.protobuf import json_format, message_factory

from bench.throughput import encoded
from bench.throughput.encoded import (
    AVRO_SCHEMA,
    FORMS,
    PROTOBUF_SCHEMA,
    Encoder,
    put_encoded,
)
from bench.throughput.events import RECORD_BYTES_MAX, Events, Shape
from bench.throughput.formats import expected, histograms
from bench.throughput.producing import batches, blocks
from tests.arrays.uncompiled import WAYS
from workers.events.formats.protobuf import ProtobufSchema
from workers.events.schemas import Schema

NUMBER = 3_000
END_MS = 1_767_225_600_000
SCHEMA_ID = 70_001
AVRO = fastavro.parse_schema(json.loads(AVRO_SCHEMA))
PROTOBUF = ProtobufSchema(Schema("PROTOBUF", PROTOBUF_SCHEMA))
ORDER = message_factory.GetMessageClass(PROTOBUF.message([0]))


def decoded(form: str, value: bytes) -> dict[str, Any]:
    if form == "json":
        fields: dict[str, Any] = json.loads(value)
        return fields
    assert value[:5] == b"\0" + SCHEMA_ID.to_bytes(4, "big")
    if form == "avro":
        stream = io.BytesIO(value[5:])
        record = fastavro.schemaless_reader(stream, AVRO, AVRO)
        assert isinstance(record, dict) and not stream.read()
        return record
    assert value[5] == 0
    message = ORDER.FromString(value[6:])
    fields = json_format.MessageToDict(
        message, always_print_fields_with_no_presence=True
    )
    return fields | {"ts": int(fields["ts"])}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_is_what_was_drawn(form: str) -> None:
    read = 0
    for drawn, times in blocks(Shape(), 2, NUMBER, END_MS, 100):
        for partition, data in batches(
            drawn, times, 2, Encoder(form, SCHEMA_ID)
        ).items():
            rows = np.flatnonzero(drawn.partitions == partition).tolist()
            for i, record in zip(rows, DefaultRecordBatch(data), strict=True):
                one, other = drawn.items[i].tolist()
                key = f"shop-{drawn.keys[i]}"
                items = [f"product-{one}", f"product-{other}"]
                about = {"country": f"country-{one % 40}", "kind": f"kind-{other % 3}"}
                event = {"key": key, "items": items, "ts": times[i], **about}
                assert decoded(form, record.value) == event | {
                    "price": (7 * one + other) % 500
                }
                assert record.timestamp == times[i] and record.key is None
                read += 1
    assert read == NUMBER


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_records_are_the_same_uncompiled(form: str) -> None:
    drawn = Events(Shape(), 1).draw(100)
    times = END_MS + 7 * np.arange(100)
    columns = (encoded.countries, encoded.kinds, encoded.prices)
    further = np.stack([make(drawn.items) for make in columns], axis=1)
    head = np.frombuffer(b"\0\0\0\0\7", dtype=np.uint8)
    written = []
    for way in WAYS:
        out = np.zeros(RECORD_BYTES_MAX * 100, dtype=np.uint8)
        event = drawn.keys, drawn.items, times, further
        end = way(put_encoded)(out, FORMS.index(form), head, *event)
        written.append(out[:end].tobytes())
    assert written[0] == written[1]


@pytest.mark.slow
def test_the_sums_that_runs_are_held_to_are_those_of_the_events() -> None:
    totals = [0] * 5
    for drawn, _ in blocks(Shape(), 2, NUMBER, END_MS, 100):
        for one, other in drawn.items.tolist():
            price = (7 * one + other) % 500
            for number, seen in enumerate(
                (2, 1, 2 * (other % 3 == 1), 1, price >= 250)
            ):
                totals[number] += seen
    assert expected(Shape(), NUMBER) == tuple(totals)
    kind = {"field": "kind", "in": ["kind-1"]}
    price = {"field": "price", "min": 250}
    assert [one.get("where") for one in histograms()] == [
        None,
        None,
        [kind],
        None,
        [price],
    ]
