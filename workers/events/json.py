"""JSON: one object a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import fixed
from workers.events.json_objects import JsonDecoder
from workers.events.json_parts import depths
from workers.events.json_scanner import logs
from workers.events.json_tree import JsonTree
from workers.events.logs import Bools, Logs, parts
from workers.events.tree import Node
from workers.runtime.frozen import Frozen

# Lists and objects in each other. CPython lets about 1,000 calls lie in each other, ours included,
# and which of msgspec's it counts differs between versions. All of them allow this many.
NESTED_MAX = 512

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]


class Json(Frozen):
    """Reads events that are JSON; all threads of a worker share it. See `Format`."""

    def __init__(self, tree: Node) -> None:
        """
        Args:
            tree: what is wanted of an event.
        """
        self._tree, self._decoder = JsonTree(tree), JsonDecoder(tree)

    def scan(self, data: Bytes, values: Longs, plain: Bools | None = None) -> Iterator[Logs]:
        """Log the wanted fields of plain records; see `Format.scan`."""
        bytes_of = fixed(data)
        places = fixed(values if plain is None else np.where(plain[:, None], values, -1))
        stack, seen = self._tree.scratch()

        def scan(begin: int, number: Longs, rows: Longs) -> tuple[Bytes, int]:
            # No text is longer decoded than written: one record always has room.
            decoded = np.empty_like(data)
            done, _, filled = logs(
                bytes_of, places, self._tree.nodes, self._tree.names, begin, stack, seen, number, rows, 0, decoded, 0
            )
            return (np.concatenate([data, decoded[:filled]]) if filled else data), done

        return parts(values, scan, self.decoder(data, values))

    def decoder(self, data: Bytes, values: Longs) -> Callable[[int], object]:
        """Return what decodes the record in a row of `values`; see `Logs.decode`."""

        def decode(row: int) -> object:
            start, stop = values[row].tolist()
            return self.decode(data[start:stop].tobytes())

        return decode

    def decode(self, value: bytes) -> object:
        """Return a record as plain objects; raises ValueError with the reason why it is none."""
        _check_depth(value)
        return self._decoder.decode(value)

    def whole(self, value: bytes) -> object:
        """Return a record with all of its fields; see `Format.whole`."""
        _check_depth(value)
        return self._decoder.whole(value)


def _check_depth(value: bytes) -> None:
    """Refuse a record with more lists and objects in each other than can be decoded."""
    if value.count(b"[") + value.count(b"{") <= NESTED_MAX:
        return
    record = np.frombuffer(value, dtype=np.uint8)
    if depths(fixed(record), fixed(np.array([[0, len(value)]])))[0] > NESTED_MAX:
        raise ValueError("not JSON")
