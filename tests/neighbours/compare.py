"""What two neighbouring worlds must have in common, and by how much they may differ.

Every check yields a sentence for each violation. What a shard did is read once, for all pairs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from tests.contract.variants import PER_TICK
from tests.neighbours.driver import Commit, Log, Trail, World
from tests.neighbours.pairs import Neighbour
from tests.neighbours.rules import TRAITS, kind_of, progress
from tests.neighbours.scenes import BY_USER, NAME, Event, Scene
from tests.pipeline.pipeline import rows_of, users_of
from workers.kafka.records import Headers, Outgoing
from workers.mechanisms.config.histogram import HistogramConfig, Lane
from workers.pipeline.contributions import decode
from workers.runtime.metrics import CONTRIBUTE, REKEY, RELEASE

# Fields of a snapshot that published items and answers decide; all others are public.
CONTENT = (
    *(
        "items",
        "sums",
        "all_items",
        "labels",
        "value",
        "answers",
        "since",
        "error",
        "quantiles",
    ),
    *("complete", "asked", "refused", "labels_left", "queries_left"),
)


class Row(NamedTuple):
    """An item of the contributions topic."""

    lane: Lane
    tick: int
    key: str
    label: str
    # Of unique users.
    user: str = ""


@dataclass(slots=True)
class Sizes:
    ticks: int = 0
    rows: int = 0


Named = tuple[Lane, int, str]
# Topic, partition and offset of a record of events.
Place = tuple[str, int, int]
# Topic, stream key and end of the tick of a snapshot.
Tick = tuple[str, str, int]


class Told(NamedTuple):
    """What of a commit of events or by user must not depend on content, but for `rejects`."""

    progress: Any
    rejects: list[tuple[Place, Outgoing]]
    marks: list[Outgoing]
    sent: list[tuple[object, ...]]


class Shown(NamedTuple):
    """A commit of stage 2, and when; with each snapshot the first tick of its histogram."""

    progress: Any
    at_ms: int
    messages: int
    snapshots: dict[Tick, tuple[Outgoing, int]]


@dataclass(slots=True)
class Moved:
    """How two worlds differ before noise.

    `of_key` has by histogram and stream key ticks, labels and by how much they differ; `late` where
    stream keys are public the first tick in which only one world names one. Where unique users are
    counted, `with_users` has by lane, stream key and label the ticks of each user in either world.
    """

    rows: Counter[Row] = field(default_factory=Counter)
    named: set[Named] = field(default_factory=set)
    of_key: dict[tuple[str, str], list[tuple[int, str, int]]] = field(
        default_factory=dict
    )
    late: dict[tuple[str, str], int] = field(default_factory=dict)
    with_users: dict[tuple[Lane, str, str], list[dict[str, set[int]]]] = field(
        default_factory=dict
    )

    def add_users(self, world: int, rows: Mapping[Row, int]) -> None:
        """Note in which ticks users of items have an event."""
        for row in rows:
            if row.user:
                place = row.lane, row.key, row.label
                worlds = self.with_users.setdefault(place, [{}, {}])
                worlds[world].setdefault(row.user, set()).add(row.tick)

    def users_by(self, place: tuple[Lane, str, str], begin: int, end: int) -> int:
        """Return how many users more the second world has of an item in some ticks."""
        numbers = [
            sum(any(begin <= at <= end for at in ticks) for ticks in users.values())
            for users in self.with_users.get(place, ({}, {}))
        ]
        return numbers[1] - numbers[0]

    def sort(self, scene: Scene) -> None:
        self.rows = Counter({row: n for row, n in self.rows.items() if n})
        for config in scene.settings.histograms:
            of_config = scene.lanes[config.name]
            for row, n in self.rows.items():
                if row.lane in of_config:
                    own = row.tick, row.label, n if row.lane == of_config[0] else 0
                    self.of_key.setdefault((config.name, row.key), []).append(own)
            for lane, tick, key in self.named if config.keys == "public" else ():
                if lane == of_config[0]:
                    place = config.name, key
                    self.late[place] = min(tick, self.late.get(place, tick))


class Comparison:
    """Compares worlds of one stream."""

    def __init__(self, scene: Scene, sizes: Sizes) -> None:
        self.scene = scene
        self._sizes = sizes
        self._configs = {
            topic: config
            for config in scene.settings.histograms
            for _, topic in scene.settings.outputs(config)
        }
        self._public = any(config.keys == "public" for config in self._configs.values())
        self._exact = cache(self._read_counts)
        self._told = cache(self._read_told)
        self._shown = cache(self._read_shown)

    def pair(self, base: World, other: World, neighbour: Neighbour) -> Iterator[str]:
        """Yield every violation between a world and its neighbour's."""
        moved = Moved()
        places = _changed_places(self.scene, base, other, neighbour)
        differing: list[tuple[Trail, Trail]] = []
        for where, ours in base.of.items():
            theirs = other.of[where]
            if ours is theirs:
                if where[0] == RELEASE:
                    self._sizes.rows += sum(one.messages for one in self._shown(ours))
                continue
            if ours.ended != theirs.ended:
                yield f"{where}: ends at {ours.ended}, the neighbour at {theirs.ended}"
                continue
            steps = [self._steps(each) for each in (ours, theirs)]
            internal = self.scene.record and where[0] != RELEASE
            if steps[0] != steps[1] and not internal:
                yield f"{where}: commits at steps {steps[0]}, the neighbour at {steps[1]}"
                continue
            differing.append((ours, theirs))
            if where[0] == CONTRIBUTE:
                (before, names) = self._exact(ours)
                (after, new_names) = self._exact(theirs)
                moved.rows.update(after)
                moved.rows.subtract(before)
                moved.add_users(0, before)
                moved.add_users(1, after)
                moved.named |= names ^ new_names
            if where[0] != RELEASE and not internal:
                yield from self._sources(ours, theirs, places)
        moved.sort(self.scene)
        yield from _bounded(self.scene, neighbour, moved.rows)
        for ours, theirs in differing:
            if ours.where[0] == RELEASE:
                pairs = zip(
                    self._shown(ours),
                    self._shown(theirs),
                    self._steps(ours),
                    strict=True,
                )
                for one, two, step in pairs:
                    yield from self._released(step, one, two, moved)

    def _steps(self, trail: Trail) -> list[int]:
        """Return the steps at which a shard told of something.

        Where buffers are full, content may cut it into more commits, and in a backlog a tick may
        appear earlier: of stage 1 only the last commit is compared, of stage 2 all of them together.
        """
        steps = [commit.step for commit in trail.commits]
        cut = self.scene.tight and trail.where[0] != REKEY and not self.scene.record
        return steps[-1:] if cut else steps

    def _read_counts(self, trail: Trail) -> tuple[Counter[Row], set[Named]]:
        """Return what a source partition contributed, and where it named stream keys."""
        found: Counter[Row] = Counter()
        named = set[Named]()
        for commit in trail.commits:
            for one in commit.messages:
                if one.topic == self.scene.contributions:
                    for section in decode(one.value or b"").sections:
                        named.update(
                            (section.lane, section.tick, key) for key in section.keys
                        )
                        rows = rows_of(section)
                        users = users_of(section)
                        for (key, label, count), user in zip(rows, users, strict=True):
                            row = Row(section.lane, section.tick, key, label, user)
                            # A user in two commits of a tick is one user to stage 2.
                            found[row] = 1 if user else found[row] + count
        return found, named

    def _read_told(self, trail: Trail) -> list[Told]:
        found = []
        for commit in trail.commits:
            state = progress(commit)
            # of owners with contributions, between closed ticks
            state.pop("sequences", None)
            marks = list[Outgoing]()
            sent = list[tuple[object, ...]]()
            if trail.where[0] == REKEY:
                marks = [m for m in commit.messages if m.topic == BY_USER]
                sent = [(*m[1:4], _late(m[4])) for m in commit.forwarded]
            found.append(Told(state, list(_rejects(commit)), marks, sent))
        if self.scene.tight and trail.where[0] == CONTRIBUTE and found:
            rejects = sorted(
                chain.from_iterable(one.rejects for one in found), key=itemgetter(0)
            )
            return [found[-1]._replace(rejects=rejects)]
        return found

    def _read_shown(self, trail: Trail) -> list[Shown]:
        found = list[Shown]()
        for commit in trail.commits:
            state = progress(commit)
            # Between closed ticks, an owner without contributions does not learn of the watermark.
            marks = [_closed(self.scene, mark) for mark in state["watermarks"]]
            kept = {name: state[name] for name in ("firsts", "histograms", "retired")}
            for _, life in kept["retired"]:
                life["until"] = _closed(self.scene, life.get("until"))
            snapshots = {}
            for m in commit.messages:
                first = kept["histograms"][self._configs[m.topic].name]["first"]
                snapshots[m.topic, (m.key or b"").decode(), m.timestamp_ms or 0] = (
                    m,
                    first,
                )
            kept = {"watermarks": marks, **kept}
            shown = Shown(kept, commit.now_ms, len(commit.messages), snapshots)
            if self.scene.tight and found and not self.scene.record:
                both = found[-1].snapshots | snapshots
                messages = found.pop().messages + shown.messages
                shown = Shown(kept, commit.now_ms, messages, both)
            found.append(shown)
        return found

    def _sources(self, ours: Trail, theirs: Trail, places: set[Place]) -> Iterator[str]:
        pairs = zip(
            self._told(ours), self._told(theirs), self._steps(ours), strict=True
        )
        for one, two, step in pairs:
            if one == two:
                continue
            at = f"step {step}: {ours.where}"
            names = ("commits", "marks", "forwards")
            said = zip(names, (one[0], *one[2:]), (two[0], *two[2:]), strict=True)
            for name, mine, yours in said:
                if mine != yours:
                    yield f"{at} {name} {mine}, the neighbour {yours}"
            rejects = [
                [m for place, m in each.rejects if place not in places]
                for each in (one, two)
            ]
            if rejects[0] != rejects[1]:
                yield f"{at} rejects {rejects[0]}, the neighbour {rejects[1]}"

    def _released(
        self, step: int, one: Shown, two: Shown, moved: Moved
    ) -> Iterator[str]:
        for name, mine in one.progress.items():
            if mine != two.progress[name]:
                theirs = two.progress[name]
                yield f"step {step}: release keeps {name} {mine}, the neighbour {theirs}"
                return
        if self.scene.record and one.at_ms != two.at_ms:
            yield f"step {step}: delivered at {one.at_ms}, the neighbour at {two.at_ms}"
        values = one.snapshots, two.snapshots
        if [one.messages, two.messages] != [len(mine) for mine in values]:
            yield f"step {step}: a tick is published twice"
        order = [list(mine) for mine in values]
        if values[0].keys() != values[1].keys():
            order = [
                [place for place in mine if place in values[1 - i]]
                for i, mine in enumerate(order)
            ]
        if self.scene.tight and not self.scene.record:
            for mine in order:
                # ticks of other histograms may appear between
                mine.sort(key=itemgetter(0))
        # Keys first met in the differing tick may be in another order.
        if (sorted(order[0]) if self._public else order[0]) != (
            sorted(order[1]) if self._public else order[1]
        ):
            yield f"step {step}: snapshots in another order"
        for topic, key, end_ms in values[0].keys() ^ values[1].keys():
            config = self._configs[topic]
            tick = (end_ms - config.start_ms) // config.tick_ms
            if moved.late.get((config.name, key), tick + 1) > tick:
                yield f"step {step}: only one world publishes {topic} {key} tick {tick}"
        for place in order[0]:
            config = self._configs[place[0]]
            (mine, first) = values[0][place]
            (yours, _) = values[1][place]
            yield from _snapshots(config, first, place[1], mine, yours, moved)
        self._sizes.rows += len(order[0])
        self._sizes.ticks += len({(topic, end) for topic, _, end in order[0]})


