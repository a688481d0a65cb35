"""The history of one dashboard: one thread fills its file, and a few threads answer queries.

After a file error the dashboard runs on without history: its state and refused queries give the
reason, and opening the file is retried until it succeeds. Old rows are removed by level: `ticks`
has every tick, `quarters` the last of each quarter of an hour (`writing`).

Queries share DuckDB's memory with the writer, which comes first: when it has none, running queries
are ended, and others wait until it has taken a step.
"""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import duckdb
from confluent_kafka import KafkaException

from workers.client.config import ReaderSettings
from workers.dashboard.store.files import empty_directory
from workers.dashboard.store.following import Backlog, Follower
from workers.dashboard.store.writing import (
    Database,
    SchemaMismatch,
    Writer,
    compact,
    connect,
    thin,
)
from workers.runtime.errors import QuietcountError, describe

logger = logging.getLogger(__name__)

RETRY_S = 5.0
REOPEN_S = 5.0
CLOSING_S = 2.0
# A writer without memory tries so often, and waits this much longer each time.
ROOM_TRIES = 5
ROOM_WAIT_S = 0.2
# So does a query that makes a piece of a file.
PIECE_TRIES = 5
# Advice to clients that ask for too much.
LESS = "ask for a shorter time or a longer step"
# Threads that answer queries, and the most queries that may wait for one.
THREADS = 2
WAITING = 16
ANSWER_S = 10.0
# Threads that write files, and the time limit for one piece of a file.
FILES = 2
FILE_S = 1_800.0
# Old rows are removed every 1/THIN_EVERY of their retention.
THIN_EVERY = 48
# How often new rows are sorted, if there are many, and old ones removed, if that is due.
COMPACT_S = 5.0

OPENING = "it is being opened"
OTHER = "its file is of another version, or of another program"
# DuckDB's messages for such a file.
_FOREIGN = ("not a valid DuckDB database", "version number")

# DuckDB's message for a file that another process has open.
_LOCKED = "Could not set lock on file"
# Errors of the system that DuckDB quotes in its messages.
_FILE_ERRORS = (
    errno.ENOSPC,
    errno.EFBIG,
    errno.EACCES,
    errno.ENOENT,
    errno.EROFS,
    errno.EDQUOT,
    errno.EIO,
    errno.ENOTDIR,
    errno.EISDIR,
)

T = TypeVar("T")
Query = Callable[[Database], T]


class QueryFailed(Exception):
    """A query that cannot be answered now; the client sees the message."""


class MemoryTaken(QueryFailed):
    """A query that lacked memory, or was ended because the writer lacked it."""


