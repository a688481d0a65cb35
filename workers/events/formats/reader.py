"""Read records whose schemas are in a registry, for one format and one thread.

A batch may mix any number of schemas: one program covers all of them. For JSON, the schema id is
cut off and the rest is plain JSON. The schema adds nothing to the settings, so no registry is asked
and nothing is validated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import readonly_contiguous
from workers.events.field_spans import Bools, Bytes, FieldSpans, Longs
from workers.events.formats.fitting import NO_MESSAGE, Refused, logged
from workers.events.formats.wire import HEADER, NO_ID, NO_VALUE, cut
from workers.events.json import Json
from workers.events.log import DECLINED
from workers.events.schemas import Schema, Waiting
from workers.events.tree import Node
from workers.runtime.errors import SettingsError

if TYPE_CHECKING:
    from workers.events.formats.avro import AvroFormat
    from workers.events.formats.protobuf import ProtobufFormat


class FramedJson:
    """Reader of JSON after a schema id; see `Format`."""

    def __init__(self, json: Json) -> None:
        self._json = json

    def scan(self, data: Bytes, values: Longs, plain: Bools | None = None) -> Iterator[FieldSpans]:
        payloads, refused = json_payloads(data, values)
        decoder = self._json.decoder(data, payloads)

        def decode(row: int) -> object:
            if row in refused:
                raise ValueError(refused[row])
            return decoder(row)

        return (replace(logs, decode=decode) for logs in self._json.scan(data, payloads, plain))


logger = logging.getLogger(__name__)

NO_SCHEMA_ID = "no schema id"
UNKNOWN_SCHEMA = "unknown schema id"
NOTHING = "no value"
_UNFIT = MappingProxyType({NO_VALUE: NOTHING, NO_ID: NO_SCHEMA_ID})


def form_of(
    name: str, tree: Node, reader_schema: Path | None = None
) -> AvroFormat | ProtobufFormat:
    """Return a format, "avro" or "protobuf", for one `FormatReader`.

    `reader_schema` is a file with the Avro schema that defines the names in `tree`; None means
    every record's own. Raises SettingsError if packages are missing, or the schema cannot be used.
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
    return AvroFormat(
        tree, None if reader_schema is None else read_reader_schema(reader_schema, tree)
    )


class Schemas(Protocol):
    def schema(self, schema_id: int, waiting: Waiting) -> Schema | None: ...


@dataclass(frozen=True, slots=True, repr=False)
class Prepared:
    """The records of a batch, ready for the scanner.

    Attributes:
        data: uint8, the bytes of the batch followed, from `base` on, by the program's texts.
        payloads: int64 (n, 2), start and stop of each payload; -1 if missing or refused.
        roots: int64 (n,), the scanner's start row for each record; DECLINED if missing or refused.
        numbers: int64 (n,), for `decode`; negative if missing or refused.
        refused: reject reasons by batch index, in order.
    """

    data: NDArray[np.uint8]
    base: int
    payloads: Longs
    roots: Longs
    numbers: Longs
    refused: dict[int, str]