def rejected(
    world: World, events: Sequence[Event], changed: Sequence[int]
) -> Iterator[str]:
    """Check that changed records that are garbage were rejected, once read."""
    if world.scene.rekey:
        return
    for place, (topic, partition, at) in _offsets(events).items():
        commits = world.of[CONTRIBUTE, partition].commits
        if place not in changed or events[place].garbage is None or not commits:
            continue
        found = {where for commit in commits for where, _ in _rejects(commit)}
        if (topic, partition, at) not in found and progress(commits[-1])["offset"] > at:
            yield f"garbage is accepted: {events[place].garbage}"


def _offsets(events: Sequence[Event]) -> dict[int, Place]:
    """Return where the record of each event is."""
    counts: Counter[int] = Counter()
    found = {}
    for place, event in enumerate(events):
        if event.absent:
            continue
        found[place] = "events", event.partition, counts[event.partition]
        counts[event.partition] += 1
    return found


def _changed_places(
    scene: Scene, base: World, other: World, neighbour: Neighbour
) -> set[Place]:
    """Return topic, partition and offset of records that differ."""
    offsets = _offsets(neighbour.events)
    found = {offsets[place] for place in neighbour.changed if place in offsets}
    if scene.rekey:
        for source in range(scene.sources):
            logs: list[Log] = [world.log(CONTRIBUTE, source) for world in (base, other)]
            for one, two in zip_longest(logs[0].sent, logs[1].sent):
                if one != two:
                    found.add((BY_USER, source, (one or two).offset))
    return found


