"""Sample the oldest and the newest records of every partition, in bounded time.

`init` and `check` read topics so. Only committed records are read: up to a partition's `stable`
offset. A "log" is one partition of a topic, a span the offsets from a first one to before another.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from workers.commands import failures
from workers.kafka.clients import Connection
from workers.kafka.reading import Partition
from workers.kafka.records import Records
from workers.kafka.topic_reader import Bounds, TopicReader, open_reader
from workers.kafka.topics import INTERNAL_PREFIX
from workers.runtime.errors import SettingsError
from workers.runtime.sizes import MESSAGE_BYTES

PATIENCE_S = 20.0
_INTRODUCE_S = 10.0
# For all records together; larger ones would hardly be examined in more detail.
BYTES_MAX = 64_000_000
# Offsets are not records: transaction markers take some, and compaction leaves holes. So that many
# times as many are looked at where too few held a record.
WIDER = 4


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """A sampled record; `time_ms` is Kafka's timestamp, and a record may lack a key or a value."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def nbytes(self) -> int:
        return len(self.value or b"") + len(self.key or b"")


class Ends(NamedTuple):
    """The first and the last committed records of some partitions, by partition, in offset order.

    Attributes:
        newest: the last ones.
        oldest: the first ones, without those that are in `newest`.
        bounds: where a partition begins and ends.
        notes: warnings about partitions that end in records that are not committed.
        cut: the limit of bytes left some records out.
        late: time ran out before enough were read.
    """

    newest: dict[Partition, list[Record]]
    oldest: dict[Partition, list[Record]]
    bounds: dict[Partition, Bounds]
    notes: Sequence[str]
    cut: bool
    late: bool


def read_ends(
    connection: Connection,
    logs: Collection[Partition],
    *,
    newest: int,
    oldest: int,
    patience_s: float,
    bytes_max: int,
    longest: int = MESSAGE_BYTES,
) -> Ends:
    """Read about `newest` and `oldest` committed records, equal shares from each partition.

    It writes nothing and joins no group; it tells the operator for which partition it waits.
    `bytes_max` bounds the bytes at either end, `longest` a record's.
    """
    deadline = time.monotonic() + patience_s
    with open_reader(connection, failures.log) as topic_reader:
        bounds = topic_reader.bounds(logs)
        lengths = {log: ends.stable - ends.low for log, ends in bounds.items()}
        # The newest records, from more and more offsets until they are enough: not every offset
        # has a record (`WIDER`).
        offsets = newest
        while True:
            spans = {
                log: (bounds[log].stable - share, bounds[log].stable)
                for log, share in shares(lengths, offsets).items()
            }
            found, cut = _read(topic_reader, spans, deadline, bytes_max, longest)
            enough = cut or sum(map(len, found.values())) >= newest
            late = time.monotonic() > deadline
            if enough or late or offsets >= sum(lengths.values()):
                break
            offsets *= WIDER
        numbers = shares({log: len(records) for log, records in found.items()}, newest)
        newest_of = {
            log: found[log][-number:] for log, number in numbers.items() if number
        }
        # The oldest records, from the offsets before the newest ones, which are not read twice.
        before = {
            log: records[0].offset - bounds[log].low
            for log, records in newest_of.items()
        }
        limits = shares(before, oldest)
        spans = {
            log: (bounds[log].low, bounds[log].low + min(before[log], WIDER * limit))
            for log, limit in limits.items()
        }
        oldest_of, more_cut = _read(
            topic_reader, spans, deadline, bytes_max, longest, limits
        )
        notes = topic_reader.open_transactions(bounds)
    return Ends(
        newest=newest_of,
        oldest=oldest_of,
        bounds=bounds,
        notes=notes,
        cut=cut or more_cut,
        late=late and not enough,
    )


