"""Snapshots: a tick's release as the JSON that consumers read. Equal releases give equal bytes.

Items come largest first, ties by label. A snapshot too long for one message is cut into pages.

Bound: JSON makes at most six characters of a byte of a label or stream key, which have at most
1,024. So a page without its items has fewer than 9,000 bytes and an item fewer than 6,200: there is
always room for more than a hundred, and pages are cut by the bytes of their items. The edges and
quantiles of numbers add fewer than 30,000 bytes, and such a snapshot is far from needing two pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from workers.histogram.answers import LISTS, parts
from workers.histogram.quantiles import Numeric
from workers.mechanisms.ledger import Ledger, grown
from workers.mechanisms.mechanism import Answers, Guarantee, Items, Release
from workers.mechanisms.sizes import VALUE_BYTES
from workers.mechanisms.texts import fixed

# Room for two page numbers of ten digits: an empty page is measured with one digit each.
_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedTick:
    """One released tick of a histogram. Safe for anyone once its rows are turned into labels."""

    histogram: str
    epoch: int
    tick: int
    start_ms: int
    end_ms: int
    guarantee: Guarantee
    mechanism: str
    id: str
    release: Release | Items | Answers
    numeric: Numeric | None = None
    windows: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One message of a histogram topic."""

    topic: str
    key: str
    value: bytes
    end_ms: int


