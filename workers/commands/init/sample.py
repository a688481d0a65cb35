"""Sample the oldest and the newest records of every partition of a topic, in bounded time.

`check` reads its own sample with `read_sample`.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workers.kafka.clients import Connection
from workers.kafka.reading import Partition
from workers.kafka.records import Records
from workers.kafka.topic_reader import TopicReader, open_reader
from workers.kafka.topics import INTERNAL_PREFIX
from workers.runtime.errors import SettingsError
from workers.runtime.sizes import MESSAGE_BYTES

PATIENCE_S = 20.0
_INTRODUCE_S = 10.0
# For all records together; larger ones would hardly be examined in more detail.
BYTES_MAX = 64_000_000
# Offsets are not records: transaction markers take some, and compaction leaves holes.
WIDER = 4


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def nbytes(self) -> int:
        return len(self.value or b"") + len(self.key or b"")


def read_sample(
    topic_reader: TopicReader,
    spans: Mapping[Partition, tuple[int, int]],
    deadline: float,
    bytes_max: int,
    limit: int = sys.maxsize,
    *,
    longest: int = MESSAGE_BYTES,
    oldest: bool = False,
) -> tuple[dict[Partition, list[Record]], bool]:
    """Return the committed records in spans of offsets, and whether `bytes_max` left some out.

    Every partition has an equal share of `bytes_max` and at least one record. Of more than `limit`
    records it keeps the newest, or the `oldest`. Stops at the deadline with what was read by then.
    """
    left = dict(spans)
    share = bytes_max // max(len(spans), 1)
    cut = False
    sampled = {log: deque[Record]() for log in spans}
    sizes = Counter[Partition]()
    for log, records, _, _ in topic_reader.read(left, longest, deadline):
        of_log = sampled[log]
        for record in _records_of(log[1], records):
            if oldest and (len(of_log) >= limit or sizes[log] > share):
                cut = cut or len(of_log) < limit
                left.pop(log, None)
                break
            of_log.append(record)
            sizes[log] += record.nbytes
            while (
                not oldest
                and len(of_log) > 1
                and (len(of_log) > limit or sizes[log] > share)
            ):
                cut = cut or len(of_log) <= limit
                sizes[log] -= of_log.popleft().nbytes
    return {log: list(of_log) for log, of_log in sampled.items()}, cut


def _records_of(partition: int, records: Records) -> Iterator[Record]:
    offsets = records.offsets.tolist()
    times = records.times.tolist()
    for i, (offset, time_ms) in enumerate(zip(offsets, times, strict=True)):
        yield Record(partition, offset, time_ms, records.key(i), records.value(i))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sample:
    """Sampled records of a topic, by partition, in offset order.

    `total` is the number of offsets in the topic, approximately its records. `stopped`: fewer
    records were read than requested, because time ran out or they are large. `notes` say where
    partitions end before their logs do. `bounds` are, by partition, the first offset and the end
    of the committed records.
    """

    records: list[Record]
    partitions: int
    total: int
    topics: Collection[str]
    stopped: bool = False
    notes: Sequence[str] = ()
    bounds: Mapping[int, tuple[int, int]] = field(default_factory=dict)


def sample_of(
    connection: Connection,
    topic: str,
    number: int,
    say: Callable[[str], object] = lambda text: None,
) -> Sample:
    """Read about `number` records of a topic, without writing or joining a group.

    `say` tells the operator which partition reading waits for.
    """
    with connection.connect(_INTRODUCE_S) as (_, metadata):
        pass
    topics = [name for name in metadata.topics if not name.startswith(INTERNAL_PREFIX)]
    if topic not in topics:
        where = f"on {connection.bootstrap} that this principal may see"
        raise SettingsError(f"--topic {topic}: no such topic {where}")
    deadline = time.monotonic() + PATIENCE_S
    logs = [
        (topic, partition) for partition in sorted(metadata.topics[topic].partitions)
    ]
    sampled: dict[tuple[int, int], Record] = {}
    with open_reader(connection, say) as topic_reader:
        bounds = topic_reader.bounds(logs)
        filled = {
            log: log_bounds
            for log, log_bounds in bounds.items()
            if log_bounds.low < log_bounds.stable
        }
        # Half of the sample at each end, in equal shares of all partitions.
        limit = -(-number // (2 * max(len(filled), 1)))
        wide = WIDER * limit
        newest = {
            log: (max(log_bounds.low, log_bounds.stable - wide), log_bounds.stable)
            for log, log_bounds in filled.items()
        }
        oldest = {
            log: (log_bounds.low, min(log_bounds.stable, log_bounds.low + wide))
            for log, log_bounds in filled.items()
        }
        cut = False
        for spans in (newest, oldest):
            read, some_cut = read_sample(
                topic_reader,
                spans,
                deadline,
                BYTES_MAX // 2,
                limit,
                oldest=spans is oldest,
            )
            cut = cut or some_cut
            for records in read.values():
                sampled |= {
                    (record.partition, record.offset): record for record in records
                }
        notes = topic_reader.open_transactions(bounds)
    stopped = cut or time.monotonic() > deadline
    if stopped and not sampled:
        late = f"no record could be read within {PATIENCE_S:g} s"
        raise SettingsError(f"--topic {topic}: {late}; try again")
    return Sample(
        records=[sampled[place] for place in sorted(sampled)],
        partitions=len(logs),
        total=sum(log_bounds.stable - log_bounds.low for log_bounds in bounds.values()),
        topics=topics,
        stopped=stopped,
        notes=notes,
        bounds={
            partition: (log_bounds.low, log_bounds.stable)
            for (_, partition), log_bounds in bounds.items()
        },
    )
