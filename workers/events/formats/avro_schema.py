"""Avro schemas: parsed, names looked up, and which types of a reader a writer's types become.

Logical types are left out everywhere: a timestamp is the number that was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import fastavro

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = frozenset(("record", "error", "enum", "fixed"))
_PROMOTED = MappingProxyType({
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
})


class Unsure(Exception):
    """What resolution comes to here is not worked out: fastavro decides, record by record."""


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema.

    Attributes:
        text: as fastavro takes it, with the schemas that it refers to in `names`.
        names: named types by their full names.
    """

    text: Any
    names: Mapping[str, Any] = field(repr=False)

    def as_field(self) -> Any:
        """Return a record of one field, `value`, of this type: its bytes are the same.

        fastavro forgets the names that a schema refers to where it is no object.
        """
        record = {"type": "record", "name": "QuietcountEvent", "fields": [{"name": "value", "type": self.text}]}
        return fastavro.parse_schema(record, named_schemas=dict(self.names))

    def type_of(self, written: Any) -> Any:
        """Return a type itself: a list for a union, else an object with a `type`."""
        while not isinstance(written, list):
            if isinstance(written, str):
                if written in PRIMITIVES:
                    return {"type": written}
                written = self.names[written]
            elif isinstance(written["type"], str) and written["type"] not in self.names:
                return written
            else:
                written = written["type"]
        return written


def parse(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Return the schema that a text writes.

    Args:
        text: JSON.
        references: texts of schemas that it refers to by name, those first that others need.

    Raises:
        ValueError: it is no schema; the message shows nothing of it.
    """
    names: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(_plain(json.loads(reference)), named_schemas=names)
        parsed = fastavro.parse_schema(_plain(json.loads(text)), named_schemas=names)
    except RecursionError:
        raise ValueError("no Avro schema: nested too deeply") from None
    except Exception as error:  # noqa: BLE001
        # fastavro raises whatever comes up in its code where a schema is malformed.
        raise ValueError(f"no Avro schema: {type(error).__name__}") from None
    return AvroSchema(parsed, names)


def _plain(schema: Any) -> Any:
    """Return a schema without logical types, and each primitive `{"type": name}` as its name."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: value for name, value in schema.items() if name not in ("logicalType", "precision", "scale")}
    for name in ("type", "items", "values"):
        if name in made:
            made[name] = _plain(made[name])
    if isinstance(made.get("fields"), list):
        made["fields"] = [_plain(each) for each in made["fields"]]
    if isinstance(made.get("type"), str) and made["type"] in PRIMITIVES and "name" not in made:
        return made["type"]
    return made


def matches(writer: AvroSchema, written: Any, reader: AvroSchema, read: Any) -> bool:
    """Tell whether fastavro takes a writer's type for a reader's, as far as it looks beforehand.

    Raises:
        Unsure: it takes it, though the two differ in kind.
    """
    w, r = writer.type_of(written), reader.type_of(read)
    if isinstance(w, list) or isinstance(r, list):
        return True
    kind, other = w["type"], r["type"]
    if kind in _NAMED and other in _NAMED:
        name, aliases = w["name"], r.get("aliases", ())
        short = name.rsplit(".", 1)[-1]
        if short != r["name"].rsplit(".", 1)[-1] and name not in aliases and short not in aliases:
            return False
        if kind != other or (kind == "fixed" and w["size"] != r["size"]):
            raise Unsure
        return True
    if kind == other == "map":
        return matches(writer, w["values"], reader, r["values"])
    if kind == other == "array":
        return matches(writer, w["items"], reader, r["items"])
    return bool(kind == other or other in _PROMOTED.get(kind, ()))


def chosen(writer: AvroSchema, written: Any, reader: AvroSchema, read: Any) -> Any:
    """Return the reader's type, no union, that a writer's type, no union, becomes.

    Raises:
        Unsure: it becomes none, which is fastavro's to say.
    """
    options = reader.type_of(read)
    for option in options if isinstance(options, list) else [options]:
        if matches(writer, written, reader, option):
            return reader.type_of(option)
    raise Unsure


def fields_of(w: Mapping[str, Any], r: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return which field of a reader's record each of a writer's becomes, and which are left over.

    Args:
        w: the writer's record.
        r: the reader's record.

    Returns:
        for each field of the writer the reader's, None where it is left out; then those of the
        reader's that the writer does not have.

    Raises:
        Unsure: two fields would become the same one.
    """
    left = {each["name"]: each for each in r["fields"]}
    aliases = {alias: each for each in r["fields"] for alias in each.get("aliases", ())}
    found: list[Any] = []
    for each in w["fields"]:
        taken = left.get(each["name"], aliases.get(each["name"]))
        if taken is not None and left.pop(taken["name"], None) is None:
            raise Unsure
        found.append(taken)
    return found, list(left.values())
