"""Record formats of the source partitions, and readers of records with a schema in a registry.

A batch may mix any number of schemas: one program covers all of them. A Protobuf schema may have
several messages (types of records), and a record names one by a path; other schemas have message 0.
For JSON, the schema id is cut off; the schema adds nothing to the settings, so no registry is asked
and nothing is validated.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Bytes, Longs
from workers.events.formats.fitting import (
    NO_MESSAGE,
    SchemaFormat,
    SchemaRefused,
    Unreadable,
    imports_named,
)
from workers.events.formats.wire import HEADER, NO_ID, NO_VALUE, parse_headers
from workers.events.json import Json
from workers.events.log import DECLINED, FieldSpans, Format, Output, scan_parts
from workers.events.reading import EventReader
from workers.events.schemas import Access, CommandWait, Registry, Schema, SchemaWaiter
from workers.events.tree import Node
from workers.runtime.errors import SettingsError
from workers.runtime.metrics import Metrics
from workers.settings.settings import Settings


class FramedJson:
    """Reader of JSON after a schema id; see `Format`."""

    def __init__(self, json: Json) -> None:
        self._json = json

    def scan(self, data: Bytes, values: Longs, plain: Bools) -> Iterator[FieldSpans]:
        """Scan what follows the schema ids; a record without one becomes a reject."""
        payloads, refused = json_payloads(data, values)
        decoder = self._json.decoder(data, payloads)

        def decode(row: int) -> object:
            if row in refused:
                raise ValueError(refused[row])
            return decoder(row)

        return (
            replace(logs, decode=decode)
            for logs in self._json.scan(data, payloads, plain)
        )


logger = logging.getLogger(__name__)

NO_SCHEMA_ID = "no schema id"
UNKNOWN_SCHEMA = "unknown schema id"
MISSING = "no value"
# Same as the timeout for a broker.
_PATIENCE_S = 30.0
# Why a record has no pair of schema and message, by what `parse_headers` writes for its row.
_NO_PAIR = MappingProxyType({NO_VALUE: MISSING, NO_ID: NO_SCHEMA_ID})


def make_format(
    name: str, tree: Node, reader_schema: Path | None = None
) -> SchemaFormat[Any]:
    """Return a format, "avro" or "protobuf", for one `FormatReader`.

    `reader_schema`, a file, defines the names in `tree`; None means each record's own schema.
    Raises SettingsError if packages are missing, or the schema cannot be used.
    """
    try:
        from workers.events.formats.avro import AvroFormat, read_reader_schema
        from workers.events.formats.protobuf import ProtobufFormat
    except ImportError as error:
        raise SettingsError(
            f'events.format = "{name}": install quietcount[formats]: {error}'
        ) from None
    if name == "protobuf":
        return ProtobufFormat(tree)
    reader = None if reader_schema is None else read_reader_schema(reader_schema, tree)
    return AvroFormat(tree, reader)


class RecordFormats:
    """A worker's record formats, with one schema registry shared by all threads.

    Raises SettingsError if the format's packages are missing, or its schema cannot be used.
    """

    def __init__(
        self, settings: Settings, reader: EventReader, metrics: Metrics | None = None
    ) -> None:
        self._name = settings.events.format
        self._tree = reader.layout.tree
        self._server = server = settings.schema_registry
        self._registry: Registry | None = None  # JSON needs none
        if self._name in ("avro", "protobuf") and server is not None:
            make_format(self._name, self._tree, server.reader_schema)  # fails early
            access = Access(server.url, server.client(), server.unknown_wait_ms / 1000)
            self._registry = Registry(access, metrics)

    def make(
        self, waiting: SchemaWaiter | None = None, tree: Node | None = None
    ) -> Format | None:
        """Return the format for one source partition and one thread; None means plain JSON.

        `waiting` is the shard that waits for schemas; None means a command, which gives up soon.
        `tree` has the fields to read; None: those of the settings.
        """
        tree = self._tree if tree is None else tree
        if self._name == "json_schema":
            return FramedJson(Json(tree))
        server = self._server
        if self._registry is None or server is None:
            return None
        fmt = make_format(self._name, tree, server.reader_schema)
        if waiting is None:
            refusal = SettingsError(
                f"schema_registry.url = {server.url!r}: it does not answer"
            )
            waiting = CommandWait(_PATIENCE_S, refusal)
        return FormatReader(fmt, self._registry, waiting)


class Schemas(Protocol):
    """Where readers get schemas: `schemas.Registry`."""

    def schema(self, schema_id: int, waiting: SchemaWaiter) -> Schema | None:
        """Wait for a schema and return it; None if there is none. `waiting` may raise meanwhile."""


@dataclass(frozen=True, slots=True, repr=False)
class Prepared:
    """The records of a batch, ready for the scanner.

    Attributes:
        data: uint8, the bytes of the batch followed, from `base` on, by the texts of the scanner's
            program, such as field names.
        payloads: int64 (n, 2), start and stop of what follows each record's header; -1 if missing
            or refused.
        roots, numbers: int64 (n,), by record: the row of the program where the scanner starts, and
            the number that the format gave the schema; negative if missing or refused.
        refused: reject reasons by batch index, in order.
    """

    data: Bytes
    base: int
    payloads: Longs
    roots: Longs
    numbers: Longs
    refused: dict[int, str]


class FormatReader:
    """Reader for one source partition and one thread; it owns `fmt` and shares `schemas`.

    It finds the schema of each record, and has the format's scanner log the wanted fields.
    """

    def __init__(
        self, fmt: SchemaFormat[Any], schemas: Schemas, waiting: SchemaWaiter
    ) -> None:
        self.fmt = fmt
        self._schemas = schemas
        self._waiting = waiting
        # Known pairs of a schema id and the number of a message path. By pair: its number in `fmt`,
        # or DECLINED and the reason why its records are rejects.
        self._pairs = np.empty((0, 2), dtype=np.int64)
        self._numbers: list[int] = []
        self._reasons: list[str] = []

    def scan(self, data: Bytes, values: Longs, plain: Bools) -> Iterator[FieldSpans]:
        """Log the wanted fields of records part by part.

        Records that are not `plain` are left to the general reader, `FieldSpans.decode`. Waits for
        unknown schemas, and raises ShardClosed if the shard closes meanwhile.
        """
        ready = self.prepare(data, values)
        roots = np.where(plain, ready.roots, DECLINED)
        payloads = readonly_contiguous(ready.payloads)
        scan_records = self.fmt.scanner(
            ready.data, payloads, readonly_contiguous(roots), ready.base
        )

        def scan(begin: int, out: Output) -> tuple[Bytes, int]:
            return ready.data, scan_records(begin, out)

        def decode(row: int) -> object:
            """Return a record of the batch, decoded, or raise ValueError(reject reason)."""
            if row in ready.refused:
                raise ValueError(ready.refused[row])
            start, stop = ready.payloads[row].tolist()
            return self.fmt.decode(
                int(ready.numbers[row]), ready.data[start:stop].tobytes()
            )

        return scan_parts(ready.payloads, scan, decode)

    def prepare(self, data: Bytes, values: Longs) -> Prepared:
        """Find the payload and schema of each record, waiting for unknown schemas.

        `values`, int64 (n, 2), has start and stop of each record. Raises ShardClosed if the shard
        closes meanwhile.
        """
        n = len(values)
        data = readonly_contiguous(data)
        values = readonly_contiguous(values)
        new_pair = np.empty(2, dtype=np.int64)
        payloads = np.empty((n, 2), dtype=np.int64)
        pair_rows = np.empty(n, dtype=np.int64)
        done = 0
        refused = dict[int, str]()
        # Parsing stops at the first unknown pair of schema id and message: add it and continue.
        while True:
            done = parse_headers(
                data,
                values,
                self.fmt.names_messages,
                readonly_contiguous(self._pairs),
                done,
                new_pair,
                payloads,
                pair_rows,
            )
            if done == n:
                break
            schema_id, message = new_pair.tolist()
            path_start = int(values[done, 0]) + HEADER
            path = data[path_start : int(payloads[done, 0])].tobytes()
            reason = self._add(schema_id, message, path)
            if reason is not None:
                # The pair is still unknown: go on behind this record.
                refused[done] = reason
                done += 1
        # Records without a known pair, of whatever negative row, get the last number: DECLINED. A
        # negative number in turn gets the last root.
        numbers = np.array([*self._numbers, DECLINED], dtype=np.int64)[
            np.maximum(pair_rows, -1)
        ]
        roots = np.array([*self.fmt.roots, DECLINED], dtype=np.int64)[numbers]
        # A reason that was noted above stays.
        for record in np.flatnonzero(numbers < 0).tolist():
            pair = int(pair_rows[record])
            reason = self._reasons[pair] if pair >= 0 else _NO_PAIR.get(pair, "")
            refused.setdefault(record, reason)
        payloads[numbers < 0] = -1
        texts = self.fmt.texts
        whole = (
            readonly_contiguous(np.concatenate([data, texts])) if len(texts) else data
        )
        return Prepared(
            data=whole,
            base=len(data),
            payloads=payloads,
            roots=roots,
            numbers=numbers,
            refused=dict(sorted(refused.items())),
        )

    def _add(self, schema_id: int, message: int, path: bytes) -> str | None:
        """Add a pair of a schema and a message in it; return None, or a reason and add nothing.

        `message` is the number of the message's `path`. Blocks until the registry has answered, or
        `_waiting` raises, as a closed shard does. A pair that the registry does not have is not
        stored, since anybody can make up ids; one whose schema cannot be used is, so that only the
        first of its records logs that.
        """
        schema = self._schemas.schema(schema_id, self._waiting)
        if schema is None:
            return UNKNOWN_SCHEMA
        number = DECLINED
        reason = ""
        try:
            number = self.fmt.add(schema, path)
        except SchemaRefused as refusal:
            reason = str(refusal)
            if reason == NO_MESSAGE:
                return reason
            if isinstance(refusal, Unreadable):
                reason = f"schema cannot be read: id {schema_id}"
                if refusal.imports:
                    names = imports_named(refusal.imports)
                    reason = f"schema cannot be read: id {schema_id} imports {names}, which is missing"
            logger.error(
                "schema %d: every event of it is a reject: %s", schema_id, reason
            )
        else:
            for field in self.fmt.absent:
                logger.warning("schema %d has no field %r", schema_id, field)
            if self.fmt.missing:
                logger.warning(
                    "schema %d imports %s, which is missing; no field in the settings needs it",
                    schema_id,
                    imports_named(self.fmt.missing),
                )
        self._pairs = np.append(self._pairs, [[schema_id, message]], axis=0)
        self._numbers.append(number)
        self._reasons.append(reason)
        return None


def json_payloads(data: Bytes, values: Longs) -> tuple[Longs, dict[int, str]]:
    """Return start and stop of what follows each schema id, and reject reasons by batch index.

    Both are -1 for a record without a schema id, which is a reject.
    """
    starts = values[:, 0]
    stops = values[:, 1]
    long_enough = (starts >= 0) & (stops - starts >= HEADER)
    # A header begins with a 0.
    framed = np.flatnonzero(long_enough)[data[starts[long_enough]] == 0]
    payloads = np.full_like(values, -1)
    payloads[framed] = values[framed] + (HEADER, 0)
    refused = np.flatnonzero(payloads[:, 0] < 0)
    return payloads, {
        row: MISSING if starts[row] < 0 else NO_SCHEMA_ID for row in refused.tolist()
    }
