"""The ids that Kafka gives its topics: what tells a topic from a later one of the same name.

Noise is made from them (`mechanisms/identity.py`). If every topic had the same id, a topic that was
deleted and created again would get the noise of its namesake over other data, and the difference of
what the two publish would be exact. So a cluster that gives no ids is refused, and so is state that
was made without them. Only the embedded cluster has none: it ends with the demo, and so does its
key.

Kafka has topic ids since 2.8 (KIP-516): with KRaft always, with ZooKeeper once
inter.broker.protocol.version is 2.8 or later. Before that an id is read as 16 zero bytes.
"""

from __future__ import annotations

from typing import NoReturn

from workers.errors import SettingsError, StateRefused

#: 16 zero bytes, as Kafka writes an id.
ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def checked_id(topic: str, topic_id: object) -> str:
    """Return a topic's id as text.

    Raises:
        SettingsError: there is none, or it is zero.
    """
    text = "" if topic_id is None else str(topic_id)
    if text in ("", ZERO_ID):
        raise SettingsError(
            f"topic {topic}: the cluster gives it no topic id, so it cannot be told from one that was deleted and "
            "created again, which must get other noise. This takes Kafka 2.8 or newer; with ZooKeeper also "
            "inter.broker.protocol.version 2.8 or newer on every broker (with KRaft there are always ids)"
        )
    return text


def stream_name(*topics: tuple[str, str | None]) -> str:
    """Return the name of the topics with their incarnations (name, broker's id), for mechanism ids.

    Args:
        topics: an id is None on the embedded cluster only.
    """
    named = ((name, None if topic_id is None else checked_id(name, topic_id)) for name, topic_id in topics)
    return " ".join(f"{name}#{topic_id or ''}" for name, topic_id in named)


def lacks_ids(stream: str) -> bool:
    """Return whether a stream's name, from stored state, has a topic without an id."""
    return any(topic.endswith(("#", f"#{ZERO_ID}")) for topic in stream.split(" "))


def refuse_without_ids(state: str) -> NoReturn:
    """Refuse state that was made without topic ids; `state` says which."""
    raise StateRefused(
        f"{state}: made on a cluster that gave topics no ids, so nothing shows whether they are still the same ones: "
        "take a new worker name (a new stream, charged again). If this worker's topics were ever deleted and created "
        "again, what was published before and after has the same noise"
    )
