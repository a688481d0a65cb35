"""Detect the format of a topic's values, and decode them as plain objects.

JSON is tried first. A value that starts with a zero byte and a four-byte schema id is framed by a
Schema Registry serializer: Avro, Protobuf, or JSON. The worker's own readers walk only the wanted
fields; here these are not known yet, so records are decoded whole.

A decoder is a function from a value's bytes to the record; it raises ValueError on failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from workers.events.formats.fitting import Refused
from workers.events.json_objects import JsonDecoder
from workers.events.schemas import AVRO, JSON, PROTOBUF, Access, Registry, Schema
from workers.events.tree import Node, build
from workers.mechanisms.config.views import STEPS_MAX
from workers.runtime.errors import SettingsError

Decoder = Callable[[bytes], object]
MAGIC, HEADER = 0, 5
#: Names of the schema kinds in `events.format`.
FORMATS = MappingProxyType({AVRO: "avro", PROTOBUF: "protobuf", JSON: "json_schema"})
_PATIENCE_S = 15.0


class _Patience:
    def __init__(self, url: str) -> None:
        self._deadline, self._url = time.monotonic() + _PATIENCE_S, url

    def check_open(self) -> None:
        if time.monotonic() > self._deadline:
            raise SettingsError(
                f"the schema registry at {self._url} did not answer within {_PATIENCE_S:g} s"
            )

    def report_progress(self) -> None: ...


class Schemas:
    """Decoder of values that name their schema."""

    def __init__(self, access: Access, json: Decoder) -> None:
        """Raises:
        SettingsError: the packages that read schemas are not installed.
        """
        try:
            from workers.events.formats.avro import AvroFormat
        except ImportError as error:
            raise SettingsError(
                f"--schema-registry: install quietcount[formats]: {error}"
            ) from None
        self._registry, self._waiting, self._json = Registry(access), _Patience(access.url), json
        self._avro = AvroFormat(Node())
        self._decoders: dict[bytes, tuple[str, Callable[[bytes], object]] | None] = {}

    def decode(self, value: bytes) -> tuple[str, object]:
        """Return the format of a value and its content.

        Raises:
            ValueError: it names no known schema, or does not match its schema.
            SettingsError: the registry does not answer.
        """
        if not is_framed(value):
            raise ValueError
        name = value[1:HEADER]
        if name not in self._decoders:
            self._decoders[name] = self._decoder(int.from_bytes(name, "big"))
        found = self._decoders[name]
        if found is None:
            raise ValueError
        return found[0], found[1](value[HEADER:])

    def _decoder(self, schema_id: int) -> tuple[str, Callable[[bytes], object]] | None:
        schema = self._registry.schema(schema_id, self._waiting)
        if schema is None:
            return None
        if schema.kind == JSON:
            return FORMATS[JSON], self._json
        try:
            if schema.kind == AVRO:
                number = self._avro.add(schema)
                return FORMATS[AVRO], lambda payload: self._avro.decode(number, payload)
            return (FORMATS[PROTOBUF], _protobuf(schema)) if schema.kind == PROTOBUF else None
        except (Refused, ValueError):
            return None


def is_framed(value: bytes) -> bool:
    """Return whether a value starts like those of Schema Registry serializers."""
    return len(value) >= HEADER and value[0] == MAGIC


def _protobuf(schema: Schema) -> Decoder:
    """Return a decoder of a schema's messages; every value names its message type."""
    from google.protobuf import message_factory

    from workers.events.formats.protobuf_program import ProtobufSchema, indexes_of

    found = ProtobufSchema(schema)

    def decode(payload: bytes) -> object:
        end = _end_of_indexes(payload)
        kind = message_factory.GetMessageClass(found.message(indexes_of(payload[:end])))
        try:
            message = kind.FromString(payload[end:])
        except Exception:  # noqa: BLE001 - upb's DecodeError is another class from version to version
            raise ValueError from None
        return _whole(message, 0)

    return decode


def _end_of_indexes(payload: bytes) -> int:
    at = wanted = 0
    for number in range(STEPS_MAX):
        start = at
        while at < len(payload) and payload[at] & 0x80:
            at += 1
        at += 1
        if number == 0:
            # Zigzag: the number of indexes; none means the first message.
            wanted = payload[start] >> 1 if at == start + 1 and start < len(payload) else -1
        if number >= wanted:
            break
    if at > len(payload) or wanted < 0 or number < wanted:
        raise ValueError
    return at


def _whole(message: Any, depth: int) -> dict[str, object]:
    """Return all fields of a message like the worker's reader: fields with presence only if set."""
    made: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields if depth < STEPS_MAX else ():
        if field.has_presence and not message.HasField(field.name):
            continue
        found = getattr(message, field.name)
        if not field.is_repeated:
            made[field.name] = _value(field, found, depth)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            made[field.name] = {_name(key): _value(value, found[key], depth) for key in found}
        else:
            made[field.name] = [_value(field, each, depth) for each in found]
    return made


def _name(key: object) -> str:
    return ("true" if key else "false") if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any, depth: int) -> object:
    if field.message_type is not None:
        return _whole(value, depth + 1)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value


# The written settings reject longer values.
VALUE_BYTES_MAX = 1_000_000
# Maximum depth of nested lists and objects, as in the worker's reader.
_NESTED_MAX = 512
_MOST = 0.5


class NothingToCount(SettingsError):
    """Topic without anything to guess settings from."""


@dataclass(frozen=True, slots=True, repr=False)
class Decoded:
    """Records of a sample: values that are objects, by place in the sample."""

    format: str
    objects: dict[int, object]


def decoded(values: Sequence[bytes | None], access: Access | None = None) -> Decoded:
    """Decode the values of a sample.

    Args:
        access: to the registry with their schemas; None: there is none.

    Raises:
        NothingToCount: the format is unknown, or there are no objects.
        SettingsError: the registry does not answer.
    """
    there = [value for value in values if value is not None]
    if not there:
        raise NothingToCount(
            "all sampled records are without a value: there is nothing in them to count"
        )
    framed = sum(map(is_framed, there)) >= _MOST * len(there)
    if framed and access is None:
        raise NothingToCount(
            "the values are framed for a Schema Registry (a zero byte and a schema id): name it with --schema-registry URL"
        )
    json = _json()
    decode = (
        Schemas(access, json).decode
        if framed and access is not None
        else lambda value: ("json", json(value))
    )
    found: dict[str, dict[int, object]] = {}
    for place, value in enumerate(values):
        if value is None or len(value) > VALUE_BYTES_MAX:
            continue
        try:
            name, record = decode(value)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.setdefault(name, {})[place] = record
    name, objects = max(found.items(), key=lambda one: len(one[1]), default=("json", {}))
    if len(objects) < _MOST * len(there) or not objects:
        what = (
            f"records that a schema of the registry describes ({name})"
            if framed
            else "JSON objects"
        )
        raise NothingToCount(
            f"{len(objects):,} of {len(there):,} sampled values are {what}: too few to guess from"
        )
    return Decoded(name, objects)


def _json() -> Decoder:
    decode = JsonDecoder(build([])).decode

    def decode_flat(value: bytes) -> object:
        if value.count(b"[") + value.count(b"{") > _NESTED_MAX and _depth(value) > _NESTED_MAX:
            raise ValueError
        return decode(value)

    return decode_flat


def _depth(value: bytes) -> int:
    """Return an upper bound on the nesting depth: brackets within texts count."""
    depth = deepest = 0
    for byte in value:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest
