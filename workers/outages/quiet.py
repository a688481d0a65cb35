"""Log lines of the clients that say no more than our own two: Kafka is away, and back.

Every client reports each attempt to reach a broker, for ever. What a broker refuses (a password, a
right) is never held back. `--debug` shows all of it.
"""

from __future__ import annotations

import logging
import re

#: How their lines begin, by logger; aiokafka's are of one request that failed and is repeated.
_AIOKAFKA = (
    "Unable connect to", "Unable to request metadata", "Unable to update metadata", "Failed fetch messages from",
    "Failed fetch offsets from", "Error sending ", "Marking the coordinator dead", "Heartbeat send request failed",
    "Heartbeat session expired", "Heartbeat failed", "Group Coordinator Request failed", "LeaveGroup request failed",
    "OffsetCommit failed", "No broker metadata found", "Unexpected error in coordinator routine",
    "Unexpected error in fetcher routine",
)  # fmt: skip
_LIBRDKAFKA = ("FAIL", "METADATAUPDATE", "GETPID", "REQTMOUT", "TIMEOUT", "TXNERR", "COORDQUERY", "TXNCOORD")
_OURS = ("Kafka client: _TRANSPORT", "Kafka client: _ALL_BROKERS_DOWN", "Kafka client: _TIMED_OUT", "Kafka client: _RESOLVE")
_FAUST = ("Thread keepalive is not responding", "No active partitions for")
_REFUSES = re.compile(r"authenti|authori[sz]|sasl|ssl|certificate", re.IGNORECASE)


class _WithoutOutages(logging.Filter):
    """Lets through what is not about a broker that cannot be reached."""

    def filter(self, record: logging.LogRecord) -> bool:
        source = record.name.partition(".")[0]
        text = record.getMessage()
        if source == "aiokafka":
            return not text.startswith(_AIOKAFKA)
        if source == "librdkafka":
            return not text.startswith(_LIBRDKAFKA) or _REFUSES.search(text) is not None
        if source in ("faust", "mode"):
            return not any(words in text for words in _FAUST)
        return not (record.name == "workers.kafka.clients" and text.startswith(_OURS))


def without_outages() -> None:
    """Hold these lines back, unless the log was set up with `--debug`."""
    root = logging.getLogger()
    if root.level > logging.DEBUG:
        for handler in root.handlers:
            handler.addFilter(_WithoutOutages())
