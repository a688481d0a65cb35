"""`replay --topic` against a real worker: the same records give the same bytes; ranges of time; the end of a growing topic."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.events.reading import shape
from tests.replay.site import (
    Place,
    Printed,
    assert_equal_so_far,
    place,
    published,
    replayed,
)
from tests.worker.growing import grow, wait_joined
from tests.worker.harness import Site, known, now_ms, sale, unk
from workers.cli import execute
from workers.replay.offline import Summary
from workers.replay.sources_topic import open_topic

pytestmark = pytest.mark.waits

PARTITIONS = 4
GRACE_MS = 2_000


def shuffled_events(number: int, end_ms: int, seed: int) -> list[Any]:
    """Events of two minutes that come up to five seconds late, in each of the three shapes, with some that are none."""
    rng = random.Random(seed)
    labels = [f"item-{i}" for i in range(40)]
    events: list[Any] = []
    for i in range(number):
        at = (
            end_ms
            - 120_000
            + 120_000 * i // number
            - rng.choice((0, 0, 0, 1_500, 4_000, 5_000))
        )
        chosen = rng.choices(labels, weights=range(40, 0, -1), k=rng.randrange(5))
        items = rng.choice(
            (chosen, {label: rng.randrange(4) for label in chosen}, labels[i % 40])
        )
        events.append({"key": rng.choice("abc"), "items": items, "ts": at})
    far = {"key": "a", "items": "x", "ts": end_ms + 10**9}
    for i in range(0, number, 97):
        events[i] = rng.choice((b"broken", {"key": "a", "ts": 5}, far))
    return events


@pytest.fixture(scope="module")
def worked(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site whose worker has published two minutes of events: late ones, two widths of ticks, three bounds, an empty partition."""
    labels = [f"item-{i}" for i in range(30)]
    histograms = [
        unk("seen"),
        known("known", domain=labels, keys=["a", "c", "none"], tick="7s", epsilon=2.0),
        unk(
            "often",
            mechanism="meta",
            tick="7s",
            keys=["a", "b"],
            max_items=3,
            max_count=2,
            algorithm="unk_gauss",
            kbar=20,
        ),
        unk("sketch", max_items=1, mechanism="misra_gries", size=16),
    ]
    site = Site(
        bootstrap,
        tmp_path_factory.mktemp("site"),
        histograms,
        partitions=PARTITIONS,
        owners=3,
        events={"grace": f"{GRACE_MS}ms", "max_behind": "2500ms"},
    )
    last_ms = time.time_ns() // 1_000_000 - 20_000
    for partition in range(PARTITIONS - 1):  # nothing ever comes to the last one
        end_ms = last_ms - 9_000 * partition
        site.produce(
            partition, shuffled_events(2_000 * (partition + 1), end_ms, partition)
        )
    with site.worker() as worker:
        site.wait_published(last_ms)
        assert worker.stop() == 0
    return site


@pytest.fixture(scope="module")
def whole(worked: Site) -> tuple[dict[Place, bytes], Summary]:
    return replayed(worked)


@pytest.fixture(scope="module")
def wanted(worked: Site) -> dict[Place, bytes]:
    return published(worked)


Whole = tuple[dict[Place, bytes], Summary]


def test_replay_gives_the_bytes_of_the_worker(
    whole: Whole, wanted: dict[Place, bytes]
) -> None:
    found, summary = whole
    assert summary.late > 100 and sum(summary.rejects.values()) > 100
    # Wide ticks are open for longer.
    assert summary.late >= summary.moved["seen"] > summary.moved["known"] > 0
    assert summary.rejects["dated too far behind"] > 100
    assert {histogram for histogram, *_ in found} == {
        "seen",
        "known",
        "often",
        "sketch",
    }
    assert any(json.loads(value)["items"] for value in found.values())
    assert_equal_so_far(found, wanted)


