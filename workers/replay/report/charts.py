"""Style and output of a report's charts: PNG and SVG, the same bytes every time.

Series differ in colour (Okabe and Ito's palette), marker and dashes. Every chart first states what
data it contains. Labels come from events, so they are never parsed as formulas.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

EXACT_DATA = "Contains exact data: for the operator only"
NO_DATA = "Computed from the settings alone: no data"
INK = "#1A1A1A"
MUTED = "#5F5F5F"
PALE = "#DDDDDD"
BAND = "#E3EAF1"
WARNING = "#A63A00"
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#767676",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = (
    (),
    (5, 2),
    (1, 1.2),
    (7, 2, 2, 2),
    (3, 1),
    (9, 3),
    (4, 1, 1, 1, 1, 1),
    (2, 3),
)
WIDTH = 9.2  # inches; 883 px of a page
STYLES = len(COLORS)
DPI = 150
LINE = 1.6  # points
HEAD = 0.58  # inches, for what a chart contains and its title
LABEL_LETTERS = 34
WHY_LETTERS = 200
RC_PARAMS: Mapping[str, Any] = {
    "svg.hashsalt": "quietcount",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "axes.titlelocation": "left",
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "lines.linewidth": LINE,
    "lines.markersize": 6.5,
    "legend.fontsize": 9.5,
    **dict.fromkeys(("font.size", "axes.titlesize"), 10),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "text.parse_math": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK
    ),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor"), "white"),
}


class Chart(NamedTuple):
    """Chart of a report; `title` is also its text for screen readers."""

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes


#: Short description of a chart, and its drawing function; that returns None if there is no data.
Drawing = tuple[str, Callable[[], Chart | None]]


class Drawn(NamedTuple):
    """Charts of a section, and a line for each that could not be drawn."""

    charts: Sequence[Chart]
    missing: Sequence[str]


def draw_each(drawings: Iterable[Drawing]) -> Drawn:
    """Draw charts; a failure affects only one chart."""
    charts = []
    missing = []
    for title, draw in drawings:
        try:
            chart = draw()
        except Exception as error:  # noqa: BLE001 (the numbers are there without it)
            why = " ".join(str(error).split())[:WHY_LETTERS]
            missing.append(
                f'The picture "{title}" is missing: {type(error).__name__}: {why}'
            )
        else:
            charts += [] if chart is None else [chart]
    return Drawn(charts, missing)


def stroke(color: str, width: float, *dashes: float) -> dict[str, Any]:
    """Return matplotlib's arguments for a line, solid unless `dashes` are given (points)."""
    return {
        "color": color,
        "linewidth": width,
        "linestyle": (0, dashes) if dashes else "-",
    }


def style_of(number: int, **instead: Any) -> dict[str, Any]:
    """Return matplotlib's arguments for the series of this number.

    Series differ in colour, marker and dashes; `instead` has arguments that override these.
    """
    at = number % STYLES
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.7}
    return (
        stroke(COLORS[at], LINE, *DASHES[at]) | {"marker": MARKERS[at]} | edge | instead
    )


@contextmanager
def canvas(
    rows: int, columns: int, height: float, **more: Any
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure `height` inches high and its axes, without the user's matplotlib settings."""
    with matplotlib.style.context(["default", dict(RC_PARAMS)]):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False, **more)


def finish(
    figure: Figure,
    histogram: str,
    kind: str,
    title: str,
    caption: str,
    contains: str = EXACT_DATA,
) -> Chart:
    """Add the title, below a line on what data the chart `contains`, and draw it as SVG and PNG.

    `histogram` and `kind` make the name of its files.
    """
    title = f"{histogram}: {title}"
    width, height = figure.get_size_inches()
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0, 1, 1 - HEAD / height), w_pad=0.06, h_pad=0.06)
    color = WARNING if contains == EXACT_DATA else MUTED
    place: dict[str, Any] = {"x": 0.08 / width, "ha": "left", "va": "top"}
    figure.text(y=1 - 0.07 / height, s=contains, fontsize=8.5, color=color, **place)
    figure.text(y=1 - 0.29 / height, s=title, fontsize=11.5, fontweight="bold", **place)
    svg = io.BytesIO()
    png = io.BytesIO()
    about = {"Date": None, "Creator": None, "Title": f"{title}. {contains}"}
    figure.savefig(svg, format="svg", metadata=about)
    about = {"Software": None, "Title": title, "Description": contains}
    figure.savefig(png, format="png", dpi=DPI, metadata=about)
    return Chart(
        f"{slug(histogram)}-{kind}", title, caption, svg.getvalue(), png.getvalue()
    )


