"""Delivers new snapshots to all viewers, and keeps the last ticks of every stream in memory.

At most one event per stream, the newest, waits for a slow viewer. Viewers share events, each
encoded once. A stream is a histogram's snapshots for one stream key; an event is a message of the
server-sent event stream, not of Kafka. `History` is the one in memory, bounded in ticks and bytes;
that on disk is the store's.

What one topic has is called a histogram here: a window is one of its own, and `settings_name` is
what the settings call the histogram that it belongs to.
"""

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import msgspec
import orjson

from workers.client.config import HistogramTopic
from workers.client.messages import SeenSnapshot, Stream, select_items
from workers.mechanisms.accounting import Guarantee
from workers.privacy.public import PublicBudget
from workers.privacy.total import Charge, compose, spans_of, stated_cost
from workers.runtime.availability import Outage

TICKS = 120
MAX_BYTES = 256 << 20
# Eviction shrinks to this share of MAX_BYTES, so that it runs rarely.
EVICT_TO = 0.9


class History:
    """Recent snapshots of every stream, at most `ticks` of each and `max_bytes` of JSON in all."""

    def __init__(self, ticks: int = TICKS, max_bytes: int = MAX_BYTES) -> None:
        self.ticks = ticks
        self._max_bytes = max_bytes
        # The snapshots of a stream, newest last.
        self._recent: dict[Stream, deque[SeenSnapshot]] = {}
        # The bytes of their JSON, by stream and in all.
        self._bytes: Counter[Stream] = Counter()
        self.bytes = 0
        # Of the snapshot that was added last: they are numbered in order of arrival.
        self.number = 0

    def add(self, snapshot: SeenSnapshot) -> bool:
        """Store a snapshot unless it is known, evicting old ones; return whether it was new."""
        stream = snapshot.stream
        recent = self._recent.setdefault(stream, deque())
        if recent and snapshot.end <= recent[-1].end:
            # Read again, as after an error.
            if snapshot.id == recent[-1].id:
                return False
            # Another series that goes back in time: the topic was restarted.
            while recent and recent[-1].end >= snapshot.end:
                self._subtract(stream, recent.pop())
        self.number += 1
        recent.append(msgspec.structs.replace(snapshot, number=self.number))
        self._bytes[stream] += len(snapshot.json)
        self.bytes += len(snapshot.json)
        if len(recent) > self.ticks:
            self._subtract(stream, recent.popleft())
        if self.bytes > self._max_bytes:
            self._shrink()
        return True

    def streams(self) -> list[Stream]:
        return [stream for stream, recent in self._recent.items() if recent]

    def newest(self, stream: Stream) -> SeenSnapshot | None:
        recent = self._recent.get(stream)
        return recent[-1] if recent else None

    def all_newest(self, after: int = 0) -> list[SeenSnapshot]:
        """Return each stream's newest snapshot numbered above `after`, in order of arrival."""
        newest = (recent[-1] for recent in self._recent.values() if recent)
        later = [snapshot for snapshot in newest if snapshot.number > after]
        return sorted(later, key=lambda snapshot: snapshot.number)

    def newest_of_histograms(self) -> dict[str, SeenSnapshot]:
        """Return the newest snapshot of each histogram, whatever its stream key."""
        # In order of arrival: the last one of a histogram stays.
        return {snapshot.histogram: snapshot for snapshot in self.all_newest()}

    def page(
        self, stream: Stream, after: int | None, limit: int
    ) -> tuple[list[SeenSnapshot], bool]:
        """Return a stream's first `limit` snapshots that end after `after`, and whether more do.

        `after` is in ms; None: the newest `limit`.
        """
        recent = list(self._recent.get(stream, ()))
        if after is None:
            return recent[-limit:], False
        later = [snapshot for snapshot in recent if snapshot.end > after]
        return later[:limit], len(later) > limit

    def _shrink(self) -> None:
        """Evict from the largest streams, but keep the newest snapshot of every stream."""
        while self.bytes > self._max_bytes * EVICT_TO:
            several = (
                stream for stream, recent in self._recent.items() if len(recent) > 1
            )
            stream = max(several, key=self._bytes.__getitem__, default=None)
            if stream is None:
                return
            self._subtract(stream, self._recent[stream].popleft())

    def _subtract(self, stream: Stream, snapshot: SeenSnapshot) -> None:
        """Take the bytes of a snapshot that was removed off the sums."""
        self._bytes[stream] -= len(snapshot.json)
        self.bytes -= len(snapshot.json)


