"""Where replay's events come from: a source gives them as batches of columns, whatever it reads.

    open_source(settings, name)     JSON lines (also gzipped), Parquet, or "-" for standard input
    sources_topic.TopicSource       the events topic

A source reads once, in order, and holds no more than a batch. What is not an event is counted with its number and the reason that the
worker would give. Files must be in order of time: an event dated further back than `grace` allows would count in another tick than its
own, and the result would be that of no stream; a source that reads a file refuses it (`InOrder`).
"""

from __future__ import annotations

import gzip
import select
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import IO, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.agents.board import declared_keys
from workers.agents.event_columns import EventColumns, Vocabulary, columns_of_events, distinct, joined
from workers.agents.events import EventReader, Reject
from workers.durations import format_duration
from workers.errors import SettingsError
from workers.settings import RECORD_KEY, EventsSettings, Settings

CHUNK_BYTES = 2 << 20
# Decoded together: their objects stay in a core's cache until they are columns (measured: 1,000 lines 0.5 us each, 20,000 1.5 us).
LINES_AT_ONCE = 1_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Batch:
    """What was read at once.

    Attributes:
        partition: source partition, from 0.
        events: the valid events, in order.
        rejects: (number of the line, row or offset; reason) of each that is none.
        position: how far the whole source is read, in the unit of `Source.total`.
        late: events dated further back than `grace` allows: the worker counts them in the tick that is open.
        outside: events left out for their time (a range of a topic).
        beyond: events dated after the range; they are in `events` all the same, for they close ticks.
    """

    partition: int
    events: EventColumns
    rejects: list[tuple[int, str]]
    position: int
    late: int = 0
    outside: int = 0
    beyond: int = 0


class Source(Protocol):
    """Events to replay, to be read once.

    Attributes:
        name: what it reads, for messages.
        partitions: source partitions; the events of one are in the order in which the worker would read them.
        total: what `Batch.position` reaches at the end; None where nobody knows.
        word: what the numbers of rejects count: "line", "row" or "offset".
        until_ms: no tick that ends later is published; None: no limit.
    """

    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def total(self) -> int | None: ...
    @property
    def word(self) -> str: ...
    @property
    def until_ms(self) -> int | None: ...

    def batches(self) -> Iterator[Batch]:
        """The events.

        Raises:
            SettingsError: it cannot be read, or runs backwards in time.
        """
        ...

    def ended(self) -> frozenset[int]:
        """The partitions of which no batch will come any more."""
        ...


class InOrder:
    """Refuses events that run backwards in time past `grace`."""

    def __init__(self, name: str, word: str, grace_ms: int) -> None:
        self._name, self._word, self._grace = name, word, grace_ms
        self._latest: int | None = None

    def check(self, times: NDArray[np.int64], numbers: NDArray[np.int64] | int) -> None:
        """Looks at the times of the next events.

        Args:
            times: ms.
            numbers: of the events' lines or rows; or that of the first one, when all follow one another.

        Raises:
            SettingsError: names the first one that is too far back.
        """
        if not len(times):
            return
        latest = np.maximum.accumulate(times)
        if self._latest is not None:
            latest = np.maximum(latest, self._latest)
        back = latest - times
        if int(back.max()) > self._grace:
            at = int(np.argmax(back > self._grace))
            number = numbers + at if isinstance(numbers, int) else int(numbers[at])
            raise SettingsError(
                f"{self._name}: {self._word} {number:,} is dated {when(int(times[at]))}, {_span(int(back[at]))} before an earlier "
                f"{self._word}: that is past events.grace = {format_duration(self._grace)!r}, and it would count in the wrong tick. "
                "Sort the input by time, or raise events.grace"
            )
        self._latest = int(latest[-1])


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

    def batches(self) -> Iterator[Batch]:
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
            yield Batch(0, distinct(joined(parts)), rejects, self._position())

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


def as_read(settings: Settings) -> EventsSettings:
    """How events are read from files: the time in `events.timestamp`, else in `ts`; a record key, that of a user too, in `key`.

    Returns:
        With `user` only where users are looked at.

    Raises:
        SettingsError: a field would be two things.
    """
    events, key, user = settings.events, settings.events.key, settings.user_field
    try:
        return msgspec.structs.replace(
            events,
            timestamp=events.timestamp or "ts",
            key="key" if key == RECORD_KEY else key,
            user="key" if user == RECORD_KEY else user,
        )
    except ValueError as error:
        raise SettingsError(
            f"{error}; a file has the record key in the field 'key', and the time in 'ts' where events.timestamp is left out"
        ) from error


@contextmanager
def open_source(settings: Settings, name: str) -> Iterator[Source]:
    """The file to read; "-" is standard input, one JSON event a line. Parquet and gzip are known by their first bytes.

    Raises:
        SettingsError: it cannot be read.
    """
    if name == "-":
        yield JsonLines(settings, "standard input", sys.stdin.buffer)
        return
    path, shown = Path(name), f"--input {name}"
    try:
        with path.open("rb") as file:
            if not path.is_file():  # a named pipe: nothing can be looked at beforehand
                yield JsonLines(settings, shown, file)
                return
            magic, size = file.read(4), path.stat().st_size
            file.seek(0)
            if magic == PARQUET_MAGIC or path.suffix == ".parquet":
                yield _parquet(settings, shown, file)
            elif magic[:2] == GZIP_MAGIC:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield JsonLines(settings, shown, unpacked, total=size, raw=file)  # type: ignore[arg-type]  # it reads bytes
            else:
                yield JsonLines(settings, shown, file, total=size)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == path:
            raise SettingsError(f"{shown}: {error.strerror}") from error
        raise


def _parquet(settings: Settings, name: str, file: IO[bytes]) -> Source:
    try:
        from workers.replay.sources_parquet import ParquetRows
    except ImportError as error:
        raise SettingsError(f"{name}: Parquet needs pyarrow: install quietcount[replay]") from error
    return ParquetRows(settings, name, file)


def when(time_ms: int) -> str:
    """A time in words."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{time_ms} ms since 1970"


def _span(milliseconds: int) -> str:
    return f"{milliseconds:,} ms" if milliseconds < 1000 else str(timedelta(seconds=milliseconds // 1000))


def _ready(file: IO[bytes]) -> bool:
    """Whether more can be read at once."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):
        return False
