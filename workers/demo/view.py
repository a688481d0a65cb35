"""The live view: a pure function from a scene to something rich can draw, for terminals of 80 x 24 and more.

Private counts are cyan and exact ones red, everywhere. Each bar is solid up to two standard deviations below the
private count, an error bar from there to two above it, and has a red mark at the exact count.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from workers.demo.boards import Board, Row

PRIVATE = "bold cyan"
BAR = "cyan"
DOUBT = "bright_cyan"
EXACT = "red"
QUIET = "bright_black"
#: Columns of a count, such as 12,345 or 1.234M.
DIGITS = 6
DIGITS_MIN = 4
#: Inner columns from which a board has room for whole words.
WIDE = 28
#: A bar shorter than this says nothing, so it is left out.
BAR_MIN = 4
#: Lines of the small table: head, a line of private and one of exact counts for each origin, borders.
TABLE_EXTRA = 3
PICTURE_SIZE = (120, 34)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that is drawn.

    Attributes:
        boards: the newest one of each (histogram, stream key).
        discovered: histogram drawn large, with bars.
        declared: histogram drawn as a small table.
        keys: stream keys, in the order shown.
        labels: domain of `declared`, in the order shown.
        promise: the guarantee, in words.
        horizon: ticks of an epoch.
        simulated: date of the newest event.
        sent: events so far.
        speed: events a second, as measured.
        year: how often the data was begun.
        elapsed_s: since the start.
        now_ms: wall clock, for the age of what is shown.
        state: what is being waited for, while nothing is shown yet.
        page: address of the dashboard.
    """

    boards: Mapping[tuple[str, str], Board]
    discovered: str
    declared: str
    keys: Sequence[str]
    labels: Sequence[str]
    promise: str
    horizon: int
    simulated: str
    sent: int
    speed: float
    year: int
    elapsed_s: float
    now_ms: int
    state: str
    page: str


def render(scene: Scene, console: Console) -> RenderableType:
    """Draw a scene into the console's width and height."""
    width, height = console.width, console.height - 1
    head = [_title(scene), _page(scene), _numbers(scene), Text(scene.promise, style="white"), _legend()]
    room = height - sum(_lines(console, part) for part in head)
    small = len(scene.keys) * 2 + TABLE_EXTRA
    with_table = room - small >= 6
    rows = max(1, room - (small if with_table else 0) - 3)
    grid = Table.grid(expand=True)
    for _ in scene.keys:
        grid.add_column(ratio=1)
    inner = width // len(scene.keys) - 4
    grid.add_row(*(_board(scene, key, inner, rows) for key in scene.keys))
    parts = [*head, grid]
    if with_table:
        parts.append(_small_table(scene, width))
    return Group(*parts)


def picture(scene: Scene, path: Path) -> None:
    """Write the view as an SVG file: how docs/demo.svg was made (`quietcount demo --picture docs/demo.svg`)."""
    width, height = PICTURE_SIZE
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(render(scene, console))
    svg = console.export_svg(title="quietcount demo", theme=_THEME, code_format=_SVG)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


def compact(count: int) -> str:
    """Return a count in at most `DIGITS` columns up to 999 billion: 12,345, 123.4k, 1.234M."""
    if -10_000 < count < 100_000:
        return f"{count:,}"
    size, unit = count / 1_000, "k"
    for larger in "MG":
        if abs(size) < 999.95:
            break
        size, unit = size / 1_000, larger
    return f"{size:.4g}{unit}"


def bar(row: Row, sd: float, largest: float, width: int) -> Text:
    """Return the private count as a bar that ends in an error bar of 2 sd to both sides, and a red mark at the exact count.

    Args:
        row: the counts.
        sd: standard deviation of the private one.
        largest: the count at the right edge.
        width: columns.
    """
    per_cell = max(largest, 1.0) / width
    cells = [" "] * width
    styles = [""] * width
    low, count, high = (
        _cell(value, per_cell, width) for value in (row.private - 2 * sd, row.private, row.private + 2 * sd)
    )
    for i in range(width):
        if i < low or i == low == high:
            cells[i], styles[i] = "▆", BAR
        elif i <= high:
            cells[i], styles[i] = "┝" if i == low else "┥" if i == high else "┿" if i == count else "━", DOUBT
    mark = _cell(row.exact, per_cell, width)
    cells[mark], styles[mark] = "┃", f"bold {EXACT}"
    return Text.assemble(*zip(cells, styles, strict=True))


def _cell(value: float, per_cell: float, width: int) -> int:
    return min(max(int(value / per_cell), 0), width - 1)


def _title(scene: Scene) -> RenderableType:
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    what = Text.assemble(("quietcount ", "bold"), ("flights from New York, live and private", ""))
    grid.add_row(what, Text(_date(scene), style="bold"))
    return grid


def _page(scene: Scene) -> Text:
    return Text.assemble(("in a browser: ", ""), (scene.page, "bold"), no_wrap=True, overflow="ellipsis")


