"""How events and garbage are written in every format, and a registry that knows their schemas."""

import io
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import fastavro
from google.protobuf import json_format, message_factory

from workers.events.formats.protobuf import ProtobufSchema
from workers.events.schemas import AVRO, PROTOBUF, Schema

FORMATS = ("avro", "protobuf", "json_schema")
Fields = dict[str, Any]
# Schemas: as it should be, with a time as text, without items. Nobody registered the last one.
GOOD = 1
TEXT_TIME = 2
NO_ITEMS = 3
UNKNOWN = 4
# Schema ids by shape and of these; registries have one kind of schema here.
SHAPES = ("list", "object", "rows")


class Garbage(NamedTuple):
    """Content that every reader rejects, of fields; `readable`: what `rekey` can still read."""

    write: Callable[[str, Fields], bytes | None]
    readable: str = ""


def written(name: str, shape: str, fields: Fields, schema: int = GOOD) -> bytes:
    """Return a record's value in a format."""
    if name == "json":
        return _json(fields)
    schema_id = 10 * SHAPES.index(shape) + schema
    header = b"\0" + schema_id.to_bytes(4)
    if name == "json_schema":
        return header + _json(fields)
    if name == "avro":
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out, _avro(min(schema_id, schema_id // 10 * 10 + 3)), fields
        )
        return header + out.getvalue()
    message = _protobuf(min(schema_id, schema_id // 10 * 10 + 3))()
    json_format.ParseDict(fields, message, ignore_unknown_fields=True)
    # Else the order of a map's entries differs between processes.
    return header + b"\0" + bytes(message.SerializeToString(deterministic=True))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


@cache
def _avro(schema_id: int) -> Any:
    return fastavro.parse_schema(json.loads(_avro_text(schema_id)))


def _avro_text(schema_id: int) -> str:
    texts = {"type": "array", "items": "string"}
    line = [{"name": "sku", "type": "string"}, {"name": "qty", "type": "long"}]
    lines = {
        "type": "array",
        "items": {"type": "record", "name": "Line", "fields": line},
    }
    kinds: Fields = dict.fromkeys(("user", "key", "kind"), "string")
    kinds |= {"paid": "double", "other": texts}
    kinds["ts"] = "string" if schema_id % 10 == TEXT_TIME else "long"
    items = (
        ("items", texts),
        ("items", {"type": "map", "values": "long"}),
        ("lines", lines),
    )
    if schema_id % 10 != NO_ITEMS:
        kinds |= [items[schema_id // 10]]
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    return json.dumps({"type": "record", "name": "Event", "fields": fields})


@cache
def _protobuf(schema_id: int) -> Any:
    schema = ProtobufSchema(Schema(PROTOBUF, _protobuf_text(schema_id)))
    return message_factory.GetMessageClass(schema.message([0]))


def _protobuf_text(schema_id: int) -> str:
    time = "string" if schema_id % 10 == TEXT_TIME else "int64"
    kinds = ("repeated string items", "map<string, int64> items", "repeated Line lines")
    items = "" if schema_id % 10 == NO_ITEMS else f"{kinds[schema_id // 10]} = 7;"
    return f"""
        syntax = "proto3";
        message Event {{
          {time} ts = 1; string user = 2; string key = 3; string kind = 4; double paid = 5;
          repeated string other = 6; {items}
        }}
        message Line {{ string sku = 1; int64 qty = 2; }}
        """


class Registered:
    """Double of `schemas.Registry`: the schemas above, at once."""

    def __init__(self, access: Any, metrics: object) -> None:
        """`access.url` names the format."""
        self._protobuf = PROTOBUF.lower() in access.url

    def schema(self, schema_id: int, waiting: object) -> Schema | None:
        if schema_id % 10 == UNKNOWN or schema_id > 10 * len(SHAPES):
            return None
        if self._protobuf:
            return Schema(PROTOBUF, _protobuf_text(schema_id))
        return Schema(AVRO, _avro_text(schema_id))


def garbage_of(name: str, shape: str) -> Mapping[str, Garbage]:
    """Return the kinds of garbage of a format."""
    if name in ("json", "json_schema"):
        found = _json_garbage(shape)
        if name == "json_schema":
            found = {kind: _framed(garbage) for kind, garbage in found.items()}
            found["no schema id"] = Garbage(lambda _, fields: _json(fields))
        return found

    def of(schema: int = GOOD, **changes: object) -> Callable[[str, Fields], bytes]:
        return lambda shape, fields: written(name, shape, fields | changes, schema)

    found = {
        "tombstone": Garbage(lambda shape, fields: None),
        "empty": Garbage(lambda shape, fields: b""),
        "no schema id": Garbage(lambda shape, fields: of()(shape, fields)[1:]),
        "header": Garbage(lambda shape, fields: of()(shape, fields)[:5]),
        "unknown schema": Garbage(of(UNKNOWN)),
        "time as text": Garbage(of(TEXT_TIME, ts="today"), "user"),
        "no items": Garbage(of(NO_ITEMS), "user, time"),
        "undeclared key": Garbage(of(key="nobody"), "user, time"),
        "long label": Garbage(of(**_items(shape, "l" * 1_025)), "user, time"),
    }
    if shape != "list":
        found["count"] = Garbage(of(**_items(shape, "a", -1)), "user, time")
    return found


def _framed(garbage: Garbage) -> Garbage:
    def write(shape: str, fields: Fields) -> bytes | None:
        value = garbage.write(shape, fields)
        return value and b"\0\0\0\0\1" + value

    return garbage._replace(write=write)


def _items(shape: str, label: object, count: object = 1) -> Fields:
    """Return fields with one label and count, of which one is wrong."""
    if shape == "rows":
        return {"lines": [{"sku": label, "qty": count}]}
    return {"items": {label: count} if shape == "object" else [label]}


def _json_garbage(shape: str) -> dict[str, Garbage]:
    def of(*left_out: str, **changes: object) -> Callable[[str, Fields], bytes]:
        def write(shape: str, fields: Fields) -> bytes:
            return _json(
                {n: v for n, v in (fields | changes).items() if n not in left_out}
            )

        return write

    def wrong(label: object, count: object = 1) -> Callable[[str, Fields], bytes]:
        if shape == "rows":
            return of(**_items(shape, label, count))
        return of(items={"a": count} if count != 1 else [label])

    return {
        "tombstone": Garbage(lambda shape, fields: None),
        "empty": Garbage(lambda shape, fields: b""),
        "text": Garbage(lambda shape, fields: b'"event"'),
        "cut": Garbage(lambda shape, fields: _json(fields)[:-1]),
        "not UTF-8": Garbage(
            lambda shape, fields: _json(fields | {"ts": "~"}).replace(b"~", b"\xff")
        ),
        "deep": Garbage(lambda shape, fields: b"[" * 5_000),
        "time as text": Garbage(of(ts="today"), "user"),
        "no items": Garbage(of("items", "lines"), "user, time"),
        "items": Garbage(wrong([["a"]]), "user, time"),
        "long label": Garbage(wrong("l" * 1_025), "user, time"),
        "count": Garbage(wrong("a", -1), "user, time"),
        "half a count": Garbage(wrong("a", 2.5), "user, time"),
        "undeclared key": Garbage(of(key="nobody"), "user, time"),
    }
