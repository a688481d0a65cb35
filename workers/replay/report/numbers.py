"""Report histograms of numbers: exact and published buckets, and errors of quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from workers.arrays.types import Floats
from workers.mechanisms.config.buckets import Buckets, short
from workers.pipeline.snapshots import Numeric
from workers.replay.backtest.results import BoardRow, Outcome
from workers.replay.report import charts
from workers.replay.report.charts import COLORS, Chart, canvas, look, stroke
from workers.replay.report.charts_backtest import NORMAL_95, name_of, tick_of
from workers.replay.report.pages import Table
from workers.replay.report.runs import Boards, Measured

EXACT, PUBLISHED, OPEN = "exact", "published, with 1.96 sd", "open-ended bucket"
EXACT_QUANTILE, QUANTILE = "exact quantile", "published quantile, with its 95 % interval"
LEGEND = (EXACT, OPEN, PUBLISHED, EXACT_QUANTILE, QUANTILE)
# Maximum number of edges labelled below a chart.
EDGES_WRITTEN = 12


@dataclass(frozen=True, slots=True)
class Counted:
    """All buckets of one stream key at one tick, in order: float64 (n + 1,), and the counts' sd."""

    exact: Floats
    published: Floats
    sd: float

    def quantiles(self, numeric: Numeric, q: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the published and the exact quantile."""
        published = numeric.quantile(self.published, self.sd, q)
        return published, numeric.quantile(self.exact, 0.0, q)


def numeric_of(run: Outcome) -> Numeric | None:
    """Return a run's buckets and quantiles; None if not all its buckets are shown."""
    settings = run.settings
    quantiles = settings.get("quantiles")
    if "buckets" not in settings or quantiles is None:
        return None
    return Numeric(Buckets(tuple(settings["buckets"])), quantiles)


def quantile_table(of: Measured, run: Outcome, numeric: Numeric) -> Table:
    boards: dict[tuple[int, str, int], list[BoardRow]] = {}
    for row in of.boards:
        if row.run == run.number:
            boards.setdefault((row.seed, row.key, row.tick), []).append(row)
    counted = [counted_of(numeric, rows) for rows in boards.values()]
    rows: list[list[str | None]] = []
    for q in numeric.quantiles:
        pairs = [one.quantiles(numeric, q) for one in counted]
        exact = [(found, truth) for found, truth in pairs if truth["bucket"] is not None]
        said = [(found, truth) for found, truth in exact if found["bucket"] is not None]
        values = [(found["value"], truth["value"]) for found, truth in said]
        off = [abs(found - truth) for found, truth in values if None not in (found, truth)]
        hold = [holds(numeric, truth, found) for found, truth in said]
        cells: list[str | None] = [short(q), f"{len(exact):,}", f"{len(exact) - len(said):,}"]
        cells += [f"{sum(off) / len(off):.4g}", f"{max(off):.4g}"] if off else [None, None]
        rows.append([*cells, f"{100 * sum(hold) / len(hold):.0f} %" if hold else None])
    headings = ("quantile", "boards", "nothing said", "off, mean", "off, most")
    return Table((*headings, "interval holds the exact one"), rows, words=())


def holds(numeric: Numeric, truth: dict[str, Any], found: dict[str, Any]) -> bool:
    """Return whether an interval holds the exact quantile, which may lie beyond the edges."""
    value = truth["value"]
    if value is None and truth["bucket"] == numeric.labels[0]:
        return found["low"] is None
    if value is None:
        return found["high"] is None
    low, high = found["low"], found["high"]
    return (low is None or low <= value) and (high is None or value <= high)


def counted_of(numeric: Numeric, rows: Sequence[BoardRow]) -> Counted:
    place = {label: i for i, label in enumerate(numeric.labels)}
    exact, published = np.zeros((2, len(place)))
    for row in rows:
        exact[place[row.label]] = row.exact or 0
        published[place[row.label]] = row.released or 0
    return Counted(exact, published, max(row.sd or 0.0 for row in rows))


def picture(
    numeric: Numeric, of: Measured, run: Outcome, ticks: Boards, kind: str, title: str
) -> Chart:
    with canvas(len(ticks), 1, 1.3 + 2.5 * len(ticks)) as (figure, axes):
        for cell, (tick, rows) in zip(axes[:, 0], ticks.items(), strict=True):
            _draw(cell, numeric, counted_of(numeric, rows))
            cell.set_title(tick_of(run, tick, rows[0].end_ms), fontsize=9.5)
            cell.set_ylabel("count")
            charts.counts_axis(cell.yaxis)
        charts.legend_below(figure, axes[:, 0], 3, LEGEND, spacing=None)
        caption = (
            f"Run {run.number} ({name_of(run)}), one seed: exact counts as bars, and what readers of the snapshot see "
            "as points, with the error bars that the snapshot states. All buckets are drawn equally wide, with their "
            "edges below; those at the ends, hatched, hold all that lies beyond. Quantiles take numbers as spread "
            "evenly within a bucket. Times are UTC."
        )
        return charts.finish(figure, of.name, kind, title, caption)


def _draw(cell: Axes, numeric: Numeric, one: Counted) -> None:
    """Draw one tick: bucket k from k - 1 to k, so that edge k is at k."""
    n = len(numeric.edges)
    middle = np.arange(n + 1) - 0.5
    bars: Any = {"width": 0.94, "color": "#C9CDD2"}
    cell.bar(middle[1:-1], one.exact[1:-1], label=EXACT, **bars)
    bars |= {"hatch": "///", "edgecolor": "white", "label": OPEN}
    cell.bar(middle[[0, -1]], one.exact[[0, -1]], **bars)
    few = n < 60
    style = look(0, linestyle="none", markersize=4 if few else 1.5, label=PUBLISHED)
    style |= {"elinewidth": 1.1 if few else 0.4, "capsize": 2.5 if few else 0}
    cell.errorbar(middle, one.published, yerr=NORMAL_95 * one.sd, **style)
    for q in numeric.quantiles:
        found, truth = one.quantiles(numeric, q)
        if truth["value"] is not None:
            line = stroke(charts.INK, 1.3, 4, 2)
            cell.axvline(_place(numeric, truth["value"]), label=EXACT_QUANTILE, **line)
        if found["bucket"] is not None:
            low = -1.0 if found["low"] is None else _place(numeric, found["low"])
            high = float(n) if found["high"] is None else _place(numeric, found["high"])
            cell.axvspan(low, high, color=COLORS[1], alpha=0.18, linewidth=0)
        if found["value"] is not None:
            at = _place(numeric, found["value"])
            cell.axvline(at, **stroke(COLORS[1], 1.5), label=QUANTILE)
            text: Any = {"va": "top", "fontsize": 8.5, "color": COLORS[1]}
            cell.annotate(f" {short(q)}", (at, 1), xycoords=("data", "axes fraction"), **text)
    stride = -(-n // EDGES_WRITTEN)
    cell.set_xticks(range(0, n, stride), [short(edge) for edge in numeric.edges[::stride]])
    cell.set_xlim(-1.15, n + 0.15)
    cell.grid(visible=False, axis="x")


def _place(numeric: Numeric, value: float) -> float:
    return float(np.interp(value, numeric.edges, np.arange(len(numeric.edges))))
