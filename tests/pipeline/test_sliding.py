"""Windows without epochs through both stages, against counts in plain Python, and restarts."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from tests.pipeline.pipeline import (
    KEY,
    Event,
    Partition,
    contribute,
    exact,
    histogram_of,
    unk,
)
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running import sliding
from workers.pipeline import ledger_blocks, snapshots
from workers.pipeline.merge import Merge
from workers.pipeline.snapshots import Numeric, Snapshot, join_pages
from workers.replay.offline import ReplayHistogram
from workers.runtime.errors import StateRefused

NO_EPOCHS: dict[str, Any] = {"horizon": "never", "windows": (30, 160), "hop": 2}
TICKS = 60


def board(**changes: Any) -> HistogramConfig:
    return unk(**NO_EPOCHS | changes)


def known(**changes: Any) -> HistogramConfig:
    values: dict[str, Any] = {
        "name": "h",
        "tick_ms": 10,
        "keys": ("k", "l"),
        "max_items": 2,
        "epsilon": 40.0,
        "delta": 1e-6,
        "domain": ("a", "b", "c"),
    }
    return MECHANISMS["known_base"](**values | NO_EPOCHS | changes)


def orders(seed: int, number: int = 300, partitions: int = 1) -> list[list[Event]]:
    rng = random.Random(seed)
    found: list[list[Event]] = [[] for _ in range(partitions)]
    times = sorted(rng.randrange(10 * TICKS) for _ in range(number))
    for time in times:
        items = rng.choices("abcdefgh", [30, 20, 10, 5, 3, 2, 1, 1], k=2)
        rng.choice(found).append((rng.choice("kl"), items, time))
    return found


def series(found: Iterable[Snapshot]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return whole snapshots by topic, stream key and tick."""
    pages: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for one in found:
        body = json.loads(one.value)
        pages[one.topic, body["key"], body["tick"]].append(body)
    return {place: join_pages(bodies) for place, bodies in pages.items()}


def in_window(
    per_tick: Mapping[int, Counter[tuple[str, str]]], since: int, tick: int, key: str
) -> dict[str, int]:
    found = Counter[str]()
    for at in range(max(1, since + 1), tick + 1):
        for (of, label), n in per_tick.get(at, Counter()).items():
            if of == key:
                found[label] += n
    return dict(found)


@pytest.mark.parametrize("config", [board(), known()], ids=["unk_base", "known_base"])
def test_each_window_is_a_series_of_the_counts_between_its_ends(
    config: HistogramConfig,
) -> None:
    """With this budget the noise of a window of 16 ticks has an sd below 2."""
    partitions = orders(1, 600)
    [messages] = contribute(partitions, [config], owners=1, further_ms=0)
    found = series(Partition([config], sources=1).run(messages))
    per_tick = exact(partitions, config)
    assert {topic for topic, _, _ in found} == {"w.h.30ms", "w.h.160ms"}
    windows = {"w.h.30ms": (30, 3), "w.h.160ms": (160, 16)}
    ids = set()
    compared = 0
    for (topic, key, tick), body in found.items():
        ms, ticks = windows[topic]
        since = (tick - ticks) // 2 * 2
        assert body["histogram"] == topic.removeprefix("w.")
        assert body["window"] == {"ms": ms, "from": since * 10}
        assert list(body)[5:7] == ["end", "window"]
        assert (body["epoch"], body["start"]) == (1, 10 * (tick - 1))
        assert "windows" not in body
        ids.add((topic, body["id"]))
        counts = in_window(per_tick, since, tick, key)
        for label, n in body["items"]:
            assert abs(n - counts.get(label, 0)) < 7 * body["sd"]
            compared += 1
    assert compared > 300
    assert len(ids) == len({one for _, one in ids}) == 2
    shown: dict[tuple[str, int], list[list[str]]] = defaultdict(list)
    for (_, key, tick), body in found.items():
        shown[key, tick].append(sorted(label for label, _ in body["items"]))
    assert all(one == other for one, other in shown.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [board(), board(total_share=0.2), known()], ids=["unk", "total", "known"]
)
@pytest.mark.parametrize("seed", [2, 3])
def test_restarts_change_no_byte(config: HistogramConfig, seed: int) -> None:
    [messages] = contribute(orders(seed), [config], owners=1)
    whole = Partition([config], sources=1).run(messages)
    rng = random.Random(seed)
    partition = Partition([config], sources=1)
    found: list[Snapshot] = []
    end = 0
    while end < len(messages) or partition.merge.release(ticks_max=1).ticks:
        position = partition.restart()
        end = min(len(messages), end + rng.randrange(1, 4))
        partition.receive(messages[position:end], position)
        found += partition.commit(ticks_max=rng.randrange(1, 6)) or []
    assert found == whole


