"""Snapshots as a reader takes them: pages put together, and series told apart. The standard library is enough.

A record is one page of a snapshot; its schema is docs/snapshot.schema.json. Five things are easily got wrong:

- Pages and parts: a large snapshot comes in several records. Half of one is not a histogram.
- Series: the `id` names histogram, parameters and epoch. Under another id counts begin again at zero: never subtract across ids.
  `previous_id` is that of the epoch before, where a window may begin: `Changes` adds what was counted there.
- Changes: two snapshots share noise, which cancels. If the settings name `windows`, a snapshot states the error of a change: `Changes`.
- Windows: without epochs a snapshot has the counts of one `window`. Two of these overlap: never subtract them.
- Repetition: a record read twice has the same bytes. If not, do not trust it.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

# Without epochs a window of it, such as products.1h.
HISTOGRAM = re.compile(r"[a-z0-9_-]{1,100}(\.[1-9][0-9]{0,17}(ms|s|m|h|d))?")
ID = re.compile(r"[0-9a-f]{32}")
FRAME = (
    "histogram",
    "key",
    "epoch",
    "tick",
    "start",
    "end",
    "sd",
    "threshold",
    "guarantee",
    "mechanism",
    "id",
    "page",
    "pages",
)
LISTED = (
    "items",
    "sums",
    "sum",
    "all_items",
    "windows",
    "window",
    "previous_id",
    "part",
    "parts",
)


class NotASnapshot(ValueError):
    """A record that is none, or contradicts another one. The message quotes nothing of it."""


@dataclass(frozen=True)
class Guarantee:
    """What the histogram promises for one `unit` ("event" or "user")."""

    unit: str
    rho: float
    epsilon: float
    delta: float

    def __str__(self) -> str:
        return f"one {self.unit}: epsilon {self.epsilon:g}, delta {self.delta:g} (rho {self.rho:g})"


@dataclass(frozen=True)
class Window:
    """How far off the change of a count over a window is.

    Attributes:
        ms: the window, as the settings name it.
        ticks: how many ticks it covers, back to at most tick 0, the start of the epoch, where every count was 0; if they are more than
            the snapshot's `tick`, the rest are the last ones of the epoch before.
        sd: standard deviation of the change of one count.
        sum_sd: that of one sum, where there are sums.
        all_items_sd: that of the count of all items, where there is one.
    """

    ms: int
    ticks: int
    sd: float
    sum_sd: float | None = None
    all_items_sd: float | None = None


@dataclass(frozen=True)
class Sum:
    """The sum and the mean of an item's numbers; `low` to `high` is the mean's 95 % interval. No mean where the count may be 0."""

    sum: float
    mean: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Snapshot:
    """One whole snapshot.

    Attributes:
        start, end: of the tick, ms since 1970.
        sd: standard deviation of every count; None where there are no counts.
        threshold: see docs/mechanisms.md; None where there is none.
        items: label and noisy count of all parts, largest first; None where the mechanism answers queries.
        answer: the fields that stand instead of items.
        digest: of the records' bytes.
        windows: as the settings name them.
        window: without epochs, whose counts the items are: its length, `ms`, and begin, `from`, ms since 1970.
        previous_id: the id of the epoch before, where counts can be subtracted and it was published.
        sums: one for each of the items, where the settings have a sum.
        sum: then its range, `from`, `to` and `step`, and `sd`, the standard deviation of each sum.
        all_items: `count` of all items, shown or not, and its `sd`, where the settings have a `total_share`.
    """

    histogram: str
    key: str
    id: str
    epoch: int
    tick: int
    start: int
    end: int
    mechanism: str
    guarantee: Guarantee
    sd: float | None
    threshold: float | None
    items: list[tuple[str, int]] | None
    answer: dict[str, Any]
    digest: str
    windows: tuple[Window, ...] = ()
    window: dict[str, int] | None = None
    previous_id: str | None = None
    sums: tuple[Sum, ...] = ()
    sum: dict[str, float] | None = None
    all_items: dict[str, float] | None = None


@dataclass
class _Tick:
    """The records so far of a snapshot, by part and page."""

    offset: int  # of the first one
    end: int
    values: dict[tuple[int, int], bytes]
    pages: dict[int, int]  # how many each part has


class Pages:
    """Puts one partition's snapshots together: their pages, and the parts of a stream key that is split.

    The parts of a tick come in any order, between other records; those of one part are in the order of its ticks.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str, str, int], _Tick] = {}

    @property
    def first_offset(self) -> int | None:
        """The oldest record that waits for others: whoever stops has to go on there."""
        return min((tick.offset for tick in self._waiting.values()), default=None)

    def receive(self, value: bytes | None, offset: int = 0) -> Snapshot | None:
        """Takes the next record of the partition; returns the snapshot that it completes.

        A reader that begins between two records of a snapshot never sees the first: what is left of it is passed over.

        Raises:
            NotASnapshot: the record is something else.
        """
        page = _parse(value or b"")
        part = page.get("part", 1)
        parts = page.get("parts", 1)
        place = (page["histogram"], page["key"], page["id"], page["tick"])
        tick = self._waiting.setdefault(place, _Tick(offset, page["end"], {}, {}))
        tick.values[part, page["page"]] = value or b""
        tick.pages[part] = page["pages"]
        if len(tick.pages) < parts or len(tick.values) < sum(tick.pages.values()):
            return None
        self._waiting = {
            other: waits
            for other, waits in self._waiting.items()
            if other[:2] != place[:2] or waits.end > tick.end
        }
        values = [value for _, value in sorted(tick.values.items())]
        return _whole([_parse(value) for value in values], values)


