"""What two neighbouring worlds must have in common, and by how much they may differ.

Every check yields a sentence for each violation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import orjson

from tests.contract.variants import PER_TICK
from tests.neighbours.driver import Commit, Log, Where, World
from tests.neighbours.pairs import Neighbour
from tests.neighbours.rules import TRAITS, kind_of, progress
from tests.neighbours.scenes import BY_USER, NAME, Event, Scene
from tests.pipeline.pipeline import rows_of
from workers.kafka.records import Headers, Outgoing
from workers.mechanisms.config.histogram import HistogramConfig, Lane
from workers.pipeline.contributions import decode
from workers.pipeline.factory import lanes
from workers.runtime.metrics import CONTRIBUTE, REKEY, RELEASE

# Fields of a snapshot that published items and answers decide; all others are public.
CONTENT = (
    *("items", "sums", "all_items", "labels", "value", "answers", "since", "error", "quantiles"),
    *("complete", "asked", "refused", "labels_left", "queries_left"),
)


class Row(NamedTuple):
    """An item of the contributions topic."""

    lane: Lane
    tick: int
    key: str
    label: str


@dataclass(slots=True)
class Sizes:
    ticks: int = 0
    rows: int = 0


Named = tuple[Lane, int, str]


def exact(scene: Scene, commits: Sequence[Commit]) -> tuple[Counter[Row], set[Named]]:
    """Return what a source partition contributed, and where it named stream keys."""
    found: Counter[Row] = Counter()
    named = set[Named]()
    for commit in commits:
        for one in commit.messages:
            if one.topic == scene.contributions:
                for section in decode(one.value or b"").sections:
                    named.update((section.lane, section.tick, key) for key in section.keys)
                    for key, label, count in rows_of(section):
                        found[Row(section.lane, section.tick, key, label)] += count
    return found, named


def compare(
    scene: Scene, base: World, other: World, neighbour: Neighbour, sizes: Sizes
) -> Iterator[str]:
    """Yield every violation between a world and its neighbour's."""
    moved, named = Counter[Row](), set[Named]()
    places = _changed_places(scene, base, other, neighbour)
    for where, commits in base.of.items():
        ours, theirs = commits, other.of[where]
        if ours is theirs:
            if where[0] == RELEASE:
                sizes.rows += sum(len(commit.messages) for commit in ours)
            continue
        steps = [commit.step for commit in ours], [commit.step for commit in theirs]
        if steps[0] != steps[1]:
            yield f"{where}: commits at steps {steps[0]}, the neighbour at {steps[1]}"
            continue
        if where[0] == CONTRIBUTE:
            (before, names), (after, new_names) = exact(scene, ours), exact(scene, theirs)
            moved.update(after)
            moved.subtract(before)
            named |= names ^ new_names
        for one, two in zip(ours, theirs, strict=True):
            if where[0] != RELEASE:
                yield from _sources(scene, where, one, two, places)
    if not scene.rekey:
        yield from _garbage(base, neighbour.before, places)
        yield from _garbage(other, neighbour.events, places)
    moved = Counter({row: n for row, n in moved.items() if n})
    yield from _bounded(scene, neighbour, moved)
    for where, ours in base.of.items():
        if (
            where[0] == RELEASE
            and (theirs := other.of[where]) is not ours
            and len(theirs) == len(ours)
        ):
            for one, two in zip(ours, theirs, strict=True):
                yield from _released(scene, one, two, moved, named, sizes)


def _garbage(
    world: World, events: Sequence[Event], places: set[tuple[str, int, int]]
) -> Iterator[str]:
    """Check that changed records that are garbage were rejected, once read."""
    counts: Counter[int] = Counter()
    for event in events:
        at, partition = counts[event.partition], event.partition
        counts[partition] += 1
        commits = world.of[CONTRIBUTE, partition]
        if event.garbage is None or ("events", partition, at) not in places or not commits:
            continue
        found = [one for commit in commits for one in _rejects(commit, set())]
        rejected = any(("offset", b"%d" % at) in one.headers for one in found)
        if not rejected and progress(commits[-1])["offset"] > at:
            yield f"garbage is accepted: {event.garbage}"