def replayed(config: HistogramConfig, messages: list[bytes]) -> list[Snapshot]:
    """Return what `replay` writes: it has one owner partition."""
    alone = ReplayHistogram(
        config,
        build(config),
        worker="w",
        topic="w.h",
        stream="test",
        events={"items": "items"},
        key=KEY,
        owner=(0, 1),
    )
    merge = Merge([alone], key=KEY, sources=1, owners=1)
    for offset, message in enumerate(messages):
        merge.receive(message, offset)
    merge.reached(len(messages))
    return merge.release().snapshots


@pytest.mark.slow
def test_parts_of_a_stream_key_are_those_of_a_replay_with_one_owner() -> None:
    config = board(split=3, keys=("k", "l"))
    partitions = orders(4)
    found: list[Snapshot] = []
    for owner, messages in enumerate(contribute(partitions, [config], owners=3)):
        partition = Partition([config], sources=1, owner=owner, owners=3)
        found += partition.run(messages)
    [alone] = contribute(partitions, [config], owners=1)
    expected = sorted((one.topic, one.value) for one in replayed(config, alone))
    assert sorted((one.topic, one.value) for one in found) == expected
    assert {json.loads(value)["part"] for _, value in expected} == {1, 2, 3}


def test_pages_of_a_series_have_its_window() -> None:
    config = board(windows=(80, 160))
    events = [[("k", [f"{'long' * 20}{n}"] * 2, 5 * n) for n in range(40)] * 3]
    [messages] = contribute(
        [sorted(events[0], key=lambda event: event[2])], [config], owners=1
    )
    whole = series(Partition([config], sources=1).run(messages))
    with patch.object(snapshots.snapshots, "__defaults__", (1_500, lambda key: 0)):
        found = Partition([config], sources=1).run(messages)
    assert len(found) > len(whole)
    for place, body in series(found).items():
        own = body.keys() - {"page", "pages"}
        assert {name: body[name] for name in own} == {
            name: whole[place][name] for name in own
        }


