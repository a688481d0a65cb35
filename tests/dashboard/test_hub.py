"""Viewers get each stream's newest snapshot, slow ones skip ahead, and each event is encoded once."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from tests.dashboard.feeding import (
    START_MS,
    TICK_MS,
    reader_settings,
    seen,
    sliding,
    snapshot,
)
from workers.client.config import HistogramTopic, load_reader_settings
from workers.client.messages import SeenSnapshot, Stream
from workers.dashboard import hub as hub_module
from workers.dashboard.hub import (
    Filter,
    History,
    Hub,
    Viewer,
    catalog,
    joint_guarantee,
)
from workers.mechanisms.accounting import Guarantee

SOON_S = 0.01
ONE = Stream("products", "s1")


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


async def drain(viewer: Viewer) -> list[tuple[str, Any, str | None]]:
    found = []
    while len(viewer):
        lines = ((await viewer.take(SOON_S)) or b"").decode().strip().split("\n")
        fields = dict(line.split(": ", 1) for line in lines)
        found.append((fields["event"], orjson.loads(fields["data"]), fields.get("id")))
    return found


def ticks(events: list[tuple[str, Any, str | None]]) -> list[tuple[str, int]]:
    return [
        (data["key"], data["tick"]) for name, data, _ in events if name == "snapshot"
    ]


@on_a_loop
async def test_a_viewer_gets_the_newest_of_each_stream_and_then_what_comes() -> None:
    hub = Hub()
    hub.publish([snapshot(tick, key=key) for tick in (1, 2) for key in ("a", "b")])
    viewer = hub.join(Filter())
    assert ticks(await drain(viewer)) == [("a", 2), ("b", 2)]
    hub.publish([snapshot(3, key="b")])
    assert ticks(await drain(viewer)) == [("b", 3)]
    assert await viewer.take(SOON_S) is None


@on_a_loop
async def test_a_slow_viewer_is_skipped_ahead_and_holds_one_event_a_stream() -> None:
    hub = Hub()
    slow = hub.join(Filter())
    await drain(slow)
    for tick in range(1, 1_001):
        hub.publish([snapshot(tick, key=key) for key in ("a", "b", "c")])
        assert len(slow) <= 3 + 1  # the streams, and that there are three
    events = await drain(slow)
    assert ticks(events) == [("a", 1_000), ("b", 1_000), ("c", 1_000)]
    assert ("streams", 3) in [(name, data.get("streams")) for name, data, _ in events]


@on_a_loop
async def test_viewers_get_only_what_they_asked_for() -> None:
    hub = Hub()
    viewer = hub.join(
        Filter(histograms=frozenset({"products"}), keys=frozenset({"a"}), top=10)
    )
    items = [(f"i{i:02}", 99 - i) for i in range(30)]
    hub.publish([snapshot(1, key="a", items=items), snapshot(1, key="b")])
    hub.publish([snapshot(1, key="a", histogram="other")])
    [(_, data, _)] = [event for event in await drain(viewer) if event[0] == "snapshot"]
    assert (data["histogram"], data["key"]) == ("products", "a")
    assert (len(data["items"]), data["total_items"]) == (10, 30)


@on_a_loop
async def test_who_comes_back_gets_only_what_is_newer() -> None:
    hub = Hub()
    hub.publish([snapshot(1, key=key) for key in ("a", "b", "c")])
    events = await drain(hub.join(Filter()))
    last = events[-1][2]
    hub.publish([snapshot(2, key="b")])
    assert ticks(await drain(hub.join(Filter(), last))) == [("b", 2)]
    for unknown in ("", "x", "ffffffff-2", f"{hub.run}-", f"{hub.run}-٣", None):
        assert len(ticks(await drain(hub.join(Filter(), unknown)))) == 3


@on_a_loop
async def test_what_is_known_of_kafka_reaches_every_viewer_once() -> None:
    hub = Hub()
    viewer = hub.join(Filter())
    [(name, data, _)] = await drain(viewer)
    assert (name, data["kafka"]) == ("state", "connecting")
    hub.set_state({"kafka": "away"})
    hub.set_state({"kafka": "away"})
    [(name, data, _)] = await drain(viewer)
    assert (name, data["kafka"]) == ("state", "away")
    assert data["now"] > 0


@on_a_loop
async def test_viewers_that_left_get_nothing_and_closing_ends_the_rest() -> None:
    hub = Hub()
    gone = hub.join(Filter())
    stays = hub.join(Filter())
    hub.leave(gone)
    await drain(gone)
    hub.publish([snapshot(1)])
    assert (len(gone), len(hub)) == (0, 1)
    waiting = asyncio.create_task(stays.take(60))
    hub.close()
    assert await waiting is None
    assert stays.closed


def test_the_catalogue_lists_histograms_of_the_settings_with_their_keys() -> None:
    hub = Hub()
    hub.publish([snapshot(1, key="b"), snapshot(2, key="a")])
    products = HistogramTopic("products", "t", 64, label="Latency", unit="ms")
    found = catalog(hub.history, [HistogramTopic("later", "t"), products])
    names = ("histogram", "keys", "horizon", "tick", "label", "unit", "sum_field")
    assert [[one[name] for name in names] for one in found] == [
        ["later", [], None, None, None, None, None],
        ["products", ["a", "b"], 64, 2, "Latency", "ms", None],
    ]
    guarantee = Guarantee(unit="event", rho=0.021, epsilon=1.0, delta=1e-9)
    assert found[1]["guarantee"] == msgspec.to_builtins(guarantee)


def test_a_histogram_is_charged_once_and_not_once_for_each_of_its_windows() -> None:
    hub = Hub()
    windows = ("1m", "1h", "1d")
    end = START_MS + TICK_MS
    hub.publish([seen(sliding(window, end, [("tea", 5)])) for window in windows])
    hub.publish([snapshot(1, histogram="orders")])
    names = [f"products.{window}" for window in windows]
    histograms = reader_settings("orders", *names).histograms
    joint = joint_guarantee(hub.history, histograms)
    assert joint is not None
    assert joint["histograms"] == ["orders", "products"]
    two = joint_guarantee(hub.history, histograms[:2])
    assert two is not None and joint == two
    # The planted fault: one charge for each series.
    series = [HistogramTopic(name, name) for name in names]
    added = joint_guarantee(hub.history, series)
    assert added is not None
    once = joint_guarantee(hub.history, histograms[1:])
    assert once is not None
    assert (added["rho"], once["rho"]) == (pytest.approx(3 * 0.021), 0.021)
    assert once["epsilon"] == 1.0


def test_a_sample_for_bounds_is_in_the_loss_of_a_person(tmp_path: Path) -> None:
    """Its part of the budget is in the settings, not in snapshots."""
    hub = Hub()
    hub.publish([snapshot(1)])
    text = (
        '[worker]\nname = "w"\n[kafka]\nbootstrap = "localhost:9092"\n'
        '[[histogram]]\nname = "products"\ntick = "1s"\nhorizon = 64\n'
    )
    found: list[dict[str, Any]] = []
    for more in ("", "bounds_rho = 0.005\n"):
        (tmp_path / "x.toml").write_text(text + more)
        [histogram] = load_reader_settings(tmp_path / "x.toml").histograms
        joint = joint_guarantee(hub.history, [histogram])
        assert joint is not None
        found.append(joint)
    plain, sampled = found
    assert (plain["rho"], plain["epsilon"]) == (sampled["rho"], sampled["epsilon"])
    of_plain, of_sampled = (one["person"] for one in found)
    assert of_plain[0] == of_sampled[0]
    for one, other in zip(of_plain[1]["losses"], of_sampled[1]["losses"], strict=True):
        assert one["void"] or other["void"] or other["epsilon"] > one["epsilon"]
    assert of_plain[1] != of_sampled[1]


def test_a_histogram_promises_what_its_newest_window_states() -> None:
    """A generation that begins with another budget is seen in one window before the others."""
    hub = Hub()
    end = START_MS + TICK_MS
    smaller = {"unit": "event", "rho": 0.006, "epsilon": 0.5, "delta": 1e-9}
    hub.publish([seen(sliding("1h", end, [], guarantee=smaller))])
    hub.publish([seen(sliding("1m", end, []))])
    joint = joint_guarantee(
        hub.history, reader_settings("products.1m", "products.1h").histograms
    )
    assert joint is not None and joint["rho"] == 0.021


def test_the_catalogue_names_the_histogram_and_the_length_of_each_window() -> None:
    histograms = reader_settings("orders", "products.1m", "products.1h").histograms
    found = catalog(History(), histograms)
    assert [one["also_in"] for one in found] == [[], [], []]
    orders, *windows = (replace(one, selection="items") for one in histograms)
    also = [one["also_in"] for one in catalog(History(), [orders, *windows])]
    assert also == [["products.1m", "products.1h"], ["orders"], ["orders"]]
    names = ("histogram", "name", "window_ms", "horizon")
    assert [[one[name] for name in names] for one in found] == [
        ["orders", "orders", None, 1_024],
        ["products.1m", "products", 60_000, None],
        ["products.1h", "products", 3_600_000, None],
    ]


def test_cut_events_are_few_whatever_viewers_ask_for() -> None:
    hub = Hub()
    hub.publish([snapshot(1)])
    for top in (*hub_module.TOPS, None):
        assert hub._event(ONE, top) is hub._event(ONE, top)
    assert len(hub._events[ONE]) == len(hub_module.TOPS) + 1
    hub.publish([snapshot(2)])
    assert not hub._events.get(ONE)


# ---- the last ticks of each stream ----------------------------------------------------------------


def ticks_of(found: list[SeenSnapshot]) -> list[int]:
    return [one.tick for one in found]


def test_the_newest_ticks_are_kept_and_asked_for_by_their_end() -> None:
    """`after` is what a consumer passes on from its last answer: nothing twice, nothing left out."""
    history = History(ticks=5)
    for tick in range(1, 9):
        assert history.add(snapshot(tick))
    assert ticks_of(history.page(ONE, None, 100)[0]) == [4, 5, 6, 7, 8]
    assert ticks_of(history.page(ONE, None, 2)[0]) == [7, 8]
    found, more = history.page(ONE, 0, 2)
    assert (ticks_of(found), more) == ([4, 5], True)
    found, more = history.page(ONE, found[-1].end, 3)
    assert (ticks_of(found), more) == ([6, 7, 8], False)
    assert history.page(Stream("products", "none"), None, 9) == ([], False)


def test_a_tick_that_comes_again_changes_nothing() -> None:
    history = History()
    assert history.add(snapshot(1))
    assert history.add(snapshot(2))
    assert not history.add(snapshot(2))
    assert not history.add(snapshot(1))
    assert ticks_of(history.page(ONE, None, 9)[0]) == [1, 2]


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
    kept = [
        one for stream in history.streams() for one in history.page(stream, None, 99)[0]
    ]
    assert 20 <= len(kept) <= 31
    assert history.bytes == sum(len(one.json) for one in kept)
