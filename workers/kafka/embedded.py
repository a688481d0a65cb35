"""librdkafka's in-process cluster: a broker without installation, for demo and quick tests.

It enforces nothing (read_committed sees open transactions, a fenced producer's commit is accepted,
about 5 MiB are kept per partition), so it proves nothing about delivery. Topics appear on first
request, with 4 partitions and no ids. A real cluster must give ids, so a worker accepts a cluster
as embedded only if the process that started it supplies its cluster id (`Connection.embedded`).
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

    def __init__(self, brokers: int = 1) -> None:
        if brokers < 1:
            raise ValueError(f"brokers = {brokers}: at least 1")
        self._brokers = brokers
        self._owner: Producer | None = None
        self._bootstrap = ""
        self._id = ""

    @property
    def bootstrap(self) -> str:
        if self._owner is None:
            raise RuntimeError("the embedded cluster is not running")
        return self._bootstrap

    @property
    def connection(self) -> Connection:
        """Return a `Connection` without CRC checks: transactional batches have wrong CRCs."""
        return Connection(self.bootstrap, {"check.crcs": "false"}, embedded=self._id)

    def start(self) -> Self:
        if self._owner is None:
            config = {"bootstrap.servers": "unused", "log_level": 2}
            owner = Producer({**config, "test.mock.num.brokers": self._brokers})
            try:
                metadata = owner.list_topics(timeout=60)
            except KafkaException as exc:
                raise SettingsError(f"the embedded Kafka did not start: {exc}") from exc
            brokers = metadata.brokers.values()
            self._bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
            self._id = metadata.cluster_id or ""
            self._owner = owner
        return self

    def stop(self) -> None:
        self._owner = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
