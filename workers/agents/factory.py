"""From settings to the lanes, mechanisms and histograms of both stages, replay and audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from workers.errors import SettingsError
from workers.histogram.histogram import Histogram
from workers.mechanisms.config import Lane
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.settings import ALL_KEYS, ALL_STREAM_KEY, Settings

Kind = TypeVar("Kind", bound=Histogram)


def lanes(settings: Settings) -> list[Lane]:
    """Return the tick grids and bounds of all histograms, each once."""
    return list(dict.fromkeys(config.lane for config in settings.histograms))


def declared_keys(settings: Settings) -> frozenset[str] | None:
    """Return the stream keys that any histogram serves; None where one serves every key."""
    if settings.events.key == ALL_KEYS:
        return frozenset({ALL_STREAM_KEY})
    declared = [config.keys for config in settings.histograms]
    return None if "public" in declared else frozenset(key for keys in declared for key in keys)


def mechanisms(settings: Settings) -> list[Mechanism]:
    """Return the mechanism of each histogram.

    Raises:
        SettingsError: a budget cannot be met.
    """
    try:
        built = [build(config, settings.privacy.unit) for config in settings.histograms]
    except ValueError as error:
        raise SettingsError(str(error)) from error
    for mechanism in built:
        # The tables are made here, once, and not by every partition's thread at its first tick.
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
    """Return the histograms of one owner partition, before their first tick.

    `kind` is `Histogram` or a subclass, `built` is `mechanisms(settings)`; `stream` names the
    internal topics and their incarnations.
    """
    events = settings.events
    counted: dict[str, object] = {"topic": events.topics.identity}
    counted |= {name: getattr(events, name) for name in ("key", "items", "timestamp")}
    if settings.user_field is not None:
        # These decide which of a user's items count; the mechanism only knows how many.
        counted |= {"user": settings.user_field, "partitioner": events.partitioner}
    return [
        kind(
            config,
            mechanism,
            worker=settings.worker.name,
            topic=settings.output_topic(config),
            stream=stream,
            events=counted if config.max_items_per_user is None else counted | {"max_items": config.max_items},
            key=key,
            owner=(owner, owners),
        )
        for config, mechanism in zip(settings.histograms, built, strict=True)
    ]
