"""A stream key in parts: each owner partition has its items only, together they are the histogram."""

import json
from collections import defaultdict
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from tests.pipeline.pipeline import KEY, Event, Partition, contribute, histogram_of, unk
from workers.mechanisms.config.histogram import HistogramConfig, names_of
from workers.mechanisms.registry import MECHANISMS, build
from workers.pipeline import histogram as histograms
from workers.pipeline.growth.owners import parts_of
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.pipeline.snapshots import Snapshot
from workers.privacy.ceiling import charges_of, merge
from workers.replay.offline import ReplayHistogram
from workers.runtime.errors import StateRefused

PER_ITEM = tuple(names_of(lambda about: about.per_item))

OWNERS = 4
LABELS = [f"item {i}" for i in range(40)]
Body = dict[str, Any]


def configs(**changes: Any) -> list[HistogramConfig]:
    given: Any = {
        "name": "h",
        "tick_ms": 10,
        "horizon": 8,
        "keys": "public",
        "max_items": 2,
    }
    given |= {"epsilon": 40.0, "delta": 0.1} | changes
    found = []
    for name in PER_ITEM:
        own = dict(given)
        if MECHANISMS[name].lists_labels({}):
            own["domain"] = tuple(LABELS)
        if name == "known_base":
            own["domain"] = (*LABELS[::2], "never")
        found.append(unk(**changes) if name == "unk_base" else MECHANISMS[name](**own))
    return found


def events(sources: int = 2) -> list[list[Event]]:
    """Return events of three keys: one with many items, one with one, one with none."""
    rng = np.random.default_rng(5)
    found: list[list[Event]] = []
    for _ in range(sources):
        times = np.sort(rng.integers(0, 150, 120)).tolist()
        items = [[LABELS[i] for i in rng.zipf(1.2, 2).clip(1, 40) - 1] for _ in times]
        found.append([("hot", each, at) for each, at in zip(items, times, strict=True)])
        found[-1] += [("one", ["item 0"], 151), ("none", [], 152)]
    return found


def run(config: HistogramConfig, owners: int = OWNERS) -> list[Snapshot]:
    messages = contribute(events(), [config], owners=owners)
    return [
        snapshot
        for owner in range(owners)
        for snapshot in Partition([config], 2, owner, owners).run(messages[owner])
    ]


def same_noise() -> Any:
    """Give every mechanism the noise of its epoch alone: the seed is equal, the id is not."""
    return patch.object(
        histograms, "mechanism_id", lambda _, first, epoch: epoch.to_bytes(16)
    )


def by_tick(snapshots: list[Snapshot]) -> dict[tuple[str, int], list[Body]]:
    found = defaultdict(list)
    for body in (json.loads(snapshot.value) for snapshot in snapshots):
        found[body["key"], body["end"]].append(body)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PER_ITEM)), ids=PER_ITEM)
@pytest.mark.parametrize("keys", ["public", ("hot", "none", "silent")])
def test_the_parts_of_a_tick_are_the_tick_of_the_histogram_that_is_not_split(
    number: int, keys: Any
) -> None:
    """Also which ticks a key has: a part without items, and one of a silent key, is published."""
    with same_noise():
        whole, parted = (
            by_tick(run(configs(keys=keys, split=split)[number])) for split in (1, 3)
        )
    assert whole.keys() == parted.keys()
    items_by_part = [0, 0, 0]
    for place, [one] in whole.items():
        parts = sorted(parted[place], key=lambda body: body["part"])
        assert [(body["part"], body["parts"]) for body in parts] == [
            (1, 3),
            (2, 3),
            (3, 3),
        ]
        items = [item for body in parts for item in body["items"]]
        for part, body in enumerate(parts):
            items_by_part[part] += len(body["items"])
            own = {"part", "parts", "items", "id", "previous_id"}
            assert body.keys() - own == one.keys() - own
            assert all(body[name] == one[name] for name in one.keys() - own)
            assert body["id"] == parts[0]["id"] != one["id"]
        assert sorted(items, key=lambda item: (-item[1], item[0])) == one["items"]
    assert min(items_by_part) > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PER_ITEM)), ids=PER_ITEM)
def test_one_partition_that_has_all_parts_publishes_the_same_bytes(number: int) -> None:
    """That is how `replay` runs: it has one owner partition."""
    config = configs(split=3)[number]
    [messages] = contribute(events(), [config], owners=1)
    alone = ReplayHistogram(
        config,
        build(config),
        key=KEY,
        owner=(0, 1),
        worker="w",
        topic="w.h",
        stream="test",
        events={"items": "items"},
    )
    replayed = Merge([alone], key=KEY, sources=2, owners=1)
    for offset, message in enumerate(messages):
        replayed.receive(message, offset)
    replayed.reached(len(messages))
    found = replayed.release().snapshots
    assert sorted(one.value for one in found) == sorted(
        one.value for one in run(config)
    )


def test_labels_that_were_chosen_do_not_load_one_part() -> None:
    """4,000 labels in 4 parts: 1,000 each, give or take 27 (one sd); 6 sd happen once in 1e8."""
    tags = KEY.tags("hot", [b"%d" % i for i in range(4_000)])
    sizes = np.bincount(parts_of(tags, 4), minlength=4)
    assert abs(sizes - 1_000).max() < 6 * 27.4


def states(config: HistogramConfig) -> list[ReleaseProgress]:
    found = []
    for owner, messages in enumerate(contribute(events(), [config], owners=OWNERS)):
        partition = Partition([config], 2, owner, OWNERS)
        partition.run(messages)
        found.append(
            msgspec.json.decode(partition.store[b"progress"], type=ReleaseProgress)
        )
    return found


def test_an_epoch_is_charged_once_however_many_parts_it_has() -> None:
    whole, parted = (
        merge(
            charge
            for state in states(unk(split=split))
            for charge in charges_of("w", state)
        )
        for split in (1, OWNERS)
    )
    [one] = whole
    [other] = parted
    assert (other.cost, other.first, other.last) == (one.cost, one.first, one.last)


def test_a_changed_split_is_refused_within_a_generation() -> None:
    """Items would lie in other partitions than their counts."""
    [stored, *_] = states(unk(split=2))
    for split in (1, 3):
        other = Partition([unk(split=split)], 2, 0, OWNERS)
        with pytest.raises(
            StateRefused, match=f"split = 2 became {'null' if split == 1 else 3}"
        ):
            other.merge.check(stored)


def test_parts_that_begin_at_different_ticks_have_one_id_and_noise_of_their_own() -> (
    None
):
    """As after a new generation: each owner begins it at its own take-over."""
    config = unk(split=2, epsilon=1.0)
    one, other = (histogram_of(config, owner=(owner, 2)) for owner in range(2))
    for histogram, first in ((one, 3), (other, 4)):
        histogram.start_at(first)
        for _ in range(2):
            histogram.advance([])
    assert one.ids == other.ids
    tags = KEY.tags("hot", [b"%d" % i for i in range(64)])
    mine, yours = (histogram._noise.at(5, tags) for histogram in (one, other))
    assert np.count_nonzero(mine != yours) > 32  # with one noise, none
