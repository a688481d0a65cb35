"""The ledger's blocks: the columns of one histogram and epoch as key-value pairs of the changelog, 1,024 rows to a block.

    L<block>  tags, stream key indices, label lengths and text   written when rows are added to the block
    C<block>  counts, in the narrowest width that holds them     written when a tick changed one of them
    S<block>  first tick at which each row was shown             written when a row is shown for the first time

A tick writes the blocks that it touched; recovery reads blocks, never items one by one. Every value begins with its version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from workers.errors import StateRefused
from workers.mechanisms.rows import Columns
from workers.tables.packing import pack, unpack

BLOCK_ROWS = 1024
VERSION = 1
_HEAD = struct.Struct("<BBH")  # version, width code, rows


def block_key(kind: str, block: int) -> str:
    """Name of a block; names sort in block order."""
    return f"{kind}{block:08x}"


def changes(columns: Columns) -> Iterator[tuple[str, bytes]]:
    """The blocks that changed since `columns.clean()`, as (name, value)."""
    if columns.n > columns.clean_rows:
        for block in range(columns.clean_rows // BLOCK_ROWS, (columns.n - 1) // BLOCK_ROWS + 1):
            yield block_key("L", block), _encode_labels(columns, block)
    for kind, rows, column in (("C", columns.touched, columns.counts), ("S", columns.newly_shown, columns.shown)):
        for block in _blocks_of(rows):
            part = column[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
            yield block_key(kind, block), _encode_column(part)


def load(blocks: Iterable[tuple[str, bytes]]) -> Columns:
    """The columns that `changes` wrote.

    Args:
        blocks: (name, value), in the order of their names within each kind.

    Raises:
        StateRefused: a block is missing, damaged, or of another version.
    """
    by_kind: dict[str, dict[int, bytes]] = {"L": {}, "C": {}, "S": {}}
    for name, value in blocks:
        by_kind[name[0]][int(name[1:], 16)] = value
    columns = Columns()
    for block, value in sorted(by_kind["L"].items()):
        if columns.n != block * BLOCK_ROWS:
            raise StateRefused(
                f"stored ledger: block {block} of labels follows {columns.n} rows; a block before it is missing"
            )
        _decode_labels(columns, value)
    _fill(columns.counts, by_kind["C"])
    _fill(columns.shown, by_kind["S"])
    columns.clean()
    return columns


def _blocks_of(rows: list[NDArray[np.int64]]) -> list[int]:
    if not rows:
        return []
    blocks: list[int] = np.unique(np.concatenate(rows) // BLOCK_ROWS).tolist()
    return blocks


def _encode_labels(columns: Columns, block: int) -> bytes:
    start, stop = block * BLOCK_ROWS, min(columns.n, (block + 1) * BLOCK_ROWS)
    lengths, text = columns.label_column(start, stop)
    return b"".join(
        (
            _HEAD.pack(VERSION, 0, stop - start),
            columns.tags[start:stop].astype("<u8").tobytes(),
            columns.keys[start:stop].astype("<u4").tobytes(),
            lengths.astype("<u2").tobytes(),
            text,
        )
    )


def _decode_labels(columns: Columns, value: bytes) -> None:
    _, n = _head(value)
    at = _HEAD.size
    lengths = np.frombuffer(value[at + 20 * n : at + 22 * n], dtype="<u2") if len(value) >= at + 22 * n else None
    if lengths is None or len(value) != at + 22 * n + int(lengths.sum(dtype=np.int64)):
        raise StateRefused(f"stored ledger: a block of {n} labels is cut short or too long")
    tags = np.frombuffer(value, dtype="<u8", count=2 * n, offset=at).reshape(n, 2)
    keys = np.frombuffer(value, dtype="<u4", count=n, offset=at + 16 * n)
    columns.append(tags.astype(np.uint64), keys.astype(np.int32), lengths.astype(np.int64), value[at + 22 * n :])


def _encode_column(column: NDArray[np.int64] | NDArray[np.int32]) -> bytes:
    width, data = pack(column)
    return _HEAD.pack(VERSION, width, len(column)) + data


def _fill(column: NDArray[np.int64] | NDArray[np.int32], blocks: Mapping[int, bytes]) -> None:
    for block, value in blocks.items():
        width, n = _head(value)
        start = block * BLOCK_ROWS
        if start + n > len(column):
            raise StateRefused(f"stored ledger: block {block} has more rows than labels; the label block is missing")
        if width > 3 or len(value) != _HEAD.size + (n << width):
            raise StateRefused(f"stored ledger: block {block} of {n} numbers is cut short or too long")
        column[start : start + n] = unpack(width, value, count=n, offset=_HEAD.size)


def _head(value: bytes) -> tuple[int, int]:
    if len(value) < _HEAD.size:
        raise StateRefused(f"stored ledger: a block of {len(value)} bytes is cut short")
    version, width, n = _HEAD.unpack_from(value)
    if version != VERSION:
        raise StateRefused(f"stored ledger: version {version}; this worker knows {VERSION}: upgrade it")
    return width, n