def _changed_places(
    scene: Scene, base: World, other: World, neighbour: Neighbour
) -> set[tuple[str, int, int]]:
    """Return topic, partition and offset of records that differ."""
    found, counts = set(), [0] * scene.partitions
    for place, event in enumerate(neighbour.events):
        if place in neighbour.changed:
            found.add(("events", event.partition, counts[event.partition]))
        counts[event.partition] += 1
    if scene.rekey:
        for source in range(scene.sources):
            logs: list[Log] = [world.log(CONTRIBUTE, source) for world in (base, other)]
            for one, two in zip_longest(logs[0].sent, logs[1].sent):
                if one != two:
                    found.add((BY_USER, source, (one or two).offset))
    return found


def _sources(
    scene: Scene, where: Where, one: Commit, two: Commit, places: set[tuple[str, int, int]]
) -> Iterator[str]:
    ours, theirs = progress(one), progress(two)
    for each in (ours, theirs):
        each.pop("sequences", None)  # of owners with contributions, between closed ticks
    if ours != theirs:
        yield f"step {one.step}: {where} commits {ours}, the neighbour {theirs}"
    rejects = [_rejects(commit, places) for commit in (one, two)]
    if rejects[0] != rejects[1]:
        yield f"step {one.step}: {where} rejects {rejects[0]}, the neighbour {rejects[1]}"
    if where[0] != REKEY:
        return
    marks = [[m for m in commit.messages if m.topic == BY_USER] for commit in (one, two)]
    if marks[0] != marks[1]:
        yield f"step {one.step}: {where} marks {marks[0]}, the neighbour {marks[1]}"
    sent = [[(*m[1:4], _late(m[4])) for m in commit.forwarded] for commit in (one, two)]
    if sent[0] != sent[1]:
        yield f"step {one.step}: {where} forwards {sent[0]}, the neighbour {sent[1]}"


def _late(headers: Headers | None) -> bytes:
    """Return the time in a forwarded record's header, without its original key."""
    return b"" if not headers else (headers[0][1] or b"")[:8]


def _rejects(commit: Commit, places: set[tuple[str, int, int]]) -> list[Outgoing]:
    found = []
    for one in commit.messages:
        if one.topic == f"{NAME}.rejects":
            said = {name: value or b"" for name, value in one.headers}
            if (said["topic"].decode(), int(said["partition"]), int(said["offset"])) not in places:
                found.append(one)
    return found


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
            if len(counts) > (most or 0):
                yield f"more than {most} items differ: {_few(moved)}"
            if max(counts.values()) > lane.max_count:
                yield f"a count differs by more than {lane.max_count}: {_few(moved)}"
            if not users and len({key for key, _ in counts}) > 1:
                yield f"several stream keys gain or lose: {_few(moved)}"
    if not users:
        for lane in {row.lane for row in moved}:
            if len({row.tick for row in moved if row.lane == lane}) > 1:
                yield f"counts of several ticks differ: {_few(moved)}"
    labels = {label for event in neighbour.labels for label in event}
    if foreign := {row.label for row in moved} - labels:
        yield f"counts of other labels differ: {foreign}"


