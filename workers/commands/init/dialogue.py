"""Sample, guess, ask and write, printing exact findings (`quietcount init`)."""

import os
import re
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workers.commands.failures import log
from workers.commands.init.draft import Draft, SampleGuesses
from workers.commands.init.fields import Field, Form, Kind, percent
from workers.commands.init.formats import CannotGuess, decode_sample
from workers.commands.init.items import Range, range_between
from workers.commands.init.names import UserKind
from workers.commands.init.sample import sample_of
from workers.commands.init.tick_choice import DELTA, EPSILON, choose_tick
from workers.commands.init.writing import (
    CHOOSE,
    exact_bounds,
    plain,
    settings_text,
    toml,
)
from workers.commands.options import Init
from workers.commands.undeclared import QUOTES
from workers.events.schemas import Access
from workers.kafka.clients import Connection
from workers.mechanisms.accounting import rho_of
from workers.mechanisms.config.views import RECORD_KEY
from workers.runtime.errors import SettingsError
from workers.runtime.printing import plural
from workers.settings.files import client_values
from workers.settings.settings import KafkaSettings, registry_of, settings_of

EXIT_NOTHING = 1
_RECORDS = 2_000
_PRIVATE_RECORDS = 20_000
_ROWS_MAX = 40
# Columns where there is no terminal.
_PLAIN_WIDTH = 120
# Values of a field that are shown, and characters of one.
_EXAMPLES = 3
_EXAMPLE = 24
# Larger whole numbers are shown with an exponent.
_WHOLE_MAX = 1e19
_IDENTIFIED = MappingProxyType(
    {
        UserKind.PERSON: "a person",
        UserKind.ACCOUNT: "an account",
        UserKind.DEVICE: "a device",
        UserKind.SESSION: "a session",
        UserKind.EVENT: "an event",
        UserKind.TRAIT: "people or events",
    }
)
_NUMBER = r"-?[0-9]{1,16}(?:\.[0-9]{1,15})?"


def write_settings(chosen: Init) -> int:
    """Guess settings from a sample of a topic, asking the operator, and write them to a new file.

    Returns the exit code. Options that are None were not given.
    """
    output = _new_file(chosen)
    base = output.absolute().parent
    bootstrap = chosen.bootstrap
    topic = chosen.topic
    # Options as settings have them: wrong ones are refused before anything is read. Those of the
    # client and the registry are needed twice: as TOML for the file, and as values, to connect.
    buckets = None if chosen.range is None else _range(chosen.range)
    private = None if chosen.private is None else _private(chosen.private)
    client_toml = toml_values("--client", chosen.client)
    client = client_values(table_of(client_toml), base)
    registry_toml = {}
    if chosen.schema_registry is not None:
        registry_toml = {"url": toml(chosen.schema_registry)}
        registry_toml |= toml_values("--registry", chosen.registry)
    try:
        # Raises for values that the settings file could not have.
        KafkaSettings(bootstrap=bootstrap, client=client)
        registry = registry_of(table_of(registry_toml), base) if registry_toml else None
    except ValueError as error:
        raise SettingsError(str(error)) from None
    access = None
    if registry is not None:
        # A schema that the registry does not know is not waited for.
        access = Access(registry.url, registry.client(), patience_s=0.0)
    # The sample, guesses about it, and the operator's answers.
    records = chosen.records or (_RECORDS if private is None else _PRIVATE_RECORDS)
    sample = sample_of(Connection(bootstrap, client), topic, records)
    for note in sample.notes:
        log(note)
    now_ms = time.time_ns() // 1_000_000
    try:
        if not sample.records:
            raise CannotGuess("the topic is empty: there is nothing to look at yet")
        decoded = decode_sample([record.value for record in sample.records], access)
        guess = SampleGuesses(sample, decoded, now_ms)
        if buckets is not None and guess.items.range is None:
            raise SettingsError(
                f"--range: what would be counted, {guess.items.field.path}, is not a number"
            )
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _PLAIN_WIDTH
        asking = not chosen.yes and sys.stdin.isatty() and sys.stdout.isatty()
        # Shown before questions; else at the end, with what they are used as.
        if asking:
            _show_fields(console, guess, {})
        keys, of_users, buckets = _answers(guess, chosen, buckets, ask=asking)
        if private is not None and of_users:
            raise SettingsError(
                "--private: not with --users: it protects single events of the sample"
            )
        rho = None if private is None else rho_of(private, DELTA, gaussian=True)
        draft = guess.draft(keys, of_users, buckets, rho)
    except CannotGuess as nothing:
        log(f"no settings for the topic {topic}: {nothing}")
        return EXIT_NOTHING
    text = settings_text(
        draft,
        choose_tick(draft, now_ms),
        bootstrap=bootstrap,
        topic=topic,
        client=client_toml,
        # JSON is read without its schema.
        registry=registry_toml if draft.format in ("avro", "protobuf") else {},
        output=output,
        now=datetime.now(UTC),
    )
    _write_new(output, text)
    if not asking:
        _show_fields(console, guess, roles_of(draft))
    _show_draft(console, draft, output, text)
    return 0


