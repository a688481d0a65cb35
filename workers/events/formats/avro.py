"""Avro format: the scanner's input for a batch, and the general reader of one record."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np

from workers.arrays.types import Bytes, Longs
from workers.events.formats import avro_scanner
from workers.events.formats.avro_program import AvroProgram, AvroSchema, parse
from workers.events.formats.fitting import NOT_OF_FORMAT, UNREADABLE, Logging, Refused, SchemaFormat
from workers.events.log import DECLINED
from workers.events.schemas import AVRO, Schema
from workers.events.tree import Node
from workers.runtime.errors import SettingsError
from workers.settings.files import read_file

NOT_AVRO = "not Avro"
NOT_OF_READER = "not what the reader schema says"
# Nesting limit for records, lists and maps, as in JSON: fastavro recurses as well.
NESTED_MAX = 512
# Nesting limit of the scanner; the general reader handles deeper records.
STACK = 64


def read_reader_schema(path: Path, tree: Node) -> AvroSchema:
    """Return the reader schema at `path`; raise SettingsError if it is invalid or lacks fields."""
    where = f"schema_registry.reader_schema: {path}"
    try:
        found = parse(read_file(path).decode())
        _, _, fit = AvroProgram(tree).add(found)
    except Exception as error:  # noqa: BLE001
        # As for writer schemas: fastavro accepts some malformed ones.
        why = str(error) if isinstance(error, SettingsError) else "no Avro schema"
        raise SettingsError(f"{where}: {why}") from None
    if refusal := fit.refusal():
        raise SettingsError(f"{where}: {refusal}")
    if absent := fit.absent():
        raise SettingsError(f"{where}: it has no field {absent[0]!r}")
    return found


class AvroFormat(SchemaFormat):
    """The writer schemas of records read by one thread.

    `reader` defines the names in `tree`; None means every record's own schema.
    """

    names_messages = False

    def __init__(self, tree: Node, reader: AvroSchema | None = None) -> None:
        self._program = AvroProgram(tree)
        super().__init__(self._program)
        self._reader = reader
        # By number: the writer's schema, and the program row that only checks every byte.
        self._writers: list[tuple[AvroSchema, int]] = []
        self.program = self._program.complete()

    def add(self, schema: Schema, message: bytes = b"") -> int:
        if schema.kind != AVRO:
            raise Refused(NOT_OF_FORMAT)
        try:
            writer = parse(schema.text, [reference.text for reference in schema.references])
            root, whole, fit = self._program.add(writer, self._reader)
        except Exception:  # noqa: BLE001
            # fastavro accepts malformed schemas, such as a union in a union.
            raise Refused(UNREADABLE) from None
        number = self._accept(root, fit)
        self._writers.append((writer, whole))
        self.program = self._program.complete()
        return number

    def logs(self, data: Bytes, values: Longs, roots: Longs, base: int) -> Logging:
        stack = np.empty((STACK, avro_scanner.FRAME), dtype=np.int64)
        scan = avro_scanner.Scan(data, base, self.program, stack)
        return partial(avro_scanner.logs, scan, values, roots)

    def decode(self, number: int, payload: bytes) -> Any:
        """Return a record as Python objects; raise ValueError with the reject reason.

        The scanner checks every byte first: fastavro would allocate memory for 2^62 nulls, recurse
        without limit, and ignore trailing bytes.
        """
        (writer, whole), reader = self._writers[number], self._reader
        stack = np.empty((NESTED_MAX, avro_scanner.FRAME), dtype=np.int64)
        data, log = np.frombuffer(payload, dtype=np.uint8), np.empty((0, 4), dtype=np.int64)
        scan = avro_scanner.Scan(data, 0, self.program, stack)
        if avro_scanner.event(scan, 0, len(data), whole, log, 0) == DECLINED:
            raise ValueError(NOT_AVRO)
        bare = isinstance(writer.text, dict) and (reader is None or isinstance(reader.text, dict))
        try:
            found: Any = fastavro.schemaless_reader(
                io.BytesIO(payload),
                writer.text if bare else writer.as_field(),
                None if reader is None else reader.text if bare else reader.as_field(),
            )
        except Exception:  # noqa: BLE001
            # fastavro's schema resolution can raise almost any exception.
            raise ValueError(NOT_AVRO if reader is None else NOT_OF_READER) from None
        return found if bare else found["value"]