def _date(scene: Scene) -> str:
    return f"{scene.simulated} ({ordinal(scene.year)} time)" if scene.year > 1 else scene.simulated or "-"


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th, ..."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _numbers(scene: Scene) -> Text:
    newest = [board for (histogram, _), board in scene.boards.items() if histogram == scene.discovered]
    parts = [
        f"{scene.sent:,} events",
        f"{scene.speed:,.0f}/s",
        f"{int(scene.elapsed_s) // 60}:{int(scene.elapsed_s) % 60:02}",
    ]
    if newest:
        oldest = min(newest, key=lambda board: board.end_ms)
        parts += [
            f"tick {oldest.tick:,} of {scene.horizon:,}",
            f"{max(0, scene.now_ms - oldest.end_ms) / 1000:.1f} s old",
        ]
    else:
        parts.append(scene.state)
    return Text(" · ".join(parts), style=QUIET, no_wrap=True, overflow="ellipsis")


def _legend() -> Text:
    return Text.assemble(
        ("▆▆ 123 private", BAR),
        "   ",
        ("┝┿┥ ± 2 standard deviations", DOUBT),
        "   ",
        ("┃ 123 exact (demo only)", EXACT),
        no_wrap=True,
        overflow="ellipsis",
    )


def _board(scene: Scene, key: str, inner: int, rows: int) -> Panel:
    board = scene.boards.get((scene.discovered, key))
    body = Table.grid(padding=(0, 1, 0, 0), expand=True)
    title, subtitle, lines = Text.assemble((f" {key} ", "bold white")), Text(""), 0
    if board is not None:
        title.append(f"± {2 * board.sd:.0f} ", style=f"not bold {DOUBT}")
        if board.threshold is not None:
            words = "shown above" if inner >= WIDE else "above"
            subtitle.append(f" {words} {board.threshold:,.0f}, ", style="white")
        subtitle.append(f"{board.hidden} hidden ", style=EXACT)
        largest = max((max(row.private + 2 * board.sd, row.exact) for row in board.rows), default=1.0)
        digits = max(
            (len(compact(count)) for row in board.rows[:rows] for count in (row.private, row.exact)), default=0
        )
        digits = max(DIGITS_MIN, digits)
        width = inner - 4 - 2 * (digits + 1)
        for row in board.rows[:rows]:
            cells: list[RenderableType] = [Text(row.label[:3].ljust(3))]
            if width >= BAR_MIN:
                cells.append(bar(row, board.sd, largest, width))
            cells.append(Text(compact(row.private).rjust(digits), style=PRIVATE))
            cells.append(Text(compact(row.exact).rjust(digits), style=EXACT))
            body.add_row(*cells)
            lines += 1
    if not lines:
        body.add_row(
            Text("nothing above the threshold yet" if board is not None else "waiting", style=QUIET, no_wrap=True)
        )
    return Panel(
        body, title=title, subtitle=subtitle, height=rows + 2, padding=(0, 1), box=box.ROUNDED, border_style=QUIET
    )


def _small_table(scene: Scene, width: int) -> Panel:
    table = Table.grid(padding=(0, 1, 0, 0))
    labels = scene.labels[: (width - 4 - 4) // (DIGITS + 1)]
    table.add_row("   ", *(Text(label.rjust(DIGITS), style=QUIET) for label in labels))
    title = Text.assemble((" declared destinations, all shown ", "bold white"))
    for key in scene.keys:
        board = scene.boards.get((scene.declared, key))
        rows = {row.label: row for row in board.rows} if board is not None else {}
        table.add_row(key, *(Text(_count(rows.get(label), exact=False), style=PRIVATE) for label in labels))
        table.add_row("", *(Text(_count(rows.get(label), exact=True), style=EXACT) for label in labels))
    if (any_board := scene.boards.get((scene.declared, scene.keys[0]))) is not None:
        title.append(f"± {2 * any_board.sd:.0f} ", style=f"not bold {DOUBT}")
    return Panel(
        table,
        title=title,
        padding=(0, 1),
        box=box.ROUNDED,
        border_style=QUIET,
        height=len(scene.keys) * 2 + TABLE_EXTRA,
    )


def _count(row: Row | None, *, exact: bool) -> str:
    return ("-" if row is None else compact(row.exact if exact else row.private)).rjust(DIGITS)


def _lines(console: Console, part: RenderableType) -> int:
    return len(console.render_lines(part, pad=False))


_THEME = TerminalTheme(
    (16, 20, 28),
    (214, 222, 235),
    [
        (42, 48, 60),
        (255, 107, 107),
        (126, 211, 133),
        (240, 200, 110),
        (110, 160, 250),
        (190, 140, 240),
        (64, 184, 200),
        (214, 222, 235),
    ],
    [
        (124, 136, 156),
        (255, 130, 130),
        (150, 230, 155),
        (250, 215, 130),
        (140, 180, 255),
        (205, 165, 250),
        (120, 220, 230),
        (240, 244, 250),
    ],
)
#: rich's own SVG format loads a font from the network; this one takes what the reader's machine has.
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
