"""Protobuf format: the scanner's input for a batch, and the general reader of one message."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from google.protobuf import message_factory

from workers.arrays.types import Bytes, Longs
from workers.events.formats import protobuf_scanner
from workers.events.formats.fitting import (
    NO_MESSAGE,
    NOT_OF_FORMAT,
    UNREADABLE,
    Logging,
    Refused,
    SchemaFormat,
)
from workers.events.formats.protobuf_program import ProtobufProgram, ProtobufSchema, indexes_of
from workers.events.schemas import PROTOBUF, Schema
from workers.events.tree import Node

NOT_PROTOBUF = "not Protobuf"
# Nesting limit of the scanner; upb reads deeper messages, up to 100.
STACK = 64


class ProtobufFormat(SchemaFormat):
    """The message types of records read by one thread; `tree` None decodes all their fields."""

    names_messages = True

    def __init__(self, tree: Node | None) -> None:
        self._program = ProtobufProgram(tree or Node())
        super().__init__(self._program)
        self._tree = tree
        self._schemas: dict[Schema, ProtobufSchema] = {}
        self._classes: list[Any] = []
        self.program = self._program.complete()

    def add(self, schema: Schema, message: bytes = b"\0") -> int:
        """Add a message type by the encoded path after the schema id; return its number."""
        if schema.kind != PROTOBUF:
            raise Refused(NOT_OF_FORMAT)
        try:
            found = self._schemas.get(schema)
            if found is None:
                found = self._schemas[schema] = ProtobufSchema(schema)
        except ValueError:
            raise Refused(UNREADABLE) from None
        try:
            descriptor = found.message(indexes_of(message))
        except ValueError:
            raise Refused(NO_MESSAGE) from None
        try:
            root, fit = self._program.add(descriptor)
            kind = message_factory.GetMessageClass(descriptor)
        except RecursionError:
            raise Refused(UNREADABLE) from None
        number = self._accept(root, fit)
        self._classes.append(kind)
        self.program = self._program.complete()
        return number

    def logs(self, data: Bytes, values: Longs, roots: Longs, base: int) -> Logging:
        stack = np.empty((STACK, protobuf_scanner.FRAME), dtype=np.int64)
        lists = np.empty((self._program.lists, protobuf_scanner.LIST_COLUMNS), dtype=np.int64)
        scan = protobuf_scanner.Scan(data, base, self.program, stack, lists)
        return partial(protobuf_scanner.logs, scan, values, roots)

    def decode(self, number: int, payload: bytes) -> object:
        """Return the wanted fields of a message; raise ValueError with the reject reason."""
        try:
            message = self._classes[number].FromString(payload)
        except Exception:  # noqa: BLE001
            # upb raises DecodeError, which in one version is a RuntimeError for deep messages.
            raise ValueError(NOT_PROTOBUF) from None
        return _object(message, self._tree)


def _object(message: Any, node: Node | None) -> dict[str, object]:
    """Return the wanted fields of a message, or all; those with presence only if set."""
    fields = message.DESCRIPTOR.fields_by_name
    made: dict[str, object] = {}
    for name in (
        [field.name for field in message.DESCRIPTOR.fields] if node is None else node.children
    ):
        inner = node and node.children[name]
        field = fields.get(name)
        if field is None or (field.has_presence and not message.HasField(name)):
            continue
        found = getattr(message, name)
        if not field.is_repeated:
            made[name] = _value(field, found, inner)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            made[name] = {
                _name(key): _value(
                    value, found[key], inner and inner.children.get(_name(key), Node())
                )
                for key in found
            }
        else:
            made[name] = [
                _value(field, each, inner and (inner.elements or Node())) for each in found
            ]
    return made


def _name(key: object) -> str:
    return ("true" if key else "false") if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any, node: Node | None) -> object:
    if field.message_type is not None:
        return _object(value, node)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value