class FormatReader:
    """Reader for one source partition and one thread; it owns `form` and shares `schemas`."""

    def __init__(
        self, form: AvroFormat | ProtobufFormat, schemas: Schemas, waiting: Waiting
    ) -> None:
        self.form = form
        self._schemas, self._waiting = schemas, waiting
        # Rows: id and message that have a number. In parallel: the number in `form`, the scanner's
        # start row, and the reject reason if there is one.
        self._known = np.empty((0, 2), dtype=np.int64)
        self._numbers: list[int] = []
        self._roots: list[int] = []
        self._reasons: list[str | None] = []

    def scan(
        self, data: NDArray[np.uint8], values: Longs, plain: NDArray[np.bool_] | None = None
    ) -> Iterator[FieldSpans]:
        """Log the wanted fields of records part by part; raises as `prepare`."""
        ready = self.prepare(data, values)
        roots = ready.roots if plain is None else np.where(plain, ready.roots, DECLINED)

        def decode(row: int) -> object:
            if row in ready.refused:
                raise ValueError(ready.refused[row])
            start, stop = ready.payloads[row].tolist()
            return self.decode(int(ready.numbers[row]), ready.data[start:stop].tobytes())

        logging = self.form.logs(
            ready.data, readonly_contiguous(ready.payloads), readonly_contiguous(roots), ready.base
        )
        return logged(ready.data, ready.payloads, logging, decode)

    def prepare(self, data: NDArray[np.uint8], values: Longs) -> Prepared:
        """Locate payloads, waiting for unknown schemas; raise ShardClosed if the shard is closed.

        `values` is int64 (n, 2), start and stop of each record; -1 if it has no value.
        """
        n = len(values)
        data, values = readonly_contiguous(data), readonly_contiguous(values)
        ids, payloads = np.empty((n, 2), dtype=np.int64), np.empty((n, 2), dtype=np.int64)
        rows = np.empty(n, dtype=np.int64)
        done, others = 0, {}
        while True:
            done = cut(
                data,
                values,
                self.form.names_messages,
                readonly_contiguous(self._known),
                done,
                ids,
                payloads,
                rows,
            )
            if done == n:
                break
            message = data[int(values[done, 0]) + HEADER : int(payloads[done, 0])].tobytes()
            reason = self._add(int(ids[done, 0]), int(ids[done, 1]), message)
            if reason is not None:
                others[done] = reason
                done += 1
        refused = {
            row: others.get(row) or _UNFIT[int(rows[row])]
            for row in np.flatnonzero(rows < 0).tolist()
        }
        bad = [row for row, why in enumerate(self._reasons) if why is not None]
        if bad:
            refused |= {
                row: self._reasons[rows[row]] or ""
                for row in np.flatnonzero(np.isin(rows, bad)).tolist()
            }
            refused = dict(sorted(refused.items()))
        roots = np.array([*self._roots, DECLINED], dtype=np.int64)[np.maximum(rows, -1)]
        numbers = np.array([*self._numbers, DECLINED], dtype=np.int64)[np.maximum(rows, -1)]
        payloads[numbers < 0] = -1
        texts = self.form.arrays.texts
        base = len(data)
        whole = readonly_contiguous(np.concatenate([data, texts])) if len(texts) else data
        return Prepared(whole, base, payloads, roots, numbers, refused)

    def decode(self, number: int, payload: bytes) -> object:
        """Return a record as Python objects; raise ValueError with the reject reason."""
        return self.form.decode(number, payload)

    def _add(self, schema_id: int, which: int, message: bytes) -> str | None:
        """Give a schema's message a number, or return the reject reason of one record.

        Made-up values are not stored: ids without a schema, messages that their schema lacks.
        """
        schema = self._schemas.schema(schema_id, self._waiting)
        if schema is None:
            return UNKNOWN_SCHEMA
        number, root, reason = DECLINED, DECLINED, None
        try:
            number = self.form.add(schema, message)
            root = self.form.root(number)
        except Refused as refusal:
            reason = str(refusal)
            if reason == NO_MESSAGE:
                return reason
            logger.error("schema %d: every event of it is a reject: %s", schema_id, reason)
        else:
            for path in self.form.absent:
                logger.warning("schema %d has no field %r", schema_id, path)
        self._known = np.append(self._known, [[schema_id, which]], axis=0)
        self._numbers.append(number)
        self._roots.append(root)
        self._reasons.append(reason)
        return None


def json_payloads(data: NDArray[np.uint8], values: Longs) -> tuple[Longs, dict[int, str]]:
    """Return the payloads of JSON records with a schema id, and reject reasons by batch index."""
    starts, stops = values[:, 0], values[:, 1]
    long = (starts >= 0) & (stops - starts >= HEADER)
    framed = np.flatnonzero(long)[data[starts[long]] == 0]
    payloads = np.full_like(values, -1)
    payloads[framed] = values[framed] + (HEADER, 0)
    refused = np.flatnonzero(payloads[:, 0] < 0)
    return payloads, {row: NOTHING if starts[row] < 0 else NO_SCHEMA_ID for row in refused.tolist()}
