"""Snapshots in memory: a tick's JSON, byte for byte as in the topic if it has one page."""

from collections.abc import Collection
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson

from workers.mechanisms.accounting import Guarantee, NotNegative
from workers.pipeline.snapshots import LISTS, join_pages
from workers.runtime.errors import QuietcountError

# Most incomplete ticks; the oldest is dropped for a new one.
UNFINISHED_MAX = 1_000

# Integers that a browser reads exactly.
Number = Annotated[int, msgspec.Meta(ge=-(2**53) + 1, le=2**53 - 1)]
Place = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class InvalidSnapshot(QuietcountError):
    """A record in a histogram topic that no worker wrote."""


class Head(msgspec.Struct, frozen=True):
    """Identity and metadata of a snapshot; times in ms since 1970."""

    histogram: str
    key: str
    epoch: Number
    tick: Number
    start: Number
    end: Number
    mechanism: str
    id: str
    guarantee: Guarantee


class Frame(Head, frozen=True):
    page: Place
    pages: Place
    sd: NotNegative | None
    threshold: float | None
    items: list[tuple[str, Number]] | None = None


class PlainGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit: str
    rho: NotNegative
    epsilon: NotNegative
    delta: NotNegative


class PlainFrame(Frame, frozen=True, forbid_unknown_fields=True):
    """A snapshot with no other fields, the usual case: every byte of it is checked."""

    guarantee: PlainGuarantee  # type: ignore[assignment]  # replaced once decoded


_FRAMES = msgspec.json.Decoder(Frame)
_WHOLE = msgspec.json.Decoder(PlainFrame)


class Stream(NamedTuple):
    histogram: str
    key: str


class SeenSnapshot(Head, frozen=True):
    """A complete snapshot; `number` is the order of arrival from 1, 0 until stored."""

    json: bytes
    number: int = 0

    @property
    def stream(self) -> Stream:
        return Stream(self.histogram, self.key)


class Pages:
    """At most `most` snapshots that still lack pages; pages may arrive in any order."""

    def __init__(self, most: int = UNFINISHED_MAX) -> None:
        self._most = most
        self._waiting: dict[tuple[str, str, str, int], dict[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def receive(self, histogram: str, value: bytes | None) -> SeenSnapshot | None:
        """Add a record; None while pages are missing. InvalidSnapshot does not quote the record."""
        page = value or b""
        frame = _decoded(page)
        numbered = 1 <= frame.page <= frame.pages
        if frame.histogram != histogram or not numbered or frame.start >= frame.end:
            raise InvalidSnapshot("a record that is no snapshot of this histogram")
        if frame.pages == 1:
            one_line = b"\n" not in page and b"\r" not in page
            return _snapshot(frame, page if one_line else orjson.dumps(orjson.loads(page)))
        fields = orjson.loads(page)
        if not any(isinstance(fields.get(name), list) for name in LISTS):
            raise InvalidSnapshot("a record that is no snapshot: a page that lists nothing")
        place = (frame.histogram, frame.key, frame.id, frame.tick)
        if place not in self._waiting and len(self._waiting) >= self._most:
            self._waiting.pop(next(iter(self._waiting)))
        pages = self._waiting.setdefault(place, {})
        pages[frame.page] = page
        if len(pages) < frame.pages:
            return None
        del self._waiting[place]
        return _snapshot(frame, _joined([pages[number] for number in sorted(pages)]))


def select_items(
    snapshot: SeenSnapshot, *, items: Collection[str] | None = None, top: int | None = None
) -> bytes:
    """Return JSON with the named or largest items, and `total_items`; all buckets unless named."""
    if items is None and top is None:
        return snapshot.json
    document = orjson.loads(snapshot.json)
    all_items: list[Any] | None = document.get("items")
    if all_items is None:
        return snapshot.json
    if items is not None:
        document["items"] = [item for item in all_items if item[0] in items][:top]
    elif "edges" not in document:
        document["items"] = all_items[:top]
    document["total_items"] = len(all_items)
    return orjson.dumps(document)


def _decoded(value: bytes) -> Frame:
    """Return a record's frame after checking all its JSON, so that cutting it cannot fail."""
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        plain = _WHOLE.decode(value)
        promise = Guarantee(**msgspec.structs.asdict(plain.guarantee))
        return msgspec.structs.replace(plain, guarantee=promise)
    try:
        frame = _FRAMES.decode(value)
        orjson.dumps(orjson.loads(value))  # parses the fields that the decoder skipped
    except msgspec.DecodeError as error:  # its message names fields and types only
        raise InvalidSnapshot(f"a record that is no snapshot: {error}") from None
    # Not UTF-8, a lone surrogate, nested too deeply.
    except (ValueError, TypeError, RecursionError):
        raise InvalidSnapshot("a record that is no snapshot: not JSON") from None
    return frame


def _snapshot(frame: Frame, line: bytes) -> SeenSnapshot:
    head = {name: getattr(frame, name) for name in Head.__struct_fields__}
    return SeenSnapshot(json=line, **head)


def _joined(pages: list[bytes]) -> bytes:
    """Join all entries in one page; raise `InvalidSnapshot` if the pages do not match."""
    try:
        whole = join_pages([orjson.loads(page) for page in pages])
    except (KeyError, TypeError):
        raise InvalidSnapshot(
            "a record that is no snapshot: a page without what the others list"
        ) from None
    return orjson.dumps({**whole, "page": 1, "pages": 1})
