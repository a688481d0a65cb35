"""What a log says, and what it should say: a walk over Python objects along the same tree."""

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.arrays.texts import readonly_contiguous
from workers.events import log as kinds
from workers.events.formats.fitting import SchemaFormat
from workers.events.log import DECLINED, scan_parts
from workers.events.tree import NO_SLOT, Node

Said = dict[int, list[tuple[Any, ...]]]


def expected(found: object, tree: Node) -> Said:
    """Return what the log of a decoded record says: rows by their slot, in order."""
    said: Said = {}
    for slot, row in _walk(found, tree):
        said.setdefault(slot, []).append(row)
    return said


def _walk(found: Any, node: Node) -> Iterator[tuple[int, tuple[Any, ...]]]:
    if isinstance(found, dict):
        if node.many:
            yield node.slot, ("map", len(found))
            for name, value in found.items():
                yield node.slot, ("text", name)
                yield node.slot, scalar(value)
        elif node.slot != NO_SLOT:
            yield node.slot, ("other",)
        for name, child in node.children.items():
            if name in found:
                yield from _walk(found[name], child)
    elif isinstance(found, list):
        if node.many:
            yield node.slot, ("list", len(found))
            for value in found:
                yield node.slot, scalar(value)
        elif node.slot != NO_SLOT:
            yield node.slot, ("other",)
        if node.elements is not None:
            yield node.list_slot, ("list", len(found))
            for value in found:
                yield from _walk(value, node.elements)
    elif node.slot != NO_SLOT:
        yield node.slot, scalar(found)


def scalar(value: object) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return "bool", value
    if value is None:
        return ("null",)
    if isinstance(value, str):
        return "text", value
    if isinstance(value, int):
        return "whole", value
    if isinstance(value, float) and not math.isnan(value):
        return "real", struct.pack("<d", value)
    return ("other",)


def content(log: NDArray[np.int64], data: NDArray[np.uint8]) -> Said:
    said: Said = {}
    for slot, kind, start, stop in log.tolist():
        row: tuple[Any, ...]
        if kind == kinds.TEXT:
            row = "text", data[start:stop].tobytes().decode()
        elif kind == kinds.WHOLE:
            row = "whole", int(data[start:stop].tobytes())
        elif kind == kinds.VALUE:
            row = "whole", start
        elif kind == kinds.REAL:
            row = "real", struct.pack("<q", start)
        elif kind in (kinds.TRUE, kinds.FALSE):
            # Binary formats have no word for it.
            assert start == stop == -1
            row = "bool", kind == kinds.TRUE
        elif kind in (kinds.LIST, kinds.MAP):
            row = "list" if kind == kinds.LIST else "map", start
        else:
            row = ({kinds.NULL: "null", kinds.OTHER: "other"}[kind],)
        said.setdefault(slot, []).append(row)
    return said


def scanned(fmt: SchemaFormat[Any], number: int, payload: bytes) -> Said | None:
    """Return what the scanner says of a record of a schema; None where it declines."""
    data = np.frombuffer(payload + fmt.texts.tobytes(), dtype=np.uint8)
    values = readonly_contiguous(np.array([[0, len(payload)]]))
    roots = readonly_contiguous(np.array(fmt.roots[number : number + 1]))
    scan = fmt.scanner(data, values, roots, len(payload))
    [logs] = scan_parts(values, lambda *to: (data, scan(*to)), lambda row: row)
    return None if logs.status[0] == DECLINED else unordered(content(logs.rows, data))


def assert_refused(
    fmt: SchemaFormat[Any], number: int, payload: bytes, reason: str
) -> None:
    """Bytes that are no record: the scanner declines, and the general reader says why."""
    assert scanned(fmt, number, payload) is None
    with pytest.raises(ValueError, match=f"^{reason}$"):
        fmt.decode(number, payload)


def unordered(said: Said) -> Said:
    """Return the same with the entries of maps sorted: upb gives them in an order of its own."""
    return {
        slot: _sorted(rows) if rows[0][0] == "map" else rows
        for slot, rows in said.items()
    }


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    pairs = sorted(zip(rows[1::2], rows[2::2], strict=True))
    return [rows[0], *(row for pair in pairs for row in pair)]
