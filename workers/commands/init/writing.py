"""Write a draft as a settings file, with the evidence and the reason for every line."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from workers.commands.init.draft import Answers, Draft
from workers.commands.init.fields import Form, percent
from workers.commands.init.items import Named
from workers.commands.init.tick_choice import DELTA, EPSILON, ITEMS_PER_USER, TickChoice
from workers.mechanisms.config.views import ALL_KEYS
from workers.runtime.printing import many
from workers.settings.durations import format_duration
from workers.settings.settings import internal_topics

_WIDTH, _COLUMN = 118, 36
_OTHERS = 4
_GENERIC = ("id", "name", "code", "label", "key", "value")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
CHOOSE = "CHOOSE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Subject and location of the settings file.

    Attributes:
        client: [kafka.client], as TOML values by name.
        registry: [schema_registry], as TOML values by name; empty: not needed.
        file, key_file: paths relative to the command's directory.
    """

    bootstrap: str
    topic: str
    client: Mapping[str, str]
    registry: Mapping[str, str]
    file: str
    key_file: str
    key_name: str
    now: datetime


def settings_text(draft: Draft, pace: TickChoice, answers: Answers, place: Place) -> str:
    """Return the settings file; it states all sample data that it holds."""
    lines = _File()
    histogram = histogram_name(draft)
    worker = worker_name(place.topic, histogram, draft.sample.topics)
    _head(lines, draft, answers, place)
    lines.section("worker")
    lines.set(
        "name",
        toml(worker),
        "prefix of the worker's own topics; none of them is on the cluster yet",
    )
    lines.set(
        "data_dir",
        toml(f"var/{worker}"),
        "a copy of the state, beside this file; may be deleted while it is stopped",
    )
    lines.set(
        "key_file",
        toml(place.key_name),
        f"all noise comes from it: `quietcount key new {place.key_file}` makes it",
    )
    lines.section("kafka")
    lines.set("bootstrap", toml(place.bootstrap), "as given to init")
    if place.client:
        lines.section("kafka.client")
        for name, value in place.client.items():
            lines.set(toml(name), value, "as given to init")
    if place.registry:
        lines.section("schema_registry")
        for name, value in place.registry.items():
            lines.set(name, value, "as given to init")
    _events(lines, draft, place)
    lines.section("privacy")
    _unit(lines, draft)
    _histogram(lines, draft, pace, answers, histogram)
    return lines.text()


def _head(lines: _File, draft: Draft, answers: Answers, place: Place) -> None:
    sample = draft.sample
    lines.note(
        f'Settings for the topic "{place.topic}", guessed by `quietcount init` on {place.now.astimezone(UTC):%Y-%m-%d} from '
        f"{len(sample.records):,} of its {many(sample.total, 'record')}: {_of_sample(draft)}. "
        f"Every line says what was found. {CHOOSE} marks what only you can decide; look at the other guesses too."
    )
    lines.note("")
    lines.note("Next, in this order:")
    for command, why in (
        (f"check -c {place.file}", "what these settings make of the newest events"),
        (f"plan -c {place.file}", "what they promise, and how large the noise is"),
        (f"key new {place.key_file}", "the key of all noise; for nobody else"),
        (f"topics -c {place.file} --create", "the topics that the worker needs"),
        (f"run -c {place.file}", "the worker"),
    ):
        lines.command(f"quietcount {command}", why)
    lines.note("")
    found = list(_data_in(draft, answers))
    lines.note(
        "The figures in the comments are exact, and come from the sample: this file is for the operator. "
        + (
            f"From the values of events it holds {' and '.join(found)}."
            if found
            else "It holds no value of any event."
        )
    )


def _data_in(draft: Draft, answers: Answers) -> Iterable[str]:
    if draft.keys == "declare":
        yield f"the {len(_declared(draft.key)):,} stream keys of the sample (keys)"
    if draft.where is not None:
        yield f"{many(len(draft.where.values), 'value')} of the field {draft.where.field.path} (where)"
    if draft.items.range is not None and answers.range is None:
        yield "round numbers around those of the sample (buckets)"


def _of_sample(draft: Draft) -> str:
    said = f"with these settings {percent(draft.accepted / draft.decoded)} of them are events"
    if draft.decoded < len(draft.sample.records):
        said = f"{percent(draft.decoded / len(draft.sample.records))} of them hold an object, and {said.replace('them', 'these')}"
    return (
        f"{said}, {percent(draft.skipped / draft.decoded)} are skipped by where"
        if draft.skipped
        else said
    )