class LabelCache:
    """The labels of shown rows as text, and their ranks: an item once shown stays shown.

    A rank is a label's place among those known at the last full sort; a newer label has the next
    number after all ranks. A tie that holds newer labels is sorted by name, and once as many names
    were sorted this way as are known, every label gets a new rank. So nothing is sorted while no
    labels come, and while many come it costs at most twice as much as without ranks.
    """

    def __init__(self) -> None:
        self._labels: NDArray[np.object_] = np.full(1024, None)  # by row
        self._rank: NDArray[np.int64] = np.full(1024, -1)  # by row; -1: not met
        # Each label in JSON, made once: where it lies in the text, by row.
        self._text: NDArray[np.uint8] = np.zeros(1 << 14, dtype=np.uint8)
        self._begins: NDArray[np.int64] = np.zeros(1024, dtype=np.int64)
        self._lengths: NDArray[np.int16] = np.zeros(1024, dtype=np.int16)  # at most 6 * 1,024 + 2
        self._end = 0
        self.ranks = 0
        self._names, self._sorted = 0, 0

    def meet(self, columns: Ledger, rows: NDArray[np.int64]) -> None:
        """Read the labels of those `rows` that are new."""
        size = int(rows.max(initial=-1)) + 1
        if size > len(self._rank):
            more = max(size, 2 * len(self._rank)) - len(self._rank)
            self._labels = np.concatenate((self._labels, np.full(more, None)))
            self._rank = np.concatenate((self._rank, np.full(more, -1)))
            self._begins = grown(self._begins, len(self._rank))
            self._lengths = grown(self._lengths, len(self._rank))
        new = rows[self._rank[rows] < 0]
        if len(new):
            self._labels[new] = labels = [columns.label(row).decode() for row in new.tolist()]
            self._rank[new] = self.ranks
            self._names += len(new)
            self._write(new, [orjson.dumps(label) for label in labels])

    def _write(self, rows: NDArray[np.int64], texts: list[bytes]) -> None:
        """Keep labels in JSON."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        begin, self._end = self._end, self._end + int(lengths.sum())
        self._text = grown(self._text, self._end)
        self._text[begin : self._end] = np.frombuffer(b"".join(texts), dtype=np.uint8)
        self._begins[rows] = begin + np.cumsum(lengths) - lengths
        self._lengths[rows] = lengths

    def items(self, rows: NDArray[np.int64], counts: NDArray[np.int64], starts: NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the items of each stream key as JSON.

        Args:
            rows: int64 (n,), that were met.
            counts: int64 (n,).
            starts: int64 (k + 1,), where the items of each stream key begin.
        """
        from workers.kernels.text_columns import ITEM_BYTES, items_as_json

        ends = np.empty(len(starts) - 1, dtype=np.int64)
        size = int(self._lengths[rows].sum(dtype=np.int64))
        out = np.empty(size + ITEM_BYTES * len(rows) + 2 * len(ends), dtype=np.uint8)
        labels = fixed(self._text), fixed(self._begins), fixed(self._lengths)
        items_as_json(*labels, fixed(rows), fixed(counts), fixed(starts), ends, out)
        start = 0
        for end in ends.tolist():
            yield out[start:end].tobytes()
            start = end

    def of(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the labels of rows that were met."""
        labels: list[str] = self._labels[rows].tolist()
        return labels

    def rank(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ranks of rows that were met; `ranks` for a label without one."""
        return self._rank[rows]

    def sorted_by_name(self, names: int) -> None:
        """Count names sorted for want of ranks, and rank all labels when it pays."""
        self._sorted += names
        if self._sorted > self._names:
            rows = np.flatnonzero(self._rank >= 0)
            order = sorted(range(len(rows)), key=self._labels[rows].tolist().__getitem__)
            self._rank[rows[order]] = np.arange(len(rows))
            self.ranks, self._sorted = len(rows), 0


def snapshots(
    tick: ReleasedTick, ledger: Ledger, keys: list[str], labels: LabelCache, max_bytes: int = VALUE_BYTES
) -> Iterator[tuple[str, bytes]]:
    """Yield (stream key, JSON) for every stream key, even with nothing to show; in pages if needed.

    Args:
        tick: to write.
        ledger: whose rows a `Release` names.
        keys: the stream keys, by index.
        labels: cache of this epoch.
        max_bytes: most bytes of a message.
    """
    release = tick.release
    if isinstance(release, Answers):
        edges = {} if tick.numeric is None else {"edges": tick.numeric.edges}
        for index, key in enumerate(keys):
            yield from ((key, page) for page in _pages(tick, key, {**release.of_key[index], **edges}, max_bytes))
        return
    if isinstance(release, Release):
        key_of = ledger.keys[release.rows]
        labels.meet(ledger, release.rows)
        rank, ranks = labels.rank(release.rows), labels.ranks
        order = _largest_first(key_of, release.counts, rank, ranks)
        rows, unranked, names_of = release.rows[order], rank[order] == ranks, labels.of
    else:
        key_of, texts = release.keys, release.labels
        rows = order = _largest_first(key_of, release.counts)
        unranked = np.ones(len(order), dtype=np.bool_)

        def names_of(rows: NDArray[np.int64]) -> list[str]:
            return [texts[i].decode() for i in rows.tolist()]

    noisy, key_of = release.counts[order], key_of[order]
    by_name = _sort_ties(rows, names_of, noisy, key_of, unranked)
    starts = np.searchsorted(key_of, np.arange(len(keys) + 1))
    bounds = starts.tolist()
    if isinstance(release, Release):
        labels.sorted_by_name(by_name)
    if isinstance(release, Release) and tick.numeric is None:
        for index, whole in enumerate(labels.items(rows, noisy, starts)):
            value = _render(tick, keys[index], {"items": orjson.Fragment(whole)}, 1, 1)
            if len(value) <= max_bytes:
                yield keys[index], value
            else:
                own = slice(bounds[index], bounds[index + 1])
                items = list(zip(names_of(rows[own]), noisy[own].tolist(), strict=True))
                yield from ((keys[index], page) for page in _pages(tick, keys[index], {"items": items}, max_bytes))
        return
    items = list(zip(names_of(rows), noisy.tolist(), strict=True))
    for index, key in enumerate(keys):
        of_key = items[bounds[index] : bounds[index + 1]]
        numbers = {} if tick.numeric is None else tick.numeric.fields(of_key, round(release.sd, 4))
        yield from ((key, page) for page in _pages(tick, key, {"items": of_key, **numbers}, max_bytes))


def _largest_first(
    key_of: NDArray[np.int32], noisy: NDArray[np.int64], rank: NDArray[np.int64] | None = None, ranks: int = 0
) -> NDArray[np.int64]:
    """Return the order of items by stream key, then by count, then by rank (0..ranks) if given."""
    if not len(noisy):
        return np.empty(0, dtype=np.int64)
    largest = int(noisy.max())
    counts = largest - int(noisy.min()) + 1
    if (int(key_of.max()) + 1) * counts * (ranks + 1) >= 1 << 62:
        return np.lexsort((-noisy, key_of) if rank is None else (rank, -noisy, key_of))
    # One number for all three takes a third of the time.
    place = key_of.astype(np.int64) * counts + (largest - noisy)
    return np.argsort(place if rank is None else place * (ranks + 1) + rank)


def _sort_ties(
    rows: NDArray[np.int64],
    names_of: Callable[[NDArray[np.int64]], list[str]],
    noisy: NDArray[np.int64],
    key_of: NDArray[np.int32],
    unranked: NDArray[np.bool_],
) -> int:
    """Sort by label, in place, each tie of a key that has an unranked label; return how many."""
    if len(rows) < 2 or not unranked.any():
        return 0
    edges = np.flatnonzero((noisy[1:] != noisy[:-1]) | (key_of[1:] != key_of[:-1])) + 1
    starts = np.concatenate(([0], edges))
    lengths = np.diff(np.concatenate((starts, [len(rows)])))
    wanted = (lengths > 1) & np.logical_or.reduceat(unranked, starts)
    tied = np.flatnonzero(np.repeat(wanted, lengths))
    names, order = names_of(rows[tied]), list(range(len(tied)))
    start = 0
    for length in lengths[wanted].tolist():
        if length > 2:
            order[start : start + length] = sorted(order[start : start + length], key=names.__getitem__)
        elif names[start] > names[start + 1]:
            order[start], order[start + 1] = start + 1, start
        start += length
    rows[tied] = rows[tied][order]
    return len(tied)


def _pages(tick: ReleasedTick, key: str, fields: Mapping[str, Any], max_bytes: int) -> Iterator[bytes]:
    """Yield the snapshot of a stream key, in pages where it is too long for one message."""
    whole = _render(tick, key, fields, 1, 1)
    if len(whole) <= max_bytes:
        yield whole
        return
    empty = {name: [] if name in LISTS else field for name, field in fields.items()}
    cut = parts(fields, max_bytes - len(_render(tick, key, empty, 1, 1)) - _DIGITS)
    for page, part in enumerate(cut, 1):
        yield _render(tick, key, part, page, len(cut))


def _render(tick: ReleasedTick, key: str, fields: Mapping[str, object], page: int, pages: int) -> bytes:
    sd, promise = tick.release.sd, tick.guarantee
    threshold = None if isinstance(tick.release, Answers) else tick.release.threshold
    return orjson.dumps(
        {
            "histogram": tick.histogram,
            "key": key,
            "epoch": tick.epoch,
            "tick": tick.tick,
            "start": tick.start_ms,
            "end": tick.end_ms,
            **fields,
            "sd": None if sd is None else round(sd, 4),
            "threshold": None if threshold is None else float(threshold),
            **tick.windows,
            "guarantee": {"unit": promise.unit, "rho": promise.rho, "epsilon": promise.epsilon, "delta": promise.delta},
            "mechanism": tick.mechanism,
            "id": tick.id,
            "page": page,
            "pages": pages,
        }
    )
