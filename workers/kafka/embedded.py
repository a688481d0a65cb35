"""librdkafka's in-process cluster: a broker with nothing to install, for the demo and for quick
tests.

It enforces nothing (read_committed sees open transactions, a fenced producer's commit is accepted,
about 5 MiB are kept per partition), so nothing about delivery is proved on it. Topics appear when
first asked for, with 4 partitions. They have no ids. A real cluster must give ids, so a worker
takes a cluster for embedded only if whoever started it says so, by its cluster id
(`Connection.embedded`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, Producer

from workers.kafka.clients import Connection
from workers.runtime.errors import SettingsError

#: Partitions of every topic of the embedded cluster; librdkafka has no setting for it.
PARTITIONS = 4


class EmbeddedCluster:
    """Context manager over librdkafka's in-process cluster; it lives as long as the producer that
    made it.
    """

    def __init__(self, brokers: int = 1) -> None:
        if brokers < 1:
            raise ValueError(f"brokers = {brokers}: at least 1")
        self._brokers = brokers
        self._owner: Producer | None = None
        self._bootstrap = ""
        self._id = ""

    @property
    def bootstrap(self) -> str:
        """Addresses of the running cluster, as `kafka.bootstrap` takes them."""
        if self._owner is None:
            raise RuntimeError("the embedded cluster is not running")
        return self._bootstrap

    @property
    def connection(self) -> Connection:
        """A `Connection` to the running cluster; without CRC checks, for its transactional batches
        have wrong ones.
        """
        return Connection(self.bootstrap, {"check.crcs": "false"}, embedded=self._id)

    def start(self) -> Self:
        """Start the cluster and learn the ports it listens on."""
        if self._owner is None:
            owner = Producer(
                {
                    "bootstrap.servers": "unused",
                    "test.mock.num.brokers": self._brokers,
                    "log_level": 2,
                }
            )
            try:
                metadata = owner.list_topics(timeout=60)
            except KafkaException as exc:
                raise SettingsError(f"the embedded Kafka did not start: {exc}") from exc
            self._bootstrap = ",".join(
                f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()
            )
            self._id = metadata.cluster_id or ""
            self._owner = owner
        return self

    def stop(self) -> None:
        """End the cluster; what it held is gone."""
        self._owner = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
