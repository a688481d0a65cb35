"""Find partitions that hold the worker up: without a leader that answers, or with too few replicas.

A broker refuses writes to a partition with fewer replicas in sync than the topic's
`min.insync.replicas`; clients wait for both without a word. Metadata alone does not show a leader
that has just died, nor any once the controllers have no majority, so every leader is asked.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]  # re-exports

from workers.kafka.clients import await_answers, unreachable, unreached


@dataclass(frozen=True)
class UsedTopics:
    """A worker's topics; `least_in_sync` has the min.insync.replicas of those it writes."""

    names: tuple[str, ...] = ()
    least_in_sync: Mapping[str, int] = field(default_factory=dict)


NO_ANSWER = "its leader does not answer"


def unavailable(
    admin: AdminClient,
    errors: Sequence[KafkaError],
    topics: UsedTopics,
    within_s: float,
    ended: Callable[[], bool],
) -> dict[str, str]:
    """Return the reason of every unavailable partition, by its name, such as "orders[3]".

    Return {} once `ended`. Takes twice `within_s` at most. Ends early where the leaders that do not
    answer are among the brokers that the client has not reached: its callback appends such errors
    to `errors`. End the client after a NO_ANSWER: it may go on connecting.
    """
    reasons: dict[str, str] = {}
    leaders: dict[TopicPartition, int] = {}
    until_s = time.monotonic() + within_s
    # One request for each: all topics of a cluster may be thousands, and only this asks any broker.
    for name in topics.names:
        # A negative timeout would mean none.
        left_s = max(until_s - time.monotonic(), 0.01)
        # A topic without an answer is left out this time.
        with suppress(KafkaException):
            topic = admin.list_topics(name, timeout=left_s).topics[name]
            for number, partition in topic.partitions.items():
                needed = topics.least_in_sync.get(name, 0)
                if partition.leader < 0:
                    reasons[f"{name}[{number}]"] = "it has no leader"
                    continue
                if len(partition.isrs) < needed:
                    reasons[f"{name}[{number}]"] = (
                        f"{len(partition.isrs)} of its {len(partition.replicas)} replicas are in sync, "
                        f"{needed} are needed"
                    )
                leaders[TopicPartition(name, number)] = partition.leader
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = dict.fromkeys(leaders, latest)
    offsets = admin.list_offsets(asked, request_timeout=within_s) if asked else {}
    leader_of = {future: leaders[where] for where, future in offsets.items()}

    def gives_up(waiting: set[Future[Any]]) -> bool:
        """Return whether to stop: no leader still waited for can be reached, or `ended`."""
        admin.poll(0)  # appends to `errors`
        return ended() or {leader_of[each] for each in waiting} <= unreached(errors)

    missing = await_answers(offsets.values(), gives_up)
    if ended():
        return {}
    for where, future in offsets.items():
        # If there are too few replicas, that reason stays: it says more.
        if future in missing or not _has_answered(future):
            reasons.setdefault(f"{where.topic}[{where.partition}]", NO_ANSWER)
    return reasons


def _has_answered(future: Future[ListOffsetsResultInfo]) -> bool:
    """Return whether a partition's leader has answered, if only with a refusal."""
    error = future.exception()
    if error is not None:
        return not unreachable(error)
    # A leader that does not answer may give neither an error nor an offset (librdkafka 2.16).
    return future.result().offset >= 0
