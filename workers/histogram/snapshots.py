"""Snapshots: a tick's release as the JSON that consumers read. Equal releases give equal bytes.

Items come largest first, ties by label. A snapshot too long for one message is cut into pages.

Bound: JSON makes at most six characters of a byte of a label or stream key, which have at most
1,024. So a page without its items has fewer than 9,000 bytes and an item fewer than 6,200: there is
always room for more than a hundred, and pages are cut by the bytes of their items. The edges and
quantiles of numbers add fewer than 30,000 bytes, and such a snapshot is far from needing two pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from workers.histogram.answers import LISTS, parts
from workers.histogram.labels import LabelCache, largest_first, ranked
from workers.histogram.quantiles import Numeric
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Answers, Guarantee, Items, Release
from workers.mechanisms.sizes import VALUE_BYTES

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
    release, frame = tick.release, _Frame(tick)
    edges: dict[str, Any] = {} if tick.numeric is None else {"edges": tick.numeric.edges}
    if isinstance(release, Answers):
        for index, key in enumerate(keys):
            yield from ((key, page) for page in _pages(frame, key, {**release.of_key[index], **edges}, max_bytes))
        return
    items: list[list[tuple[str, int]]] | None = None
    if isinstance(release, Release) and (tick.numeric is None or not tick.numeric.quantiles):
        behind = b"," + _members(edges) if edges else b""
        written = labels.items(ledger, release.rows, release.counts, len(keys))
        if written is not None:
            for index, (key, whole) in enumerate(zip(keys, written, strict=True)):
                value = frame.of_items(key, whole, behind)
                if len(value) <= max_bytes:
                    yield key, value
                else:
                    items = items or _items(release, ledger, len(keys), labels)
                    fields = {"items": items[index], **edges}
                    yield from ((key, page) for page in _pages(frame, key, fields, max_bytes))
            return
    for key, of_key in zip(keys, _items(release, ledger, len(keys), labels), strict=True):
        numbers = {} if tick.numeric is None else tick.numeric.fields(of_key, round(release.sd, 4))
        yield from ((key, page) for page in _pages(frame, key, {"items": of_key, **numbers}, max_bytes))


def _items(release: Release | Items, ledger: Ledger, keys: int, labels: LabelCache) -> list[list[tuple[str, int]]]:
    """Return the items of each stream key in their order, as labels and counts."""
    if isinstance(release, Release):
        labels.meet(ledger, release.rows)
        key_of, by_rank, rank = ledger.keys[release.rows], labels.by_rank, labels.rank(release.rows)
    else:
        texts = [text.decode() for text in release.labels]
        key_of, by_rank, rank = release.keys, *ranked(texts)
    places, counts, starts = largest_first(key_of, release.counts, rank, keys)
    rows = by_rank[places]
    names = labels.of(rows) if isinstance(release, Release) else [texts[i] for i in rows.tolist()]
    items = list(zip(names, counts.tolist(), strict=True))
    return [items[start:stop] for start, stop in pairwise(starts.tolist())]


class _Frame:
    """What the snapshots of one tick have in common, as JSON made once."""

    def __init__(self, tick: ReleasedTick) -> None:
        sd, promise = tick.release.sd, tick.guarantee
        threshold = None if isinstance(tick.release, Answers) else tick.release.threshold
        self._before_key = _members({"histogram": tick.histogram}) + b',"key":'
        self._behind_key = b"," + _members(
            {"epoch": tick.epoch, "tick": tick.tick, "start": tick.start_ms, "end": tick.end_ms}
        )
        self._behind_fields = b"," + _members(
            {
                "sd": None if sd is None else round(sd, 4),
                "threshold": None if threshold is None else float(threshold),
                **tick.windows,
                "guarantee": {
                    "unit": promise.unit,
                    "rho": promise.rho,
                    "epsilon": promise.epsilon,
                    "delta": promise.delta,
                },
                "mechanism": tick.mechanism,
                "id": tick.id,
            }
        )

    def of(self, key: str, fields: Mapping[str, object], page: int, pages: int) -> bytes:
        """Return the snapshot of a stream key, or a page of it."""
        return self._whole(key, _members(fields), page, pages)

    def of_items(self, key: str, items: bytes, behind: bytes) -> bytes:
        """Return the snapshot of a stream key whose items, and what follows them, are JSON."""
        return self._whole(key, b'"items":' + items + behind, 1, 1)

    def _whole(self, key: str, members: bytes, page: int, pages: int) -> bytes:
        return b'{%b%b%b%b%b%b,"page":%d,"pages":%d}' % (
            self._before_key,
            orjson.dumps(key),
            self._behind_key,
            b"," if members else b"",
            members,
            self._behind_fields,
            page,
            pages,
        )


def _members(fields: Mapping[str, object]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return orjson.dumps(fields)[1:-1]


def _pages(frame: _Frame, key: str, fields: Mapping[str, Any], max_bytes: int) -> Iterator[bytes]:
    """Yield the snapshot of a stream key, in pages where it is too long for one message."""
    whole = frame.of(key, fields, 1, 1)
    if len(whole) <= max_bytes:
        yield whole
        return
    empty = {name: [] if name in LISTS else field for name, field in fields.items()}
    cut = parts(fields, max_bytes - len(frame.of(key, empty, 1, 1)) - _DIGITS)
    for page, part in enumerate(cut, 1):
        yield frame.of(key, part, page, len(cut))
