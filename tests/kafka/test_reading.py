"""Readers of committed records wait for transactions whose markers are still on their way."""

import threading

import pytest
from confluent_kafka import Producer

from tests.kafka.harness import create_topic, open_transaction, unique
from workers.kafka import reading
from workers.kafka.clients import Connection
from workers.kafka.reading import await_commits, read_partition
from workers.runtime.errors import KafkaAway


@pytest.fixture
def hidden(bootstrap: str) -> tuple[Connection, str, Producer]:
    """Return a topic with a record in an open transaction, and its producer."""
    connection = Connection(bootstrap)
    topic = unique("reading")
    create_topic(connection, topic)
    return connection, topic, open_transaction(connection, topic, b"key", b"value")


def test_records_of_an_open_transaction_are_read_once_it_has_ended(
    hidden: tuple[Connection, str, Producer],
) -> None:
    """`audit` reported a snapshot as missing whose transaction was acknowledged, but not yet marked."""
    connection, topic, producer = hidden
    assert list(read_partition(connection, topic, 0)) == []
    committing = threading.Timer(0.5, producer.commit_transaction, [60])
    committing.start()
    await_commits(connection, [(topic, 0)])
    assert [message.value() for message in read_partition(connection, topic, 0)] == [
        b"value"
    ]
    committing.join()


def test_an_endless_transaction_is_named(
    hidden: tuple[Connection, str, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean audit must not be claimed over records that nobody can see."""
    monkeypatch.setattr(reading, "_PATIENCE_S", 0.3)
    connection, topic, producer = hidden
    with pytest.raises(KafkaAway, match=rf"{topic}\[0\]: a transaction is open"):
        await_commits(connection, [(topic, 0)])
    producer.abort_transaction(60)
    await_commits(connection, [(topic, 0)])
