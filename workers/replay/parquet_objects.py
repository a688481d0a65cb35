"""Parquet whose columns are looked into: paths, counts, conditions and buckets, row by row.

A row becomes what its JSON would be, and the rule of `events.project` says what event that is.
Timestamps count in ms since 1970 (less is cut off), whatever `events.timestamp_unit` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from workers.agents.factory import declared_keys
from workers.errors import SettingsError
from workers.events.reader import EventReader
from workers.events.source_reader import SourceReader
from workers.replay.ahead import ahead
from workers.replay.arrow_objects import is_list, is_text, objects_of
from workers.replay.source import EventBatch, InOrder, shape_of_files
from workers.settings import Settings
from workers.shapes.paths import Path, parse
from workers.shapes.views import Shape, View

ROWS_AT_ONCE = 1 << 13


class ParquetObjects:
    """The rows of a Parquet file, each as an object; see the module."""

    word = "row"
    partitions = 1
    places: Sequence[str] = ()
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
        asked = list(_asked(shape))
        for each in asked:
            _check(each, schema, name)
        shape = _shape_in(schema, shape)
        self._columns = list(dict.fromkeys(each.path.steps[0] for each in asked))
        self.total: int | None = self._file.metadata.num_rows
        self._reader = SourceReader(EventReader(shape), declared_keys(settings))
        self._order = InOrder(name, self.word, settings.events.grace_ms)

    def batches(self) -> Iterator[EventBatch]:
        read = 0
        try:
            for rows in ahead(self._file.iter_batches(ROWS_AT_ONCE, columns=self._columns, use_threads=False)):
                events, rejected = self._reader.of_objects(_listed(rows))
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
            shape = _shape_in(file.schema_arrow, shape_of_files(settings))
            objects: list[object] = []
            for rows in file.iter_batches(min(number, ROWS_AT_ONCE), use_threads=False):
                objects += _listed(rows)
                if len(objects) >= number:
                    break
    except (pa.ArrowException, OSError) as error:
        raise SettingsError(f"{name}: not a Parquet file: {str(error).splitlines()[0][:200]}") from error
    return objects[:number], shape


def _shape_in(schema: Any, shape: Shape) -> Shape:
    """Return what is read of an event in a file; timestamps of Arrow come in ms."""
    kind = None if shape.time is None else _kind(shape.time, schema)
    return replace(shape, unit="ms") if kind is not None and pa.types.is_timestamp(kind) else shape


class _Asked(NamedTuple):
    """A path of the settings; `fits` says of a type whether it can hold what is wanted there."""

    setting: str
    path: Path
    allowed: str
    fits: Callable[[Any], bool]


def _asked(shape: Shape) -> Iterator[_Asked]:
    """Yield every path that is looked at."""
    for view in shape.views.values():
        if isinstance(view.key, Path):
            yield _Asked("key", view.key, "text, whole numbers or booleans", _is_label)
        yield _items(view)
        if view.count is not None:
            yield _Asked("count", view.count, "whole numbers", pa.types.is_integer)
        for condition in view.where:
            yield _Asked("where", parse(condition.field), "anything", lambda _: True)
    if shape.time is not None:
        yield _Asked("timestamp", shape.time, _TIMES[shape.unit], lambda kind: _is_time(kind, shape.unit))
    if isinstance(shape.user, Path):
        yield _Asked("user", shape.user, "text or whole numbers", lambda kind: is_text(kind) or pa.types.is_integer(kind))


def _items(view: View) -> _Asked:
    """Return what the items of a view are."""
    one = _is_label if view.edges is None else _is_number
    word = "text, whole numbers or booleans" if view.edges is None else "numbers"
    if view.items.list_at is not None or view.count is not None:
        return _Asked("items", view.items, word, one)

    def fits(kind: Any) -> bool:
        if pa.types.is_map(kind):
            return view.edges is None and bool(pa.types.is_integer(kind.item_type))
        return one(kind.value_type if is_list(kind) else kind)

    more = "" if view.edges is not None else ", or a map of them to whole numbers"
    return _Asked("items", view.items, f"{word}, a list of them{more}; in a list of structures say which: q[].label", fits)


_TIMES = {unit: f"a timestamp, or whole numbers in {unit}" for unit in ("ms", "us", "ns")}
_TIMES |= {"s": "a timestamp, or numbers in s", "iso": "a timestamp, or text"}


def _is_time(kind: Any, unit: str) -> bool:
    if pa.types.is_timestamp(kind):
        return True
    return is_text(kind) if unit == "iso" else _is_number(kind) if unit == "s" else bool(pa.types.is_integer(kind))


def _is_label(kind: Any) -> bool:
    return is_text(kind) or bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _kind(path: Path, schema: Any) -> Any:
    """Return the type of what is at a path; None where nothing can be."""
    found: Any = None
    for place, name in enumerate(path.steps, 1):
        fields = schema if found is None else found
        if found is not None and pa.types.is_map(found):
            found = found.item_type
        elif (found is None or pa.types.is_struct(found)) and name in [field.name for field in fields]:
            found = fields.field([field.name for field in fields].index(name)).type
        else:
            return None
        if place == path.list_at:
            if not is_list(found):
                return None
            found = found.value_type
    return found.value_type if pa.types.is_dictionary(found) else found


def _check(asked: _Asked, schema: Any, name: str) -> None:
    """Refuse a file in which a path leads to nothing, or to what no event has there."""
    kind, shown = _kind(asked.path, schema), f"{name}: {asked.setting} = {str(asked.path)!r}"
    if kind is None:
        raise SettingsError(f"{shown}: nothing is there; its columns are {', '.join(schema.names)}")
    if schema.names.count(asked.path.steps[0]) > 1:
        raise SettingsError(f"{shown}: {schema.names.count(asked.path.steps[0])} columns have that name")
    if not asked.fits(kind) and not pa.types.is_null(kind):
        raise SettingsError(f"{shown}: {kind} is there; it must be {asked.allowed}")


def _listed(rows: Any) -> list[dict[str, Any]]:
    """Return rows as objects; see `arrow_objects`."""
    columns = [objects_of(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
