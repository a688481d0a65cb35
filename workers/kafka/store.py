"""A shard's state on local disk: a RocksDB copy of one partition of a compacted changelog topic.

The changelog is authoritative; the copy avoids reading all of it at every start. After the Kafka
commit, one RocksDB batch writes the changes and the changelog position they reach, so the copy may
be behind the changelog but never ahead of it. RocksDB's own log of writes (WAL) is off: after a
kill the copy is what was last flushed, and a file that lost its end makes it older or unreadable.
(With a WAL, later changes could be there without earlier ones.) A copy that is damaged, of another
topic, or too old to have seen every deletion is read again. If the disk fails, the state moves to
memory, and the store retries the disk later.

    key in RocksDB          value
    b"m"                    changelog identity, position, time of the last write as JSON
    b"d" + key              the value of `key`
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from workers.kafka.clients import Connection
from workers.kafka.reading import (
    Callback,
    bounds_of,
    end_of,
    name_of,
    read_spans,
    reader,
)
from workers.kafka.topics import current_id
from workers.runtime.errors import CopyFailed, SettingsError, StateRefused
from workers.runtime.sizes import Change

logger = logging.getLogger(__name__)


class Changelog(msgspec.Struct, frozen=True):
    """The partition that a store copies; `topic_id` tells its topic from a re-created one."""

    topic: str
    partition: int
    topic_id: str | None = None

    @property
    def log(self) -> tuple[str, int]:
        return self.topic, self.partition


class CopyHeader(Changelog, frozen=True, kw_only=True):
    """Header of a local copy: whose state it is, up to which offset, and when (s since 1970)."""

    offset: int
    written_s: float


_DECODER = msgspec.json.Decoder(CopyHeader)


class Memory:
    """In-memory copy, lost when the process ends: for tests, replay and the embedded cluster."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._data.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(
            sorted(item for item in self._data.items() if item[0].startswith(prefix))
        )

    def write(self, changes: Iterable[Change], header: CopyHeader | None) -> None:
        """Apply changes (None deletes); the header is not kept, since nothing reads it again."""
        for key, value in changes:
            if value is None:
                self._data.pop(key, None)
            else:
                self._data[key] = value

    def header(self) -> CopyHeader | None:
        """Return None: it is never opened again."""
        return None

    def emptied(self) -> Memory:
        """Return an empty copy to take the place of this one."""
        return Memory()

    def close(self) -> None:
        pass


_META = b"m"
_DATA = b"d"
# Directories that are tried, where earlier owners still use the first ones.
_COPIES_MAX = 4
#: After a kill, at most the changes of this time and of a write buffer are read again from Kafka.
_FLUSH_S = 60.0


class Disk:
    """RocksDB copy; every failure is `CopyFailed`, with the system's message."""

    def __init__(self, path: Path) -> None:
        """Open the copy at `path`, or make one; CopyFailed if it is damaged or in use."""
        self.path = path
        with self._failing("be opened"):
            path.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(path), _options())
        self._without_wal = WriteOptions()
        self._without_wal.disable_wal = True  # type: ignore[assignment]  # a property, to rocksdict's stub a method
        self._flushed_s = time.monotonic()
        try:
            self.header()  # fail now if it is unreadable
        except CopyFailed:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        with self._failing("be read"):
            value: bytes | None = self._db.get(_DATA + key)
        return value

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys with `prefix` and their values, in key order."""
        start = _DATA + prefix
        with self._failing("be read"):
            # Not `items`, which stops silently at a damaged block.
            rows: Any = self._db.iter()
            rows.seek(start)
        # This ends after the last row or at a damaged block, for which `status` raises.
        while rows.valid():
            key: bytes = rows.key()
            if not key.startswith(start):
                return
            yield key[len(_DATA) :], rows.value()
            rows.next()
        with self._failing("be read"):
            rows.status()

    def write(self, changes: Iterable[Change], header: CopyHeader | None) -> None:
        """Write changes and header (None: unchanged) atomically; start a flush every `_FLUSH_S`."""
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(_DATA + key)
            else:
                batch.put(_DATA + key, value)
        if header is not None:
            batch.put(_META, msgspec.json.encode(header))
        with self._failing("be written"):
            self._db.write(batch, self._without_wal)
            if time.monotonic() - self._flushed_s >= _FLUSH_S:
                self._db.flush(wait=False)
                self._flushed_s = time.monotonic()

    def header(self) -> CopyHeader | None:
        with self._failing("be read"):
            raw = self._db.get(_META)
            return None if raw is None else _DECODER.decode(raw)

    def emptied(self) -> Disk:
        """Delete the files, and return an empty copy in their place."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        return Disk(self.path)

    def check_exists(self) -> None:
        """Raise CopyFailed if the files were deleted under the open database."""
        with self._failing("be found"):
            (self.path / "CURRENT").stat()

    def close(self) -> None:
        with suppress(Exception):  # the copy is complete or no longer needed
            self._db.close()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Convert rocksdict's errors, which are plain `Exception`, to `CopyFailed`."""
        try:
            yield
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else None
            words = reason or " ".join(str(error).split())
            raise CopyFailed(f"{self.path} cannot {what}: {words}") from error


