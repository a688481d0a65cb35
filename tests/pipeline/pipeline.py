"""Both stages without Kafka: events in, snapshots out, with crashes wherever a test wants."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from tests.bounding import Items, bound
from tests.events.reading import columns, reader
from workers.mechanisms.config.histogram import HistogramConfig, Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig
from workers.pipeline.contributions import Message, Section, handing_over
from workers.pipeline.growth.epochs import next_epoch
from workers.pipeline.growth.owners import Owners
from workers.pipeline.histogram import Histogram
from workers.pipeline.intake import Intake
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.pipeline.signing import Signing
from workers.pipeline.signing_key import SigningKey
from workers.pipeline.snapshots import Snapshot

KEY = NoiseKey(bytes(range(32)))
SIGNATURES = "w.signatures"


def users_of(section: Section) -> list[str]:
    """Return the digest of each row's user, empty in a lane that does not name users."""
    users = section.contributions().users
    if users is None:
        return [""] * section.rows
    return [user.tobytes().hex() for user in users]


def rows_of(section: Section) -> Iterator[tuple[str, str, int]]:
    found = section.contributions()
    rows = zip(
        found.key_of_row.tolist(), found.labels, found.counts.tolist(), strict=True
    )
    return ((found.keys[key], label.decode(), count) for key, label, count in rows)


class Contributed(NamedTuple):
    """Contents of the contributions topic for one item in one tick."""

    lane: Lane
    tick: int
    key: str
    label: str


def of_users(
    lanes: Iterable[Lane], events: Iterable[tuple[Any, int]]
) -> Counter[Contributed]:
    """Return what counts of events, given the time at which each does, where users are bounded."""
    total: Counter[Contributed] = Counter()
    pairs: dict[Any, Counter[tuple[str, str]]] = defaultdict(Counter)
    for (event, at), lane in product(events, list(lanes)):
        tick = (at - lane.start_ms) // lane.tick_ms + 1
        epoch = 0 if lane.horizon is None else (tick - 1) // lane.horizon
        used = pairs[lane, epoch, event["who"]]
        for label in list(dict.fromkeys(event["items"]))[: lane.max_items]:
            pair = event["key"], label
            if pair in used or len(used) < (lane.max_items_per_user or 0):
                added = min(event["items"].count(label), lane.max_count - used[pair])
                used[pair] += added
                total[Contributed(lane, tick, *pair)] += added
    return +total


def contents(messages: Iterable[Message]) -> Counter[Contributed]:
    total: Counter[Contributed] = Counter()
    for section in (section for message in messages for section in message.sections):
        for key, label, count in rows_of(section):
            total[Contributed(section.lane, section.tick, key, label)] += count
    return total


Event = tuple[str, Items, int]
NEVER: Mapping[int, int] = MappingProxyType({})


def unk(**changes: object) -> UnkBaseConfig:
    values: dict[str, object] = {
        "name": "h",
        "tick_ms": 10,
        "horizon": 8,
        "keys": "public",
    }
    values |= {"max_items": 2, "max_count": 1, "epsilon": 40.0, "delta": 0.1} | changes
    return UnkBaseConfig(**values)  # type: ignore[arg-type]  # checked by the record itself


def contribute(
    partitions: Sequence[Sequence[Event]],
    configs: Sequence[HistogramConfig],
    *,
    owners: int,
    grace: int = 0,
    step: int = 5,
    further_ms: int = 1000,
    joins: Sequence[int] = (),
    grows: Mapping[int, int] = NEVER,
) -> list[list[bytes]]:
    """Return every owner partition's messages, sources interleaved `step` events at a time; all
    ticks close at the end.

    Time continues for `further_ms` after the last event. `joins` has the rounds, in order, in which
    the last partitions join; the others are there from the first. `grows` has the rounds in which
    source partition 0 tells that there will be more owners, and how many: in the next epoch of all
    `configs` of which no event was read in that round. The other sources know in the round after.
    """
    lanes = list(dict.fromkeys(config.lane for config in configs))
    intakes = [Intake(lanes, grace, KEY) for _ in partitions]
    readers = [reader() for _ in partitions]
    known_owners = Owners(owners)
    sequences = [[0] * owners for _ in partitions]
    out: list[list[bytes]] = [[] for _ in range(max([owners, *grows.values()]))]
    grids = [histogram_of(config).grid for config in configs]
    last = max((time for events in partitions for _, _, time in events), default=0)
    end = last + further_ms + grace
    first = len(partitions) - len(joins)
    begun = [0] * len(partitions)
    known = first
    rounds = max(map(len, partitions), default=0) // step + 3 + max([0, *joins, *grows])
    for round_ in range(rounds):
        grown = known_owners
        if round_ in grows:
            read = [
                time
                for events, since in zip(partitions, begun, strict=True)
                for _, _, time in events[: (round_ + 1 - since) * step]
            ]
            at_ms = next_epoch(
                grids, max([0, *read, *(at for _, at in known_owners.grown)])
            )
            assert at_ms is not None
            grown = Owners(owners, (*known_owners.grown, (grows[round_], at_ms)))
        for source, intake in enumerate(intakes[:known]):
            if source == 0:
                before = known_owners
                known_owners = grown
            knows = grown if source == 0 else before
            sequences[source] += [0] * (knows.number - len(sequences[source]))
            at = (round_ - begun[source]) * step
            intake.add(columns(partitions[source][at : at + step], readers[source]))
            if at >= len(partitions[source]) and round_ > max([-1, *joins, *grows]):
                intake.read_to_end(end)
            joining = source == 0 and (round_ in joins or round_ in grows)
            if source == 0 and round_ in joins:
                more = joins.count(round_)
                for new in range(known, known + more):
                    intakes[new].restore(intake.watermark, None)
                    begun[new] = round_ + 1
                known += more
            commit = intake.take_messages(
                source=source,
                sequences=sequences[source],
                offset=at,
                sources=known,
                joining=joining,
                owners=knows,
            )
            for owner, message in commit:
                out[owner].append(message.encoded())
    return out


