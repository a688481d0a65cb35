"""Numbering of source partitions, and topic sets that stored state refuses."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.agents.monitor.scene import Scene
from workers.agents.contribute import ContributeProgress, ContributeShard
from workers.agents.progress import PROGRESS
from workers.mechanisms.config.histogram import Lane
from workers.pipeline.growth.sources import (
    SOURCES,
    VERSION,
    Joined,
    Place,
    Sources,
    SourceTopic,
    decode_sources,
    refuse_other_set,
)
from workers.runtime.errors import SourcesGrown, StateRefused

EU = SourceTopic("orders-eu", 2, "id-eu")
US = SourceTopic("orders-us", 3, "id-us")
BOTH = Sources((EU, US), plain=False)


def test_partitions_are_numbered_topic_by_topic() -> None:
    """A number identifies a partition of the state: sharing one would overwrite."""
    assert len(BOTH) == 5
    places = [(place.number, *place.log) for place in BOTH]
    logs = [("orders-eu", 0), ("orders-eu", 1), *(("orders-us", i) for i in range(3))]
    assert places == [(number, *log) for number, log in enumerate(logs)]
    # Of one topic, a partition's own number.
    assert [place.number for place in Sources((US,))] == [0, 1, 2]


def test_partitions_that_join_take_the_next_numbers() -> None:
    """By its number alone orders-eu[2] would continue at orders-us[0]."""
    assert BOTH.find("orders-eu", 2) is None
    now = SourceTopic("orders-eu", 4, "id-eu"), US
    grown = msgspec.structs.replace(BOTH, joined=BOTH.grown(now, 70))
    assert grown.topics == now and len(grown) == 7 and grown.first_count == 5
    assert list(grown)[:5] == [replaced(place, grown) for place in BOTH]
    later = [(place.number, *place.log, place.watermark) for place in list(grown)[5:]]
    assert later == [(5, "orders-eu", 2, 70), (6, "orders-eu", 3, 70)]
    more = SourceTopic("orders-eu", 5, "id-eu"), SourceTopic("orders-us", 4, "id-us")
    again = msgspec.structs.replace(grown, joined=grown.grown(more, 90))
    assert list(again)[5].watermark == 70
    later = [(place.number, *place.log, place.watermark) for place in list(again)[7:]]
    assert later == [(7, "orders-eu", 4, 90), (8, "orders-us", 3, 90)]
    assert again.grown(again.topics, 95) == again.joined


def replaced(place: Place, sources: Sources) -> Place:
    """Return `place` with its topic as it is now."""
    [topic] = [one for one in sources.topics if one.name == place.topic.name]
    return msgspec.structs.replace(place, topic=topic)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (
            (EU,),
            "are orders-eu; the state was made with orders-eu, orders-us: another set",
        ),
        (
            (EU, US, SourceTopic("z", 1, "z")),
            "are orders-eu, orders-us, z; the state was made with orders-eu, orders-us:",
        ),
        ((EU, SourceTopic("orders-xx", 3, "id-us")), "are orders-eu, orders-xx; "),
        (
            (SourceTopic("orders-eu", 1, "id-eu"), US),
            "orders-eu has 1 partitions; the state was made with 2",
        ),
        (
            (EU, SourceTopic("orders-us", 3, "new")),
            "orders-us was deleted and created again",
        ),
    ],
    ids=["fewer", "more", "another", "partitions", "id"],
)
def test_another_set_is_refused_by_what_differs(
    now: tuple[SourceTopic, ...], words: str
) -> None:
    """Numbers would mean other partitions, or offsets other events."""
    then = decode_sources(BOTH.encoded())
    refuse_other_set(BOTH.first, then)
    refuse_other_set((SourceTopic("orders-eu", 3, "id-eu"), US), then)
    with pytest.raises(StateRefused, match=words):
        refuse_other_set(now, then)


def restored(
    directory: Path, now: Sources, then: Sources, *, told: bool
) -> ContributeShard:
    """Return `now`'s first shard over `then`'s state; not `advance_to`: left by a one-topic worker."""
    shard = Scene(directory).contribute[0]
    shard._stream = replace(shard._stream, sources=now)
    shard._place = next(iter(now))
    shard._sources = now
    topic_id = next(iter(then)).topic.id
    progress = ContributeProgress(
        version=VERSION,
        sources=len(then),
        topic_id=topic_id,
        offset=3,
        watermark=None,
        first=None,
        sequences=[0],
    )
    shard._set_stored = now.plain
    stored = [(SOURCES, then.encoded())] if told else []
    shard.store.open().write([*stored, (PROGRESS, msgspec.json.encode(progress))], 1)
    shard.restore()
    return shard


def test_state_of_one_topic_goes_on_under_an_expression_that_means_it_alone(
    tmp_path: Path,
) -> None:
    """The set is then stored with the next commit."""
    one = Sources((EU,))
    assert restored(tmp_path, one, one, told=False)._set_stored
    assert not restored(
        tmp_path, Sources((EU,), plain=False), one, told=False
    )._set_stored
    assert restored(tmp_path, one, Sources((EU,), plain=False), told=True)._set_stored
    with pytest.raises(
        StateRefused,
        match="topics are orders-eu, orders-us; the state was made with one topic",
    ):
        restored(
            tmp_path, BOTH, Sources((SourceTopic("orders-eu", 5, "id-eu"),)), told=False
        )


def test_a_shard_compares_the_whole_set_with_what_its_state_has(tmp_path: Path) -> None:
    """Its own topic may be unchanged while others' numbers moved."""
    assert restored(tmp_path, BOTH, BOTH, told=True)._set_stored
    other = Sources((EU, SourceTopic("orders-uz", 3, "uz")), plain=False)
    with pytest.raises(StateRefused, match="another set of topics"):
        restored(tmp_path, other, BOTH, told=True)


def test_a_worker_that_begins_while_the_topic_grows_begins_again(
    tmp_path: Path,
) -> None:
    """Another has counted fewer partitions meanwhile; a refusal would ask for a new name."""
    now = Sources((SourceTopic("orders-eu", 5, "id-eu"),), assumed=True)
    with pytest.raises(SourcesGrown, match="only 2 partitions of orders-eu"):
        restored(tmp_path, now, Sources((EU,)), told=False)


def test_a_histogram_in_whose_epoch_users_would_move_is_refused(tmp_path: Path) -> None:
    """In one epoch they would count up to the bound twice."""
    lane = Lane(10, 0, 1, 1, 1, 4)
    shard = Scene(tmp_path).contribute[0]
    shard.store.open()
    for at, lanes in ((80, [lane]), (90, []), (80, [lane, lane._replace(horizon=2)])):
        shard._stream = replace(shard._stream, sources=moving(at), lanes=lanes)
        shard.restore()
    for at, lanes in ((90, [lane]), (80, [lane, lane._replace(horizon=3)])):
        shard._stream = replace(shard._stream, sources=moving(at), lanes=lanes)
        with pytest.raises(
            StateRefused, match="users move to 4 partitions of orders-eu at .* in the"
        ):
            shard.restore()
    shard._place = msgspec.structs.replace(shard._place, watermark=90)
    shard.restore()  # they have moved


def moving(users_from: int) -> Sources:
    return Sources((EU,), joined=(Joined("orders-eu", 4, 5, users_from),))
