"""A snapshot as the dashboard keeps it: one JSON object of a tick, its pages put together, and what is needed to place it.

The JSON that viewers get is the topic's own, byte for byte, where a snapshot has one page.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import orjson

from workers.errors import QuietcountError
from workers.histogram.answers import LISTS, joined

#: Pages of a tick that has not come whole are forgotten when this many other ticks have begun.
UNFINISHED = 1_000

#: Whole numbers that a browser reads as they are.
Number = Annotated[int, msgspec.Meta(ge=-(2**53) + 1, le=2**53 - 1)]
Place = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class NotASnapshot(QuietcountError):
    """A record of a histogram topic that is none of the worker's."""


class Guarantee(msgspec.Struct, frozen=True):
    """What a snapshot says it promises."""

    unit: str
    rho: NotNegative
    epsilon: NotNegative
    delta: NotNegative


class Frame(msgspec.Struct, frozen=True):
    """The fields that every snapshot has, whatever its mechanism; times in ms since 1970."""

    histogram: str
    key: str
    epoch: Number
    tick: Number
    start: Number
    end: Number
    mechanism: str
    id: str
    page: Place
    pages: Place
    guarantee: Guarantee
    sd: NotNegative | None
    threshold: float | None
    items: list[tuple[str, Number]] | None = None


class Whole(Frame, frozen=True, forbid_unknown_fields=True):
    """A snapshot that has these fields only, as most have."""


_FRAMES = msgspec.json.Decoder(Frame)
_WHOLE = msgspec.json.Decoder(Whole)


@dataclass(frozen=True, slots=True)
class Stream:
    """Whose snapshots follow one another: a histogram and a stream key."""

    histogram: str
    key: str


@dataclass(slots=True, kw_only=True)
class SeenSnapshot:
    """One whole snapshot.

    Attributes:
        stream: histogram and stream key.
        id, epoch, tick, start, end, mechanism, guarantee: as in the JSON.
        json: the object, in one line.
        number: its place among all that arrived here, from 1; 0 until it is kept.
    """

    stream: Stream
    id: str
    epoch: int
    tick: int
    start: int
    end: int
    mechanism: str
    guarantee: Guarantee
    json: bytes
    number: int = 0


class Pages:
    """Puts the pages of snapshots together."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str, str, int], dict[int, bytes]] = {}

    def receive(self, histogram: str, value: bytes | None) -> SeenSnapshot | None:
        """Take a record of a histogram's topic.

        Returns:
            The snapshot; None while pages of it are missing.

        Raises:
            NotASnapshot: the record is something else. The message does not quote it.
        """
        frame = _decoded(value or b"")
        if frame.histogram != histogram or not 1 <= frame.page <= frame.pages or frame.start >= frame.end:
            raise NotASnapshot("a record that is no snapshot of this histogram")
        if frame.pages == 1:
            line = value or b""
            return _snapshot(frame, line if b"\n" not in line and b"\r" not in line else _one_line(line))
        if frame.items is None and not any(isinstance(orjson.loads(value or b"").get(name), list) for name in LISTS):
            raise NotASnapshot("a record that is no snapshot: a page that lists nothing")
        place = (frame.histogram, frame.key, frame.id, frame.tick)
        if place not in self._waiting and len(self._waiting) >= UNFINISHED:
            self._waiting.pop(next(iter(self._waiting)))
        pages = self._waiting.setdefault(place, {})
        pages[frame.page] = value or b""
        if len(pages) < frame.pages:
            return None
        del self._waiting[place]
        return _snapshot(frame, _joined([pages[number] for number in sorted(pages)]))


def only(snapshot: SeenSnapshot, *, items: Collection[str] | None = None, top: int | None = None) -> bytes:
    """Return a snapshot's JSON with fewer items: those named, or the largest; `total_items` says how many there are.

    One that has no items stays as it is.
    """
    if items is None and top is None:
        return snapshot.json
    document = orjson.loads(snapshot.json)
    all_items: list[Any] | None = document.get("items")
    if all_items is None:
        return snapshot.json
    kept = all_items if items is None else [item for item in all_items if item[0] in items]
    document["items"] = kept if top is None else kept[:top]
    document["total_items"] = len(all_items)
    return orjson.dumps(document)


def _decoded(value: bytes) -> Frame:
    """Return the frame of a record that is JSON from end to end, so that cutting it later cannot fail."""
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        return _WHOLE.decode(value)
    try:
        frame = _FRAMES.decode(value)
        orjson.dumps(orjson.loads(value))  # fields that are not looked at here were skipped, not read
    except msgspec.DecodeError as error:  # a ValidationError is one; its text names fields and types only
        raise NotASnapshot(f"a record that is no snapshot: {error}") from None
    except (ValueError, TypeError, RecursionError):  # not UTF-8, half a surrogate, nested too deeply
        raise NotASnapshot("a record that is no snapshot: not JSON") from None
    return frame


def _snapshot(frame: Frame, line: bytes) -> SeenSnapshot:
    return SeenSnapshot(
        stream=Stream(frame.histogram, frame.key),
        id=frame.id,
        epoch=frame.epoch,
        tick=frame.tick,
        start=frame.start,
        end=frame.end,
        mechanism=frame.mechanism,
        guarantee=frame.guarantee,
        json=line,
    )


def _one_line(value: bytes) -> bytes:
    return orjson.dumps(orjson.loads(value))


def _joined(pages: list[bytes]) -> bytes:
    """Return one page with the items of all, or with all of what an answer lists.

    Raises:
        NotASnapshot: the pages do not belong together.
    """
    documents = [orjson.loads(page) for page in pages]
    try:
        if "items" in documents[0]:
            whole = {**documents[0], "items": [item for document in documents for item in document["items"]]}
        else:
            whole = joined(documents)
    except (KeyError, TypeError):
        raise NotASnapshot("a record that is no snapshot: a page without what the others list") from None
    return orjson.dumps({**whole, "page": 1, "pages": 1})
