"""The same shapes in Avro, Protobuf and behind a JSON Schema: what a record's JSON holds, as far as a schema has room
for it, and bytes that were changed afterwards.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from typing import Any

import fastavro
from google.protobuf import message_factory

from tests.bounds.shapes import NOW_MS
from workers.events.formats.protobuf import ProtobufSchema
from workers.events.schemas import Schema, Waiting

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
    """A registry of one schema."""

    def __init__(self, form: str) -> None:
        self._schema = (
            Schema("AVRO", json.dumps(AVRO)) if form == "avro" else Schema("PROTOBUF", PROTOBUF)
        )

    def schema(self, schema_id: int, waiting: Waiting) -> Schema:
        """Return the schema, whatever its id."""
        return self._schema


def encoder(form: str) -> Any:
    """Return what encodes a record's JSON in a format, from its bytes; None stays None."""
    if form == "json_schema":
        return lambda value: None if value is None else b"\0\0\0\0\1" + value
    schema: Any = fastavro.parse_schema(AVRO) if form == "avro" else None
    message: Any = (
        None
        if form == "avro"
        else message_factory.GetMessageClass(
            ProtobufSchema(Schema("PROTOBUF", PROTOBUF)).message([0])
        )
    )

    def encoded(value: bytes | None) -> bytes | None:
        if value is None:
            return None
        row = _row(value)
        if form == "avro":
            out = io.BytesIO(b"\0\0\0\0\1")
            out.seek(5)
            fastavro.schemaless_writer(out, schema, row)
            payload = out.getvalue()
        else:
            payload = (
                b"\0\0\0\0\1\0"
                + message(**{k: v for k, v in row.items() if v is not None}).SerializeToString()
            )
        return payload if row["kind"] != "damaged" else _damaged(payload)

    return encoded


def _row(value: bytes) -> dict[str, Any]:
    """Return what a schema has room for, of a record; of what is no JSON, a record to damage."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = {"kind": "damaged", "items": ["a"] * (len(value) // 3)}
    items, lines, other = found.get("items"), found.get("lines"), found.get("other")
    return {
        "key": _text(found.get("key", "s1"))[:1_000_000],
        "items": [_text(each) for each in items] if isinstance(items, list) else [_text(items)],
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
    return float(first) if isinstance(first, int | float) and abs(first) < 1e300 else 1.5


def _damaged(payload: bytes) -> bytes:
    """Change some bytes behind the header, the same for the same record."""
    rng, out = random.Random(len(payload)), bytearray(payload)
    for _ in range(1 + len(out) // 2_000):
        out[rng.randrange(6, len(out))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(out)


def encode_all(form: str, values: Sequence[bytes | None]) -> list[bytes | None]:
    """Return records in a format."""
    encode = encoder(form)
    return [encode(value) for value in values]
