"""Iceberg tables, `quietcount.items` and `quietcount.ticks`, with a catalogue in an SQLite file.

The state is a property of the snapshots of both tables: Iceberg commits rows and state at once, but
each table by itself. Ticks are committed first, and the state of `items` counts. If a crash came
between the two, the next run takes the ticks of that commit back, and reads them again. Here a
"snapshot" is Iceberg's: a version of a table, with the one before as its parent. Those of other
programs, such as a compaction, carry no state; the newest one that does counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import msgspec

from workers.client.tables import Tables
from workers.commands.export.output import State, locked
from workers.runtime.errors import SettingsError
from workers.runtime.printing import printable

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

_CATALOG = "catalog.db"
_NAMESPACE = "quietcount"
_ITEMS = f"{_NAMESPACE}.items"
_TICKS = f"{_NAMESPACE}.ticks"
_PROPERTY = "quietcount.export"
_STATES = msgspec.json.Decoder(State)


class Catalog:
    """The output of an export that is Iceberg tables."""

    def __init__(self, catalog: "SqlCatalog") -> None:
        self._catalog = catalog

    @classmethod
    @contextmanager
    def open(cls, directory: Path, _kind: str) -> Iterator[Self]:
        """Open the catalogue in a directory, which is locked for the block.

        It is called as `Files.open` is; there is just one kind.
        """
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
        """Return the state of the last commit; None before the first. First undo half a commit."""
        state_json = self._state(_ITEMS)
        self._take_back(state_json)
        return None if state_json is None else _STATES.decode(state_json)

    def commit(self, rows: Tables, state: State) -> None:
        """Append the rows to both tables, ticks first, each with the state."""
        state_json = msgspec.json.encode(state).decode()
        self._catalog.create_namespace_if_not_exists(_NAMESPACE)
        for name, relation in ((_TICKS, rows.ticks), (_ITEMS, rows.items)):
            added = relation.to_arrow_table()
            table = self._catalog.create_table_if_not_exists(name, added.schema)
            table.append(added, snapshot_properties={_PROPERTY: state_json})

    def _state(self, name: str) -> str | None:
        """Return the state, as JSON, of the newest snapshot of a table that has one."""
        found = self._newest(name)
        return None if found is None else found[1]

    def _newest(self, name: str) -> tuple[int, str] | None:
        """Return the id of the newest snapshot of a table that has a state, and the state.

        None for a table without snapshots.
        """
        if not self._catalog.table_exists(name):
            return None
        table = self._catalog.load_table(name)
        snapshot = table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            properties = summary.additional_properties if summary else {}
            if _PROPERTY in properties:
                return snapshot.snapshot_id, properties[_PROPERTY]
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        if table.current_snapshot() is not None:
            raise SettingsError(
                f"table {name}: no snapshot in it says how far it was exported"
            )
        return None

    def _take_back(self, items_state: str | None) -> None:
        """Take back the ticks of a commit that ended before its items.

        `items_state` is the state of the table of items, as JSON; None: it has no commit.
        """
        if self._state(_TICKS) == items_state:
            return
        # It was the first commit.
        if items_state is None:
            self._catalog.drop_table(_TICKS)
            return
        table = self._catalog.load_table(_TICKS)
        newest = self._newest(_TICKS)
        assert newest is not None, "it has another state"
        half_commit = table.snapshot_by_id(newest[0])
        before = None if half_commit is None else half_commit.parent_snapshot_id
        if before is None:
            raise SettingsError(f"table {_TICKS}: what {_ITEMS} has is missing in it")
        table.manage_snapshots().rollback_to_snapshot(before).commit()


def _location(directory: Path) -> str:
    """Return the location of a directory; refuse characters at which PyIceberg would cut it."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    location = f"file://{directory}"
    _scheme, _host, path = PyArrowFileIO.parse_location(location)
    if path != str(directory):
        raise SettingsError(
            f"--output {printable(str(directory))}: the path of an Iceberg table cannot have ?, # "
            "or control characters; give another directory"
        )
    return location
