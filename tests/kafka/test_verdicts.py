"""What every error of both Kafka clients means: one table, without gaps."""

import inspect
import re
from pathlib import Path

import pytest
from aiokafka import errors as aiokafka
from confluent_kafka import KafkaError, KafkaException

from workers.kafka import outages, verdicts
from workers.kafka.clients import forbidden
from workers.kafka.verdicts import BY_CODE, Verdict, verdict_of, verdict_of_code
from workers.runtime.availability import Outage
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError

WORKERS = Path(verdicts.__file__).parents[1]
CODES = {
    name: code
    for name, code in inspect.getmembers(
        KafkaError, lambda value: isinstance(value, int)
    )
    if name.isupper()
}
#: The codes that no table lists, since they are outages.
OUTAGES = {
    # Connections, and the handles of brokers that come and go.
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_FAIL",
    "_DESTROY",
    "_DESTROY_BROKER",
    "_NODE_UPDATE",
    "_UNKNOWN_BROKER",
    "_BAD_MSG",
    "_UNDERFLOW",
    "_PARTIAL",
    "NETWORK_EXCEPTION",
    "REBOOTSTRAP_REQUIRED",
    # Answers that are late, and calls that were given up.
    "_TIMED_OUT",
    "_MSG_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "_QUEUE_FULL",
    "_ISR_INSUFF",
    "_WAIT_COORD",
    "_WAIT_CACHE",
    "_IN_PROGRESS",
    "_PREV_IN_PROGRESS",
    "_INTR",
    "_RETRY",
    "_OUTDATED",
    "_CRIT_SYS_RESOURCE",
    "_MAX_POLL_EXCEEDED",
    "REQUEST_TIMED_OUT",
    "THROTTLING_QUOTA_EXCEEDED",
    # Producers that must begin again: the broker lost or ended what they had.
    "_FATAL",
    "_STATE",
    "_INCONSISTENT",
    "_GAPLESS_GUARANTEE",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "DUPLICATE_SEQUENCE_NUMBER",
    "UNKNOWN_PRODUCER_ID",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TXN_STATE",
    "CONCURRENT_TRANSACTIONS",
    "TRANSACTION_COORDINATOR_FENCED",
    "TRANSACTION_ABORTABLE",
    "OPERATION_NOT_ATTEMPTED",
    # Brokers that start, end, or elect a leader.
    "UNKNOWN",
    "BROKER_NOT_AVAILABLE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "REPLICA_NOT_AVAILABLE",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "OFFSET_NOT_AVAILABLE",  # a new leader does not know its high watermark yet
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "STALE_CTRL_EPOCH",
    "STALE_BROKER_EPOCH",
    "NOT_CONTROLLER",
    "UNKNOWN_CONTROLLER_ID",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "KAFKA_STORAGE_ERROR",
    "LOG_DIR_NOT_FOUND",
    "LISTENER_NOT_FOUND",
    "REASSIGNMENT_IN_PROGRESS",
    "FETCH_SESSION_ID_NOT_FOUND",
    "INVALID_FETCH_SESSION_EPOCH",
    "UNSTABLE_OFFSET_COMMIT",
    # A consumer group between two generations.
    "REBALANCE_IN_PROGRESS",
    "MEMBER_ID_REQUIRED",
}
CLASSES = [
    kind
    for _, kind in inspect.getmembers(aiokafka, inspect.isclass)
    if issubclass(kind, Exception) and kind.__module__ == aiokafka.__name__
]


def test_every_code_of_librdkafka_has_one_verdict() -> None:
    """An upgrade that brings new codes must say what they mean."""
    assert len(CODES) > 150
    assert {name for name, code in CODES.items() if code not in BY_CODE} == OUTAGES
    listed = [name for names in verdicts._NAMES.values() for name in names]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_of_aiokafka_has_a_verdict(kind: type[Exception]) -> None:
    """One with a code means what librdkafka's does, unless it is listed."""
    verdict = verdict_of(kind("why"))
    assert verdict is not None
    code = getattr(kind, "errno", None)
    if code is not None and kind is not aiokafka.CorruptRecordException:
        base = aiokafka.CorruptRecordException
        assert verdict is verdict_of_code(code) or issubclass(kind, base)


@pytest.mark.parametrize(
    "name", sorted(OUTAGES | {"_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART"})
)
def test_what_is_nobodys_setting_is_waited_for_at_a_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker killed beside a start ended the worker, as if its settings were wrong.

    Where it had just listed the topics, its client did not know their partitions.
    """
    monkeypatch.setattr(outages, "INTERVAL_S", 0.0)
    failing = [KafkaException(KafkaError(CODES[name]))]

    def ask() -> str:
        if failing:
            raise failing.pop()
        return "topics"

    outage = Outage()
    assert outages.wait_for(ask, outage) == "topics"
    assert outage.count == 1


def test_a_missing_right_a_wrong_password_and_a_missing_topic_are_no_outages() -> None:
    def verdict(name: str) -> Verdict | None:
        return verdict_of(KafkaException(KafkaError(CODES[name])))

    assert verdict("TOPIC_AUTHORIZATION_FAILED") is Verdict.FORBIDDEN
    assert forbidden(aiokafka.GroupAuthorizationFailedError("g")) is not None
    assert verdict("_AUTHENTICATION") is verdict("INVALID_RECORD") is Verdict.SETTING
    assert (
        verdict("UNKNOWN_TOPIC_OR_PART") is verdict("_UNKNOWN_TOPIC") is Verdict.MISSING
    )
    assert verdict("_FENCED") is Verdict.FENCED
    assert verdict_of(KafkaAway("x")) is Verdict.OUTAGE
    assert verdict_of(KafkaRefuses("x")) is verdict_of(SettingsError("x")) is None
    assert verdict_of(ValueError("x")) is None
    assert verdict_of(KafkaException(KafkaError(30_000))) is Verdict.OUTAGE, (
        "of a later broker"
    )


def test_no_other_module_keeps_a_list_of_codes() -> None:
    """Codes elsewhere tell events, requests of one kind and refused records apart."""
    allowed = {
        "_PARTITION_EOF",
        "_AUTO_OFFSET_RESET",
        "_PURGE_QUEUE",
        "_PURGE_INFLIGHT",
        "_AUTHENTICATION",
        "_SSL",
        "_TRANSPORT",
        "_RESOLVE",
        "_TIMED_OUT",
        "_STATE",
        "_FAIL",
        "GROUP_AUTHORIZATION_FAILED",
        "GROUP_ID_NOT_FOUND",
        "INVALID_PARTITIONS",
        "INVALID_TRANSACTION_TIMEOUT",
        "SASL_AUTHENTICATION_FAILED",
        "UNKNOWN_TOPIC_OR_PART",
    }
    for path in WORKERS.rglob("*.py"):
        if path.name not in ("verdicts.py", "refusals.py"):
            used = set(re.findall(r"\bKafkaError\.(_?[A-Z][A-Z_]+)", path.read_text()))
            assert used <= allowed, f"{path.name}: {used - allowed}"
