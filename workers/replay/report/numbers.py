"""Report histograms of numbers: exact and published buckets in order of their edges, and the errors
of published quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from workers.arrays.types import Floats
from workers.mechanisms.config.buckets import Buckets, short
from workers.pipeline.snapshots import Numeric
from workers.replay.backtest.results import BoardRow, Outcome
from workers.replay.report.charts import (
    COLORS,
    INK,
    Chart,
    Drawing,
    canvas,
    counts_axis,
    dashed,
    legend_below,
    look,
)
from workers.replay.report.charts_backtest import NORMAL_95, boards_of, finish_of, name_of
from workers.replay.report.pages import Table
from workers.replay.report.runs import Measured, chosen_ticks, when

EXACT, PUBLISHED, OPEN = "exact", "published, with 1.96 sd", "open-ended bucket"
EXACT_QUANTILE, QUANTILE = "exact quantile", "published quantile, with its 95 % interval"
LEGEND = (EXACT, OPEN, PUBLISHED, EXACT_QUANTILE, QUANTILE)
# Maximum number of edges labelled below a chart.
EDGES_WRITTEN = 12


@dataclass(frozen=True, slots=True)
class Counted:
    """All buckets of one stream key at one tick, in order: float64 (n + 1,), and the counts' sd."""

    end_ms: int
    exact: Floats
    published: Floats
    sd: float


def numeric_of(run: Outcome) -> Numeric | None:
    """Return a run's buckets and quantiles; None if not all its buckets are shown."""
    settings = run.settings
    quantiles = settings.get("quantiles")
    if "buckets" not in settings or quantiles is None:
        return None
    return Numeric(Buckets(tuple(settings["buckets"])), quantiles)


def pictures(of: Measured, run: Outcome, numeric: Numeric, keys: int) -> Iterator[Drawing]:
    for at, title, ticks in boards_of(of, run, keys):
        yield title, partial(_picture, of, run, numeric, ticks, f"numbers_{at}", title)


def quantile_table(of: Measured, run: Outcome, numeric: Numeric) -> Table:
    boards: dict[tuple[int, str, int], list[BoardRow]] = {}
    for row in of.boards:
        if row.run == run.number:
            boards.setdefault((row.seed, row.key, row.tick), []).append(row)
    counted = [counted_of(numeric, rows) for rows in boards.values()]
    rows: list[list[str | None]] = []
    for q in numeric.quantiles:
        pairs = [
            (numeric.quantile(one.exact, 0.0, q), numeric.quantile(one.published, one.sd, q))
            for one in counted
        ]
        exact = [pair for pair in pairs if pair[0]["bucket"] is not None]
        said = [(truth, found) for truth, found in exact if found["bucket"] is not None]
        both = [
            (truth, found) for truth, found in said if None not in (truth["value"], found["value"])
        ]
        off = [abs(truth["value"] - found["value"]) for truth, found in both]
        hold = [holds(numeric, truth, found) for truth, found in said]
        rows.append(
            [
                short(q),
                f"{len(exact):,}",
                f"{len(exact) - len(said):,}",
                f"{sum(off) / len(off):.4g}" if off else None,
                f"{max(off):.4g}" if off else None,
                f"{100 * sum(hold) / len(hold):.0f} %" if hold else None,
            ]
        )
    headings = (
        "quantile",
        "boards",
        "nothing said",
        "off, mean",
        "off, most",
        "interval holds the exact one",
    )
    return Table(headings, rows, words=())


def holds(numeric: Numeric, truth: dict[str, Any], found: dict[str, Any]) -> bool:
    """Return whether an interval holds the exact quantile, which may lie beyond the edges."""
    value = truth["value"]
    if value is None and truth["bucket"] == numeric.labels[0]:
        return found["low"] is None
    if value is None:
        return found["high"] is None
    return (found["low"] is None or found["low"] <= value) and (
        found["high"] is None or value <= found["high"]
    )


