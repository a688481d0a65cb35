"""State of the continual sketch mechanism: open sketches and released sums by stream key and level.

Ticks are the leaves of a tree; a cell of level j is r^j ticks. Each level has one open cell at a
time, whose sketch is fed; when it is complete, its noisy counts are added to the level's sum, which
lasts until the cell of the level above is complete. What is shown is the sum over all levels.

Blocks are written when changed; a name begins with two letters for its kind:

    mo<key><level>   the open sketch: items fed, then tags, counts, labels, ascending by tag
    mr<key><level>   the sum of the level's released noisy counts, ascending by label
    md<key>00        the tags of the declared domain, in its order, where there is one

Levels whose open cells have had the same items share one sketch (all of them at first, later those
that began together): it is fed once, and stored for each. A closed cell's block stays, without
counters, because records of a compacted topic cannot be deleted from here.
"""

import re
import struct
from collections.abc import Iterable, Sequence

import numpy as np

from workers.arrays.texts import Texts
from workers.arrays.types import Longs, Tags
from workers.mechanisms.mechanism import State, body_of, unknown_block
from workers.mechanisms.misra_gries.sketch import Sketch, SortedTags
from workers.runtime.errors import StateRefused

VERSION = 1
_BLOCK_NAME = re.compile("m[dor][0-9a-f]{10}")
_HEAD = struct.Struct("<IQ")  # counters, items fed

Cell = tuple[int, int]  # stream key's index, level


