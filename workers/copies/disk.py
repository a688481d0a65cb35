"""A copy on a disk, in RocksDB.

    key in RocksDB          value
    b"m"                    identity of the changelog, position, time of the last write as JSON
    b"d" + key              the value of `key`
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from workers.changes import Change
from workers.copies.memory import Copy, Meta
from workers.errors import CopyFailed, SettingsError

logger = logging.getLogger(__name__)

_META = b"m"
_DATA = b"d"
_MOST_COPIES = 4


class Disk:
    """A copy in RocksDB; whatever goes wrong with it is `CopyFailed`, in the system's words."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._failing("be opened"):
            path.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(path), _options())
        try:
            self.meta()  # what cannot be read is found now
        except CopyFailed:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        with self._failing("be read"):
            value: bytes | None = self._db.get(_DATA + key)
        return value

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = _DATA + prefix
        with self._failing("be read"):
            rows: Any = self._db.iter()  # its `items` would end at a damaged block as if there were no more
            rows.seek(start)
        while rows.valid():
            key: bytes = rows.key()
            if not key.startswith(start):
                return
            yield key[len(_DATA) :], rows.value()
            rows.next()
        with self._failing("be read"):
            rows.status()

    def write(self, changes: Iterable[Change], meta: Meta | None) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(_DATA + key)
            else:
                batch.put(_DATA + key, value)
        if meta is not None:
            batch.put(_META, msgspec.json.encode(meta))
        with self._failing("be written"):
            self._db.write(batch)

    def meta(self) -> Meta | None:
        with self._failing("be read"):
            raw = self._db.get(_META)
            return None if raw is None else msgspec.json.decode(raw, type=Meta)

    def wiped(self) -> Copy:
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        return Disk(self.path)

    def look(self) -> None:
        """Raise `CopyFailed` where its files are gone."""
        with self._failing("be found"):
            (self.path / "CURRENT").stat()

    def close(self) -> None:
        with suppress(Exception):  # it is of no use any more, or complete
            self._db.close()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn what rocksdict raises, which is plain `Exception`, into `CopyFailed`."""
        try:
            yield
        except Exception as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
            raise CopyFailed(f"{self.path} cannot {what}: {words}") from error


def open_disk(path: Path, *, again: bool = False) -> Disk:
    """Open the copy at `path`, discarding a damaged one and leaving one in use alone; `again`: that
    was said before.

    A frozen or slowly ending owner of the partition on this machine may still hold RocksDB's lock.
    It was fenced, so its copy will never be ahead; ours is then kept beside it.
    """
    for number in range(1, _MOST_COPIES + 1):
        candidate = path if number == 1 else path.with_name(f"{path.name}.{number}")
        try:
            return Disk(candidate)
        except CopyFailed as failed:
            if "/LOCK" in str(failed) and "open a file" not in str(failed):
                if not again:
                    logger.warning("%s is in use by another process", candidate)
                continue
            if candidate.exists():
                if not again:
                    logger.warning("%s; it is discarded", failed)
                shutil.rmtree(candidate, ignore_errors=True)
            return Disk(candidate)
    raise SettingsError(f"worker.data_dir: {path} and {_MOST_COPIES - 1} copies of it are in use by other processes")


def _options() -> Options:
    """Return RocksDB's options: raw bytes, little memory a partition, few files."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(16 << 20)
    options.set_max_background_jobs(2)
    options.set_max_open_files(128)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    return options
