"""The computed partition of a user's records is where real producers put them."""

import pytest

from tests.kafka.harness import create_topic, unique
from workers.kafka.clients import Connection
from workers.kafka.placement import Placement
from workers.kafka.reading import read_partition
from workers.kafka.records import Records

PARTITIONS = 7
USERS = [f"user-{i}" for i in range(300)] + ["", "ü", "名前", "x" * 500]


def here(placement: Placement, user: str) -> bool:
    records = Records.of([user.encode()])
    return bool(placement.belongs(records.data, records.values, records.times)[0])


@pytest.mark.parametrize(
    ("partitioner", "setting"),
    [("murmur2", "murmur2_random"), ("crc32", "consistent_random")],
)
def test_placement_agrees_with_producers(
    bootstrap: str, partitioner: str, setting: str
) -> None:
    """A wrong result would reject nearly all events of a topic, or spread users unnoticed."""
    connection = Connection(bootstrap)
    topic = unique("placed")
    create_topic(connection, topic, PARTITIONS)
    producer = connection.producer(None, partitioner=setting)
    for user in USERS:
        producer.produce(topic, b"{}", user.encode())
    assert producer.flush(120) == 0
    seen = 0
    for partition in range(PARTITIONS):
        placement = Placement(partitioner, partition, [(0, PARTITIONS)])
        for message in read_partition(connection, topic, partition):
            user = (message.key() or b"").decode()
            if user:  # librdkafka places an empty key anywhere
                assert here(placement, user)
                seen += 1
    assert seen == len(USERS) - 1
    first = Placement(partitioner, 0, [(0, PARTITIONS)])
    elsewhere = [here(first, user) for user in USERS]
    assert 0 < sum(elsewhere) < len(USERS) / 3
