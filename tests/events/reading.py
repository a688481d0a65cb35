"""Test events as columns, read by a worker's JSON path."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from workers.arrays.texts import Texts
from workers.events.columns import EventColumns, Events
from workers.events.log import Format
from workers.events.reading import EventReader, Reading, Reject, SourceReader
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import Rows
from workers.settings.settings import EventsSettings, shape_of

# An event: record, time, stream key, user, labels and amounts.
Row = tuple[int, int, bytes | None, bytes | None, list[bytes | None], list[int]]
# Allow every stream key.
ANY: Mapping[str, None] = MappingProxyType({"": None})
FIELDS = EventsSettings(topic="t", key="key", items="items", timestamp="ts")


def event_reader(events: EventsSettings, user: str | None = None) -> EventReader:
    return EventReader(shape_of(events, user), max_bytes=events.max_bytes)


def reader(*, users: bool = False) -> SourceReader:
    """Return a reader for any stream key and time; the user is in "user", if any."""
    return SourceReader(
        event_reader(FIELDS, "user" if users else None), ANY, earliest_ms=0
    )


def events_of(parts: Iterable[Reading]) -> tuple[Events, list[Reject]]:
    """Return the only part's events as columns, and its rejects."""
    [reading] = parts
    return reading.events, reading.rejects


def read_general(
    by: EventReader, records: Records, fmt: Format | None = None
) -> Iterator[Reading]:
    """Return what the general reader makes of every record, as `EventReader.read` does."""
    nothing = np.zeros(len(records), dtype=np.bool_)
    return by._parts(records, fmt, by._with_key(records), nothing)


def amounts_of(reading: Reading, column: int) -> list[int]:
    """Return the count of every label of a column."""
    amounts: list[int] = reading.amounts[column].tolist()
    return amounts or [1] * len(reading.labels[column])


def read_back(reading: Reading) -> list[Row]:
    """Return the events of the only view."""
    data = reading.data.tobytes()

    def texts(spans: Any) -> list[bytes | None]:
        if spans is None:
            return [None] * len(reading)
        return [data[start:stop] for start, stop in spans.tolist()]

    labels = texts(reading.labels[0])
    amounts = amounts_of(reading, 0)
    keys = texts(reading.keys[0])
    users = texts(reading.users)
    rows: list[Row] = []
    for row, record in enumerate(reading.index.tolist()):
        time = int(reading.times[row])
        first = int(reading.label_starts[0, row])
        part = slice(first, first + int(reading.label_counts[0, row]))
        rows.append((record, time, keys[row], users[row], labels[part], amounts[part]))
    return rows


def columns(events: Sequence[Sequence[Any]], by: SourceReader | None = None) -> Events:
    """Return valid events (stream key, items, time in ms, user) as columns; `by` reuses a reader."""
    names = ("key", "items", "ts", "user")
    values = [
        json.dumps(dict(zip(names, event, strict=False))).encode() for event in events
    ]
    users = any(len(event) > len(names) - 1 for event in events)
    found, rejects = events_of((by or reader(users=users)).read(Records.of(values)))
    assert not rejects, rejects
    return found


def shape(found: Events) -> list[tuple[int, str, dict[str, int]]]:
    """Return the events of the only view as (time, stream key, count by label)."""
    events: EventColumns = found.views[""]
    labels = [events.label_names.name(code) for code in events.labels.tolist()]
    amounts = events.amounts.tolist() or [1] * len(labels)
    ends = events.ends.tolist()
    return [
        (
            time,
            events.key_names.name(key),
            dict(zip(labels[a:b], amounts[a:b], strict=True)),
        )
        for time, key, a, b in zip(
            found.times.tolist(), events.keys.tolist(), [0, *ends], ends, strict=False
        )
    ]


def rows(
    lane: Lane, tick: int, tally: Mapping[str, Mapping[str, int]], key: NoiseKey
) -> Rows:
    """Return counts by stream key and label as in a commit; counts of 0 are left out."""
    kept = {
        name: {label: n for label, n in items.items() if n}
        for name, items in tally.items()
    }
    labels = [[label.encode() for label in items] for items in kept.values()]
    tags = [key.tags(name, of_key) for name, of_key in zip(kept, labels, strict=True)]
    return Rows(
        lane=lane,
        tick=tick,
        names=list(kept),
        starts=np.cumsum([0, *map(len, labels)]),
        labels=Texts.of(chain.from_iterable(labels)),
        counts=np.array(
            [n for items in kept.values() for n in items.values()], dtype=np.int64
        ),
        tags=np.concatenate([*tags, np.empty((0, 2), dtype=np.uint64)]),
    )
