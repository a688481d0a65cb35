"""State of the continual sketch mechanism: open sketches and released sums by stream key and level.

Changed blocks are written in pages that fit a message, all pages of a block together; page 0 has
the number of valid ones. Every page begins with a version.

    mo<key><level>.<page>   the open sketch: items fed, then tags, counts, labels, ascending by tag
    mr<key><level>.<page>   the sum of the level's released noisy counts, ascending by label
    md<key>00.<page>        the tags of the declared domain, in its order, where there is one

Levels whose open cells have had the same items share one sketch (all of them at first, later those
that began together): it is fed once, and stored for each. A block without counters is one short
page, because records of a compacted topic cannot be deleted from here.
"""

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.arrays.types import Bools, Longs, Tags
from workers.mechanisms.mechanism import State
from workers.mechanisms.misra_gries.sketch import Sketch, SketchBatch, SortedTags
from workers.runtime.errors import StateRefused


class DomainTags:
    """Tags of one stream key's declared labels, in the order declared. Secret, as tags are."""

    def __init__(self, tags: Tags) -> None:
        # (d, 2), distinct
        self.tags = tags
        self._sorted = SortedTags(tags)

    def __repr__(self) -> str:
        return f"DomainTags({len(self.tags)} labels)"

    def places(self, tags: Tags) -> tuple[Rows, Bools]:
        """Return the places of `tags` (n, 2), arbitrary if outside, and whether they are inside."""
        before, known = self._sorted.positions(tags)
        if not len(self._sorted):
            return before, known
        return self._sorted.rows[np.minimum(before, len(self._sorted) - 1)], known

    def restrict(self, items: SketchBatch) -> SketchBatch:
        _, known = self._sorted.positions(items.tags.all())
        return items if known.all() else items.part(np.flatnonzero(known))


VERSION = 1
PAGE_BYTES = 512 << 10
_PAGE = struct.Struct("<BHH")  # version, page, pages
_HEAD = struct.Struct("<IQ")  # counters, items fed

Cell = tuple[int, int]  # stream key's index, level


