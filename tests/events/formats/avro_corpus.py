"""Avro schemas, values and broken records at random, and what the scanner makes of them.

python -m tests.events.formats.avro_corpus --records 10000000     the long run
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import fastavro
import numpy as np

from tests.events.formats.walking import content, expected
from workers.arrays.texts import readonly_contiguous
from workers.events.field_spans import parts
from workers.events.formats.avro import AvroFormat
from workers.events.formats.avro_program import AvroSchema, parse
from workers.events.formats.fitting import Refused
from workers.events.log import DECLINED
from workers.events.schemas import Schema
from workers.events.tree import Node, Wanted, build

FLAT = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMES = ("a", "b", "c", "d", "e", "shop", "lines")
TEXTS = ("", "a", "\u00e4\u20ac", "\U0001f600", "x" * 70, "b\u0000c", "shop")
WHOLES = (0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31))
LONGS = (*WHOLES, 2**63 - 1, -(2**63), 1_800_000_000_000)
# What a byte of a broken record becomes, most often: ends of blocks, counts, long numbers.
BYTES = (0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFE, 0xFF, 0xC2, 0xED, 0xF4)


class Generator:
    """Schemas and values of one sequence of random numbers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._named: list[Any] = []

    def schema(self) -> dict[str, Any]:
        """Return a record with a few fields."""
        self._named = []
        return self._record(0)

    def _name(self) -> str:
        return f"N{len(self._named)}"

    def _record(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "record", "name": self._name(), "fields": []}
        self._named.append(made)
        for name in self.random.sample(NAMES, self.random.randint(1, 5)):
            made["fields"].append({"name": name, "type": self.type(depth + 1)})
        return made

    def type(self, depth: int) -> Any:
        draw = self.random.random()
        if depth > 3 or draw < 0.4:
            return self.random.choice(FLAT[1:])
        if draw < 0.55:
            return {"type": "array", "items": self.type(depth + 1)}
        if draw < 0.65:
            return {"type": "map", "values": self.type(depth + 1)}
        if draw < 0.75:
            return self._record(depth)
        if draw < 0.8:
            symbols = self.random.sample(
                ["red", "green", "blue", "BLACK_1"], self.random.randint(1, 4)
            )
            self._named.append({"type": "enum", "name": self._name(), "symbols": symbols})
            return self._named[-1]
        if draw < 0.83:
            self._named.append(
                {"type": "fixed", "name": self._name(), "size": self.random.randint(0, 5)}
            )
            return self._named[-1]
        branches: list[Any] = [self.type(5)]
        if self.random.random() < 0.3:
            branches.append({"type": "array", "items": self.type(depth + 1)})
        elif self.random.random() < 0.4:
            branches.append(self._record(depth))
        if self.random.random() < 0.15:
            branches.append(self._named[0]["name"])
        return [*branches, "null"] if self.random.random() < 0.3 else ["null", *branches]

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value of a type; unions as (name, value) where it is needed."""
        draw = self.random
        if isinstance(schema, list):
            branch = (
                draw.choice(schema)
                if depth < 5
                else schema["null" not in schema[:1] and "null" in schema]
            )
            if depth >= 5 and "null" in schema:
                branch = "null"
            if isinstance(branch, str) and branch not in FLAT:
                return branch, self.value(
                    next(each for each in self._named if each["name"] == branch), depth + 1
                )
            if isinstance(branch, dict) and branch["type"] in ("record", "enum", "fixed"):
                return branch["name"], self.value(branch, depth + 1)
            return self.value(branch, depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return {each["name"]: self.value(each["type"], depth + 1) for each in schema["fields"]}
        if kind == "array":
            return [
                self.value(schema["items"], depth + 1)
                for _ in range(draw.choice((0, 1, 2, 2, 3, 5)))
            ]
        if kind == "map":
            return {
                draw.choice((*TEXTS, *NAMES)): self.value(schema["values"], depth + 1)
                for _ in range(draw.choice((0, 1, 2, 4)))
            }
        if kind == "enum":
            return draw.choice(schema["symbols"])
        if kind == "fixed":
            return draw.randbytes(schema["size"])
        values: dict[str, Sequence[Any]] = {
            "null": (None,),
            "boolean": (True, False),
            "int": WHOLES,
            "long": LONGS,
            "float": (0.0, 1.5, -2.25, float("inf"), float("nan"), 1e-44),
            "double": (0.0, -0.0, 0.1, 1e300, float("nan"), float("-inf"), 5e-324),
            "bytes": (b"", b"abc", b"\xff"),
            "string": TEXTS,
        }
        return draw.choice(values[kind])

    def tree(self, schema: Any) -> Node:
        """Return a tree of some paths through the schema; now and then one that cannot be in it."""
        paths: dict[tuple[tuple[str, ...], int | None], bool] = {}
        self._paths(schema, (), None, paths, 0)
        draw = self.random
        taken = draw.sample(list(paths), min(len(paths), draw.randint(1, 5))) or [(("a",), None)]
        # What is opened and looked into as well is the general reader's.
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
                    at is None
                    and (draw.random() < 0.03) != paths.get((steps, at), draw.random() < 0.5),
                    -1 if at is None else lists[steps[:at]],
                )
                for (steps, at), slot in wanted.items()
            ]
        )

    def _paths(
        self,
        schema: Any,
        steps: tuple[str, ...],
        at: int | None,
        paths: dict[Any, bool],
        depth: int,
    ) -> None:
        """Add the paths to values, and whether they have to be opened there."""
        if isinstance(schema, str):
            schema = next(
                (each for each in self._named if each["name"] == schema), {"type": schema}
            )
        if depth > 4:
            return
        if isinstance(schema, list):
            for branch in schema:
                self._paths(branch, steps, at, paths, depth + 1)
            return
        within = schema["type"] in ("record", "array", "map")
        unfit = schema["type"] in ("bytes", "fixed") and self.random.random() < 0.9
        if steps and not unfit and not (within and at is not None):
            paths.setdefault((steps, at), within)
        if schema["type"] == "record":
            for each in schema["fields"]:
                self._paths(each["type"], (*steps, each["name"]), at, paths, depth + 1)
        elif schema["type"] == "map":
            for name in NAMES[:2]:
                self._paths(schema["values"], (*steps, name), at, paths, depth + 1)
        elif schema["type"] == "array" and at is None:
            self._paths(schema["items"], steps, len(steps), paths, depth + 1)

    def evolved(self, schema: Any) -> Any:
        """Return a schema that reads what `schema` writes, mostly."""
        draw = self.random
        if isinstance(schema, list):
            return [
                branch if isinstance(branch, str) else self.evolved(branch) for branch in schema
            ]
        if isinstance(schema, str):
            promoted = {
                "int": ("long", "double", ["null", "int"]),
                "float": ("double",),
                "string": (["null", "string"], "bytes"),
            }
            return (
                draw.choice(promoted[schema])
                if schema in promoted and draw.random() < 0.15
                else schema
            )
        made = dict(schema)
        for name in ("items", "values"):
            if name in made:
                made[name] = self.evolved(made[name])
        if made["type"] == "enum" and draw.random() < 0.3:
            made["symbols"] = draw.choice((made["symbols"] + ["more"], made["symbols"][:1]))
        if made["type"] == "record":
            fields = [
                {**each, "type": self.evolved(each["type"])}
                for each in made["fields"]
                if draw.random() < 0.9
            ]
            for each in fields:
                if draw.random() < 0.15:
                    each["aliases"], each["name"] = [each["name"]], "new_" + each["name"]
            for name, kind, default in (
                ("new", "string", "x"),
                ("more", {"type": "array", "items": "int"}, [1, 2]),
                ("most", {"type": "map", "values": "long"}, {"a": 1}),
                ("less", ["null", "string"], None),
                ("real", "double", 1.5),
                ("missing", "int", ...),
            ):
                if draw.random() < 0.1:
                    fields.append(
                        {"name": name, "type": kind}
                        | ({} if default is ... else {"default": default})
                    )
            draw.shuffle(fields)
            made["fields"] = fields
        return made

    def broken(self, payload: bytes) -> bytes:
        """Return a record with a few bytes changed, lost or doubled."""
        draw, made = self.random, bytearray(payload)
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


def written(schema: Any, value: Any) -> bytes:
    """Return a value as Avro bytes."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def difference(
    tree: Node,
    schema: Any,
    payloads: Sequence[bytes],
    reader: AvroSchema | None = None,
    way: Any = None,
) -> tuple[str | None, int, int]:
    """Return the first record of which scanner and fastavro say different things.

    Returns:
        what they say; how many records fastavro could read; how many of these the scanner did.
    """
    form = AvroFormat(tree, reader)
    try:
        number = form.add(Schema("AVRO", json.dumps(schema)))
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
                return f"{schema} {payload!r}: read, though fastavro does not", 0, 0
            continue
        readable += 1
        if logs.status[i] == DECLINED:
            continue
        scanned += 1
        said, right = content(logs.rows[before : logs.ends[i]], data), expected(found, tree)
        before = int(logs.ends[i])
        if said != right:
            return f"{schema} {tree} {payload!r}: {said}, not {right}", 0, 0
    return None, readable, scanned


def run(
    records: int, seed: int, *, evolving: bool = False, way: Any = None
) -> tuple[str | None, int, int]:
    """Compare the two over many schemas, with readers' schemas too; return what `difference` does, in all."""
    readable = scanned = 0
    left = records
    while left > 0:
        generator = Generator(seed)
        seed += 1
        schema = generator.schema()
        reader, wanted = None, schema
        if evolving:
            wanted = generator.evolved(schema)
            try:
                reader = parse(json.dumps(wanted))
            except ValueError:
                continue
        tree = generator.tree(wanted)
        good = [written(schema, generator.value(schema)) for _ in range(min(left, 20))]
        broken = [generator.broken(payload) for payload in good for _ in range(14)]
        said, more, read = difference(tree, schema, [*good, *broken], reader, way)
        if said is not None:
            return f"seed {seed - 1}: {said}", readable, scanned
        readable, scanned, left = readable + more, scanned + read, left - len(good) - len(broken)
    return None, readable, scanned


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    options = parser.parse_args()
    print(run(options.records // 2, options.seed))
    print(run(options.records // 2, options.seed, evolving=True))
