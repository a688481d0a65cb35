"""Detect the format of a topic's values, and decode them as plain objects.

JSON is tried first. A value that starts with a zero byte and a four-byte schema id is framed by a
Schema Registry serializer: Avro, Protobuf, or JSON. The worker's own readers walk only the wanted
fields; these are not known yet, so records are decoded whole.
"""

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from workers.events.formats.fitting import SchemaRefused
from workers.events.formats.wire import HEADER, REFUSED, message_path
from workers.events.json import JsonDecoder
from workers.events.schemas import AVRO, JSON, PROTOBUF, Access, CommandWait, Registry
from workers.events.tree import Node
from workers.runtime.errors import SettingsError

FORMATS = MappingProxyType({AVRO: "avro", PROTOBUF: "protobuf", JSON: "json_schema"})
_PATIENCE_S = 15.0
# The written settings reject longer values.
VALUE_BYTES_MAX = 1_000_000
# Minimum share of the values that are framed, or that are objects.
_MOST = 0.5
_JSON = JsonDecoder(Node())


class CannotGuess(SettingsError):
    """Topic without anything to guess settings from."""


@dataclass(frozen=True, slots=True, repr=False)
class DecodedSample:
    """The sample's decoded values that are objects, by their place, and their common format."""

    format: str
    objects: dict[int, object]


def decode_sample(
    values: Sequence[bytes | None], access: Access | None = None
) -> DecodedSample:
    """Decode a sample, with a registry if any; raise CannotGuess without format or objects."""
    number = sum(value is not None for value in values)
    if not number:
        raise CannotGuess("no sampled record has a value: there is nothing to count")
    framed = (
        sum(value is not None and is_framed(value) for value in values)
        >= _MOST * number
    )
    if framed and access is None:
        raise CannotGuess(
            "the values are framed for a Schema Registry (a zero byte and a schema id): "
            "name it with --schema-registry URL"
        )
    by_schema = SchemaDecoder(access) if framed and access is not None else None
    objects_of: dict[str, dict[int, object]] = defaultdict(dict)
    for index, value in enumerate(values):
        if value is None or len(value) > VALUE_BYTES_MAX:
            continue
        try:
            name, record = (
                by_schema.decode(value)
                if by_schema
                else ("json", _JSON.decode_all(value))
            )
        except ValueError:
            continue
        if isinstance(record, dict):
            objects_of[name][index] = record
    name, objects = max(
        objects_of.items(), key=lambda one: len(one[1]), default=("json", {})
    )
    if len(objects) < _MOST * number or not objects:
        described = f"records that a schema of the registry describes ({name})"
        raise CannotGuess(
            f"{len(objects):,} of {number:,} sampled values are "
            f"{described if framed else 'JSON objects'}: too few to guess from"
        )
    return DecodedSample(name, objects)


class SchemaDecoder:
    """Decodes values that a schema registry's serializer has framed, each by its own schema."""

    def __init__(self, access: Access) -> None:
        try:
            from workers.events.formats.avro import AvroFormat
            from workers.events.formats.protobuf import ProtobufFormat
        except ImportError as error:
            raise SettingsError(
                f"--schema-registry: install quietcount[formats]: {error}"
            ) from None
        refusal = SettingsError(
            f"the schema registry at {access.url} did not answer within {_PATIENCE_S:g} s"
        )
        registry = Registry(access)
        waiting = CommandWait(_PATIENCE_S, refusal)
        # Cached with None for an unknown id, which `Registry` would wait for again.
        self._schema = functools.cache(
            lambda schema_id: registry.schema(schema_id, waiting)
        )
        self._forms: dict[str, Any] = {
            AVRO: AvroFormat(Node()),
            PROTOBUF: ProtobufFormat(None),
        }
        # The number that `add` of a form gave to a schema, for `decode`, by schema id and, for
        # Protobuf, the message path; None: cannot be decoded.
        self._numbers: dict[tuple[bytes, bytes], int | None] = {}

    def decode(self, value: bytes) -> tuple[str, object]:
        """Return a value's format and content; raise `ValueError` if no known schema fits it."""
        if not is_framed(value):
            raise ValueError
        schema_id = value[1:HEADER]
        schema = self._schema(int.from_bytes(schema_id, "big"))
        if schema is None or schema.kind not in FORMATS:
            raise ValueError
        name = FORMATS[schema.kind]
        start = HEADER
        if schema.kind == JSON:
            return name, _JSON.decode_all(value[HEADER:])
        if schema.kind == PROTOBUF:
            _, start = message_path(
                np.frombuffer(value, dtype=np.uint8), HEADER, len(value)
            )
            if start == REFUSED:
                raise ValueError
        form = self._forms[schema.kind]
        key = (schema_id, value[HEADER:start])
        if key not in self._numbers:
            try:
                self._numbers[key] = form.add(schema, key[1])
            except (SchemaRefused, ValueError):
                self._numbers[key] = None
        number = self._numbers[key]
        if number is None:
            raise ValueError
        return name, form.decode(number, value[start:])


def is_framed(value: bytes) -> bool:
    """Return whether a value begins as a schema registry's serializer writes it."""
    return len(value) >= HEADER and value[0] == 0
