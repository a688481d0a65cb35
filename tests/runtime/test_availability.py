"""Kafka outages: log lines, waiting, and errors that are not outages."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from workers.kafka import outages
from workers.kafka.clients import Connection
from workers.kafka.outages import wait_for
from workers.runtime.availability import Outage
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError


def test_an_outage_is_two_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred clients notice it, repeatedly."""
    clock = [100.0]
    outage = Outage(lambda: clock[0])
    assert (outage.is_active, outage.seconds, outage.count) == (False, 0.0, 0)
    outage.end()
    outage.begin("no broker answers.", since_s=95.0)
    clock[0] = 130.0
    outage.begin("a commit failed")
    assert (outage.is_active, outage.seconds, outage.count) == (True, 35.0, 1)
    assert outage.reason == "a commit failed"
    outage.end()
    outage.end()
    assert (outage.is_active, outage.seconds, outage.count) == (False, 0.0, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Kafka is away: no broker answers. Waiting for it; nothing is lost",
        "Kafka is back: it was away for 35 s",
    ]
    outage.begin("again")
    assert outage.count == 2


def answers(*given: object) -> Callable[[], str]:
    left = list(given)

    def ask() -> str:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return str(found)

    return ask


def test_only_an_absent_kafka_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting on a wrong setting would never end."""
    monkeypatch.setattr(outages, "INTERVAL_S", 0.0)
    outage = Outage()
    waited = list[bool]()
    silent = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    asked = answers(KafkaAway("no broker"), silent, "topics")
    assert wait_for(asked, outage, lambda: waited.append(outage.is_active)) == "topics"
    assert waited == [True, True] and not outage.is_active and outage.count == 1
    unauthorized = KafkaException(KafkaError(29))
    for refused in (
        SettingsError("no such topic"),
        KafkaRefuses("wrong password"),
        unauthorized,
    ):
        with pytest.raises(type(refused)):
            wait_for(answers(refused, "topics"), Outage())


def test_a_refusal_that_stays_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh broker may not know its users yet; a repeated refusal must end the retries."""
    monkeypatch.setattr(outages, "INTERVAL_S", 0.0)
    outage = Outage()
    outage.begin("no broker answers")
    refuses = KafkaRefuses("wrong password")
    assert (
        wait_for(answers(refuses, SettingsError("no such topic"), "topics"), outage)
        == "topics"
    )
    assert (
        wait_for(answers(KafkaAway("no broker"), refuses, "topics"), Outage())
        == "topics"
    )
    outage.begin("no broker answers")
    monkeypatch.setattr(outages, "REFUSED_S", 0.0)
    with pytest.raises(KafkaRefuses):
        wait_for(answers(refuses, "topics"), outage)


def test_a_broker_that_nobody_reaches_is_named_by_its_address() -> None:
    with (
        pytest.raises(KafkaAway, match=r"127\.0\.0\.1:1.*refused"),
        Connection("127.0.0.1:1").connect(0.5),
    ):
        pass