class Store:
    """One history, filled by the thread `_run` and queried by others.

    `state`, which the API shows, is replaced, never mutated. `reading` is the part of the topics
    that has been read, from 0 to 1, None once all has.
    """

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings
        keep = settings.history
        self._keep_ms = {"ticks": keep.keep_ticks_ms, "quarters": keep.keep_hours_ms}
        self.backlog = Backlog()
        self._path = keep.store
        self._is_temporary = keep.store is None
        # None while the file is closed.
        self._database: Database | None = None
        # Those lent to queries.
        self._cursors: set[Database] = set()
        # Guards these two and `_writer_first`; notified when a cursor is back.
        self._idle = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._queries = ThreadPoolExecutor(
            THREADS, thread_name_prefix="history-question"
        )
        self._files = ThreadPoolExecutor(FILES, thread_name_prefix="history-file")
        # Queries that wait or run, and files that are being sent.
        self._asking = 0
        self._sending = 0
        # Whether queries wait for the writer, which has run out of memory.
        self._writer_first = False
        # The writer's steps in a row that failed for lack of memory.
        self._room_tries = 0
        # By level: the newest tick's end, ms, when it was thinned last.
        self._thinned_ms: dict[str, int] = {}
        # Which part of the topics has been read, and what the API shows of the history.
        self.reading: float | None = 0.0
        self.state: Mapping[str, object] = MappingProxyType(
            {"state": "off", "why": OPENING}
        )

    @property
    def opening(self) -> bool:
        """Whether the file is still being opened for the first time."""
        return self.state.get("why") == OPENING

    @property
    def pieces(self) -> Path:
        """The directory for pieces of files; QueryFailed before there is a history."""
        if self._path is None:
            raise QueryFailed("there is no history yet")
        return self._path.with_name(f"{self._path.name}.pieces")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop filling and answering; a history without a configured file is deleted."""
        self._stopped.set()
        if self._thread.ident is not None:
            # It may be waiting for a broker; then it writes nothing and ends with the process.
            self._thread.join(CLOSING_S)
        self._queries.shutdown(wait=False, cancel_futures=True)
        self._files.shutdown(wait=False, cancel_futures=True)
        if self._is_temporary and self._path is not None:
            shutil.rmtree(self._path.parent, ignore_errors=True)

    async def ask(self, query: Query[T]) -> T:
        """Run a query, a function of a read cursor, in a thread of the store.

        QueryFailed: there is no history, too many queries wait, or it was too slow.
        """
        if self._asking >= THREADS + WAITING:
            raise QueryFailed(
                f"{WAITING} questions wait already: ask again in a moment"
            )
        self._asking += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._queries, self._answer, query, ANSWER_S
            )
        finally:
            self._asking -= 1

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[Path]:
        """Hold one of the few slots for files while one is sent; yield where its pieces lie."""
        if self._sending >= FILES:
            raise QueryFailed(
                f"{FILES} files are being made or sent: ask again in a moment"
            )
        self._sending += 1
        try:
            yield self.pieces
        finally:
            self._sending -= 1

    async def make_piece(self, query: Query[T]) -> T:
        """Run a longer query, like `ask`, that makes a piece of a file.

        One that lacks memory is run again: the pieces before it are sent already.
        """
        tries = 0
        while True:
            tries += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._files, self._answer, query, FILE_S
                )
            except MemoryTaken:
                if tries == PIECE_TRIES:
                    raise
            await asyncio.sleep(tries * ROOM_WAIT_S)

    def _answer(self, query: Query[T], within_s: float) -> T:
        """Run a query in this thread, interrupted after `within_s`, on a consistent view."""
        with self._cursor(within_s) as cursor:
            timer = threading.Timer(within_s, cursor.interrupt)
            timer.start()
            try:
                cursor.begin()  # a consistent view, despite concurrent writes
                return query(cursor)
            except duckdb.Error as error:
                # Interrupted by the timer, by `_release` (the file is closed), or by `_make_room`.
                interrupted = isinstance(error, duckdb.InterruptException)
                if interrupted and self._database is None:
                    raise self._no_history() from None
                out_of_memory = isinstance(error, duckdb.OutOfMemoryException)
                if out_of_memory or (interrupted and self._writer_first):
                    raise MemoryTaken(f"it takes too much memory: {LESS}") from None
                if interrupted:
                    raise QueryFailed(
                        f"it took longer than {within_s:.0f} s: {LESS}"
                    ) from None
                logger.warning("history: a question failed: %s", _loggable(error))
                raise QueryFailed("the history could not be read") from None
            finally:
                timer.cancel()

    @contextmanager
    def _cursor(self, within_s: float) -> Iterator[Database]:
        """Lend a query a cursor; `_release` waits until all are back before the file is closed.

        QueryFailed if there is no history, or if the writer comes first for `within_s`.
        """
        with self._idle:
            if not self._idle.wait_for(lambda: not self._writer_first, within_s):
                raise QueryFailed("the history is being written: ask again in a moment")
            if self._database is None:
                raise self._no_history()
            cursor = self._database.cursor()
            self._cursors.add(cursor)
        try:
            yield cursor
        finally:
            with self._idle:
                self._cursors.discard(cursor)
                self._idle.notify_all()
            with contextlib.suppress(duckdb.Error):
                cursor.close()

    def _no_history(self) -> QueryFailed:
        return QueryFailed(f"there is no history: {self.state.get('why', OPENING)}")

    def _run(self) -> None:
        """Fill the history until the store is closed; after an error, open the file again."""
        while not self._stopped.is_set():
            try:
                self._fill()
            except SchemaMismatch:
                self._disable(OTHER, "move it away, or name another one")
            except (duckdb.Error, OSError) as error:
                self._disable(_why(error), _loggable(error))
            except Exception as error:  # noqa: BLE001 (last resort: the dashboard goes on)
                self._disable("internal error", describe(error))
            self._stopped.wait(REOPEN_S)

    def _fill(self) -> None:
        """Open the file and fill it until the store is closed; propagate the file's errors.

        Kafka's errors only end `_follow`, which begins again; so does lack of memory, a few times.
        """
        if self._path is None:
            self._path = (
                Path(tempfile.mkdtemp(prefix="quietcount-history-")) / "history.duckdb"
            )
        database = connect(self._path)
        try:
            empty_directory(self.pieces)
            writer = Writer(database)
            # Not what it was: another file may have taken the place of one that failed.
            self.reading = 0.0
            with self._idle:
                self._database = database
            if self.state["state"] == "off":
                logger.info(
                    "history: kept in %s",
                    "a file of its own" if self._is_temporary else self._path,
                )
            # Not "waiting", if it was: in that state the page asks for what this file may not have.
            self._report({"state": "reading", "read": 0.0})
            while not self._stopped.is_set():
                try:
                    with contextlib.suppress(KafkaException, QuietcountError):
                        self._follow(database, writer)
                # A commit that lacks memory is a TransactionException.
                except (
                    duckdb.OutOfMemoryException,
                    duckdb.TransactionException,
                ) as error:
                    if not self._make_room():
                        raise
                    logger.warning("history: %s; questions wait", _loggable(error))
                    # The writer rolled back, but may have lacked memory for that too.
                    with contextlib.suppress(duckdb.Error):
                        database.rollback()
                    writer = Writer(database)
                    continue
                self._let_queries_begin()
                self._report({"state": "waiting"})
                self._stopped.wait(RETRY_S)
        finally:
            self._release()
            with contextlib.suppress(duckdb.Error):
                database.close()

    def _follow(self, database: Database, writer: Writer) -> None:
        """Fill the file until the store is closed, or an error of the file or of Kafka ends it.

        Between steps sort new rows and remove old ones, every `COMPACT_S` and when all is read.
        """
        follower = Follower(self._settings, writer, self.backlog)
        compact_at = 0.0
        for _ in follower.steps():
            if self._stopped.is_set():
                return
            was_live = self.reading is None
            self.reading = follower.fraction_read
            is_live = self.reading is None
            self._report(
                {"state": "live"}
                if is_live
                else {"state": "reading", "read": self.reading}
            )
            if time.monotonic() >= compact_at or (is_live and not was_live):
                compact(database)
                self._thin(database, writer.ends)
                compact_at = time.monotonic() + COMPACT_S
            self._let_queries_begin()

    def _thin(self, database: Database, ends: Mapping[str, int]) -> None:
        """Remove old rows of the levels where that is due.

        `ends` has the end, ms, of each histogram's newest tick.
        """
        newest = max(ends.values(), default=0)
        for level, keep_ms in self._keep_ms.items():
            since_ms = newest - self._thinned_ms.get(level, 0)
            # Every 1/THIN_EVERY of the retention, but not again before a new tick.
            if since_ms >= max(keep_ms // THIN_EVERY, 1):
                thin(database, ends, {level: keep_ms})
                self._thinned_ms[level] = newest

    def _make_room(self) -> bool:
        """End all queries, and let none begin before the writer's next step.

        False if that did not help `ROOM_TRIES` times in a row.
        """
        with self._idle:
            if self._room_tries == ROOM_TRIES:
                return False
            self._room_tries += 1
            self._writer_first = True
            self._end_queries()
        # DuckDB may take a while until it has freed their memory.
        self._stopped.wait((self._room_tries - 1) * ROOM_WAIT_S)
        return True

    def _let_queries_begin(self) -> None:
        """Let queries begin again, after a step of the writer that had enough memory."""
        with self._idle:
            self._writer_first = False
            self._room_tries = 0
            self._idle.notify_all()

    def _release(self) -> None:
        """Close the file to queries, and wait until none uses it."""
        with self._idle:
            self._database = None
            self._end_queries()
        # Those that wait for the writer are refused now.
        self._let_queries_begin()

    def _end_queries(self) -> None:
        """Interrupt all queries, and wait until their cursors are back; `_idle` is held."""
        for cursor in self._cursors:
            with contextlib.suppress(duckdb.Error):
                cursor.interrupt()
        self._idle.wait_for(lambda: not self._cursors)

    def _disable(self, why: str, detail: str) -> None:
        """Note, and log once, why there is no history; the detail is for the log only."""
        if self.state.get("why") != why:
            line = (
                "history: off: %s (%s); the dashboard continues without it and retries"
            )
            logger.error(line, why, detail)
        self._report({"state": "off", "why": why})

    def _report(self, state: Mapping[str, object]) -> None:
        """Replace the state that other threads read, by a copy that cannot change."""
        if state != self.state:
            self.state = MappingProxyType(dict(state))


def _loggable(error: BaseException) -> str:
    """Return a description of an error for the log, without labels, which some types quote."""
    if isinstance(error, OSError):
        return describe(error)
    if isinstance(
        error, duckdb.IOException | duckdb.OutOfMemoryException | duckdb.FatalException
    ):
        return str(error).splitlines()[0][:400]
    return type(error).__name__


def _why(error: BaseException) -> str:
    """Return the reason for API clients, who need not know the file's name."""
    text = str(error)
    for number in _FILE_ERRORS:
        if os.strerror(number) in text:
            return f"its file cannot be used: {os.strerror(number)}"
    if any(words in text for words in _FOREIGN):
        return OTHER
    if isinstance(error, duckdb.OutOfMemoryException):
        return "it needs more memory than it may use"
    if _LOCKED in text:
        return "its file is in use by another process"
    return "its file cannot be used"
