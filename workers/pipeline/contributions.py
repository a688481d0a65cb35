"""Messages of the contributions topic: from a commit of a source partition to an owner partition.

A message is versioned MessagePack, with whole columns as byte strings. It holds exact data and
stays with the operator. Histograms with the same *lane* (tick grid and bounds) share contributions.
A *contribution* is a bounded count of a label (an item's name) in one tick and stream key; a *row*
is one of them in a section. Its *tag* is a keyed hash of stream key and label. A *source* is an
events partition, an *owner* the partition that merges and publishes a share of the stream keys.

    header    version, source, sequence number (per source and owner, gapless), page of pages, the
              source's resume offset, watermark (ms; on the last page; this source puts no later
              event into a tick that ends at or before it), first (ms, or none)
    sources   how many source partitions the sender knows (0 if not stated), and from when users are
              placed on them (`Joined.users_from`)
    sections  of every (lane, tick) of the commit: stream keys with their number of rows, then
              label lengths (uint16), labels end to end, counts (uint8/16/32/64, the narrowest that
              holds the largest), tags (16 bytes) and, for unique users, the digests (16 bytes) of
              the users of all rows: then a row is a user of an item
    key       fingerprint of the root key that made the tags
    owners    how many owner partitions there are, as far as the sender knows

An owner whose stream keys move to others sends each of them one such message too, of source -1 and
without sections: the stream keys *handed over* (`HandedOver`).

Bound, in MessagePack, where numbers take at most 9 bytes and lengths at most 5: header, key and
sources take 1 + 10 * 9 + 5 + 18 bytes, owners 1 + 9 + 5 and 1 + 2 * 9 for each of at most 20 times
that they have grown, what is handed over 2 + 3 * 5 + 2 * 9 and its name, and in it a stream key its
text and 1 + 5 + 9; a section, besides its keys and rows, 2 + 9 * 9 + 8 * 5; a key its text, its
length and its number of rows; a row its label, 2, at most 8, and 16 bytes, or 32 with its user.
Nothing is escaped.
Messages are split between rows and keys, and a label or key has at most 1,024 bytes.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from msgspec import structs

from workers.arrays.number_blocks import pack
from workers.arrays.texts import Texts, unpack_rows
from workers.arrays.types import Longs, Tags, Words
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX, Lane
from workers.mechanisms.ledger import Contributions
from workers.pipeline.growth.owners import (
    GROWN_MAX,
    PARTITIONS_MAX,
    HandedOver,
    Owners,
    parts_of,
)
from workers.pipeline.ledger_blocks import UNDECODABLE
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import VALUE_BYTES, split_by_size

VERSION = 2
_LENGTH = np.dtype("<u2")
_OWNERS_BYTES = 15 + 19 * GROWN_MAX
_HANDED_BYTES = 35
_HANDED_KEY_BYTES = 15
_HEADER_BYTES = 114 + _OWNERS_BYTES
_SECTION_BYTES = 123
_KEY_BYTES = 10
_ROW_BYTES = 26
_USER_BYTES = 16


class Section(msgspec.Struct, array_like=True, frozen=True):
    """All rows of one (lane, tick) in a message, as packed columns. Sensitive.

    `counts` has 2^`width` bytes for each row; `rows_per_key` says how many rows each of `keys` has.
    """

    lane: Lane
    tick: int
    keys: list[str]
    rows_per_key: list[int]
    lengths: bytes
    labels: bytes
    width: int
    counts: bytes
    tags: bytes
    users: bytes = b""

    def __repr__(self) -> str:
        return f"Section(tick {self.tick}, {len(self.keys)} keys)"

    @property
    def nbytes(self) -> int:
        """Approximate size in memory."""
        columns = (self.labels, self.lengths, self.counts, self.tags, self.users)
        return sum(map(len, columns)) + 64 * len(self.keys) + 200

    @property
    def rows(self) -> int:
        return len(self.lengths) // _LENGTH.itemsize

    def contributions(self, *, of_sums: bool = False) -> Contributions:
        """Return the unpacked columns; raise StateRefused if they are damaged.

        `of_sums`: the numbers are those of a sum, in steps, not counts.
        """
        try:
            lengths = np.frombuffer(self.lengths, dtype=_LENGTH)
            packed = np.frombuffer(self.counts, dtype=np.uint8)
            n = len(lengths)
            if not 0 <= self.width <= 3 or len(packed) != n << self.width:
                raise ValueError(
                    f"counts: {len(packed)} bytes for {n} rows of width {self.width}"
                )
            ends = np.empty(n, dtype=np.int64)
            counts = np.empty(n, dtype=np.int64)
            key_of_row = np.empty(n, dtype=np.int32)
            rows_of_key = np.array(self.rows_per_key, dtype=np.int64)
            written = unpack_rows(
                lengths, packed, self.width, rows_of_key, ends, counts, key_of_row
            )
            if not written or len(rows_of_key) != len(self.keys):
                raise ValueError(f"rows_per_key: of {len(self.keys)} keys, {n} rows")
            labels = Texts(np.frombuffer(self.labels, dtype=np.uint8), ends)
            words = np.frombuffer(self.tags, dtype="<u8").astype(np.uint64, copy=False)
            users = None
            if self.lane.names_users:
                users = np.frombuffer(self.users, dtype="<u8").reshape(-1, 2)
            elif self.users:
                raise ValueError(f"users: {len(self.users)} bytes in a lane without")
            return Contributions(
                tuple(self.keys),
                key_of_row,
                words.reshape(-1, 2),
                labels,
                counts,
                of_sums,
                users,
            )
        except (ValueError, IndexError) as error:
            raise StateRefused(
                f"the contributions topic holds a damaged section ({error}): was it written by something else?"
            ) from error


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one (lane, tick) for one owner, before they are packed into sections. Sensitive.

    Rows of the same stream key follow each other: those of `names[i]` begin at `starts[i]`, (k +
    1,). The other columns have one element a row.
    """

    lane: Lane
    tick: int
    names: list[str]
    starts: Longs
    labels: Texts
    counts: Longs
    tags: Tags
    users: Words | None = None

    def __repr__(self) -> str:
        return f"Rows(tick {self.tick}, {len(self.counts)} rows)"

    def parts(self) -> Iterator["Rows"]:
        """Yield the rows of each part, if the lane spreads a key's items over several owners.

        All parts name all keys.
        """
        parts = parts_of(self.tags, self.lane.split)
        order = np.argsort(parts, kind="stable")
        ends = np.cumsum(np.bincount(parts, minlength=self.lane.split)).tolist()
        for start, stop in pairwise((0, *ends)):
            rows = order[start:stop]
            yield structs.replace(
                self,
                starts=np.searchsorted(rows, self.starts),
                labels=self.labels.take(rows),
                counts=self.counts.take(rows),
                tags=self.tags.take(rows, axis=0),
            )

    def sections(self, room: int | None) -> Iterator[tuple[Section, int]]:
        """Yield sections of at most `room` bytes (None: one), with bounds of their encoded size."""
        k = len(self.names)
        of_keys = [len(name.encode()) + _KEY_BYTES for name in self.names]
        whole = _SECTION_BYTES + sum(of_keys) + len(self.labels.text)
        row_bytes = _ROW_BYTES + _USER_BYTES * (self.users is not None)
        whole += len(self.labels) * row_bytes
        if room is None or whole <= room:
            yield self._section(0, k, 0, len(self.counts)), whole
            return
        # Keys, each followed by its rows; a cut may fall between any two of them.
        heads = self.starts[:-1] + np.arange(k)
        of_row = np.ones(k + len(self.counts), dtype=np.bool_)
        of_row[heads] = False
        sizes = np.empty(len(of_row), dtype=np.int64)
        sizes[heads] = of_keys
        sizes[of_row] = self.labels.lengths + row_bytes
        # A key on both sides of a cut is named twice.
        named = LABEL_BYTES_MAX + _KEY_BYTES
        ends = np.cumsum(sizes)
        before: Longs = np.cumsum(of_row) - of_row
        for start, stop in split_by_size(sizes, room - _SECTION_BYTES - named):
            first_row = int(before[start])
            last_row = int(before[stop - 1] + of_row[stop - 1])
            first_key = int(np.searchsorted(heads, start, side="right")) - 1
            last_key = int(np.searchsorted(heads, stop - 1, side="right"))
            size = (
                _SECTION_BYTES
                + named
                + int(ends[stop - 1] - (ends[start - 1] if start else 0))
            )
            yield self._section(first_key, last_key, first_row, last_row), size

    def _section(self, first_key: int, last_key: int, first: int, last: int) -> Section:
        """Pack rows `first` to `last`, of keys `first_key` to `last_key`; ends are exclusive."""
        labels = self.labels
        # The section may begin or end within the rows of a key.
        starts = self.starts[first_key : last_key + 1]
        if last - first < len(labels):
            labels = labels.part(first, last)
            starts = np.clip(starts, first, last)
        width, counts = pack(self.counts[first:last])
        return Section(
            self.lane,
            self.tick,
            self.names[first_key:last_key],
            (starts[1:] - starts[:-1]).tolist(),
            labels.lengths.astype(_LENGTH).tobytes(),
            labels.text.tobytes(),
            width,
            counts,
            self.tags[first:last].astype("<u8", copy=False).tobytes(),
            b""
            if self.users is None
            else self.users[first:last].astype("<u8", copy=False).tobytes(),
        )


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One message of the contributions topic; the fields are those in the module's table."""

    version: int
    source: int
    sequence: int
    page: int
    pages: int
    offset: int
    watermark: int | None
    first: int | None
    sections: list[Section]
    key: bytes
    sources: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)] = 0
    users_from: int | None = None
    owners: Owners | None = None
    handed: HandedOver | None = None

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)


