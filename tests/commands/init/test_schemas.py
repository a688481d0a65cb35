"""Whole records by the schemas that they name, with a real registry and the serializers that producers use."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as Registered
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from tests.commands.init.topics import draft_of, sample_of
from tests.registry_server import RegistryServer, registry_server
from workers.commands.init import formats
from workers.commands.init.formats import CannotGuess, decode_sample
from workers.events.formats.protobuf import ProtobufSchema
from workers.events.schemas import Access, Schema
from workers.runtime.errors import SettingsError

ORDER = """{"type": "record", "name": "Order", "fields": [
    {"name": "shop", "type": ["null", "string"]},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
        {"name": "sku", "type": "string"}, {"name": "qty", "type": "int"}]}}}
]}"""
PROTO = (
    'syntax = "proto3"; package shop; message Other { int32 x = 1; } enum Kind { NEW = 0; OLD = 1; }'
    "message Order { message Line { string sku = 1; int64 qty = 2; } optional string shop = 1; repeated Line lines = 2;"
    " map<string, int32> counts = 3; Kind kind = 4; Line best = 5; bytes raw = 6; }"
)
NOW_MS = 1_795_300_000_000


@pytest.fixture(scope="module")
def registry(
    registry_program: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


def access(registry: RegistryServer) -> Access:
    return Access(registry.url, {"timeout": 5.0}, 0.0)


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def order(n: int) -> dict[str, Any]:
    lines = [{"sku": f"p{(n + i) % 7}", "qty": 1 + i} for i in range(1 + n % 3)]
    return {"shop": f"s{n % 2}" if n % 10 else None, "lines": lines}


@pytest.mark.slow
def test_avro_is_decoded_whole_and_broken_values_are_skipped(
    registry: RegistryServer,
) -> None:
    serializer = AvroSerializer(SchemaRegistryClient({"url": registry.url}), ORDER)
    values = [serializer(order(n), context("avro")) for n in range(200)]
    bad = [(values[0] or b"")[:-1], b"\0\0\0\xff\xffabc", b"{}", b"", None]
    found = decode_sample([*bad, *values], access(registry))
    assert found.format == "avro"
    assert found.objects == {n + len(bad): order(n) for n in range(200)}
    sample = sample_of((None, value) for value in values)
    draft = draft_of(sample, access=access(registry))
    assert (
        str(draft.items.field.path) == "lines[].sku" and draft.items.count is not None
    )
    assert draft.accepted == 200


@pytest.mark.slow
def test_every_protobuf_message_of_the_schema_is_decoded_whole(
    registry: RegistryServer,
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    schema_id = client.register_schema("proto", Registered(PROTO, "PROTOBUF"))
    frame = b"\0" + schema_id.to_bytes(4, "big")
    of_schema = ProtobufSchema(Schema("PROTOBUF", PROTO))
    order_class, other_class = (
        message_factory.GetMessageClass(of_schema.message([index])) for index in (1, 0)
    )
    order_fields = {
        "shop": "s1",
        "lines": [{"sku": "p1", "qty": 2**40}],
        "counts": {"a": 3},
        "raw": b"x",
    }
    full = order_class(**order_fields, kind=1, best={"sku": "p2"})
    values = [
        frame + b"\x02\x02" + full.SerializeToString(),
        frame + b"\x02\x02" + order_class().SerializeToString(),
        frame + b"\x00" + other_class(x=5).SerializeToString(),
        frame + b"\x02\x0a" + b"",
        frame + b"\x02\x02" + b"\x0a\x05s",
        frame,
        frame + b"\xff\xff\xff",
    ]
    found = decode_sample(values[:3] + values, access(registry))
    assert found.format == "protobuf"
    order_fields |= {"kind": "OLD", "best": {"sku": "p2", "qty": 0}}
    empty: dict[str, object] = {"lines": [], "counts": {}, "kind": "NEW", "raw": b""}
    assert found.objects == dict(enumerate([order_fields, empty, {"x": 5}] * 2))


@pytest.mark.slow
def test_json_behind_a_schema_id_is_json(registry: RegistryServer) -> None:
    schema = '{"type": "object", "title": "Order", "properties": {"shop": {}, "lines": {"type": "array"}}}'
    serializer = JSONSerializer(schema, SchemaRegistryClient({"url": registry.url}))
    values = [serializer(order(n), context("json")) for n in range(20)]
    found = decode_sample(values, access(registry))
    assert found.format == "json_schema"
    assert found.objects == {n: order(n) for n in range(20)}


def test_framed_values_need_a_registry_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values: list[bytes | None] = [b"\0\0\0\0\1abc"] * 3
    with pytest.raises(CannotGuess, match="--schema-registry URL"):
        decode_sample(values)
    monkeypatch.setattr(formats, "_PATIENCE_S", 0.5)
    away = r"the schema registry at http://127\.0\.0\.1:1 did not answer within 0\.5 s"
    with pytest.raises(SettingsError, match=away):
        decode_sample(values, Access("http://127.0.0.1:1", {"timeout": 0.5}, 0.0))
