"""Key-value pairs of the changelog for one histogram and epoch: ledger blocks and stream keys.

The ledger's columns are stored in blocks of 1,024 rows; every value begins with its version.
Numbers are little-endian, in the narrowest unsigned width that holds them.

    L<block>         tags, stream key indices, lengths, text    written when rows are added
    L<block>.<part>  rows that do not fit in the part before    as above; parts from 1
    C<block>         counts                                     written when a tick changed one
    M<block>         sums of numbers, in steps                  the same
    S<block>         first tick at which each row was shown     written when a row is first shown
    E<block>         tick of the last event                     see `mechanisms.running.hops`
    R<block>         tick at which the label left               written when a label leaves

A tick writes the blocks that it touched; recovery reads blocks, never single items. 1,024 labels of
1,024 bytes take 1,071,108 bytes, above every broker's default message limit, so a part of labels
holds as many rows as fit. Rows are only appended: a part with a successor records that, never
changes and is never orphaned. Counts take at most 8,196 bytes a block, as do sums.

A value too long for one message is split into pages, blocks of a mechanism's own state too. One
that shrinks leaves unused pages behind.

    <name>          the value; or, if too long, {"pages": n}
    <name>.<page>   slices of it, from 0, written in the same transaction and before <name>

Stream keys are stored as JSON with the tick from which each is served, below 6,200 bytes a key
(1,024 bytes, which JSON makes 6,144, tick and brackets):

    keys/<block>          the first of the block's 1,024 keys, as many as a message holds
    keys/<block>.<part>   the keys that follow the part before (1, 2, ...)

A ledger is a table of exact counts with a row per item (`mechanisms.ledger`); a tag is the keyed
hash of stream key and label. Changes are pairs (name, value), in the order to write them; a
block's kind is the first letter of its name, its width code w means numbers of 2^w bytes.
"""

import struct
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import count, takewhile
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.arrays.number_blocks import mark_blocks, pack_blocks, unpack
from workers.arrays.texts import Texts, readonly_contiguous
from workers.arrays.types import Codes, Longs
from workers.mechanisms.ledger import Ledger
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import VALUE_BYTES, split_by_size

T = TypeVar("T")
#: What msgspec raises for bytes that it cannot decode; text that is not UTF-8 is no DecodeError.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_DECODER = msgspec.json.Decoder(list[tuple[str, int]])
_PAGED = b'{"pages":'
_PAGE = b"%b.%04x"


class StoredPairs(Protocol):
    """What is read of a shard's store: the pairs under a prefix, in the order of their names."""

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...


def split_pages(
    name: bytes, value: bytes, max_bytes: int = VALUE_BYTES
) -> list[tuple[bytes, bytes | None]]:
    """Split a value into (name, value) pairs, to be written in this order.

    A value that has room for one message is returned as it is. The name must have no dot. The value
    must be a JSON object, or begin with a version byte: so none looks like {"pages": n}.
    """
    if len(value) <= max_bytes:
        return [(name, value)]
    starts = range(0, len(value), max_bytes)
    pages = [
        (_PAGE % (name, i), value[start : start + max_bytes])
        for i, start in enumerate(starts)
    ]
    return [*pages, (name, _PAGED + b"%d}" % len(pages))]


def deleted_pages(name: str, stored: Collection[str]) -> list[tuple[bytes, None]]:
    """Return the deletion of a value, and of its pages among the names stored."""
    names = (_PAGE % (name.encode(), i) for i in count())
    pages = takewhile(lambda page: page.decode() in stored, names)
    return [(page, None) for page in (name.encode(), *pages)]


def decode_stored(decoder: msgspec.json.Decoder[T], value: bytes, what: str) -> T:
    """Decode stored bytes; raise StateRefused if this version cannot read them."""
    try:
        return decoder.decode(value)
    except UNDECODABLE as error:
        raise StateRefused(
            f"{what} cannot be read ({error}): was it written by another version?"
        ) from error


