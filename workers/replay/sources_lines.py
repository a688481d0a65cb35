"""JSON lines: one event a line, from a file, a gzipped file or a pipe."""

from __future__ import annotations

import gzip
import select
import zlib
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from workers.agents.factory import declared_keys, reader_of
from workers.errors import SettingsError
from workers.events.source_reader import SourceReader
from workers.kafka.records import Records
from workers.replay.source import EventBatch, InOrder, shape_of_files
from workers.settings import Settings

CHUNK_BYTES = 2 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """One JSON event a line; the text may come from a pipe and never end."""

    word = "line"
    partitions = 1
    places: Sequence[str] = ()
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
        events = settings.events
        self.name, self.total = name, total
        self._file, self._raw, self._max = file, raw, events.max_bytes
        self._reader = SourceReader(reader_of(settings, shape_of_files(settings)), declared_keys(settings))
        self._order = InOrder(name, self.word, events.grace_ms)
        self._read = 0

    def batches(self) -> Iterator[EventBatch]:
        number = 1
        for lines in self.lines():
            found, rejected = self._reader.read(lines)
            self._order.check(found.times, number + found.index)
            # An empty line is no event, and nobody's mistake.
            rejects = [
                (number + each.index, each.reason)
                for each in rejected
                if (lines.value(each.index) or b"").strip(b"\r")
            ]
            number += len(lines)
            yield EventBatch(0, found, rejects, self._position())

    def ended(self) -> frozenset[int]:
        return frozenset()

    def _position(self) -> int:
        return self._read if self._raw is None else self._raw.tell()

    def lines(self) -> Iterator[Records]:
        """Yield the lines, a chunk at a time; one that is too long is cut where that shows."""
        rest, mark = b"", BYTE_ORDER_MARK
        while chunk := self._chunk():
            self._read += len(chunk)
            end = chunk.rfind(b"\n") + 1
            if end:
                text, rest = (rest + chunk[:end]).removeprefix(mark), b""
                mark = b""
                yield lines_of(text)
            rest = (rest + chunk[end:])[: self._max + 1]
        if rest:
            yield lines_of(rest.removeprefix(mark) + b"\n")

    def _chunk(self) -> bytes:
        """The next bytes; of a pipe what is there, so that a slow writer's events are not kept
        waiting.
        """
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


def lines_of(text: bytes) -> Records:
    """Return each line of a text as a record; the text ends with the last line's end."""
    data = np.frombuffer(text, dtype=np.uint8)
    stops = np.flatnonzero(data == ord("\n"))
    lines = np.stack((np.concatenate(([0], stops[:-1] + 1)), stops), axis=1)
    n = len(stops)
    return Records(data, np.full((n, 2), -1), lines, np.zeros(n, dtype=np.int64), np.arange(n))


def _ready(file: IO[bytes]) -> bool:
    """Whether more can be read at once."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):
        return False