def _closed(scene: Scene, mark: int | None) -> list[int] | None:
    """Return the ticks that a watermark closes, by lane."""
    if mark is None:
        return None
    return [(mark - lane.start_ms) // lane.tick_ms for lane in lanes(scene.settings)]


def _few(moved: Mapping[Row, int]) -> str:
    return ", ".join(
        f"tick {row.tick} of {row.lane.tick_ms} ms, {row.key} {row.label[:9]!r} {n:+}"
        for row, n in list(moved.items())[:6]
    )


def _released(
    scene: Scene, one: Commit, two: Commit, moved: Counter[Row], named: set[Named], sizes: Sizes
) -> Iterator[str]:
    ours, theirs = progress(one), progress(two)
    # Between closed ticks, an owner without contributions does not learn of the watermark.
    for each in (ours, theirs):
        each["watermarks"] = [_closed(scene, mark) for mark in each["watermarks"]]
    for name in ("watermarks", "firsts", "histograms", "retired"):
        if ours[name] != theirs[name]:
            yield f"step {one.step}: release keeps {name} {ours[name]}, the neighbour {theirs[name]}"
            return
    values = [
        {(m.topic, (m.key or b"").decode(), m.timestamp_ms or 0): m for m in commit.messages}
        for commit in (one, two)
    ]
    if [len(one.messages), len(two.messages)] != [len(mine) for mine in values]:
        yield f"step {one.step}: a tick is published twice"
    order = [[place for place in mine if place in values[1 - i]] for i, mine in enumerate(values)]
    configs = {scene.settings.output_topic(c): c for c in scene.settings.histograms}
    public = any(config.keys == "public" for config in configs.values())
    # Keys first met in the differing tick may be in another order.
    if (sorted(order[0]) if public else order[0]) != (sorted(order[1]) if public else order[1]):
        yield f"step {one.step}: snapshots in another order"
    for topic, name, end_ms in values[0].keys() ^ values[1].keys():
        config = configs[topic]
        tick = (end_ms - config.start_ms) // config.tick_ms
        if config.keys != "public" or not any(
            key == name and lane == config.lane and at <= tick for lane, at, key in named
        ):
            yield f"step {one.step}: only one world publishes {topic} {name} tick {tick}"
    for place in order[0]:
        config, sizes.rows = configs[place[0]], sizes.rows + 1
        first = ours["histograms"][config.name]["first"]
        mine, yours = values[0][place], values[1][place]
        yield from _snapshots(config, first, mine, yours, moved, named)
    sizes.ticks += len({(topic, end) for topic, _, end in order[0]})


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
        was, now = one["all_items"]["count"], two["all_items"]["count"]
        if now - was != moved_by:
            yield f"all items differ by {moved_by}, published as {was} and {now}"


def _snapshots(
    config: HistogramConfig,
    first: int,
    mine: Outgoing,
    yours: Outgoing,
    moved: Counter[Row],
    named: set[Named],
) -> Iterator[str]:
    if (mine.headers, mine.partition) != (yours.headers, yours.partition):
        yield f"{mine.topic}: snapshots with different headers"
    key = (mine.key or b"").decode()
    own = [
        (row.tick, row.label, n if row.lane == config.lane else 0)
        for row, n in moved.items()
        if row.key == key and row.lane in config.lanes
    ]
    # A public stream key is published from the tick at which it was first named.
    of_key = [at for lane, at, name in named if name == key and lane == config.lane]
    late = config.keys == "public" and bool(of_key)
    if not own and not late:
        if mine.value != yours.value:
            yield f"{mine.topic}: {key} has equal counts and is published as {mine.value!r} and {yours.value!r}"
        return
    one, two = orjson.loads(mine.value or b""), orjson.loads(yours.value or b"")
    tick = (one["start"] - config.start_ms) // config.tick_ms + 1
    begin = tick if config.mechanism in PER_TICK else max(first, tick - one["tick"] + 1)
    differing: Counter[str] = Counter()
    touched = set()
    for at, label, n in own:
        if begin <= at <= tick:
            differing[label] += n
            touched.add(label)
    if not touched and not (late and min(of_key) <= tick):
        if mine.value != yours.value:
            yield f"{mine.topic}: {key} tick {tick} has equal counts and is published as {mine.value!r} and {yours.value!r}"
        return
    frames = [{n: v for n, v in each.items() if n not in CONTENT} for each in (one, two)]
    if frames[0] != frames[1] or list(one) != list(two):
        yield f"{mine.topic}: {key} tick {tick}: public fields {frames[0]} and {frames[1]}"
    yield from _sums(one, two, touched, differing.total())
    if late and config.mechanism == "meta":
        return  # it lacks the blocks before
    traits = TRAITS.get(kind_of(config), frozenset())
    before, after = (dict[str, int](each.get("items", [])) for each in (one, two))
    for label in before.keys() | after.keys():
        was, now, moved_by = before.get(label), after.get(label), differing[label]
        shown = was is not None and now is not None
        wrong = "all" in traits and not shown
        wrong |= "sum" in traits and shown and now != (was or 0) + moved_by
        wrong |= "own" in traits and label not in touched and was != now
        if wrong:
            yield f"{mine.topic}: {key} tick {tick}: {label[:9]!r} differs by {moved_by}, published as {was} and {now}"
