"""Draw the live view with rich, for terminals of 80 x 24 and more.

Private counts are cyan and exact ones red. A bar is solid up to two standard deviations below the
private count, has an error bar from there to two above it, and a red mark at the exact count. Above
are boards, one an airport, with the counts of a window; below a small table, with those since
midnight. Widths are in columns of the terminal, heights in lines; a frame takes two of both, and a
board is padded by one column on either side.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from workers.commands.demo.exact import Board, Row
from workers.commands.demo.generator import DESTINATIONS, ORIGINS

PRIVATE = "bold cyan"
BAR = "cyan"
DOUBT = "bright_cyan"
EXACT = "red"
QUIET = "bright_black"
#: Columns of a count, such as 12,345 or 1.234M.
DIGITS = 6
DIGITS_MIN = 4
# Minimum inner columns for whole words on a board.
WIDE = 28
#: Shorter bars are left out as illegible.
BAR_MIN = 4
#: Lines of the small table: frame and heading, and for each origin private and exact counts.
TABLE_LINES = 3 + 2 * len(ORIGINS)
#: Lines of the boards without which the small table is left out.
BOARD_MIN = 6
PICTURE_SIZE = (120, 34)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything to draw.

    `discovered`, a window, is drawn large, with bars, `declared` as a small table. `simulated` is
    the date of the newest event, `year` how often the data was started, `sent` the events so far,
    `speed` the measured events per second, `now_ms` the wall clock, for the age of the boards.
    """

    boards: Mapping[tuple[str, str], Board]
    discovered: str
    declared: str
    promise: str
    simulated: str
    sent: int
    speed: float
    year: int
    elapsed_s: float
    now_ms: int
    page: str


def render(scene: Scene, console: Console) -> RenderableType:
    """Return the whole view, fitted to the console: the small table only where there is room."""
    width = console.width
    # The last line stays empty: a terminal may scroll after it.
    height = console.height - 1
    date = scene.simulated or "-"
    if scene.year > 1:
        date = f"{scene.simulated} ({ordinal(scene.year)} time)"
    title = Table.grid(expand=True)
    title.add_column(no_wrap=True)
    title.add_column(justify="right", no_wrap=True)
    board = scene.boards.get((scene.discovered, ORIGINS[0]))
    window = "" if board is None else f" of the last {_window(board.window_ms)}"
    what = Text.assemble(("quietcount ", "bold"), f"flights from New York{window}")
    title.add_row(what, Text(date, style="bold"))
    page = _line("in a browser: ", (scene.page, "bold"))
    legend = _line(
        ("▆▆ 123 private", BAR),
        ("   ┝┿┥ ± 2 standard deviations   ", DOUBT),
        ("┃ 123 exact (demo only)", EXACT),
    )
    promise = Text(scene.promise, style="white")
    head: list[RenderableType] = [title, page, _numbers(scene), promise, legend]
    room = height - sum(len(console.render_lines(part, pad=False)) for part in head)
    with_table = room - TABLE_LINES >= BOARD_MIN
    # Without the frame of a board, and a spare line.
    rows = max(1, room - (TABLE_LINES if with_table else 0) - 3)
    grid = Table.grid(expand=True)
    for _ in ORIGINS:
        grid.add_column(ratio=1)
    # Without frame and padding.
    inner = width // len(ORIGINS) - 4
    grid.add_row(*(_board(scene, key, inner, rows) for key in ORIGINS))
    return Group(*head, grid, *([_small_table(scene, width)] if with_table else []))


def picture(scene: Scene, path: Path) -> None:
    """Write the view as an SVG file; docs/demo.svg was made by it."""
    width, height = PICTURE_SIZE
    console = Console(
        file=io.StringIO(),
        record=True,
        color_system="truecolor",
        width=width,
        height=height,
        force_terminal=True,
        legacy_windows=False,
    )
    console.print(render(scene, console))
    svg = console.export_svg(
        title="quietcount demo", theme=_THEME, code_format=_SVG.read_text()
    )
    lines = (line.rstrip() for line in svg.splitlines())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compact(count: int) -> str:
    """Format a count in at most `DIGITS` columns up to 999 billion: 12,345, 123.4k, 1.234M."""
    # A minus sign takes a column, too.
    if -10_000 < count < 100_000:
        return f"{count:,}"
    size = count / 1_000
    unit = "k"
    for larger in "MG":
        # From here on four digits would round up to 1000 of this unit.
        if abs(size) < 999.95:
            break
        size = size / 1_000
        unit = larger
    return f"{size:.4g}{unit}"


def bar(row: Row, sd: float, largest: float, width: int) -> Text:
    """Return the private count as a bar with error bars of 2 sd and a mark at the exact count.

    `largest` is the count at the right edge, `width` in columns.
    """
    per_cell = max(largest, 1.0) / width
    values = (row.private - 2 * sd, row.private, row.private + 2 * sd, row.exact)
    # Columns of these values.
    low, count, high, exact = (
        min(max(int(value / per_cell), 0), width - 1) for value in values
    )
    cells = [(" ", "")] * width
    # How many columns are solid: all where the error bar lies within one column.
    solid = high + 1 if low == high else low
    cells[:solid] = [("▆", BAR)] * solid
    # Later ones win where two are in one column.
    marks = {count: "┿", high: "┥", low: "┝"}
    for i in range(solid, high + 1):
        cells[i] = (marks.get(i, "━"), DOUBT)
    cells[exact] = ("┃", f"bold {EXACT}")
    return Text.assemble(*cells)


def ordinal(number: int) -> str:
    endings = {} if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{endings.get(number % 10, 'th')}"


def _window(window_ms: int | None) -> str:
    """Return a window's length in words, as in "the last minute"."""
    return {None: "", 60_000: "minute"}.get(window_ms, f"{(window_ms or 0) // 1000} s")


def _line(*parts: str | tuple[str, str], style: str = "") -> Text:
    return Text.assemble(*parts, style=style, no_wrap=True, overflow="ellipsis")


def _numbers(scene: Scene) -> Text:
    """Return a line with the events sent, their speed, the time, and the age of the boards."""
    boards = scene.boards.items()
    ends = [board.end_ms for (name, _), board in boards if name == scene.discovered]
    minutes, seconds = divmod(int(scene.elapsed_s), 60)
    parts = [
        f"{scene.sent:,} events",
        f"{scene.speed:,.0f}/s",
        f"{minutes}:{seconds:02}",
    ]
    if ends:
        parts.append(f"{max(0, scene.now_ms - min(ends)) / 1000:.1f} s old")
    else:
        parts.append("the worker starts ...")
    return _line(" · ".join(parts), style=QUIET)


def _board(scene: Scene, key: str, inner: int, rows: int) -> Panel:
    """Draw one airport's window: bars of private counts, with the exact ones beside them.

    `key` is the airport, `scene.discovered` the name of the window; `inner` is its width in
    columns, `rows` how many items fit.
    """
    board = scene.boards.get((scene.discovered, key))
    shown = [] if board is None else board.rows[:rows]
    body = Table.grid(padding=(0, 1, 0, 0), expand=True)
    title = Text.assemble((f" {key} ", "bold white"))
    subtitle = Text("")
    if board is not None:
        title.append(f"± {2 * board.sd:.0f} ", style=f"not bold {DOUBT}")
        if board.threshold is not None:
            words = "shown above" if inner >= WIDE else "above"
            subtitle.append(f" {words} {board.threshold:,.0f}, ", style="white")
        subtitle.append(f"{board.hidden} hidden ", style=EXACT)
        upper = (max(row.private + 2 * board.sd, row.exact) for row in board.rows)
        largest = max(upper, default=1.0)
        counts = [compact(count) for row in shown for count in (row.private, row.exact)]
        digits = max([DIGITS_MIN, *map(len, counts)])
        # What a label of three letters and two counts leave for the bar, each with a space.
        width = inner - 4 - 2 * (digits + 1)
        for row in shown:
            cells: list[RenderableType] = [Text(row.label[:3].ljust(3))]
            if width >= BAR_MIN:
                cells.append(bar(row, board.sd, largest, width))
            cells.append(Text(compact(row.private).rjust(digits), style=PRIVATE))
            cells.append(Text(compact(row.exact).rjust(digits), style=EXACT))
            body.add_row(*cells)
    if not shown:
        text = "waiting" if board is None else "nothing above the threshold yet"
        body.add_row(Text(text, style=QUIET, no_wrap=True))
    return _panel(body, rows + 2, title, subtitle)


def _panel(
    body: Table, height: int, title: Text, subtitle: Text | None = None
) -> Panel:
    """Return a table in a frame, which is `height` lines high."""
    return Panel(
        body,
        title=title,
        subtitle=subtitle,
        height=height,
        padding=(0, 1),
        box=box.ROUNDED,
        border_style=QUIET,
    )


def _small_table(scene: Scene, width: int) -> Panel:
    """Draw the counts since midnight of the declared destinations, private over exact."""
    table = Table.grid(padding=(0, 1, 0, 0))
    # As many as fit beside frame and padding (4), and the airport with a space (4); each column has
    # a space, too.
    labels = DESTINATIONS[: (width - 4 - 4) // (DIGITS + 1)]
    table.add_row("   ", *(Text(label.rjust(DIGITS), style=QUIET) for label in labels))
    title = Text.assemble((" since midnight UTC, declared destinations ", "bold white"))
    for key in ORIGINS:
        board = scene.boards.get((scene.declared, key))
        rows = {row.label: row for row in board.rows} if board is not None else {}
        private = {label: compact(row.private) for label, row in rows.items()}
        exact = {label: compact(row.exact) for label, row in rows.items()}
        for name, counts, style in ((key, private, PRIVATE), ("", exact, EXACT)):
            cells = (counts.get(label, "-").rjust(DIGITS) for label in labels)
            table.add_row(name, *(Text(cell, style=style) for cell in cells))
    if (first := scene.boards.get((scene.declared, ORIGINS[0]))) is not None:
        title.append(f"± {2 * first.sd:.0f} ", style=f"not bold {DOUBT}")
    return _panel(table, TABLE_LINES, title)


def _colors(text: str) -> list[tuple[int, int, int]]:
    return [(red, green, blue) for red, green, blue in map(bytes.fromhex, text.split())]


_BACKGROUND, _FOREGROUND = _colors("10141c d6deeb")
_THEME = TerminalTheme(
    _BACKGROUND,
    _FOREGROUND,
    _colors("2a303c ff6b6b 7ed385 f0c86e 6ea0fa be8cf0 40b8c8 d6deeb"),
    _colors("7c889c ff8282 96e69b fad782 8cb4ff cda5fa 78dce6 f0f4fa"),
)
#: rich's own SVG format loads a font from the network; this one uses local fonts.
_SVG = Path(__file__).with_name("terminal.svg")
