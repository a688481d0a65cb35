"""Expand `--vary` into the combinations of settings that a backtest runs.

    --vary products.epsilon=0.5,1,2 --vary products.mechanism=unk_base,sparse_gumb

Histograms do not influence one another, so every one is varied by itself, with all combinations of
its values. A combination starts from the histogram's section of the settings file and is checked
like it. If `mechanism` is varied, every mechanism uses only the settings that it supports, and
duplicate combinations are merged; the same applies to `domain` if `release` or `algorithm` is
varied and not every value has one. If `tick` is varied and `horizon` is not, all combinations keep
the file's epoch length: an epsilon buys one epoch, so over epochs of different lengths the same
epsilon would be different promises.

A value without any valid combination is refused before anything is read. An invalid combination of
otherwise valid values is left out and named.
"""

import difflib
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
from msgspec import structs
from msgspec.structs import replace

from workers.mechanisms.config.checked import display, rules
from workers.mechanisms.config.durations import format_duration, parse_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS, build
from workers.runtime.errors import SettingsError
from workers.settings.files import read_file
from workers.settings.settings import Settings, settings_of

COMBINATIONS_MAX = 1_000
# These do not affect measurements.
UNMEASURED = ("name", "topic", "generation", "split", "label", "unit")
# These decide what is counted, so runs that differ in them have no common truth.
COUNTED = ("keys", "key", "items", "count", "where")
# Mutually exclusive settings: a value for one replaces the file's value for another.
ONE_OF = (
    frozenset(("epsilon", "rho")),
    frozenset(("domain", "domain_file", "buckets")),
)
DOMAIN_SHOWN = 20

#: Values of one histogram as written, one for each varied setting, in the order of these.
Texts = tuple[str, ...]


class Value(NamedTuple):
    """One value of a `--vary`: as written, and parsed as TOML."""

    text: str
    value: object


@dataclass(frozen=True, slots=True)
class Combination:
    """One choice of settings for one histogram, as if it were the worker's only histogram.

    `run` is its number, from 1. `varied` holds the values as text by "<histogram>.<setting>"; None:
    the mechanism has no such setting.
    """

    run: int
    settings: Settings
    mechanism: Mechanism
    varied: Mapping[str, str | None]

    @property
    def config(self) -> HistogramConfig:
        return self.settings.histograms[0]

    @property
    def discovers(self) -> bool:
        """Return whether the mechanism shows running counts of undeclared items.

        Both families do so while an epoch runs: "running" at every tick, while "labels" names the
        largest at chosen ticks.
        """
        running = self.config.about.family in ("running", "labels")
        return running and not self.mechanism.domain()


class Run(NamedTuple):
    """Combination with one seed: 0 has a plain replay's noise, every other seed its own."""

    combination: Combination
    seed: int

    @property
    def number(self) -> int:
        return self.combination.run


def runs_of(combinations: Sequence[Combination], seeds: int) -> list[Run]:
    return [
        Run(combination, seed) for combination in combinations for seed in range(seeds)
    ]


@dataclass(slots=True)
class Grid:
    """Combinations to run, and those left out; `notes` explain how `--vary` was interpreted."""

    combinations: list[Combination] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def reader_settings(self, settings: Settings) -> Settings:
        """Return settings that read events for all combinations.

        They have a histogram for every view (the fields of stream key and items) and set of keys.
        """
        known = {(config.view, config.keys) for config in settings.histograms}
        configs = [*settings.histograms, *(one.config for one in self.combinations)]
        views = {(config.view, config.keys): config for config in configs}
        if views.keys() == known:
            return settings
        # Histograms of one worker need distinct names and topics.
        named = [
            replace(one, name=f"{at}", topic=None)
            for at, one in enumerate(views.values())
        ]
        return replace(settings, histograms=tuple(named))


def make_grid(settings: Settings, path: Path, varies: Sequence[str]) -> Grid:
    """Expand `varies`, each "<histogram>.<setting>=<value>,...", into combinations.

    `path` is the file of `settings`. The name of a single histogram may be omitted.
    """
    configs = {config.name: config for config in settings.histograms}
    names = list(configs)
    chosen: dict[str, dict[str, list[Value]]] = {name: {} for name in names}
    for text in varies:
        histogram, setting, values = _parse(text, names)
        if setting in chosen[histogram]:
            raise SettingsError(
                f"--vary {histogram}.{setting}: given twice; give all its values in one list"
            )
        # With epochs, `windows` only add to what snapshots state about their noise.
        if setting == "windows" and not configs[histogram].without_epochs:
            _refuse_unmeasured(f"{histogram}.windows", setting)
        chosen[histogram][setting] = values
    number = sum(math.prod(map(len, of.values())) for of in chosen.values())
    if number > COMBINATIONS_MAX:
        raise SettingsError(
            f"--vary: {number:,} combinations: at most {COMBINATIONS_MAX:,}"
        )
    document = tomllib.loads(read_file(path).decode())
    grid = Grid()
    base = path.absolute().parent
    for name, section in zip(names, document["histogram"], strict=True):
        horizon = section["horizon"]
        only_tick = "tick" in chosen[name] and "horizon" not in chosen[name]
        # A number of ticks becomes a duration; other values do not depend on the tick.
        if only_tick and isinstance(horizon, int):
            section["horizon"] = format_duration(
                parse_duration(section["tick"]) * horizon
            )
            grid.notes.append(
                f"{name}: tick is varied, and horizon = {horizon} is not: every epoch is as long "
                f"as in the settings file, {section['horizon']}, in ticks of its own"
            )
        _Variants(name, section, chosen[name]).add_to(grid, document, base)
    return grid


