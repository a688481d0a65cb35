"""More owner partitions: stream keys move where an epoch begins, and nothing else changes."""

import json
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.fleet import FINE, KEYS, STEADY, WIDE, cut, fleet, grown_of
from tests.pipeline.pipeline import KEY, Event, Partition, contribute, exact, unk
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.registry import build
from workers.pipeline.contributions import Message, decode, handing_over
from workers.pipeline.growth.owners import HandedOver, Owners, owner_of
from workers.runtime.errors import StateRefused

VISIT = st.tuples(
    st.sampled_from(KEYS),
    st.lists(st.sampled_from("abcde"), max_size=3),
    st.integers(0, 300),
)
EVENTS = st.lists(VISIT, max_size=60).map(
    lambda events: sorted(events, key=lambda e: e[2])
)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(EVENTS, min_size=1, max_size=2))
def test_a_stream_key_is_published_at_every_tick_by_the_owner_that_has_it_then(
    partitions: list[list[Event]],
) -> None:
    """A tick of a moved key that is missing, doubled or another count would break the promise."""
    whole = fleet(partitions, [FINE, WIDE]).finish()
    owners = grown_of(whole.topics, 2)
    assert (
        owners.numbers == ((2, 4, 8) if any(partitions) else (2,))
        or not whole.published
    )
    ticks: dict[tuple[str, str], list[int]] = {}
    running: Counter[tuple[int, str, str]] = Counter()
    per_tick = exact(partitions, FINE)
    mechanism = build(FINE)
    counter = make_counter("lifted", 4, mechanism._counter.rho_item)  # type: ignore[attr-defined]
    for owner, snapshot in sorted(whole.published, key=lambda each: each[1].end_ms):
        body = json.loads(snapshot.value)
        assert owner == owner_of(snapshot.key, owners.at(snapshot.end_ms))
        tick = body["start"] // (body["end"] - body["start"]) + 1
        ticks.setdefault((snapshot.topic, snapshot.key), []).append(tick)
        if snapshot.topic != "w.h":
            continue
        for (key, label), n in per_tick.get(tick, Counter()).items():
            if key == snapshot.key:
                running[body["epoch"], key, label] += n
        tags = KEY.tags(snapshot.key, [label.encode() for label, _ in body["items"]])
        noise = counter.draw(KEY.stream(bytes.fromhex(body["id"])), body["tick"], tags)
        for (label, noisy), z in zip(body["items"], noise.tolist(), strict=True):
            assert noisy - z == running[body["epoch"], snapshot.key, label]
    lasts = {
        topic: max(found[-1] for (of, _), found in ticks.items() if of == topic)
        for topic, _ in ticks
    }
    for (topic, key), found in ticks.items():
        times = [at for events in partitions for k, _, at in events if k == key]
        assert found == list(range(found[0], lasts[topic] + 1))
        assert topic != "w.h" or found[0] == min(times) // 10 + 1
    if any(partitions):
        assert {key for topic, key in ticks if topic == "w.wide"} == set(WIDE.keys)


@pytest.mark.parametrize("at_ms", [0, 60, 120, 200])
def test_a_generation_raised_around_the_move_begins_in_every_owner_and_shares_no_noise(
    at_ms: int,
) -> None:
    """One that waits for another generation's keys would wait forever, or forget shown ones."""
    found = fleet([STEADY], [FINE], step=12)
    cut(found, at_ms)
    before = len(found.published)
    for owner in found.owners:
        owner.configs = [unk(horizon=4, generation=2)]
        found.restart(owner.owner)
    found.finish()
    last = max(s.end_ms for _, s in found.published)
    later = found.published[before:]
    assert {s.key for _, s in later if s.end_ms == last} == set(KEYS)
    ids = [
        {json.loads(s.value)["id"] for _, s in part}
        for part in (found.published[:before], later)
    ]
    assert not ids[0] & ids[1]
    published = Counter((s.key, s.end_ms) for _, s in found.published)
    assert max(published.values()) == 1


def test_owners_of_a_second_growth_learn_of_the_first_one_when_it_is_long_past() -> (
    None
):
    """Source partitions that joined in between had closed ticks after it."""
    grows = {1: 2, 9: 4}
    found = fleet(
        [STEADY, STEADY], [FINE], step=12, owners=1, grows=grows, joins=[5]
    ).finish()
    [first, _] = grown_of(found.topics, 1).grown
    told = next(decode(value) for value in found.topics[2])
    assert told.watermark is not None and told.watermark > first[1]
    last = max(s.end_ms for _, s in found.published)
    at_last = {s.key: owner for owner, s in found.published if s.end_ms == last}
    assert at_last == {key: owner_of(key, 4) for key in KEYS}


