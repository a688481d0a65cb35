"""Render pages: one HTML file that needs no network and runs no script but its own.

Templates (`templates/`) escape their values; control characters become visible. The only script, if
any, copies settings. The page's policy allows it by its hash, so nothing else runs, no matter what
the labels hold; without scripts the page only lacks the button. Charts use the page's colours,
which follow the reader's light or dark setting. Also here: a run's settings as a section of a
settings file, and the privacy promise in words and as a table of one person's loss.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from workers.mechanisms.accounting import PrivacyCost
from workers.privacy.model import Span
from workers.privacy.phrasing import counted, measures, verdict
from workers.privacy.total import NUMERICAL, Charge, loss_table, spans_of, stated_cost
from workers.replay.backtest.results import Outcome
from workers.replay.report.charts import BAND, COLORS, INK, MUTED, PALE, WARNING, Chart


def sentences(epsilon: float | None, delta: float, unit: str, sees: str) -> list[str]:
    """Describe the promise in sentences; `sees` is what an observer sees, as in "all snapshots"."""
    said = f"Whoever keeps {sees} and knows all else {verdict(epsilon, delta, counted(unit))}"
    return [said, *measures(epsilon, delta)]


def table_of(spans: Sequence[Span], unit: str) -> Table:
    """Return one person's privacy loss as a table: a row by number of events, a column by span."""
    headings, rows = loss_table(spans, unit)
    return Table(headings, rows, words=())


def spans_of_run(run: Outcome) -> tuple[Span, ...]:
    """Return one person's privacy loss from a run's histogram alone.

    The results have totals only, so the cost for `spans_of` is rebuilt from these.
    """
    row = run.row
    settings = run.settings
    if settings.get("accounting") == "pure" or settings.get("release") == "pure":
        # All of delta is for errors of the sampler.
        failures = ((NUMERICAL, row.delta),)
        cost = PrivacyCost(
            row.rho, row.epsilon, row.delta, failures=failures, pure=True
        )
    else:
        # The part of rho that choosing bounds from a sample cost, once for all epochs.
        sample_rho = float(settings.get("bounds_rho") or 0)
        cost = stated_cost(row.mechanism, row.rho, row.epsilon, row.delta, sample_rho)
    return spans_of([Charge(cost, run.epoch_ms, charged_once=run.without_epochs)])


LABEL_LETTERS = 160
#: CSS colours of the page by chart colour (`charts`), as in style.css.
_NAMED = {"#FFFFFF": "paper", INK: "ink", MUTED: "muted", PALE: "line", BAND: "band"}
_NAMED |= {WARNING: "alarm"} | {color: f"series-{i}" for i, color in enumerate(COLORS)}
PAGE_COLORS = MappingProxyType(
    {color.lower(): f"var(--{_NAMED[color]})" for color in _NAMED}
)


class Table(NamedTuple):
    """Table of a page: the columns in `words`, by index, hold words, the others numbers.

    `kinds` are the CSS classes of each row.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    words: Sequence[int] = (0,)
    kinds: Sequence[str] = ()


def page(template: str, *, script: str | None = None, **content: object) -> bytes:
    """Render a template with its `content`; `script` names the only script that the page may run.

    The template states its text and, in the page's policy, its hash.
    """
    if script is not None:
        text, _, _ = _LOADER.get_source(_TEMPLATES, script)
        digest = b64encode(sha256(text.encode()).digest()).decode()
        content["script"] = {"text": Markup(text), "hash": f"sha256-{digest}"}
    return _TEMPLATES.get_template(template).render({"script": None} | content).encode()


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
        # Without a size: the page scales it.
        (r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', begin),
        (r"<!--.*?-->", ""),
        # A style would apply to the whole page; the round joins of this one are set below.
        (r'<style type="text/css">.*?</style>', ""),
        # Ids, and references to them.
        (r'(\bid="|href="#|url\(#)', rf"\g<1>{chart.name}-"),
    ):
        svg = re.sub(pattern, instead, svg, flags=re.DOTALL)
    # Colours of the page, which follow light or dark.
    svg = re.sub(
        r"(?<=: )#[0-9a-f]{6}\b", lambda at: PAGE_COLORS.get(at[0], at[0]), svg
    )
    return Markup(svg.replace("<g ", '<g stroke-linejoin="round" ', 1))


def _escaped(value: object) -> Markup:
    """Escape a value for HTML; letters that hide or reverse text become visible codes.

    Soft hyphens stay: headings have them, to break long words.
    """
    # It is HTML already.
    if isinstance(value, Markup):
        return value
    text = "" if value is None else str(value)
    shown = (
        f"\\u{ord(letter):04x}"
        if _is_hidden(letter) and letter != _SOFT_HYPHEN
        else letter
        for letter in text
    )
    return Markup(html.escape("".join(shown)))


_SOFT_HYPHEN = "\u00ad"
# Zero-width characters that belong to letters of some scripts and to emoji.
_JOINERS = "\u200c\u200d"


def _is_hidden(letter: str) -> bool:
    """Return whether a letter may hide or reverse text."""
    hides = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return hides and letter not in _JOINERS


_LOADER = PackageLoader("workers.replay.report")
_TEMPLATES = Environment(
    loader=_LOADER,
    autoescape=True,
    finalize=_escaped,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"inline": inline, "label": label}


# Written first, in reading order; the others follow.
_TIMES = "name", "mechanism", "tick", "horizon", "start"
_FIRST = (
    *_TIMES,
    "max_items",
    "max_count",
    "max_items_per_user",
    "epsilon",
    "rho",
    "delta",
)


def histogram_section(run: Outcome) -> list[str]:
    """Return a run's settings as the [[histogram]] lines of a settings file.

    The results hold only the number of labels of a long domain: a comment stands for it.
    """
    settings = dict(run.settings)
    settings.setdefault("name", run.row.configured)
    labels = settings.pop("domain_labels", None)
    lines = ["[[histogram]]"]
    for name in (
        name for name in dict.fromkeys((*_FIRST, *settings)) if name in settings
    ):
        # a time has no quotes in TOML
        bare = name == "start" and isinstance(settings[name], str)
        lines.append(
            f"{name} = {settings[name] if bare else toml_value(settings[name])}"
        )
    if labels is not None:
        lines.append(
            f"# domain or domain_file: as in your settings file ({labels:,} labels)"
        )
    return lines


def toml_value(value: object) -> str:
    """Return a value as TOML; letters that hide or reverse text become escapes."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return "".join(f"\\U{ord(one):08x}" if _is_hidden(one) else one for one in text)
    if isinstance(value, Mapping):
        pairs = (f"{name} = {toml_value(one)}" for name, one in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value)
