"""Take a sample of events: the newest records of the events topics, or the first of a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workers.agents.topics import check_events, connection_of
from workers.commands.init.sample import Record, read_ends
from workers.kafka.reading import Partition
from workers.kafka.records import Records
from workers.kafka.topic_reader import Bounds
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
    """Sampled records of one source partition, in order; a file counts as one partition."""

    source: Place
    records: Records


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """Records to examine: `live` if from a topic, `stopped` if time ran out first.

    `notes` say which partitions end in records that are not committed, and so not read. `oldest`
    are the first records of the partitions, with which a worker begins, unless they are among the
    `parts`. `bounds` are the first offset of a partition in the topic, and the end of its committed
    records.
    """

    name: str
    parts: Sequence[Part]
    shape: Shape
    live: bool
    stopped: bool = False
    notes: Sequence[str] = ()
    oldest: Sequence[Part] = ()
    bounds: Mapping[Partition, Bounds] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(part.records) for part in self.parts)


def of_topics(settings: Settings, number: int) -> Sample:
    """Return the newest records of the events topics, an equal share of each partition."""
    connection = connection_of(settings)
    # The partitions that producers write to: with re-keying, not those by user.
    places = check_events(settings, connection, as_produced=True)
    sources = {source.log: source for source in places}
    ends = read_ends(
        connection,
        sources.keys(),
        newest=number,
        oldest=OLDEST * len(sources),
        patience_s=PATIENCE_S,
        bytes_max=BYTES_MAX,
        longest=settings.events.max_bytes,
    )

    def parts(records: Mapping[Partition, Sequence[Record]]) -> list[Part]:
        """Return the partitions that have any of the records, with these."""
        return [
            Part(source, _columns(records[log]))
            for log, source in sources.items()
            if records.get(log)
        ]

    names = dict.fromkeys(source.topic.name for source in places)
    return Sample(
        f"the newest records of topic{'s' * (len(names) > 1)} {', '.join(names)}",
        parts(ends.newest),
        settings.shape,
        live=True,
        stopped=ends.late,
        notes=ends.notes,
        oldest=parts(ends.oldest),
        bounds=ends.bounds,
    )


def _columns(records: Sequence[Record]) -> Records:
    """Return records as columns, which the worker's readers take."""
    return Records.of(
        [record.value for record in records],
        [record.key for record in records],
        [record.time_ms for record in records],
        [record.offset for record in records],
    )


def of_file(settings: Settings, name: str, number: int) -> Sample:
    """Return the first events of a file: JSON lines, also gzipped or from "-", or Parquet."""
    # As if the file were a topic of one partition.
    topic = SourceTopic(name, partitions=1, id=None)
    source = Place(number=0, topic=topic, partition=0)
    shown = f"the first events of {'standard input' if name == '-' else name}"
    with open_source(settings, name) as opened:
        part = Part(source, opened.sample(number))
        return Sample(shown, [part], opened.shape, live=False)
