"""Numbering of source partitions, and topic sets that stored state refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agents.monitor.scene import Scene
from workers.agents.contribute import ContributeProgress, ContributeShard
from workers.agents.source_shard import VERSION
from workers.pipeline.progress import PROGRESS
from workers.pipeline.sources import SOURCES, Sources, SourceTopic, decode_sources, refuse_other_set
from workers.runtime.errors import StateRefused

EU, US = SourceTopic("orders-eu", 2, "id-eu"), SourceTopic("orders-us", 3, "id-us")
BOTH = Sources((EU, US), plain=False)


def test_partitions_are_numbered_topic_by_topic() -> None:
    """A number identifies a partition of the state: sharing one would overwrite."""
    assert len(BOTH) == 5
    places = [(place.number, *place.log) for place in BOTH]
    logs = [("orders-eu", 0), ("orders-eu", 1), *(("orders-us", i) for i in range(3))]
    assert places == [(number, *log) for number, log in enumerate(logs)]
    # Of one topic, a partition's own number.
    assert [place.number for place in Sources((US,))] == [0, 1, 2]


def test_a_partition_that_a_topic_has_got_since_is_no_other_topics_first() -> None:
    """By its number alone orders-eu[2] would continue at orders-us[0]."""
    for place in BOTH:
        BOTH.check(place)
    with pytest.raises(StateRefused, match="orders-eu got more partitions than the 2"):
        BOTH.check(BOTH.place(EU, 2))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ((EU,), "are orders-eu; the state was made with orders-eu, orders-us: another set"),
        (
            (EU, US, SourceTopic("z", 1, "z")),
            "are orders-eu, orders-us, z; the state was made with orders-eu, orders-us:",
        ),
        ((EU, SourceTopic("orders-xx", 3, "id-us")), "are orders-eu, orders-xx; "),
        (
            (SourceTopic("orders-eu", 1, "id-eu"), US),
            "orders-eu has 1 partitions; the state was made with 2",
        ),
        ((EU, SourceTopic("orders-us", 3, "new")), "orders-us was deleted and created again"),
    ],
    ids=["fewer", "more", "another", "partitions", "id"],
)
def test_another_set_is_refused_by_what_differs(now: tuple[SourceTopic, ...], words: str) -> None:
    """Numbers would mean other partitions, or offsets other events."""
    then = decode_sources(BOTH.encoded())
    refuse_other_set(BOTH, then)
    with pytest.raises(StateRefused, match=words):
        refuse_other_set(Sources(now), then)


def restored(directory: Path, now: Sources, then: Sources, *, told: bool) -> ContributeShard:
    """Return `now`'s first shard over `then`'s state; not `advance_to`: left by a one-topic worker."""
    shard = Scene(directory).contribute[0]
    shard._stream, shard._place = replace(shard._stream, sources=now), next(iter(now))
    log: dict[str, Any] = {"offset": 3, "watermark": None, "first": None, "sequences": [0]}
    topic_id = next(iter(then)).topic.id
    progress = ContributeProgress(version=VERSION, sources=len(then), topic_id=topic_id, **log)
    shard._set_stored = now.plain
    stored = [(SOURCES, then.encoded())] if told else []
    shard.store.open().write([*stored, (PROGRESS, msgspec.json.encode(progress))], 1)
    shard.restore()
    return shard


def test_state_of_one_topic_goes_on_under_an_expression_that_means_it_alone(tmp_path: Path) -> None:
    """The set is then stored with the next commit."""
    one = Sources((EU,))
    assert restored(tmp_path, one, one, told=False)._set_stored
    assert not restored(tmp_path, Sources((EU,), plain=False), one, told=False)._set_stored
    assert restored(tmp_path, one, Sources((EU,), plain=False), told=True)._set_stored
    with pytest.raises(StateRefused, match="orders-eu has 2 partitions; the state was made with 5"):
        restored(tmp_path, BOTH, Sources((SourceTopic("orders-eu", 5, "id-eu"),)), told=False)


def test_a_shard_compares_the_whole_set_with_what_its_state_has(tmp_path: Path) -> None:
    """Its own topic may be unchanged while others' numbers moved."""
    assert restored(tmp_path, BOTH, BOTH, told=True)._set_stored
    other = Sources((EU, SourceTopic("orders-uz", 3, "uz")), plain=False)
    with pytest.raises(StateRefused, match="another set of topics"):
        restored(tmp_path, other, BOTH, told=True)