def test_a_worker_with_older_settings_leaves_what_was_handed_over_for_a_new_generation() -> (
    None
):
    """Workers get new settings one after the other."""
    found = fleet([STEADY], [FINE], step=12)
    for owner in found.owners[:4]:
        found.read(owner.owner, 10**6)
        owner.configs = [unk(horizon=4, generation=2)]
        found.restart(owner.owner)
    old = found.finish().owners[4:]
    assert all(owner.merge.histograms[0].next is None for owner in old)
    for owner in old:
        owner.store[b"progress"] = msgspec.json.encode(owner.merge.progress())
        owner.configs = [unk(horizon=4, generation=2)]
        found.restart(owner.owner)
    found.finish()
    assert all(owner.merge.histograms[0].next is not None for owner in old)


def edited(message: bytes, **changes: object) -> bytes:
    return msgspec.structs.replace(decode(message), **changes).encoded()


def test_a_sender_that_does_not_know_of_the_new_owners_is_refused() -> None:
    """Its counts would be in an owner that does not publish the stream key."""
    topics = contribute([STEADY], [FINE], owners=1, step=12, grows={1: 2})
    [(number, at_ms)] = grown_of(topics, 1).grown
    late = next(
        i
        for i, m in enumerate(map(decode, topics[0]))
        if any(s.lane.end_ms(s.tick) > at_ms for s in m.sections)
    )
    owner = Partition([FINE], 1)
    owner.run(topics[0][:late])
    with pytest.raises(
        StateRefused, match=f"does not know that there are {number} owner partitions"
    ):
        owner.merge.receive(edited(topics[0][late], owners=Owners(1)), late)
    with pytest.raises(StateRefused, match="knows other numbers of owner partitions"):
        owner.merge.receive(
            edited(topics[0][late], owners=Owners(1, ((3, at_ms),))), late
        )


def test_owners_that_grow_in_the_past_or_within_an_epoch_are_refused() -> None:
    """Ticks that were published could not be taken back, nor can rows of an epoch move."""
    topics = contribute([STEADY], [FINE], owners=1, step=12, grows={2: 2})
    told = next(
        i
        for i, message in enumerate(map(decode, topics[0]))
        if message.owners and message.owners.grown
    )
    for at_ms, said in (
        (10, "since a time that was counted before"),
        (130, "middle of an epoch"),
    ):
        owner = Partition([FINE], 1)
        messages = [
            edited(value, owners=Owners(1, ((2, at_ms),))) if i >= told else value
            for i, value in enumerate(topics[0])
        ]
        with pytest.raises(StateRefused, match=said):
            owner.run(messages)


def test_what_is_handed_over_is_paged_and_its_pages_are_taken_together() -> None:
    keys = [(f"{i:04}" * 200, i) for i in range(50)]
    pages = handing_over(
        HandedOver("h", 1, 5, keys), key=KEY.fingerprint, max_bytes=20_000
    )
    assert len(pages) > 2 and max(len(page.encoded()) for page in pages) <= 20_000
    assert [key for page in pages for key in page.handed.keys] == keys  # type: ignore[union-attr]
    owner = Partition([FINE], 1, 1, 1)
    told = contribute([STEADY], [FINE], owners=1, step=12, grows={1: 2})[1]
    owner.receive(told[:3], 0)
    refused: Callable[[Message, int], object] = owner.merge.take
    refused(pages[0], 3)
    with pytest.raises(
        StateRefused, match="page 3 of what was handed over .* follows page 1"
    ):
        refused(pages[2], 4)


def test_a_declared_key_that_moved_may_not_be_withdrawn() -> None:
    """As in an owner that published it: its series would have a gap."""
    declared = unk(name="wide", tick_ms=20, horizon=2, keys=tuple(KEYS))
    found = fleet([STEADY], [declared], step=12, grows={1: 4})
    moved = next(key for key in KEYS if owner_of(key, 4) == 2)
    for owner in (0, 1):
        found.read(owner, 10**6)
        while found.commit(owner, 500):
            pass
    found.owners[2].configs = [
        unk(
            name="wide",
            tick_ms=20,
            horizon=2,
            keys=tuple(k for k in KEYS if k != moved),
        )
    ]
    found.restart(2)
    found.read(2, 10**6)
    with pytest.raises(StateRefused, match="no longer declared"):
        found.commit(2, 1)
