"""The history is filled from the beginning of real topics, each snapshot once, despite crashes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import duckdb
import orjson
import pytest
from confluent_kafka import Message, TopicPartition

from tests.admin import admin_of
from tests.dashboard.feeding import GONE, Topics, in_order, message, new_topic
from tests.dashboard.store.making import at, at_ticks
from tests.dashboard.test_feed import follow
from tests.worker.harness import until
from workers.client.messages import Stream
from workers.dashboard.hub import Hub
from workers.dashboard.store import following, writing
from workers.dashboard.store.following import Backlog, Follower
from workers.dashboard.store.writing import Writer
from workers.kafka.reading import FetchedChunk, read_spans
from workers.runtime.errors import KafkaAway

pytestmark = pytest.mark.slow
PARTITIONS = 3


class History:
    """A history that is handed what comes after `__init__`, and has to read the rest itself."""

    def __init__(self, topics: Topics, path: Path) -> None:
        self.database = writing.connect(path)
        self.writer = Writer(self.database)
        name = f"{topics.prefix}.products"
        with closing(topics.connection.consumer()) as consumer:
            self.ends = {
                (name, part): consumer.get_watermark_offsets(
                    TopicPartition(name, part)
                )[1]
                for part in range(PARTITIONS)
            }
        self.backlog = Backlog()
        self.backlog.begin(self.ends)
        settings = topics.settings("products")
        self.follower = Follower(settings, self.writer, self.backlog)
        self.steps = self.follower.steps()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    def read_all(self) -> History:
        for _ in self.steps:
            if self.follower.fraction_read is None:
                break
        return self

    def ticks(self, key: str = "s1") -> list[int]:
        rows = "select tick from ticks_heads_all join streams using (stream) where key = ? order by place"
        return [tick for (tick,) in self.database.execute(rows, [key]).fetchall()]

    def gaps(self) -> list[tuple[int | None, int | None]]:
        gaps = "select after_ms, until_ms from gaps order by until_ms"
        return self.database.execute(gaps).fetchall()

    def shown(self) -> list[tuple[str, int]]:
        return self.database.execute(
            "select label, sum(n)::bigint from ticks_counts_all join labels using (item) group by label order by label"
        ).fetchall()


def test_a_topic_is_read_from_its_beginning_and_then_from_where_it_was(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send(*at_ticks(range(1, 701), "s1", "s2", "s3"))
    with History(topics, tmp_path / "h") as history:
        history.read_all()
        assert all(
            history.ticks(key) == list(range(1, 701)) for key in ("s1", "s2", "s3")
        )
        assert history.shown() == [("tea", 5 * 2_100)]
        positions = history.writer.positions()
        assert {where: one.next for where, one in positions.items()} == history.ends
    topics.send(*at_ticks(range(701, 711)))
    with History(topics, tmp_path / "h") as history:
        read: list[object] = []
        receive = history.follower._receive

        def counted(record: Message) -> None:
            read.append(record)
            receive(record)

        history.follower._receive = counted  # type: ignore[assignment, method-assign]  # counts, and passes on
        history.read_all()
        assert len(read) == 10
        assert history.ticks() == list(range(1, 711))


def record(offset: int, value: bytes = b"", error: object = None) -> Any:
    """A record as the feed puts it into the backlog; `error` ends its partition."""
    fields = {"topic": "topic", "partition": 0, "offset": offset, "value": value}
    methods = {name: partial(fields.get, name) for name in fields}
    return SimpleNamespace(**methods, error=lambda: error)


def test_the_backlog_hands_over_all_records_or_says_from_where_to_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "BACKLOG_BYTES", 10_000)
    where = "topic", 0
    backlog = Backlog()
    backlog.begin({where: 5})

    def put(*records: Any) -> None:
        for one in records:
            backlog.put(one)

    first = [record(5), record(6), record(9, error="the end")]
    put(*first)
    assert backlog.take() == ({where: 5}, first)
    later = record(9)
    put(later)
    assert backlog.take() == ({}, [later])
    put(record(10, b"." * 6_000), record(11, b"." * 6_000))
    last = record(12)
    put(last)
    assert backlog.take() == ({where: 12}, [last]), "it was full"
    put(record(13), record(0))
    assert backlog.take() == ({where: 1}, []), "the topic was made anew"
    backlog.away = True
    with pytest.raises(KafkaAway):
        backlog.take()


@pytest.mark.parametrize("most", [10 << 20, 50_000])
def test_what_the_feed_reads_is_read_again_only_if_the_backlog_was_full(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(following, "BACKLOG_BYTES", most)
    topics.send(*at_ticks(range(1, 301)))
    read: list[int] = []

    def counted(*given: Any) -> Iterator[FetchedChunk]:
        for chunk in read_spans(*given):
            read.append(len(chunk.messages))
            yield chunk

    monkeypatch.setattr(following, "read_spans", counted)
    with History(topics, tmp_path / "h") as history:
        history.read_all()

        def publish() -> None:
            topics.send(*at_ticks(range(301, 601)))

        def reached(hub: Hub) -> bool:
            newest = hub.history.newest(Stream("products", "s1"))
            return newest is not None and newest.tick == topics.sent[-1]["tick"]

        follow(topics, reached, publish, history.backlog)
        for _ in history.steps:
            if len(history.ticks()) == 600:
                break
        assert history.ticks() == list(range(1, 601))
    assert (sum(read) > 310) == (most < 100_000)


def test_what_was_not_committed_is_never_kept_and_pages_are_put_together(
    topics: Topics, tmp_path: Path
) -> None:
    name = f"{topics.prefix}.products"
    producer = topics.connection.producer(f"{topics.prefix}-tx")
    producer.init_transactions(60)

    def send(commit: bool, *documents: dict[str, Any]) -> None:
        producer.begin_transaction()
        for document in documents:
            producer.produce(
                name, orjson.dumps(document), b"s1", timestamp=document["end"]
            )
        producer.commit_transaction(60) if commit else producer.abort_transaction(60)

    pages = [
        message(3, [(f"item {page}", page)], page=page, pages=3, **at(3))
        for page in (1, 2, 3)
    ]
    send(True, message(1, **at(1)))
    send(False, message(2, [("aborted", 9)], **at(2)))
    send(True, message(2, **at(2)))
    send(True, pages[0])
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks() == [1, 2]
    send(True, *pages[1:])
    topics.producer.produce(name, b"no snapshot", b"s1")
    topics.producer.produce(name, None, b"s1")
    topics.send(
        message(4, GONE, query="max", value=3, sd=None, threshold=None, **at(4))
    )
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks() == [1, 2, 3, 4]
        assert history.shown() == [
            ("item 1", 1),
            ("item 2", 2),
            ("item 3", 3),
            ("tea", 10),
        ]


@pytest.mark.parametrize("where", ["positions", "heads"])
def test_a_crash_anywhere_loses_nothing_and_keeps_nothing_twice(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    topics.send(*at_ticks(range(1, 301), "s1", "s2"))
    calls: list[None] = []
    monkeypatch.setattr(following, "PIECE_BYTES", 5_000)  # so there are many
    original = Writer._set_position if where == "positions" else Writer._insert

    def failing(self: Writer, *given: Any) -> None:
        calls.append(None)
        if len(calls) == 3:
            raise duckdb.IOException("as if killed")
        original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, original.__name__, failing)
        with (
            pytest.raises(duckdb.IOException),
            History(topics, tmp_path / "h") as history,
        ):
            history.read_all()
    with History(topics, tmp_path / "h") as history:
        history.read_all()
        assert history.ticks("s1") == history.ticks("s2") == list(range(1, 301))
        assert history.shown() == [("tea", 5 * 600)]


def test_what_the_topic_no_longer_had_is_a_gap(
    topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.send(*at_ticks(range(1, 101)))
    topics.remove("products", leaving=10)
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks() == list(range(91, 101))
        assert history.gaps() == [(None, at(91)["end"])]
    topics.send(*at_ticks(range(101, 201)))
    topics.remove("products", leaving=20)
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks() == [*range(91, 101), *range(181, 201)]
        assert history.gaps() == [
            (None, at(91)["end"]),
            (at(100)["start"], at(181)["end"]),
        ]
    assert "were removed before they were read" in caplog.text


def made_anew(topics: Topics, tmp_path: Path) -> None:
    name = f"{topics.prefix}.products"
    admin = admin_of(topics.connection)
    topics.send(*at_ticks(range(1, 11)))
    with History(topics, tmp_path / "h") as history:
        history.read_all()
    admin.delete_topics([name])[name].result()
    until(lambda: name not in admin.list_topics(timeout=60).topics, "it is gone")
    admin.create_topics([new_topic(name, 3)])[name].result()
    topics.producer = in_order(topics.connection)  # the other one knows the old topic


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    topics: Topics, tmp_path: Path
) -> None:
    made_anew(topics, tmp_path)
    topics.send(*at_ticks(range(1, 41), id="f" * 32))
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks() == [*range(1, 11), *range(1, 41)]
        assert history.gaps() == []


def test_the_beginning_of_a_topic_that_was_made_anew_can_be_gone_too(
    topics: Topics, tmp_path: Path
) -> None:
    made_anew(topics, tmp_path)
    topics.send(*at_ticks(range(11, 41), id="f" * 32))
    topics.remove("products", leaving=5)
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks() == [*range(1, 11), *range(36, 41)]
        assert history.gaps() == [(at(10)["start"], at(36)["end"])]


def test_parts_that_lag_are_put_together_also_after_a_restart(
    topics: Topics, tmp_path: Path
) -> None:
    """Another worker may publish one part minutes later, between the ticks of other keys."""

    def part(number: int, tick: int, key: str) -> dict[str, Any]:
        items = [(f"item {number}", tick)]
        return message(tick, items, key=key, part=number, parts=2, **at(tick))

    first = [part(1, tick, key) for tick in range(1, 9) for key in ("s1", "s2")]
    topics.send(*first, *(part(2, tick, "s1") for tick in range(1, 4)))
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks("s1") == [1, 2, 3]
        assert not history.ticks("s2")
    topics.send(*(part(2, tick, "s1") for tick in range(4, 8)))
    topics.send(*(part(2, tick, "s2") for tick in range(1, 9)))
    with History(topics, tmp_path / "h") as history:
        assert history.read_all().ticks("s1") == list(range(1, 8))
        assert history.ticks("s2") == list(range(1, 9))
        assert history.shown() == [
            (f"item {i}", sum(range(8)) + sum(range(9))) for i in (1, 2)
        ]


def test_pages_that_never_come_hold_nothing_back(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RECORDS_WITHIN", 50)
    topics.send(message(1, page=1, pages=2, **at(1)), *at_ticks(range(2, 200)))
    with History(topics, tmp_path / "h") as history:
        history.read_all()
        positions = history.writer.positions().values()
        assert {position.next for position in positions if position.next} == {199}
