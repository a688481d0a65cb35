"""Contributions to incomplete ticks: in memory up to a limit, then in an unlinked file.

A disk that is full or fails leaves them in memory: to stop reading would keep out the very
contributions that complete the ticks. What was written before is read, or the worker begins again.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from workers.mechanisms.config.histogram import Lane
from workers.pipeline.contributions import Section
from workers.runtime.errors import CopyFailed

logger = logging.getLogger(__name__)

#: How soon a disk that could not be written is tried again.
RETRY_S = 5.0


class Waiting:
    """Sections of ticks that are not complete, by (lane, tick): a part of a tick each."""

    def __init__(self, directory: Path | None, limit: int) -> None:
        """Keep `limit` bytes in memory, the rest in a file in `directory` (None: the system's)."""
        self._directory, self._limit = directory, limit
        self.held_bytes = 0  # about what waits in memory
        # A part, or its place in the file.
        self._parts: dict[tuple[Lane, int], list[tuple[int, Section | tuple[int, int]]]] = {}
        self._file: IO[bytes] | None = None
        self._spilled = self._end = 0
        self._failed_s: float | None = None

    def add(self, offset: int, part: Section) -> None:
        """Keep a part of the message at `offset`."""
        place = self._spill(part) if self.held_bytes + part.nbytes > self._limit else None
        entry: Section | tuple[int, int] = part if place is None else place
        if place is None:
            self.held_bytes += part.nbytes
        self._parts.setdefault((part.lane, part.tick), []).append((offset, entry))

    def _spill(self, part: Section) -> tuple[int, int] | None:
        """Write a part to the file and return its place, or None where that cannot be done now."""
        now_s = time.monotonic()
        if self._failed_s is not None and now_s - self._failed_s < RETRY_S:
            return None
        text = part.encoded()
        try:
            if self._file is None:
                # Lives as long as this object. Without a buffer: what does not fit fails now.
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
            written = 0
            while written < len(text):
                written += os.pwrite(self._file.fileno(), text[written:], self._end + written)
        except OSError as error:
            if self._failed_s is None:
                logger.warning(
                    "worker.data_dir: what waits for a slower source partition cannot be written: %s. It stays in memory",
                    error.strerror,
                )
            self._failed_s = now_s
            return None
        if self._failed_s is not None:
            logger.warning("worker.data_dir: what waits for a slower source partition can be written again")
            self._failed_s = None
        place = (self._end, len(text))
        self._end += len(text)
        self._spilled += 1
        return place

    @property
    def spilled_bytes(self) -> int:
        """The bytes in the file, with those dropped since it was last empty."""
        return self._end if self._spilled else 0

    def get(self, lane: Lane, tick: int) -> list[Section]:
        """Return the parts of one tick, in the order of the topic."""
        return [self._read(entry) for _, entry in self._parts.get((lane, tick), ())]

    def drop(self, lane: Lane, tick: int) -> None:
        """Forget a tick."""
        for _, entry in self._parts.pop((lane, tick), ()):
            if isinstance(entry, tuple):
                self._spilled -= 1
            else:
                self.held_bytes -= entry.nbytes
        if self._file is not None and not self._spilled:
            self._end = 0
            with suppress(OSError):  # it is written from its beginning again
                self._file.truncate(0)

    def drop_before(self, lane: Lane, tick: int) -> None:
        """Forget the ticks of a lane before `tick`."""
        for own, waiting in list(self._parts):
            if own == lane and waiting < tick:
                self.drop(own, waiting)

    def first_offset(self, default: int) -> int:
        """Return the offset from which everything that waits can be read again."""
        return min((entries[0][0] for entries in self._parts.values()), default=default)

    def _read(self, entry: Section | tuple[int, int]) -> Section:
        if not isinstance(entry, tuple):
            return entry
        start, length = entry
        try:
            text = b"" if self._file is None else os.pread(self._file.fileno(), length, start)
        except OSError as error:
            raise CopyFailed(f"what waited on disk cannot be read: {error.strerror}") from error
        if len(text) != length:
            raise CopyFailed("what waited on disk is gone")
        return msgspec.msgpack.decode(text, type=Section)
