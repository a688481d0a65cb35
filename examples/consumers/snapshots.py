"""Snapshots as a reader takes them: pages put together, and series told apart. The standard library is enough.

A record is one page of a snapshot; docs/snapshot.schema.json says what stands in it. Three things are easily got wrong:

- Pages: a large snapshot comes in several records, one after the other. Half of one is not a histogram.
- Series: the `id` names histogram, parameters and epoch. With another id counts begin anew; never subtract across.
- Repetition: who reads a record twice finds the same bytes. Anything else is no snapshot to rely on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

HISTOGRAM = re.compile(r"[a-z0-9_-]{1,100}")
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
class Snapshot:
    """One whole snapshot.

    Attributes:
        start, end: of the tick, ms since 1970.
        sd: standard deviation of every count; None where there are no counts.
        threshold: see docs/mechanisms.md; None where there is none.
        items: label and noisy count, largest first; None where the mechanism answers queries.
        answer: the fields that stand instead of items.
        digest: of the records' bytes.
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


class Pages:
    """Puts the pages of one partition's snapshots together."""

    def __init__(self) -> None:
        self._place: tuple[str, str, str, int] | None = None
        self._values: list[bytes] = []

    def receive(self, value: bytes | None) -> Snapshot | None:
        """Takes the next record of the partition; returns the snapshot that it completes.

        A reader that begins between two pages never sees the first: what is left of that snapshot is passed over.

        Raises:
            NotASnapshot: the record is something else.
        """
        page = _parse(value or b"")
        place = (page["histogram"], page["key"], page["id"], page["tick"])
        if page["page"] == 1:
            self._place, self._values = place, []
        elif place != self._place or page["page"] != len(self._values) + 1:
            self._place, self._values = None, []
            return None
        self._values.append(value or b"")
        if page["page"] < page["pages"]:
            return None
        values, self._place, self._values = self._values, None, []
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
            if (snapshot.guarantee, snapshot.mechanism) != (last.guarantee, last.mechanism):
                raise NotASnapshot("a snapshot with the id of another guarantee")
            if snapshot.tick <= last.tick:
                return Step.AGAIN, last
        self._last[place] = snapshot
        if last is None:
            return Step.FIRST, None
        if snapshot.id != last.id:
            return Step.NEW_SERIES, last
        return (Step.NEXT if snapshot.tick == last.tick + 1 else Step.LATER), last


def printable(text: str, width: int = 60) -> str:
    """A label that may be written to a terminal: it can hold anything, also control sequences."""
    safe = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return safe if len(safe) <= width else safe[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _parse(value: bytes) -> dict[str, Any]:
    try:
        page = json.loads(value)
        well_formed = (
            HISTOGRAM.fullmatch(page["histogram"])
            and ID.fullmatch(page["id"])
            and isinstance(page["key"], str)
            and all(isinstance(page[name], int) for name in ("epoch", "tick", "start", "end", "page", "pages"))
            and 1 <= page["page"] <= page["pages"]
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        well_formed = False
    if not well_formed:
        raise NotASnapshot("a record that is no snapshot: is this the topic of a histogram?") from None
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
                whole["answers"] = [*whole["answers"][:-1], {**last, "value": last["value"] + one["value"]}]
            else:
                whole["answers"] = [*whole["answers"], one]
    return whole


def _whole(pages: Sequence[dict[str, Any]], values: Sequence[bytes]) -> Snapshot:
    first = pages[0]
    try:
        return Snapshot(
            **{name: first[name] for name in FRAME if name not in ("guarantee", "page", "pages")},
            guarantee=Guarantee(**first["guarantee"]),
            items=[_item(*item) for page in pages for item in page["items"]] if "items" in first else None,
            answer=_answer([{name: page[name] for name in page if name not in FRAME and name != "items"} for page in pages]),
            digest=hashlib.sha256(b"\n".join(values)).hexdigest(),
        )
    except (ValueError, TypeError, LookupError):
        raise NotASnapshot("a snapshot without all that one has") from None