def _new_file(chosen: Init) -> Path:
    """Return the settings file to write; refuse one that exists, or that has no directory."""
    output = chosen.output or Path(f"{chosen.topic}.toml")
    if output.exists() or output.is_symlink():
        raise SettingsError(
            f"{output}: exists already, and settings are never overwritten: "
            "choose another name with --output"
        )
    if not output.absolute().parent.is_dir():
        raise SettingsError(f"{output}: no directory {output.parent}")
    return output


def _write_new(output: Path, text: str) -> None:
    """Write a new settings file, after checking that it loads."""
    try:
        settings_of(tomllib.loads(text), output.absolute().parent)
    except ValueError as error:
        raise SettingsError(
            f"no settings could be written that load: {error}"
        ) from None
    try:
        with open(
            output, "x", encoding="utf-8", opener=partial(os.open, mode=0o640)
        ) as file:
            file.write(text)
    except OSError as error:
        raise SettingsError(f"{output}: {error.strerror}") from None


def table_of(values: Mapping[str, str]) -> dict[str, object]:
    """Return a section of settings as Python values; `values` are written as in TOML."""
    return tomllib.loads(
        "\n".join(f"{toml(name)} = {value}" for name, value in values.items())
    )


def toml_values(option: str, settings: Iterable[str]) -> dict[str, str]:
    """Return a section from `NAME=VALUE` options, as TOML values by name.

    A secret, given as NAME=file:PATH or NAME=env:VARIABLE, stays a reference: { file = "PATH" }.
    """
    values = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise SettingsError(
                f"{option}: NAME=VALUE, NAME=file:PATH or NAME=env:VARIABLE"
            )
        kind, colon, source = value.partition(":")
        secret = colon and kind in ("file", "env")
        values[name] = f"{{ {kind} = {toml(source)} }}" if secret else toml(value)
    return values


def _range(text: str) -> Range:
    """Return the buckets of `--range FROM:TO`."""
    match = re.fullmatch(rf"({_NUMBER}):({_NUMBER})", text)
    found = range_between(float(match[1]), float(match[2])) if match else None
    if found is None:
        raise SettingsError(
            f"--range {text}: FROM:TO, two numbers, the first below the second, such as 0:100"
        )
    return found


def _private(text: str) -> float:
    """Return the epsilon of `--private epsilon=0.1`: at most half of the histogram's."""
    match = re.fullmatch(r"epsilon=([0-9.]{1,12})", text)
    try:
        epsilon = float(match[1]) if match else 0.0
    except ValueError:
        epsilon = 0.0
    if not 0.01 <= epsilon <= EPSILON / 2:
        raise SettingsError(
            f"--private {text}: epsilon=E, E from 0.01 to {EPSILON / 2:g}, such as epsilon=0.1"
        )
    return epsilon


def _answers(
    guess: SampleGuesses, chosen: Init, range_: Range | None, *, ask: bool
) -> tuple[str, bool, Range | None]:
    """Return (what stream keys may be named, whether users are protected, range of buckets).

    Options that were given decide, for buckets `range_`; the others are asked for if `ask`, else
    have cautious values. Range None: that of the draft is kept, if it has buckets.
    """
    keys = chosen.keys
    users = chosen.users
    fitting = [key for key in guess.keys if key.fits]
    if ask and keys is None and fitting:
        likeliest = fitting[0]
        setting = likeliest.setting
        quotes = f"\n{QUOTES}." if guess.quoted_keys and setting == RECORD_KEY else ""
        click.echo(
            f"\nEach value of {setting} could have a histogram of its own, with its name on it; "
            f"in the sample there are {plural(len(likeliest.values), 'different value')}: "
            f"{_examples(likeliest.values, 8)}.{quotes}\n"
            "public: any name in the data may be published. declare: these may, and go into the file; "
            "others are not\ncounted. none: one histogram of all events, without names."
        )
        choices = click.Choice(["public", "declare", "none"])
        keys = click.prompt("May the names be published?", type=choices, default="none")
    keys = keys or "none"
    found_users = guess.users(fitting[0] if fitting and keys != "none" else None)
    if ask and users is None and found_users:
        user = found_users[0]
        placed = f"The records are placed by {user.setting}, which may name a user: {user.reason}."
        if user.partitioner is None:
            placed = (
                f"{user.setting} may name a user: {user.reason}. The records are not placed by it, "
                "so the worker would\nwrite them once more, by user (privacy.rekey)."
            )
        click.echo(f"\n{placed}")
        click.echo(f"This would protect {user.means}.")
        users = click.confirm(
            "Protect all events of one user, not single events?", default=False
        )
    if ask and range_ is None and guess.items.range is not None:
        found = guess.items.range
        click.echo(
            f"\n{guess.items.field.path} is a number. Round numbers around the sample's are data; "
            "better are some that you know."
        )
        default = f"{found.first:f}:{found.last:f}"
        answer = click.prompt("Buckets FROM:TO", default=default)
        range_ = None if answer == default else _range(answer)
    return keys, bool(users), range_


