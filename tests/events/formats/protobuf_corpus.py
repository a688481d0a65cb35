"""Protobuf schemas, messages and broken ones at random, and what the scanner makes of them.

python -m tests.events.formats.protobuf_corpus --records 10000000     the long run
"""

import base64
from typing import Any

from google.protobuf import descriptor_pb2, message_factory

from tests.events.comparison import Outcome, long_run
from tests.events.formats import corpus
from tests.events.formats.corpus import NAMES, Case, Paths
from workers.events.formats.fitting import SchemaRefused
from workers.events.formats.protobuf import ProtobufFormat, ProtobufSchema
from workers.events.schemas import Schema
from workers.events.tree import Node

Field = descriptor_pb2.FieldDescriptorProto
FLAT = [
    number
    for number in range(1, 19)
    if number not in (Field.TYPE_GROUP, Field.TYPE_MESSAGE)
]
TEXTS = ("", "a", "\u00e4\u20ac", "\U0001f600", "x" * 70, "shop")
_BITS_32 = [getattr(Field, f"TYPE_{name}INT32") for name in ("", "U", "S")]
_BITS_32 += [Field.TYPE_FIXED32, Field.TYPE_SFIXED32]
_UNSIGNED = (
    Field.TYPE_UINT32,
    Field.TYPE_UINT64,
    Field.TYPE_FIXED32,
    Field.TYPE_FIXED64,
)


