"""What reading an event of Avro or Protobuf costs, in nanoseconds.

    scanner   the compiled scanner, the log of an event dropped
    framing   cutting the schema's id off
    general   the general reader: fastavro behind a look at every byte, upb and its fields

`python -m bench.format_scanners [--records N] [--repeats N]`. Time is that of the thread, on one
core: others on the machine do not count. A figure is the best of the repeats. Events are of about
80 bytes with two items; exit 1 where the scanner takes more than the target of 500 ns.
"""

import argparse
import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
from google.protobuf import message_factory

from workers.arrays.texts import readonly_contiguous
from workers.events.formats.avro import AvroFormat
from workers.events.formats.protobuf import ProtobufFormat, ProtobufSchema
from workers.events.formats.reader import FormatReader
from workers.events.log import Output
from workers.events.schemas import AlwaysOpen, Schema, SchemaWaiter
from workers.events.tree import Wanted, build
from workers.kafka.records import Records

TARGET_NS = 500.0
TREE = build(
    [
        Wanted(("shop",), None, 0),
        Wanted(("products",), None, 1, True),
        Wanted(("ts",), None, 2),
    ]
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "shop", "type": "string"},
        {"name": "id", "type": "long"},
        {"name": "ts", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "products", "type": {"type": "array", "items": "string"}},
        {"name": "price", "type": "double"},
        {
            "name": "kind",
            "type": {"type": "enum", "name": "Kind", "symbols": ["BUY", "RETURN"]},
        },
    ],
}
PROTOBUF = """
syntax = "proto3";
message Order {
  enum Kind { BUY = 0; RETURN = 1; }
  string shop = 1; int64 id = 2; int64 ts = 3; optional string note = 4;
  repeated string products = 5; double price = 6; Kind kind = 7;
}
"""


class One:
    """A registry of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def schema(self, schema_id: int, waiting: SchemaWaiter) -> Schema:
        return self._schema


def events(number: int) -> list[dict[str, Any]]:
    """Return events with Zipf items, 10,000 of them, and ten shops."""
    rng = np.random.default_rng(7)
    weights = np.cumsum(1 / np.arange(1, 10_001) ** 1.05)
    items = np.searchsorted(weights / weights[-1], rng.random((number, 2))).tolist()
    return [
        {
            "shop": f"shop{i % 10}",
            "id": i * 7919,
            "ts": 1_795_296_236_471 + i // 5,
            "note": "left at the door, 3 pieces" if i % 2 else None,
            "products": [f"product-{first}", f"product-{second}"],
            "price": 9.99 + i % 100,
            "kind": "RETURN" if i % 9 == 0 else "BUY",
        }
        for i, (first, second) in enumerate(items)
    ]


def avro(rows: list[dict[str, Any]]) -> tuple[FormatReader, list[bytes]]:
    """Return a reader, and the events as its records."""
    schema = fastavro.parse_schema(AVRO)
    payloads = []
    for row in rows:
        out = io.BytesIO(b"\0\0\0\0\1")
        out.seek(5)
        fastavro.schemaless_writer(out, schema, row)
        payloads.append(out.getvalue())
    return FormatReader(
        AvroFormat(TREE), One(Schema("AVRO", json.dumps(AVRO))), AlwaysOpen()
    ), payloads


def protobuf(rows: list[dict[str, Any]]) -> tuple[FormatReader, list[bytes]]:
    """Return the same of Protobuf."""
    schema = Schema("PROTOBUF", PROTOBUF)
    kind = message_factory.GetMessageClass(ProtobufSchema(schema).message([0]))
    payloads = [b"\0\0\0\0\1\0" + kind(**row).SerializeToString() for row in rows]
    return FormatReader(ProtobufFormat(TREE), One(schema), AlwaysOpen()), payloads


def best_ns(run: Callable[[], object], records: int, repeats: int) -> float:
    """Return the least time of a repeat, per record."""
    run()
    times = []
    for _ in range(repeats):
        begun = time.thread_time_ns()
        run()
        times.append(time.thread_time_ns() - begun)
    return min(times) / records


def measure(
    name: str, reader: FormatReader, payloads: list[bytes], repeats: int
) -> float:
    """Print a line; return what the scanner takes, in ns."""
    records = Records.of(payloads)
    n = len(payloads)
    ready = reader.prepare(records.data, records.values)
    log = np.empty((20 * n, 4), dtype=np.int64)
    status = np.empty(n, dtype=np.int8)
    out = Output(log, np.empty(n, dtype=np.int64), status, declined_bytes=1 << 30)
    scan = reader.fmt.scanner(
        ready.data,
        readonly_contiguous(ready.payloads),
        readonly_contiguous(ready.roots),
        ready.base,
    )
    scanner = best_ns(lambda: scan(0, out), n, repeats)
    if status.any():
        raise SystemExit(f"{name}: {np.count_nonzero(status)} records were declined")
    framing = best_ns(lambda: reader.prepare(records.data, records.values), n, repeats)
    few = [
        ready.data[start:stop].tobytes()
        for start, stop in ready.payloads[:2_000].tolist()
    ]
    general = best_ns(
        lambda: [reader.fmt.decode(0, payload) for payload in few], len(few), repeats
    )
    size = int((ready.payloads[:, 1] - ready.payloads[:, 0]).mean())
    print(
        f"{name:9} {size:3} bytes: scanner {scanner:5.0f}, framing {framing:5.0f}, general {general:7,.0f} ns",
        flush=True,
    )
    return scanner


def main() -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    rows = events(given.records)
    slowest = max(
        measure("Avro", *avro(rows), given.repeats),
        measure("Protobuf", *protobuf(rows), given.repeats),
    )
    return 1 if slowest > TARGET_NS else 0


if __name__ == "__main__":
    sys.exit(main())