# Why a histogram is not read, by the state of Kafka.
READING = "its newest snapshots are being read"
UNREAD = {
    "connecting": "no broker has answered yet",
    "away": "no broker answers",
    "refused": "the broker refuses the login, or reading a topic",
}

# Allowed item limits of an event. Viewers share the encoded events, so the limits are few.
TOPS = (10, 100, 1_000, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a viewer wants to see (None: all), and how many items of each snapshot at most."""

    histograms: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    top: int | None = None

    def holds(self, stream: Stream) -> bool:
        """Return whether a stream is wanted."""
        return (self.histograms is None or stream.histogram in self.histograms) and (
            self.keys is None or stream.key in self.keys
        )


class Viewer:
    """Events waiting for one viewer, oldest first: at most one per stream or other `place`."""

    def __init__(self, wanted: Filter) -> None:
        self.wanted = wanted
        self.closed = False
        # Encoded events by `place`, oldest first.
        self._waiting: dict[object, bytes] = {}
        # Set while an event waits, and once the viewer is closed.
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, place: object, event: bytes) -> None:
        """Queue an event, replacing one in the same `place`: a stream, or a kind of event."""
        self._waiting[place] = event
        self._wake.set()

    def close(self) -> None:
        self.closed = True
        self._wake.set()

    async def take(self, timeout_s: float) -> bytes | None:
        """Return the next event; None on timeout or if the viewer is closed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return None
        if self.closed:
            return None
        event = self._waiting.pop(next(iter(self._waiting)))
        if not self._waiting:
            self._wake.clear()
        return event


class Hub:
    """History, state and viewers of one dashboard. Used from one event loop only."""

    def __init__(self) -> None:
        self.history = History()
        # Begins the ids of events, so that those of another run of the server are recognized.
        self.run = secrets.token_hex(4)
        # Of the connection to Kafka (`feed`), and of the history on disk, as viewers were told.
        self.state: Mapping[str, object] = {"kafka": "connecting"}
        self.history_state: Mapping[str, object] | None = None
        # Histograms whose newest snapshots are not all in memory, and those without a topic.
        self.unread: Collection[str] = frozenset()
        self.missing: Collection[str] = frozenset()
        #: What the worker last said of its budget.
        self.budget: PublicBudget | None = None
        self.outage = Outage()
        self._viewers: set[Viewer] = set()
        # The encoded event of each stream's newest snapshot, by the `top` of viewers.
        self._events: dict[Stream, dict[int | None, bytes]] = {}
        # How many streams viewers were told of.
        self._stream_count = 0

    def __len__(self) -> int:
        return len(self._viewers)

    def publish(self, snapshots: Iterable[SeenSnapshot]) -> None:
        """Keep new snapshots, and queue the newest of each stream for the viewers that want it."""
        # The keys are a set, but in the order of arrival.
        changed = {
            snapshot.stream: None
            for snapshot in snapshots
            if self.history.add(snapshot)
        }
        for stream in changed:
            self._events.pop(stream, None)
            for viewer in self._viewers:
                if viewer.wanted.holds(stream):
                    viewer.put(stream, self._event(stream, viewer.wanted.top))
        if changed and (streams := len(self.history.streams())) != self._stream_count:
            self._stream_count = streams
            self._broadcast("streams", {"streams": streams})

    def set_state(self, state: Mapping[str, object]) -> bool:
        """Send the state of the Kafka connection to all viewers; return whether it changed."""
        changed = state != self.state
        if changed:
            self.state = dict(state)
            self._broadcast("state", self.state)
        return changed

    def why_unread(self, histogram: str) -> str | None:
        """Return why a histogram's newest snapshots are not known yet; None if they are."""
        if histogram in self.missing:
            return "its topic does not exist yet, or may not be read"
        if histogram not in self.unread:
            return None
        return UNREAD.get(str(self.state["kafka"]), READING)

    def waits_for_kafka(self, histograms: Iterable[str]) -> bool:
        """Return whether any of the histograms is about to be read, so that waiting helps."""
        soon = self.state["kafka"] in ("connecting", "missing", "reading")
        return soon and any(
            name in self.unread and name not in self.missing for name in histograms
        )

    def set_history_state(self, state: Mapping[str, object]) -> None:
        """Send the state of the history on disk to all viewers, if it changed."""
        if state != self.history_state:
            self.history_state = dict(state)
            self._broadcast("history", self.history_state)

    def join(self, selection: Filter, last_event: str | None = None) -> Viewer:
        """Add a viewer; it first gets the newest snapshots, or those after `last_event`."""
        viewer = Viewer(selection)
        viewer.put("state", event("state", {**self.state, "now": now_ms()}))
        if self.history_state is not None:
            viewer.put(
                "history", event("history", {**self.history_state, "now": now_ms()})
            )
        for snapshot in self.history.all_newest(self._number_of(last_event)):
            if selection.holds(snapshot.stream):
                viewer.put(snapshot.stream, self._event(snapshot.stream, selection.top))
        self._viewers.add(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    def close(self) -> None:
        for viewer in self._viewers:
            viewer.close()

    def _broadcast(self, name: str, data: Mapping[str, object]) -> None:
        """Queue an event for all viewers, with the server's time."""
        line = event(name, {**data, "now": now_ms()})
        for viewer in self._viewers:
            viewer.put(name, line)

    def _event(self, stream: Stream, top: int | None) -> bytes:
        """Return the event with a stream's newest snapshot, encoded once for each `top`."""
        by_top = self._events.setdefault(stream, {})
        if top not in by_top:
            snapshot = self.history.newest(stream)
            if snapshot is None:
                raise KeyError(stream)
            # A viewer that connects again sends the id of its last event (`_number_of`).
            event_id = b"%s-%d" % (self.run.encode(), snapshot.number)
            line = select_items(snapshot, top=top)
            by_top[top] = b"id: %s\nevent: snapshot\ndata: %s\n\n" % (event_id, line)
        return by_top[top]

    def _number_of(self, last_event: str | None) -> int:
        """Return the number of the snapshot that a viewer got last, before it connects again.

        `last_event` is the id of that event, "run-number", as the viewer sends it; 0 if this run of
        the server did not send it.
        """
        run, _, number = (last_event or "").partition("-")
        # Anyone may send anything here, also more digits than `int` takes.
        ours = (
            run == self.run
            and number.isascii()
            and number.isdigit()
            and len(number) < 16
        )
        return int(number) if ours else 0


def event(name: str, data: Mapping[str, object]) -> bytes:
    """Encode a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))


def now_ms() -> int:
    """Return the server's clock, from which viewers compute a tick's age."""
    return time.time_ns() // 1_000_000


# Fields of a histogram's entry in `catalog`: from its settings, and from its newest snapshot.
SETTINGS = ("horizon", "label", "unit", "sum_field", "key_field", "counts")
OF_NEWEST = ("mechanism", "id", "epoch", "tick", "end")


def catalog(
    history: History,
    histograms: Collection[HistogramTopic],
    missing: Collection[str] = (),
) -> list[dict[str, object]]:
    """Return an entry for each of `histograms`: its stream keys, and data of its newest snapshot.

    An entry's `histogram` is the name in queries and snapshots, `name` that in the settings. One in
    `missing` has no topic: its keys are None.
    """
    keys: dict[str, list[str]] = {histogram.name: [] for histogram in histograms}
    for stream in history.streams():
        keys.setdefault(stream.histogram, []).append(stream.key)
    newest = history.newest_of_histograms()
    listing = []
    for histogram in histograms:
        name = histogram.name
        snapshot = newest.get(name)
        guarantee = None
        if snapshot is not None:
            guarantee = msgspec.to_builtins(snapshot.guarantee)
        entry: dict[str, object] = {
            "histogram": name,
            "keys": None if name in missing else sorted(keys[name]),
            "name": histogram.settings_name,
            "window_ms": histogram.window_ms,
            "also_in": _also_in(histogram, histograms),
            **{field: getattr(histogram, field) for field in SETTINGS},
            **{field: getattr(snapshot, field, None) for field in OF_NEWEST},
            "guarantee": guarantee,
        }
        listing.append(entry)
    return listing


def _also_in(
    histogram: HistogramTopic, histograms: Collection[HistogramTopic]
) -> list[str]:
    """Return the names of others that count the same items of the same events.

    Their `selection`, what the settings count, is equal. Other windows of the same histogram in the
    settings are not among them.
    """
    return [
        other.name
        for other in histograms
        if histogram.selection is not None
        and other.selection == histogram.selection
        and other.settings_name != histogram.settings_name
    ]


def budget_for(
    hub: Hub, histograms: Collection[HistogramTopic]
) -> dict[str, object] | None:
    """Return what the worker last said of its budget, as JSON (docs/api.md, `budget`).

    Only of the given histograms; None before a worker has said anything.
    """
    budget = hub.budget
    if budget is None:
        return None
    newest = hub.history.newest_of_histograms().values()
    ends = [snapshot.end for snapshot in newest]
    names = {histogram.settings_name for histogram in histograms}
    answer: dict[str, object] = msgspec.to_builtins(budget)
    # It speaks of the time of the newest tick, not of the clock.
    answer["sentence"] = budget.sentence(max(ends, default=None))
    answer["histograms"] = [
        msgspec.to_builtins(spent)
        for spent in budget.histograms
        if spent.histogram in names
    ]
    return answer


# No worker states a larger rho or epsilon: another program wrote it.
LARGEST = 1e9


class _Published(NamedTuple):
    """What a histogram costs: as its newest snapshot states it, and from the settings.

    `epoch_ms` is how long one charge is for; None: not known, or without epochs, where the charge
    is once for all time. `bounds_rho` is what choosing bounds from a sample cost.
    """

    mechanism: str
    guarantee: Guarantee
    epoch_ms: int | None
    without_epochs: bool
    bounds_rho: float


def joint_guarantee(
    history: History, histograms: Collection[HistogramTopic]
) -> dict[str, object] | None:
    """Return what all histograms together promise, as JSON (docs/api.md, `together`).

    That is for an event or user that counts in all of them, by the cost of an epoch that each
    newest snapshot states. The windows of a histogram share one charge, which the newest of their
    snapshots states. None before anything was published, or if what is stated cannot be added up.
    """
    newest = history.newest_of_histograms()
    charged: dict[str, tuple[SeenSnapshot, HistogramTopic]] = {}
    for histogram in histograms:
        snapshot = newest.get(histogram.name)
        if snapshot is None:
            continue
        name = histogram.settings_name
        if name not in charged or charged[name][0].number < snapshot.number:
            charged[name] = snapshot, histogram
    units = {snapshot.guarantee.unit for snapshot, _ in charged.values()}
    promises = [snapshot.guarantee for snapshot, _ in charged.values()]
    # Nothing is published, the settings changed the unit, or another program wrote to the topic.
    if len(units) != 1 or any(
        max(p.rho, p.epsilon) > LARGEST or p.delta > 1 for p in promises
    ):
        return None
    published = []
    for snapshot, histogram in charged.values():
        tick_ms = snapshot.end - snapshot.start
        horizon = histogram.horizon
        epoch_ms = horizon * tick_ms if horizon is not None and tick_ms > 0 else None
        without_epochs = histogram.window_of is not None
        period = snapshot.guarantee.period
        # Users without epochs are charged for each period, as others for each epoch.
        if not isinstance(period, msgspec.UnsetType):
            epoch_ms = period
            without_epochs = False
        published.append(
            _Published(
                snapshot.mechanism,
                snapshot.guarantee,
                epoch_ms,
                without_epochs,
                histogram.bounds_rho,
            )
        )
    return {
        "unit": units.pop(),
        "histograms": list(charged),
        **_total(tuple(published)),
    }


@lru_cache(maxsize=16)
def _total(published: tuple[_Published, ...]) -> dict[str, object]:
    """Return the joint cost of histograms, and what a person's events in longer spans add up to.

    Cached, since it changes only with a guarantee.
    """
    charges = []
    for mechanism, promise, epoch_ms, without_epochs, bounds_rho in published:
        cost = stated_cost(
            mechanism, promise.rho, promise.epsilon, promise.delta, bounds_rho
        )
        if not isinstance(promise.overlap, msgspec.UnsetType):
            cost = replace(cost, overlap=promise.overlap)
        charges.append(Charge(cost, epoch_ms, charged_once=without_epochs))
    total = compose([charge.cost for charge in charges])
    return {
        "rho": total.rho,
        "epsilon": total.epsilon,
        "delta": total.delta,
        "person": msgspec.to_builtins(spans_of(charges)),
    }