class Step(Enum):
    """How a snapshot follows the one before it of the same histogram and stream key."""

    FIRST = "the first one seen"
    NEXT = "the next tick"
    LATER = "a later tick: those between were not seen"
    AGAIN = "a tick that was seen before"
    NEW_SERIES = "another id: a new series begins, with counts from zero"


class Series:
    """Remembers where each histogram and stream key stands."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Snapshot] = {}

    def follow(self, snapshot: Snapshot) -> tuple[Step, Snapshot | None]:
        """Says how a snapshot follows, and returns the one that it follows.

        Raises:
            NotASnapshot: it has the id of the one before but not its guarantee.
        """
        place = (snapshot.histogram, snapshot.key)
        last = self._last.get(place)
        if last is not None and snapshot.id == last.id:
            if (snapshot.guarantee, snapshot.mechanism) != (
                last.guarantee,
                last.mechanism,
            ):
                raise NotASnapshot("a snapshot with the id of another guarantee")
            if snapshot.tick <= last.tick:
                return Step.AGAIN, last
        self._last[place] = snapshot
        if last is None:
            return Step.FIRST, None
        if snapshot.id != last.id:
            return Step.NEW_SERIES, last
        return (Step.NEXT if snapshot.tick == last.tick + 1 else Step.LATER), last


@dataclass(frozen=True)
class Change:
    """What changed over one window.

    Attributes:
        window: which.
        of: label and change of its count, for the items that both snapshots show (and the last one of the epoch before, if it began
            there). A count that was not shown then is not known: nothing can be said of how it changed.
        order: the labels as they were then, largest first; empty where counts have begun at zero since.
    """

    window: Window
    of: Mapping[str, int]
    order: Sequence[str]

    def clear(self, label: str) -> int | None:
        """The change of an item, if by more than two standard deviations."""
        change = self.of.get(label)
        return (
            change if change is not None and abs(change) > 2 * self.window.sd else None
        )

    def climbed(self, label: str, shown: Sequence[str]) -> int:
        """How many of the items shown it passed since then, less those that passed it.

        Only those count to which its distance changed by more than two standard deviations. The noises of two items are independent, so
        that is the standard deviation of a change times sqrt(2).
        """
        if label not in self.of or not self.order:
            return 0
        then = {other: place for place, other in enumerate(self.order)}
        now = {other: place for place, other in enumerate(shown)}
        found = 0
        for other in shown:
            if (
                other in self.of
                and abs(self.of[label] - self.of[other]) > 2 * 2**0.5 * self.window.sd
            ):
                found += (now[label] < now[other]) - (then[label] < then[other])
        return found


@dataclass
class _Epoch:
    """What is remembered of an epoch: its items by tick, and when the newest of these ended."""

    id: str
    ticks: dict[int, bytes]
    end: int = 0

    def items(self, tick: int) -> dict[str, int] | None:
        """The counts of a tick, largest first; None where it was not seen."""
        if tick not in self.ticks:
            return None
        return dict(json.loads(zlib.decompress(self.ticks[tick])))


class Changes:
    """Remembers snapshots for as long as the longest window."""

    def __init__(self) -> None:
        self._past: dict[tuple[str, str], tuple[_Epoch, _Epoch | None]] = {}

    def receive(self, snapshot: Snapshot) -> list[Change]:
        """Takes the next snapshot; returns its changes over the windows whose other end was seen."""
        if snapshot.items is None or not snapshot.windows:
            return []
        place = (snapshot.histogram, snapshot.key)
        epoch, before = self._past.get(place, (_Epoch("", {}), None))
        if epoch.id != snapshot.id:
            before = epoch if epoch.id == snapshot.previous_id else None
            epoch = _Epoch(snapshot.id, {})
        begin = snapshot.end - snapshot.tick * (snapshot.end - snapshot.start)
        # Without its last tick, what the epoch before counted is not known.
        if before is not None and before.end != begin:
            before = None
        counts = dict(snapshot.items)
        found = []
        for window in snapshot.windows:
            since = snapshot.tick - window.ticks
            if since == 0:
                found.append(Change(window, counts, []))
            elif since > 0 and (then := epoch.items(since)) is not None:
                change = {
                    label: count - then[label]
                    for label, count in counts.items()
                    if label in then
                }
                found.append(Change(window, change, list(then)))
            elif since < 0 and before is not None:
                both = self._over_two(counts, before, since)
                if both is not None:
                    found.append(Change(window, both, []))
        epoch.ticks[snapshot.tick] = zlib.compress(
            json.dumps(snapshot.items).encode(), 1
        )
        epoch.end = snapshot.end
        first = snapshot.tick + 1 - max(window.ticks for window in snapshot.windows)
        if before is not None:
            last = max(before.ticks)
            before.ticks = {
                tick: items
                for tick, items in before.ticks.items()
                if tick >= min(last, last + first)
            }
        epoch.ticks = {
            tick: items for tick, items in epoch.ticks.items() if tick >= first
        }
        self._past[place] = epoch, before if first < 0 else None
        return found

    @staticmethod
    def _over_two(
        counts: Mapping[str, int], before: _Epoch, since: int
    ) -> dict[str, int] | None:
        """What was counted in the epoch, and in the last -`since` ticks of the one before."""
        last = max(before.ticks)
        reached = before.items(last) or {}
        then = before.items(last + since)
        if then is None:
            return None
        return {
            label: count + reached[label] - then[label]
            for label, count in counts.items()
            if label in then and label in reached
        }


def printable(text: str, width: int = 60) -> str:
    """A label that may be written to a terminal: it can hold anything, also control sequences."""
    safe = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
    return safe if len(safe) <= width else safe[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _parse(value: bytes) -> dict[str, Any]:
    try:
        page = json.loads(value)
        well_formed = (
            HISTOGRAM.fullmatch(page["histogram"])
            and ID.fullmatch(page["id"])
            and isinstance(page["key"], str)
            and all(
                isinstance(page[name], int)
                for name in ("epoch", "tick", "start", "end", "page", "pages")
            )
            and 1 <= page["page"] <= page["pages"]
            and isinstance(page.get("part", 1), int)
            and isinstance(page.get("parts", 1), int)
            and 1 <= page.get("part", 1) <= page.get("parts", 1)
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        well_formed = False
    if not well_formed:
        raise NotASnapshot(
            "a record that is no snapshot: is this the topic of a histogram?"
        ) from None
    return page  # type: ignore[no-any-return]  # an object, or it had no fields


def _item(label: object, count: object) -> tuple[str, int]:
    if not isinstance(label, str) or not isinstance(count, int):
        raise TypeError
    return label, count


def _answer(pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is a list goes on from page to page; so does the list of an answer whose query the next page names again."""
    whole = dict(pages[0])
    for page in pages[1:]:
        for name in ("labels", "value"):
            if isinstance(whole.get(name), list):
                whole[name] = whole[name] + page[name]
        for one in page.get("answers", []):
            last = whole["answers"][-1]
            if one["query"] == last["query"]:
                whole["answers"] = [
                    *whole["answers"][:-1],
                    {**last, "value": last["value"] + one["value"]},
                ]
            else:
                whole["answers"] = [*whole["answers"], one]
    return whole


