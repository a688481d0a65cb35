"""Protobuf schemas, messages and broken ones at random, and what the scanner makes of them.

python -m tests.events.formats.protobuf_corpus --records 10000000     the long run
"""

from __future__ import annotations

import argparse
import base64
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2

from tests.events.formats.walking import content, expected, unordered
from workers.arrays.texts import readonly_contiguous
from workers.events.field_spans import parts
from workers.events.formats.fitting import Refused
from workers.events.formats.protobuf import ProtobufFormat
from workers.events.formats.protobuf_program import ProtobufSchema
from workers.events.log import DECLINED
from workers.events.schemas import Schema
from workers.events.tree import Node, Wanted, build

Field = descriptor_pb2.FieldDescriptorProto
FLAT = [number for number in range(1, 19) if number not in (Field.TYPE_GROUP, Field.TYPE_MESSAGE)]
NAMES = ("a", "b", "c", "d", "e", "shop", "lines")
TEXTS = ("", "a", "\u00e4\u20ac", "\U0001f600", "x" * 70, "shop")
BYTES = (0, 1, 2, 3, 0x08, 0x0A, 0x12, 0x1A, 0x7F, 0x80, 0x81, 0xFF, 0xC2, 0xED, 0x0B)


class Generator:
    """Schemas and messages of one sequence of random numbers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._kinds: list[Any] = []

    def schema(self) -> Schema:
        """Return a file whose first message is of a few fields, as Python producers register it."""
        self._kinds, draw = [], self.random
        file = descriptor_pb2.FileDescriptorProto(
            name="f.proto", syntax=draw.choice(("proto2", "proto3"))
        )
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
            field = message.field.add(name=name, number=numbers.pop(), label=Field.LABEL_OPTIONAL)
            self._typed(field, file)
            what = draw.random()
            if what < 0.3:
                field.label = Field.LABEL_REPEATED
                if (
                    field.type not in (Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_MESSAGE)
                    and draw.random() < 0.5
                ):
                    field.options.packed = draw.random() < 0.5
            elif what < 0.45:
                entry = message.nested_type.add(
                    name=f"{name.capitalize()}Entry", options={"map_entry": True}
                )
                key = draw.choice([Field.TYPE_STRING] * 4 + [Field.TYPE_INT32, Field.TYPE_BOOL])
                entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=key)
                value = entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
                value.type = field.type
                if field.type_name:
                    value.type_name = field.type_name
                field.label, field.type = Field.LABEL_REPEATED, Field.TYPE_MESSAGE
                field.type_name = f".{message.name}.{entry.name}"
            elif what < 0.65 and message.oneof_decl:
                field.oneof_index = 0
        if message.oneof_decl and not any(field.HasField("oneof_index") for field in message.field):
            del message.oneof_decl[:]
        if file.syntax == "proto3":
            for field in message.field:
                if (
                    field.label == Field.LABEL_OPTIONAL
                    and not field.HasField("oneof_index")
                    and draw.random() < 0.3
                ):
                    field.proto3_optional = True
                    field.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{field.name}")

    def _typed(self, field: Any, file: Any) -> None:
        field.type = self.random.choice(
            [*FLAT, Field.TYPE_STRING, Field.TYPE_STRING, Field.TYPE_MESSAGE, Field.TYPE_MESSAGE]
        )
        if field.type == Field.TYPE_MESSAGE:
            field.type_name = f".{self.random.choice(file.message_type).name}"
        elif field.type == Field.TYPE_ENUM:
            field.type_name = ".Kind"

    def fill(self, message: Any, depth: int = 0) -> Any:
        """Return the message, with values in some of its fields."""
        draw = self.random
        for field in message.DESCRIPTOR.fields:
            if draw.random() < 0.3 or (depth > 3 and field.message_type is not None):
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
                for _ in range(draw.choice((1, 2, 3))):
                    name = (
                        draw.choice((*TEXTS, *NAMES))
                        if key.type == Field.TYPE_STRING
                        else draw.choice((0, 1))
                    )
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
        kind, draw = field.type, self.random
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
        unsigned = kind in (
            Field.TYPE_UINT32,
            Field.TYPE_UINT64,
            Field.TYPE_FIXED32,
            Field.TYPE_FIXED64,
        )
        bits = (
            32
            if kind
            in (
                Field.TYPE_INT32,
                Field.TYPE_UINT32,
                Field.TYPE_SINT32,
                Field.TYPE_FIXED32,
                Field.TYPE_SFIXED32,
            )
            else 64
        )
        most = 2 ** (bits if unsigned else bits - 1) - 1
        return draw.choice(
            (0, 1, 5, 127, 128, most, 0 if unsigned else -most - 1, 1 if unsigned else -1)
        )

    def tree(self, message: Any) -> Node:
        """Return a tree of some paths through a message type, and now and then of one that is not in it."""
        paths: dict[tuple[tuple[str, ...], int | None], bool] = {}
        self._paths(message, (), None, paths)
        draw = self.random
        taken = draw.sample(list(paths), min(len(paths), draw.randint(1, 5))) or [(("a",), None)]
        opened = [steps for steps, at in taken if paths.get((steps, at)) and draw.random() < 0.9]
        taken = [
            path
            for path in taken
            if not any(path[0][: len(steps)] == steps and path != (steps, None) for steps in opened)
        ]
        if draw.random() < 0.1:
            taken.append((("a", "nowhere"), None))
        wanted = {path: slot for slot, path in enumerate(dict.fromkeys(taken))}
        lists = {
            steps[:at]: len(wanted) + i for i, (steps, at) in enumerate(wanted) if at is not None
        }
        return build(
            [
                Wanted(
                    steps,
                    at,
                    slot,
                    at is None and (draw.random() < 0.03) != paths.get((steps, at), False),
                    -1 if at is None else lists[steps[:at]],
                )
                for (steps, at), slot in wanted.items()
            ]
        )

    def _paths(
        self, message: Any, steps: tuple[str, ...], at: int | None, paths: dict[Any, bool]
    ) -> None:
        if len(steps) > 3:
            return
        for field in message.fields:
            path = (*steps, field.name)
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
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

    def broken(self, payload: bytes, other: bytes) -> bytes:
        """Return a message with a few bytes changed, lost or doubled, or joined with another one."""
        draw, made = self.random, bytearray(payload)
        if draw.random() < 0.15:
            return payload + other
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            at = draw.randrange(len(made) + 1)
            what = draw.random()
            if what < 0.5 and at < len(made):
                made[at] = draw.choice(BYTES) if draw.random() < 0.6 else draw.randrange(256)
            elif what < 0.65:
                del made[at : at + draw.randint(1, 4)]
            elif what < 0.8:
                made[at:at] = draw.choice(
                    (b"\x80" * draw.randint(1, 11), draw.randbytes(draw.randint(1, 4)))
                )
            elif what < 0.9:
                made[at:at] = made[max(0, at - 4) : at]
            else:
                del made[at:]
        return bytes(made)


def difference(
    tree: Node, schema: Schema, payloads: Sequence[bytes], way: Any = None
) -> tuple[str | None, int, int]:
    """Return the first message of which scanner and upb say different things.

    Returns:
        what they say; how many messages upb could read; how many of these the scanner did.
    """
    form = ProtobufFormat(tree)
    try:
        number = form.add(schema)
    except Refused:
        return None, 0, 0
    lengths = np.array([len(payload) for payload in payloads], dtype=np.int64)
    stops = np.cumsum(lengths)
    values, roots = (
        readonly_contiguous(np.stack((stops - lengths, stops), axis=1)),
        readonly_contiguous(np.full(len(payloads), form.roots[number])),
    )
    data = np.frombuffer(b"".join(payloads) + form.texts.tobytes(), dtype=np.uint8)
    scan = form.logs(data, values, roots, int(stops[-1]))
    if way is not None:
        scan = partial(way, *scan.args)  # type: ignore[attr-defined]
    [logs] = parts(values, lambda *to: (data, scan(*to)), lambda row: row)
    before = readable = scanned = 0
    for i, payload in enumerate(payloads):
        try:
            found = form.decode(number, payload)
        except ValueError:
            if logs.status[i] == 0:
                return f"{schema} {payload!r}: read, though upb does not", 0, 0
            continue
        readable += 1
        if logs.status[i] == DECLINED:
            continue
        scanned += 1
        said, right = (
            unordered(content(logs.rows[before : logs.ends[i]], data)),
            unordered(expected(found, tree)),
        )
        before = int(logs.ends[i])
        if said != right:
            text = ProtobufSchema(schema).message([0]).file.serialized_pb
            return (
                f"{descriptor_pb2.FileDescriptorProto.FromString(text)} {tree} {payload!r}: {said}, not {right}",
                0,
                0,
            )
    return None, readable, scanned


def run(records: int, seed: int, way: Any = None) -> tuple[str | None, int, int]:
    """Compare the two over many schemas; return what `difference` does, in all."""
    from google.protobuf import message_factory

    readable = scanned = 0
    left = records
    while left > 0:
        generator = Generator(seed)
        seed += 1
        schema = generator.schema()
        descriptor = ProtobufSchema(schema).message([0])
        kind = message_factory.GetMessageClass(descriptor)
        tree = generator.tree(descriptor)
        good = [generator.fill(kind()).SerializeToString() for _ in range(min(left, 20))]
        broken = [
            generator.broken(payload, generator.random.choice(good))
            for payload in good
            for _ in range(14)
        ]
        said, more, read = difference(tree, schema, [*good, *broken], way)
        if said is not None:
            return f"seed {seed - 1}: {said}", readable, scanned
        readable, scanned, left = readable + more, scanned + read, left - len(good) - len(broken)
    return None, readable, scanned


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    options = parser.parse_args()
    print(run(options.records, options.seed))