def write_charts(directory: Path, charts: Sequence[Chart]) -> None:
    """Write a report's charts into `directory`, replacing those of an earlier one."""
    directory.mkdir(exist_ok=True)
    for old in (*directory.glob("*.svg"), *directory.glob("*.png")):
        old.unlink()
    for chart in charts:
        (directory / f"{chart.name}.svg").write_bytes(chart.svg)
        (directory / f"{chart.name}.png").write_bytes(chart.png)


def legend_below(
    figure: Figure,
    panels: Sequence[Axes],
    columns: int,
    order: Sequence[str] = (),
    spacing: float | None = 1.6,
) -> None:
    """Draw one legend for all panels below them, in so many `columns`.

    `order` has the labels to show, in their order (empty: all); `spacing` is between columns (None:
    matplotlib's).
    """
    handles: dict[str, Any] = {}
    for panel in panels:
        found, labels = panel.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    names = [name for name in order or handles if name in handles]
    place: Any = {"loc": "outside lower left", "ncols": columns, "borderpad": 0.1}
    figure.legend(
        [handles[name] for name in names], names, columnspacing=spacing, **place
    )


def number(value: float) -> str:
    """Format a finite number, without decimals if it is whole or at least 1,000.

    Any other has three significant digits, or two below 0.001.
    """
    if abs(value) >= 1_000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def log_axis(axis: Any, values: Sequence[float]) -> None:
    """Make an x or y axis logarithmic, with plain numbers: at the values if few, else at 1, 2, 5...

    A chart of a few epsilons then names exactly these.
    """
    low = min(values)
    high = max(values)
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    if len(set(values)) <= 6:
        axis.set_ticks(sorted(set(values)))
    else:
        # Over a wide range there is room for powers of ten only.
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    # A range of a single value would be empty.
    if low == high:
        axis.axes.set(**{f"{axis.axis_name}lim": (low / 2, high * 2)})


def counts_axis(
    axis: Any, most: int = 5, written: Callable[[float], str] = number
) -> None:
    """Label an axis at up to `most` round numbers, formatted by `written`."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))


def share_axis(axis: Any) -> None:
    """Label an axis in percent."""
    counts_axis(axis, 6, lambda value: f"{100 * value:.4g} %" if value >= 0 else "")


def shares_upward(cell: Axes) -> None:
    """Hide all but a small margin below 0 %."""
    low, high = cell.get_ylim()
    cell.set_ylim(max(low, -0.04 * high), high)


def rows_axis(cell: Axes, names: Sequence[str], **more: Any) -> None:
    """Name the rows of a chart, the first at the top."""
    cell.set_yticks(range(len(names)), names, **more)
    cell.set_ylim(len(names) - 0.4, -0.6)


def short_number(value: float) -> str:
    """Format a round number briefly: 20k, 1.5M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else number(value)


def slug(text: str) -> str:
    """Return a text with only letters that any file name may have."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:200]


def drawable(text: str, letters: int = LABEL_LETTERS) -> str:
    """Return a label on one line, no wider than `letters` n's, in letters that the font has.

    Others become U+FFFD, at most two in a row; a label without any letter becomes "".
    """
    one_line = "".join(
        letter if _width(letter) and letter.isprintable() else "\ufffd"
        for letter in " ".join(text.split())
    )
    one_line = re.sub("\ufffd{3,}", "\ufffd\ufffd", one_line) or '""'
    room = letters * _width("n")
    ends = np.cumsum([_width(letter) for letter in one_line])
    if ends[-1] <= room:
        return one_line
    return (
        one_line[: int(np.searchsorted(ends, room - _width("…"), side="right"))] + "…"
    )


@cache
def _width(letter: str) -> int:
    """Return a letter's width in units of the font; 0 if the font lacks it."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    glyph = font.get_char_index(ord(letter))
    return int(font.load_glyph(glyph, LoadFlags.NO_SCALE).horiAdvance) if glyph else 0
