"""Sample the oldest and the newest records of every partition of a topic, in bounded time.

`check` reads its own sample with `read_sample`.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, Message

from workers.kafka.clients import Connection
from workers.kafka.reading import EVENTS, Partition, bounds_of, read_spans, reader
from workers.kafka.topics import INTERNAL_PREFIX
from workers.runtime.errors import SettingsError

PATIENCE_S = 20.0
_INTRODUCE_S = 10.0
# For all records together; larger ones would hardly be examined in more detail.
BYTES_MAX = 64_000_000
# Offsets are not records: transaction markers take some, and compaction leaves holes.
WIDER = 4


def read_sample(
    consumer: Consumer,
    spans: Mapping[Partition, tuple[int, int]],
    deadline: float,
    bytes_max: int,
    limit: int = sys.maxsize,
    *,
    oldest: bool = False,
) -> tuple[dict[Partition, list[Message]], bool]:
    """Return the committed records in spans of offsets, and whether `bytes_max` left some out.

    Every partition has an equal share of `bytes_max` and at least one record. Of more than `limit`
    records it keeps the newest, or the `oldest`. Stops at the deadline with what was read by then.
    """
    left, share, cut = dict(spans), bytes_max // max(len(spans), 1), False
    found = {where: deque[Message]() for where in spans}
    sizes = Counter[Partition]()
    for where, messages, _, _ in read_spans(consumer, left, most=EVENTS, until_s=deadline):
        kept = found[where]
        for message in messages:
            if oldest and (len(kept) >= limit or sizes[where] > share):
                cut = cut or len(kept) < limit
                left.pop(where, None)
                break
            kept.append(message)
            sizes[where] += _size(message)
            while not oldest and len(kept) > 1 and (len(kept) > limit or sizes[where] > share):
                cut = cut or len(kept) <= limit
                sizes[where] -= _size(kept.popleft())
    return {where: list(kept) for where, kept in found.items()}, cut


def _size(message: Message) -> int:
    return len(message) + len(message.key() or b"")


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sample:
    """Sampled records of a topic, by partition, in offset order.

    `total` is the number of offsets in the topic, approximately its records. `stopped`: fewer
    records were read than requested, because time ran out or they are large.
    """

    records: list[Record]
    partitions: int
    total: int
    topics: Collection[str]
    stopped: bool = False


def sample_of(connection: Connection, topic: str, number: int) -> Sample:
    """Read about `number` records of a topic, without writing or joining a group."""
    with connection.connect(_INTRODUCE_S) as (_, metadata):
        pass
    topics = [name for name in metadata.topics if not name.startswith(INTERNAL_PREFIX)]
    if topic not in topics:
        where = f"on {connection.bootstrap} that this principal may see"
        raise SettingsError(f"--topic {topic}: no such topic {where}")
    deadline = time.monotonic() + PATIENCE_S
    logs = [(topic, partition) for partition in sorted(metadata.topics[topic].partitions)]
    found: dict[tuple[int, int], Record] = {}
    with reader(connection, events=True) as consumer:
        bounds = {log: bounds_of(consumer, *log) for log in logs}
        filled = {log: (low, high) for log, (low, high) in bounds.items() if low < high}
        # Half of the sample at each end, in equal shares of all partitions.
        limit = -(-number // (2 * max(len(filled), 1)))
        wide = WIDER * limit
        newest = {log: (max(low, high - wide), high) for log, (low, high) in filled.items()}
        oldest = {log: (low, min(high, low + wide)) for log, (low, high) in filled.items()}
        cut = False
        for spans in (newest, oldest):
            read, some_cut = read_sample(
                consumer, spans, deadline, BYTES_MAX // 2, limit, oldest=spans is oldest
            )
            cut = cut or some_cut
            for (_, partition), messages in read.items():
                for message in messages:
                    place, at = (partition, message.offset() or 0), message.timestamp()[1]
                    found[place] = Record(*place, at, message.key(), message.value())
    stopped = cut or time.monotonic() > deadline
    if stopped and not found:
        late = f"no record could be read within {PATIENCE_S:g} s"
        raise SettingsError(f"--topic {topic}: {late}; try again")
    return Sample(
        records=[found[place] for place in sorted(found)],
        partitions=len(logs),
        total=sum(high - low for low, high in bounds.values()),
        topics=topics,
        stopped=stopped,
    )