def _late(headers: Headers | None) -> bytes:
    """Return the time in a forwarded record's header, without its original key."""
    return b"" if not headers else (headers[0][1] or b"")[:8]


def _rejects(commit: Commit) -> Iterator[tuple[Place, Outgoing]]:
    for one in commit.messages:
        if one.topic == f"{NAME}.rejects":
            said = {name: value or b"" for name, value in one.headers}
            yield (
                (said["topic"].decode(), int(said["partition"]), int(said["offset"])),
                one,
            )


def _bounded(scene: Scene, neighbour: Neighbour, moved: Counter[Row]) -> Iterator[str]:
    """Check that contributions differ as much as one event or user may."""
    if moved and not neighbour.counts:
        yield f"records that are rejected count: {_few(moved)}"
    users = scene.unit == "user"
    for sign in (1, -1):
        parts: dict[tuple[Lane, int], Counter[tuple[str, str]]] = defaultdict(Counter)
        for row, n in moved.items():
            if n * sign > 0:
                epoch = row.lane.epoch(row.tick) if users else 0
                parts[row.lane, epoch][row.key, row.label] += n * sign
        for (lane, _), counts in parts.items():
            most = lane.max_items_per_user if users else lane.max_items
            largest = lane.max_count
            if lane.names_users:
                # A user's row is in each tick of a period with an event of it.
                largest = lane.horizon or 0
            if lane.sketch:
                # One world's event is another's in the other: two moves of all counters by one.
                most = 2 * lane.sketch
                largest = 2
            if len(counts) > (most or 0):
                yield f"more than {most} items differ: {_few(moved)}"
            if max(counts.values()) > largest:
                yield f"a count differs by more than {largest}: {_few(moved)}"
            if not users and len({key for key, _ in counts}) > 1:
                yield f"several stream keys gain or lose: {_few(moved)}"
    if not users:
        for lane in {row.lane for row in moved}:
            if len({row.tick for row in moved if row.lane == lane}) > 1:
                yield f"counts of several ticks differ: {_few(moved)}"
    if len({row.user for row in moved if row.user}) > 1:
        yield f"rows of several users differ: {_few(moved)}"
    lost = neighbour.items(neighbour.before)
    gained = neighbour.items(neighbour.events)
    of_counts = {of_histogram[0] for of_histogram in scene.lanes.values()}
    foreign = {}
    for row, n in moved.items():
        # A user's item may take the place of another one; an item may lower a sum.
        either = users or row.lane not in of_counts
        possible = lost | gained if either else gained if n > 0 else lost
        if not row.lane.sketch and (row.key, row.label) not in possible:
            foreign[row] = n
    if foreign:
        yield f"counts of other items differ: {_few(foreign)}"


