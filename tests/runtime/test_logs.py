"""The worker's log reports every fact once, without Faust internals."""

import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from workers.kafka.outages import filter_outage_logs
from workers.runtime.errors import StateRefused, describe
from workers.runtime.logs import json_fields, log_to_stderr


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    hooks = threading.excepthook, sys.excepthook
    yield
    threading.excepthook, sys.excepthook = hooks
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.level = level


def test_a_repeated_line_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    """A missing broker would fill the disk; the stop reason reads as in all commands."""
    log_to_stderr(debug=False)
    for _ in range(3):
        logging.getLogger("librdkafka").warning("the broker is away")
    logging.getLogger("workers.kafka.transport").info("[^--Consumer]: Starting...")
    logging.getLogger("workers.kafka.handover").critical("state\nrefused")
    lines = capfd.readouterr().err.splitlines()
    said = [line.split(" WARNING ")[-1] for line in lines]
    assert said == ["the broker is away", "quietcount: state refused"]


def test_json_has_one_object_a_line_and_no_event(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Collectors split at line ends; an exception's message may quote an event."""
    log_to_stderr(debug=False, json_lines=True)
    log = logging.getLogger("workers.kafka.handover")
    log.info("took\nover", extra=json_fields(event="acquired", partitions=3))
    try:
        raise KeyError("Planted")
    except KeyError:
        log.exception("failed")
    first, second = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    assert (first["message"], first["event"], first["partitions"]) == (
        "took\nover",
        "acquired",
        3,
    )
    assert first["time"].endswith("Z") and first["level"] == "info"
    assert "KeyError at test_logs.py" in second["error"]["kind"]
    assert "raise KeyError" in second["error"]["traceback"]
    assert "KeyError: " not in second["error"]["traceback"]


def test_an_uncaught_error_in_a_thread_is_logged(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Python's own report would show its message, and break the JSON."""

    def fail() -> None:
        raise ValueError("Pl" + "anted")

    log_to_stderr(debug=True, json_lines=True)
    thread = threading.Thread(target=fail, name="shard-0")
    thread.start()
    thread.join()
    [line] = capfd.readouterr().err.splitlines()
    assert "shard-0" in json.loads(line)["message"] and "Planted" not in line


def test_errors_about_kafka_files_and_settings_keep_their_message() -> None:
    """An operator can act on these."""
    missing = FileNotFoundError(2, "No such file", "key")
    assert describe(missing) == "FileNotFoundError: [Errno 2] No such file: 'key'"
    assert describe(StateRefused("topic\n was cut")) == "StateRefused: topic was cut"
    assert "timed out" in describe(
        KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out"))
    )
    assert describe(KeyError("Planted")) == "KeyError"


def test_only_connection_failures_are_held_back(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An outage is two lines, but a wrong password must be visible."""
    log_to_stderr(debug=False)
    filter_outage_logs()
    failed = "FAIL [rdkafka#producer-4] [thrd:x]: "
    shown = [
        ("librdkafka", failed + "SASL authentication error: Authentication failed"),
        ("librdkafka", "something else"),
        ("aiokafka.conn", "Topic x is not authorized for this client"),
        ("workers.kafka.clients", "Kafka client: _AUTHENTICATION: no"),
        ("workers.runtime.availability", "Kafka is away: x. Waiting"),
        ("workers.runtime.availability", "Kafka is away: x. Waiting"),
    ]
    held_back = [
        (
            "librdkafka",
            failed + "Connect to ipv4#127.0.0.1:9092 failed: Connection refused",
        ),
        ("aiokafka.conn", "Unable connect to node with id 1: refused"),
        ("workers.kafka.clients", "Kafka client: _TRANSPORT: refused"),
    ]
    for name, text in held_back + shown:
        logging.getLogger(name).error("%s", text)
    lines = [
        line.split(" ERROR   ")[-1] for line in capfd.readouterr().err.splitlines()
    ]
    assert lines == [text for _, text in shown]
