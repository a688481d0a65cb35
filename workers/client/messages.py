"""Snapshots in memory: a tick's JSON, byte for byte as in the topic if it has one page.

A snapshot is what a histogram publishes for one stream key, such as a shop, at the end of a tick.
Its `id` names the series in which it counts on from one zero: an epoch. A record of the topic is a
page of a part of it: a snapshot that is longer than a message is cut into pages, and where several
owner partitions share a stream key, each publishes a part, with pages of its own.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import orjson

from workers.mechanisms.accounting import Guarantee, NotNegative
from workers.pipeline.snapshots import LISTED_BESIDE, LISTS, join_pages, join_parts
from workers.runtime.errors import QuietcountError

# Incomplete ticks of `Pages` hold at most these bytes; the oldest are dropped for new ones.
WAITING_BYTES_MAX = 64 << 20
# The same if it `keeps` ticks that later ones have overtaken.
KEPT_BYTES_MAX = 1 << 30
# What a waiting record takes beside its bytes.
RECORD_BYTES = 500

# Integers that a browser reads exactly.
Number = Annotated[int, msgspec.Meta(ge=-(2**53) + 1, le=2**53 - 1)]
Place = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
#: Sum, mean, and the ends of its interval.
SumRow = tuple[float, float | None, float, float]


class InvalidSnapshot(QuietcountError):
    """A record in a histogram topic that no worker wrote."""


class Head(msgspec.Struct, frozen=True):
    """Identity and metadata of a snapshot; times in ms since 1970.

    `epoch` numbers the epochs of a histogram, `tick` the ticks in one from 1.
    """

    histogram: str
    key: str
    epoch: Number
    tick: Number
    start: Number
    end: Number
    mechanism: str
    id: str
    guarantee: Guarantee


class SumRange(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """The declared range and step of the values that are added up.

    `sd` is the standard deviation of the noise of every sum.
    """

    from_: float
    to: float
    step: float
    sd: NotNegative


class CountedWindow(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """The window that the counts of a snapshot without epochs cover; times in ms.

    `counts` is "users" where a count is how many different users had an event with the item; None
    where it is how often the item occurred.
    """

    ms: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    from_: Number
    counts: Literal["users"] | None = None


class Frame(Head, frozen=True):
    """What readers take of one record, which is one page of one part of a snapshot.

    Pages and parts are numbered from 1. `items` are labels with their counts, whose standard
    deviation is `sd`; a new item is shown above `threshold`. Each of the three is None where the
    mechanism has none: answers to queries are no items. `sums` has a row for each item if values
    are added up, and `sum` what all these rows share. `window` is set without epochs. `previous_id`
    is the `id` of the epoch before, if it was published. Other fields of the record are left out.
    """

    page: Place
    pages: Place
    sd: NotNegative | None
    threshold: float | None
    part: Place = 1
    parts: Place = 1
    items: list[tuple[str, Number]] | None = None
    sums: list[SumRow] | None = None
    sum: SumRange | None = None
    window: CountedWindow | None = None
    previous_id: str | None = None


class PlainGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The guarantee of most snapshots, for `PlainFrame`: further fields are refused."""

    unit: str
    rho: NotNegative
    epsilon: NotNegative
    delta: NotNegative


class PlainFrame(Frame, frozen=True, forbid_unknown_fields=True):
    """The frame of most records, which have no field that the decoder of `Frame` would skip.

    So one pass checks every byte of them; a record with other fields fails to decode as this.
    """

    guarantee: PlainGuarantee  # type: ignore[assignment]  # replaced once decoded


_FRAMES = msgspec.json.Decoder(Frame)
_PLAIN_FRAMES = msgspec.json.Decoder(PlainFrame)


class Stream(NamedTuple):
    """One stream key of a histogram, such as a shop; its snapshots follow one another."""

    histogram: str
    key: str


class _TickId(NamedTuple):
    """A tick of one series; `id` is that of its snapshots."""

    stream: Stream
    id: str
    tick: int


class SeenSnapshot(Head, frozen=True):
    """A complete snapshot, and its JSON on one line.

    `number` is the order of arrival from 1, which the dashboard gives; 0 until then.
    """

    json: bytes
    number: int = 0

    @property
    def stream(self) -> Stream:
        return Stream(self.histogram, self.key)


@dataclass(slots=True)
class _Tick:
    """Records of an incomplete tick that ends at `end` ms: `parts` has them by part and page."""

    position: int  # of the record that came first
    end: int
    part_count: int
    parts: dict[int, dict[int, bytes]] = field(default_factory=dict)
    whole_parts: set[int] = field(default_factory=set)  # those with all their pages
    size: int = 0  # bytes


class LostTick(NamedTuple):
    """A tick that was forgotten while some of its records were missing.

    `id` is that of its epoch's snapshots, `end` is in ms since 1970, `parts` is how many parts the
    tick has, each published by another owner partition.
    """

    stream: Stream
    id: str
    tick: int
    end: int
    parts: int