def _closed(scene: Scene, mark: int | None) -> list[int] | None:
    """Return the ticks that a watermark closes, by lane."""
    if mark is None:
        return None
    return [(mark - lane.start_ms) // lane.tick_ms for lane in scene.all_lanes]


def _few(moved: Mapping[Row, int]) -> str:
    return ", ".join(
        f"tick {row.tick} of {row.lane.tick_ms} ms, {row.key} {row.label[:9]!r} {n:+}"
        for row, n in list(moved.items())[:6]
    )


def _sums(
    one: Mapping[str, Any], two: Mapping[str, Any], touched: set[str], moved_by: int
) -> Iterator[str]:
    """Check that sums of other items are the same, and that totals differ as the counts do."""
    labels = ([label for label, _ in each.get("items", [])] for each in (one, two))
    pairs = zip(labels, (each.get("sums", []) for each in (one, two)), strict=True)
    before, after = (dict(zip(names, sums, strict=False)) for names, sums in pairs)
    for label in (before.keys() & after.keys()) - touched:
        if before[label] != after[label]:
            yield f"{label[:9]!r} has equal sums, published as {before[label]} and {after[label]}"
    if "all_items" in one:
        was = one["all_items"]["count"]
        now = two["all_items"]["count"]
        if now - was != moved_by:
            yield f"all items differ by {moved_by}, published as {was} and {now}"


def _snapshots(
    config: HistogramConfig,
    first: int,
    key: str,
    mine: Outgoing,
    yours: Outgoing,
    moved: Moved,
) -> Iterator[str]:
    if (mine.headers, mine.partition) != (yours.headers, yours.partition):
        yield f"{mine.topic}: snapshots with different headers"
    own = moved.of_key.get((config.name, key), ())
    # A public stream key is published from the tick at which it was first named.
    late = moved.late.get((config.name, key))
    if not own and late is None:
        if mine.value != yours.value:
            yield f"{mine.topic}: {key} has equal counts and is published as {mine.value!r} and {yours.value!r}"
        return
    one = orjson.loads(mine.value or b"")
    two = orjson.loads(yours.value or b"")
    tick = (one["start"] - config.start_ms) // config.tick_ms + 1
    begin = tick if config.mechanism in PER_TICK else max(first, tick - one["tick"] + 1)
    if "window" in one:
        counted = (one["window"]["from"] - config.start_ms) // config.tick_ms + 1
        begin = max(first, counted)
    differing: Counter[str] = Counter()
    touched = set()
    traits = TRAITS.get(kind_of(config), frozenset())
    told = set()
    for at, label, n in own:
        if begin <= at <= tick:
            differing[label] += n
            touched.add(label)
            if config.unique_users:
                place = config.lane, key, label
                differing[label] = moved.users_by(place, begin, tick)
        if at < begin and "tells" in traits:
            told.add(label)
    if not touched and not told and (late is None or late > tick):
        if mine.value != yours.value:
            yield f"{mine.topic}: {key} tick {tick} has equal counts and is published as {mine.value!r} and {yours.value!r}"
        return
    frames = [
        {n: v for n, v in each.items() if n not in CONTENT} for each in (one, two)
    ]
    if frames[0] != frames[1] or list(one) != list(two):
        yield f"{mine.topic}: {key} tick {tick}: public fields {frames[0]} and {frames[1]}"
    yield from _sums(one, two, touched, differing.total())
    if late is not None and config.mechanism == "meta":
        return  # it lacks the blocks before
    before, after = (dict[str, int](each.get("items", [])) for each in (one, two))
    for label in before.keys() | after.keys():
        was = before.get(label)
        now = after.get(label)
        moved_by = differing[label]
        shown = was is not None and now is not None
        wrong = "all" in traits and not shown
        wrong |= "sum" in traits and shown and now != (was or 0) + moved_by
        wrong |= "own" in traits and label not in touched | told and was != now
        if wrong:
            yield f"{mine.topic}: {key} tick {tick}: {label[:9]!r} differs by {moved_by}, published as {was} and {now}"
