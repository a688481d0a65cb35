"""The same shapes in Avro, Protobuf and behind a JSON Schema, also with corrupted bytes."""

import io
import json
import random
from collections.abc import Sequence
from typing import Any

import fastavro
from google.protobuf import message_factory

from tests.bounds.shapes import NOW_MS
from workers.events.formats.protobuf import ProtobufSchema
from workers.events.schemas import Schema, SchemaWaiter

FORMS = ("avro", "protobuf", "json_schema")
_LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "qty", "type": "long"}],
}
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "key", "type": "string"},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "lines", "type": {"type": "array", "items": _LINE}},
        {"name": "other", "type": ["null", "string", "bytes"]},
        {"name": "price", "type": ["null", "double", "long"]},
        {"name": "kind", "type": ["null", "string"]},
        {"name": "user", "type": ["null", "string", "long"]},
        {"name": "ts", "type": "long"},
    ],
}
PROTOBUF = """
syntax = "proto3";
message Event {
  message Line { string sku = 1; int64 qty = 2; }
  string key = 1; repeated string items = 2; map<string, int64> counts = 3; repeated Line lines = 4;
  bytes other = 5; double price = 6; string kind = 7; string user = 8; int64 ts = 9;
}
"""


class OneSchema:
    def __init__(self, form: str) -> None:
        self._schema = SCHEMAS[form]

    def schema(self, schema_id: int, waiting: SchemaWaiter) -> Schema:
        return self._schema


SCHEMAS = {
    "avro": Schema("AVRO", json.dumps(AVRO)),
    "protobuf": Schema("PROTOBUF", PROTOBUF),
}
HEADER = b"\0\0\0\0\1"


def encode_all(form: str, values: Sequence[bytes | None]) -> list[bytes | None]:
    """Encode records, given as JSON, in a format; None stays None."""
    if form == "json_schema":
        return [None if value is None else HEADER + value for value in values]
    schema: Any = fastavro.parse_schema(AVRO)
    message: Any = message_factory.GetMessageClass(
        ProtobufSchema(SCHEMAS["protobuf"]).message([0])
    )

    def encoded(value: bytes) -> bytes:
        row = _row(value)
        if form == "avro":
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, row)
            payload = HEADER + out.getvalue()
        else:
            fields = {name: field for name, field in row.items() if field is not None}
            payload = HEADER + b"\0" + message(**fields).SerializeToString()
        return payload if row["kind"] != "damaged" else _damaged(payload)

    return [None if value is None else encoded(value) for value in values]


def _row(value: bytes) -> dict[str, Any]:
    """Return the fields of a record that the schema has; if it is not JSON, a record to damage."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = {"kind": "damaged", "items": ["a"] * (len(value) // 3)}
    items = found.get("items")
    lines = found.get("lines")
    other = found.get("other")
    return {
        "key": _text(found.get("key", "s1"))[:1_000_000],
        "items": [_text(each) for each in items]
        if isinstance(items, list)
        else [_text(items)],
        "counts": {_text(k): 1 for k in items} if isinstance(items, dict) else {},
        "lines": [
            {"sku": _text(line.get("sku", "")), "qty": int(line.get("qty", 1))}
            for line in (lines if isinstance(lines, list) else [])
            if isinstance(line, dict)
        ],
        "other": _text(other).encode(),
        "price": _number(found.get("price")),
        "kind": _text(found.get("kind", "kind1")),
        "user": _text(found.get("user", "ann")),
        "ts": NOW_MS,
    }


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="replace").decode()


def _number(value: Any) -> float:
    first = value[0] if isinstance(value, list) and value else value
    return (
        float(first) if isinstance(first, int | float) and abs(first) < 1e300 else 1.5
    )


def _damaged(payload: bytes) -> bytes:
    """Change some bytes behind the header, the same for the same record."""
    rng = random.Random(len(payload))
    out = bytearray(payload)
    for _ in range(1 + len(out) // 2_000):
        out[rng.randrange(6, len(out))] = rng.choice(
            (0, 1, 127, 128, 255, rng.randrange(256))
        )
    return bytes(out)
