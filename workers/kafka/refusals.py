"""Say why a broker refuses a record: which topic and which of its settings.

A broker's code leaves several causes open. One record of a compacted topic without a key, and one
dated far ahead, are both INVALID_RECORD; so the topic is asked for its settings.
"""

from confluent_kafka import KafkaError, KafkaException

from workers.kafka.clients import Connection
from workers.kafka.topics import COMPACT, ExistingTopic, describe, gone, policies
from workers.kafka.verdicts import Verdict, verdict_of_code
from workers.runtime.errors import KafkaAway, SettingsError
from workers.runtime.sizes import BATCH_BYTES

_TOO_LARGE = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.RECORD_LIST_TOO_LARGE,
)
#: INVALID_MSG: of a record without a key, before Kafka 2.4.
_INVALID = (
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_MSG,
    KafkaError._INVALID_DIFFERENT_RECORD,
)
_DATES = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)


def refusal_of(connection: Connection, topic: str, error: KafkaError) -> SettingsError:
    """Return why a broker refused a record for `topic` with `error`, for the operator.

    Asks the cluster for the topic's settings, so that the one to change is named.
    """
    code = error.code()
    reason = " ".join(error.str().split())
    try:
        existing = describe(connection, [topic]).get(topic)
    except (SettingsError, KafkaAway, KafkaException):
        existing = ExistingTopic(topic, 0)  # what it has is not known
    if existing is None:
        return gone(topic)
    if verdict_of_code(code) is Verdict.MISSING:
        return SettingsError(
            f"topic {topic} lacks a partition, or was created again a moment ago ({reason})"
        )
    if code in _TOO_LARGE:
        limit = existing.config.get("max.message.bytes", "unknown")
        segment = existing.config.get("segment.bytes", "unknown")
        return SettingsError(
            f"topic {topic} has max.message.bytes = {limit} and segment.bytes = {segment}, and a batch of records was "
            f"larger ({reason}): it needs {BATCH_BYTES}; raise it with kafka-configs.sh"
        )
    policy = existing.config.get("cleanup.policy", "")
    if code in _INVALID and COMPACT in policies(policy):
        return SettingsError(
            f"topic {topic} has cleanup.policy = {policy} and needs delete: it takes no record without a key ({reason}); "
            "change it with kafka-configs.sh"
        )
    if code in (*_INVALID, KafkaError.INVALID_TIMESTAMP):
        limits = [
            f"{name} = {existing.config[name]}"
            for name in _DATES
            if name in existing.config
        ]
        shown = ", ".join(limits) or "message.timestamp.after.max.ms"
        return SettingsError(
            f"topic {topic}: the broker refuses a record: {reason}: is this machine's clock more than an hour ahead, or "
            f"does the topic allow too little ({shown})?"
        )
    return SettingsError(f"topic {topic}: the broker refuses a record: {reason}")
