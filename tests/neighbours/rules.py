"""What holds in every world by itself, and what is shared by worlds, by mechanism.

Before noise and around it neighbours must agree for all mechanisms. Of released numbers, a stream
key without differing counts is published in the same bytes, and by mechanism (`TRAITS`):

    own   an item whose own counts are equal is shown, or not, as in the other world
    sum   counts of an item that both worlds show differ exactly as its exact counts
    all   both worlds show the same items
    kept  an item once shown is shown to the end of its epoch, and from the first tick of the next
          one if its last count there was above two standard deviations; without that it is shown
          at a first tick only above its threshold
    tells items shown in an epoch tell which are shown in the next one: those of `own` may differ
          if their counts differed in an earlier epoch; without epochs, before the window

Without epochs an item of `kept` is shown in all windows, and leaves all of them after a tick that
is a multiple of the longest window's, if its count there is 0 or less; at no other time.

Others select among all items of a stream key, so their shown items may differ wherever it does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from tests.neighbours.driver import Commit, Where
from tests.neighbours.scenes import Scene
from workers.mechanisms.config.histogram import HistogramConfig
from workers.pipeline.contributions import decode
from workers.runtime.metrics import CONTRIBUTE, RELEASE

TRAITS: Mapping[str, frozenset[str]] = {
    name: frozenset(traits.split())
    for name, traits in {
        "known_base": "own sum all",
        "known_laplace": "own sum all",
        "unk_base": "own sum kept tells",
        "known_gauss": "own sum all",
        "positive_gauss": "own sum",
        "positive_laplace": "own sum",
        "unk_gauss": "sum",
        "limit_dom_laplace": "sum",
        "limit_dom": "sum",
        "known_gumbel": "sum",
        "sparse_gumb": "sum tells",
        "meta known_gauss": "own sum all",
        "meta positive_gauss": "own",
        "meta positive_laplace": "own",
    }.items()
}


def kind_of(config: HistogramConfig) -> str:
    algorithm = getattr(config, "algorithm", None)
    return config.mechanism if algorithm is None else f"{config.mechanism} {algorithm}"


def alone(scene: Scene, where: Where, commits: Sequence[Commit]) -> Iterator[str]:
    """Check a shard's commits by themselves: the rules of messages, and the form of snapshots."""
    if where[0] == CONTRIBUTE:
        yield from _messages(scene, where, commits)
    elif where[0] == RELEASE:
        yield from _form(scene, commits)


def _messages(scene: Scene, where: Where, commits: Sequence[Commit]) -> Iterator[str]:
    sequences = [0] * scene.owners
    before = None
    for commit in commits:
        now = progress(commit)
        owners = list[int]()
        mark = now["watermark"]
        first = now.get("first")
        closes = mark is not None and (
            before is None
            or any(
                (mark - x.start_ms) // x.tick_ms > (before - x.start_ms) // x.tick_ms
                for x in scene.all_lanes
            )
        )
        for one in commit.messages:
            if one.topic != scene.contributions:
                continue
            message = decode(one.value or b"")
            owner = one.partition or 0
            owners.append(owner)
            said = (
                message.source,
                message.sequence,
                message.watermark,
                message.first,
                message.offset,
            )
            if said != (where[1], sequences[owner], mark, first, now["offset"]):
                yield f"step {commit.step}: {where} tells owner {owner} {said}"
            if one.key is not None or (message.pages != 1 and not scene.tight):
                yield f"step {commit.step}: {where} sends owner {owner} a key or pages"
            if message.page > 1:
                owners.pop()
            if not (closes or message.sections):
                yield f"step {commit.step}: {where} sends owner {owner} an empty message"
            sequences[owner] += 1
        if closes and owners != list(range(scene.owners)):
            yield f"step {commit.step}: {where} closes a tick and tells owners {owners} only"
        if owners != sorted(set(owners)):
            yield f"step {commit.step}: {where} sends to owners {owners}"
        before = mark


def _form(scene: Scene, commits: Sequence[Commit]) -> Iterator[str]:
    configs = {
        topic: config
        for config in scene.settings.histograms
        for _, topic in scene.settings.outputs(config)
    }
    kept = {
        topic
        for topic, config in configs.items()
        if "kept" in TRAITS.get(kind_of(config), ())
    }
    shown: dict[tuple[str, ...], set[str]] = {}
    last: dict[tuple[str, str], Any] = {}
    leaving: dict[tuple[str, str, int], set[str]] = {}
    names = {topic: config.name for topic, config in configs.items()}
    charged = dict.fromkeys(names.values(), 0)
    for commit in commits:
        for one in commit.messages:
            value = orjson.loads(one.value or b"")
            if orjson.dumps(value) != one.value:
                yield f"{one.topic}: a snapshot is longer than what it says: {one.value!r}"
            items = value.get("items", [])
            if items != sorted(items, key=lambda item: (-item[1], item[0])):
                yield f"{one.topic}: items out of order: {one.value!r}"
            if scene.limited and value["epoch"] > charged[names[one.topic]]:
                yield f"{one.topic}: epoch {value['epoch']} is published before it is charged"
            if one.topic in kept:
                place = value["id"], str(value["epoch"]), value["key"]
                labels = {label for label, _ in items}
                config = configs[one.topic]
                lost = shown.get(place, set()) - labels
                if config.without_epochs:
                    of_key = config.name, value["key"]
                    expected = leaving.get((*of_key, value["tick"] - 1), set())
                    if place in shown and lost != expected:
                        yield f"{one.topic}: tick {value['tick']} no longer shows {lost} where {expected} leave"
                    if value["window"]["ms"] == max(config.windows):
                        ends = value["tick"] % max(config.window_ticks) == 0
                        leaving[*of_key, value["tick"]] = {
                            label for label, n in items if ends and n <= 0
                        }
                    shown[place] = labels
                    continue
                if lost:
                    yield f"{one.topic}: tick {value['tick']} of epoch {value['epoch']} no longer shows {lost}"
                shown[place] = labels
                series = one.topic, value["key"]
                yield from _carried(last.get(series), value)
                last[series] = value
        lives = progress(commit)["histograms"]
        charged = {name: life.get("reserved", 0) for name, life in lives.items()}


def _carried(last: Any, value: Any) -> Iterator[str]:
    """Check an epoch's first tick against the last one of the epoch before, on what is published."""
    if last is None or value["tick"] > 1 or value["start"] != last["end"]:
        return
    expected = {label for label, n in last["items"] if n > 2 * last["sd"]}
    threshold = value["threshold"]
    if threshold is not None:
        expected |= {label for label, n in value["items"] if n > threshold}
    labels = {label for label, _ in value["items"]}
    if labels != expected:
        yield f"epoch {value['epoch']} of {value['key']} begins with {labels}, not {expected}"


def progress(commit: Commit) -> Any:
    return msgspec.json.decode(commit.state[b"progress"] or b"")
