"""A shard's transactions on a real broker are atomic."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message

from tests.broker import local_broker
from tests.kafka.harness import (
    Keeper,
    abort,
    aborts,
    before_commit,
    commits,
    create_topic,
    read,
    settled,
    unique,
)
from workers.kafka.clients import Connection
from workers.kafka.offsets import ReadPosition
from workers.kafka.records import Batch, Outgoing, Records
from workers.kafka.shard import Assignment, Shard, ShardClosed
from workers.kafka.store import Changelog, Store
from workers.runtime.errors import Fenced, SettingsError
from workers.runtime.sizes import Change

pytestmark = pytest.mark.slow


class Cluster:
    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.connection = Connection(bootstrap)
        self.directory = directory
        self.opened = list[Shard]()
        self.name = unique("shard")
        self.output = f"{self.name}.out"
        self.state = f"{self.name}.state"
        create_topic(self.connection, self.output)
        create_topic(self.connection, self.state, cleanup_policy="compact")

    def shard(self, kind: type[Shard] = Keeper, path: str | None = "state") -> Any:
        """Return an open shard; all of them have the same transactional id."""
        where = None if path is None else self.directory / path
        store = Store(where, Changelog(self.state, 0))
        made = kind(Assignment(self.connection, self.name, 0, store))
        made.open()
        self.opened.append(made)
        return made

    def transact(self, shard: Shard, value: bytes, number: int) -> None:
        """Publish a value and store the offset `number`."""
        offset = (b"offset", b"%d" % number)
        shard.transact(say(self, value), [offset], number)

    def close(self) -> None:
        for shard in self.opened:
            shard.close()

    def published(self, isolation: str = "read_committed") -> list[bytes | None]:
        return [message.value() for message in self.messages(self.output, isolation)]

    def messages(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        settled(self.connection, topic)
        return read(self.connection, topic, 0, isolation)


@pytest.fixture
def cluster(bootstrap: str, tmp_path: Path) -> Iterator[Cluster]:
    """Yield topics of a test's own; close its shards at the end."""
    made = Cluster(bootstrap, tmp_path)
    yield made
    made.close()


def say(cluster: Cluster, *values: bytes) -> Sequence[Outgoing]:
    return [
        Outgoing(cluster.output, 0, b"k", value, [("h", b"1")], 1234)
        for value in values
    ]


def test_messages_and_state_become_visible_together(cluster: Cluster) -> None:
    """Output, state and position must share one transaction."""
    shard = cluster.shard()
    changes: list[Change] = [
        (b"offset", b"7"),
        (b"a", b"1"),
        (b"a", b"2"),
        (b"gone", None),
    ]
    shard.transact(say(cluster, b"one", b"two"), changes, 7)
    message = cluster.messages(cluster.output)[0]
    assert cluster.published() == [b"one", b"two"]
    assert (message.key(), message.headers(), message.timestamp()[1]) == (
        b"k",
        [("h", b"1")],
        1234,
    )
    assert [(m.key(), m.value()) for m in cluster.messages(cluster.state)] == changes
    assert dict(shard.store.items()) == {b"offset": b"7", b"a": b"2"}
    assert shard.store.offset == 4
    assert shard.committed == 7


def test_an_aborted_transaction_is_repeated_and_published_once(
    cluster: Cluster,
) -> None:
    """The broker may require an abort at any time: records sent before it must never be visible."""
    shard = cluster.shard()
    before_commit(shard.transactions, abort)
    cluster.transact(shard, b"one", 1)
    cluster.transact(shard, b"two", 2)
    assert cluster.published() == [b"one", b"two"]
    assert cluster.published("read_uncommitted") == [b"one", b"one", b"two"], (
        "nothing was aborted"
    )
    assert aborts(shard) == 1
    assert commits(shard) == 2
    shard.close()
    again = cluster.shard(path="other")
    assert again.offset == 2


def test_a_fenced_shard_publishes_nothing(cluster: Cluster) -> None:
    """Two owners of one partition must never both publish."""
    old = cluster.shard()
    cluster.transact(old, b"old", 1)
    new = cluster.shard(path="new")
    with pytest.raises(Fenced):
        old.transact(say(cluster, b"zombie"), [(b"offset", b"2"), (b"zombie", b"1")], 2)
    assert old.store.get(b"zombie") is None
    cluster.transact(new, b"new", 3)
    assert cluster.published() == [b"old", b"new"]


