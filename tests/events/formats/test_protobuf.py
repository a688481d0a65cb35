"""What the Protobuf scanner reads is what upb reads; no bytes and no schema stop it or it them."""

import base64

import pytest
from google.protobuf import descriptor_pb2

from tests.arrays.uncompiled import uncompiled
from tests.events.formats.protobuf_corpus import run
from tests.events.formats.walking import (
    Said,
    assert_refused,
    expected,
    scanned,
    unordered,
)
from tests.events.json_corpus import tree as tree_of
from workers.events.formats import protobuf_scanner
from workers.events.formats.fitting import SchemaRefused
from workers.events.formats.protobuf import ProtobufFormat, indexes_of
from workers.events.schemas import Reference, Schema
from workers.events.tree import Node, Wanted, build

pytestmark = pytest.mark.slow

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  enum Kind { BUY = 0; RETURN = 1; }
  message Line { string sku = 1; int32 qty = 2; }
  string shop = 1;
  repeated Line lines = 2;
  repeated string tags = 3;
  map<string, int64> counts = 4;
  Kind kind = 5;
  optional string user = 6;
  google.protobuf.Timestamp at = 7;
  repeated sint32 sizes = 8;
  oneof how { string card = 9; bool cash = 10; }
  double price = 11;
  bytes blob = 12;
}
message Other { string shop = 1; }
"""
PATHS = {
    "shop": tree_of("shop"),
    "lines": build(
        [
            Wanted(("lines", "sku"), 1, 0, list_slot=2),
            Wanted(("lines", "qty"), 1, 1, list_slot=2),
        ]
    ),
    "tags": tree_of("tags", many=["tags"]),
    "sizes": build([Wanted(("sizes",), 1, 0, list_slot=1)]),
    "counts": tree_of("counts", many=["counts"]),
    "count": tree_of("counts.a", "kind"),
    "at": tree_of("at.seconds", "user"),
    "how": tree_of("cash", "price"),
}


# An entry of `counts`: "a" and a number.
ENTRY = b"\x22\x05\x0a\x01a\x10%c"


def both(tree: Node, payload: bytes, schema: Schema | None = None) -> Said | None:
    """What the scanner says of a record, None where it declines; what upb says has to be the same."""
    fmt = ProtobufFormat(tree)
    number = fmt.add(Schema("PROTOBUF", ORDER) if schema is None else schema)
    said = scanned(fmt, number, payload)
    if said is not None:
        assert said == unordered(expected(fmt.decode(number, payload), tree))
    return said


def opened(path: str) -> tuple[ProtobufFormat, int]:
    """Return the format of some paths, and the number of the schema of an order."""
    fmt = ProtobufFormat(PATHS[path])
    return fmt, fmt.add(Schema("PROTOBUF", ORDER))


def test_the_scanner_agrees_with_upb_about_whole_and_broken_messages() -> None:
    """The long run is `python -m tests.events.formats.protobuf_corpus --records 10000000`."""
    outcome = run(100_000, 7)
    assert outcome.differs is None
    # A scanner that declines everything would agree as well.
    assert outcome.readable > 30_000
    assert outcome.scanned > 0.6 * outcome.readable


def test_the_scanner_as_plain_python_agrees_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, kernel in [*vars(protobuf_scanner).items()]:
        if hasattr(kernel, "py_func"):
            monkeypatch.setattr(protobuf_scanner, name, uncompiled(kernel))
    outcome = run(3_000, 99, way=protobuf_scanner.scan_all)
    assert outcome.differs is None
    assert outcome.readable > 1_000


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        # What is not on the wire is its type's default, unless it has presence.
        ("shop", b""),
        ("at", b""),
        ("at", b"\x3a\x00\x32\x00"),
        ("count", b""),
        ("count", b"\x28\x01" + ENTRY % 5),
        # Lists, packed or not, in one piece.
        ("tags", b""),
        ("tags", b"\x1a\x01x\x1a\x01y"),
        ("sizes", b"\x42\x03\x01\x02\x03\x40\x04"),
        ("lines", b"\x12\x05\x0a\x01a\x10\x02\x12\x00"),
        ("counts", b""),
        ("counts", ENTRY % 2 + b"\x22\x00"),
        ("how", b"\x50\x01"),
        # A field that the schema does not know is skipped.
        ("shop", b"\xa2\x06\x01x\x0a\x01s"),
    ],
)
def test_plain_messages_are_scanned_and_say_what_upb_reads(
    path: str, payload: bytes
) -> None:
    assert both(PATHS[path], payload) is not None


@pytest.mark.parametrize(
    ("path", "payload", "found"),
    [
        ("shop", b"\x0a\x01a\x0a\x01b", {"shop": "b"}),  # the last one wins
        ("at", b"\x3a\x02\x08\x05\x3a\x02\x10\x07", {"at": {"seconds": 5}}),  # merged
        (
            "how",
            b"\x50\x01\x4a\x01x",
            {"price": 0.0},
        ),  # another of the oneof takes its place
        # Decided by the order alone.
        ("tags", b"\x1a\x01x\x0a\x01s\x1a\x01y", {"tags": ["x", "y"]}),
        ("counts", ENTRY % 2 + ENTRY % 3, {"counts": {"a": 3}}),
        (
            "count",
            b"\x28\x07",
            {"counts": {}, "kind": 7},
        ),  # an enum without a name for it
        ("shop", b"\x8a\x00\x01s", {"shop": "s"}),  # a number in a long form
        ("shop", b"\x9b\x06\x9c\x06\x0a\x01s", {"shop": "s"}),  # a group
    ],
)
def test_what_is_left_to_upb(path: str, payload: bytes, found: object) -> None:
    fmt, number = opened(path)
    if path != "tags":
        assert both(PATHS[path], payload) is None
    assert fmt.decode(number, payload) == found


NO_MESSAGES = (
    b"\x0a",
    b"\x0a\x02s",
    b"\x0a\x01\xff",
    b"\x00\x01",
    b"\x0b",
    b"\x3a\x02\x08",
    b"\x12\x03\x0a\x05x",
)


@pytest.mark.parametrize("payload", NO_MESSAGES)
def test_bytes_that_are_no_message_are_rejected(payload: bytes) -> None:
    assert_refused(*opened("shop"), payload, "not Protobuf")


def test_deep_messages_are_upbs_and_then_nobodys() -> None:
    text = 'syntax = "proto3"; message M { M m = 1; string shop = 2; }'
    for depth, readable in ((50, True), (90, True), (5_000, False)):
        payload = b"\x12\x01s"
        for _ in range(depth):
            size = len(payload)
            length = b""
            while size > 127:
                length = length + bytes([size & 127 | 128])
                size = size >> 7
            payload = b"\x0a" + length + bytes([size]) + payload
        payload += b"\x12\x01t"
        fmt = ProtobufFormat(PATHS["shop"])
        number = fmt.add(Schema("PROTOBUF", text))
        rows = {0: [("text", "t")]} if depth == 50 else None
        assert both(PATHS["shop"], payload, Schema("PROTOBUF", text)) == rows
        if readable:
            assert fmt.decode(number, payload) == {"shop": "t"}
        else:
            with pytest.raises(ValueError, match="not Protobuf"):
                fmt.decode(number, payload)


def test_bytes_of_a_record_say_which_message_it_is() -> None:
    assert indexes_of(b"\0") == [0]
    assert indexes_of(b"\x02\x02") == [1]
    assert indexes_of(b"\x04\x00\x02") == [0, 1]
    for wrong in (b"", b"\x02", b"\x02\x02\x02", b"\x02\x80", b"\x03\x00"):
        with pytest.raises(SchemaRefused, match="^no such message in the schema$"):
            indexes_of(wrong)
    fmt = ProtobufFormat(PATHS["shop"])
    schema = Schema("PROTOBUF", ORDER)
    other = fmt.add(schema, b"\x02\x02")
    line = fmt.add(schema, b"\x04\x00\x00")
    assert fmt.decode(other, b"\x0a\x01s") == {"shop": "s"}
    assert fmt.absent == ["shop"]
    assert fmt.decode(line, b"\x0a\x01s") == {}
    with pytest.raises(SchemaRefused, match="^no such message in the schema$"):
        fmt.add(schema, b"\x02\x04")


def test_schemas_import_each_other_as_text_and_as_descriptors() -> None:
    """Java registers text, Python base64; a subject may hold both."""
    line = (
        'syntax = "proto3"; package p; message Line { string sku = 1; int32 qty = 2; }'
    )
    text = 'syntax = "proto3"; package p; import "p/line.proto"; message Order { repeated Line lines = 2; }'
    descriptor = descriptor_pb2.FileDescriptorProto(
        name="other.proto", package="p", syntax="proto3"
    )
    message = descriptor.message_type.add(name="Line")
    message.field.add(name="sku", number=1, label=1, type=9)
    message.field.add(name="qty", number=2, label=1, type=5)
    encoded = base64.b64encode(descriptor.SerializeToString()).decode()
    for reference in (line, encoded):
        schema = Schema("PROTOBUF", text, (Reference("p/line.proto", reference),))
        found = both(PATHS["lines"], b"\x12\x05\x0a\x01a\x10\x02", schema)
        assert found == {2: [("list", 1)], 0: [("text", "a")], 1: [("whole", 2)]}


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (tree_of("shop.x"), "field 'shop.x': 'shop' is of type string in the schema"),
        (
            tree_of("shop[]"),
            r"field 'shop\[\]': 'shop' is no repeated field in the schema",
        ),
        (
            tree_of("lines.sku"),
            "field 'lines.sku': 'lines' is a repeated field in the schema",
        ),
        (
            tree_of("lines[].sku.x"),
            r"field 'lines\[\].sku.x': 'lines\[\].sku' is of type string in the schema",
        ),
        (
            tree_of("counts.a.b"),
            "field 'counts.a.b': 'counts.a' is of type int64 in the schema",
        ),
        (tree_of("at", many=["at"]), "field 'at' is a message in the schema"),
    ],
)
def test_what_cannot_be_in_a_schema_is_said_with_its_path(tree: Node, why: str) -> None:
    with pytest.raises(SchemaRefused, match=f"^{why}$"):
        ProtobufFormat(tree).add(Schema("PROTOBUF", ORDER))


NO_SCHEMAS = [
    "message {",
    'syntax = "proto3"; import "nowhere.proto"; message M {',
    base64.b64encode(b"\x0a\x01f\x22\x02\x0a\x00").decode(),
    "message A {" * 50_000,
]
OUTSIDE = Schema(
    "PROTOBUF", 'syntax = "proto3"; message M {}', (Reference("../x.proto", "message"),)
)


@pytest.mark.parametrize(
    "schema", [*(Schema("PROTOBUF", text) for text in NO_SCHEMAS), OUTSIDE]
)
def test_a_schema_that_is_none_is_refused(schema: Schema) -> None:
    with pytest.raises(SchemaRefused, match="schema cannot be read"):
        ProtobufFormat(PATHS["shop"]).add(schema)
