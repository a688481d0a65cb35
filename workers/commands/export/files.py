"""CSV or Parquet: a file for each commit that has rows, and a manifest with the state.

A commit writes a hidden file, replaces the manifest, and gives the file its name. So a file with a
name is complete, and covered by the manifest. A hidden one gets its name at the next start if the
manifest covers it, and is removed if not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import duckdb
import msgspec

from workers.commands.export.output import State, locked
from workers.runtime.errors import SettingsError
from workers.settings.files import LIST_BYTES_MAX, read_file, write_atomically

_MANIFEST = "manifest.json"
_TIMES = ", ".join(
    f"strftime({name} at time zone 'UTC', '%Y-%m-%dT%H:%M:%S.%gZ') as {name}"
    for name in ("start_time", "end_time")
)


class Manifest(msgspec.Struct, frozen=True):
    """`files` is how many there are: 00000001, 00000002, ..."""

    files: int
    state: State


_MANIFESTS = msgspec.json.Decoder(Manifest)


class Files:
    """A directory of files of one kind, "csv" or "parquet"."""

    def __init__(self, directory: Path, kind: str) -> None:
        # DuckDB reads the beginning of a relative path, such as `s3:`, as a scheme.
        self._directory = directory.absolute()
        self._kind = kind
        self._files = 0

    @classmethod
    @contextmanager
    def open(cls, directory: Path, kind: str) -> Iterator[Self]:
        with locked(directory, _MANIFEST):
            yield cls(directory, kind)

    def load(self) -> State | None:
        """Return the state of the last commit; first finish or undo an interrupted one."""
        path = self._directory / _MANIFEST
        manifest = None
        if path.exists():
            try:
                manifest = _MANIFESTS.decode(read_file(path, LIST_BYTES_MAX))
            except msgspec.DecodeError:
                raise SettingsError(f"{path}: not the manifest of an export") from None
            self._files = manifest.files
        for hidden in self._directory.glob(".*.part"):
            if hidden == self._hidden(self._files):
                os.replace(hidden, self._path(self._files))
            else:
                hidden.unlink()
        return None if manifest is None else manifest.state

    def commit(self, rows: duckdb.DuckDBPyRelation, state: State) -> None:
        """Write the rows and the state that covers them, so that a crash keeps both or neither."""
        files = self._files + (len(rows) > 0)
        if files > self._files:
            hidden = self._hidden(files)
            if self._kind == "csv":
                rows.select(f"* replace ({_TIMES})").write_csv(str(hidden))
            else:
                rows.write_parquet(str(hidden), compression="zstd")
            _sync(hidden)
        write_atomically(
            self._directory / _MANIFEST, msgspec.json.encode(Manifest(files, state))
        )
        _sync(self._directory)
        if files > self._files:
            os.replace(hidden, self._path(files))
        self._files = files

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08d}.{self._kind}"

    def _hidden(self, number: int) -> Path:
        """Return the name of a file that no manifest covers yet."""
        path = self._path(number)
        return path.with_name(f".{path.name}.part")


def _sync(path: Path) -> None:
    """Wait until a file, or a directory's names, would survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