def counted_of(numeric: Numeric, rows: Sequence[BoardRow]) -> Counted:
    place = {label: i for i, label in enumerate(numeric.labels)}
    exact, published = np.zeros((2, len(place)))
    for row in rows:
        exact[place[row.label]] = row.exact or 0
        published[place[row.label]] = row.released or 0
    return Counted(rows[0].end_ms, exact, published, max(row.sd or 0.0 for row in rows))


def _picture(
    of: Measured,
    run: Outcome,
    numeric: Numeric,
    ticks: dict[int, list[BoardRow]],
    kind: str,
    title: str,
) -> Chart:
    chosen = {tick: counted_of(numeric, ticks[tick]) for tick in chosen_ticks(list(ticks))}
    with canvas(len(chosen), 1, 1.3 + 2.5 * len(chosen)) as (figure, axes):
        for cell, (tick, one) in zip(axes[:, 0], chosen.items(), strict=True):
            _draw(cell, numeric, one)
            cell.set_title(
                f"end of tick {tick - run.row.first_tick + 1:,}: {when(one.end_ms)}", fontsize=9.5
            )
            cell.set_ylabel("count")
            counts_axis(cell.yaxis)
        legend_below(figure, axes[:, 0], 3, LEGEND, spacing=None)
        caption = (
            f"Run {run.number} ({name_of(run)}), one seed: exact counts as bars, and what readers of the snapshot see "
            "as points, with the error bars that the snapshot states. All buckets are drawn equally wide, with their "
            "edges below; those at the ends, hatched, hold all that lies beyond. Quantiles take numbers as spread "
            "evenly within a bucket. Times are UTC."
        )
        return finish_of(figure, of, kind, title, caption)


def _draw(cell: Axes, numeric: Numeric, one: Counted) -> None:
    """Draw one tick: bucket k from k - 1 to k, so that edge k is at k."""
    n = len(numeric.edges)
    middle = np.arange(n + 1) - 0.5
    bars: Any = {"width": 0.94, "color": "#C9CDD2"}
    cell.bar(middle[1:-1], one.exact[1:-1], label=EXACT, **bars)
    cell.bar(
        middle[[0, -1]], one.exact[[0, -1]], hatch="///", edgecolor="white", label=OPEN, **bars
    )
    style = look(
        0, linestyle="none", markersize=4 if n < 60 else 1.5, elinewidth=1.1 if n < 60 else 0.4
    )
    cell.errorbar(
        middle,
        one.published,
        yerr=NORMAL_95 * one.sd,
        capsize=2.5 if n < 60 else 0,
        label=PUBLISHED,
        **style,
    )
    for q in numeric.quantiles:
        truth, found = (
            numeric.quantile(one.exact, 0.0, q),
            numeric.quantile(one.published, one.sd, q),
        )
        if truth["value"] is not None:
            line: Any = {"color": INK, "linewidth": 1.3, "linestyle": dashed(4, 2)}
            cell.axvline(_place(numeric, truth["value"]), label=EXACT_QUANTILE, **line)
        if found["bucket"] is not None:
            low = -1.0 if found["low"] is None else _place(numeric, found["low"])
            high = float(n) if found["high"] is None else _place(numeric, found["high"])
            cell.axvspan(low, high, color=COLORS[1], alpha=0.18, linewidth=0)
        if found["value"] is not None:
            cell.axvline(
                _place(numeric, found["value"]), color=COLORS[1], linewidth=1.5, label=QUANTILE
            )
            cell.annotate(
                f" {short(q)}",
                (_place(numeric, found["value"]), 1),
                xycoords=("data", "axes fraction"),
                va="top",
                fontsize=8.5,
                color=COLORS[1],
            )
    stride = -(-n // EDGES_WRITTEN)
    cell.set_xticks(range(0, n, stride), [short(edge) for edge in numeric.edges[::stride]])
    cell.set_xlim(-1.15, n + 0.15)
    cell.grid(visible=False, axis="x")


def _place(numeric: Numeric, value: float) -> float:
    return float(np.interp(value, numeric.edges, np.arange(len(numeric.edges))))