def histogram_of(config: HistogramConfig, **changes: Any) -> Histogram:
    """Return a histogram of the only owner partition, before its first tick."""
    given: dict[str, Any] = {
        "worker": "w",
        "topic": f"w.{config.name}",
        "stream": "test",
        "events": {"items": "items"},
        "key": KEY,
        "owner": (0, 1),
    }
    return Histogram(config, build(config), **given | changes)


@dataclass
class Partition:
    configs: Sequence[HistogramConfig]
    sources: int
    owner: int = 0
    owners: int = 1
    key: NoiseKey = KEY
    stream: str = "test"
    store: dict[bytes, bytes] = field(default_factory=dict)
    waiting_bytes_max: int = 1 << 20
    signing_key: SigningKey | None = None
    #: What it has handed over: (owner partition, message).
    handed: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(
            sorted((k, v) for k, v in self.store.items() if k.startswith(prefix))
        )

    def restart(self) -> int:
        """Drop everything uncommitted; return the offset to resume at."""
        own: dict[str, Any] = {
            "stream": self.stream,
            "owner": (self.owner, self.owners),
        }
        signing = None
        if self.signing_key is not None:
            signing = Signing(SIGNATURES, "w", self.owner, self.key, self.signing_key)
        self.merge = Merge(
            [histogram_of(config, key=self.key, **own) for config in self.configs],
            key=self.key,
            sources=self.sources,
            owners=self.owners,
            waiting_bytes_max=self.waiting_bytes_max,
            signing=signing,
        )
        value = self.store.get(b"progress")
        if value is None:
            return 0
        progress = msgspec.json.decode(value, type=ReleaseProgress)
        self.merge.restore(progress, self.items)
        return progress.offset

    def go_on(self, messages: Sequence[bytes]) -> None:
        position = self.restart()
        self.receive(messages[position:], position)

    def receive(self, messages: Iterable[bytes], start: int) -> int:
        """Take messages from offset `start` on; return the position after them."""
        position = start
        for value in messages:
            self.merge.receive(value, position)
            position += 1
        self.merge.reached(position)
        return position

    def commit(
        self, ticks_max: int = 3, *, by_lane: bool = False
    ) -> list[Snapshot] | None:
        """Release at most `ticks_max` ticks in one transaction; None if no tick was complete."""
        released = self.merge.release(ticks_max=ticks_max, by_lane=by_lane)
        for owner, each in released.handed:
            made = handing_over(each, key=self.key.fingerprint)
            self.handed += [(owner, message.encoded()) for message in made]
        if released.ticks:
            for key, value in self.merge.changes():
                if value is None:
                    self.store.pop(key, None)
                else:
                    self.store[key] = value
            self.store[b"progress"] = msgspec.json.encode(self.merge.progress())
        return released.snapshots if released.ticks else None

    def run(self, messages: Sequence[bytes]) -> list[Snapshot]:
        self.receive(messages, 0)
        return self.release_all()

    def release_all(self) -> list[Snapshot]:
        out: list[Snapshot] = []
        while (part := self.commit()) is not None:
            out += part
        return out


# By global tick: counts by stream key and label.
Sums = Counter[tuple[str, str]]


def exact(
    partitions: Sequence[Sequence[Event]], config: HistogramConfig
) -> dict[int, Sums]:
    """Return each global tick's contributions, from events in order within their partition."""
    out: dict[int, Sums] = {}
    for events in partitions:
        for key, items, time in events:
            tick = (time - config.start_ms) // config.tick_ms + 1
            for label, n in bound(items, config.max_items, config.max_count).items():
                out.setdefault(tick, Counter())[key, label] += n
    return out
