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
    """Return a sentence about `topic`, after asking for its settings."""
    code = error.code()
    said = " ".join(error.str().split())
    try:
        here = describe(connection, [topic]).get(topic)
    except (SettingsError, KafkaAway, KafkaException):
        here = ExistingTopic(topic, 0)  # what it has is not known
    if here is None:
        return gone(topic)
    if verdict_of_code(code) is Verdict.MISSING:
        return SettingsError(
            f"topic {topic} lacks a partition, or was created again a moment ago ({said})"
        )
    if code in _TOO_LARGE:
        limit = here.config.get("max.message.bytes", "unknown")
        segment = here.config.get("segment.bytes", "unknown")
        return SettingsError(
            f"topic {topic} has max.message.bytes = {limit} and segment.bytes = {segment}, and a batch of records was "
            f"larger ({said}): it needs {BATCH_BYTES}; raise it with kafka-configs.sh"
        )
    policy = here.config.get("cleanup.policy", "")
    if code in _INVALID and COMPACT in policies(policy):
        return SettingsError(
            f"topic {topic} has cleanup.policy = {policy} and needs delete: it takes no record without a key ({said}); "
            "change it with kafka-configs.sh"
        )
    if code in (*_INVALID, KafkaError.INVALID_TIMESTAMP):
        limits = [
            f"{name} = {here.config[name]}" for name in _DATES if name in here.config
        ]
        shown = ", ".join(limits) or "message.timestamp.after.max.ms"
        return SettingsError(
            f"topic {topic}: the broker refuses a record: {said}: is this machine's clock more than an hour ahead, or "
            f"does the topic allow too little ({shown})?"
        )
    return SettingsError(f"topic {topic}: the broker refuses a record: {said}")
