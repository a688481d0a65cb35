"""JSON lines: one event a line, from a file, a gzipped file or a pipe."""

from __future__ import annotations

import gzip
import select
import zlib
from collections.abc import Iterator
from operator import attrgetter
from typing import IO

import numpy as np
from numpy.typing import NDArray

from workers.agents.event_columns import EventColumns, Vocabulary, columns_of_events, distinct, joined
from workers.agents.events import EventReader, Reject
from workers.agents.factory import declared_keys
from workers.errors import SettingsError
from workers.replay.source import EventBatch, InOrder, as_read
from workers.settings import Settings

CHUNK_BYTES = 2 << 20
# Decoded together: their objects stay in a core's cache until they are columns (measured: 1,000 lines 0.5 us each, 20,000 1.5 us).
LINES_AT_ONCE = 1_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """One JSON event a line; the text may come from a pipe and never end."""

    word = "line"
    partitions = 1
    until_ms = None

    def __init__(
        self, settings: Settings, name: str, file: IO[bytes], *, total: int | None = None, raw: IO[bytes] | None = None
    ) -> None:
        """
        Args:
            settings: of the worker.
            name: for messages.
            file: the text.
            total: bytes of the file, before it is unpacked; None for a pipe.
            raw: the file itself where `file` unpacks it: its position tells how far it is read.
        """
        events = as_read(settings)
        self.name, self.total = name, total
        self._file, self._raw, self._max = file, raw, events.max_bytes
        self._reader = EventReader(events, declared_keys(settings), events.user)
        self._keys, self._labels = Vocabulary(), Vocabulary()
        self._order = InOrder(name, self.word, events.grace_ms)
        self._read = 0

    def batches(self) -> Iterator[EventBatch]:
        number = 1
        for lines in self._lines():
            self._keys.begin()
            self._labels.begin()
            parts: list[EventColumns] = []
            rejects: list[tuple[int, str]] = []
            for first in range(0, len(lines), LINES_AT_ONCE):
                some = lines[first : first + LINES_AT_ONCE]
                found, rejected = self._reader.read(some, [None] * len(some), [0] * len(some), latest_ms=None)
                self._order.check(found.times, number + places(len(some), rejected) if rejected else number)
                rejected.sort(key=attrgetter("index"))
                rejects += ((number + each.index, each.reason) for each in rejected if some[each.index].strip(b"\r"))
                parts.append(columns_of_events(found, self._keys, self._labels))
                number += len(some)
            yield EventBatch(0, distinct(joined(parts)), rejects, self._position())

    def ended(self) -> frozenset[int]:
        return frozenset()

    def _position(self) -> int:
        return self._read if self._raw is None else self._raw.tell()

    def _lines(self) -> Iterator[list[bytes]]:
        """The lines, about a chunk at a time. One that is too long is cut where that shows."""
        rest, mark = b"", BYTE_ORDER_MARK
        while chunk := self._chunk():
            self._read += len(chunk)
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()[: self._max + 1]
            if lines:
                lines[0], mark = lines[0].removeprefix(mark), b""
                yield lines
        if rest:
            yield [rest.removeprefix(mark)]

    def _chunk(self) -> bytes:
        """The next bytes; of a pipe what is there, so that a slow writer's events are not kept waiting."""
        try:
            if self.total is not None:
                return self._file.read(CHUNK_BYTES)
            read = getattr(self._file, "read1", self._file.read)
            parts = [read(CHUNK_BYTES)]
            while parts[-1] and sum(map(len, parts)) < CHUNK_BYTES and _ready(self._file):
                parts.append(read(CHUNK_BYTES))
            return b"".join(parts)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SettingsError(f"{self.name}: cannot be unpacked: {error}") from error
        except OSError as error:
            raise SettingsError(f"{self.name}: {error.strerror}") from error


def places(count: int, rejected: list[Reject]) -> NDArray[np.int64]:
    """Where the valid ones of `count` stand."""
    valid = np.ones(count, dtype=np.bool_)
    valid[[reject.index for reject in rejected]] = False
    return np.flatnonzero(valid)


def _ready(file: IO[bytes]) -> bool:
    """Whether more can be read at once."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):
        return False
