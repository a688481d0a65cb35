"""Render pages: one HTML file that needs no network and runs no script but its own.

Templates are in `templates/`. Their output is escaped; control characters become visible. The only
script, if any, copies settings. The page's policy allows it by its hash, so nothing else runs, no
matter what the labels hold; without scripts the page only lacks the button. Charts use the page's
colours, which follow the reader's light or dark setting.

Also here: a run's settings as a section of a settings file, and the privacy promise of settings,
in words and as the table of one person's loss.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from workers.privacy.phrasing import measures, verdict
from workers.privacy.plan.model import Span
from workers.privacy.total import NUMERICAL, Charge, PrivacyCost, rows_of, spans_of, stated
from workers.replay.backtest.results import Outcome
from workers.replay.report.charts import BAND, COLORS, INK, MUTED, PALE, WARNING, Chart


def sentences(epsilon: float | None, delta: float, unit: str, sees: str) -> list[str]:
    """Describe the promise; `sees` is the observer's view, as in "all snapshots"."""
    whether = (
        "any one event was counted" if unit == "event" else "any one user is among those counted"
    )
    return [
        f"Whoever sees {sees}, keeps it and knows all else {verdict(epsilon, delta, whether)}",
        *measures(epsilon, delta),
    ]


def table_of(spans: Sequence[Span], unit: str) -> Table:
    headings, rows = rows_of(spans, unit)
    return Table(headings, rows, words=())


def spans_of_run(run: Outcome) -> tuple[Span, ...]:
    """Return one person's privacy loss from a run's histogram alone."""
    return spans_of([Charge(_part(run), run.epoch_ms)])


def _part(run: Outcome) -> PrivacyCost:
    row, settings = run.row, run.settings
    if settings.get("accounting") == "pure" or settings.get("release") == "pure":
        return PrivacyCost(
            rho=row.rho,
            epsilon=row.epsilon,
            delta=row.delta,
            failures={NUMERICAL: row.delta},
            pure=True,
        )
    return stated(row.mechanism, row.rho, row.epsilon, row.delta)


LABEL_LETTERS = 160
#: CSS colours of the page by chart colour (`charts`), as in style.css.
PAGE_COLORS = MappingProxyType(
    {
        "#ffffff": "paper",
        INK.lower(): "ink",
        MUTED.lower(): "muted",
        PALE.lower(): "line",
        BAND.lower(): "band",
        WARNING.lower(): "alarm",
        **{color.lower(): f"series-{i}" for i, color in enumerate(COLORS)},
    }
)


class Table(NamedTuple):
    """Table of a page; a cell None is empty.

    `words` are the text columns; the others hold numbers. `kinds` are CSS classes by row.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    words: Sequence[int] = (0,)
    kinds: Sequence[str] = ()


class Script(NamedTuple):
    text: Markup
    hash: str


def page(template: str, *, script: str | None = None, **content: object) -> bytes:
    return (
        _TEMPLATES.get_template(template)
        .render(content, script=None if script is None else _script(script))
        .encode()
    )


def _script(name: str) -> Script:
    text, _, _ = PackageLoader("workers.replay.report").get_source(_TEMPLATES, name)
    return Script(Markup(text), f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}")


def label(text: str, letters: int = LABEL_LETTERS) -> Markup:
    """Return an event's label: bidirectionally isolated, truncated, never invisible."""
    cut = text if len(text) <= letters else f"{text[:letters]}… ({len(text):,} letters)"
    return Markup("<bdi>{}</bdi>").format(_escaped(cut if cut.strip() else f'"{cut}"'))


def inline(chart: Chart) -> Markup:
    """Return the SVG without file-only parts, with ids unique among all charts."""
    svg = chart.svg.decode()
    svg = svg[svg.index("<svg") :]
    begin = rf'<svg role="img" aria-label="{_escaped(chart.title)}" \1>'
    for pattern, instead in (
        (r"<metadata>.*?</metadata>", ""),
        (r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', begin),
        (r"<!--.*?-->", ""),
        (r'<style type="text/css">.*?</style>', ""),
        (r'(\bid="|href="#|url\(#)', rf"\g<1>{chart.name}-"),
    ):
        svg = re.sub(pattern, instead, svg, flags=re.DOTALL)
    svg = re.sub(r"(?<=: )#[0-9a-f]{6}\b", _page_color, svg)
    return Markup(svg.replace("<g ", '<g stroke-linejoin="round" ', 1))


def _page_color(found: re.Match[str]) -> str:
    name = PAGE_COLORS.get(found[0])
    return found[0] if name is None else f"var(--{name})"


def _escaped(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    return Markup(html.escape("".join(map(_visible, "" if value is None else str(value)))))


def _visible(letter: str) -> str:
    kind = unicodedata.category(letter)
    # Joiners belong to letters and emoji; other format characters would hide or reverse text.
    hidden = kind in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in "\u200c\u200d\u00ad"
    return f"\\u{ord(letter):04x}" if hidden else letter


_TEMPLATES = Environment(
    loader=PackageLoader("workers.replay.report"),
    autoescape=True,
    finalize=_escaped,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"inline": inline, "label": label}


# Written first, in reading order; the others follow.
_FIRST = (
    "name",
    "mechanism",
    "tick",
    "horizon",
    "start",
    "max_items",
    "max_count",
    "max_items_per_user",
    "epsilon",
    "rho",
    "delta",
)
# Joiners belong to letters and emoji; other invisible characters are escaped.
_JOINERS = "\u200c\u200d"
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def histogram_section(run: Outcome) -> list[str]:
    """Return the lines of the [[histogram]] with the settings of a run.

    A long domain is not in the results: a comment says to take it from the file.
    """
    settings = dict(run.settings)
    settings.setdefault("name", run.row.histogram)
    labels = settings.pop("domain_labels", None)
    lines = ["[[histogram]]"]
    for name in (
        *(name for name in _FIRST if name in settings),
        *(name for name in settings if name not in _FIRST),
    ):
        bare = name == "start" and isinstance(settings[name], str)  # a time has no quotes in TOML
        lines.append(f"{name} = {settings[name] if bare else toml_value(settings[name])}")
    if labels is not None:
        lines.append(f"# domain or domain_file: as in your settings file ({labels:,} labels)")
    return lines


def toml_value(value: object) -> str:
    if isinstance(value, str):
        return _escaped_toml(json.dumps(value, ensure_ascii=False))
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value))} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value)


def _pairs(table: Mapping[str, object]) -> Iterator[str]:
    return (f"{name} = {toml_value(value)}" for name, value in table.items())


def _escaped_toml(text: str) -> str:
    """Return a quoted text with invisible characters escaped as in TOML."""
    return "".join(
        f"\\U{ord(letter):08x}"
        if unicodedata.category(letter) in _INVISIBLE and letter not in _JOINERS
        else letter
        for letter in text
    )
