"""Write a draft as a settings file, with the evidence and the reason for every line."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from workers.commands.init.draft import ITEMS_PER_USER, Draft
from workers.commands.init.fields import Form, percent
from workers.commands.init.names import unaccented
from workers.commands.init.tick_choice import DELTA, EPSILON, TickChoice
from workers.commands.undeclared import QUOTES
from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.views import ALL_KEYS, RECORD_KEY
from workers.privacy.phrasing import guesses_right
from workers.runtime.printing import plural
from workers.settings.settings import signatures_topic, stage_topics

_WIDTH = 118
_COLUMN = 36
_OTHERS = 4
_PERSONAL_NAMED = 12
_GENERIC = ("id", "name", "code", "label", "key", "value")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
CHOOSE = "CHOOSE"
_PRIVATELY = "a noisy quantile of the sample, charged as bounds_rho"


def settings_text(
    draft: Draft,
    choice: TickChoice,
    *,
    bootstrap: str,
    topic: str,
    client: Mapping[str, str],
    registry: Mapping[str, str],
    output: Path,
    now: datetime,
) -> str:
    """Return the settings file `output`; it states all sample data that it holds.

    `client` and `registry` (empty if not needed) are TOML values by name.
    """
    lines = _SettingsLines()
    key_file = output.with_suffix(".key")
    name = histogram_name(draft)
    worker = worker_name(topic, name, draft.sample.topics)
    _head(lines, draft, topic, output, now)
    lines.section("worker")
    lines.text(
        "name",
        worker,
        "prefix of the worker's own topics; none of them is on the cluster yet",
    )
    lines.text(
        "data_dir",
        f"var/{worker}",
        "a copy of the state, beside this file; may be deleted while it is stopped",
    )
    lines.text(
        "key_file",
        key_file.name,
        f"all noise comes from it: `quietcount key new {key_file}` makes it",
    )
    lines.note(
        "signing_key_file, made by `quietcount key signing`, would sign every tick: readers could verify that no copy "
        "was changed."
    )
    lines.section("kafka")
    lines.text("bootstrap", bootstrap, "as given to init")
    quoted = {toml(name): value for name, value in client.items()}
    for section, values in (("kafka.client", quoted), ("schema_registry", registry)):
        if values:
            lines.section(section)
            for setting, value in values.items():
                lines.set(setting, value, "as given to init")
    _events(lines, draft, topic)
    lines.section("privacy")
    _unit(lines, draft)
    if draft.user is None or draft.user.partitioner is not None:
        lines.note(
            'neighbours = "record" would also hide that there was a record, and deliver each tick 2s after its end. '
            "It needs a start and declared keys in every histogram."
        )
    _histogram(lines, draft, choice, name)
    return "\n".join(lines) + "\n"


def _head(
    lines: _SettingsLines, draft: Draft, topic: str, output: Path, today: datetime
) -> None:
    """Write the comments on top: what was sampled, what to do next, what data the file holds."""
    sample = draft.sample
    number = len(draft.sample.records)
    key_file = output.with_suffix(".key")
    summary = ""
    them = "them"
    if draft.decoded < number:
        summary = f"{percent(draft.decoded / number)} of them hold an object, and "
        them = "these"
    summary += f"with these settings {percent(draft.accepted / draft.decoded)} of {them} are events"
    if draft.skipped:
        summary += f", {percent(draft.skipped / draft.decoded)} are skipped by where"
    lines.note(
        f'Settings for the topic "{topic}", guessed by `quietcount init` '
        f"on {today:%Y-%m-%d} from {number:,} of its "
        f"{plural(sample.total, 'record')}: {summary}. Every line says what was found. "
        f"{CHOOSE} marks what only you can decide; look at the other guesses too."
    )
    lines.note("")
    lines.note("Next, in this order:")
    for command, why in (
        (f"check -c {output}", "what these settings make of the newest events"),
        (f"plan -c {output}", "what they promise, and how large the noise is"),
        (
            f"key new {key_file}",
            "the key that all noise is derived from; keep it secret",
        ),
        (f"topics -c {output} --create", "the topics that the worker needs"),
        (f"run -c {output}", "the worker"),
    ):
        # A command is longer than most settings.
        lines.append(f"#   {f'quietcount {command}':<{_COLUMN + 6}} {why}")
    lines.note("")
    data = []
    if draft.keys == "declare" and draft.key is not None:
        data.append(f"the {len(draft.key.values):,} stream keys of the sample (keys)")
    if draft.where is not None:
        values = plural(len(draft.where.values), "value")
        data.append(f"{values} of the field {draft.where.field.path} (where)")
    exact_range = draft.private is None and not draft.range_given
    if draft.items.range is not None and exact_range:
        data.append("round numbers around those of the sample (buckets)")
    taken_over = (
        f"From the values of events it holds {' and '.join(data)}." if data else ""
    )
    lines.note(
        "The figures in the comments are exact, and come from the sample: this file is for the "
        f"operator. {taken_over or 'It holds no value of any event.'} {exact_bounds(draft)}"
    )


def exact_bounds(draft: Draft) -> str:
    """Return a sentence on what was chosen by looking at exact data."""
    if draft.private is not None and not draft.private.rho:
        return "No bound was chosen from the sample. Fields, tick and the figures of the comments are from exact data."
    if draft.private is not None:
        return (
            "max_items, max_count and the ends of buckets were chosen with noise, which bounds_rho charges. Fields, tick and the "
            "figures of the comments are from exact data."
        )
    return (
        "max_items, max_count, tick and buckets were chosen by looking at exact data: what they reveal about it is in no "
        "guarantee. Better are bounds that you know without the sample, or --private epsilon=0.1."
    )


def _events(lines: _SettingsLines, draft: Draft, topic: str) -> None:
    """Write the section `events`: the topic, and the fields that are read."""
    lines.section("events")
    sample = draft.sample
    items = draft.items
    where = draft.where
    lines.text(
        "topic",
        topic,
        f"{plural(sample.total, 'record')} in {plural(sample.partitions, 'partition')}",
    )
    if draft.format != "json":
        lines.text("format", draft.format, "by the schemas that the values name")
    if where is not None:
        others = "other value" if where.others == 1 else f"{where.others} other values"
        field = toml(str(where.field.path))
        lines.set(
            "where",
            f"[{{ field = {field}, in = {_toml_list(where.values)} }}]",
            f"only such events have the items; those with the {others} of this field are skipped. "
            "The values come from the sample",
        )
    _key(lines, draft)
    lines.text("items", str(items.field.path), f"what is counted: {items.reason}")
    lines.others("items", [other.name for other in draft.other_items])
    _personal(lines, draft)
    if items.count is not None:
        lines.text(
            "count",
            str(items.count.path),
            "how many of it: a whole number beside it, by its name",
        )
    if draft.empty:
        lines.text(
            "missing",
            "empty",
            (
                f"{percent(draft.empty)} of the events lack the items, or have null there: they count as events without any, "
                "instead of being rejected"
            ),
        )
    _time(lines, draft)
    _user(lines, draft)
    lines.text("grace", *draft.grace)


def _personal(lines: _SettingsLines, draft: Draft) -> None:
    """List the fields that are not offered, so that a wrong guess can be noticed."""
    # One value alone would not be offered anyway.
    fields = [field for field in draft.personal if field.distinct > 1]
    if not fields:
        return
    named = [f"{field.path} ({field.why})" for field in fields[:_PERSONAL_NAMED]]
    if len(fields) > len(named):
        named.append(f"and {len(fields) - len(named):,} more")
    lines.note(
        f"  never offered as items or stream keys, as they seem to identify people or single events: {', '.join(named)}"
    )


def _key(lines: _SettingsLines, draft: Draft) -> None:
    """Write the field of the stream key, or why there is none, with the alternatives.

    A candidate that `fits` would have been chosen if names of stream keys could be published; the
    others are offered though their names do not sound like shops or regions.
    """
    key = draft.key
    candidates = draft.other_keys
    if key is None:
        reason = "no other field of nearly every event has few values that could have one each"
        if any(candidate.fits for candidate in candidates):
            reason = "no option allows publishing names of stream keys"
        elif candidates:
            reason = (
                "no field is named like a shop or a region, which could have one each"
            )
        lines.text("key", ALL_KEYS, f"one histogram for all events: {reason}")
        for candidate in candidates[:_OTHERS]:
            lines.note(
                f"{CHOOSE}: or key = {toml(candidate.setting)}, and keys below: a histogram for each; "
                f"{candidate.reason}{_quotes(draft, candidate.setting)}"
            )
        return
    named = "their names" if draft.keys == "public" else "those in keys below"
    lines.text(
        "key",
        key.setting,
        f"a histogram for each; {named} are published: {key.reason}{_quotes(draft, key.setting)}",
    )
    lines.others(
        "key",
        [
            *(candidate.setting for candidate in candidates),
            f"{ALL_KEYS} (one histogram for all)",
        ],
    )


def _quotes(draft: Draft, setting: str) -> str:
    """Return the remark that the record keys are texts in quotes, if that is so."""
    return f"; {QUOTES}" if draft.quoted_keys and setting == RECORD_KEY else ""


def _time(lines: _SettingsLines, draft: Draft) -> None:
    """Write the field of the event time, or why there is none."""
    if draft.time is None:
        lines.note(
            "timestamp is left out: no field is a time in nearly every event, "
            "so Kafka's own record timestamp is used."
        )
        return
    path = str(draft.time.field.path)
    unit = draft.time.unit
    lines.text("timestamp", path, f"the time of an event: {draft.time.reason}")
    why = "by the form of the values" if unit == "iso" else "by their size"
    lines.text("timestamp_unit", unit, why)
    lines.others("timestamp", [str(time.field.path) for time in draft.other_times])


def _user(lines: _SettingsLines, draft: Draft) -> None:
    """Write the field of the user, or as comments the fields that could be it."""
    user = draft.user
    if user is not None:
        lines.note(f'{CHOOSE}: with this field, "user" protects {user.means}.')
        lines.text("user", user.setting, f"the user of an event: {user.reason}")
        lines.others(
            "user", [other.setting for other in draft.users if other is not user]
        )
        if user.partitioner is not None:
            lines.text(
                "partitioner",
                user.partitioner,
                "how the sampled records are placed in partitions by user",
            )
        return
    for candidate in draft.users[:_OTHERS]:
        placed = "not placed by it"
        needs = "rekey = true, and max_items_per_user"
        if candidate.partitioner is not None:
            placed = "placed by it"
            needs = (
                f"max_items_per_user, and partitioner = {toml(candidate.partitioner)}"
            )
        placed = f'the records are {placed}; needs unit = "user", {needs}'
        lines.text(
            "# user",
            candidate.setting,
            f"{candidate.reason}; {placed}; it protects {candidate.means}",
        )


def _unit(lines: _SettingsLines, draft: Draft) -> None:
    """Write what is protected, one event or one user."""
    user = draft.user
    if user is None:
        how = "for users, events must name them"
        if draft.users:
            how = "`quietcount init --users` writes the settings for users"
        lines.text(
            "unit",
            "event",
            f'{CHOOSE}: "event" protects one event, "user" all events of one user in an epoch; {how}',
        )
        return
    lines.text(
        "unit",
        "user",
        f"what is protected, in an epoch: {user.means}; as asked for with --users",
    )
    if user.partitioner is None:
        lines.set(
            "rekey",
            "true",
            "the records are not placed by user: the worker writes them once more, by user, and counts these",
        )


def _histogram(
    lines: _SettingsLines, draft: Draft, choice: TickChoice, name: str
) -> None:
    """Write the one histogram, `name`: what is counted, its ticks, bounds and budget.

    Each line has its reason, which depends on where its value comes from: the sample's exact data,
    a choice with noise (`_PRIVATELY`), or an option.
    """
    lines.section("[histogram]")
    items = draft.items
    unit = "event" if draft.user is None else "user"
    lines.text("name", name, "its snapshots go to the topic <worker.name>.<name>")
    why = "the buckets are known before, so all of them are shown at every tick"
    if items.range is None:
        why = (
            "items need not be known before: one is shown when enough of it was counted"
        )
    lines.text("mechanism", choice.mechanism, why)
    if items.range is not None:
        how = f"{CHOOSE}: round numbers around those of the sample, so data; better a range that you know without it"
        if draft.range_given:
            how = "as given with --range"
        elif draft.private is not None:
            how = _PRIVATELY
        why = f"intervals, and one below and one above them; {how}"
        lines.set("buckets", str(items.range), why)
    lines.text(
        "tick",
        format_duration(choice.tick_ms),
        f"a snapshot each: {choice.tick_reason}",
    )
    lines.text(
        "horizon",
        format_duration(choice.tick_ms * choice.horizon),
        choice.horizon_reason,
    )
    if choice.windows_offer:
        lines.note(f"  {choice.windows_offer}.")
    _bounds(lines, draft)
    # The budget.
    why = (
        f"{CHOOSE}: how much all snapshots of an epoch may reveal about one {unit}; at {EPSILON:g}, a guess at even odds "
        f"whether it was counted is right at most {guesses_right(EPSILON, DELTA)} times in 100 instead of 50; smaller "
        f"reveals less, with more noise. {choice.noise}"
    )
    lines.set("epsilon", str(EPSILON), why)
    if draft.private is not None and draft.private.rho:
        why = (
            "of this budget, what init spent on choosing bounds from the sample, once: keep it, so that every guarantee "
            "includes it"
        )
        lines.set("bounds_rho", repr(draft.private.rho), why)
    lines.set(
        "delta",
        # 1e-9, not 1e-09.
        f"{DELTA:g}".replace("e-0", "e-"),
        f"{CHOOSE}: the chance that they reveal more; far below 1 / (number of {unit}s in an epoch)",
    )
    if draft.keys == "public":
        lines.text(
            "keys", "public", "as answered: every stream key in the data may be named"
        )
    elif draft.keys == "declare" and draft.key is not None:
        why = "as answered: those of the sample. Events of others are not counted"
        lines.set("keys", _toml_list(sorted(draft.key.values)), why)


def _bounds(lines: _SettingsLines, draft: Draft) -> None:
    """Write the bounds on an event, or on a user in an epoch, with where they come from."""
    single = draft.items.field.form is Form.ONE
    evidence = f"{percent(draft.items_within)} of the sampled events have no more"
    if single:
        evidence = "an event has one"
    elif draft.private is not None:
        evidence = _PRIVATELY
    why = f"most different items of one event that count: {evidence}"
    lines.set("max_items", str(draft.max_items), why)
    evidence = f"{percent(draft.counts_within)} of the sampled amounts in one event are no more"
    if single and draft.items.count is None:
        evidence = "it has it once"
    elif draft.private is not None:
        evidence = _PRIVATELY
    adds = "most that one event adds to one item"
    if draft.user is not None:
        adds = f"{CHOOSE}: most that one user adds to one item in an epoch"
    lines.set("max_count", str(draft.max_count), f"{adds}: {evidence}")
    if draft.user is not None:
        why = "most pairs of stream key and item that count of one user in an epoch"
        lines.set("max_items_per_user", str(ITEMS_PER_USER), f"{CHOOSE}: {why}")


def histogram_name(draft: Draft) -> str:
    """Name a histogram after its field, or after the container if the field's name is general."""
    steps = draft.items.field.path.steps
    if steps[-1].lower() in _GENERIC and len(steps) > 1:
        steps = steps[:-1]
    return (
        _NOT_IN_NAMES.sub("-", unaccented(steps[-1]).lower()).strip("-")[:100]
        or "items"
    )