def test_a_range_ending_early_gives_the_same_bytes_until_then(
    worked: Site, whole: Whole
) -> None:
    everything, _ = whole
    ends = sorted({end for name, _, end, _ in everything if name == "seen"})
    # Within a tick of one second, and somewhere in one of seven.
    until_ms = ends[len(ends) // 2] + 300
    found, summary = replayed(worked, until_ms=until_ms)
    assert found == {at: value for at, value in everything.items() if at[2] <= until_ms}
    assert summary.position == summary.total and summary.outside > 0


def test_a_range_leaves_out_what_is_dated_before_it(worked: Site, whole: Whole) -> None:
    snapshots, everything = whole
    ends = sorted({end for name, _, end, _ in snapshots if name == "seen"})
    since_ms = ends[len(ends) // 2]
    found, summary = replayed(worked, since_ms=since_ms)
    assert min(end for name, _, end, _ in found if name == "seen") == since_ms + 1_000
    assert summary.first_ms is not None and summary.first_ms >= since_ms
    behind, all_behind = (
        one.rejects["dated too far behind"] for one in (summary, everything)
    )
    assert summary.events + summary.outside + behind == everything.events + all_behind


def test_the_command_reads_the_topic_with_noise_of_its_own_and_refuses_an_empty_range(
    worked: Site, wanted: dict[Place, bytes], tmp_path: Path, capsys: Printed
) -> None:
    out = tmp_path / "out.jsonl"
    arguments = ["replay", "-c", str(worked.config), "--topic", "--snapshots", str(out)]
    assert execute(arguments) == 0
    errors = capsys.readouterr().err
    assert "offset 97: " in errors and "later than events.grace" in errors
    assert "events of seen came after their tick had closed" in errors
    found = {place(line): line for line in out.read_bytes().splitlines()}
    assert found and found.keys() <= wanted.keys()
    own, ids = ({json.loads(v)["id"] for v in of.values()} for of in (found, wanted))
    assert not own & ids
    out.unlink()
    for further in (["--from", "2100-01-01"], ["--to", "1971-01-01T00:00:00Z"]):
        assert execute([*arguments, *further]) == 2
        errors = capsys.readouterr().err
        assert len(errors.strip().splitlines()) == 1 and "range" in errors
        assert not out.exists()


def test_a_replay_ends_where_the_topic_ended_when_it_began(
    bootstrap: str, tmp_path: Path
) -> None:
    site = Site(bootstrap, tmp_path, [unk()], partitions=2)
    start_ms = 1_700_000_000_000
    site.produce(
        0, [{"key": "a", "items": ["x"], "ts": start_ms + i} for i in range(500)]
    )
    taking_back = site.connection.producer(f"{site.name}-x")
    taking_back.init_transactions(10)
    taking_back.begin_transaction()
    never = b'{"key":"a","items":["never"],"ts":1700000000000}'
    taking_back.produce(site.topic, never, partition=1)
    taking_back.flush(10)
    taking_back.abort_transaction(10)
    with open_topic(site.settings, None, None) as source:
        site.produce(0, [{"key": "a", "items": ["y"], "ts": start_ms + 10_000}])
        seen = [(len(b.events), shape(b.events)) for b in source.batches()]
        assert source.ended() == {0, 1}
    assert sum(n for n, _ in seen) == 500
    assert {name for _, events in seen for *_, counts in events for name in counts} == {
        "x"
    }


def test_several_topics_give_equal_bytes(
    bootstrap: str, tmp_path: Path, capsys: Printed
) -> None:
    histograms = [unk("seen"), known("known", tick="3s")]
    site = Site(bootstrap, tmp_path, histograms, topics=(1, 2), owners=2)
    last_ms = time.time_ns() // 1_000_000 - 20_000
    for source in range(3):
        end_ms = last_ms - 7_000 * source
        site.produce(source, shuffled_events(1_000 * (source + 1), end_ms, source))
    with site.worker() as worker:
        site.wait_published(last_ms)
        assert worker.stop() == 0
    found, summary = replayed(site)
    wanted = published(site)
    assert summary.events + sum(summary.rejects.values()) == 6_000
    assert summary.position == summary.total
    assert (
        len(found) > 100
        and [at for at, value in found.items() if wanted.get(at) != value] == []
    )
    ends = sorted({end for name, _, end, _ in found if name == "seen"})
    part, _ = replayed(site, until_ms=ends[len(ends) // 2])
    assert part == {
        at: value for at, value in found.items() if at[2] <= ends[len(ends) // 2]
    }
    assert execute(["replay", "-c", str(site.config), "--topic"]) == 0
    errors = capsys.readouterr().err
    assert all(
        f"  {topic}[{partition}], offset 0: " in errors
        for topic, partition in site.places
    )


def test_partitions_that_joined_give_equal_bytes(
    bootstrap: str, tmp_path: Path
) -> None:
    """What was sent to a new partition before it joined counted when it joined."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=1, owners=1)
    with site.running() as worker:
        site.produce(0, [sale("a", now_ms())])
        site.wait_published(now_ms())
        early_ms = now_ms()
        grow(site, site.topic, 2)
        site.produce(1, [sale("early", early_ms)])
        wait_joined([worker], 2)
        for _ in range(20):
            for partition in range(2):
                site.produce(partition, [sale(["a", f"at-{partition}"], now_ms())])
            time.sleep(0.3)
        site.wait_published(now_ms())
    found, _ = replayed(site)
    assert_equal_so_far(found, published(site))
    [tick] = {what.tick for what in site.contributed() if what.label == "early"}
    lane = site.settings.histograms[0].lane
    assert lane.end_ms(tick - 1) > early_ms  # late, since it had to wait
