"""Snapshots: a tick's release as the JSON that consumers read. Equal releases give equal bytes.

Items come largest first, ties by label. A snapshot too long for one message is cut into pages.

Bound: JSON makes at most six characters of a byte of a label or stream key, which have at most
1,024. So a page without its items has fewer than 9,000 bytes and an item fewer than 6,200: there is
always room for more than a hundred, and pages are cut by the bytes of their items. The edges and
quantiles of numbers add fewer than 30,000 bytes, and such a snapshot is far from needing two pages.

What a snapshot says of each window: how exact the change of a count over it is.

What: the standard deviation of an item's count at tick t less its count `ticks` before, as both
were published. It follows from the settings and t alone: no state, and it costs nothing.
Why: two snapshots share noise, which cancels: taken for independent, their errors give a bar that
is three times as long as it should be over one tick (`haar`), less over longer windows.

Where the epoch is younger than a window, the change is that since its start, where every count is
0 without noise: `ticks` is then `tick` itself.

The lists of a snapshot in pages: one of them is cut, everything else is the same on every page.

    items      of a histogram                go on from page to page
    labels     of a budget of labels         go on from page to page
    value      of one query, where a list    goes on from page to page
    answers    of several queries            go on from page to page; the last of a page may go on
                                             as the first of the next, with its query named again

`parts` cuts and `joined` puts together again: `joined(parts(fields)) == fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Answers, Guarantee, Items, Mechanism, Release
from workers.pipeline.labels import LabelCache, largest_first, ranked
from workers.pipeline.quantiles import Numeric
from workers.runtime.sizes import VALUE_BYTES, cuts

SD_DIGITS = 4  # as a snapshot says every other one


class Windows:
    """The windows of one histogram; one thread has it, a backtest with a mechanism of its own.

    Args:
        config: which names them.
        mechanism: built from it.

    Raises:
        TypeError: there are windows, but no counts that can be subtracted.
    """

    def __init__(self, config: HistogramConfig, mechanism: Mechanism) -> None:
        self._ticks = tuple((length, length // config.tick_ms) for length in config.windows)
        # A backtest's mechanism stands before another one: what it has counts, not what it is.
        subtracts = bool(self._ticks) and config.subtracts
        self._sd: Callable[[int, int], float] | None = getattr(mechanism, "difference_sd", None) if subtracts else None
        if self._ticks and self._sd is None:
            raise TypeError(f"mechanism = {mechanism.kind}: must have counts that can be subtracted")

    def at(self, t: int) -> dict[str, object]:
        """Return the snapshot's field at a tick of the epoch; nothing without windows."""
        if self._sd is None:
            return {}
        found = []
        for length, ticks in self._ticks:
            covered = min(ticks, t)
            sd = self._sd(t, t - covered)
            found.append({"ms": length, "ticks": covered, "sd": round(sd, SD_DIGITS)})
        return {"windows": found}


Fields = Mapping[str, Any]
LISTS = ("items", "labels", "value", "answers")


def parts(fields: Fields, room: int) -> list[dict[str, Any]]:
    """Return the fields of a stream key in parts whose lists take at most `room` bytes of JSON.

    `room` is at least twice the bytes of the longest label in JSON.
    """
    name = next((name for name in LISTS if isinstance(fields.get(name), list)), None)
    if name is None:
        return [dict(fields)]
    if name == "answers":
        atoms = list(_atoms(fields[name]))
        # An answer that goes on names its query again: room for the longest is kept free.
        room -= max((len(orjson.dumps(_empty(answer))) + 1 for answer in fields[name]), default=0)
    else:
        atoms = [(element, len(orjson.dumps(element)) + 1) for element in fields[name]]
    found = []
    for start, stop in cuts([size for _, size in atoms], room):
        elements = [element for element, _ in atoms[start:stop]]
        found.append({**fields, name: _merged(elements) if name == "answers" else elements})
    return found or [dict(fields)]


def joined(pages: Sequence[Fields]) -> dict[str, Any]:
    """Return the whole that came in pages, given all of them in their order."""
    whole = dict(pages[0])
    for name in LISTS:
        if isinstance(whole.get(name), list):
            elements = [element for page in pages for element in page[name]]
            whole[name] = _merged(elements) if name == "answers" else elements
    return whole


def _empty(answer: Fields) -> dict[str, Any]:
    return {**answer, "value": []} if isinstance(answer["value"], list) else dict(answer)


def _atoms(answers: Sequence[Fields]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the answers, one for each element of a list, with the bytes that each adds."""
    for answer in answers:
        head = len(orjson.dumps(_empty(answer))) + 1
        if not isinstance(answer["value"], list) or not answer["value"]:
            yield dict(answer), head
            continue
        for i, element in enumerate(answer["value"]):
            yield {**answer, "value": [element]}, len(orjson.dumps(element)) + 1 + (0 if i else head)


def _merged(answers: Sequence[Fields]) -> list[dict[str, Any]]:
    """Return the answers, each joined with those that continue it."""
    found: list[dict[str, Any]] = []
    for answer in answers:
        if found and found[-1]["query"] == answer["query"]:
            found[-1]["value"] += answer["value"]
        else:
            value = answer["value"]
            found.append({**answer, "value": list(value) if isinstance(value, list) else value})
    return found


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
