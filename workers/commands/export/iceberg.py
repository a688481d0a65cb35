"""An Iceberg table, `quietcount.snapshots`, with its catalogue in an SQLite file beside it.

The state is a property of the table's snapshot: Iceberg commits both at once. Snapshots of other
programs, such as a compaction, carry none; the newest one that does counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import duckdb
import msgspec

from workers.commands.export.output import State, locked
from workers.runtime.errors import SettingsError
from workers.runtime.printing import printable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table as IcebergTable

_CATALOG = "catalog.db"
_NAMESPACE = "quietcount"
_TABLE = f"{_NAMESPACE}.snapshots"
_PROPERTY = "quietcount.export"
_STATES = msgspec.json.Decoder(State)


class Table:
    """The output of an export that is an Iceberg table."""

    def __init__(self, catalog: "SqlCatalog") -> None:
        self._catalog = catalog

    @classmethod
    @contextmanager
    def open(cls, directory: Path, _kind: str) -> Iterator[Self]:
        try:
            from pyiceberg.catalog.sql import SqlCatalog
        except ImportError:
            raise SettingsError(
                "--format iceberg needs pyiceberg: install quietcount[iceberg]"
            ) from None
        place = directory.absolute()
        warehouse = _location(place)
        with locked(directory, _CATALOG):
            catalog = SqlCatalog(
                _NAMESPACE,
                uri=f"sqlite:///{quote(str(place / _CATALOG))}",
                warehouse=warehouse,
            )
            try:
                yield cls(catalog)
            finally:
                catalog.close()

    def load(self) -> State | None:
        """Return the state of the newest table snapshot that has one; None before the first."""
        if not self._catalog.table_exists(_TABLE):
            return None
        table = self._catalog.load_table(_TABLE)
        newest = table.current_snapshot()
        while newest is not None:
            properties = newest.summary.additional_properties if newest.summary else {}
            if _PROPERTY in properties:
                return _STATES.decode(properties[_PROPERTY])
            parent = newest.parent_snapshot_id
            newest = None if parent is None else table.snapshot_by_id(parent)
        if table.current_snapshot() is not None:
            raise SettingsError(
                f"table {_TABLE}: no snapshot in it says how far it was exported"
            )
        return None

    def commit(self, rows: duckdb.DuckDBPyRelation, state: State) -> None:
        added = rows.to_arrow_table()
        text = msgspec.json.encode(state).decode()
        _create(self._catalog, added.schema).append(
            added, snapshot_properties={_PROPERTY: text}
        )


def _location(directory: Path) -> str:
    """Return the location of a directory; refuse characters at which PyIceberg would cut it."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    location = f"file://{directory}"
    _, _, path = PyArrowFileIO.parse_location(location)
    if path != str(directory):
        raise SettingsError(
            f"--output {printable(str(directory))}: the path of an Iceberg table cannot have ?, # "
            "or control characters; give another directory"
        )
    return location


def _create(catalog: "SqlCatalog", schema: "pa.Schema") -> "IcebergTable":
    catalog.create_namespace_if_not_exists(_NAMESPACE)
    return catalog.create_table_if_not_exists(_TABLE, schema)