def _events(lines: _File, draft: Draft, place: Place) -> None:
    lines.section("events")
    sample, items = draft.sample, draft.items
    size = f"{many(sample.total, 'record')} in {many(sample.partitions, 'partition')}"
    lines.set("topic", toml(place.topic), size)
    if draft.format != "json":
        lines.set("format", toml(draft.format), "by the schemas that the values name")
    _where(lines, draft)
    _key(lines, draft)
    lines.set("items", toml(str(items.field.path)), f"what is counted: {items.reason}")
    lines.others("items", [other.name for other in draft.other_items])
    if items.count is not None:
        lines.set(
            "count",
            toml(str(items.count.path)),
            "how many of it: a whole number beside it, by its name",
        )
    if draft.empty:
        lines.set(
            "missing",
            '"empty"',
            "some events have no items: they count as events without any, instead of being rejected",
        )
    _time(lines, draft)
    _user(lines, draft)
    grace, why = draft.grace
    lines.set("grace", toml(grace), why)


def _where(lines: _File, draft: Draft) -> None:
    if draft.where is not None:
        values = ", ".join(toml(value) for value in draft.where.values)
        others = "other value" if draft.where.others == 1 else f"{draft.where.others} other values"
        lines.set(
            "where",
            f"[{{ field = {toml(str(draft.where.field.path))}, in = [{values}] }}]",
            f"only such events have the items; those with the {others} of this field are skipped. The values come from the sample",
        )


def _key(lines: _File, draft: Draft) -> None:
    if draft.key is None:
        why = "one histogram for all events"
        candidates = list(draft.other_keys[:_OTHERS])
        if not candidates:
            lines.set(
                "key",
                toml(ALL_KEYS),
                f"{why}: no field of nearly every event has few different values",
            )
            return
        lines.set(
            "key",
            toml(ALL_KEYS),
            f"{why}, as nothing says that names of stream keys may be published",
        )
        for named in candidates:
            lines.note(
                f"{CHOOSE}: or key = {toml(named.setting)}, and keys below: a histogram for each; {named.reason}"
            )
        return
    published = (
        "their names are published"
        if draft.keys == "public"
        else "those in keys below are published"
    )
    lines.set(
        "key", toml(draft.key.setting), f"a histogram for each; {published}: {draft.key.reason}"
    )
    lines.others(
        "key",
        [*(named.setting for named in draft.other_keys), f"{ALL_KEYS} (one histogram for all)"],
    )


def _time(lines: _File, draft: Draft) -> None:
    if draft.time is None:
        lines.note(
            "timestamp is left out: no field is a time in nearly every event, so it is the record's own, which Kafka has."
        )
        return
    lines.set(
        "timestamp", toml(str(draft.time.field.path)), f"the time of an event: {draft.time.reason}"
    )
    lines.set(
        "timestamp_unit",
        toml(draft.time.unit),
        "by the form of the values" if draft.time.unit == "iso" else "by their size",
    )
    lines.others("timestamp", [str(time.field.path) for time in draft.other_times])


def _user(lines: _File, draft: Draft) -> None:
    if draft.user is not None:
        lines.note(f'{CHOOSE}: with this field, "user" protects {draft.user.means}.')
        lines.set("user", toml(draft.user.setting), f"whose event it is: {draft.user.reason}")
        lines.others("user", [named.setting for named in draft.users if named is not draft.user])
        if draft.user.partitioner is not None:
            lines.set(
                "partitioner",
                toml(draft.user.partitioner),
                "how the sampled records are placed in partitions by user",
            )
        return
    for named in draft.users[:_OTHERS]:
        placed = (
            f'the records are placed by it; needs unit = "user", max_items_per_user, and partitioner = {toml(named.partitioner)}'
            if named.partitioner is not None
            else 'the records are not placed by it; needs unit = "user", rekey = true, and max_items_per_user'
        )
        lines.off(
            "user", toml(named.setting), f"{named.reason}; {placed}; it protects {named.means}"
        )


def _unit(lines: _File, draft: Draft) -> None:
    if draft.user is not None:
        lines.set(
            "unit",
            '"user"',
            f"what is protected, in an epoch: {draft.user.means}; as asked for with --users",
        )
        if draft.user.partitioner is None:
            lines.set(
                "rekey",
                "true",
                "the records are not placed by user: the worker writes them once more, by user, and counts these",
            )
        return
    how = (
        "`quietcount init --users` writes the settings for users"
        if draft.users
        else "for users, events must name them"
    )
    lines.set(
        "unit",
        '"event"',
        f'{CHOOSE}: "event" protects one event, "user" all events of one user in an epoch; {how}',
    )