# Made at import, by one thread: if two threads first decode into a struct type at once, msgspec
# crashes the process (seen in 26 of 300 tries with six threads; tests/test_imports.py).
_DECODER = msgspec.msgpack.Decoder(Message)


def messages(
    rows: Sequence[Rows],
    *,
    source: int,
    sequence: int,
    offset: int,
    watermark: int | None,
    first: int | None,
    key: bytes,
    sources: int = 0,
    users_from: int | None = None,
    owners: Owners | None = None,
    max_bytes: int | None = VALUE_BYTES,
) -> list[Message]:
    """Return a commit's messages to one owner: at least one, each at most `max_bytes` long.

    `sequence` numbers the first, `offset` is where the source resumes after this commit,
    `watermark` and `first` (the first event's time) are in ms since 1970.
    """
    room = None if max_bytes is None else max_bytes - _HEADER_BYTES
    pages: list[list[Section]] = [[]]
    left = room or 0
    for of_tick in rows:
        for section, size in of_tick.sections(room):
            if room is not None and size > left and pages[-1]:
                pages.append([])
                left = room
            pages[-1].append(section)
            left -= size
    return [
        Message(
            version=VERSION,
            source=source,
            sequence=sequence + i,
            page=i + 1,
            pages=len(pages),
            offset=offset,
            watermark=watermark,
            first=first,
            sections=sections,
            key=key,
            sources=sources,
            users_from=users_from,
            owners=owners,
        )
        for i, sections in enumerate(pages)
    ]


