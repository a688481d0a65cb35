"""A shard's state on local disk: RocksDB as a copy of one partition of a compacted changelog topic.

The changelog in Kafka is the truth; this is what saves reading all of it at every start. Every
write holds the changes together with the changelog position they bring the copy to, in one RocksDB
batch, and is made after the Kafka transaction was committed. So the copy may be behind the
changelog (then the rest is read again), never ahead of it. A copy that cannot be trusted (of
another topic, damaged, too old to have seen every deletion) is discarded and read again.

    key in RocksDB          value
    b"m"                    identity of the changelog, position, time of the last write as JSON
    b"d" + key              the value of `key`
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from workers.changes import Change
from workers.errors import SettingsError, StateRefused
from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, reader, take
from workers.kafka.topics import current_id

logger = logging.getLogger(__name__)

_META = b"m"
_DATA = b"d"
#: A compacted topic forgets its tombstones after delete.retention.ms (24 h by default): a copy that
#: was away longer may hold keys whose deletion can no longer be read. Half of it is the margin.
_TRUSTED_S = 12 * 3600
_MOST_COPIES = 4


@dataclass(frozen=True)
class Changelog:
    """The partition a store copies; `topic_id` tells a re-created topic from its namesake."""

    topic: str
    partition: int
    topic_id: str | None = None


@dataclass(frozen=True)
class Loading:
    """What bringing a store up to date took."""

    records: int
    seconds: float
    rebuilt: bool


class _Meta(msgspec.Struct, frozen=True):
    """What a copy says of itself, written with every batch."""

    topic: str
    partition: int
    topic_id: str | None
    offset: int
    written_s: float


class _Copy(Protocol):
    """Where the keys and values are: in memory or on disk."""

    def get(self, key: bytes) -> bytes | None: ...
    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]: ...
    def write(self, changes: Iterable[Change], meta: _Meta) -> None: ...
    def meta(self) -> _Meta | None: ...
    def wiped(self) -> _Copy: ...
    def close(self) -> None: ...


class Store:
    """Key-value copy of one changelog partition; used by one thread at a time."""

    def __init__(self, path: Path | str | None, changelog: Changelog) -> None:
        """Describe the store, in memory where there is no path; `open` or `load` opens it."""
        self.changelog = changelog
        self.path = None if path is None else Path(path)
        self._copy: _Copy | None = None
        self._offset: int | None = None
        self._written_s = 0.0
        self._wiped = False

    @property
    def offset(self) -> int | None:
        """Return the changelog position that this copy has reached; None before the first."""
        return self._offset

    def open(self) -> Store:
        """Open the copy, discarding one that is damaged or belongs to another changelog."""
        if self._copy is None:
            self._offset = None
            self._copy = _Memory() if self.path is None else _open_disk(self.path)
            self._recognise(self._copy)
        return self

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        return self._opened().get(key)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys that begin with `prefix` and their values, in key order."""
        return self._opened().items(prefix)

    def write(self, changes: Iterable[Change], offset: int) -> None:
        """Apply `changes`, of which later ones win, and the position they reach, or nothing."""
        if self._offset is not None and offset < self._offset:
            raise ValueError(f"offset = {offset}: the store is already at {self._offset}")
        now = time.time()
        log = self.changelog
        self._opened().write(changes, _Meta(log.topic, log.partition, log.topic_id, offset, now))
        self._offset = offset
        self._written_s = now

    def wipe(self) -> None:
        """Discard everything; the store is then empty and open."""
        self._copy = self._opened().wiped()
        self._offset = None
        self._wiped = True

    def close(self) -> None:
        """Close the copy; it can be opened again."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    def load(self, connection: Connection, waiting: Callable[[], None] = lambda: None) -> Loading:
        """Bring the copy up to the end of the changelog, whose writer was fenced before.

        While Kafka says nothing it calls `waiting`, which may raise.
        """
        started = time.perf_counter()
        self.open()
        log, records = self.changelog, 0
        with reader(connection) as consumer:
            low, high = bounds_of(consumer, log.topic, log.partition, waiting)
            self._distrust(low, high)
            if self._offset is None or self._offset < high:
                start = low if self._offset is None else self._offset
                for taken in take(consumer, {(log.topic, log.partition): (start, high)}, waiting):
                    changes = [(message.key() or b"", message.value()) for message in taken.messages]
                    self.write(changes, max(taken.position, self._offset or 0))
                    records += len(changes)
        self._check_id(connection)  # after reading: what was read is then of the topic that has this id
        rebuilt, self._wiped = self._wiped, False
        return Loading(records, time.perf_counter() - started, rebuilt)

    def _check_id(self, connection: Connection) -> None:
        """Refuse a changelog that was deleted and created again since this process learned its id.

        It has forgotten what was published, and the id is in the mechanism id: going on under the
        old one would begin again with the same noise.
        """
        log = self.changelog
        if log.topic_id is not None and current_id(connection, log.topic) != log.topic_id:
            raise StateRefused(
                f"topic {log.topic} was deleted and created again while this worker ran: what was published is "
                "forgotten, and its noise must not be used again. Start the worker again: it says what to do"
            )

    def _distrust(self, low: int, high: int) -> None:
        """Wipe a copy that the log between `low` and `high` cannot bring up to date."""
        if self._offset is None:
            return
        name = f"{self.changelog.topic}[{self.changelog.partition}]"
        if not low <= self._offset <= high:
            logger.warning("%s: the local copy is at %d, the log is %d..%d", name, self._offset, low, high)
        elif self._offset < high and time.time() - self._written_s > _TRUSTED_S:
            logger.warning("%s: the local copy is too old to have seen every deletion", name)
        else:
            return
        logger.warning("%s: reading all of it again", name)
        self.wipe()

    def _recognise(self, copy: _Copy) -> None:
        """Go on from the position of `copy` if it is of our changelog, else wipe it."""
        meta, log = copy.meta(), self.changelog
        if meta is None:  # new: nothing was ever written without it
            return
        # No id is an id of its own: a copy without one is never taken for that of a topic with one.
        if (meta.topic, meta.partition, meta.topic_id) == (log.topic, log.partition, log.topic_id):
            self._offset, self._written_s = meta.offset, meta.written_s
            return
        logger.warning("%s held the state of another topic: reading all of it again", self.path)
        self.wipe()

    def _opened(self) -> _Copy:
        if self._copy is None:
            raise RuntimeError("the store is not open")
        return self._copy


class _Memory:
    """A copy that ends with the process: for tests, replay and the embedded cluster."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self._meta: _Meta | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._data.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(item for item in self._data.items() if item[0].startswith(prefix)))

    def write(self, changes: Iterable[Change], meta: _Meta) -> None:
        for key, value in changes:
            if value is None:
                self._data.pop(key, None)
            else:
                self._data[key] = value
        self._meta = meta

    def meta(self) -> _Meta | None:
        return self._meta

    def wiped(self) -> _Copy:
        return _Memory()

    def close(self) -> None:
        pass


