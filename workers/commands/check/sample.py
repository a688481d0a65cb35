"""Take a sample of events: the newest records of the events topics, or the first of a file."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from workers.agents.topics import SourcePartition, connection_of, source_partitions
from workers.kafka.clients import of_no_group
from workers.kafka.reading import EVENTS, bounds_of, reader
from workers.kafka.records import Records
from workers.mechanisms.config.views import Shape
from workers.replay.source import shape_of_files
from workers.replay.sources import first_rows, is_parquet, open_source
from workers.replay.sources_lines import JsonLines
from workers.settings.settings import Settings

# Reading stops then, keeping the records read so far.
PATIENCE_S = 15.0
# Offsets are not records: transaction markers take some, and compaction leaves holes.
_WIDER = 4
_POLL_S = 0.1
# For all records of a sample together; the oldest are left out.
BYTES_MAX = 128 << 20

Spans = dict[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """Sampled records of one source partition, in their order; a file is one partition.

    `objects` holds decoded records instead, for sources without raw ones.
    """

    source: SourcePartition
    records: Records
    objects: Sequence[object] | None = None

    def __len__(self) -> int:
        return len(self.records) if self.objects is None else len(self.objects)


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """Records to examine.

    Attributes:
        live: whether the worker would read them now, from a topic.
        stopped: whether time ran out before the requested number was read.
    """

    name: str
    parts: Sequence[Part]
    shape: Shape
    live: bool
    stopped: bool = False

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)


def of_topics(settings: Settings, number: int) -> Sample:
    """Return the newest records of the events topics, an equal share of each partition.

    Raises:
        SettingsError: a topic is missing, or no broker answers.
    """
    connection = connection_of(settings)
    sources = {source.log: source for source in source_partitions(settings, connection)}
    deadline = time.monotonic() + PATIENCE_S
    with reader(connection, events=True) as consumer:
        bounds = {log: bounds_of(consumer, *log) for log in sources}
        wide = number
        while True:
            newest = shares({log: high - low for log, (low, high) in bounds.items()}, wide)
            spans = {log: (bounds[log][1] - n, bounds[log][1]) for log, n in newest.items() if n}
            found, cut = _read(consumer, dict(spans), deadline)
            enough = cut or sum(map(len, found.values())) >= number
            if (
                enough
                or time.monotonic() > deadline
                or wide >= sum(high - low for low, high in bounds.values())
            ):
                break
            wide *= _WIDER
    kept = shares({log: len(messages) for log, messages in found.items()}, number)
    parts = [
        Part(source, _records(found[log][-kept[log] :]))
        for log, source in sources.items()
        if kept.get(log)
    ]
    names = dict.fromkeys(source.topic for source in sources.values())
    name = f"topic{'s' * (len(names) > 1)} {', '.join(names)}"
    stopped = not enough and time.monotonic() > deadline
    return Sample(
        f"the newest records of {name}", parts, settings.shape, live=True, stopped=stopped
    )


def of_file(settings: Settings, name: str, number: int) -> Sample:
    """Return the first events of a file: JSON lines, also gzipped or from "-", or Parquet.

    Raises:
        SettingsError: it cannot be read.
    """
    source = SourcePartition(name, 0, 1)
    shown = f"the first events of {'standard input' if name == '-' else name}"
    if name != "-" and is_parquet(Path(name)):
        objects, shape = first_rows(settings, name, number)
        part = Part(source, Records.of([]), objects)
        return Sample(shown, [part], shape, live=False)
    with open_source(settings, name) as opened:
        assert isinstance(opened, JsonLines), "what is no Parquet is lines"
        lines = (records.value(i) or b"" for records in opened.lines() for i in range(len(records)))
        # An empty line is neither an event nor an error.
        values = list(islice((line for line in lines if line.strip(b"\r")), number))
    return Sample(shown, [Part(source, Records.of(values))], shape_of_files(settings), live=False)


def shares(there: Mapping[tuple[str, int], int], number: int) -> dict[tuple[str, int], int]:
    """Return how many records to take per partition: equal shares, shortfalls redistributed."""
    taken, left = {}, number
    for place, (log, has) in enumerate(sorted(there.items(), key=lambda one: one[1])):
        taken[log] = min(has, -(-left // (len(there) - place)))
        left -= taken[log]
    return taken


def _read(
    consumer: Consumer, spans: Spans, deadline: float
) -> tuple[dict[tuple[str, int], list[Message]], bool]:
    """Return the committed records in spans of offsets, and whether BYTES_MAX left some out.

    Stops at the deadline with the records read by then.
    """
    consumer.assign([TopicPartition(*log, start) for log, (start, _) in spans.items()])
    found: dict[tuple[str, int], deque[Message]] = {log: deque() for log in spans}
    share, sizes, cut = BYTES_MAX // max(len(spans), 1), Counter[tuple[str, int]](), False
    while spans and time.monotonic() < deadline:
        for message in consumer.consume(num_messages=EVENTS, timeout=_POLL_S):
            log, offset, error = (
                (message.topic() or "", message.partition() or 0),
                message.offset() or 0,
                message.error(),
            )
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if not of_no_group(error) and (error.fatal() or not error.retriable()):
                    raise KafkaException(error)
            elif log in spans:
                end = spans[log][1]
                if error is None and offset < end:
                    found[log].append(message)
                    sizes[log] += len(message)
                    while sizes[log] > share and len(found[log]) > 1:  # keep the newest
                        sizes[log] -= len(found[log].popleft())
                        cut = True
                if offset >= end - (error is None):
                    del spans[log]
    return {log: list(messages) for log, messages in found.items()}, cut


def _records(messages: Sequence[Message]) -> Records:
    return Records.of(
        [message.value() for message in messages],
        [message.key() for message in messages],
        [message.timestamp()[1] for message in messages],
        [message.offset() or 0 for message in messages],
    )