def _histogram(lines: _File, draft: Draft, pace: TickChoice, answers: Answers, name: str) -> None:
    lines.section("[histogram]")
    events, counts = draft.within
    unit = "event" if draft.user is None else "user"
    lines.set("name", toml(name), "its snapshots go to the topic <worker.name>.<name>")
    if draft.items.range is None:
        lines.set(
            "mechanism",
            toml(pace.mechanism),
            "items need not be known before: one is shown when enough of it was counted",
        )
    else:
        lines.set(
            "mechanism",
            toml(pace.mechanism),
            "the buckets are known before, so all of them are shown at every tick",
        )
        how = (
            "as given with --range"
            if answers.range is not None
            else f"{CHOOSE}: round numbers around those of the sample, so data; better a range that you know without it"
        )
        lines.set(
            "buckets", str(draft.items.range), f"intervals, and one below and one above them; {how}"
        )
    lines.set("tick", toml(format_duration(pace.tick_ms)), f"a snapshot each: {pace.tick_reason}")
    lines.set("horizon", toml(format_duration(pace.tick_ms * pace.horizon)), pace.horizon_reason)
    one = draft.items.field.form is Form.ONE
    most = "an event has one" if one else f"{percent(events)} of the sampled events have no more"
    lines.set(
        "max_items", str(draft.max_items), f"most different items of one event that count: {most}"
    )
    adds = (
        "most that one event adds to one item"
        if draft.user is None
        else f"{CHOOSE}: most that one user adds to one item in an epoch"
    )
    bring = (
        "it has it once"
        if one and draft.items.count is None
        else f"{percent(counts)} of the sampled amounts in one event are no more"
    )
    lines.set("max_count", str(draft.max_count), f"{adds}: {bring}")
    if draft.user is not None:
        lines.set(
            "max_items_per_user",
            str(ITEMS_PER_USER),
            f"{CHOOSE}: most pairs of stream key and item that count of one user in an epoch",
        )
    tells = f"how much all snapshots of an epoch may tell of one {unit}; smaller tells less, with more noise"
    lines.set("epsilon", str(EPSILON), f"{CHOOSE}: {tells}. {pace.noise}")
    chance = f"the chance that they tell more; far below 1 / (number of {unit}s in an epoch)"
    lines.set("delta", f"{DELTA:g}".replace("e-0", "e-"), f"{CHOOSE}: {chance}")
    if draft.keys == "public":
        lines.set("keys", '"public"', "as answered: every stream key in the data may be named")
    elif draft.keys == "declare":
        values = ", ".join(toml(value) for value in _declared(draft.key))
        lines.set(
            "keys",
            f"[{values}]",
            "as answered: those of the sample. Events of others are not counted",
        )


def _declared(named: Named | None) -> list[str]:
    return [] if named is None else sorted(named.values)


def histogram_name(draft: Draft) -> str:
    """Name a histogram after its field, or after the container if the field's name is general."""
    steps = draft.items.field.path.steps
    if steps[-1].lower() in _GENERIC and len(steps) > 1:
        steps = steps[:-1]
    return _NOT_IN_NAMES.sub("-", steps[-1].lower()).strip("-")[:100] or "items"


def worker_name(topic: str, histogram: str, taken: Collection[str]) -> str:
    """Name the worker after the topic, changed until all its topics are new."""
    used = {name.replace(".", "_") for name in (*taken, topic)}
    plain = re.sub(r"^[^A-Za-z0-9]+", "", topic)[:80] or "events"
    name, number = plain, 1
    while any(
        one.replace(".", "_") in used for one in (*internal_topics(name), f"{name}.{histogram}")
    ):
        number += 1
        name = f"{plain}-{number}"
    return name


def toml(text: str | None) -> str:
    return json.dumps(text or "", ensure_ascii=False).replace("\x7f", "\\u007f")


class _File:
    """Lines of a settings file, with wrapped comments."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def section(self, name: str) -> None:
        self._lines += ["", f"[{name}]"]

    def note(self, text: str) -> None:
        self._lines += [f"# {line}".rstrip() for line in _wrapped(text, _WIDTH - 2)] or ["#"]

    def command(self, command: str, why: str) -> None:
        self._lines.append(f"#   {command:<{_COLUMN + 6}} {why}")

    def set(self, name: str, value: str, why: str, mark: str = "") -> None:
        """Add a setting with its comment: on the same line if it fits, else above."""
        setting = f"{mark}{name} = {value}"
        line = f"{setting:<{_COLUMN - 1}} # {why}"
        if len(line) <= _WIDTH:
            self._lines.append(line)
        else:
            self._lines += [
                f"# {part}" for part in _wrapped(why[0].upper() + why[1:] + ".", _WIDTH - 2)
            ]
            self._lines.append(setting)

    def off(self, name: str, value: str, why: str) -> None:
        self.set(name, value, why, "# ")

    def others(self, name: str, candidates: Sequence[str]) -> None:
        if candidates:
            shown = ", ".join(_plain(candidate) for candidate in candidates[:_OTHERS])
            self.note(f"  or {name}: {shown}")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(_plain(text), width, break_long_words=False, break_on_hyphens=False)


def _plain(text: str) -> str:
    """Strip characters that a comment must not contain; field names can be anything."""
    return "".join(char if char.isprintable() else "?" for char in text)