class _Disk:
    """A copy in RocksDB."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._db = Rdict(str(path), _options())
        try:
            self.meta()  # what cannot be read is found now
        except Exception:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(_DATA + key)
        return value

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = _DATA + prefix
        rows: Iterator[tuple[bytes, bytes]] = self._db.items(from_key=start)  # type: ignore[assignment]  # raw mode: bytes
        for key, value in rows:
            if not key.startswith(start):
                return
            yield key[len(_DATA) :], value

    def write(self, changes: Iterable[Change], meta: _Meta) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(_DATA + key)
            else:
                batch.put(_DATA + key, value)
        batch.put(_META, msgspec.json.encode(meta))
        self._db.write(batch)

    def meta(self) -> _Meta | None:
        raw = self._db.get(_META)
        return None if raw is None else msgspec.json.decode(raw, type=_Meta)

    def wiped(self) -> _Copy:
        self.close()
        shutil.rmtree(self._path, ignore_errors=True)
        return _Disk(self._path)

    def close(self) -> None:
        self._db.close()


def _open_disk(path: Path) -> _Disk:
    """Open the copy at `path`, discarding a damaged one and leaving one in use alone.

    A frozen or slowly ending owner of the partition on this machine may still hold RocksDB's lock.
    It was fenced, so its copy will never be ahead; ours is then kept beside it.
    """
    for number in range(1, _MOST_COPIES + 1):
        candidate = path if number == 1 else path.with_name(f"{path.name}.{number}")
        try:
            return _Disk(candidate)
        except Exception as exc:  # noqa: BLE001  # rocksdict raises plain Exception, told apart by its text
            if "/LOCK" in str(exc):
                logger.warning("%s is in use by another process", candidate)
                continue
            logger.warning("%s cannot be used and is discarded: %s", candidate, exc)
            shutil.rmtree(candidate, ignore_errors=True)
            try:
                return _Disk(candidate)
            except Exception as again:
                raise SettingsError(f"worker.data_dir: {candidate} cannot be written: {again}") from again
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