def worker_name(topic: str, histogram: str, taken: Collection[str]) -> str:
    """Name the worker after the topic, with a number added until all its topics are new.

    `histogram` is the name of its histogram, `taken` are the cluster's topics.
    """
    # To Kafka's metrics a point and an underscore are the same.
    used = {name.replace(".", "_") for name in (*taken, topic)}
    plain = re.sub(r"^[^A-Za-z0-9]+", "", topic)[:80] or "events"
    name = plain
    number = 1
    while not used.isdisjoint(
        created.replace(".", "_")
        for created in (
            *stage_topics(name),
            signatures_topic(name),
            f"{name}.{histogram}",
        )
    ):
        number += 1
        name = f"{plain}-{number}"
    return name


def toml(text: str) -> str:
    """Return a text as TOML writes it: as JSON does, but for one control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(toml, texts))}]"


class _SettingsLines(list[str]):
    """The lines of a settings file, each setting with its reason as a comment."""

    def section(self, name: str) -> None:
        """Begin a section; a name in brackets is one of an array of tables."""
        self += ["", f"[{name}]"]

    def note(self, text: str) -> None:
        """Add a comment, wrapped."""
        text = plain(text)
        lines = textwrap.wrap(
            text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False
        )
        self += [f"# {line}".rstrip() for line in lines] or ["#"]

    def text(self, name: str, value: str, why: str) -> None:
        self.set(name, toml(value), why)

    def set(self, name: str, value: str, why: str) -> None:
        """Add a setting with its comment: on the same line if it fits, else above."""
        setting = f"{name} = {value}"
        line = f"{setting:<{_COLUMN - 1}} # {why}"
        if len(line) <= _WIDTH:
            self.append(line)
        else:
            self.note(f"{why[0].upper()}{why[1:]}.")
            self.append(setting)

    def others(self, name: str, candidates: Sequence[str]) -> None:
        """Add a comment that names other candidates for a setting."""
        if candidates:
            shown = ", ".join(plain(candidate) for candidate in candidates[:_OTHERS])
            self.note(f"  or {name}: {shown}")


def plain(text: str) -> str:
    """Strip characters that a comment must not contain; field names can be anything."""
    return "".join(char if char.isprintable() else "?" for char in text)
