"""Streams of events, scripts and neighbours.

Neighbours differ in content only: time, partition, offset and acceptance of a record are the same
in both. An accepted event may become garbage where its time moves no watermark, since rejected
records close nothing; garbage may become other garbage. With `neighbours = "record"` a record may
also be absent, or become any other.

All neighbours of a stream differ in the same event or user, so every two of them are neighbours:
n of them and the stream itself are (n + 1) n / 2 pairs. A grid of them (`grid`) has several records,
or users, each of which is in one of several states, absent or not, in all combinations: those that
differ in one of them are neighbours.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from typing import NamedTuple

import numpy as np

from tests.neighbours.scenes import (
    KEYS,
    LABELS,
    START_MS,
    TICK_MS,
    USERS,
    Content,
    Event,
    Record,
    Scene,
    Seed,
    Step,
    in_world,
)
from workers.kafka.placement import partitions_of
from workers.mechanisms.config.durations import parse_duration
from workers.runtime.metrics import CONTRIBUTE, REKEY, RELEASE

ALL = 1_000
#: Of a grid: its records or users (of which there are as many), and usually the states of each.
RECORDS = len(USERS)
STATES = 5
REMOVED = "a record more or less"
ACCEPTED_OR_NOT = "accepted or not"


@dataclass(frozen=True)
class Stream:
    """Events in order of arrival, and the script of both worlds."""

    scene: Scene
    events: tuple[Event, ...]
    script: tuple[Step, ...]

    def records(self) -> list[list[Record]]:
        found: list[list[Record]] = [[] for _ in range(self.scene.partitions)]
        for event in self.events:
            if not event.absent:
                found[event.partition].append(in_world(self.scene, event))
        return found


class Neighbour(NamedTuple):
    """A pair: `changed` are places of events; `counts`: whether any of them counts in either.

    `refused` are the places of events that count nowhere, whatever their content.
    """

    kind: str
    events: tuple[Event, ...]
    changed: tuple[int, ...]
    counts: bool
    before: tuple[Event, ...]
    users: bool
    refused: frozenset[int] = frozenset()

    def items(self, world: Sequence[Event]) -> set[tuple[str, str]]:
        """Return stream keys and labels that changed events, or others of their user, may count."""
        users = {self.before[i].user for i in self.changed}
        found = set[tuple[str, str]]()
        for i, event in enumerate(world):
            changed = i in self.changed or (self.users and event.user in users)
            if i in self.refused or event.garbage is not None or event.absent:
                continue
            if changed:
                labels = (*dict(event.content.items), *event.content.other)
                found.update((event.content.key, label) for label in labels)
        return found


class Neighbours(NamedTuple):
    """The events of a stream, its own first, of which every two are neighbours.

    `counts`: whether any changed event of each counts.
    """

    kind: str
    changed: tuple[int, ...]
    users: bool
    events: list[tuple[Event, ...]]
    counts: list[bool]

    def pairs(self) -> Iterator[tuple[int, int]]:
        return combinations(range(len(self.events)), 2)

    def pair(self, one: int, two: int) -> Neighbour:
        counts = self.counts[one], self.counts[two]
        kind = self.kind if counts[0] == counts[1] else ACCEPTED_OR_NOT
        events = self.events[one], self.events[two]
        return Neighbour(
            kind, events[1], self.changed, any(counts), events[0], self.users
        )


class Grid(NamedTuple):
    """The events of a stream, its own first, in all combinations of the states of some records.

    `changed` has the places of all these records, `places` those of each, or of each user; `states`
    the state of each in every world, as a number; `refused` the places of those that count nowhere.
    """

    changed: tuple[int, ...]
    users: bool
    places: list[tuple[int, ...]]
    states: list[tuple[int, ...]]
    events: list[tuple[Event, ...]]
    refused: frozenset[int]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield worlds that differ in the state of one record, or of one user's."""
        numbers = {states: number for number, states in enumerate(self.states)}
        most = 1 + max(map(max, self.states))
        for states, number in numbers.items():
            for i, state in enumerate(states):
                for later in range(state + 1, most):
                    other = (*states[:i], later, *states[i + 1 :])
                    if other in numbers:
                        yield number, numbers[other]

    def pair(self, one: int, two: int) -> Neighbour:
        before = self.events[one]
        after = self.events[two]
        states = zip(self.places, self.states[one], self.states[two], strict=True)
        differing = [places for places, mine, yours in states if mine != yours]
        changed = tuple(chain.from_iterable(differing))
        removed = any(before[i].absent != after[i].absent for i in changed)
        kind = REMOVED if removed else "a record replaced"
        counts = any(
            not (world[i].absent or world[i].garbage)
            for world in (before, after)
            for i in changed
            if i not in self.refused
        )
        refused = self.refused
        return Neighbour(kind, after, changed, counts, before, self.users, refused)