def _read(
    topic_reader: TopicReader,
    spans: Mapping[Partition, tuple[int, int]],
    deadline: float,
    bytes_max: int,
    longest: int,
    limits: Mapping[Partition, int] | None = None,
) -> tuple[dict[Partition, list[Record]], bool]:
    """Return the records in spans of offsets, and whether `bytes_max` left some out.

    Every partition has an equal share of `bytes_max`, of which its newest records take what there
    is room for. With `limits`, its oldest ones do, at most so many. At least one record is kept.
    Stops at the deadline (s, monotonic) with what was read by then.
    """
    # The reader deletes a span that has ended; one deleted below is read no further.
    left = {log: span for log, span in spans.items() if span[0] < span[1]}
    share = bytes_max // max(len(left), 1)
    cut = False
    sampled = {log: deque[Record]() for log in left}
    sizes = Counter[Partition]()
    for log, records, _position, _ended in topic_reader.read(left, longest, deadline):
        of_log = sampled[log]
        for record in _records_of(log[1], records):
            # Oldest first, so these are complete once they are enough, or the share is full.
            full = sizes[log] > share
            if limits is not None and (full or len(of_log) >= limits[log]):
                cut = cut or len(of_log) < limits[log]
                left.pop(log, None)
                break
            of_log.append(record)
            sizes[log] += record.nbytes
            # Without limits the newest are wanted: the oldest make room for them.
            while limits is None and len(of_log) > 1 and sizes[log] > share:
                cut = True
                sizes[log] -= of_log.popleft().nbytes
    return {log: list(of_log) for log, of_log in sampled.items()}, cut


def shares(there: Mapping[Partition, int], number: int) -> dict[Partition, int]:
    """Divide a `number` over partitions, equally, but to none more than `there` is in it.

    What one cannot take goes to the others.
    """
    taken = {}
    left = number
    # The smallest first: what it leaves is divided among the rest.
    ordered = sorted(there.items(), key=lambda entry: entry[1])
    for i, (log, size) in enumerate(ordered):
        # Rounded up.
        taken[log] = min(size, -(-left // (len(ordered) - i)))
        left -= taken[log]
    return taken


def _records_of(partition: int, records: Records) -> Iterator[Record]:
    """Yield records that were read as columns, one by one."""
    offsets = records.offsets.tolist()
    times = records.times.tolist()
    for i, (offset, time_ms) in enumerate(zip(offsets, times, strict=True)):
        yield Record(partition, offset, time_ms, records.key(i), records.value(i))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sample:
    """Sampled records of a topic, by partition, in offset order.

    Attributes:
        records: of a partition first its oldest, then, usually after a gap, its newest.
        partitions: their number.
        total: the number of offsets in the topic, approximately its records.
        topics: all topics that the cluster shows.
        stopped: fewer records were read than requested: time ran out, or they are large.
        notes: warnings about partitions that end in records that are not committed.
        bounds: by partition, the first offset and the end of the committed records.
        newest: by partition, how many of its records, the last ones, are its newest.
    """

    records: list[Record]
    partitions: int
    total: int
    topics: Collection[str]
    stopped: bool = False
    notes: Sequence[str] = ()
    bounds: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    newest: Mapping[int, int] = field(default_factory=dict)


def sample_of(connection: Connection, topic: str, number: int) -> Sample:
    """Read about `number` records of a topic, half of them at each end."""
    # Only for the list of topics.
    with connection.connect(_INTRODUCE_S) as (_, metadata):
        pass
    topics = [name for name in metadata.topics if not name.startswith(INTERNAL_PREFIX)]
    if topic not in topics:
        raise SettingsError(
            f"--topic {topic}: no such topic on {connection.bootstrap} that this principal may see"
        )
    partitions = sorted(metadata.topics[topic].partitions)
    # Rounded up.
    half = -(-number // 2)
    ends = read_ends(
        connection,
        [(topic, partition) for partition in partitions],
        newest=half,
        oldest=half,
        patience_s=PATIENCE_S,
        bytes_max=BYTES_MAX // 2,
    )
    # Not an empty topic, but one that could not be read.
    if ends.late and not ends.newest:
        raise SettingsError(
            f"--topic {topic}: no record could be read within {PATIENCE_S:g} s; try again"
        )
    bounds = {
        partition: (found.low, found.stable)
        for (_, partition), found in ends.bounds.items()
    }
    return Sample(
        records=[
            record
            for log in sorted(ends.newest)
            for record in (*ends.oldest.get(log, ()), *ends.newest[log])
        ],
        partitions=len(partitions),
        total=sum(high - low for low, high in bounds.values()),
        topics=topics,
        stopped=ends.cut or ends.late,
        notes=ends.notes,
        bounds=bounds,
        newest={log[1]: len(records) for log, records in ends.newest.items()},
    )
