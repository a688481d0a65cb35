"""Find partitions that hold the worker up: without a leader that answers, or with too few replicas.

A broker refuses writes to a partition with fewer replicas in sync than the topic's
`min.insync.replicas`; clients wait for both without a word. Metadata alone does not show a leader
that has just died, nor any once the controllers have no majority, so every leader is asked.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # a re-export

from workers.kafka.clients import unreachable

_SLICE_S = 0.1


@dataclass(frozen=True)
class UsedTopics:
    """A worker's topics, and of those that it writes the replicas that must be in sync."""

    names: tuple[str, ...] = ()
    least_in_sync: Mapping[str, int] = field(default_factory=dict)


def unavailable(
    admin: AdminClient, topics: UsedTopics, within_s: float, ended: Callable[[], bool]
) -> dict[str, str]:
    """Return why, by partition; nothing once `ended`. Takes twice `within_s` at most."""
    found: dict[str, str] = {}
    asked, until_s = {}, time.monotonic() + within_s
    # One request for each: all topics of a cluster may be thousands, and only this asks any broker.
    for name in topics.names:
        left_s = max(until_s - time.monotonic(), 0.01)
        with suppress(KafkaException):
            topic = admin.list_topics(name, timeout=left_s).topics[name]
            for number, one in topic.partitions.items():
                place, needed = f"{name}[{number}]", topics.least_in_sync.get(name, 0)
                if one.leader < 0:
                    found[place] = "it has no leader"
                    continue
                if len(one.isrs) < needed:
                    of = f"{len(one.isrs)} of its {len(one.replicas)} replicas are in sync"
                    found[place] = f"{of}, {needed} are needed"
                asked[TopicPartition(name, number)] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    offsets = admin.list_offsets(asked, request_timeout=within_s) if asked else {}
    while wait(offsets.values(), _SLICE_S).not_done:
        if ended():
            return {}
    for where, future in offsets.items():
        error = future.exception()
        # A leader that does not answer may give neither an error nor an offset (librdkafka 2.16).
        if unreachable(error) if error is not None else future.result().offset < 0:
            found.setdefault(f"{where.topic}[{where.partition}]", "its leader does not answer")
    return found
