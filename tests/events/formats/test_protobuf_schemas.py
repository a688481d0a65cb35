"""Schemas whose imports are well known, missing or hostile: what is certain is read, the rest named."""

import base64
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from google.protobuf import descriptor_pb2

from tests.events.formats.walking import scanned
from tests.events.json_corpus import tree as tree_of
from workers.events.formats.fitting import SchemaRefused, Unreadable
from workers.events.formats.protobuf import ProtobufFormat
from workers.events.formats.protobuf_schemas import without_custom_options
from workers.events.formats.reader import FormatReader
from workers.events.schemas import Access, AlwaysOpen, Reference, Registry, Schema
from workers.kafka.records import Records

pytestmark = pytest.mark.slow

WELL_KNOWN = (
    "confluent/meta.proto",
    "confluent/type/decimal.proto",
    "confluent/type/variant.proto",
    "confluent/types/decimal.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/wrappers.proto",
    "google/type/money.proto",
    "google/type/date.proto",
    "google/rpc/status.proto",
    "google/api/annotations.proto",
)


def schema(text: str, *references: Reference) -> Schema:
    return Schema("PROTOBUF", text, references)


def test_imports_that_no_registry_stores_are_known() -> None:
    """Confluent's and Google's clients have these built in, so nobody registers them."""
    imports = "".join(f'import "{name}";' for name in WELL_KNOWN)
    fields = """
      string shop = 1 [(confluent.field_meta) = { params: [ { key: "a", value: "b" } ] }];
      confluent.type.Decimal price = 2;
      google.type.Money paid = 3;
    """
    text = f'syntax = "proto3"; package shop; {imports} message Order {{ {fields} }}'
    fmt = ProtobufFormat(tree_of("shop", "price.scale", "paid.units"))
    number = fmt.add(schema(text))
    assert (fmt.absent, fmt.missing) == ([], ())
    found = fmt.decode(number, b"\x0a\x01s\x12\x02\x18\x02\x1a\x02\x10\x07")
    assert found == {"shop": "s", "price": {"scale": 2}, "paid": {"units": 7}}


PARTLY = """
syntax = "proto3";
package shop.orders;
import "acme/units.proto";
import "common/line.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/descriptor.proto";
option (acme.file) = { a: [1, 2], b: "x;]" };
/* message Order { */
message Order {
  option (acme.message).x = true;
  string shop = 1 [(acme.field) = { a: 1, b: < c: 2 > }, deprecated = true];
  acme.Unit unit = 2;
  repeated acme.Kind kinds = 3 [packed = true, (acme.field) = -1.5];
  map<string, acme.Unit> units = 4;
  oneof how { string card = 5; acme.Cash cash = 6; }
  oneof only { .acme.Outer.Inner inner = 7; acme.Outer outer = 20; }
  optional int32 qty = 8;
  google.protobuf.Timestamp at = 9;
  Line line = 10;
  common.Line other = 11;
  oneof which { string a = 12; string b = 13; }
  message Line { string sku = 1; acme.Unit unit = 2; }
}
service Orders { rpc Get (acme.Get) returns (Order) { option (acme.http) = { get: "/x" }; } }
extend google.protobuf.FieldOptions { acme.Options more = 7777; }
"""
COMMON = Reference(
    "common/line.proto",
    'syntax = "proto3"; package common; message Line { int32 n = 1; }',
)
# Fields 2 (a message), 3 (packed and not), 4, 6, 7 and 11, between those that are read.
PAYLOAD = (
    b"\x0a\x01s\x12\x02\x08\x01\x1a\x02\x01\x02\x18\x03\x22\x05\x0a\x01k\x12\x00\x30\x07\x3a\x00"
    b"\x40\x02\x4a\x02\x08\x05\x52\x05\x0a\x01t\x10\x09\x5a\x00\x62\x01x"
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("shop", {"shop": "s"}),
        ("qty", {"qty": 2}),
        ("at.seconds", {"at": {"seconds": 5}}),
        ("line.sku", {"line": {"sku": "t"}}),
        ("a", {"a": "x"}),
    ],
)
def test_a_missing_import_does_not_matter_to_fields_that_do_not_need_it(
    path: str, expected: object
) -> None:
    """Whatever the missing types are, message or enum: their fields are skipped as unknown ones."""
    fmt = ProtobufFormat(tree_of(path))
    number = fmt.add(schema(PARTLY, COMMON))
    assert (fmt.absent, fmt.missing) == ([], ("acme/units.proto",))
    assert fmt.decode(number, PAYLOAD) == expected
    # The scanner reads it, too.
    assert scanned(fmt, number, PAYLOAD) is not None


@pytest.mark.parametrize(
    "path",
    [
        "unit",
        "unit.x",
        "kinds",
        "units",
        "line.unit",
        "inner.x",
        "card",  # `cash` may come after it and clear it
        "other.n",  # the missing file may define shop.common.Line, which would be nearer
    ],
)
def test_a_field_that_may_need_a_missing_import_refuses_the_schema(path: str) -> None:
    with pytest.raises(Unreadable, match="schema cannot be read") as refused:
        ProtobufFormat(tree_of(path)).add(schema(PARTLY, COMMON))
    assert refused.value.imports == ("acme/units.proto",)