def roles_of(draft: Draft) -> dict[str, str]:
    """Return what each field of a draft is used as, such as "items", by its path."""
    roles = {str(draft.items.field.path): "items"}
    if draft.items.count is not None:
        roles[str(draft.items.count.path)] = "count"
    for guess, role in ((draft.where, "where"), (draft.time, "timestamp")):
        if guess is not None:
            roles[str(guess.field.path)] = role
    for candidate, role in ((draft.key, "key"), (draft.user, "user")):
        if candidate is not None:
            roles[candidate.setting] = role
    return roles


def _show_fields(
    console: Console, guess: SampleGuesses, roles: Mapping[str, str]
) -> None:
    """Print the fields of the sample; `roles` are as in `roles_of`, empty before a draft."""
    table = Table(box=None, pad_edge=False)
    headings = (
        "field",
        "in",
        "holds",
        "different",
        "used as",
        "for example (exact: for you only)",
    )
    for heading in headings if roles else (*headings[:4], headings[5]):
        number = heading in ("in", "different")
        table.add_column(
            heading, justify="right" if number else "left", overflow="fold"
        )
    filled = (field for field in guess.all_fields if field.number_of_values)
    shown = [field for field in filled if set(field.kinds) != {Kind.OBJECT}]
    for field in shown[:_ROWS_MAX]:
        different = f"{field.distinct:,}" if field.labels else ""
        role = [roles.get(str(field.path), "")] if roles else []
        mark = {Form.LIST: "[]", Form.MAP: "{}"}.get(field.form, "")
        null = f"; null in {percent(field.nulls / field.total)}" if field.nulls else ""
        table.add_row(
            Text(plain(f"{field.path}{mark}")),
            percent(field.share),
            f"{'counts by ' * (field.form is Form.MAP)}{field.holds}{null}",
            different,
            *role,
            Text(_example(field)),
        )
    console.print(table)
    if len(shown) > _ROWS_MAX:
        console.print(f"... and {plural(len(shown) - _ROWS_MAX, 'more field')}")


def _show_draft(console: Console, draft: Draft, file: Path, text: str) -> None:
    """Print how much of the sample would count, and what to do next.

    `text` is the settings `file` as it was written.
    """
    sample = draft.sample
    looked = f"{len(sample.records):,} of {plural(sample.total, 'record')} looked at"
    if sample.stopped:
        looked += ", fewer than asked for: there was no time, or they are large"
    of = "" if draft.decoded == len(sample.records) else " of those that are objects"
    line = f"{looked}; {percent(draft.accepted / draft.decoded)}{of} would be counted"
    if draft.skipped:
        line += f", {percent(draft.skipped / draft.decoded)} skipped by where"
    # The head of the file, which explains the word, has it once, too.
    choices = sum(CHOOSE in row for row in text.splitlines()) - 1
    say = f"{choices} of its comments say {CHOOSE}: what only you can decide."
    console.print()
    lines = [f"{line}.", exact_bounds(draft), f"{file}: written. {say}"]
    lines.append(f"Next: quietcount check -c {file}")
    if draft.quoted_keys and draft.key is not None and draft.key.setting == RECORD_KEY:
        lines.insert(1, f'key = "{RECORD_KEY}": {QUOTES}.')
    for shown in lines:
        console.print(Text(shown), soft_wrap=True)


def _example(field: Field) -> str:
    """Return some values of a field, of numbers their range, unless they identify somebody."""
    if field.who is not None:
        return f"not shown: identifies {_IDENTIFIED[field.who]}"
    parts = []
    if field.whole or field.kinds[Kind.NUMBER]:
        low = min(field.numbers)
        high = max(field.numbers)
        parts.append(
            _number(low) if low == high else f"{_number(low)} to {_number(high)}"
        )
    if field.values and not field.whole:
        parts.append(_examples(field.values, _EXAMPLES))
    return ", ".join(parts)


def _number(number: float) -> str:
    """Return a number as text: whole if it is, and not too long, else to six digits."""
    return (
        f"{number:.0f}"
        if number.is_integer() and abs(number) < _WHOLE_MAX
        else f"{number:.6g}"
    )


def _examples(values: Mapping[str, int], number: int) -> str:
    """Return the first `number` values, shortened, for a message."""
    texts = map(plain, islice(values, number))
    shown = [
        text if len(text) <= _EXAMPLE else text[: _EXAMPLE - 3] + "..."
        for text in texts
    ]
    return ", ".join(shown) + (", ..." if len(values) > number else "")