class Pages:
    """Joins records to snapshots: holds those of ticks that still lack pages or parts.

    Within a partition, the ticks of a stream follow in order. So once a later tick is complete, an
    earlier one that is not never will be, and is forgotten.

    With `keeps`, records may come from several partitions of a topic, and one partition may be read
    far ahead of another. So the earlier tick is only outdated, and kept until `forget_outdated`;
    and `lost` lists what was forgotten. Without `keeps`, `lost` stays empty.
    """

    last: Frame  # of the last record received

    def __init__(self, *, keeps: bool = False) -> None:
        self._keeps = keeps
        # All incomplete ticks, in the order in which their first records came.
        self._waiting: dict[_TickId, _Tick] = {}
        # The same by stream, until a later tick of the stream is complete.
        self._waiting_of: dict[Stream, dict[_TickId, _Tick]] = {}
        # Those that end before a complete tick of their stream.
        self._outdated: dict[_TickId, _Tick] = {}
        # The end of the newest complete tick of each stream, if `keeps`.
        self._newest: dict[Stream, int] = {}
        self.lost: list[LostTick] = []
        self.size = 0  # bytes of all incomplete ticks

    @property
    def first_position(self) -> int | None:
        """Return the position of the oldest record that waits for others; None if none waits."""
        return next((tick.position for tick in self._waiting.values()), None)

    def receive(
        self, histogram: str, value: bytes | None, position: int = 0
    ) -> SeenSnapshot | None:
        """Add one record, which is one page of one part; return the snapshot that it completes.

        Returns None while others are missing. `position` orders records for `forget_before`: an
        offset or a running number. The text of InvalidSnapshot does not quote the record.
        """
        page = value or b""
        frame = decode(histogram, page)
        self.last = frame
        stream = Stream(frame.histogram, frame.key)
        if frame.pages == frame.parts == 1:
            self._note_complete(stream, frame.end)
            # The dashboard needs it on one line. A worker's is, and stays as it is, byte for byte.
            if b"\n" in page or b"\r" in page:
                page = orjson.dumps(orjson.loads(page))
            return _snapshot(frame, page)
        fields = orjson.loads(page)
        # Every page of every part has a piece of a list, beside all other fields.
        if not any(isinstance(fields.get(name), list) for name in LISTS):
            raise InvalidSnapshot("a record that is no snapshot: a page without items")
        tick_id = _TickId(stream, frame.id, frame.tick)
        tick = self._waiting.setdefault(
            tick_id, _Tick(position, frame.end, frame.parts)
        )
        self._waiting_of.setdefault(stream, {})[tick_id] = tick
        self._add_page(tick, frame, page)
        if len(tick.whole_parts) < frame.parts:
            # A later tick of the stream, from a partition that was read earlier, is complete.
            if tick.end < self._newest.get(stream, 0):
                self._outdated[tick_id] = tick
            self._limit()
            return None
        self._remove(tick_id)
        self._note_complete(stream, tick.end)
        return _snapshot(frame, _joined(tick))

    def _add_page(self, tick: _Tick, frame: Frame, page: bytes) -> None:
        """Add a record to its tick; a page that comes again replaces its equal.

        Sizes count its bytes, and what holding it takes beside them.
        """
        pages = tick.parts.setdefault(frame.part, {})
        if frame.page not in pages:
            tick.size += len(page) + RECORD_BYTES
            self.size += len(page) + RECORD_BYTES
        pages[frame.page] = page
        if len(pages) == frame.pages:
            tick.whole_parts.add(frame.part)

    def forget_before(self, position: int) -> None:
        """Forget the ticks of which the first record came before a position."""
        while (first := self.first_position) is not None and first < position:
            self._forget(next(iter(self._waiting)))

    def forget_outdated(self, before_ms: float) -> None:
        """Forget ticks that ended before a time, and before a complete tick of their stream."""
        for tick_id, tick in list(self._outdated.items()):
            if tick.end < before_ms:
                self._forget(tick_id)

    def _note_complete(self, stream: Stream, end: int) -> None:
        """Give up the earlier ticks of a stream once one that ends at `end` ms is complete.

        They become outdated with `keeps` (see the class), else they are forgotten. Those that wait
        are in the order of their ends: within a partition, ticks follow in order.
        """
        if self._keeps:
            self._newest[stream] = max(end, self._newest.get(stream, 0))
        waiting = self._waiting_of.get(stream, {})
        # With `keeps`, not those that end at the same time: another series of the stream may have
        # one, and its records may still come.
        last_ms = end - 1 if self._keeps else end
        while waiting and waiting[first := next(iter(waiting))].end <= last_ms:
            if self._keeps:
                self._outdated[first] = waiting.pop(first)
            else:
                self._forget(first)

    def _limit(self) -> None:
        """Forget the oldest ticks beyond the limit of bytes: first those that are outdated.

        One tick may be larger than the limit: the newest always stays.
        """
        # Most of these are lost anyway. The others may still become whole, and get more room.
        while self.size > WAITING_BYTES_MAX and self._outdated:
            self._forget(next(iter(self._outdated)))
        bytes_max = KEPT_BYTES_MAX if self._keeps else WAITING_BYTES_MAX
        while self.size > bytes_max and len(self._waiting) > 1:
            self._forget(next(iter(self._waiting)))

    def _forget(self, tick_id: _TickId) -> None:
        """Drop the records of a tick that will not be completed; with `keeps` list it as lost.

        `keeps` is explained in the class.
        """
        tick = self._remove(tick_id)
        if self._keeps:
            self.lost.append(LostTick(*tick_id, tick.end, tick.part_count))

    def _remove(self, tick_id: _TickId) -> _Tick:
        """Take a tick, whole or not, out of the tables of incomplete ones, and return it."""
        tick = self._waiting.pop(tick_id)
        self._outdated.pop(tick_id, None)
        self.size -= tick.size
        waiting = self._waiting_of.get(tick_id.stream, {})
        waiting.pop(tick_id, None)
        if not waiting:
            self._waiting_of.pop(tick_id.stream, None)
        return tick