class Generator(corpus.Draw):
    BYTES = (
        0,
        1,
        2,
        3,
        0x08,
        0x0A,
        0x12,
        0x1A,
        0x7F,
        0x80,
        0x81,
        0xFF,
        0xC2,
        0xED,
        0x0B,
    )

    def schema(self) -> Schema:
        """Return a file whose first message is of a few fields, as Python producers register it."""
        draw = self.random
        syntax = draw.choice(("proto2", "proto3"))
        file = descriptor_pb2.FileDescriptorProto(name="f.proto", syntax=syntax)
        kinds = file.enum_type.add(name="Kind")
        for number in dict.fromkeys([0, draw.randint(1, 5), draw.randint(-2, 300)]):
            kinds.value.add(name=f"K_{number}".replace("-", "M"), number=number)
        for i in range(draw.randint(1, 4)):
            file.message_type.add(name=f"M{i}")
        for message in file.message_type:
            self._fields(message, file)
        return Schema("PROTOBUF", base64.b64encode(file.SerializeToString()).decode())

    def _fields(self, message: Any, file: Any) -> None:
        draw = self.random
        numbers = draw.sample([*range(1, 20), 2047, 536870911], 6)
        if draw.random() < 0.4:
            message.oneof_decl.add(name="which")
        for name in draw.sample(NAMES, draw.randint(1, 6)):
            field = message.field.add(
                name=name, number=numbers.pop(), label=Field.LABEL_OPTIONAL
            )
            self._typed(field, file)
            what = draw.random()
            if what < 0.3:
                field.label = Field.LABEL_REPEATED
                unpacked = (Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_MESSAGE)
                if field.type not in unpacked and draw.random() < 0.5:
                    field.options.packed = draw.random() < 0.5
            elif what < 0.45:
                entry_name = f"{name.capitalize()}Entry"
                entry = message.nested_type.add(
                    name=entry_name, options={"map_entry": True}
                )
                key = draw.choice(
                    [Field.TYPE_STRING] * 4 + [Field.TYPE_INT32, Field.TYPE_BOOL]
                )
                entry.field.add(
                    name="key", number=1, label=Field.LABEL_OPTIONAL, type=key
                )
                value = entry.field.add(
                    name="value", number=2, label=Field.LABEL_OPTIONAL
                )
                value.type = field.type
                if field.type_name:
                    value.type_name = field.type_name
                field.label = Field.LABEL_REPEATED
                field.type = Field.TYPE_MESSAGE
                field.type_name = f".{message.name}.{entry.name}"
            elif what < 0.65 and message.oneof_decl:
                field.oneof_index = 0
        if message.oneof_decl and not any(
            field.HasField("oneof_index") for field in message.field
        ):
            del message.oneof_decl[:]
        if file.syntax == "proto3":
            for field in message.field:
                single = field.label == Field.LABEL_OPTIONAL and not field.HasField(
                    "oneof_index"
                )
                if single and draw.random() < 0.3:
                    field.proto3_optional = True
                    field.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{field.name}")

    def _typed(self, field: Any, file: Any) -> None:
        field.type = self.random.choice(
            [
                *FLAT,
                Field.TYPE_STRING,
                Field.TYPE_STRING,
                Field.TYPE_MESSAGE,
                Field.TYPE_MESSAGE,
            ]
        )
        if field.type == Field.TYPE_MESSAGE:
            field.type_name = f".{self.random.choice(file.message_type).name}"
        elif field.type == Field.TYPE_ENUM:
            field.type_name = ".Kind"

    def fill(self, message: Any, depth: int = 0) -> Any:
        draw = self.random
        for field in message.DESCRIPTOR.fields:
            if draw.random() < 0.3 or (depth > 3 and field.message_type is not None):
                continue
            if (
                field.message_type is not None
                and field.message_type.GetOptions().map_entry
            ):
                key, value = (
                    field.message_type.fields_by_name[name] for name in ("key", "value")
                )
                for _ in range(draw.choice((1, 2, 3))):
                    texts = key.type == Field.TYPE_STRING
                    name = draw.choice((*TEXTS, *NAMES) if texts else (0, 1))
                    name = bool(name) if key.type == Field.TYPE_BOOL else name
                    if value.message_type is not None:
                        self.fill(getattr(message, field.name)[name], depth + 1)
                    else:
                        getattr(message, field.name)[name] = self.value(value)
            elif field.is_repeated:
                for _ in range(draw.choice((1, 2, 2, 5))):
                    if field.message_type is not None:
                        self.fill(getattr(message, field.name).add(), depth + 1)
                    else:
                        getattr(message, field.name).append(self.value(field))
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self.value(field))
        return message

    def value(self, field: Any) -> Any:
        kind = field.type
        draw = self.random
        if kind == Field.TYPE_STRING:
            return draw.choice(TEXTS)
        if kind == Field.TYPE_BYTES:
            return draw.choice((b"", b"\xff", b"abc"))
        if kind == Field.TYPE_BOOL:
            return draw.random() < 0.5
        if kind == Field.TYPE_ENUM:
            return draw.choice(field.enum_type.values).number
        if kind in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
            return draw.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), 1e-44, 0.1))
        unsigned = kind in _UNSIGNED
        bits = 32 if kind in _BITS_32 else 64
        most = 2 ** (bits if unsigned else bits - 1) - 1
        negative = (0, 1) if unsigned else (-most - 1, -1)
        return draw.choice((0, 1, 5, 127, 128, most, *negative))

    def tree(self, message: Any) -> Node:
        """Return a tree of some paths through a message type, and now and then of no such path."""
        paths: Paths = {}
        self._paths(message, (), None, paths)
        return self.tree_of(paths)

    def _paths(
        self, message: Any, steps: tuple[str, ...], at: int | None, paths: Paths
    ) -> None:
        if len(steps) > 3:
            return
        for field in message.fields:
            path = (*steps, field.name)
            if (
                field.message_type is not None
                and field.message_type.GetOptions().map_entry
            ):
                paths[path, at] = at is None
                paths[(*path, "shop"), at] = False
            elif field.is_repeated and at is None:
                paths[path, None] = True
                paths[path, len(path)] = False
                if field.message_type is not None:
                    self._paths(field.message_type, path, len(path), paths)
            else:
                paths[path, at] = False
                if field.message_type is not None and not field.is_repeated:
                    self._paths(field.message_type, path, at, paths)

    def broken_or_joined(self, payload: bytes, other: bytes) -> bytes:
        return payload + other if self.random.random() < 0.15 else self.broken(payload)


def _case(seed: int, good: int) -> Case | int:
    generator = Generator(seed)
    schema = generator.schema()
    descriptor = ProtobufSchema(schema).message([0])
    kind = message_factory.GetMessageClass(descriptor)
    tree = generator.tree(descriptor)
    fmt = ProtobufFormat(tree)
    try:
        number = fmt.add(schema)
    except SchemaRefused:
        return 15 * good
    made = [generator.fill(kind()).SerializeToString() for _ in range(good)]
    for payload in made[:]:
        others = [generator.random.choice(made[:good]) for _ in range(14)]
        made += [generator.broken_or_joined(payload, other) for other in others]
    return Case(schema.text, fmt, number, tree, made)


def run(records: int, seed: int, way: Any = None) -> Outcome:
    return corpus.run(_case, records, seed, way)


if __name__ == "__main__":
    long_run(run)