class _Variants(NamedTuple):
    """A histogram's section of the settings file, and the values to vary, by setting."""

    name: str
    section: Mapping[str, Any]
    chosen: Mapping[str, list[Value]]

    def add_to(self, grid: Grid, document: Mapping[str, Any], base: Path) -> None:
        """Add the combinations of the values, each read like a settings file in `base`.

        `document` is the whole settings file.
        """
        seen: set[tuple[str | None, ...]] = set()
        good: list[Texts] = []
        failed: list[tuple[Texts, str]] = []
        configs: list[HistogramConfig] = []
        for choice in itertools.product(*self.chosen.values()):
            texts = tuple(value.text for value in choice)
            values, varied = self._values(choice)
            # They differ only in what their mechanism does not support.
            if tuple(varied.values()) in seen:
                continue
            seen.add(tuple(varied.values()))
            try:
                settings = settings_of({**document, "histogram": [values]}, base)
                mechanism = build(settings.histograms[0], settings.privacy.unit)
            except (ValueError, SettingsError) as error:
                failed.append((texts, str(error)))
                continue
            good.append(texts)
            config = settings.histograms[0]
            # Texts may differ and mean the same: 1 and 1.0, 60s and 1m.
            if config not in configs:
                configs.append(config)
                made = Combination(
                    len(grid.combinations) + 1, settings, mechanism, varied
                )
                grid.combinations.append(made)
        self._check(good, failed)
        for texts, reason in failed:
            pairs = zip(self.chosen, map(_short, texts), strict=True)
            given = ", ".join(f"{self.name}.{name}={text}" for name, text in pairs)
            grid.left_out.append(f"{given}: {reason}")

    def _values(
        self, choice: Sequence[Value]
    ) -> tuple[dict[str, Any], dict[str, str | None]]:
        """Return the section with a `choice` of values, and these as text, by full name.

        Settings that the mechanism does not support are left out of the first, None in the second.
        """
        varied = dict(zip(self.chosen, choice, strict=True))
        values = dict(self.section)
        for name, (_, value) in varied.items():
            # A value for epsilon replaces the file's rho, unless both are varied.
            for alternatives in ONE_OF:
                if name in alternatives:
                    for alternative in alternatives - varied.keys():
                        values.pop(alternative, None)
            values[name] = value
        # Unless the mechanism is varied, a setting that it lacks stays, and is refused.
        supported = set(values)
        mechanism = str(values.get("mechanism"))
        if "mechanism" in varied and mechanism in MECHANISMS:
            supported = known_settings(mechanism)
        # With some mechanisms the value of another setting, `decides`, says whether labels are
        # listed. If that is varied, drop the list for the values without one.
        config = MECHANISMS.get(mechanism)
        decides = "" if config is None else config.decides_domain
        may_differ = not varied.keys().isdisjoint(("mechanism", decides))
        if config and decides and may_differ and not config.lists_labels(values):
            supported -= {"domain", "domain_file", "buckets", "quantiles"}
        texts = {
            f"{self.name}.{name}": value.text if name in supported else None
            for name, value in varied.items()
        }
        values = {name: value for name, value in values.items() if name in supported}
        return values, texts

    def _check(
        self, good: Sequence[Texts], failed: Sequence[tuple[Texts, str]]
    ) -> None:
        """Refuse a value that is in no `good` combination, for the reason that one `failed`.

        Several values may be in none because of one of them, so look first at the settings that the
        reasons name.
        """
        named = {
            name: any(_blames(reason, name) for _, reason in failed)
            for name in self.chosen
        }
        by_place = sorted(enumerate(self.chosen), key=lambda pair: not named[pair[1]])
        for place, name in by_place:
            for text, _ in self.chosen[name]:
                reasons = [reason for texts, reason in failed if texts[place] == text]
                if reasons and not any(texts[place] == text for texts in good):
                    raise SettingsError(
                        f"--vary {self.name}.{name}={_short(text)}: {reasons[0]}"
                    )