Copy = Memory | Disk


def open_disk(path: Path, *, again: bool = False) -> Disk:
    """Open the copy at `path`; discard a damaged one, and skip one that is in use.

    An older owner on this machine may still hold RocksDB's lock. It was fenced, so its copy will
    never be ahead; ours is stored beside it. `again` suppresses repeated warnings.
    """
    for number in range(1, _COPIES_MAX + 1):
        candidate = path if number == 1 else path.with_name(f"{path.name}.{number}")
        try:
            return Disk(candidate)
        except CopyFailed as failed:
            # Another process holds the lock. Failing to open the lock's file is a different error.
            if "/LOCK" in str(failed) and "open a file" not in str(failed):
                if not again:
                    logger.warning("%s is in use by another process", candidate)
                continue
            if candidate.exists():
                if not again:
                    logger.warning("%s; it is discarded", failed)
                shutil.rmtree(candidate, ignore_errors=True)
            return Disk(candidate)
    raise SettingsError(
        f"worker.data_dir: {path} and {_COPIES_MAX - 1} copies of it are in use by other processes"
    )


def _options() -> Options:
    """Return options for byte keys and values, with small buffers, as every shard has a copy."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(16 << 20)
    options.set_max_background_jobs(2)
    options.set_max_open_files(128)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    return options


#: A compacted topic drops its tombstones after delete.retention.ms (24 h by default), so an older
#: copy may hold keys deleted since. Half of that is the margin.
_TRUSTED_S = 12 * 3600
#: Interval of checks that the files exist; also first and longest delay before retrying the disk.
RETRY_S = 5.0
RETRY_MAX_S = 60.0
_CHANGES_AT_ONCE = 10_000


class Store:
    """Key-value copy of one changelog partition; used by one thread at a time."""

    def __init__(self, path: Path | str | None, changelog: Changelog) -> None:
        """Configure the store, in memory if `path` is None; `open` or `load` opens it."""
        self.changelog = changelog
        self.path = None if path is None else Path(path)
        self._copy: Copy | None = None
        #: The changelog position this copy has reached; None before the first.
        self.offset: int | None = None
        # Time of the last write (since 1970), and of the last look at the files (monotonic).
        self._written_s = self._checked_s = 0.0
        # From the last look until a failed disk is tried again.
        self._retry_delay_s = RETRY_S
        # Whether the copy could not be read: `close` deletes it then.
        self._unreadable = False
        # Set by `load`, to read the changelog again.
        self._connection: Connection | None = None
        #: A copy on disk is configured but has failed.
        self.in_memory = False

    def open(self) -> Store:
        """Open the copy unless it is open; return self.

        `open_disk` discards a damaged copy, `_identify` wipes one of another changelog; if the disk
        fails, the state is in memory (`in_memory`).
        """
        if self._copy is None:
            self.offset = None
            self.in_memory = False
            try:
                self._copy = Memory() if self.path is None else open_disk(self.path)
            except CopyFailed as error:
                self._copy = self._in_memory(error)
            self._identify(self._copy)
        return self

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None. After `CopyFailed`, restart without these files."""
        with self._reading():
            return self._opened().get(key)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys with `prefix` and their values, in key order; for `CopyFailed` see `get`."""
        with self._reading():
            yield from self._opened().items(prefix)

    def write(self, changes: Iterable[Change], offset: int) -> None:
        """Apply `changes` (later ones win) and the position they reach, atomically."""
        if self.offset is not None and offset < self.offset:
            raise ValueError(
                f"offset = {offset}: the store is already at {self.offset}"
            )
        changes = list(changes)
        copy = self._opened()
        header = self._header(offset, time.time())
        try:
            self._check_files()
            copy.write(changes, header)
        except CopyFailed as error:
            self._fall_back(error).write(changes, header)
        self.offset = offset
        self._written_s = header.written_s
        if self.in_memory:
            self._retry_disk()

    def wipe(self) -> None:
        """Empty the copy, and forget its position, so that `load` reads the whole changelog."""
        try:
            self._copy = self._opened().emptied()
        except CopyFailed as error:
            self._copy = self._in_memory(error)
        self.offset = None

    def close(self) -> None:
        """Close the copy, and delete its files if they could not be read."""
        copy = self._copy
        self._copy = None
        if copy is not None:
            copy.close()
        if self._unreadable and isinstance(copy, Disk):
            shutil.rmtree(copy.path, ignore_errors=True)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Note a failure to read, so that `close` deletes the files."""
        try:
            yield
        except CopyFailed:
            self._unreadable = True
            raise

    def load(self, connection: Connection, on_wait: Callback = lambda: None) -> int:
        """Read the changelog to its end, its previous writer fenced; return the records read."""
        self._connection = connection
        records = 0
        self.open()
        with reader(connection) as consumer:
            low, high = bounds_of(consumer, *self.changelog.log, on_wait)
            self._discard_stale(low, high)
            start = low if self.offset is None else self.offset
            for changes, position in self._changes(consumer, start, high, on_wait):
                self.write(changes, position)
                records += len(changes)
        # Check after reading: the records read then belong to the topic with this id.
        self._check_id(connection)
        return records

    def _changes(
        self, consumer: Consumer, start: int, end: int, on_wait: Callback = lambda: None
    ) -> Iterator[tuple[list[Change], int]]:
        """Yield the changes in the changelog from `start` to before `end`, chunk by chunk.

        Each chunk comes with the position after it.
        """
        spans = {self.changelog.log: (start, end)} if start < end else {}
        for taken in read_spans(consumer, spans, on_wait):
            changes = [
                (message.key() or b"", message.value()) for message in taken.messages
            ]
            yield changes, taken.position

    def is_current(self, connection: Connection, on_wait: Callback) -> bool:
        """Return whether the changelog, its writers fenced, has no commits past this copy."""
        log = self.changelog.log
        # Unlike `high`, this is past an open transaction.
        end = end_of(connection, *log, on_wait)
        with reader(connection) as consumer:
            low, high = bounds_of(consumer, *log, on_wait)
            start = low if self.offset is None else self.offset
            # It was cut, or ends in an open transaction of a writer that was not fenced.
            if not start <= end <= high:
                return False
            # What follows may be the ends of transactions alone.
            return not any(
                changes for changes, _ in self._changes(consumer, start, high, on_wait)
            )

    def _check_id(self, connection: Connection) -> None:
        """Refuse a re-created changelog: its state is gone, and the noise would be used again."""
        log = self.changelog
        if (
            log.topic_id is not None
            and current_id(connection, log.topic) != log.topic_id
        ):
            raise recreated(log.topic)

    def _discard_stale(self, low: int, high: int) -> None:
        """Wipe a copy at an offset that the log (`low` to `high`) lacks, or one too old."""
        if self.offset is None:
            return
        name = name_of(self.changelog.log)
        if not low <= self.offset <= high:
            logger.warning(
                "%s: the local copy is at %d, the log is %d..%d",
                name,
                self.offset,
                low,
                high,
            )
        elif self.offset < high and time.time() - self._written_s > _TRUSTED_S:
            logger.warning(
                "%s: the local copy is too old to have seen every deletion", name
            )
        else:
            return
        logger.warning("%s: reading all of it again", name)
        self.wipe()

    def _identify(self, copy: Copy) -> None:
        """Take over the copy's position; wipe it if it belongs to another topic or has none."""
        with self._reading():
            header = copy.header()
            log = self.changelog
            # The header is written last.
            is_unfinished = header is None and next(copy.items(b""), None) is not None
        if header is not None:
            # A copy without an id never passes for one of a topic with an id.
            if (*header.log, header.topic_id) == (*log.log, log.topic_id):
                self.offset = header.offset
                self._written_s = header.written_s
                return
            logger.warning(
                "%s held the state of another topic: reading all of it again", self.path
            )
        if header is not None or is_unfinished:
            self.wipe()

    def _header(self, offset: int, now_s: float) -> CopyHeader:
        """Return the header of a copy that has reached `offset`, written at `now_s`."""
        log = self.changelog
        return CopyHeader(
            log.topic, log.partition, log.topic_id, offset=offset, written_s=now_s
        )

    def _in_memory(self, error: CopyFailed) -> Memory:
        """Return an empty copy in memory after a failure of the disk, which is retried later."""
        if not self.in_memory:
            logger.warning(
                "worker.data_dir: %s. Continuing with the state in memory; the disk is retried",
                error,
            )
        self.in_memory = True
        self._checked_s = time.monotonic()
        self._retry_delay_s = RETRY_S
        return Memory()

    def _fall_back(self, error: CopyFailed) -> Copy:
        """Rebuild the state in memory after a failed write: from the changelog, up to our position.

        The caller then writes its changes, which come next in the changelog, to the copy that this
        returns. Raise the disk's `error` if `load` was never called, which knows the connection.
        """
        if self._connection is None:
            raise error
        copy = self._in_memory(error)
        self.close()
        with reader(self._connection) as consumer:
            low, high = bounds_of(consumer, *self.changelog.log)
            for changes, position in self._changes(
                consumer, low, min(high, self.offset or 0)
            ):
                copy.write(changes, self._header(position, time.time()))
        self._copy = copy
        return copy

    def _retry_disk(self) -> None:
        """If a retry is due, write the state in memory to disk again and go on there."""
        is_due = time.monotonic() - self._checked_s >= self._retry_delay_s
        if self.path is None or self.offset is None or not is_due:
            return
        self._retry_delay_s = min(2 * self._retry_delay_s, RETRY_MAX_S)
        disk: Copy | None = None
        try:
            # The copy on disk is incomplete or older.
            disk = open_disk(self.path, again=True).emptied()
            rows: Iterator[Change] = iter(self._opened().items(b""))
            while chunk := list(islice(rows, _CHANGES_AT_ONCE)):
                disk.write(chunk, None)
            # The header last: without it a copy is unfinished.
            disk.write((), self._header(self.offset, self._written_s))
        except (CopyFailed, SettingsError):  # already logged
            if disk is not None:
                disk.close()
            self._checked_s = time.monotonic()
            return
        self._copy = disk
        self.in_memory = False
        logger.warning(
            "worker.data_dir: %s can be written again: the local copy is complete",
            self.path,
        )

    def _check_files(self) -> None:
        """Check at intervals that the files exist: RocksDB would keep using those it has open."""
        now_s = time.monotonic()
        if isinstance(self._copy, Disk) and now_s - self._checked_s >= RETRY_S:
            self._checked_s = now_s
            self._copy.check_exists()

    def _opened(self) -> Copy:
        if self._copy is None:
            raise RuntimeError("the store is not open")
        return self._copy


def recreated(topic: str) -> StateRefused:
    """Return the error for a state topic that was replaced by a new one of the same name."""
    return StateRefused(
        f"topic {topic} was deleted and created again while this worker ran: what was published is "
        "forgotten, and its noise must not be used again. Restart the worker: it says what to do"
    )
