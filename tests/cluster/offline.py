"""The worker's factory of shards where tests replace all of Kafka."""

from collections.abc import Mapping
from typing import Any

from workers.agents.topics import Topics
from workers.agents.worker import Factory
from workers.kafka.clients import Connection
from workers.kafka.topics import ExistingTopic
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.settings.settings import Settings

NOWHERE = "127.0.0.1:1"


def worker_document(name: str, **sections: Any) -> dict[str, Any]:
    """Return settings of a worker that never asks Kafka, with these sections."""
    worker = {"name": name, "data_dir": "data", "key_file": "key"}
    return {"worker": worker, "kafka": {"bootstrap": NOWHERE}, **sections}


def factory_of(
    settings: Settings, key: NoiseKey, partitions: Mapping[str, int]
) -> Factory:
    """Return the factory for an events topic named `events`; `partitions` by topic."""
    embedded = {name: ExistingTopic(name, n) for name, n in partitions.items()}

    def sources(name: str) -> Sources:
        return Sources((SourceTopic(name, partitions[name], None),))

    topics = Topics(
        plan=[],
        existing=embedded,
        origins=sources("events"),
        by_user=sources(settings.by_user_topic) if settings.privacy.rekey else None,
        owners=Owners(partitions[settings.contributions_topic]),
        embedded=True,
    )
    return Factory(settings, Connection(NOWHERE), topics, key, None)
