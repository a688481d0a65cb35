"""Avro schemas, values and broken records at random, and what the scanner makes of them.

python -m tests.events.formats.avro_corpus --records 10000000     the long run
"""

import io
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import fastavro

from tests.events.comparison import Outcome, long_run
from tests.events.formats import corpus
from tests.events.formats.corpus import NAMES, Case, Paths
from workers.events.formats.avro import AvroFormat, AvroSchema, parse
from workers.events.formats.fitting import SchemaRefused
from workers.events.schemas import Schema
from workers.events.tree import Node

FLAT = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
TEXTS = ("", "a", "\u00e4\u20ac", "\U0001f600", "x" * 70, "b\u0000c", "shop")
WHOLES = (0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31))
LONGS = (*WHOLES, 2**63 - 1, -(2**63), 1_800_000_000_000)
# Fields that only the reader's schema has.
ADDED: tuple[dict[str, Any], ...] = (
    {"name": "new", "type": "string", "default": "x"},
    {"name": "more", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
    {"name": "most", "type": {"type": "map", "values": "long"}, "default": {"a": 1}},
    {"name": "less", "type": ["null", "string"], "default": None},
    {"name": "real", "type": "double", "default": 1.5},
    {"name": "missing", "type": "int"},
)


class Generator(corpus.Draw):
    # Ends of blocks, counts, long numbers.
    BYTES = (0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFE, 0xFF, 0xC2, 0xED, 0xF4)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._named: list[Any] = []

    def schema(self) -> dict[str, Any]:
        self._named = []
        return self._record(0)

    def _name(self) -> str:
        return f"N{len(self._named)}"

    def _named_type(self, name: str) -> Any:
        return next(
            (each for each in self._named if each["name"] == name), {"type": name}
        )

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
            colors = ["red", "green", "blue", "BLACK_1"]
            symbols = self.random.sample(colors, self.random.randint(1, 4))
            self._named.append(
                {"type": "enum", "name": self._name(), "symbols": symbols}
            )
            return self._named[-1]
        if draw < 0.83:
            size = self.random.randint(0, 5)
            self._named.append({"type": "fixed", "name": self._name(), "size": size})
            return self._named[-1]
        branches: list[Any] = [self.type(5)]
        if self.random.random() < 0.3:
            branches.append({"type": "array", "items": self.type(depth + 1)})
        elif self.random.random() < 0.4:
            branches.append(self._record(depth))
        if self.random.random() < 0.15:
            branches.append(self._named[0]["name"])
        return (
            [*branches, "null"] if self.random.random() < 0.3 else ["null", *branches]
        )

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value of a type; unions as (name, value) where it is needed."""
        draw = self.random
        if isinstance(schema, list):
            branch = draw.choice(schema) if depth < 5 else schema[0]
            if depth >= 5 and "null" in schema:
                branch = "null"
            if isinstance(branch, str) and branch not in FLAT:
                return branch, self.value(self._named_type(branch), depth + 1)
            if isinstance(branch, dict) and branch["type"] in (
                "record",
                "enum",
                "fixed",
            ):
                return branch["name"], self.value(branch, depth + 1)
            return self.value(branch, depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return {
                each["name"]: self.value(each["type"], depth + 1)
                for each in schema["fields"]
            }
        if kind == "array":
            number = draw.choice((0, 1, 2, 2, 3, 5))
            return [self.value(schema["items"], depth + 1) for _ in range(number)]
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
        paths: Paths = {}
        self._paths(schema, (), None, paths, 0)
        return self.tree_of(paths)

    def _paths(
        self,
        schema: Any,
        steps: tuple[str, ...],
        at: int | None,
        paths: Paths,
        depth: int,
    ) -> None:
        """Add the paths to values, and whether they have to be opened there."""
        if isinstance(schema, str):
            schema = self._named_type(schema)
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
        draw = self.random
        if isinstance(schema, list):
            return [
                each if isinstance(each, str) else self.evolved(each) for each in schema
            ]
        if isinstance(schema, str):
            promoted = {
                "int": ("long", "double", ["null", "int"]),
                "float": ("double",),
                "string": (["null", "string"], "bytes"),
            }
            changed = schema in promoted and draw.random() < 0.15
            return draw.choice(promoted[schema]) if changed else schema
        made = dict(schema)
        for name in ("items", "values"):
            if name in made:
                made[name] = self.evolved(made[name])
        if made["type"] == "enum" and draw.random() < 0.3:
            made["symbols"] = draw.choice(
                (made["symbols"] + ["more"], made["symbols"][:1])
            )
        if made["type"] == "record":
            kept = (each for each in made["fields"] if draw.random() < 0.9)
            fields = [{**each, "type": self.evolved(each["type"])} for each in kept]
            for each in fields:
                if draw.random() < 0.15:
                    each["aliases"], each["name"] = (
                        [each["name"]],
                        "new_" + each["name"],
                    )
            for added in ADDED:
                if draw.random() < 0.1:
                    fields.append(dict(added))
            draw.shuffle(fields)
            made["fields"] = fields
        return made


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def difference(
    tree: Node, schema: Any, payloads: Sequence[bytes], reader: AvroSchema | None = None
) -> Outcome:
    fmt = AvroFormat(tree, reader)
    try:
        number = fmt.add(Schema("AVRO", json.dumps(schema)))
    except SchemaRefused:
        return Outcome(None)
    return corpus.difference(fmt, number, tree, payloads)


def _case(seed: int, good: int, *, evolving: bool) -> Case | int:
    generator = Generator(seed)
    schema = generator.schema()
    reader = None
    wanted = schema
    if evolving:
        wanted = generator.evolved(schema)
        try:
            reader = parse(json.dumps(wanted))
        except ValueError:
            return 0
    tree = generator.tree(wanted)
    fmt = AvroFormat(tree, reader)
    try:
        number = fmt.add(Schema("AVRO", json.dumps(schema)))
    except SchemaRefused:
        return 15 * good
    payloads = [written(schema, generator.value(schema)) for _ in range(good)]
    payloads += [generator.broken(payload) for payload in payloads for _ in range(14)]
    return Case(f"{schema} read as {wanted}", fmt, number, tree, payloads)


def run(records: int, seed: int, *, evolving: bool = False, way: Any = None) -> Outcome:
    """Compare the two over many schemas, with readers' schemas too if `evolving`."""
    return corpus.run(partial(_case, evolving=evolving), records, seed, way)


if __name__ == "__main__":
    long_run(run, partial(run, evolving=True))
