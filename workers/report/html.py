"""A page of a report: one file of HTML that needs no network and no script, whatever the labels in it hold."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.report.charts import Chart

LABEL_LETTERS = 160
STYLE = """
:root { color-scheme: light; --ink: #1a1a1a; --muted: #5f5f5f; --line: #d9d9d9; --warn: #a63a00; --pale: #f4f6f8; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 1.2rem 1.2rem 4rem; }
.contains { background: var(--warn); color: #fff; font-weight: 600; text-align: center; padding: .35rem 1rem;
  position: sticky; top: 0; z-index: 1; }
.plain .contains { background: #e9edf1; color: var(--ink); font-weight: 400; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1.2rem 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .5rem; padding-top: .8rem; border-top: 2px solid var(--ink); overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p, ul { margin: .4rem 0 .8rem; max-width: 46rem; }
.lead { color: var(--muted); }
.advice { background: var(--pale); border-left: 4px solid #0072b2; padding: .7rem 1rem; margin: .8rem 0 1.2rem; }
.advice p { margin: .3rem 0; }
.alarm { background: #fdf0e9; border-left: 4px solid var(--warn); padding: .7rem 1rem; margin: .8rem 0; }
figure { margin: 1.6rem 0 2.2rem; }
.picture { overflow-x: auto; }
.picture svg { display: block; width: 100%; max-width: 883px; min-width: 660px; height: auto; }
figcaption { color: var(--muted); font-size: .92rem; max-width: 46rem; margin-top: .3rem; }
.table { overflow-x: auto; margin: .6rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem .28rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; border-bottom-color: var(--ink); line-height: 1.25; }
.n { text-align: right; }
td { white-space: nowrap; }
td.words { white-space: normal; overflow-wrap: break-word; max-width: 34rem; }
.side table { font-size: .82rem; }
.side td.words { width: 7.2rem; max-width: 11rem; }
.side th, .side td { padding-right: .5rem; }
tr.chosen td { background: #e8f1f8; font-weight: 600; }
tr.front td:first-child { box-shadow: inset 3px 0 0 #0072b2; padding-left: .5rem; }
td:first-child, th:first-child { padding-left: .5rem; }
.side { display: flex; flex-wrap: wrap; gap: 0 1.4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: .6rem 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .88rem/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre { background: var(--pale); padding: .6rem .8rem; overflow-x: auto; }
@media (max-width: 600px) { main { padding: .8rem .8rem 3rem; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; } }
@media print {
  .contains { position: fixed; left: 0; right: 0; top: 0; background: #fff; color: var(--warn); }
  main { padding-top: 2.2rem; }
  figure, .advice, tr { break-inside: avoid; }
  .picture svg { min-width: 0; }
  .table, .picture { overflow: visible; }
  table, .side table { font-size: .62rem; }
  th, td, .side th, .side td { padding-right: .35rem; }
}
"""


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already; everything else is escaped."""

    text: str


Cell = str | Html | float | int | None


def page(title: str, contains: str, parts: Iterable[Html], *, exact: bool) -> bytes:
    """The whole file.

    Args:
        title: of the page.
        contains: said at its top, and at the top of each printed page.
        parts: of its body.
        exact: whether that is a warning.
    """
    body = "\n".join(part.text for part in parts)
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="robots" content="noindex">\n'
        f"<title>{_escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body{"" if exact else " class=plain"}>\n<div class="contains" role="note">{_escape(contains)}</div>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    ).encode()


def element(tag: str, *content: Cell, kind: str = "") -> Html:
    """An element; what is text is escaped."""
    name = f' class="{kind}"' if kind else ""
    return Html(f"<{tag}{name}>{''.join(_cell(one) for one in content)}</{tag}>")


def items(sentences: Iterable[Cell]) -> Html:
    """A list."""
    return element("ul", *(element("li", one) for one in sentences))


def pairs(rows: Iterable[tuple[str, Cell]]) -> Html:
    """Names and what they are."""
    return Html("<dl>" + "".join(f"<dt>{_escape(name)}</dt><dd>{_cell(value)}</dd>" for name, value in rows) + "</dl>")


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], words: Sequence[int] = (0,), kinds: Sequence[str] = ()
) -> Html:
    """A table that scrolls sideways where it is too wide.

    Args:
        headings: of the columns.
        rows: their cells.
        words: the columns that hold text; the others hold numbers.
        kinds: a class for each row.
    """
    head = "".join(f"<th{'' if at in words else ' class=n'}>{_escape(text)}</th>" for at, text in enumerate(headings))
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(
            f'<td class="{"words" if at in words else "n"}">{_cell(cell)}</td>' for at, cell in enumerate(row)
        )
        kind = f' class="{kinds[number]}"' if number < len(kinds) and kinds[number] else ""
        lines.append(f"<tr{kind}>{cells}</tr>")
    return Html(
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def picture(chart: Chart) -> Html:
    """A chart as it stands in a page."""
    return Html(
        f'<figure id="{chart.name}"><div class="picture">{_inline(chart)}</div>'
        f"<figcaption>{_escape(chart.caption)}</figcaption></figure>"
    )


def label(text: str, letters: int = LABEL_LETTERS) -> Html:
    """A label of an event: it keeps its direction of writing to itself, shows what is invisible, and is not too long."""
    cut = text if len(text) <= letters else f"{text[:letters]}… ({len(text):,} letters)"
    cut = cut if cut.strip() else f'"{cut}"'
    return Html(f"<bdi>{_escape(cut)}</bdi>")


def _cell(value: Cell) -> str:
    if isinstance(value, Html):
        return value.text
    return "" if value is None else _escape(str(value))


def _escape(text: str) -> str:
    """Escaped; control characters, among them those that turn the direction of writing, become visible."""
    return html.escape("".join(_visible(letter) for letter in text))


def _visible(letter: str) -> str:
    kind = unicodedata.category(letter)
    # Joiners belong to letters and emoji; other format characters would hide or turn what follows.
    hidden = kind in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in "\u200c\u200d\u00ad"
    return f"\\u{ord(letter):04x}" if hidden else letter


def _inline(chart: Chart) -> str:
    """The SVG without what only a file of its own needs, and with ids that no other picture on the page has."""
    svg = chart.svg.decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg role="img" aria-label="{_escape(chart.title)}" \1>', svg
    )
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{chart.name}-', svg)
    svg = re.sub(r'href="#', f'href="#{chart.name}-', svg)
    return re.sub(r"url\(#", f"url(#{chart.name}-", svg).replace("<g ", '<g stroke-linejoin="round" ', 1)
