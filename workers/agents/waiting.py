"""Contributions to incomplete ticks: in memory up to a limit, then in an unlinked file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import msgspec

from workers.agents.contributions import Section
from workers.errors import StateRefused
from workers.mechanisms.config import Lane


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

    def add(self, offset: int, part: Section) -> None:
        """Keep a part of the message at `offset`."""
        entry: Section | tuple[int, int] = part
        if self.held_bytes + part.nbytes > self._limit:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  # lives as long as this object
            text = part.encoded()
            entry = (self._file.seek(0, 2), len(text))
            self._file.write(text)
            self._end = entry[0] + len(text)
            self._spilled += 1
        else:
            self.held_bytes += part.nbytes
        self._parts.setdefault((part.lane, part.tick), []).append((offset, entry))

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
        if self._file is None:
            raise StateRefused("what waited on disk is gone")
        self._file.seek(entry[0])
        return msgspec.msgpack.decode(self._file.read(entry[1]), type=Section)
