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

    Rows are grouped by stream key: `rows_per_key` says how many each of `keys` has. `lengths` are
    those of the labels; `counts` has 2^`width` bytes a row, `users` has digests or is empty.
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
        # 64 and 200 are Python's overhead.
        return sum(map(len, columns)) + 64 * len(self.keys) + 200

    @property
    def rows(self) -> int:
        return len(self.lengths) // _LENGTH.itemsize

    def contributions(self, *, of_sums: bool = False) -> Contributions:
        """Return the unpacked columns; raise StateRefused if they are damaged.

        `of_sums`: the lane adds up numbers, so `counts` are sums in steps of the setting `sum`.
        """
        try:
            lengths = np.frombuffer(self.lengths, dtype=_LENGTH)
            packed = np.frombuffer(self.counts, dtype=np.uint8)
            n = len(lengths)
            # n << width: the bytes of n counts.
            if not 0 <= self.width <= 3 or len(packed) != n << self.width:
                raise ValueError(
                    f"counts: {len(packed)} bytes for {n} rows of width {self.width}"
                )
            ends = np.empty(n, dtype=np.int64)
            counts = np.empty(n, dtype=np.int64)
            key_of_row = np.empty(n, dtype=np.int32)
            rows_of_key = np.array(self.rows_per_key, dtype=np.int64)
            is_complete = unpack_rows(
                lengths, packed, self.width, rows_of_key, ends, counts, key_of_row
            )
            if not is_complete or len(rows_of_key) != len(self.keys):
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

    Rows of the same stream key follow each other: those of `names[i]` are `starts[i]` to
    `starts[i + 1]`, (k + 1,). The other columns have one element a row; `users` are digests, where
    the lane names users.
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
        """Yield each part's rows, where the lane spreads a key's items over several owners.

        All parts name all keys: every owner of a part publishes the key. No such lane has users.
        """
        parts = parts_of(self.tags, self.lane.split)
        order = np.argsort(parts, kind="stable")
        ends = np.cumsum(np.bincount(parts, minlength=self.lane.split)).tolist()
        for start, stop in pairwise((0, *ends)):
            # Ascending, so a key's rows still follow each other.
            rows = order[start:stop]
            yield structs.replace(
                self,
                starts=np.searchsorted(rows, self.starts),
                labels=self.labels.take(rows),
                counts=self.counts.take(rows),
                tags=self.tags.take(rows, axis=0),
            )

    def sections(self, room: int | None) -> Iterator[tuple[Section, int]]:
        """Yield the rows as sections, each with an upper bound of its encoded size in bytes.

        No bound is above `room`; None: there is one section.
        """
        k = len(self.names)
        key_bytes = [len(name.encode()) + _KEY_BYTES for name in self.names]
        row_bytes = _ROW_BYTES + _USER_BYTES * (self.users is not None)
        size = _SECTION_BYTES + sum(key_bytes) + len(self.labels.text)
        size += len(self.labels) * row_bytes
        if room is None or size <= room:
            yield self._section(0, k, 0, len(self.counts)), size
            return
        # Elements in order, key row row key row ...: a cut may fall between any two of them.
        key_places = self.starts[:-1] + np.arange(k)
        is_row = np.ones(k + len(self.counts), dtype=np.bool_)
        is_row[key_places] = False
        sizes = np.empty(len(is_row), dtype=np.int64)
        sizes[key_places] = key_bytes
        sizes[is_row] = self.labels.lengths + row_bytes
        # A section that begins between the rows of a key names that key again.
        head_bytes = _SECTION_BYTES + LABEL_BYTES_MAX + _KEY_BYTES
        rows_before: Longs = np.cumsum(is_row) - is_row
        for start, stop in split_by_size(sizes, room - head_bytes):
            # The rows and keys of these elements; ends are exclusive.
            first_row = int(rows_before[start])
            end_row = int(rows_before[stop - 1] + is_row[stop - 1])
            first_key = int(np.searchsorted(key_places, start, side="right")) - 1
            end_key = int(np.searchsorted(key_places, stop - 1, side="right"))
            section = self._section(first_key, end_key, first_row, end_row)
            yield section, head_bytes + int(sizes[start:stop].sum())

    def _section(
        self, first_key: int, end_key: int, first_row: int, end_row: int
    ) -> Section:
        """Pack the rows and keys with these numbers into columns; ends are exclusive."""
        rows = slice(first_row, end_row)
        labels = self.labels
        starts = self.starts[first_key : end_key + 1]
        # The first and the last key may have further rows, in other sections.
        if end_row - first_row < len(labels):
            labels = labels.part(first_row, end_row)
            starts = np.clip(starts, first_row, end_row)
        width, counts = pack(self.counts[rows])
        users = b""
        if self.users is not None:
            users = self.users[rows].astype("<u8", copy=False).tobytes()
        return Section(
            lane=self.lane,
            tick=self.tick,
            keys=self.names[first_key:end_key],
            rows_per_key=np.diff(starts).tolist(),
            lengths=labels.lengths.astype(_LENGTH).tobytes(),
            labels=labels.text.tobytes(),
            width=width,
            counts=counts,
            tags=self.tags[rows].astype("<u8", copy=False).tobytes(),
            users=users,
        )


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One message of the contributions topic.

    `page` of `pages` counts the messages of one commit; `offset`, `watermark` and `first` say how
    far its source is; `sources`, `users_from` and `owners` tell of growth; `key` is a fingerprint;
    only an owner's message has `handed`. None: no tick is closed (`watermark`), no event counted
    (`first`), users do not move, or owners have not grown. More in the module's table.
    """

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

    `rows` are its sums; `sequence` numbers the first message, `offset` is where the source resumes
    after this commit, `watermark` and `first` (the first event's time) are in ms since 1970; the
    rest is as in `Message`. With a `max_bytes` of None, there is one message.
    """
    room = None if max_bytes is None else max_bytes - _HEADER_BYTES
    # The sections of each message, and the bytes that are free in the last one.
    pages: list[list[Section]] = [[]]
    left = room or 0
    for rows_of_tick in rows:
        for section, size in rows_of_tick.sections(room):
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


#: In place of a source partition's number: the message is from another owner.
OWNER = -1


def handing_over(
    handed: HandedOver, *, key: bytes, max_bytes: int = VALUE_BYTES
) -> list[Message]:
    """Return the messages, at least one, that hand stream keys over to another owner."""
    room = max_bytes - _HEADER_BYTES - _HANDED_BYTES - len(handed.histogram.encode())
    sizes = [len(name.encode()) + _HANDED_KEY_BYTES for name, _since in handed.keys]
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