def make_stream(scene: Scene, seed: Seed) -> Stream:
    rng = random.Random(f"stream {seed}")
    now_ms = START_MS + rng.randrange(10) * TICK_MS + rng.choice((0, 1, 500, 999))
    lag_ms = rng.choice((0, 0, 0, 0, 0, 0, 5, 2_000, 11_000))
    events = list[Event]()
    script = list[Step]()
    raised = rng.random() < 0.2
    number = rng.randrange(4, 12)
    for place in range(number):
        now_ms += rng.choice((0, 1, 40, 100, 200, 500, 900, 1_000))
        events.append(_event(rng, scene, now_ms))
        if rng.random() < 0.1:
            lag_ms += rng.choice((700, 3_000))
        if rng.random() < 0.5:
            script += _steps(rng, scene, now_ms + lag_ms)
        if raised and place == number * 2 // 3:
            script.append(Step("raise", "", 0, 0, now_ms + lag_ms))
    script += closing(scene, now_ms + lag_ms)
    return Stream(scene, tuple(events), tuple(script))


def _event(rng: random.Random, scene: Scene, now_ms: int) -> Event:
    user = rng.choice(USERS)
    partition = rng.randrange(scene.partitions)
    if scene.unit == "user" and not scene.rekey and rng.random() < 0.9:
        partition = _home(user, scene.partitions)
    at = now_ms - rng.choice((0, 0, 0, 0, 0, 300, 900, 2_500, 6_000))
    if rng.random() < 0.12 and not scene.tight:
        # With `neighbours = "record"` `max_ahead` is between the last two.
        far_ms = 400_000 if scene.record else 30_000
        at = now_ms + rng.choice((300, 1_000, 2_500, far_ms, 400_000))
    garbage = rng.choice(_garbage(scene)) if rng.random() < 0.1 else None
    return Event(partition, at, now_ms, user, _content(rng, scene), garbage)


_HOMES: dict[tuple[str, int], int] = {}


def _home(user: str, partitions: int) -> int:
    if (user, partitions) not in _HOMES:
        data = np.frombuffer(user.encode(), dtype=np.uint8)
        places = np.array([[0, len(data)]], dtype=np.int64)
        _HOMES[user, partitions] = int(partitions_of(data, places, partitions)[0])
    return _HOMES[user, partitions]


def _content(rng: random.Random, scene: Scene) -> Content:
    keys = scene.document["histogram"][0]["keys"]
    keys = KEYS if keys == "public" else keys
    labels = [
        rng.choice(LABELS[: rng.choice((2, 2, 3, 9, 13))])
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))
    ]
    items = tuple((label, rng.choice((1, 1, 2, 5))) for label in labels)
    other = tuple(rng.choice(LABELS) for _ in range(rng.choice((0, 1, 3))))
    return Content(rng.choice(keys), items, other, rng.choice("xxy"))


def _garbage(scene: Scene, readable: str | None = None) -> list[str]:
    """Return kinds of garbage; where given, only those of which `rekey` can read as much."""
    public = scene.document["histogram"][0]["keys"] == "public"
    return [
        name
        for name, kind in scene.garbage.items()
        if readable in (None, kind.readable)
        and not (public and name == "undeclared key")
    ]


def _steps(rng: random.Random, scene: Scene, now_ms: int) -> Iterator[Step]:
    first = REKEY if scene.rekey else CONTRIBUTE
    if rng.random() < 0.25:
        numbers = {
            first: scene.partitions,
            CONTRIBUTE: scene.sources,
            RELEASE: scene.owners,
        }
        for stage, number in numbers.items():
            if rng.random() < 0.5:
                yield from (
                    Step("restart", stage, place, 0, now_ms) for place in range(number)
                )
        yield from _everything(scene, now_ms)
        return
    partition = rng.randrange(scene.partitions)
    if rng.random() < 0.15:
        yield Step("restart", first, partition, 0, now_ms)
    yield Step("read", first, partition, rng.choice((1, 2, 3, ALL)), now_ms)
    if rng.random() < 0.3:
        yield Step("read", first, partition, ALL, now_ms)
        yield Step("end", first, partition, 0, now_ms)
    if rng.random() < 0.3:
        yield Step("idle", first, partition, 0, now_ms)
    if scene.rekey and rng.random() < 0.6:
        source = rng.randrange(scene.sources)
        if rng.random() < 0.15:
            yield Step("restart", CONTRIBUTE, source, 0, now_ms)
        yield Step("read", CONTRIBUTE, source, rng.choice((1, 3, ALL)), now_ms)
        if rng.random() < 0.3:
            yield Step("idle", CONTRIBUTE, source, 0, now_ms)
    if rng.random() < 0.3:
        owner = rng.randrange(scene.owners)
        if rng.random() < 0.3:
            yield Step("restart", RELEASE, owner, 0, now_ms)
        yield Step("read", RELEASE, owner, ALL, now_ms)


