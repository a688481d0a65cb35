"""The settings that the promise depends on, their fingerprint, and what changing them alters.

They are `worker.name`; what is counted, of whom ([events] but for `grace`, `max_ahead`,
`max_behind`, `max_bytes` and `format`, which decide when, or whether, an event counts); [privacy];
and of every histogram all but `windows`, `quantiles`, `label` and `unit`, which process or name
what is published. Without epochs `windows` are what is published, and count. Defaults are filled
in, and a domain file counts with its labels: two files that promise the same thing have one
fingerprint, on every machine.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec

from workers.mechanisms.config.histogram import HistogramConfig
from workers.settings.settings import Settings

# Settings of a histogram that the promise does not depend on; its name is that of the section.
_PROCESSED = ("windows", "quantiles", "name", "label", "unit")
_EVENTS = (
    "topic",
    "key",
    "items",
    "count",
    "where",
    "missing",
    "timestamp",
    "timestamp_unit",
)
# These only if users are protected.
_OF_USERS = ("user", "partitioner")

Values = Mapping[str, object]
"""JSON values by name, such as "privacy.unit"."""


def promise_settings(settings: Settings) -> dict[str, Values]:
    """Return the settings that the promise depends on, by section.

    Sections are "worker", "events", "privacy", and "histogram NAME" for each.
    """
    users = _OF_USERS if settings.privacy.unit == "user" else ()
    events = msgspec.to_builtins(settings.events)
    sections: dict[str, Values] = {
        "worker": {"name": settings.worker.name},
        "events": {name: events[name] for name in (*_EVENTS, *users)},
        "privacy": msgspec.to_builtins(settings.privacy),
    }
    for config in settings.histograms:
        sections[f"histogram {config.name}"] = _histogram(settings, config)
    return sections


def _histogram(settings: Settings, config: HistogramConfig) -> Values:
    """Return a histogram's settings that the promise depends on."""
    values = msgspec.to_builtins(config)
    # Their effective values: both may be left out of the settings.
    values |= {"topic": settings.output_topic(config), "start": config.start_ms}
    if config.keys != "public":
        values["keys"] = sorted(config.keys)
    processed = set(_PROCESSED)
    if config.without_epochs:
        # There they are what is counted, and decide the noise.
        processed.remove("windows")
    return {name: value for name, value in values.items() if name not in processed}


def fingerprint(settings: Settings) -> str:
    """Return the SHA-256, in hex, of the promise's settings as JSON: sorted, ASCII, no spaces.

    Settings that are null are left out: a later version may have more of them.
    """
    sections = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in promise_settings(settings).items()
    }
    text = json.dumps(sections, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


class Change(NamedTuple):
    """A changed setting with its values as JSON, None if unset; `alters` says what that does.

    For a section that only one of the files has, the values are "there" and None.
    """

    setting: str
    before: str | None
    after: str | None
    alters: str


_STREAM = "a new stream: all events still in the topic are counted, and charged, again"
_ENDED = "to be ended with `quietcount retire`; what it published stays charged"
_ADDED = "adds its price to the total"
_AGAIN = (
    "begins again from zero, and is charged beside what the older generation published"
)
_WITH_GENERATION = "holds from the new generation on"
_REFUSED = "refused under the same generation"
_EVERY_HISTOGRAM = (
    "part of every histogram: the worker asks for new generations, or a new name"
)
_MORE_KEYS = "the added names are counted, and published, from then on"
_NEIGHBOURS = "whether records are hidden, and when ticks are delivered, from then on"
_NEW_LIMIT = "limits what is published from then on, with all that was charged before"


def changes(old: Settings, new: Settings) -> Iterator[Change]:
    """Yield the promise's settings that differ between two files, and what each alters.

    They come section by section.
    """
    old_sections = promise_settings(old)
    new_sections = promise_settings(new)
    new_stream = old.worker.name != new.worker.name
    for section in dict.fromkeys((*old_sections, *new_sections)):
        before = old_sections.get(section)
        after = new_sections.get(section)
        if before is None:
            yield Change(section, None, "there", _STREAM if new_stream else _ADDED)
            continue
        if after is None:
            yield Change(section, "there", None, _STREAM if new_stream else _ENDED)
            continue
        # With a new generation, the histogram begins again from zero.
        again = before.get("generation") != after.get("generation")
        for name in dict.fromkeys((*before, *after)):
            value = before.get(name)
            changed = after.get(name)
            if value == changed:
                continue
            alters = _STREAM
            if not new_stream:
                alters = _alters(section, name, value, changed, again=again)
            yield Change(f"{section}: {name}", _text(value), _text(changed), alters)


def _alters(
    section: str, name: str, before: object, after: object, *, again: bool
) -> str:
    """Return the sentence on what changing the setting `name` of a section alters.

    `again`: its histogram has a new generation too, so the change is not refused.
    """
    if section == "privacy" and name in ("neighbours", "deliver_after"):
        return _NEIGHBOURS
    if section == "privacy" and name not in ("unit", "rekey"):
        return _NEW_LIMIT  # all others are of the ceiling
    if section in ("events", "privacy"):
        return _EVERY_HISTOGRAM
    if again:
        return _AGAIN if name == "generation" else _WITH_GENERATION
    # Without a new generation stream keys may be added, and nothing else may change.
    if (
        name == "keys"
        and isinstance(before, list)
        and isinstance(after, list)
        and set(before) < set(after)
    ):
        return _MORE_KEYS
    return _REFUSED


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
