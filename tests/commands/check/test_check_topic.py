"""`quietcount check` on a real Kafka: the newest records, whatever lies between them, and nothing written."""

import json
import time
import uuid
from pathlib import Path

import pytest

from tests.quietcount import Quietcount
from tests.worker.harness import Site, unk, until
from workers.commands.check.examine import examine
from workers.commands.check.sample import of_topics
from workers.kafka.reading import bounds_of, reader


def event(i: int, **changes: object) -> dict[str, object]:
    at = time.time_ns() // 1_000_000 - 100_000 + i
    return {"key": "k", "items": [f"p{i % 3}"], "ts": at} | changes


def ends(site: Site) -> dict[str, list[tuple[int, int]]]:
    topics = site.admin.list_topics(timeout=60).topics
    own = {
        name: sorted(topic.partitions)
        for name, topic in topics.items()
        if site.name in name
    }
    with reader(site.connection) as consumer:
        return {
            name: [bounds_of(consumer, name, p) for p in places]
            for name, places in own.items()
        }


def test_the_newest_records_are_looked_at_and_nothing_is_written(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    site = Site(bootstrap, tmp_path, [unk()], partitions=3)
    for partition in range(3):
        site.produce(partition, [b"old"] * 200, flush=False)
    site.produce(0, [event(i) for i in range(50)])
    site.produce(1, [event(i) for i in range(300)])
    site.produce(2, [event(i, items=None) for i in range(40)])
    before = until(lambda: ends(site), "every log has a leader")
    shown = quietcount(f"check -c {site.config} --records 90").out
    assert ends(site) == before
    for words in ("accepted  60", "rejected  30", "field 'items' is null"):
        assert words in shown
    assert not (tmp_path / "data").exists()
    assert len(of_topics(site.settings, 100_000)) == 600 + 390


def test_records_of_transactions_are_found_between_their_markers_and_aborted_ones_are_not(
    bootstrap: str, tmp_path: Path
) -> None:
    site = Site(bootstrap, tmp_path, [unk()], partitions=1)
    producer = site.connection.producer(f"{site.name}-{uuid.uuid4().hex}")
    producer.init_transactions(60)
    for i in range(40):
        producer.begin_transaction()
        producer.produce(site.topic, json.dumps(event(i)))
        # the broker refuses to abort what has only just begun to reach it
        producer.flush(60)
        producer.commit_transaction(60) if i % 4 else producer.abort_transaction(60)
    assert len(of_topics(site.settings, 20)) == 20
    found = examine(site.settings, of_topics(site.settings, 1_000))
    assert (found.records, found.accepted) == (30, 30)


def test_users_in_the_wrong_partition_are_reported(
    bootstrap: str, tmp_path: Path
) -> None:
    site = Site(
        bootstrap,
        tmp_path,
        [unk(max_items_per_user=2)],
        partitions=2,
        events={"user": "user"},
        privacy={"unit": "user"},
    )
    site.produce(0, [event(i, user=f"u{i}") for i in range(100)])
    found = examine(site.settings, of_topics(site.settings, 100))
    [why] = found.why
    assert why.reason == "user's records belong in another partition"
    assert 20 < found.accepted < 80 and found.accepted + why.number == 100


@pytest.mark.parametrize("records", [[], [b"broken"] * 5])
def test_exit_code_is_1_without_accepted_events(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount, records: list[bytes]
) -> None:
    site = Site(bootstrap, tmp_path, [unk()], partitions=1)
    site.produce(0, records)
    shown = quietcount(f"check -c {site.config}", code=1)
    [line] = shown.err.splitlines()
    assert ("none of 5 would be accepted" if records else "there are none") in line
    assert ("not JSON: 5 (100.0 %)" in shown.out) == bool(records)


def test_exit_code_is_2_for_a_missing_topic_and_an_unreachable_broker(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    site = Site(bootstrap, tmp_path, [unk()], partitions=1, create=False)
    assert "no such topic" in quietcount(f"check -c {site.config}", code=2).err
    site.document["kafka"]["bootstrap"] = "127.0.0.1:1"
    line = quietcount(f"check -c {site.write(site.document)}", code=2).line
    assert "no broker answered" in line


def test_a_wrong_date_at_the_beginning_of_any_partition_is_told(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    """A worker begins there, though the newest records show nothing of it."""
    site = Site(bootstrap, tmp_path, [unk(tick="1m", horizon="1d")], partitions=3)
    old = event(0)
    site.produce(1, [old | {"ts": int(str(old["ts"])) - 20 * 86_400_000}], flush=False)
    for partition in range(3):
        site.produce(partition, [event(i) for i in range(300)])
    said = quietcount(f"check -c {site.config} --records 90").words
    assert "28,799 ticks in a row have no event" in said
    assert "is the date of the 1 event before them right?" in said


def test_what_lies_between_the_oldest_and_the_newest_records_is_no_gap(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    site = Site(bootstrap, tmp_path, [unk(tick="100ms", horizon="1d")], partitions=1)
    site.produce(0, [event(500 * i - 5_000_000) for i in range(10_000)])
    assert (
        "in a row have no event"
        not in quietcount(f"check -c {site.config} --records 90").out
    )
