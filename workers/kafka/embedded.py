"""librdkafka's in-process cluster: a broker without installation, for demo and quick tests.

It enforces nothing (read_committed sees open transactions, a fenced producer's commit is accepted,
about 5 MiB are kept per partition), so it proves nothing about delivery. Topics appear on first
request, without ids. A real cluster must give ids, so a worker accepts a cluster as embedded only
if the process that started it supplies its cluster id (`Connection.embedded`).
"""

from __future__ import annotations

from typing import Self

from confluent_kafka import KafkaException, Producer

from workers.kafka.clients import Connection
from workers.runtime.errors import SettingsError

#: Partitions of every topic; librdkafka has no setting for it.
PARTITIONS = 4


class EmbeddedCluster:
    """Context manager over the in-process cluster, which its producer keeps alive."""

    def __enter__(self) -> Self:
        config = {"bootstrap.servers": "unused", "log_level": 2, "test.mock.num.brokers": 1}
        self._owner: Producer | None = Producer(config)
        try:
            metadata = self._owner.list_topics(timeout=60)
        except KafkaException as exc:
            raise SettingsError(f"the embedded Kafka did not start: {exc}") from exc
        [broker] = metadata.brokers.values()
        self.bootstrap, cluster_id = f"{broker.host}:{broker.port}", metadata.cluster_id or ""
        # Transactional batches have wrong CRCs.
        self.connection = Connection(self.bootstrap, {"check.crcs": "false"}, embedded=cluster_id)
        return self

    def __exit__(self, *_: object) -> None:
        self._owner = None