#: The source of messages from one owner to another.
OWNER = -1


def handing_over(
    handed: HandedOver, *, key: bytes, max_bytes: int = VALUE_BYTES
) -> list[Message]:
    """Return the messages, at least one, that hand stream keys over to another owner."""
    room = max_bytes - _HEADER_BYTES - _HANDED_BYTES - len(handed.histogram.encode())
    sizes = [len(name.encode()) + _HANDED_KEY_BYTES for name, _ in handed.keys]
    # An owner that gets no key is told so.
    cuts = split_by_size(sizes, room) or [(0, 0)]
    return [
        Message(
            version=VERSION,
            source=OWNER,
            sequence=0,
            page=page,
            pages=len(cuts),
            offset=0,
            watermark=None,
            first=None,
            sections=[],
            key=key,
            handed=structs.replace(handed, keys=handed.keys[start:stop]),
        )
        for page, (start, stop) in enumerate(cuts, 1)
    ]


def decode(value: bytes) -> Message:
    """Decode a message; raise StateRefused if this version cannot read it."""
    try:
        message = _DECODER.decode(value)
    except UNDECODABLE as error:
        raise StateRefused(
            f"the contributions topic holds a message this version cannot read ({error}): was it written by something else?"
        ) from error
    if message.version != VERSION:
        raise StateRefused(
            f"the contributions topic holds a message of version {message.version}; this worker knows {VERSION}"
        )
    return message
