"""Read JSON lines, one event a line, from a file, a gzipped file or a pipe."""

from __future__ import annotations

import gzip
import select
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from typing import IO

import numpy as np
from numpy.typing import NDArray

from workers.arrays.text_columns import find_lines
from workers.arrays.texts import readonly_contiguous
from workers.events.reader import Part
from workers.events.source_reader import SourceReader
from workers.kafka.records import Records
from workers.pipeline.factory import declared_keys, reader_of
from workers.replay.source import EventBatch, FileSource, ahead, shape_of_files
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

CHUNK_BYTES = 2 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE = ord("\n")


class JsonLines(FileSource):
    """JSON events, one a line; a pipe may never end."""

    word = "line"

    def __init__(
        self,
        settings: Settings,
        name: str,
        file: BufferedIOBase,
        *,
        total: int | None = None,
        raw: IO[bytes] | None = None,
    ) -> None:
        """`total` is the file's size (None: a pipe), `raw` the packed file, to show progress."""
        super().__init__(settings, name, total)
        self._file, self._raw, self._max = file, raw, settings.events.max_bytes
        reader = reader_of(settings, shape_of_files(settings))
        self._reader = SourceReader(reader, declared_keys(settings))
        self._read = self._lines = 0  # bytes; and lines in the last chunk

    def batches(self) -> Iterator[EventBatch]:
        number = 1
        # A pipe's writer may never write again.
        pieces = self._pieces() if self.total is None else ahead(self._pieces())
        for lines, (spans, reasons, read), position in pieces:
            found, rejected = self._reader.coded(spans, reasons)
            # An empty line is neither an event nor an error.
            rejects = (each for each in rejected if (lines.value(each.index) or b"").strip(b"\r"))
            yield self._batch(number, found, rejects, position)
            if read == len(lines):
                number += len(lines)

    def _pieces(self) -> Iterator[tuple[Records, Part, int]]:
        """Yield lines, a part of them, and the file position after all of them."""
        for lines in self.lines():
            position = self._read if self._raw is None else self._raw.tell()
            for part in self._reader.spans(lines):
                yield lines, part, position

    def lines(self) -> Iterator[Records]:
        """Yield the lines, a chunk at a time; a truncated overlong line is still too long."""
        rest, first = np.empty(0, dtype=np.uint8), True
        while True:
            text = np.empty(len(rest) + CHUNK_BYTES, dtype=np.uint8)
            text[: len(rest)] = rest
            read = self._read_into(text.data[len(rest) :])
            self._read += read
            end = len(rest) + read
            if not end:
                return
            if not read:  # the last line ends with the text
                text[end], end = NEWLINE, end + 1
            found = lines_of(text[:end], self._lines)
            rest = text[:end]
            if len(found):
                self._lines = len(found)
                rest = text[int(found.values[-1, 1]) + 1 : end]
                if first and text[: len(BYTE_ORDER_MARK)].tobytes() == BYTE_ORDER_MARK:
                    found.values[0, 0] = len(BYTE_ORDER_MARK)
                first = False
                yield found
            rest = rest[: self._max + 1]
            if not read:
                return

    def _read_into(self, room: memoryview) -> int:
        """Read the next bytes; from a pipe only those available, so that slow events do not lag."""
        try:
            if self.total is not None:
                return self._file.readinto(room)
            read = 0
            while more := self._file.readinto1(room[read:]):
                read += more
                if read == len(room) or not _ready(self._file):
                    break
            return read
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SettingsError(f"{self.name}: cannot be unpacked: {error}") from error
        except OSError as error:
            raise SettingsError(f"{self.name}: {error.strerror}") from error


def lines_of(text: NDArray[np.uint8], foreseen: int = 1) -> Records:
    """Return the lines of a text that ends with a newline; read twice if far above `foreseen`."""
    text = readonly_contiguous(text)
    places = np.empty((foreseen + foreseen // 8 + 1, 2), dtype=np.int64)
    n = find_lines(text, places)
    if n > len(places):
        places = np.empty((n, 2), dtype=np.int64)
        find_lines(text, places)
    return Records(text, np.full((n, 2), -1), places[:n], np.zeros(n, dtype=np.int64), np.arange(n))


def _ready(file: BufferedIOBase) -> bool:
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):
        return False