def read_paged(name: bytes, get: Callable[[bytes], bytes | None]) -> bytes | None:
    """Return a value from the pairs of `split_pages`, which `get` returns by name.

    None if it is not stored; StateRefused if a page is missing.
    """
    head = get(name)
    # Not paged: the value itself.
    if head is None or not head.startswith(_PAGED):
        return head
    number = head[len(_PAGED) : -1]
    pages = list[bytes]()
    # A damaged number must not make this read billions of pages.
    if not number.isdigit() or len(number) > 9:
        raise StateRefused(
            f"stored state: the number of pages of {name.decode()} is missing"
        )
    for i in range(int(number)):
        part = get(_PAGE % (name, i))
        if part is None:
            raise StateRefused(f"stored state: a page of {name.decode()} is missing")
        pages.append(part)
    return b"".join(pages)


def joined_pages(pairs: Mapping[bytes, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and whole value of everything that `split_pages` made these pairs of.

    Raise StateRefused if a page of a value is missing, or the head, which has their number.
    """
    for name in pairs:
        head, dot, _ = name.partition(b".")
        if head not in pairs:
            raise StateRefused(f"stored state: {head.decode()} is missing")
        # Pages are read with their head; pages left over from a longer value are ignored.
        value = None if dot else read_paged(name, pairs.get)
        if value is not None:
            yield name.decode(), value


KEYS_TO_A_BLOCK = 1024
PREFIX = "keys/"


def key_changes(
    keys: Sequence[str], since: Sequence[int], stored: int
) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of blocks that are to be stored, as (name, value).

    `keys` are all stream keys in the order met, `since` the tick from which each is served. The
    first `stored` keys are stored already, so only parts with later ones are written.
    """
    if stored >= len(keys):
        return
    for block in range(stored // KEYS_TO_A_BLOCK, -(-len(keys) // KEYS_TO_A_BLOCK)):
        first = block * KEYS_TO_A_BLOCK
        rows = slice(first, first + KEYS_TO_A_BLOCK)
        pairs = [
            msgspec.json.encode(pair)
            for pair in zip(keys[rows], since[rows], strict=True)
        ]
        # A comma or bracket for each pair, and one bracket more.
        cuts = split_by_size([len(pair) + 1 for pair in pairs], VALUE_BYTES - 1)
        for part, (start, stop) in enumerate(cuts):
            if first + stop > stored:
                yield (
                    _part(PREFIX, block, part),
                    b"[" + b",".join(pairs[start:stop]) + b"]",
                )


def decode(value: bytes) -> list[tuple[str, int]]:
    """Decode a part of the stream keys; raise StateRefused if this version cannot read it."""
    return decode_stored(_DECODER, value, "a part of the stored stream keys")


def _part(kind: str, block: int, part: int) -> str:
    """Return the name of a part of a block; the first part's name is the block's."""
    return f"{kind}{block:08x}" + (f".{part:02x}" if part else "")


_BLOCK_BITS = 10
BLOCK_ROWS = 1 << _BLOCK_BITS
# First letters of the blocks' names: labels, then the columns of numbers.
LABELS = "L"
KINDS = LABELS + "CMSER"
# Number blocks packed by one call, in about 2 MiB, which fits in a core's cache.
BLOCKS_AT_ONCE = 256
VERSION = 1
# Version, width code (of labels: whether another part follows), rows.
_HEAD = struct.Struct("<BBH")
# Besides its text, a label has a tag, a stream key index and a length.
_ROW_BYTES = 16 + 4 + 2


def changes(ledger: Ledger) -> Iterator[tuple[str, bytes]]:
    """Yield the blocks that changed since `ledger.clean()`, as (name, value)."""
    # Labels are only appended.
    if ledger.n > ledger.stored_rows:
        for block in range(
            ledger.stored_rows // BLOCK_ROWS, (ledger.n - 1) // BLOCK_ROWS + 1
        ):
            yield from _encode_labels(ledger, block)
    # Kind, rows that changed, and column. A ledger creates columns on first access, except counts
    # and shown: so access only those in use.
    numbers: list[tuple[str, list[Longs], Longs | Codes]] = []
    numbers.append(("C", ledger.counts_changed, ledger.counts))
    if ledger.sums_changed:
        numbers.append(("M", ledger.sums_changed, ledger.sums))
    numbers.append(("S", ledger.shown_changed, ledger.shown))
    if ledger.last_changed:
        numbers.append(("E", ledger.last_changed, ledger.last))
    if ledger.left_changed:
        numbers.append(("R", ledger.left_changed, ledger.left))
    for kind, rows, column in numbers:
        yield from _encode_numbers(kind, _blocks_of(rows, ledger.n), column)


def load(blocks: Iterable[tuple[str, bytes]], keys: int) -> Ledger:
    """Return the ledger in these blocks, whose rows refer to `keys` stream keys."""
    loading = Loading()
    for name, value in blocks:
        loading.take(name, value)
    return loading.ledger(keys)


class Loading:
    """A ledger that is being read back, block by block.

    Raises StateRefused for a missing, damaged or foreign block.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        # By kind and block, for `ledger` to read once all rows are known.
        self._numbers: dict[str, dict[int, bytes]] = {kind: {} for kind in KINDS[1:]}
        # Block and part of the labels that must come next.
        self._next_labels = (0, 0)

    def __repr__(self) -> str:
        return f"Loading({self._ledger!r})"

    def take(self, name: str, value: bytes) -> None:
        """Take one block by its name (see the module), in name order within each kind."""
        number, _, part = name[1:].partition(".")
        block = int(number, 16)
        if name[0] != LABELS:
            self._numbers[name[0]][block] = value
            return
        labels_part = int(part or "0", 16)
        ledger = self._ledger
        if (block, labels_part) != self._next_labels:
            raise StateRefused(
                f"stored ledger: block {block}, part {labels_part} of labels follows {ledger.n} rows; "
                "a block before it is missing"
            )
        if not labels_part and ledger.n != block * BLOCK_ROWS:
            raise StateRefused(
                f"stored ledger: block {block - 1} of labels ends at row {ledger.n}; a part of it is missing"
            )
        followed = _decode_labels(ledger, value)
        self._next_labels = (block, labels_part + 1) if followed else (block + 1, 0)

    def ledger(self, keys: int) -> Ledger:
        """Return the ledger of all blocks taken; refuse rows outside the `keys` stream keys.

        Kernels index by the key of a row without checking it.
        """
        ledger = self._ledger
        (block, part) = self._next_labels
        if part:
            raise StateRefused(
                f"stored ledger: part {part} of block {block} of labels is missing"
            )
        if ((ledger.keys < 0) | (ledger.keys >= keys)).any():
            raise StateRefused(
                f"stored ledger: a row's stream key is none of {keys}; a block of them is missing"
            )
        # Sums, `last` and `left` are created on first access: here only if a block is stored.
        for rows, numbers in self._read("C"):
            ledger.counts[rows] = numbers
        for rows, numbers in self._read("M"):
            ledger.sums[rows] = numbers
        for rows, numbers in self._read("S"):
            # The column, made wide enough for the latest of these ticks.
            ledger.shown_for(int(numbers.max(initial=0)))[rows] = numbers
        for rows, numbers in self._read("E"):
            ledger.last[rows] = numbers
        for rows, numbers in self._read("R"):
            ledger.left[rows] = numbers
        ledger.clean()
        return ledger

    def _read(self, kind: str) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows and the numbers of every block of one kind."""
        for block, value in self._numbers[kind].items():
            width, n = _head(value)
            start = block * BLOCK_ROWS
            if start + n > self._ledger.n:
                raise StateRefused(
                    f"stored ledger: block {block} has more rows than labels; the label block is missing"
                )
            if width > 3 or len(value) != _HEAD.size + (n << width):
                raise StateRefused(
                    f"stored ledger: block {block} of {n} numbers is cut short or too long"
                )
            numbers = unpack(width, value, count=n, offset=_HEAD.size)
            yield slice(start, start + n), numbers


def _blocks_of(rows: list[Longs], n: int) -> Longs:
    """Return the numbers of the blocks, ascending, that hold any of some rows.

    `rows` are arrays of row numbers, repeated ones included, of a ledger with `n` rows.
    """
    rows = [some for some in rows if len(some)]
    is_marked = np.zeros(-(-n // BLOCK_ROWS), dtype=np.bool_)
    # Most ledgers are small: every row lies in the only block.
    if len(is_marked) == 1:
        is_marked[:] = bool(rows)
    else:
        for some in rows:
            mark_blocks(readonly_contiguous(some), _BLOCK_BITS, is_marked)
    return np.flatnonzero(is_marked)


def _encode_labels(ledger: Ledger, block: int) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a block of labels that are not stored as they are now.

    Those have new rows, or are the first time followed by another part, which they record.
    """
    first = block * BLOCK_ROWS
    end = min(ledger.n, (block + 1) * BLOCK_ROWS)
    labels = ledger.label_column(first, end)
    lengths = labels.lengths
    room = VALUE_BYTES - _HEAD.size
    fits = len(labels.text) + (end - first) * _ROW_BYTES <= room
    # Rows of the block, counted from its first one.
    parts = [(0, end - first)] if fits else split_by_size(lengths + _ROW_BYTES, room)
    for part, (start, stop) in enumerate(parts):
        followed = part + 1 < len(parts)
        # Skip a part that is stored as it is now: with all of its rows and, if it is followed, with
        # the next row, since the commit that stored that row has also recorded it here.
        if first + stop + followed <= ledger.stored_rows:
            continue
        rows = slice(first + start, first + stop)
        tags = ledger.tags[rows].astype("<u8", copy=False)
        keys = ledger.keys[rows].astype("<i4", copy=False)
        text = (labels if fits else labels.part(start, stop)).text
        columns = tags, keys, lengths[start:stop].astype("<u2"), text
        head = _HEAD.pack(VERSION, followed, stop - start)
        yield (
            _part(LABELS, block, part),
            head + b"".join(column.tobytes() for column in columns),
        )


def _decode_labels(ledger: Ledger, value: bytes) -> bool:
    """Append the rows of a part to a ledger; return whether another part of the block follows.

    After the head: tags of 16 bytes a row, stream key indices of 4, lengths of 2, and the text.
    """
    followed, n = _head(value)
    keys_start = _HEAD.size + 16 * n
    lengths_start = keys_start + 4 * n
    text_start = lengths_start + 2 * n
    # Too short a value gets zeros here, and is refused by its length.
    lengths = np.frombuffer(
        value[lengths_start:text_start].ljust(2 * n, b"\0"), dtype="<u2"
    )
    if len(value) != text_start + int(lengths.sum(dtype=np.int64)):
        raise StateRefused(
            f"stored ledger: a block of {n} labels is cut short or too long"
        )
    tags = np.frombuffer(value, dtype="<u8", count=2 * n, offset=_HEAD.size)
    keys = np.frombuffer(value, dtype="<u4", count=n, offset=keys_start)
    ledger.append(
        tags.reshape(n, 2),
        keys.astype(np.int32),
        Texts.from_lengths(value[text_start:], lengths),
    )
    return bool(followed)


def _encode_numbers(
    kind: str, blocks: Longs, column: Longs | Codes
) -> Iterator[tuple[str, bytes]]:
    """Yield `blocks` (by number) of a column of numbers, as (name, value).

    One kernel call packs many blocks. `kind` is the first letter of their names.
    """
    for first in range(0, len(blocks), BLOCKS_AT_ONCE):
        some = blocks[first : first + BLOCKS_AT_ONCE]
        ends = np.empty(len(some), dtype=np.int64)
        packed = np.empty((_HEAD.size + 8 * BLOCK_ROWS) * len(some), dtype=np.uint8)
        pack_blocks(column, some, BLOCK_ROWS, VERSION, ends, packed)
        stops = ends.tolist()
        whole = packed[: stops[-1]].tobytes()
        start = 0
        for block, stop in zip(some.tolist(), stops, strict=True):
            yield _part(kind, block, 0), whole[start:stop]
            start = stop


def _head(value: bytes) -> tuple[int, int]:
    """Return the two fields of a block's head after its version, which is checked.

    The first is the width code, or of labels whether another part follows; the second the rows.
    """
    if len(value) < _HEAD.size:
        raise StateRefused(f"stored ledger: a block of {len(value)} bytes is cut short")
    version, width, n = _HEAD.unpack_from(value)
    if version != VERSION:
        raise StateRefused(
            f"stored ledger: version {version}; this worker knows {VERSION}: upgrade it"
        )
    return width, n
