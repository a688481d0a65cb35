"""What the Avro scanner reads is what fastavro reads; no bytes and no schema stop it or it them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.arrays.uncompiled import uncompiled
from tests.events.comparison import Outcome
from tests.events.formats.avro_corpus import difference, run, written
from tests.events.formats.walking import Said, assert_refused, scanned
from tests.events.json_corpus import tree as tree_of
from workers.events.formats import avro_scanner
from workers.events.formats.avro import AvroFormat, parse, read_reader_schema
from workers.events.formats.fitting import SchemaRefused
from workers.events.formats.reader import make_format
from workers.events.schemas import Reference, Schema
from workers.events.tree import Node, Wanted, build
from workers.runtime.errors import SettingsError

pytestmark = pytest.mark.slow

SHOP = tree_of("shop")
LINES = build(
    [
        Wanted(("lines", "sku"), 1, 0, list_slot=2),
        Wanted(("lines", "qty"), 1, 1, list_slot=2),
    ]
)


def record(
    *fields: tuple[str, Any] | dict[str, Any], name: str = "Event"
) -> dict[str, Any]:
    made = [
        each if isinstance(each, dict) else {"name": each[0], "type": each[1]}
        for each in fields
    ]
    return {"type": "record", "name": name, "fields": made}


LINE = record(("sku", "string"), ("qty", "int"), name="Line")
TEXTS = {"type": "array", "items": "string"}


def add(fmt: AvroFormat, schema: Any) -> int:
    return fmt.add(Schema("AVRO", json.dumps(schema)))


def opened(tree: Node, *fields: tuple[str, Any]) -> tuple[AvroFormat, int]:
    """Return the format of a tree, and the number of the schema of a record."""
    fmt = AvroFormat(tree)
    return fmt, add(fmt, record(*fields))


def read(tree: Node, schema: Any, value: Any, reader: Any = None) -> Said | None:
    """Return what the scanner says of a value of a schema; fastavro has to say the same."""
    text = None if reader is None else parse(json.dumps(reader))
    payload = written(schema, value)
    assert difference(tree, schema, [payload], text) == Outcome(None, 1, 1)
    fmt = AvroFormat(tree, text)
    return scanned(fmt, add(fmt, schema), payload)


@pytest.mark.parametrize("evolving", [False, True])
def test_the_scanner_agrees_with_fastavro_about_whole_and_broken_records(
    evolving: bool,
) -> None:
    """The long run is `python -m tests.events.formats.avro_corpus --records 10000000`."""
    outcome = run(60_000, 7, evolving=evolving)
    assert outcome.differs is None
    # A scanner that declines everything would agree as well.
    assert outcome.readable > 8_000
    assert outcome.scanned > 0.8 * outcome.readable


def test_the_scanner_as_plain_python_agrees_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, kernel in [*vars(avro_scanner).items()]:
        if hasattr(kernel, "py_func"):
            monkeypatch.setattr(avro_scanner, name, uncompiled(kernel))
    outcome = run(3_000, 99, way=avro_scanner.scan_all)
    assert outcome.differs is None
    assert outcome.readable > 300


def test_a_list_of_records_with_counts() -> None:
    value = {"lines": [{"sku": "a", "qty": 2}, {"sku": "\u00e4", "qty": -7}]}
    read(LINES, record(("lines", {"type": "array", "items": LINE})), value)


def test_blocks_with_sizes_are_read_as_one_list() -> None:
    fmt, number = opened(tree_of("a", many=["a"]), ("a", TEXTS))
    whole = b"\x03\x08\x02x\x02y" + b"\x02\x02z" + b"\x00"
    assert scanned(fmt, number, whole) == {
        0: [("list", 3), *(("text", each) for each in "xyz")]
    }
    assert fmt.decode(number, whole) == {"a": ["x", "y", "z"]}
    # A block that is not as long as it says is broken, though fastavro does not look.
    for wrong in (
        b"\x03\x06\x02x\x02y\x00",
        b"\x03\x0a\x02x\x02y\x00",
        b"\x03\x09\x02x\x02y\x00",
    ):
        assert_refused(fmt, number, wrong, "not Avro")


def test_logical_types_are_what_was_written() -> None:
    schema = record(
        ("ts", {"type": "long", "logicalType": "timestamp-millis"}),
        ("id", {"type": "string", "logicalType": "uuid"}),
    )
    fmt = AvroFormat(tree_of("ts", "id"))
    number = add(fmt, schema)
    value = {"ts": 1_800_000_000_123, "id": "no uuid"}
    payload = written(record(("ts", "long"), ("id", "string")), value)
    rows = {0: [("whole", 1_800_000_000_123)], 1: [("text", "no uuid")]}
    assert scanned(fmt, number, payload) == rows
    assert fmt.decode(number, payload) == value


def test_counts_are_a_map_or_a_record() -> None:
    tree = tree_of("counts", many=["counts"])
    counts = record(("apple", "int"), ("pear", "long"), name="Counts")
    rows = [("map", 2), ("text", "apple"), ("whole", 3), ("text", "pear"), ("whole", 4)]
    for inner in ({"type": "map", "values": "int"}, counts):
        found = read(
            tree, record(("counts", inner)), {"counts": {"apple": 3, "pear": 4}}
        )
        assert found == {0: rows}


def test_enums_are_their_symbols_and_paths_go_through_maps() -> None:
    tree = tree_of("kind", "tags.shop")
    schema = record(
        ("kind", {"type": "enum", "name": "K", "symbols": ["buy", "sell"]}),
        ("tags", {"type": "map", "values": "string"}),
    )
    read(tree, schema, {"kind": "sell", "tags": {"x": "y", "shop": "s"}})
    read(tree, schema, {"kind": "buy", "tags": {}})


def test_a_name_twice_in_a_map_is_left_to_fastavro() -> None:
    fmt, number = opened(
        tree_of("m", many=["m"]), ("m", {"type": "map", "values": "int"})
    )
    twice = b"\x04\x02a\x02\x02a\x04\x00"
    assert scanned(fmt, number, twice) is None
    assert fmt.decode(number, twice) == {"m": {"a": 2}}


WRITER = record(("store", "string"), ("n", "int"), ("gone", ["null", "string"]))
READER = record(
    {"name": "shop", "type": "string", "aliases": ["store"]},
    {"name": "n", "type": "long"},
    {"name": "country", "type": "string", "default": "ch\u00e4"},
    {"name": "tags", "type": TEXTS, "default": ["x", "y"]},
)


def test_a_readers_schema_renames_promotes_and_fills_in() -> None:
    tree = tree_of("shop", "n", "country", "tags", many=["tags"])
    assert read(tree, WRITER, {"store": "s1", "n": 5, "gone": "x"}, READER) == {
        0: [("text", "s1")],
        1: [("whole", 5)],
        2: [("text", "ch\u00e4")],
        3: [("list", 2), ("text", "x"), ("text", "y")],
    }


def test_what_resolution_comes_to_otherwise_is_fastavros() -> None:
    tree = tree_of("n")
    reader = record(("n", "double"))
    fmt = AvroFormat(tree, parse(json.dumps(reader)))
    number = add(fmt, WRITER)
    payload = written(WRITER, {"store": "s", "n": 5, "gone": None})
    assert scanned(fmt, number, payload) is None
    assert fmt.decode(number, payload) == {"n": 5.0}
    kinds = [
        {"type": "enum", "name": "K", "symbols": symbols}
        for symbols in (["a", "b"], ["a"])
    ]
    fmt = AvroFormat(
        tree, parse(json.dumps(record(("n", {**kinds[1], "default": "a"}))))
    )
    number = add(fmt, record(("n", kinds[0])))
    assert fmt.decode(number, b"\x02") == {"n": "a"}
    fmt = AvroFormat(tree, parse(json.dumps(record(("n", kinds[1])))))
    number = add(fmt, record(("n", kinds[0])))
    assert fmt.decode(number, b"\x00") == {"n": "a"}
    with pytest.raises(ValueError, match="not what the reader schema says"):
        fmt.decode(number, b"\x02")


def test_schemas_of_several_writers_are_one_program() -> None:
    fmt = AvroFormat(SHOP)
    first = add(fmt, record(("shop", "string")))
    shop = {"type": "enum", "name": "S", "symbols": ["s2"]}
    second = add(fmt, record(("x", "long"), ("shop", shop)))
    assert scanned(fmt, second, b"\x04\x00") == {0: [("text", "s2")]}
    assert scanned(fmt, first, b"\x04s1") == {0: [("text", "s1")]}
    assert fmt.decode(first, b"\x04s1") == {"shop": "s1"}


def test_schemas_refer_to_each_other_and_may_be_a_union() -> None:
    order = record(("lines", {"type": "array", "items": "Line"}), name="Order")
    named = (("Line", LINE), ("Order", order))
    references = tuple(Reference(name, json.dumps(schema)) for name, schema in named)
    fmt = AvroFormat(LINES)
    number = fmt.add(Schema("AVRO", '["Order", "Line"]', references))
    payload = b"\x00\x02\x02a\x04\x00"
    assert scanned(fmt, number, payload) == {
        2: [("list", 1)],
        0: [("text", "a")],
        1: [("whole", 2)],
    }
    assert fmt.decode(number, payload) == {"lines": [{"sku": "a", "qty": 2}]}
    assert scanned(fmt, number, b"\x02\x02a\x04") == {}


def test_what_cannot_be_in_a_schema_is_said_with_its_path() -> None:
    schema = record(("shop", "bytes"), ("lines", LINE), ("tags", TEXTS))
    for tree, why in (
        (LINES, r"field 'lines\[\].sku': 'lines' is a record in the schema"),
        (tree_of("tags.x"), "field 'tags.x': 'tags' is a list in the schema"),
        (
            tree_of("lines.sku.x"),
            r"field 'lines.sku.x': 'lines.sku' is a string in the schema",
        ),
    ):
        with pytest.raises(SchemaRefused, match=f"^{why}$"):
            add(AvroFormat(tree), schema)
    # Whether a record is there may be a condition; whether it is a label, each event says.
    value = {"shop": b"", "lines": {"sku": "a", "qty": 1}, "tags": []}
    assert read(tree_of("lines"), schema, value) == {0: [("other",)]}
    fmt = AvroFormat(tree_of("nowhere.x"))
    add(fmt, schema)
    assert fmt.absent == ["nowhere.x"]


NO_SCHEMAS = (
    "",
    "{",
    "1",
    "[]x",
    '{"type": "record"}',
    '"Unknown"',
    '["null", ["null", "int"]]',
    "[" * 5_000,
    '{"type": {"type": {}}}',
)


@pytest.mark.parametrize("text", NO_SCHEMAS)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SchemaRefused, match="schema cannot be read"):
        AvroFormat(SHOP).add(Schema("AVRO", text))


def test_a_schema_of_another_format_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="schema of another format"):
        AvroFormat(SHOP).add(Schema("PROTOBUF", 'syntax = "proto3";'))


def test_hostile_records_cost_neither_time_nor_memory_nor_the_process() -> None:
    """fastavro would build a list of 2^62 nulls, or descend until the process has no stack left."""
    nulls, number = opened(SHOP, ("a", {"type": "array", "items": "null"}))
    many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    assert_refused(nulls, number, many + b"\x00", "not Avro")
    chain, number = opened(SHOP, ("shop", "string"), ("next", ["null", "Event"]))
    link = b"\x02s\x02"
    assert scanned(chain, number, link * 30 + b"\x02s\x00") == {0: [("text", "s")]}
    # Deeper than the scanner goes: fastavro's; deeper than that: nobody's.
    assert scanned(chain, number, link * 300 + b"\x02s\x00") is None
    assert isinstance(chain.decode(number, link * 300 + b"\x02s\x00"), dict)
    for depth in (600, 1_000_000):
        assert_refused(chain, number, link * depth + b"\x02s\x00", "not Avro")
    endless, number = opened(SHOP, ("next", "Event"))
    assert_refused(endless, number, b"", "not Avro")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x04s",
        b"\x04s1x",
        b"\x84\x00s1",
        b"\x03",
        b"\x02\xff",
        b"\x06\xed\xa0\x80",
    ],
)
def test_bytes_that_are_no_record_are_rejected(payload: bytes) -> None:
    """Too short, too long, a length that is not in its shortest form or negative, no UTF-8."""
    fmt, number = opened(SHOP, ("shop", "string"))
    assert_refused(fmt, number, payload, "not Avro")


def test_a_reader_schema_has_to_have_what_the_settings_name(tmp_path: Path) -> None:
    path = tmp_path / "reader.avsc"
    path.write_text(json.dumps(READER))
    assert read_reader_schema(path, SHOP).type["name"] == "Event"
    for tree, text, why in (
        (LINES, None, "it has no field 'lines\\[\\].sku'"),
        (tree_of("shop.x"), None, "field 'shop.x': 'shop' is a string in the schema"),
        (SHOP, "{", "no Avro schema"),
        (SHOP, '["null", ["null", "int"]]', "no Avro schema"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(
            SettingsError, match=f"^schema_registry.reader_schema: {path}: {why}$"
        ):
            read_reader_schema(path, tree)
    with pytest.raises(SettingsError, match="no such file"):
        read_reader_schema(tmp_path / "nowhere", SHOP)


def test_formats_that_are_not_installed_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(make_format("avro", SHOP), AvroFormat)
    monkeypatch.delitem(sys.modules, "workers.events.formats.avro")
    monkeypatch.setitem(sys.modules, "fastavro", None)
    missing = r'^events.format = "avro": install quietcount\[formats\]: '
    with pytest.raises(SettingsError, match=missing):
        make_format("avro", SHOP)


@pytest.mark.parametrize("size", [-1, 2**31, 2**64, 10**400, "4", 1.5, True])
def test_a_fixed_of_a_size_that_no_record_has_is_refused_and_later_schemas_are_not(
    size: Any,
) -> None:
    """Its row would end every later program: any producer may register a schema."""
    fmt = AvroFormat(SHOP)
    fixed = {"type": "fixed", "name": "F", "size": size}
    with pytest.raises(SchemaRefused):
        add(fmt, record(("shop", "string"), ("f", fixed)))
    assert scanned(fmt, add(fmt, record(("shop", "string"))), b"\x02a") == {
        0: [("text", "a")]
    }