def _listed(
    pages: Sequence[dict[str, Any]],
) -> tuple[list[tuple[str, int]] | None, tuple[Sum, ...]]:
    """The items of all pages, largest first, and the sums in the same order."""
    if "items" not in pages[0]:
        return None, ()
    items = [_item(*item) for page in pages for item in page["items"]]
    order = sorted(
        range(len(items)), key=lambda place: (-items[place][1], items[place][0])
    )
    sums = [Sum(*row) for page in pages for row in page.get("sums", [])]
    if sums and len(sums) != len(items):
        raise ValueError
    return [items[place] for place in order], tuple(
        sums[place] for place in order if sums
    )


def _whole(pages: Sequence[dict[str, Any]], values: Sequence[bytes]) -> Snapshot:
    first = pages[0]
    try:
        items, sums = _listed(pages)
        return Snapshot(
            **{
                name: first[name]
                for name in FRAME
                if name not in ("guarantee", "page", "pages")
            },
            guarantee=Guarantee(**first["guarantee"]),
            items=items,
            answer=_answer(
                [
                    {name: page[name] for name in page if name not in (*FRAME, *LISTED)}
                    for page in pages
                ]
            ),
            digest=hashlib.sha256(b"\n".join(values)).hexdigest(),
            windows=tuple(Window(**window) for window in first.get("windows", [])),
            window=first.get("window"),
            previous_id=first.get("previous_id"),
            sums=sums,
            sum=first.get("sum"),
            all_items=first.get("all_items"),
        )
    except (ValueError, TypeError, LookupError):
        raise NotASnapshot("a snapshot without all that one has") from None