class SketchState(State):
    """Open sketches and released sums of every stream key and level (sensitive)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._open: dict[Cell, Sketch] = {}
        self._shown: dict[Cell, dict[bytes, int]] = {}
        self._domains: dict[int, SortedTags] = {}
        # Blocks to store: kind ("mo", "mr" or "md") and cell.
        self._changed: set[tuple[str, Cell]] = set()
        # By stream key and stored block, until the first tick after a restart: levels with equal
        # blocks share one sketch again.
        self._restored: dict[tuple[int, bytes], Sketch] = {}

    @property
    def counters(self) -> int:
        return sum(len(sketch.counts) for sketch in _distinct(self._open.values()))

    def declare(self, key: int, tags: Tags) -> None:
        """Keep the tags of a stream key's declared domain."""
        self._domains[key] = SortedTags(tags.copy())
        self._changed.add(("md", (key, 0)))

    def domain_of(self, key: int) -> SortedTags:
        """Return the tags of a stream key's declared domain."""
        if key not in self._domains:
            raise StateRefused(
                f"stored sketch: the domain of stream key {key} is missing"
            )
        return self._domains[key]

    def open_sketches(self, key: int, levels: Iterable[int]) -> list[Sketch]:
        """Return the open sketches of these levels, which the caller feeds, each once."""
        # One is enough for all levels whose cell begins now: see the module.
        fresh = Sketch(self._size)
        for level in levels:
            self._open.setdefault((key, level), fresh)
            self._changed.add(("mo", (key, level)))
        return _distinct(self._open[key, level] for level in levels)

    def close_cells(self, key: int, level: int) -> Sketch | None:
        """Close a complete cell and the cells within it; return its sketch, if it had items.

        It replaces the released sums of the levels below, which are cleared.
        """
        closed = self._open.get((key, level))
        for below in range(level + 1):
            if self._open.pop((key, below), None) is not None:
                self._changed.add(("mo", (key, below)))
            if below < level and self._shown.pop((key, below), None) is not None:
                self._changed.add(("mr", (key, below)))
        return closed

    def show(self, key: int, level: int, released: Iterable[tuple[bytes, int]]) -> None:
        """Add a cell's released noisy counts, by label, to the sum of its level."""
        counts = dict(released)
        if counts:
            _add(self._shown.setdefault((key, level), {}), counts)
            self._changed.add(("mr", (key, level)))

    def shown(self) -> list[tuple[int, dict[bytes, int]]]:
        """Return the sums over all levels for keys that show something, ascending by key."""
        totals: dict[int, dict[bytes, int]] = {}
        for (key, _level), released in self._shown.items():
            _add(totals.setdefault(key, {}), released)
        return sorted(totals.items())

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Return the blocks of sketches, sums and domains that changed since the last call."""
        self._restored.clear()
        blocks: list[tuple[str, bytes]] = []
        # By id of the sketch: levels that share one store equal bytes, which are made once.
        encoded: dict[int, bytes] = {}
        # Each content is a head (number n, items fed), then columns of n.
        for kind, (key, level) in sorted(self._changed):
            if kind == "mo":
                sketch = self._open.get((key, level))
                content = encoded.get(id(sketch)) or _encode_open(sketch)
                encoded[id(sketch)] = content
            elif kind == "md":
                tags = self._domains[key].tags
                content = _HEAD.pack(len(tags), 0) + tags.astype("<u8").tobytes()
            else:
                released = sorted(self._shown.get((key, level), {}).items())
                labels = Texts.of([label for label, _ in released])
                counts = np.array([count for _, count in released], dtype=np.int64)
                content = _HEAD.pack(len(released), 0) + _encode_counts(labels, counts)
            blocks.append((f"{kind}{key:08x}{level:02x}", bytes((VERSION,)) + content))
        self._changed.clear()
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        """Read a stored block; refuse one that is damaged. An empty one is of a closed cell."""
        if not _BLOCK_NAME.fullmatch(name):
            raise unknown_block(name)
        content = body_of(name, block, VERSION)
        kind = name[:2]
        cell = (int(name[2:10], 16), int(name[10:], 16))
        if not _is_whole(kind, content):
            raise StateRefused(f"stored sketch: {name} is cut short or too long")
        n, total = _HEAD.unpack_from(content)
        if kind == "md":
            self._domains[cell[0]] = SortedTags(_tags(content, n))
        elif kind == "mo" and total:
            self._open[cell] = self._sketch(cell[0], content)
        elif kind == "mr" and n:
            labels, counts = _decode_counts(content, _HEAD.size, n)
            self._shown[cell] = dict(zip(labels, counts.tolist(), strict=True))

    def _sketch(self, key: int, content: bytes) -> Sketch:
        """Return the sketch of a stored block; equal blocks of a stream key give one."""
        n, total = _HEAD.unpack_from(content)
        if n > self._size:
            raise StateRefused(
                f"stored sketch: {n} counters, at most {self._size} here"
            )
        sketch = self._restored.setdefault((key, content), Sketch(self._size))
        # A sketch without items is new: stored ones have some.
        if not sketch.total:
            sketch.total = total
            sketch.tags = _tags(content, n)
            start = _HEAD.size + 16 * n
            sketch.labels, sketch.counts = _decode_counts(content, start, n)
        return sketch


def _add(sums: dict[bytes, int], counts: dict[bytes, int]) -> None:
    for label, count in counts.items():
        sums[label] = sums.get(label, 0) + count


def _distinct(sketches: Iterable[Sketch]) -> list[Sketch]:
    """Return every sketch once: levels may share one."""
    return list({id(sketch): sketch for sketch in sketches}.values())


def _encode_open(sketch: Sketch | None) -> bytes:
    """Return the content of an open sketch; of None, that of an empty one."""
    if sketch is None:
        return _HEAD.pack(0, 0)
    head = (
        _HEAD.pack(len(sketch.counts), sketch.total)
        + sketch.tags.astype("<u8").tobytes()
    )
    return head + _encode_counts(sketch.labels, sketch.counts)


def _tags(content: bytes, n: int) -> Tags:
    tags = np.frombuffer(content, dtype="<u8", count=2 * n, offset=_HEAD.size)
    return tags.astype(np.uint64).reshape(n, 2)


def _encode_counts(labels: Texts, counts: Longs) -> bytes:
    """Return counts, lengths of labels, and labels, as `_decode_counts` reads them."""
    numbers = counts.astype("<i8").tobytes() + labels.lengths.astype("<u2").tobytes()
    return numbers + labels.text.tobytes()


def _is_whole(kind: str, content: bytes) -> bool:
    """Return whether a block of a kind ("mo", "mr" or "md") is as long as its head says."""
    if len(content) < _HEAD.size:
        return False
    n: int = _HEAD.unpack_from(content)[0]
    if kind == "md":
        return len(content) == _HEAD.size + 16 * n
    # Before the labels' lengths: counts of 8 bytes, and of open sketches tags of 16.
    lengths_at = _HEAD.size + (24 if kind == "mo" else 8) * n
    if len(content) < lengths_at + 2 * n:
        return False
    lengths = np.frombuffer(content, dtype="<u2", count=n, offset=lengths_at)
    return bool(len(content) == lengths_at + 2 * n + lengths.sum())


def _decode_counts(content: bytes, start: int, n: int) -> tuple[Texts, Longs]:
    """Return n labels and counts from byte `start` on, as `_encode_counts` wrote them.

    That is n counts of 8 bytes, n lengths of 2 bytes, and all labels end to end.
    """
    counts = np.frombuffer(content, dtype="<i8", count=n, offset=start)
    lengths = np.frombuffer(content, dtype="<u2", count=n, offset=start + 8 * n)
    labels = Texts.from_lengths(content[start + 10 * n :], lengths)
    return labels, counts.astype(np.int64)
