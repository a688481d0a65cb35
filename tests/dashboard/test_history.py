"""The last ticks of each stream are kept, within bounds."""

from __future__ import annotations

from tests.dashboard.feeding import snapshot
from workers.dashboard.hub import History
from workers.dashboard.snapshots import SeenSnapshot, Stream

ONE = Stream("products", "s1")


def ticks(found: list[SeenSnapshot]) -> list[int]:
    return [one.tick for one in found]


def test_the_newest_ticks_are_kept_and_asked_for_by_their_end() -> None:
    """`after` is what a consumer passes on from its last answer: nothing twice, nothing left out."""
    history = History(ticks=5)
    for tick in range(1, 9):
        assert history.add(snapshot(tick))
    assert ticks(history.page(ONE, None, 100)[0]) == [4, 5, 6, 7, 8]
    assert ticks(history.page(ONE, None, 2)[0]) == [7, 8]
    found, more = history.page(ONE, 0, 2)
    assert (ticks(found), more) == ([4, 5], True)
    found, more = history.page(ONE, found[-1].end, 3)
    assert (ticks(found), more) == ([6, 7, 8], False)
    assert history.page(Stream("products", "none"), None, 9) == ([], False)


def test_a_tick_that_comes_again_changes_nothing() -> None:
    history = History()
    assert history.add(snapshot(1))
    assert history.add(snapshot(2))
    assert not history.add(snapshot(2))
    assert not history.add(snapshot(1))
    assert ticks(history.page(ONE, None, 9)[0]) == [1, 2]


def test_a_topic_that_was_begun_anew_replaces_what_it_overlaps() -> None:
    history = History()
    for tick in (1, 2, 3, 4):
        history.add(snapshot(tick))
    assert history.add(snapshot(3, id="f" * 32))
    kept = [(one.tick, one.id[0]) for one in history.page(ONE, None, 9)[0]]
    assert kept == [(1, "0"), (2, "0"), (3, "f")]


def test_bytes_are_bounded_and_every_stream_keeps_its_newest() -> None:
    size = len(snapshot(1, key="k00").json)
    history = History(max_bytes=size * 30)
    for tick in range(1, 21):
        for key in range(10):
            history.add(snapshot(tick, key=f"k{key:02}"))
            assert history.bytes <= size * 31
    assert {one.tick for one in history.all_newest()} == {20}
    assert len(history.streams()) == 10
    kept = [one for stream in history.streams() for one in history.page(stream, None, 99)[0]]
    assert 20 <= len(kept) <= 31
    assert history.bytes == sum(len(one.json) for one in kept)


def test_what_is_newer_than_a_number_is_found() -> None:
    history = History()
    for key in ("a", "b", "c"):
        history.add(snapshot(1, key=key))
    history.add(snapshot(2, key="a"))
    newest = [(one.stream.key, one.number) for one in history.all_newest()]
    assert newest == [("b", 2), ("c", 3), ("a", 4)]
    assert [one.stream.key for one in history.all_newest(after=3)] == ["a"]