def decode(histogram: str, value: bytes) -> Frame:
    """Return the frame of a record of a histogram's topic.

    Raise InvalidSnapshot for a record that no worker wrote: all of its JSON is checked.
    """
    frame = _decoded(value)
    sums = frame.sums
    items = frame.items or ()
    if (
        frame.histogram == histogram
        and frame.page <= frame.pages
        and frame.part <= frame.parts
        and (sums is None or (frame.sum is not None and len(sums) == len(items)))
        and frame.start < frame.end
    ):
        return frame
    raise InvalidSnapshot("a record that is no snapshot of this histogram")


def select_items(
    snapshot: SeenSnapshot,
    *,
    items: Collection[str] | None = None,
    top: int | None = None,
) -> bytes:
    """Return a snapshot's JSON with only the first `top` of the named `items` (None: of all).

    Snapshots list the largest first. A histogram of numbers, which has `edges`, keeps all its
    buckets unless `items` are named. The field `total_items` is added: how many there were.
    """
    if items is None and top is None:
        return snapshot.json
    document = orjson.loads(snapshot.json)
    all_items: list[Any] | None = document.get("items")
    if all_items is None:
        return snapshot.json
    rows: Sequence[int] = range(len(all_items))
    if items is not None:
        rows = [row for row in rows if all_items[row][0] in items][:top]
    elif "edges" not in document:
        rows = rows[:top]
    # Some fields are lists with an entry for each item.
    for name in ("items", *LISTED_BESIDE):
        if name in document:
            document[name] = [document[name][row] for row in rows]
    document["total_items"] = len(all_items)
    return orjson.dumps(document)


def _decoded(value: bytes) -> Frame:
    """Return a record's frame after checking all its JSON, so that `select_items` cannot fail."""
    # The usual snapshot has no field that the decoder would skip: one pass checks all of it.
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        plain = _PLAIN_FRAMES.decode(value)
        guarantee = Guarantee(**msgspec.structs.asdict(plain.guarantee))
        return msgspec.structs.replace(plain, guarantee=guarantee)
    try:
        frame = _FRAMES.decode(value)
        orjson.dumps(orjson.loads(value))  # parses the fields that the decoder skipped
    # Its message names fields and types only, so it may be shown.
    except msgspec.DecodeError as error:
        raise InvalidSnapshot(f"a record that is no snapshot: {error}") from None
    # Not UTF-8, a lone surrogate, nested too deeply.
    except (ValueError, TypeError, RecursionError):
        raise InvalidSnapshot("a record that is no snapshot: not JSON") from None
    return frame


def _snapshot(frame: Frame, line: bytes) -> SeenSnapshot:
    """Return a whole snapshot: its head, and its JSON on one line."""
    head = {name: getattr(frame, name) for name in Head.__struct_fields__}
    return SeenSnapshot(json=line, **head)


def _joined(tick: _Tick) -> bytes:
    """Return a complete tick's snapshot as JSON: its pages joined, then its parts.

    Raise `InvalidSnapshot` if its records do not match.
    """
    try:
        parts = [
            join_pages([orjson.loads(pages[number]) for number in sorted(pages)])
            for _, pages in sorted(tick.parts.items())
        ]
        whole = parts[0] if len(parts) == 1 else join_parts(parts)
    except (KeyError, TypeError):
        raise InvalidSnapshot(
            "a record that is no snapshot: a page without what the others list"
        ) from None
    return orjson.dumps({**whole, "page": 1, "pages": 1})