def closing(scene: Scene, now_ms: int) -> Iterator[Step]:
    """Close every tick by the clock, and release them all.

    What follows a commit of full buffers is committed in a later round, a stage in each.
    """
    rounds = 3 if scene.tight else 1
    for _ in range(rounds):
        now_ms += 2_000
        yield from _everything(scene, now_ms)
    if scene.record and scene.window_ms:
        # Until windows are empty, and labels leave them.
        now_ms += 2 * scene.window_ms
        for owner in range(scene.owners):
            yield Step("restart", RELEASE, owner, 0, now_ms)
        yield from _everything(scene, now_ms)
    for owner in range(scene.owners):
        yield Step("idle", RELEASE, owner, 0, now_ms + 2_000)


def _everything(scene: Scene, now_ms: int) -> Iterator[Step]:
    """Read what is there in every stage, and close the ticks that are over."""
    first = REKEY if scene.rekey else CONTRIBUTE
    for partition in range(scene.partitions):
        yield Step("read", first, partition, ALL, now_ms)
        yield Step("end", first, partition, 0, now_ms)
    if scene.rekey:
        for source in range(scene.sources):
            yield Step("read", CONTRIBUTE, source, ALL, now_ms)
            yield Step("idle", CONTRIBUTE, source, 0, now_ms)
    for owner in range(scene.owners):
        yield Step("read", RELEASE, owner, ALL, now_ms)


def read_at(stream: Stream) -> list[int]:
    """Return the clock at which each event is first read."""
    places: list[list[int]] = [[] for _ in range(stream.scene.partitions)]
    for place, event in enumerate(stream.events):
        places[event.partition].append(place)
    found = [0] * len(stream.events)
    done = [0] * stream.scene.partitions
    first = REKEY if stream.scene.rekey else CONTRIBUTE
    for step in stream.script:
        if step.kind == "read" and step.stage == first:
            own = places[step.partition]
            for place in own[done[step.partition] : done[step.partition] + step.most]:
                if stream.events[place].arrived_ms > step.now_ms:
                    break
                found[place] = step.now_ms
                done[step.partition] += 1
    return found


def neighbours(stream: Stream, seed: Seed, number: int) -> Neighbours:
    """Return the stream and its neighbours, in one event or user, or only in a rejected record."""
    rng = random.Random(f"neighbours {seed}")
    scene = stream.scene
    if scene.record:
        return _records(stream, rng, number)
    events = stream.events
    users = scene.unit == "user"
    place = rng.randrange(len(events))
    event = events[place]
    clock = read_at(stream)
    refused = [_is_refused(stream, one) for one in events]
    others = range(number - 1)
    if event.garbage is not None or (refused[place] and not scene.rekey):
        kind = "garbage"
        kinds = _garbage(scene)
        if event.garbage is None:
            kind = "refused"
            kinds = ["", *kinds]
        elif scene.rekey:
            kinds = _garbage(scene, scene.garbage[event.garbage].readable)
        new = [
            replace(
                event, content=_content(rng, scene), garbage=rng.choice(kinds) or None
            )
            for _ in others
        ]
        worlds = [_with(events, (place,), (one,)) for one in new]
        return Neighbours(kind, (place,), users, [events, *worlds], [False] * number)
    before = [
        i
        for i, one in enumerate(events[:place])
        if one.partition == event.partition and not (refused[i] or one.garbage)
    ]
    # Others have moved the watermark at least as far, so that this one does not.
    may_fail = not scene.rekey and any(
        event.time_ms <= events[i].time_ms <= clock[i] for i in before
    )
    own: tuple[int, ...] = (place,)
    if users:
        own = tuple(
            i
            for i, one in enumerate(events)
            if one.user == event.user and one.garbage is None and not refused[i]
        )
    worlds = [events]
    counts = [True]
    for _ in others:
        empty = rng.random() < 0.3
        fails = may_fail and rng.random() < 0.3
        made = []
        for i in own:
            content = _content(rng, scene)
            content = Content(content.key) if empty else content
            garbage = rng.choice(_garbage(scene)) if fails and i == place else None
            made.append(replace(events[i], content=content, garbage=garbage))
        worlds.append(_with(events, own, made))
        counts.append(users or not fails)
    return Neighbours("user" if users else "event", own, users, worlds, counts)