def test_the_id_and_the_missing_import_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the reject, and so in `check`, and in the worker's log."""

    class Known:
        def schema(self, schema_id: int, _: object) -> Schema | None:
            return {3: schema(PARTLY, COMMON), 4: schema("message {")}.get(schema_id)

    caplog.set_level(logging.WARNING)
    records = Records.of([b"\0\0\0\0\3\0" + PAYLOAD, b"\0\0\0\0\4\0" + PAYLOAD])
    refusing = FormatReader(ProtobufFormat(tree_of("unit.x")), Known(), AlwaysOpen())
    assert refusing.prepare(records.data, records.values).refused == {
        0: "schema cannot be read: id 3 imports 'acme/units.proto', which is missing",
        1: "schema cannot be read: id 4",
    }
    reading = FormatReader(ProtobufFormat(tree_of("shop")), Known(), AlwaysOpen())
    assert list(reading.prepare(records.data, records.values).refused) == [1]
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in said[:2]] == ["schema 3", "schema 4"]
    assert said[2].startswith("schema 3 imports 'acme/units.proto', which is missing;")


HOSTILE = (
    "/*" * 200_000,
    '"' * 200_000,
    "[" * 200_000,
    "message M { string s = 1 [" + "(" * 200_000,
    "option (" * 50_000,
    "message A { " * 20_000,
    "\0" * 1_000,
    "\ud800",
    "'" + "\\" * 99_999,
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_stops_the_worker(text: str) -> None:
    """Also after a missing import, which makes the worker itself look at the text."""
    assert isinstance(without_custom_options(text), str)
    begins = 'syntax = "proto3"; import "nowhere.proto"; message N { acme.X x = 1; } '
    for given in (text, begins + text):
        with pytest.raises(SchemaRefused, match="schema cannot be read"):
            ProtobufFormat(tree_of("shop")).add(schema(given))


@pytest.mark.parametrize(
    "name", ["x" * 5_000, "a/../../b", "/a", "a\0b", "quietcount/event.proto/x"]
)
def test_no_name_of_a_reference_stops_the_worker(name: str) -> None:
    """Names become paths of files: they may be too long for one, or leave the folder."""
    text = 'syntax = "proto3"; message M { string shop = 1; }'
    with pytest.raises(SchemaRefused, match="schema cannot be read"):
        ProtobufFormat(tree_of("shop")).add(schema(text, Reference(name, text)))


def test_a_descriptors_name_is_no_option_of_protoc() -> None:
    for name in ("--python_out=.", "@file"):
        file = descriptor_pb2.FileDescriptorProto(
            name=name, dependency=["nowhere.proto"]
        )
        text = base64.b64encode(file.SerializeToString()).decode()
        with pytest.raises(SchemaRefused, match="schema cannot be read"):
            ProtobufFormat(tree_of("shop")).add(schema(text))


def of_subject(name: str, *imports: str) -> dict[str, object]:
    references = [
        {"name": f"{each}.proto", "subject": each, "version": 2} for each in imports
    ]
    lines = "".join(f'import "{each}.proto"; ' for each in imports)
    uses = "".join(
        f"{each.upper()} {each} = {number}; " for number, each in enumerate(imports, 2)
    )
    text = f'syntax = "proto3"; package p; {lines} message {name.upper()} {{ string shop = 1; {uses}}}'
    return {"schemaType": "PROTOBUF", "schema": text, "references": references}


SUBJECTS = {
    "nested": of_subject("nested", "b", "c"),
    "b": of_subject("b", "c"),
    "c": of_subject("c"),
    "cycle": of_subject("cycle", "d"),
    "d": of_subject("d", "e"),
    "e": of_subject("e", "d"),
}
IDS = {1: "nested", 2: "cycle"}


class Answers(BaseHTTPRequestHandler):
    """The two requests of a registry's client that fetch a schema and its references."""

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        name = IDS[int(parts[2])] if parts[0] == "schemas" else parts[1]
        body = json.dumps(
            {**SUBJECTS[name], "subject": name, "version": 2, "id": 7}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_references_of_references_are_fetched_and_a_cycle_ends(url: str) -> None:
    """Confluent's registry stores no cycle, but nothing says that another one does not."""
    registry = Registry(Access(url, {}, patience_s=0.0))
    nested = registry.schema(1, AlwaysOpen())
    assert nested is not None
    assert [each.name for each in nested.references] == ["c.proto", "b.proto"]
    fmt = ProtobufFormat(tree_of("b.c.shop"))
    number = fmt.add(nested)
    assert fmt.decode(number, b"\x12\x05\x12\x03\x0a\x01s") == {
        "b": {"c": {"shop": "s"}}
    }
    cycle = registry.schema(2, AlwaysOpen())
    assert cycle is not None
    assert [each.name for each in cycle.references] == ["e.proto", "d.proto"]
    with pytest.raises(SchemaRefused, match="schema cannot be read"):
        ProtobufFormat(tree_of("shop")).add(cycle)
