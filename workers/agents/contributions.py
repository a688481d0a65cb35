"""The messages of the contributions topic: what one commit of one source partition says to one owner partition.

A message is MessagePack, versioned, with whole columns as byte strings; it is exact data and stays with the operator.

    header   version, source, sequence number (per source and owner, gapless), page of pages, the source's resume offset,
             watermark (ms: no later event of this source is put into a tick that ends at or before it), first (ms, or none)
    sections one for each (lane, tick) that the commit touched: stream keys with their number of rows, then for all rows
             label lengths (uint16), labels end to end, counts (uint8/16/32/64, the narrowest that holds the largest)

Bound, in MessagePack, whose numbers take at most 9 bytes and whose lengths at most 5: the header takes 1 + 8 * 9 + 5 bytes, a section
beside its keys and rows 2 + 7 * 9 + 6 * 5, a key its text, its length and its number of rows, a row its label, 2 and at most 8 bytes.
Nothing is escaped. Rows and keys are what is cut between, and a label or key has at most 1,024 bytes.

A *lane* is what makes two histograms share their contributions: tick grid and bounds. The watermark counts only on the last page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.errors import StateRefused
from workers.histogram.packing import pack, unpack
from workers.mechanisms.config import Lane
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.sizes import VALUE_BYTES
from workers.mechanisms.texts import Texts

VERSION = 1
_HEADER_BYTES, _SECTION_BYTES, _KEY_BYTES, _ROW_BYTES = 78, 95, 10, 10


class Section(msgspec.Struct, array_like=True, frozen=True):
    """The columns of one (lane, tick)."""

    lane: Lane
    tick: int
    keys: list[str]
    rows_per_key: list[int]
    lengths: bytes
    labels: bytes
    width: int
    counts: bytes

    @classmethod
    def of(
        cls, lane: Lane, tick: int, keys: list[str], key_of_row: NDArray[Any], labels: list[bytes], counts: NDArray[Any]
    ) -> Section:
        """Return the rows as a section.

        Args:
            lane: of the tick.
            tick: global number.
            keys: stream keys.
            key_of_row: ascending indices into `keys`.
            labels: of the rows.
            counts: of the rows.
        """
        rows = np.bincount(key_of_row, minlength=len(keys))
        lengths = np.fromiter(map(len, labels), dtype="<u2", count=len(labels)).tobytes()
        width, column = pack(counts)
        return cls(lane, tick, keys, rows.tolist(), lengths, b"".join(labels), width, column)

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        return len(self.labels) + len(self.lengths) + len(self.counts) + 64 * len(self.keys) + 200

    def encoded(self) -> bytes:
        """Return it in MessagePack."""
        return _encoder.encode(self)

    def contributions(self, key: NoiseKey) -> Contributions:
        """Return the columns, with the tags that `key` gives the rows."""
        texts = Texts.from_lengths(self.labels, np.frombuffer(self.lengths, dtype="<u2"))
        labels = list(texts)
        tags = np.empty((len(labels), 2), dtype=np.uint64)
        row = 0
        for name, n in zip(self.keys, self.rows_per_key, strict=True):
            tags[row : row + n] = key.tags(name, labels[row : row + n])
            row += n
        return Contributions(
            tuple(self.keys),
            np.repeat(np.arange(len(self.keys), dtype=np.int32), self.rows_per_key),
            tags,
            texts,
            unpack(self.width, self.counts).astype(np.int64),
        )


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One message; see the module's docstring."""

    version: int
    source: int
    sequence: int
    page: int
    pages: int
    offset: int
    watermark: int | None
    first: int | None
    sections: list[Section]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)

Tally = Mapping[str, Mapping[str, int]]  # stream key -> label -> count


def encode(
    sections: Iterable[tuple[Lane, int, Tally]],
    *,
    source: int,
    sequence: int,
    offset: int,
    watermark: int | None,
    first: int | None,
    max_bytes: int = VALUE_BYTES,
) -> list[bytes]:
    """Return the messages of one commit for one owner: at least one, each at most `max_bytes` long.

    Args:
        sections: (lane, global tick, counts by stream key and label); counts of 0 are left out.
        source: source partition.
        sequence: number of the first message; the pages are numbered on from it.
        offset: where the source partition is read on after this commit.
        watermark: ms since 1970, or None before the first event.
        first: the watermark that the first event set, ms since 1970.
        max_bytes: upper limit of a message.
    """
    room = max_bytes - _HEADER_BYTES
    pages: list[list[Section]] = [[]]
    left = room
    for lane, tick, tally in sections:
        for section, size in _cut(lane, tick, tally, room):
            if size > left and pages[-1]:
                pages.append([])
                left = room
            pages[-1].append(section)
            left -= size
    return [
        _encoder.encode(Message(VERSION, source, sequence + i, i + 1, len(pages), offset, watermark, first, page))
        for i, page in enumerate(pages)
    ]


def _cut(lane: Lane, tick: int, tally: Tally, room: int) -> Iterator[tuple[Section, int]]:
    """Yield sections of at most `room` bytes, with an upper bound of their encoded size."""
    keys = list(tally)
    labels: list[bytes] = []
    counts: list[int] = []
    key_of: list[int] = []
    for index, items in enumerate(tally.values()):
        present = {label: count for label, count in items.items() if count} if 0 in items.values() else items
        labels += map(str.encode, present)
        counts += present.values()
        key_of += [index] * len(present)
    yield from _halves(lane, tick, keys, key_of, labels, counts, room)


def _halves(
    lane: Lane, tick: int, keys: list[str], key_of: list[int], labels: list[bytes], counts: list[int], room: int
) -> Iterator[tuple[Section, int]]:
    """Yield the rows as one section if it fits, else as the sections of both halves."""
    n = len(labels)
    size = _SECTION_BYTES + sum(map(len, labels)) + _ROW_BYTES * n + sum(len(key.encode()) + _KEY_BYTES for key in keys)
    if size <= room or (n <= 1 and len(keys) <= 1):
        rows = np.array(key_of, dtype=np.int64)
        yield Section.of(lane, tick, keys, rows, labels, np.array(counts, dtype=np.uint64)), size
        return
    if n > 1:
        row = n // 2
        stop = key_of[row - 1] + 1  # keys of the first half; one on both sides of the cut is named twice
        again = stop - 1 if key_of[row] == stop - 1 else stop
    else:
        row = 0 if n and key_of[0] >= len(keys) // 2 else n
        stop = again = len(keys) // 2
    yield from _halves(lane, tick, keys[:stop], key_of[:row], labels[:row], counts[:row], room)
    later = [index - again for index in key_of[row:]]
    yield from _halves(lane, tick, keys[again:], later, labels[row:], counts[row:], room)


def decode(value: bytes) -> Message:
    """Return the message that `encode` made.

    Raises:
        StateRefused: this version cannot read the bytes.
    """
    try:
        message = _decoder.decode(value)
    except msgspec.DecodeError as error:
        raise StateRefused(
            f"the contributions topic holds a message this version cannot read ({error}): was it written by something else?"
        ) from error
    if message.version != VERSION:
        raise StateRefused(
            f"the contributions topic holds a message of version {message.version}; this worker knows {VERSION}"
        )
    return message
