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
    """The sample's decoded values that are objects, by index, and their common format."""

    format: str
    objects: dict[int, object]


def decode_sample(
    values: Sequence[bytes | None], access: Access | None = None
) -> DecodedSample:
    """Decode a sample's values in the format that most of them have; leave out the others.

    `access` is to the schema registry; None: none was given. A value may be None, as in Kafka.
    Raise CannotGuess if most values are in no known format, or no objects.
    """
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
    # By format.
    objects_of: dict[str, dict[int, object]] = defaultdict(dict)
    for index, value in enumerate(values):
        if value is None or len(value) > VALUE_BYTES_MAX:
            continue
        try:
            fmt, record = (
                by_schema.decode(value)
                if by_schema
                else ("json", _JSON.decode_all(value))
            )
        except ValueError:
            continue
        if isinstance(record, dict):
            objects_of[fmt][index] = record
    commonest, objects = max(
        objects_of.items(), key=lambda entry: len(entry[1]), default=("json", {})
    )
    if len(objects) < _MOST * number or not objects:
        described = f"records that a schema of the registry describes ({commonest})"
        raise CannotGuess(
            f"{len(objects):,} of {number:,} sampled values are "
            f"{described if framed else 'JSON objects'}: too few to guess from"
        )
    return DecodedSample(commonest, objects)


class SchemaDecoder:
    """Decodes values that a schema registry's serializer has framed, each by its own schema."""

    def __init__(self, access: Access) -> None:
        """Prepare to get schemas from a registry, once each; `access` says where it is."""
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
        # Without wanted fields: only their general, slow decoder is used.
        self._formats: dict[str, Any] = {
            AVRO: AvroFormat(Node()),
            PROTOBUF: ProtobufFormat(None),
        }
        # The number that a format's `add` gave to a schema, by schema id and, for Protobuf, the
        # bytes that say which of its messages this is; None: cannot be decoded.
        self._numbers: dict[tuple[bytes, bytes], int | None] = {}

    def decode(self, value: bytes) -> tuple[str, object]:
        """Return a value's format, as in settings, and its content.

        Raise `ValueError` if no known schema fits it.
        """
        if not is_framed(value):
            raise ValueError
        schema_id = value[1:HEADER]
        schema = self._schema(int.from_bytes(schema_id, "big"))
        if schema is None or schema.kind not in FORMATS:
            raise ValueError
        name = FORMATS[schema.kind]
        if schema.kind == JSON:
            return name, _JSON.decode_all(value[HEADER:])
        # Where the event begins: in Protobuf only after the message path.
        start = HEADER
        if schema.kind == PROTOBUF:
            _number, start = message_path(
                np.frombuffer(value, dtype=np.uint8), HEADER, len(value)
            )
            if start == REFUSED:
                raise ValueError
        fmt = self._formats[schema.kind]
        path = value[HEADER:start]
        key = schema_id, path
        if key not in self._numbers:
            try:
                self._numbers[key] = fmt.add(schema, path)
            except (SchemaRefused, ValueError):
                self._numbers[key] = None
        number = self._numbers[key]
        if number is None:
            raise ValueError
        return name, fmt.decode(number, value[start:])


def is_framed(value: bytes) -> bool:
    """Return whether a value begins as a schema registry's serializer writes it."""
    return len(value) >= HEADER and value[0] == 0
