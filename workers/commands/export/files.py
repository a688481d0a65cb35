"""CSV or Parquet: a file of each table for each commit that has ticks, and a manifest.

A commit writes hidden files, replaces the manifest, and gives the files their names. So a file with
a name is complete, and covered by the manifest. A hidden one gets its name at the next start if the
manifest covers it, and is removed if not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Self

import msgspec

from workers.client.tables import SCHEMAS, Tables, copy_statement
from workers.commands.export.output import State, locked
from workers.runtime.errors import SettingsError
from workers.settings.files import LIST_BYTES_MAX, read_file, write_atomically

_MANIFEST = "manifest.json"
_SUFFIXES = MappingProxyType({"csv": "csv.gz", "parquet": "parquet"})


class Manifest(msgspec.Struct, frozen=True):
    """The state of the last commit, and how many files (00000001, ...) each table has by then."""

    files: int
    state: State


_MANIFESTS = msgspec.json.Decoder(Manifest)


class Files:
    """An export's directory, with folders `items` and `ticks` of files of one kind.

    `kind` is "csv" or "parquet". A hidden file is not in its folder yet.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        """Write into a directory; `kind` is "csv" or "parquet"."""
        # DuckDB reads the beginning of a relative path, such as `s3:`, as a scheme.
        self._directory = directory.absolute()
        self._kind = kind
        # How many files each table has, as in the manifest.
        self._files = 0

    @classmethod
    @contextmanager
    def open(cls, directory: Path, kind: str) -> Iterator[Self]:
        """Lock the directory for a block; by its manifest it is known as an export of files."""
        with locked(directory, _MANIFEST):
            yield cls(directory, kind)

    def load(self) -> State | None:
        """Return the state of the last commit, None before the first.

        First finish or undo an interrupted one.
        """
        path = self._directory / _MANIFEST
        manifest = None
        if path.exists():
            try:
                manifest = _MANIFESTS.decode(read_file(path, LIST_BYTES_MAX))
            except msgspec.DecodeError:
                raise SettingsError(f"{path}: not the manifest of an export") from None
            self._files = manifest.files
        # Only files of the newest number can have been interrupted before they got their names.
        covered = {self._hidden(table, self._files): table for table in SCHEMAS}
        for hidden in self._directory.glob(".*.part"):
            if hidden in covered:
                self._give_name(covered[hidden], self._files)
            else:
                hidden.unlink()
        return None if manifest is None else manifest.state

    def commit(self, rows: Tables, state: State) -> None:
        """Write the rows and the state that covers them, so that a crash keeps both or neither.

        Without a tick there is no new file, only a new state.
        """
        tables = SCHEMAS if len(rows.ticks) else {}
        number = self._files + 1 if tables else self._files
        for table, schema in tables.items():
            hidden = self._hidden(table, number)
            rows.database.execute(
                copy_statement(
                    f"from {table}", schema, hidden, self._kind, compressed=True
                )
            )
            _sync(hidden)
        manifest = msgspec.json.encode(Manifest(number, state))
        write_atomically(self._directory / _MANIFEST, manifest)
        _sync(self._directory)
        # From here on `load` gives the files their names if this process does not.
        for table in tables:
            self._give_name(table, number)
        self._files = number

    def _give_name(self, table: str, number: int) -> None:
        """Move a hidden file to its name, in the folder of its table."""
        folder = self._directory / table
        folder.mkdir(exist_ok=True)
        name = f"{number:08d}.{_SUFFIXES[self._kind]}"
        os.replace(self._hidden(table, number), folder / name)

    def _hidden(self, table: str, number: int) -> Path:
        """Return the path of a file before it gets its name."""
        return self._directory / f".{table}-{number:08d}.part"


def _sync(path: Path) -> None:
    """Wait until a file, or a directory's names, would survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