def test_a_commit_missing_in_the_local_copy_is_read_from_the_changelog(
    cluster: Cluster,
) -> None:
    """A kill between commit and RocksDB write leaves the copy behind, never ahead or wrong."""
    shard = cluster.shard()
    shard.transact([], [(b"offset", b"1"), (b"a", b"1"), (b"b", b"1")], 1)
    shard.store.close()  # the process dies here, as far as RocksDB can tell
    with pytest.raises(RuntimeError, match="not open"):
        shard.transact(say(cluster, b"last"), [(b"offset", b"2"), (b"a", None)], 2)
    again = cluster.shard()
    assert again.offset == 2
    assert dict(again.store.items()) == {b"b": b"1", b"offset": b"2"}
    assert again.loaded_records == 2, "only what was missing is read"
    assert cluster.published() == [b"last"]


def test_an_open_transaction_of_a_dead_owner_is_not_in_the_state(
    cluster: Cluster,
) -> None:
    """The take-over must abort a killed owner's transaction and not read its changes."""
    dead = cluster.shard()
    dead.transact([], [(b"offset", b"1")], 1)
    producer = dead.transactions._producer
    producer.begin_transaction()
    producer.produce(cluster.state, b"999", b"offset", 0)
    producer.flush(120)
    heir = cluster.shard(path="heir")
    assert heir.offset == 1
    heir.transact([], [(b"offset", b"2")], 2)
    assert heir.store.offset == cluster.messages(cluster.state)[-1].offset() + 1  # type: ignore[operator]  # set


def test_an_undeliverable_message_is_an_error_and_not_repeated_for_ever(
    cluster: Cluster,
) -> None:
    """The message stays too large: stop with the reason instead of looping."""
    small = f"{cluster.name}.small"
    create_topic(cluster.connection, small, max_message_bytes="1000")
    shard = cluster.shard()
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        shard.transact(
            [*say(cluster, b"one"), Outgoing(small, 0, None, os.urandom(10_000))],
            [(b"a", b"1")],
            1,
        )
    assert cluster.published() == []
    assert shard.store.get(b"a") is None


def test_a_batch_that_starts_elsewhere_is_refused(cluster: Cluster) -> None:
    """A gap loses records and an overlap counts them twice: neither may pass."""
    shard = cluster.shard(path=None)
    shard.feed(Batch(0, 5, Records.of([b"x"], offsets=[3])))
    assert shard.offset == 5
    for start in (4, 6):
        with pytest.raises(RuntimeError, match="is at 5"):
            shard.feed(Batch(start, 9, Records.of([b"x"], offsets=[8])))
    shard.close()
    with pytest.raises(ShardClosed):
        shard.feed(Batch(5, 9, Records.of([b"x"], offsets=[8])))


class FailsOnce(Keeper):
    """Fails in the middle of its first batch; then its timer would commit."""

    failed = False

    def process(self, batch: Batch) -> None:
        if not self.failed:
            self.failed = True
            raise ValueError("injected")

    def idle(self) -> None:
        self.transact(
            [Outgoing(self.store.changelog.topic, 0, b"half", b"done")],
            [(b"offset", b"0")],
            0,
        )


def test_a_failed_shard_does_no_more_work(bootstrap: str, tmp_path: Path) -> None:
    """Queued work would commit half a batch, or spin on a dead producer."""
    shard = Cluster(bootstrap, tmp_path).shard(FailsOnce)
    batch = Batch(0, 1, Records.of([b"x"]))
    with pytest.raises(ValueError, match="injected"):
        shard.feed(batch)
    for again in (
        shard.tick_idle,
        lambda: shard.tick(ReadPosition(0, 0, 0)),
        lambda: shard.feed(batch),
    ):
        with pytest.raises(ShardClosed):
            again()
    assert commits(shard) == 0
    shard.close()


@pytest.mark.usefixtures("own_kafka")
def test_brokers_that_allow_only_short_transactions_are_refused_in_words(
    tmp_path: Path,
) -> None:
    """librdkafka reports a fatal error, which also signals a newer owner."""
    with local_broker("transaction.max.timeout.ms=60000\n") as address:
        cluster = Cluster(address, tmp_path)
        with pytest.raises(
            SettingsError, match="transaction.max.timeout.ms is below 300000"
        ):
            cluster.shard()
