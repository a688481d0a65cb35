"""Parquet whose columns are looked into: paths, counts, conditions and buckets, row by row.

A row becomes what its JSON would be, and the rule of `events.project` says what event that is.
Timestamps count in ms since 1970 (less is cut off), whatever `events.timestamp_unit` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path as FilePath
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from workers.agents.factory import declared_keys
from workers.errors import SettingsError
from workers.events.reader import EventReader
from workers.events.source_reader import SourceReader
from workers.replay.source import EventBatch, InOrder, shape_of_files
from workers.settings import Settings
from workers.shapes.conditions import Condition
from workers.shapes.paths import Path, parse
from workers.shapes.views import Shape

ROWS_AT_ONCE = 1 << 13


class ParquetObjects:
    """The rows of a Parquet file, each as an object; see the module."""

    word = "row"
    partitions = 1
    until_ms = None

    def __init__(self, settings: Settings, name: str, file: IO[bytes]) -> None:
        """
        Args:
            settings: of the worker.
            name: for messages.
            file: the file, from its beginning.

        Raises:
            SettingsError: it is no Parquet, or a path leads to no column of it.
        """
        self.name = name
        try:
            self._file = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise SettingsError(f"{name}: not a Parquet file: {str(error).splitlines()[0][:200]}") from error
        schema, shape = self._file.schema_arrow, shape_of_files(settings)
        paths = _paths(shape)
        for path in paths:
            _check(path, schema, name)
        shape = _shape_in(schema, shape)
        self._columns = list(dict.fromkeys(path.steps[0] for path in paths))
        self.total: int | None = self._file.metadata.num_rows
        self._reader = SourceReader(EventReader(shape), declared_keys(settings))
        self._order = InOrder(name, self.word, settings.events.grace_ms)

    def batches(self) -> Iterator[EventBatch]:
        read = 0
        try:
            for rows in self._file.iter_batches(ROWS_AT_ONCE, columns=self._columns, use_threads=False):
                events, rejected = self._reader.of_objects([_plain(row) for row in _listed(rows)])
                self._order.check(events.times, read + 1 + events.index)
                rejects = [(read + 1 + each.index, each.reason) for each in rejected]
                read += rows.num_rows
                yield EventBatch(0, events, rejects, read)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            raise SettingsError(f"{self.name}: cannot be read after row {read:,}: {reason}") from error

    def ended(self) -> frozenset[int]:
        return frozenset()


def first_rows(settings: Settings, name: str, path: FilePath, number: int) -> tuple[list[object], Shape]:
    """Return the first rows of a file as whole objects, and what is read of an event in them.

    Raises:
        SettingsError: it is no Parquet.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            shape, objects = _shape_in(file.schema_arrow, shape_of_files(settings)), []
            for rows in file.iter_batches(min(number, ROWS_AT_ONCE), use_threads=False):
                objects += [_plain(row) for row in _listed(rows)]
                if len(objects) >= number:
                    break
    except (pa.ArrowException, OSError) as error:
        raise SettingsError(f"{name}: not a Parquet file: {str(error).splitlines()[0][:200]}") from error
    return objects[:number], shape


def _shape_in(schema: Any, shape: Shape) -> Shape:
    """Return what is read of an event in a file; timestamps of Arrow come in ms."""
    kind = None if shape.time is None else _kind(shape.time, schema)
    return replace(shape, unit="ms") if kind is not None and pa.types.is_timestamp(kind) else shape


def _paths(shape: Shape) -> list[Path]:
    """Return every path that is looked at."""
    fields = [path for view in shape.views.values() for path in (*view.paths().values(), *map(_of, view.where))]
    return fields + [path for path in (shape.time, shape.user) if isinstance(path, Path)]


def _of(condition: Condition) -> Path:
    return parse(condition.field)


def _kind(path: Path, schema: Any) -> Any:
    """Return the type of what is at a path; None where nothing can be."""
    found: Any = None
    fields: Any = schema
    for place, name in enumerate(path.steps, 1):
        names = [field.name for field in fields] if fields is not None else []
        if name not in names:
            return None
        found = fields.field(names.index(name)).type
        if place == path.list_at:
            if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
                return None
            found = found.value_type
        fields = found if pa.types.is_struct(found) else None
    return found


def _check(path: Path, schema: Any, name: str) -> None:
    if _kind(path, schema) is None:
        columns = ", ".join(field.name for field in schema)
        raise SettingsError(f"{name}: nothing is at {str(path)!r}; its columns are {columns}")


def _listed(rows: Any) -> list[dict[str, Any]]:
    """Return rows as objects; a time of ns is cut to us, which Python has."""
    columns = []
    for column in rows.columns:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        columns.append(column)
    listed: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, names=rows.schema.names).to_pylist(
        maps_as_pydicts="lossy"
    )
    return listed


def _plain(value: Any) -> Any:
    """Return a value of Arrow as what JSON has in its place."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return since // timedelta(milliseconds=1)
    if isinstance(value, str | int | float | Decimal) or value is None:
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return ()  # of no kind that an event has
    return value.isoformat() if isinstance(value, date) else ()