def _is_refused(stream: Stream, event: Event) -> bool:
    """Return whether an event is rejected whatever its content: dated ahead, or misplaced."""
    scene = stream.scene
    # Restarted shards read again: a record is refused if it is ahead of the last clock as well.
    latest = stream.script[-1].now_ms + max_ahead_ms(scene)
    if scene.record:
        # It is judged by the end of the tick that is open then.
        latest += max(lane.tick_ms for lane in scene.all_lanes)
    by_user = scene.unit == "user" and not scene.rekey
    return event.time_ms > latest or (
        by_user and event.partition != _home(event.user, scene.partitions)
    )


def _records(stream: Stream, rng: random.Random, number: int) -> Neighbours:
    """Return the stream and its neighbours, in one record or all of a user."""
    events = stream.events
    scene = stream.scene
    place = rng.randrange(len(events))
    users = scene.unit == "user"
    own: tuple[int, ...] = (place,)
    if users:
        user = events[place].user
        own = tuple(i for i, one in enumerate(events) if one.user == user)
    worlds = [events]
    for _ in range(number - 1):
        made = []
        for i in own:
            garbage = rng.choice(_garbage(scene)) if rng.random() < 0.2 else None
            absent = rng.random() < 0.5
            content = _content(rng, scene)
            made.append(
                replace(events[i], content=content, garbage=garbage, absent=absent)
            )
        worlds.append(_with(events, own, made))
    return Neighbours("records", own, users, worlds, [True] * number)


def grid(stream: Stream, seed: Seed, states_max: int) -> Grid:
    """Return a grid: of up to `RECORDS` records, or users, each in one of so many states."""
    rng = random.Random(f"grid {seed}")
    events = stream.events
    scene = stream.scene
    users = scene.unit == "user"
    chosen = rng.sample(range(len(events)), min(RECORDS, len(events)))
    places: list[tuple[int, ...]] = [(i,) for i in chosen]
    if users:
        names = sorted({one.user for one in events})
        places = [
            tuple(i for i, one in enumerate(events) if one.user == name)
            for name in names
        ]
    choices = [
        list(_choices(rng, scene, [events[i] for i in own], states_max))
        for own in places
    ]
    states = list(product(*(range(len(each)) for each in choices)))
    worlds = []
    for state in states:
        whole = list(events)
        for own, each, number in zip(places, choices, state, strict=True):
            for i, event in zip(own, each[number], strict=True):
                whole[i] = event
        worlds.append(tuple(whole))
    refused = frozenset(i for i, one in enumerate(events) if _is_refused(stream, one))
    return Grid(tuple(chain(*places)), users, places, states, worlds, refused)


def _choices(
    rng: random.Random, scene: Scene, events: Sequence[Event], number: int
) -> Iterator[tuple[Event, ...]]:
    """Yield different states of a record, or of a user's: as they are, absent, and others."""
    found = [tuple(events), tuple(replace(one, absent=True) for one in events)]
    # Of a record that is absent the content does not matter: no two such states are different.
    single = len(events) == 1
    while len(found) < number:
        made = []
        for event in events:
            garbage = rng.choice(_garbage(scene)) if rng.random() < 0.2 else None
            if not single and rng.random() < 0.5:
                made.append(replace(event, absent=True))
                continue
            content = _content(rng, scene)
            made.append(replace(event, content=content, garbage=garbage))
        if tuple(made) not in found:
            found.append(tuple(made))
    yield from found


def _with(
    events: tuple[Event, ...], places: Sequence[int], new: Sequence[Event]
) -> tuple[Event, ...]:
    whole = list(events)
    for place, event in zip(places, new, strict=True):
        whole[place] = event
    return tuple(whole)


def max_ahead_ms(scene: Scene) -> int:
    return parse_duration(scene.document["events"]["max_ahead"])
