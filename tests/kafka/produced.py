"""Put record batches into topics as they are, as no producer here would make them."""

import asyncio
import gzip
import json
from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NotLeaderForPartitionError, for_code
from aiokafka.protocol.produce import ProduceRequest

from tests.kafka.bombs import batch, record

_TIMEOUT_MS = 60_000


def produce_batch(bootstrap: str, topic: str, partition: int, raw: bytes) -> None:
    asyncio.run(_produce(bootstrap, topic, partition, raw))


async def _produce(bootstrap: str, topic: str, partition: int, raw: bytes) -> None:
    client = AIOKafkaClient(bootstrap_servers=bootstrap, request_timeout_ms=_TIMEOUT_MS)
    await client.bootstrap()
    try:
        await client.set_topics([topic])
        leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
        request = ProduceRequest(None, -1, _TIMEOUT_MS, [(topic, [(partition, raw)])])
        code = NotLeaderForPartitionError.errno
        # the topic has just been created
        while code == NotLeaderForPartitionError.errno:
            [(_, [(_, code, *_)])] = (await client.send(leader, request)).topics
        if code:
            raise for_code(code)
    finally:
        await client.close()


def two_members(events: Iterable[object]) -> bytes:
    """Return a batch of JSON events in two members of gzip: legal, but unknown to librdkafka."""
    values = [json.dumps(event).encode() for event in events]
    plain = b"".join(b"".join(record(i, value)) for i, value in enumerate(values))
    half = len(plain) // 2
    packed = gzip.compress(plain[:half]) + gzip.compress(plain[half:])
    return batch("gzip", [], len(values), packed=packed)
