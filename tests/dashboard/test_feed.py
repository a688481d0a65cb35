"""The feed reads the last ticks, then new committed records; it reports why when it cannot."""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec
import orjson
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.admin import admin_of
from tests.dashboard.feeding import (
    PATIENCE_S,
    Topics,
    message,
    new_topic,
    public_budget,
)
from workers.client.messages import SeenSnapshot, Stream
from workers.dashboard.feed import Feed
from workers.dashboard.hub import TICKS, Hub
from workers.dashboard.store.following import Backlog
from workers.kafka.clients import Connection
from workers.privacy.public import KEY

pytestmark = pytest.mark.slow
PARTITIONS = 3

ONE = Stream("products", "s1")


def follow(
    topics: Topics,
    until: Callable[[Hub], bool],
    then: Callable[[], None] = lambda: None,
    backlog: Backlog | None = None,
) -> Hub:
    """Runs a feed until the first is true, does the second, and runs on until the first is true again."""

    async def run() -> Hub:
        hub = Hub()
        feed = Feed(topics.settings("products"), hub, backlog or Backlog())
        task = asyncio.create_task(feed.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                for act in (then, lambda: None):
                    while not until(hub):
                        assert not task.done(), task.exception()
                        await asyncio.sleep(0.02)
                    await asyncio.to_thread(act)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return hub

    return asyncio.run(run())


def ticks(hub: Hub, stream: Stream = ONE) -> list[int]:
    return [one.tick for one in hub.history.page(stream, None, 9_999)[0]]


def live(hub: Hub) -> bool:
    return hub.state["kafka"] == "live"


def test_the_last_ticks_are_read_from_a_long_topic_and_not_all_of_it(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("s1", "s2", "s3", "s4")
    topics.send(*(message(tick, key=key) for tick in range(1, 2_001) for key in keys))
    read: list[int] = []
    reading = Feed._decode

    def counted(self: Feed, record: Message) -> SeenSnapshot | None:
        read.append(1)
        return reading(self, record)

    monkeypatch.setattr(Feed, "_decode", counted)
    hub = follow(topics, live)
    for key in keys:
        assert ticks(hub, Stream("products", key)) == list(range(2_001 - TICKS, 2_001))
    assert len(read) < 4 * TICKS * 2


def test_uncommitted_and_aborted_snapshots_are_never_shown(topics: Topics) -> None:
    name = f"{topics.prefix}.products"
    producer = topics.connection.producer(f"{topics.prefix}-tx")
    producer.init_transactions(30)
    for tick, end in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.produce(
            name, orjson.dumps(message(tick)), b"s1", timestamp=message(tick)["end"]
        )
        producer.flush(30)
        producer.commit_transaction(30) if end else producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(name, orjson.dumps(message(4)), b"s1", timestamp=message(4)["end"])
    producer.flush(30)
    # The open transaction holds back the end of its partition, and nothing else.
    assert ticks(follow(topics, lambda hub: live(hub) and len(ticks(hub)) == 2)) == [
        1,
        3,
    ]
    producer.abort_transaction(30)


def test_records_that_are_no_snapshots_are_skipped_and_not_quoted(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{topics.prefix}.products"
    for value in (
        b"secret label",
        None,
        b'{"histogram":"products","items":"secret label"}',
    ):
        topics.producer.produce(name, value, b"s1")
    topics.send(message(1))
    with caplog.at_level("INFO"):
        assert ticks(follow(topics, lambda hub: live(hub) and bool(ticks(hub)))) == [1]
    assert "no snapshot" in caplog.text and "secret" not in caplog.text


def test_what_the_worker_says_of_its_budget_is_followed_and_nothing_else_is_taken(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{topics.prefix}.budget"
    admin = admin_of(topics.connection)
    older = public_budget(topics.prefix, 50)
    newer = public_budget(topics.prefix)

    def tell(*values: bytes) -> None:
        for value in values:
            topics.producer.produce(name, value, KEY, 0)
        topics.producer.flush(120)

    def create() -> None:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result()
        tell(msgspec.json.encode(older), msgspec.json.encode(newer), b"secret")
        sent.append(name)

    sent: list[str] = []

    def reached(hub: Hub) -> bool:
        assert sent or hub.budget is None
        return live(hub) and (not sent or "nothing of a budget" in caplog.text)

    topics.send(message(1))
    try:
        assert follow(topics, reached, create).budget == newer
    finally:
        admin.delete_topics([name])[name].result()
    assert "secret" not in caplog.text


def test_a_topic_that_is_not_there_yet_is_waited_for(bootstrap: str) -> None:
    topics = Topics(Connection(bootstrap), f"dash{uuid.uuid4().hex[:10]}")
    admin = admin_of(topics.connection)
    name = f"{topics.prefix}.products"
    states: list[object] = []

    def create() -> None:
        admin.create_topics([new_topic(name, 1)])[name].result()
        topics.send(message(1))

    def reached(hub: Hub) -> bool:
        states.append(dict(hub.state))
        if {"kafka": "missing", "topics": [name]} in states[:-1]:
            return ticks(hub) == [1]
        return hub.state["kafka"] == "missing"

    try:
        assert ticks(follow(topics, reached, create)) == [1]
    finally:
        admin.delete_topics([name])[name].result()


def test_a_broker_that_is_away_is_told_and_tried_again() -> None:
    topics = Topics(Connection("127.0.0.1:1", {"log_level": "0"}))
    assert (
        follow(topics, lambda hub: hub.state["kafka"] == "away").history.streams() == []
    )


def test_it_commits_nothing_and_joins_no_group(topics: Topics) -> None:
    topics.send(message(1))
    follow(topics, lambda hub: live(hub) and bool(ticks(hub)))
    groups = (
        admin_of(topics.connection)
        .list_consumer_groups(request_timeout=10)
        .result()
        .valid
    )
    assert "quietcount-reader" not in [group.group_id for group in groups]
