"""What readers are told of the budget is written by a thread of its own, until it is written."""

import threading
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.privacy.ceiling.test_outlook import Case, days
from workers.agents import public_budget as module
from workers.agents.public_budget import BudgetWriter
from workers.kafka.clients import Connection
from workers.privacy.public import KEY, decode_budget, public_budget

CASE = Case("user", "30d", 1.0, days())
PATIENCE_S = 60.0


class Broker:
    """Stands for connection and producer; `failures` are what further records meet."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes, bytes, int]] = []
        self.failures: list[KafkaException | KafkaError] = []
        self.changed = threading.Condition()

    def producer(self, *_: object, **__: object) -> "Broker":
        return self

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
    ) -> None:
        failure = self.failures.pop() if self.failures else None
        if isinstance(failure, KafkaException):
            raise failure
        on_delivery(failure, None)
        with self.changed:
            self.written.append((topic, value, key, partition))
            self.changed.notify_all()

    def flush(self, _: float) -> int:
        return 0

    def wait_for(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.written) >= number, PATIENCE_S
            )


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    return Broker()


def writer_to(broker: Broker) -> BudgetWriter:
    return BudgetWriter(CASE.settings, cast(Connection, broker))


def progress() -> bytes:
    return msgspec.json.encode(CASE.state)


def test_a_noted_progress_is_written_at_once(broker: Broker) -> None:
    writer = writer_to(broker)
    with writer.running():
        writer.note(progress(), ())
        broker.wait_for(1)
    [(topic, value, key, partition)] = broker.written
    assert (topic, key, partition) == (f"{CASE.settings.worker.name}.budget", KEY, 0)
    assert decode_budget(value) == public_budget(CASE.settings, CASE.state, [])


def test_it_is_tried_until_it_is_written_and_a_failure_is_logged_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    away = KafkaError(KafkaError._TRANSPORT, "gone")
    broker.failures = [away, away, KafkaException(away), KafkaException(away)]
    writer = writer_to(broker)
    with writer.running():
        writer.note(progress(), ())
        broker.wait_for(3)  # two of them were refused once they were sent
    assert len({value for _, value, _, _ in broker.written}) == 1
    lines = [one.message for one in caplog.records]
    assert len(lines) == len(set(lines)) <= 2
    assert all("cannot be written for readers now" in line for line in lines)


def test_it_is_written_again_after_a_while(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older owner's record may have come after it, or the topic may be another one."""
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    writer = writer_to(broker)
    with writer.running():
        writer.note(progress(), ())
        broker.wait_for(5)
    assert len({value for _, value, _, _ in broker.written}) == 1


def test_what_is_noted_last_is_written_before_the_worker_ends(broker: Broker) -> None:
    """A worker that a ceiling ends says so with its last act."""
    writer = writer_to(broker)
    with writer.running():
        writer.note(progress(), ())
    assert len(broker.written) == 1
    with writer_to(broker).running():
        pass  # nothing was noted, so nothing is written
    assert len(broker.written) == 1


def test_a_state_that_cannot_be_read_stops_nothing(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_to(broker)
    with writer.running():
        writer.note(b"{}", ())
        writer.note(progress(), ())
        broker.wait_for(1)
    assert all(value != b"{}" for _, value, _, _ in broker.written)