@pytest.mark.slow
def test_rows_that_are_forgotten_leave_others_their_labels_and_counts() -> None:
    """Every tick has labels of its own, and rows are renumbered often; then restarts follow."""
    config = board(windows=(20, 40), hop=1, epsilon=10.0)
    rng = random.Random(5)
    events: list[Event] = []
    for tick in range(400):
        fresh = [f"new{tick}", f"newer{tick}"]
        events += [("k", fresh, 10 * tick)]
        events += [("k", [rng.choice("abc")], 10 * tick + 1) for _ in range(6)]
    [messages] = contribute([events], [config], owners=1)
    whole = Partition([config], sources=1).run(messages)
    with patch.object(sliding, "LEAST_ROWS", 16):
        partition = Partition([config], sources=1)
        found = partition.run(messages[: len(messages) // 2])
        partition.go_on(messages)
        found += partition.release_all()
        [histogram] = partition.merge.histograms
        assert histogram.columns.n < 400
        rows = sum(name.startswith(b"h/1/1/L") for name in partition.store)
        assert rows <= 2
    assert found == whole
    assert sum(len(body["items"]) for body in series(whole).values()) > 1_000


@pytest.mark.slow
def test_a_hop_in_pages_is_deleted_with_all_of_them() -> None:
    """Pages that stay would be refused at the next restart, and grow for ever."""
    config = board(windows=(40, 160), hop=4)
    [messages] = contribute(orders(6), [config], owners=1)
    whole = Partition([config], sources=1).run(messages)
    pages = partial(ledger_blocks.split_pages, max_bytes=15)
    partition = Partition([config], sources=1)
    found: list[Snapshot] = []
    paged = set[bytes]()
    with patch.object(ledger_blocks, "split_pages", pages):
        for end in range(1, len(messages) + 1):
            partition.go_on(messages[:end])
            found += partition.commit(ticks_max=9) or []
            names = {
                name.rpartition(b"/")[2]
                for name in partition.store
                if name.startswith(b"h/1/1/m")
            }
            assert {name.partition(b".")[0] for name in names} <= names
            assert len(names) < 100
            paged |= {name for name in names if b"." in name}
    assert found == whole[: len(found)] and len(found) > 100
    assert len(paged) > 100 and b"m00-00000000000.0000" in paged - names


def test_buckets_and_quantiles_are_those_of_each_window() -> None:
    """Quantiles are computed from the printed counts of their own series."""
    buckets = Buckets(edges=(1.0, 2.0, 3.0))
    config = known(buckets=buckets, domain=buckets.labels, keys=("k",))
    histogram = histogram_of(config)
    histogram.start_at(1)
    for _ in range(3):
        bodies = [json.loads(one.value) for one in histogram.step([])]
    assert [body["histogram"] for body in bodies] == ["h.30ms", "h.160ms"]
    for body in bodies:
        assert body["edges"] == [1.0, 2.0, 3.0]
        own = Numeric(buckets, (0.5,)).fields(body["items"], body["sd"])
        assert body["quantiles"] == own["quantiles"]
    assert bodies[0]["items"] != bodies[1]["items"]


def test_exact_counts_are_those_of_the_window_that_is_named() -> None:
    config = board()
    partitions = orders(6)
    [messages] = contribute(partitions, [config], owners=1, further_ms=0)
    partition = Partition([config], sources=1)
    partition.run(messages)
    [histogram] = partition.merge.histograms
    tick = (histogram.next or 0) - 1
    per_tick = exact(partitions, config)
    for number, ticks in enumerate((3, 16)):
        counts = in_window(per_tick, (tick - ticks) // 2 * 2, tick, "k")
        found = histogram.exact("k", number)
        assert {label: n for label, n in found.items() if n} == counts


def test_owners_cannot_grow_in_the_middle() -> None:
    histogram = histogram_of(board())
    histogram.start_at(1)
    list(histogram.step([]))
    histogram.grow(2, 10)
    with pytest.raises(StateRefused, match="in the middle of an epoch"):
        histogram.step([])


def test_other_windows_or_hops_are_another_mechanism() -> None:
    life = histogram_of(board()).life
    changes = {"windows": (30, 170), "hop": 1, "horizon": 8}
    for name, value in changes.items():
        further = {"windows": (), "hop": None} if name == "horizon" else {}
        other = histogram_of(board(**{**further, name: value}))
        with pytest.raises(StateRefused, match=f"{name} = .* became"):
            other.check(life)


def test_a_new_generation_begins_windows_with_nothing() -> None:
    partitions = orders(7, 600)
    [messages] = contribute(partitions, [board()], owners=1, further_ms=0)
    partition = Partition([board()], sources=1)
    before = series(partition.run(messages[: len(messages) // 2]))
    partition.configs = [board(generation=2)]
    partition.go_on(messages)
    after = series(partition.release_all())
    first = min(tick for _, _, tick in after)
    assert first == max(tick for _, _, tick in before) + 1
    assert not {body["id"] for body in before.values()} & {
        body["id"] for body in after.values()
    }
    assert not [name for name in partition.store if name.startswith(b"h/1/")]
    per_tick = exact(partitions, board())
    fewer = 0
    for (topic, key, tick), body in after.items():
        ticks = 3 if topic == "w.h.30ms" else 16
        since = (tick - ticks) // 2 * 2
        counts = in_window(per_tick, max(since, first - 1), tick, key)
        of_all = in_window(per_tick, since, tick, key)
        for label, n in body["items"]:
            assert abs(n - counts.get(label, 0)) < 7 * body["sd"]
            fewer += of_all.get(label, 0) - n > 7 * body["sd"]
    assert fewer > 5
