"""Events, and what every tick must contain, from the rule in docs/architecture.md alone."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from aiokafka.partitioner import murmur2

from tests.bounding import bound
from tests.chaos.schedule import Segment
from tests.pipeline.pipeline import Contributed, of_users
from tests.worker.harness import Site, sale
from workers.agents.topics import inspect_topics
from workers.mechanisms.config.histogram import Lane

GRACE_MS = 8_000
KEYS = [f"k{i}" for i in range(6)]
Totals = tuple[str, str, Lane]  # stream key, label, lane
LABELS = [f"item-{i}" for i in range(500)]
USERS = [f"user-{i}" for i in range(1_000)]


class Oracle:
    def __init__(self, segment: Segment, lanes: list[Lane]) -> None:
        self._segment = segment
        self._lanes = lanes
        self._rng = random.Random(segment.seed)
        self._sources = sum(segment.topics)
        #: Every event with its time and its source partition, in the order of that partition.
        self.sent: list[tuple[dict[str, Any], int, int]] = []

    def grow(self, partitions: int) -> None:
        self._sources += partitions

    def backlog(
        self, end_ms: int, span_ms: int = 30_000
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield past events, nearly in order; one in twenty is late, some beyond the grace."""
        number = self._segment.backlog
        for i in range(number):
            late = self._rng.randrange(2 * GRACE_MS) if self._rng.random() < 0.05 else 0
            yield self.event(end_ms - span_ms + span_ms * i // number - late)

    def event(self, at: int) -> tuple[int, dict[str, Any]]:
        """Return an event of this time, and the source partition that it belongs to."""
        rng = self._rng
        labels = [
            LABELS[min(int(rng.paretovariate(0.9)) - 1, len(LABELS) - 1)]
            for _ in range(rng.choice((1, 2, 2, 3, 4)))
        ]
        user = USERS[min(int(rng.paretovariate(0.5)) - 1, len(USERS) - 1)]
        event = sale(labels, at, rng.choice(KEYS), who=user, n=len(self.sent))
        partition = rng.randrange(self._sources)
        if self._segment.unit == "user" and not self._segment.rekey:
            partition = int(murmur2(user.encode()) & 0x7FFFFFFF) % self._sources
        self.sent.append((event, at, partition))
        return partition, event

    def read_back(self, site: Site) -> int:
        """Take duplicates that the events topics hold for sent; return how many there are.

        Where its broker is killed, librdkafka's idempotent producer writes an event twice now and
        then (2.16; 4 of 10,471 events in a run of 45 minutes).
        """
        sent = {event["n"]: (event, at) for event, at, _ in self.sent}
        numbers = {place: number for number, place in enumerate(site.places)}
        held: list[tuple[dict[str, Any], int, int]] = []
        for topic in site.topics:
            for message in site.read(topic):
                n = msgspec.json.decode(message.value() or b"")["n"]
                held.append((*sent[n], numbers[topic, message.partition() or 0]))
        lost = sent.keys() - {event["n"] for event, _, _ in held}
        assert not lost, f"{len(lost)} events are not in the events topics"
        if len(held) > len(sent):
            self.sent = held
        return len(held) - len(sent)

    def _counted(self, site: Site) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield every event with the time at which it counts.

        A partition that joined begins at the watermark that its growth states.
        """
        sources = inspect_topics(site.settings, site.connection).origins
        marks = [place.watermark for place in sources]
        for event, at, partition in self.sent:
            before = marks[partition]
            mark = marks[partition] = (
                at if before is None else max(before, at - GRACE_MS)
            )
            yield event, max(at, mark)

    def expected(self, site: Site) -> Counter[Contributed]:
        """Return what every tick contains; how users are bounded follows the re-keyed order."""
        counted = list(self._counted(site))
        if self._segment.unit == "user":
            return of_users(
                self._lanes, _by_user(site, counted) if self._segment.rekey else counted
            )
        total: Counter[Contributed] = Counter()
        for event, at in counted:
            for lane in self._lanes:
                tick = (at - lane.start_ms) // lane.tick_ms + 1
                for label, n in bound(
                    event["items"], lane.max_items, lane.max_count
                ).items():
                    total[Contributed(lane, tick, event["key"], label)] += n
        return +total

    def by_label(
        self, events: Iterable[dict[str, Any]] | None = None
    ) -> Counter[Totals]:
        """Return counts whatever their tick: what remains true on a wrong clock."""
        total: Counter[Totals] = Counter()
        for event in (event for event, _, _ in self.sent) if events is None else events:
            for lane in self._lanes:
                for label, n in bound(
                    event["items"], lane.max_items, lane.max_count
                ).items():
                    total[event["key"], label, lane] += n
        return +total


def _by_user(
    site: Site, counted: list[tuple[dict[str, Any], int]]
) -> list[tuple[dict[str, Any], int]]:
    """Return the events in the order in which they were sent on."""
    times: dict[int, list[int]] = defaultdict(list)
    for event, at in counted:
        times[event["n"]].append(at)
    values = [message.value() for message in site.read(site.settings.by_user_topic)]
    events = [msgspec.json.decode(value) for value in values if value is not None]
    numbers = sorted(event["n"] for event in events)
    produced = sorted(event["n"] for event, _ in counted)
    assert numbers == produced, "an event was lost or sent on twice"
    return [(event, times[event["n"]].pop(0)) for event in events]


def without_ticks(found: Counter[Contributed]) -> Counter[Totals]:
    total: Counter[Totals] = Counter()
    for what, n in found.items():
        total[what.key, what.label, what.lane] += n
    return +total
