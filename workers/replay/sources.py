"""Open a file as a source: JSON lines (also gzipped) or Parquet, detected by its first bytes.

JSON lines, one event a line, come from a file, a gzipped file or a pipe.
"""

import gzip
import select
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import find_lines, readonly_contiguous
from workers.events.reading import Reading, SourceReader
from workers.kafka.records import Records
from workers.pipeline.factory import declared_keys, reader_of
from workers.replay.source import (
    EventBatch,
    FileSource,
    prefetch,
)
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 2 << 20
# Some programs begin a file with it; it is not part of an event.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE = ord("\n")


@contextmanager
def open_source(settings: Settings, name: str) -> Iterator[FileSource]:
    """Open a source file; "-" is standard input, one JSON event a line."""
    if name == "-":
        yield JsonLines(
            settings, "standard input", cast(BufferedIOBase, sys.stdin.buffer)
        )
        return
    path = Path(name)
    shown = f"--input {name}"
    try:
        with path.open("rb") as file:
            if not path.is_file():  # a named pipe cannot be inspected in advance
                yield JsonLines(settings, shown, file)
                return
            magic = file.read(4)
            size = path.stat().st_size
            file.seek(0)
            if magic == PARQUET_MAGIC or path.suffix == ".parquet":
                try:
                    from workers.replay.parquet import open_parquet
                except ImportError as error:
                    raise SettingsError(
                        f"{shown}: Parquet needs pyarrow: install quietcount[replay]"
                    ) from error
                yield open_parquet(settings, shown, file)
            elif magic[:2] == GZIP_MAGIC:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield JsonLines(settings, shown, unpacked, total=size, raw=file)
            else:
                yield JsonLines(settings, shown, file, total=size)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == path:
            raise SettingsError(f"{shown}: {error.strerror}") from error
        # The error is about another file: errors in the caller's `with` block arrive here, too.
        raise


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
        self._file = file
        self._raw = raw
        self._max_bytes = settings.events.max_bytes
        reader = reader_of(settings, self.shape)
        self._reader = SourceReader(reader, declared_keys(settings))
        self._bytes_read = 0
        # Of the last chunk, as a guess for the next one.
        self._lines_in_chunk = 0

    def batches(self) -> Iterator[EventBatch]:
        """Yield the events; lines are numbered from 1, and empty ones count as lines."""
        number = 1  # of the chunk's first line
        # A pipe's writer may never write again, which would block the thread that prefetches.
        pieces = self._pieces() if self.total is None else prefetch(self._pieces())
        for lines, part, position in pieces:
            reading = self._reader.encode(part)
            # The reader rejects empty lines; some of them end with "\r\n".
            rejects = (
                reject
                for reject in reading.rejects
                if (lines.value(reject.index) or b"").strip(b"\r")
            )
            yield self._batch(number, reading.events, rejects, position)
            # The chunk may come in several parts, which all index its lines.
            if reading.stop == len(lines):
                number += len(lines)

    def sample(self, number: int) -> Records:
        """Return the first lines that are not empty."""
        lines = (
            records.value(i) or b""
            for records in self.lines()
            for i in range(len(records))
        )
        events = (line for line in lines if line.strip(b"\r"))
        return Records.of(list(islice(events, number)))

    def _pieces(self) -> Iterator[tuple[Records, Reading, int]]:
        """Yield a chunk's lines, a part of them as parsed, and the file position after the chunk.

        Another thread may do this ahead, unlike `encode`, which changes the reader's state.
        """
        for lines in self.lines():
            # Progress in a gzipped file is measured in compressed bytes.
            position = self._bytes_read if self._raw is None else self._raw.tell()
            for reading in self._reader.spans(lines):
                yield lines, reading, position

    def lines(self) -> Iterator[Records]:
        """Yield the lines, a chunk of the file at a time.

        What follows the last newline of a chunk, `rest`, is put before the next one.
        """
        rest = np.empty(0, dtype=np.uint8)
        first = True
        while True:
            text = np.empty(len(rest) + CHUNK_BYTES, dtype=np.uint8)
            text[: len(rest)] = rest
            read = self._read_into(text.data[len(rest) :])
            self._bytes_read += read
            end = len(rest) + read
            if not end:
                return
            if not read:  # the last line ends with the file, without a newline
                text[end] = NEWLINE
                end = end + 1
            text = text[:end]
            records = lines_of(text, self._lines_in_chunk)
            rest = text
            if len(records):
                self._lines_in_chunk = len(records)
                # A record's value is (start, stop); its newline is at `stop`.
                rest = text[int(records.values[-1, 1]) + 1 :]
                if first and text[: len(BYTE_ORDER_MARK)].tobytes() == BYTE_ORDER_MARK:
                    records.values[0, 0] = len(BYTE_ORDER_MARK)
                first = False
                yield records
            # Of a line that is too long, keep no more than shows that it is.
            rest = rest[: self._max_bytes + 1]
            if not read:
                return

    def _read_into(self, room: memoryview) -> int:
        """Read the next bytes; from a pipe only those available, so that slow events do not lag.

        Return their number, 0 at the end.
        """
        try:
            if self.total is not None:
                return self._file.readinto(room)
            read = 0
            # The first call waits for bytes; each call is one read of the system.
            while more := self._file.readinto1(room[read:]):
                read += more
                if read == len(room) or not _ready(self._file):
                    break
            return read
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SettingsError(f"{self.name}: cannot be unpacked: {error}") from error
        except OSError as error:
            raise SettingsError(f"{self.name}: {error.strerror}") from error


def lines_of(text: NDArray[np.uint8], expected: int = 1) -> Records:
    """Return the lines of a text, each up to its newline, as records without keys and times.

    `expected` is a guess of how many there are: if they are far more, the text is read twice.
    """
    text = readonly_contiguous(text)
    places = np.empty((expected + expected // 8 + 1, 2), dtype=np.int64)
    n = find_lines(text, places)
    if n > len(places):
        places = np.empty((n, 2), dtype=np.int64)
        find_lines(text, places)
    return Records(
        data=text,
        keys=np.full((n, 2), -1),
        values=places[:n],
        times=np.zeros(n, dtype=np.int64),
        offsets=np.arange(n),
    )


def _ready(file: BufferedIOBase) -> bool:
    """Return whether a pipe has bytes now, so that reading does not block."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):
        # It cannot be waited for, so make do with the first read.
        return False
