"""How every picture looks, and how it is written: the same data give the same file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

DOCS = Path(__file__).parent.parent.parent / "docs" / "plots"


@dataclass(frozen=True, slots=True)
class Line:
    """A series' looks: told apart by colour (Okabe and Ito's palette), by marker and by dashes."""

    label: str
    color: str
    marker: str
    dashes: Any = "-"

    def plot(self, axes: Axes, x: Any, y: Any, **more: Any) -> None:
        """Draws it."""
        axes.plot(
            x,
            y,
            label=self.label,
            color=self.color,
            marker=self.marker,
            linestyle=self.dashes,
            **more,
        )


BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
RED = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"


def grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """Return an empty figure of this size in inches, with its axes as an array."""
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "quietcount",
            "svg.fonttype": "path",
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "axes.titlesize": 10.5,
            "axes.grid": True,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.6,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "lines.linewidth": 1.6,
            "lines.markersize": 5,
            "legend.frameon": False,
        }
    )
    return pyplot.subplots(
        rows, columns, figsize=(width, height), squeeze=False, layout="constrained"
    )


def plain(axes: Axes, *, x: str | None = None, y: str | None = None) -> None:
    """Logarithmic axes in plain numbers: "number" for 1,000, "share" for 10 %."""
    for axis, kind in ((axes.xaxis, x), (axes.yaxis, y)):
        if kind is not None:
            axis.set_major_formatter(_number if kind == "number" else _percent)
            axis.set_minor_formatter(NullFormatter())


def _number(value: float, _: object = None) -> str:
    return f"{value:,.10g}"


def _percent(value: float, _: object = None) -> str:
    return f"{100 * value:,.10g} %"


def below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, under them."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=columns)


def save(figure: Figure, name: str, directory: Path) -> None:
    """Writes NAME.svg without a date in it."""
    directory.mkdir(parents=True, exist_ok=True)
    figure.savefig(directory / f"{name}.svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    print(f"wrote {name}.svg", flush=True)
