"""Producers' own serializers and a real registry: what was sent is what is read."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema as Registered
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from tests.events.formats.walking import Said, scanned
from tests.events.registry.test_registry import Shard, in_thread, opened
from tests.kafka.harness import wait_until
from tests.registry_server import RegistryServer
from workers.events.formats.avro import AvroFormat, parse
from workers.events.formats.protobuf import ProtobufFormat, ProtobufSchema
from workers.events.formats.reader import FormatReader, Prepared, json_payloads
from workers.events.log import DECLINED
from workers.events.schemas import AlwaysOpen, Reference, Schema
from workers.events.tree import Wanted, build
from workers.kafka.records import Records

ORDER = build(
    [
        Wanted(("shop",), None, 0),
        Wanted(("lines", "sku"), 1, 1, list_slot=3),
        Wanted(("lines", "qty"), 1, 2, list_slot=3),
        Wanted(("country",), None, 4),
    ]
)
LINE = '{"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}, {"name": "qty", "type": "int"}]}'
_SHOP, _STORE = (
    f'{{"name": "{name}", "type": "string"}}' for name in ("shop", "store")
)
_LINES = '{"name": "lines", "type": {"type": "array", "items": "Line"}}'
_COUNTRY = '{"name": "country", "type": ["null", "string"], "default": null}'
# The first version; one with a field more, before the others; one whose shop is called otherwise.
ORDERS = [
    f'{{"type": "record", "name": "Order", "fields": [{", ".join(fields)}]}}'
    for fields in ((_SHOP, _LINES), (_COUNTRY, _SHOP, _LINES), (_STORE, _LINES))
]
READER = (
    '{"type": "record", "name": "Order", "fields": [{"name": "shop", "type": "string", "aliases": ["store"]},'
    '{"name": "lines", "type": {"type": "array", "items": ' + LINE + "}},"
    '{"name": "country", "type": "string", "default": "nowhere"}]}'
)
PROTO_LINE = (
    'syntax = "proto3"; package shop; message Line { string sku = 1; int32 qty = 2; }'
)
PROTO = (
    'syntax = "proto3"; package shop; import "line.proto"; message Other { int32 x = 1; }'
    "message Order { string shop = 1; repeated Line lines = 2; optional string country = 4; }"
)


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def prepared(
    reader: FormatReader, records: Records
) -> tuple[Prepared, list[Said | None]]:
    """Return what a batch is to the scanner, and what it says of each record.

    None where the scanner declines a record, or it is refused.
    """
    ready = reader.prepare(records.data, records.values)
    rows = zip(ready.numbers.tolist(), ready.payloads.tolist(), strict=True)
    return ready, [
        None
        if number < 0
        else scanned(reader.fmt, number, ready.data[start:stop].tobytes())
        for number, (start, stop) in rows
    ]


def order(n: int, country: str | None = None) -> dict[str, Any]:
    return {
        "shop": f"s{n}",
        "country": country,
        "lines": [{"sku": f"p{n}", "qty": n}, {"sku": "x", "qty": 1}],
    }


def said(n: int, country: Said | None = None) -> Said:
    lines: Said = {
        3: [("list", 2)],
        1: [("text", f"p{n}"), ("text", "x")],
        2: [("whole", n), ("whole", 1)],
    }
    return {0: [("text", f"s{n}")], **lines, **(country or {})}


def avro_serializers(registry: RegistryServer) -> list[Callable[[object], bytes]]:
    """One for each version of the schema, which refer to another one."""
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema("Line", Registered(LINE, "AVRO"))
    references = [SchemaReference("Line", "Line", 1)]
    serializers = [
        AvroSerializer(
            client, Registered(text, "AVRO", references), lambda value, _: value
        )
        for text in ORDERS
    ]
    return [partial(serializer, ctx=context("orders")) for serializer in serializers]


def test_avro_of_several_versions_in_one_batch(registry: RegistryServer) -> None:
    first, second, third = avro_serializers(registry)
    values = [
        first(order(1)),
        b"no schema id",
        second(order(2, "de")),
        second(order(3)) + b"more",
        None,
        b"",
        b"\0\0\x0f\xff\xff" + b"x",
        first(order(4))[:-3],
        third({**order(5), "store": "s5"}),
        second(order(6)),
    ]
    reader = FormatReader(AvroFormat(ORDER), opened(registry, 0.0), AlwaysOpen())
    ready, found = prepared(reader, Records.of(values))
    none = "no schema id"
    unknown = "unknown schema id"
    assert ready.refused == {1: none, 4: "no value", 5: none, 6: unknown}
    without_shop = {slot: rows for slot, rows in said(5).items() if slot != 0}
    null: Said = {4: [("null",)]}
    text: Said = {4: [("text", "de")]}
    expected = {0: said(1), 2: said(2, text), 8: without_shop, 9: said(6, null)}
    assert found == [expected.get(row) for row in range(len(values))]
    # As the reader of events gets it: what the scanner declines is decoded by its place, or refused.
    records = Records.of(values)
    every = np.ones(len(records), dtype=np.bool_)
    [logs] = reader.scan(records.data, records.values, every)
    assert logs.status.tolist() == [0 if row is not None else DECLINED for row in found]
    for row in np.flatnonzero(logs.status).tolist():
        with pytest.raises(ValueError, match=f"^{ready.refused.get(row, 'not Avro')}$"):
            logs.decode(row)
    assert logs.decode(9) == {**order(6), "country": None}


def test_avro_as_a_readers_schema_names_it(registry: RegistryServer) -> None:
    first, _, third = avro_serializers(registry)
    values = [first(order(1)), third({**order(5), "store": "s5"})]
    reader = FormatReader(
        AvroFormat(ORDER, parse(READER)), opened(registry, 0.0), AlwaysOpen()
    )
    _, found = prepared(reader, Records.of(values))
    default: Said = {4: [("text", "nowhere")]}
    assert found == [said(1, default), said(5, default)]


def test_protobuf_of_java_and_of_python(registry: RegistryServer) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema("line.proto", Registered(PROTO_LINE, "PROTOBUF"))
    text = client.register_schema(
        "java",
        Registered(PROTO, "PROTOBUF", [SchemaReference("line.proto", "line.proto", 1)]),
    )
    schema = Schema("PROTOBUF", PROTO, (Reference("line.proto", PROTO_LINE),))
    kind = message_factory.GetMessageClass(ProtobufSchema(schema).message([1]))
    serializer = ProtobufSerializer(kind, client)

    def message(n: int, country: str | None) -> Any:
        return kind(shop=f"s{n}", country=country, lines=order(n)["lines"])

    framed = serializer(message(1, "de"), context("protobuf"))
    assert framed is not None
    java_id = b"\0" + text.to_bytes(4, "big")
    java = java_id + b"\x02\x02"
    values = [
        framed,
        java + message(2, None).SerializeToString(),
        java + b"\x0a\x05s",
        java_id + b"\x02\x08",
        java_id,
        java + message(3, "fr").SerializeToString(),
    ]
    reader = FormatReader(ProtobufFormat(ORDER), opened(registry, 0.0), AlwaysOpen())
    ready, found = prepared(reader, Records.of(values))
    assert ready.refused == {3: "no such message in the schema", 4: "no schema id"}
    first = said(1, {4: [("text", "de")]})
    third = said(3, {4: [("text", "fr")]})
    assert found == [first, said(2), None, None, None, third]
    with pytest.raises(ValueError, match="not Protobuf"):
        reader.fmt.decode(int(ready.numbers[2]), b"\x0a\x05s")


def test_a_batch_waits_for_a_schema_that_nobody_has_seen_and_loses_nothing(
    registry: RegistryServer,
) -> None:
    first, second, _ = avro_serializers(registry)
    known = Records.of([first(order(n)) for n in range(3)])
    new = Records.of([first(order(7)), second(order(8, "de"))])
    shard = Shard()
    # While it reads its topic again, a registry that has just started may say that it knows nothing.
    reader = FormatReader(AvroFormat(ORDER), opened(registry), shard)
    assert prepared(reader, known)[1] == [said(n) for n in range(3)]
    registry.stop()
    try:
        assert prepared(reader, known)[1] == [said(n) for n in range(3)]
        thread, result = in_thread(lambda: prepared(reader, new))
        wait_until(lambda: shard.went_on > 2, "it waits")
        assert not result
    finally:
        registry.start()
    thread.join(120)
    [(ready, found)] = result
    assert found == [said(7), said(8, {4: [("text", "de")]})]
    assert ready.refused == {}


def test_json_schema_is_json_behind_an_id(registry: RegistryServer) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"shop": {"type": "string"}},
    }
    serializer = JSONSerializer(json.dumps(schema), client)
    framed = [serializer({"shop": f"s{n}"}, context("json")) for n in range(3)]
    records = Records.of([*framed, b'{"shop": "bare"}', None])
    payloads, refused = json_payloads(records.data, records.values)
    places = [place for place in payloads.tolist() if place[0] >= 0]
    found = [json.loads(records.data[start:stop].tobytes()) for start, stop in places]
    assert found == [{"shop": "s0"}, {"shop": "s1"}, {"shop": "s2"}]
    assert refused == {3: "no schema id", 4: "no value"}


def test_a_schema_that_cannot_be_used_is_said_once_and_rejects_its_events(
    registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    wrong = '{"type": "record", "name": "Wrong", "fields": [{"name": "lines", "type": "string"}]}'
    number = client.register_schema("wrong", Registered(wrong, "AVRO"))
    other = client.register_schema("other", Registered(PROTO_LINE, "PROTOBUF"))
    values = [b"\0" + n.to_bytes(4, "big") + b"\x02x" for n in (number, other, number)]
    reader = FormatReader(AvroFormat(ORDER), opened(registry, 0.0), AlwaysOpen())
    reason = "field 'lines[].sku': 'lines' is a string in the schema"
    records = Records.of(values)
    for _ in range(2):
        ready, found = prepared(reader, records)
        assert ready.refused == {0: reason, 1: "schema of another format", 2: reason}
        assert found == [None] * 3
    module = "workers.events.formats.reader"
    lines = [record.getMessage() for record in caplog.records if record.name == module]
    assert lines == [
        f"schema {number}: every event of it is a reject: {reason}",
        f"schema {other}: every event of it is a reject: schema of another format",
    ]
