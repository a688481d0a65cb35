"""Contributions that wait until every source partition has closed their tick.

In memory up to a limit, then in an unlinked file. If the disk fails, they stay in memory, because
pausing would keep out those that complete the ticks; if spilled data cannot be read, the worker
restarts. A section is all contributions of a message to one (lane, tick); a lane is a tick grid
with bounds. Offsets are those of the messages in the contributions topic.
"""

import logging
import os
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from workers.mechanisms.config.histogram import Lane
from workers.pipeline.contributions import Section
from workers.runtime.errors import CopyFailed

logger = logging.getLogger(__name__)

WAITING_BYTES_MAX = 256 << 20
RETRY_S = 5.0
_DECODER = msgspec.msgpack.Decoder(Section)


class Spilled(NamedTuple):
    """Where a section lies in the file."""

    start: int
    length: int


class WaitingSections:
    """Sections of incomplete ticks, by (lane, tick), in memory or in a file."""

    def __init__(self, directory: Path | None, limit: int) -> None:
        """Keep `limit` bytes in memory, the rest in a file in `directory` (None: the system's)."""
        self._directory = directory
        self._limit = limit
        self.held_bytes = 0  # approximate size of the sections in memory
        # By lane and tick: each section, with the offset of its message, in the order of offsets.
        self._parts: dict[tuple[Lane, int], list[tuple[int, Section | Spilled]]] = {}
        self._file: IO[bytes] | None = None
        # Of the file: how many sections in it are still needed, and the end of what was written.
        self._spilled = 0
        self._end = 0
        # When writing failed last, by the monotonic clock; None: it works.
        self._failed_s: float | None = None

    def add(self, offset: int, part: Section) -> None:
        """Keep a section of the message at `offset`, in the file if memory is full."""
        entry: Section | Spilled | None = None
        if self.held_bytes + part.nbytes > self._limit:
            entry = self._spill(part)
        if entry is None:
            entry = part
            self.held_bytes += part.nbytes
        self._parts.setdefault((part.lane, part.tick), []).append((offset, entry))

    def _spill(self, part: Section) -> Spilled | None:
        """Append a section to the file; return where it lies, None if it cannot be written now."""
        now_s = time.monotonic()
        # After a failure the disk is left alone for a while.
        if self._failed_s is not None and now_s - self._failed_s < RETRY_S:
            return None
        text = msgspec.msgpack.encode(part)
        try:
            if self._file is None:
                # Lives as long as this object. Unbuffered, so that a full disk fails here.
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
            written = 0
            while written < len(text):
                written += os.pwrite(
                    self._file.fileno(), text[written:], self._end + written
                )
        except OSError as error:
            if self._failed_s is None:
                logger.warning(
                    "worker.data_dir: contributions waiting for a slower source partition cannot be written: %s. They stay in memory",
                    error.strerror,
                )
            self._failed_s = now_s
            return None
        if self._failed_s is not None:
            logger.warning(
                "worker.data_dir: contributions waiting for a slower source partition can be written again"
            )
            self._failed_s = None
        self._end += len(text)
        self._spilled += 1
        return Spilled(self._end - len(text), len(text))

    @property
    def spilled_bytes(self) -> int:
        """Bytes in the file, including sections dropped since it was last empty."""
        return self._end

    def get(self, lane: Lane, tick: int) -> list[Section]:
        """Return the sections of a lane's tick, which stay here; CopyFailed if one is lost."""
        return [self._read(entry) for _, entry in self._parts.get((lane, tick), ())]

    def drop(self, lane: Lane, tick: int) -> None:
        """Forget the sections of a lane's tick; empty the file once none in it is needed."""
        for _, entry in self._parts.pop((lane, tick), ()):
            if isinstance(entry, Spilled):
                self._spilled -= 1
            else:
                self.held_bytes -= entry.nbytes
        if self._file is not None and not self._spilled:
            self._end = 0
            with suppress(OSError):  # it is overwritten from its beginning
                self._file.truncate(0)

    def drop_before(self, lane: Lane, tick: int) -> None:
        """Forget the sections of a lane's ticks before `tick`."""
        for waiting_lane, waiting_tick in list(self._parts):
            if waiting_lane == lane and waiting_tick < tick:
                self.drop(lane, waiting_tick)

    def any_after(self, at_ms: int) -> bool:
        """Return whether a section waits of a tick that ends after `at_ms`."""
        return any(lane.end_ms(tick) > at_ms for lane, tick in self._parts)

    def ticks(self, lanes: Collection[Lane]) -> set[int]:
        """Return the ticks of these lanes for which sections wait."""
        return {tick for lane, tick in self._parts if lane in lanes}

    def first_offset(self, default: int) -> int:
        """Return the offset from which every waiting section can be read again."""
        return min((entries[0][0] for entries in self._parts.values()), default=default)

    def _read(self, entry: Section | Spilled) -> Section:
        """Return a section, read from the file if it was spilled.

        If that fails, CopyFailed ends the run: the next one reads the messages again.
        """
        if isinstance(entry, Section):
            return entry
        assert self._file is not None, "something was spilled"
        try:
            text = os.pread(self._file.fileno(), entry.length, entry.start)
        except OSError as error:
            raise CopyFailed(
                f"waiting contributions cannot be read: {error.strerror}"
            ) from error
        if len(text) != entry.length:
            raise CopyFailed("waiting contributions are gone")
        return _DECODER.decode(text)