def _blames(reason: str, setting: str) -> bool:
    """Return whether the message of a failed check names a setting as the one that is wrong."""
    # The message on a duration that the tick does not divide names only the duration.
    of_tick = setting == "tick" and "number of ticks of" in reason
    return of_tick or f"{setting} = " in reason or f"{setting}: " in reason


def known_settings(mechanism: str) -> set[str]:
    """Return the settings that a mechanism accepts in a settings file.

    Every mechanism's configuration has some fields that only a few mechanisms accept.
    `domain_file`, `buckets` and `quantiles` are other ways to declare labels, so they go with
    `domain`.
    """
    names = {rule.name for rule in rules(MECHANISMS[mechanism])} | {"mechanism"}
    if not MECHANISMS[mechanism].about.takes_end_share:
        names.discard("end_share")
    return (
        names | {"domain_file"}
        if "domain" in names
        else names - {"buckets", "quantiles"}
    )


def settings_text(config: HistogramConfig) -> str:
    """Return a histogram's settings as JSON, for the results and the section that a report shows.

    A long domain is replaced by its number of labels; what is not measured is left out.
    """
    texts: dict[str, object] = {"mechanism": config.mechanism}
    in_buckets = config.buckets is not None
    for rule in rules(type(config)):
        value = getattr(config, rule.attribute)
        if value is None or rule.name in ("split", "label", "unit"):
            continue
        if rule.name == "windows":
            if config.without_epochs:
                texts["windows"] = list(map(format_duration, value))
        # The domain of buckets is their labels: state the quantiles instead, with their default.
        elif rule.name == "domain" and in_buckets:
            if config.has_quantiles:
                texts["quantiles"] = config.shown_quantiles
        elif rule.name == "quantiles" and in_buckets:
            pass
        elif rule.name == "domain" and len(value) > DOMAIN_SHOWN:
            texts["domain_labels"] = len(value)
        elif rule.name == "sum":
            # A Decimal would become a text.
            fields = (
                (field, getattr(value, field.name)) for field in structs.fields(value)
            )
            texts["sum"] = {
                field.encode_name: float(part) if isinstance(part, Decimal) else part
                for field, part in fields
            }
        elif rule.name == "buckets":
            texts["buckets"] = value.edges
        else:
            texts[rule.name] = format_duration(value) if rule.duration else value
    return msgspec.json.encode(texts).decode()


def _parse(text: str, histograms: Sequence[str]) -> tuple[str, str, list[Value]]:
    """Parse one `--vary` into histogram, setting and values; refuse what cannot be varied."""
    name, equals, values = text.partition("=")
    histogram, dot, setting = name.strip().rpartition(".")
    shown = _short(name)
    if not equals or not setting:
        raise SettingsError(
            f"--vary {_short(text)}: must be HISTOGRAM.SETTING=VALUE,VALUE,... such as {histograms[0]}.epsilon=0.5,1,2"
        )
    if not dot:
        if len(histograms) > 1:
            names = ", ".join(f"{one}.{setting}" for one in histograms)
            raise SettingsError(f"--vary {shown}: of which histogram? One of {names}")
        histogram = histograms[0]
    if histogram not in histograms:
        hint = _hint(histogram, histograms)
        raise SettingsError(f"--vary {shown}: no histogram {histogram!r}: {hint}")
    if setting in UNMEASURED:
        _refuse_unmeasured(shown, setting)
    if setting in COUNTED:
        raise SettingsError(
            f"--vary {shown}: {setting} cannot be varied: it decides what is counted, and "
            "runs that count different things cannot be compared; write a [[histogram]] for each"
        )
    known = sorted(
        set().union(*map(known_settings, MECHANISMS)) - {*UNMEASURED, *COUNTED}
    )
    if setting not in known:
        raise SettingsError(f"--vary {shown}: unknown setting; {_hint(setting, known)}")
    parts = list(dict.fromkeys(_split(values)))
    if "" in parts:
        raise SettingsError(
            f"--vary {_short(text)}: a value is missing: write VALUE,VALUE,... without spaces"
        )
    return histogram, setting, [Value(part, _toml(part)) for part in parts]


def _refuse_unmeasured(shown: str, setting: str) -> NoReturn:
    raise SettingsError(
        f"--vary {shown}: {setting} cannot be varied: it changes nothing that is measured"
    )


def _split(text: str) -> list[str]:
    """Split at the commas that are outside quotes, brackets and braces."""
    parts = [""]
    quote = ""
    depth = 0
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _toml(text: str) -> object:
    """Parse a value as TOML; text that is no TOML value is taken as a string without quotes."""
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A text with a line break may hold further settings.
    return found["value"] if len(found) == 1 else text


def _hint(name: str, known: Sequence[str]) -> str:
    """Return the end of an error about an unknown name: a similar one, or all that exist."""
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"one of {', '.join(known)}"


def _short(text: str) -> str:
    """Return a text for an error message, escaped and cut if it is long or unprintable."""
    return display(text)[1:-1] if not text.isprintable() or len(text) > 80 else text