class SketchState(State):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._open: dict[Cell, Sketch] = {}
        self._shown: dict[Cell, dict[bytes, int]] = {}
        self._domains: dict[int, DomainTags] = {}
        self._changed: set[tuple[str, Cell]] = set()
        self._pages: dict[str, dict[int, bytes]] = {}

    def __repr__(self) -> str:
        return f"SketchState(size={self._size})"

    @property
    def counters(self) -> int:
        self._join()
        return sum(len(sketch.counts) for sketch in _distinct(self._open.values()))

    def declare(self, key: int, tags: Tags) -> None:
        self._domains[key] = DomainTags(tags.copy())
        self._changed.add(("md", (key, 0)))

    def domain_of(self, key: int) -> DomainTags:
        self._join()
        if key not in self._domains:
            raise StateRefused(
                f"stored sketch: the domain of stream key {key} is missing"
            )
        return self._domains[key]

    def open_sketches(self, key: int, levels: Iterable[int]) -> list[Sketch]:
        """Return the distinct open sketches of these levels, to be fed."""
        self._join()
        fresh = Sketch(self._size)
        for level in levels:
            self._open.setdefault((key, level), fresh)
            self._changed.add(("mo", (key, level)))
        return _distinct(self._open[key, level] for level in levels)

    def close_cells(self, key: int, level: int) -> Sketch | None:
        """Close the cells up to this level, clear the sums below; return this level's sketch."""
        self._join()
        closed = self._open.get((key, level))
        for below in range(level + 1):
            if self._open.pop((key, below), None) is not None:
                self._changed.add(("mo", (key, below)))
            if below < level and self._shown.pop((key, below), None) is not None:
                self._changed.add(("mr", (key, below)))
        return closed

    def show(self, key: int, level: int, released: Iterable[tuple[bytes, int]]) -> None:
        self._join()
        counts = dict(released)
        if counts:
            _add(self._shown.setdefault((key, level), {}), counts)
            self._changed.add(("mr", (key, level)))

    def shown(self) -> list[tuple[int, dict[bytes, int]]]:
        """Return the sums over all levels for keys that show something, ascending by key."""
        self._join()
        totals: dict[int, dict[bytes, int]] = {}
        for (key, _), released in self._shown.items():
            if key in totals:
                _add(totals[key], released)
            else:
                totals[key] = released.copy()
        return sorted(totals.items())

    def changed(self) -> Sequence[tuple[str, bytes]]:
        blocks: list[tuple[str, bytes]] = []
        encoded: dict[int, bytes] = {}
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
            pages = max(1, -(-len(content) // PAGE_BYTES))
            for page in range(pages):
                part = content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
                name = f"{kind}{key:08x}{level:02x}.{page:04x}"
                blocks.append((name, _PAGE.pack(VERSION, page, pages) + part))
        self._changed.clear()
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        if name[:2] not in ("mo", "mr", "md") or len(name) != 17:
            super().restore(name, block)
        if len(block) < _PAGE.size:
            raise StateRefused(
                f"stored sketch: block {name} of {len(block)} bytes is cut short"
            )
        version, page, _ = _PAGE.unpack_from(block)
        if version != VERSION:
            raise StateRefused(
                f"stored sketch: version {version}; this worker knows {VERSION}: upgrade it"
            )
        self._pages.setdefault(name[:12], {})[page] = block

    def _join(self) -> None:
        """Build sketches from restored pages; equal ones are shared, as their input is equal."""
        equal: dict[tuple[int, bytes], Sketch] = {}
        for name, pages in sorted(self._pages.items()):
            if 0 not in pages:
                raise StateRefused(
                    f"stored sketch: the first page of {name} is missing"
                )
            count = _pages(pages[0])
            if any(
                page not in pages or _pages(pages[page]) != count
                for page in range(count)
            ):
                raise StateRefused(f"stored sketch: a page of {name} is missing")
            content = b"".join(pages[page][_PAGE.size :] for page in range(count))
            kind = name[:2]
            where = (int(name[2:10], 16), int(name[10:12], 16))
            if not _is_whole(kind, content):
                raise StateRefused(f"stored sketch: {name} is cut short or too long")
            n, _ = _HEAD.unpack_from(content)
            if kind == "md":
                self._domains[where[0]] = DomainTags(_tags(content, n))
            elif kind == "mo":
                self._decode_open(where, content, equal)
            elif n:
                labels, counts = _decode_counts(content, _HEAD.size, n)
                self._shown[where] = dict(zip(labels, counts.tolist(), strict=True))
        self._pages = {}

    def _decode_open(
        self, where: Cell, content: bytes, equal: dict[tuple[int, bytes], Sketch]
    ) -> None:
        n, total = _HEAD.unpack_from(content)
        if not total:
            self._open.pop(where, None)
            return
        if n > self._size:
            raise StateRefused(
                f"stored sketch: {n} counters, at most {self._size} here"
            )
        sketch = equal.setdefault((where[0], content), Sketch(self._size))
        self._open[where] = sketch
        if sketch.total:
            return
        sketch.total = total
        sketch.tags = _tags(content, n)
        sketch.labels, sketch.counts = _decode_counts(content, _HEAD.size + 16 * n, n)


def _add(sums: dict[bytes, int], counts: dict[bytes, int]) -> None:
    for label, count in counts.items():
        sums[label] = sums.get(label, 0) + count


def _pages(page: bytes) -> int:
    pages: int = _PAGE.unpack_from(page)[2]
    return pages


def _distinct(sketches: Iterable[Sketch]) -> list[Sketch]:
    return list({id(sketch): sketch for sketch in sketches}.values())


def _encode_open(sketch: Sketch | None) -> bytes:
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
    numbers = counts.astype("<i8").tobytes() + labels.lengths.astype("<u2").tobytes()
    return numbers + labels.text.tobytes()


def _is_whole(kind: str, content: bytes) -> bool:
    if len(content) < _HEAD.size:
        return False
    n: int = _HEAD.unpack_from(content)[0]
    if kind == "md":
        return len(content) == _HEAD.size + 16 * n
    lengths_at = _HEAD.size + (24 if kind == "mo" else 8) * n
    if len(content) < lengths_at + 2 * n:
        return False
    lengths = np.frombuffer(content, dtype="<u2", count=n, offset=lengths_at)
    return bool(len(content) == lengths_at + 2 * n + lengths.sum())


def _decode_counts(content: bytes, at: int, n: int) -> tuple[Texts, Longs]:
    counts = np.frombuffer(content, dtype="<i8", count=n, offset=at)
    lengths = np.frombuffer(content, dtype="<u2", count=n, offset=at + 8 * n)
    return Texts.from_lengths(content[at + 10 * n :], lengths), counts.astype(np.int64)
