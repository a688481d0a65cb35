"""Take a sample of events: the newest records of the events topics, or the first of a file."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from workers.agents.topics import check_events, connection_of
from workers.commands.init.sample import WIDER, Record, read_sample
from workers.kafka.reading import Partition
from workers.kafka.records import Records
from workers.kafka.topic_reader import open_reader
from workers.mechanisms.config.views import Shape
from workers.pipeline.growth.sources import Place, SourceTopic
from workers.replay.sources import open_source
from workers.settings.settings import Settings

PATIENCE_S = 15.0
# For all records together; the oldest are left out.
BYTES_MAX = 128 << 20
# Of each partition, to see whether a worker would begin with a wrong date.
OLDEST = 20


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """Sampled records of one source partition, in order; a file is one partition."""

    source: Place
    records: Records


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """Records to examine: `live` if from a topic, `stopped` if time ran out first.

    `notes` say where partitions end before their logs do. `oldest` are the first records of the
    partitions, with which a worker begins, unless they are among the `parts`. `bounds` are the
    first offset of a partition in the topic, and the end of its committed records.
    """

    name: str
    parts: Sequence[Part]
    shape: Shape
    live: bool
    stopped: bool = False
    notes: Sequence[str] = ()
    oldest: Sequence[Part] = ()
    bounds: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(part.records) for part in self.parts)


def of_topics(
    settings: Settings, number: int, say: Callable[[str], object] = lambda text: None
) -> Sample:
    """Return the newest records of the events topics, an equal share of each partition.

    `say` tells the operator which partition reading waits for.
    """
    connection = connection_of(settings)
    places = check_events(settings, connection, as_produced=True)
    sources = {source.log: source for source in places}
    deadline = time.monotonic() + PATIENCE_S
    longest = settings.events.max_bytes
    with open_reader(connection, say) as topic_reader:
        bounds = topic_reader.bounds(sources)
        total = sum(
            log_bounds.stable - log_bounds.low for log_bounds in bounds.values()
        )
        wide = number
        while True:
            newest = shares(
                {
                    log: log_bounds.stable - log_bounds.low
                    for log, log_bounds in bounds.items()
                },
                wide,
            )
            ends = {log: bounds[log].stable for log in newest}
            spans = {log: (ends[log] - n, ends[log]) for log, n in newest.items() if n}
            records_of, cut = read_sample(
                topic_reader, spans, deadline, BYTES_MAX, longest=longest
            )
            enough = cut or sum(map(len, records_of.values())) >= number
            if enough or time.monotonic() > deadline or wide >= total:
                break
            wide *= WIDER
        notes = topic_reader.open_transactions(bounds)
        numbers = shares(
            {log: len(records) for log, records in records_of.items()}, number
        )
        firsts = {log: records_of[log][-n].offset for log, n in numbers.items() if n}
        openings = {
            log: (bounds[log].low, min(first, bounds[log].low + WIDER * OLDEST))
            for log, first in firsts.items()
            if bounds[log].low < first
        }
        begun, _ = read_sample(
            topic_reader,
            openings,
            deadline,
            BYTES_MAX,
            OLDEST,
            longest=longest,
            oldest=True,
        )
    oldest = [
        Part(sources[log], _columns(records))
        for log, records in begun.items()
        if records
    ]
    sampled = ((log, source) for log, source in sources.items() if numbers.get(log))
    parts = [
        Part(source, _columns(records_of[log][-numbers[log] :]))
        for log, source in sampled
    ]
    names = dict.fromkeys(source.topic.name for source in sources.values())
    name = f"the newest records of topic{'s' * (len(names) > 1)} {', '.join(names)}"
    stopped = not enough and time.monotonic() > deadline
    return Sample(
        name,
        parts,
        settings.shape,
        live=True,
        stopped=stopped,
        notes=notes,
        oldest=oldest,
        bounds={
            log: (log_bounds.low, log_bounds.stable)
            for log, log_bounds in bounds.items()
        },
    )


def _columns(found: Sequence[Record]) -> Records:
    return Records.of(
        [record.value for record in found],
        [record.key for record in found],
        [record.time_ms for record in found],
        [record.offset for record in found],
    )


def of_file(settings: Settings, name: str, number: int) -> Sample:
    """Return the first events of a file: JSON lines, also gzipped or from "-", or Parquet."""
    source = Place(0, SourceTopic(name, 1, None), 0)
    shown = f"the first events of {'standard input' if name == '-' else name}"
    with open_source(settings, name) as opened:
        part = Part(source, opened.sample(number))
        return Sample(shown, [part], opened.shape, live=False)


def shares(there: Mapping[Partition, int], number: int) -> dict[Partition, int]:
    """Return how many records to take per partition: equal shares, shortfalls redistributed."""
    taken = {}
    left = number
    for place, (log, has) in enumerate(sorted(there.items(), key=lambda one: one[1])):
        taken[log] = min(has, -(-left // (len(there) - place)))
        left -= taken[log]
    return taken
