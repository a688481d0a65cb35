"""Build the lanes, mechanisms and histograms of both stages, replay and audit from settings.

Stage 1 counts the events of a source partition by lane: histograms with the same tick grid, bounds
and view (what an event is read as: stream key, items, counts) share a lane, so events are counted
once for all of them. Stage 2 has the histograms of an owner partition, a share of the stream keys.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

import msgspec

from workers.events.log import Format
from workers.events.reading import EventReader, SourceReader
from workers.kafka.placement import Placement
from workers.mechanisms.config.histogram import HistogramConfig, Lane
from workers.mechanisms.config.views import Shape
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.pipeline.histogram import Histogram
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings, view_of

Kind = TypeVar("Kind", bound=Histogram)


def lanes(settings: Settings) -> list[Lane]:
    """Return the lanes of all histograms, each once; a histogram with sums has two."""
    return list(
        dict.fromkeys(lane for config in settings.histograms for lane in config.lanes)
    )


def count_lane_of(
    histograms: Iterable[Histogram | HistogramConfig],
) -> dict[Lane, Lane]:
    """Return, for each lane that adds up numbers, the lane that counts the same items."""
    return {one.sum_lane: one.lane for one in histograms if one.sum_lane is not None}


def names_by_lane(settings: Settings) -> dict[Lane, tuple[str, ...]]:
    """Return the names of the histograms that count the events of every lane."""
    names: dict[Lane, tuple[str, ...]] = {}
    for config in settings.histograms:
        names[config.lane] = (*names.get(config.lane, ()), config.name)
    return names


def declared_keys(settings: Settings) -> dict[str, frozenset[str] | None]:
    """Return the stream keys served in each view, by view name; None where all keys are served."""
    served: dict[str, frozenset[str] | None] = {}
    for config in settings.histograms:
        for lane in config.lanes:
            # Those of the histograms before that share the view.
            keys = served.get(lane.view, frozenset())
            if keys is None or config.keys == "public":
                served[lane.view] = None
            else:
                served[lane.view] = keys.union(config.keys)
    return served


def reader_of(settings: Settings, shape: Shape | None = None) -> EventReader:
    """Return the event reader that a worker's threads share.

    A shape says which fields of an event are read, and how. `shape` replaces that of the
    histograms, to read other fields than they need.
    """
    shape = settings.shape if shape is None else shape
    return EventReader(shape, max_bytes=settings.events.max_bytes)


def user_reader_of(settings: Settings) -> EventReader:
    """Return the reader of users and times alone; re-keying needs nothing else."""
    return reader_of(settings, replace(settings.shape, views=MappingProxyType({})))


def source_reader_of(
    settings: Settings,
    reader: EventReader,
    partition: int,
    placements: Sequence[tuple[int, int]],
    fmt: Format | None = None,
) -> SourceReader:
    """Return a reader of one source partition that rejects undeclared keys and misplaced users.

    `placements` are pairs of an event time, ms, and how many partitions users are placed on from
    then on. `fmt` is the format of the values (None: JSON).
    """
    # Where users are bounded, all events of one must lie in one partition. With `rekey` this worker
    # sees to that itself, and the topics read here may hold a user's events anywhere.
    placement = None
    if (
        any(lane.max_items_per_user for lane in lanes(settings))
        and not settings.privacy.rekey
    ):
        placement = Placement(settings.events.partitioner, partition, placements)
    return SourceReader(reader, declared_keys(settings), placement, fmt)


def mechanisms(settings: Settings) -> list[Mechanism]:
    """Build every histogram's mechanism; raise SettingsError if a budget cannot be met."""
    try:
        built = [build(config, settings.privacy.unit) for config in settings.histograms]
    except ValueError as error:
        raise SettingsError(str(error)) from error
    for mechanism in built:
        # Builds the tables of noise once here, instead of in every partition's thread at its first
        # tick: they depend on no key, so any does.
        mechanism.noise(NoiseKey(bytes(32)).stream(bytes(16)))
    return built


def histograms(
    kind: type[Kind],
    settings: Settings,
    built: Sequence[Mechanism],
    *,
    key: NoiseKey,
    stream: str,
    owner: int,
    owners: int,
) -> list[Kind]:
    """Return the histograms of owner partition `owner`, one of `owners`.

    `kind` is the class to make, `built` has their mechanisms in the order of the settings, and
    `stream` has the internal topics' names with the ids that the broker gave them.
    """
    return [
        kind(
            config,
            mechanism,
            worker=settings.worker.name,
            topic=settings.output_topic(config),
            stream=stream,
            events=_counted_settings(settings, config),
            key=key,
            owner=(owner, owners),
        )
        for config, mechanism in zip(settings.histograms, built, strict=True)
    ]


def _counted_settings(settings: Settings, config: HistogramConfig) -> dict[str, object]:
    """Return the settings that decide what is counted, for the mechanism id.

    One that has its default is left out, so that an id does not change when a new version adds a
    setting.
    """
    events = settings.events
    view = view_of(events, config)
    counted: dict[str, object] = {
        "topic": events.topics.identity,
        "key": config.key or events.key,
        "items": config.items or events.items,
        "timestamp": events.timestamp,
    }
    if view.count is not None:
        counted["count"] = str(view.count)
    if config.sum is not None:
        counted["sum"] = config.sum.field
    if view.where:
        counted["where"] = msgspec.to_builtins(view.where)
    if events.missing != "reject":
        counted["missing"] = events.missing
    if events.timestamp_unit != "ms":
        counted["timestamp_unit"] = events.timestamp_unit
    if settings.user_field is not None:
        # These decide which of a user's items count; the mechanism only knows how many.
        counted |= {"user": settings.user_field, "partitioner": events.partitioner}
        if settings.privacy.rekey:
            counted["rekey"] = True
    # Else it is one of the mechanism's own parameters, which are in the id already.
    if config.max_items_per_user is not None:
        counted["max_items"] = config.max_items
    return counted
