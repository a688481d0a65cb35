"""The boards of a backtest: exact counts beside what readers see, at a few ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from workers.backtest.results import BoardRow
from workers.report.charts import WARNING, Chart, canvas, counts_axis, drawable, finish, look, short_number, slug
from workers.report.charts_backtest import CONTAINS, NORMAL_95
from workers.report.data import Measured, OneRun, when
from workers.report.runs import BOARD_ROWS, chosen_ticks

NAMED = "shown, without a count"


def boards(of: Measured, run: OneRun, keys: int) -> list[Chart]:
    """Exact beside published, a picture for each of the first stream keys, at three ticks."""
    return [
        _board(of, run, key, chosen_ticks(list(ticks)), ticks, at)
        for at, (key, ticks) in enumerate(list(of.board(run).items())[:keys])
    ]


def _board(
    of: Measured, run: OneRun, key: str, chosen: Sequence[int], ticks: dict[int, list[BoardRow]], at: int
) -> Chart:
    most = max(len(ticks[tick][:BOARD_ROWS]) for tick in chosen)
    with canvas(1, len(chosen), 1.6 + 0.25 * max(most, 3)) as (figure, axes):
        for cell, tick in zip(axes[0], chosen, strict=True):
            rows = ticks[tick][:BOARD_ROWS]
            places = np.arange(len(rows))
            cell.barh(places, [row.exact or 0 for row in rows], height=0.62, color="#C9CDD2", label="exact")
            shown = [
                (y, row.released, NORMAL_95 * (row.sd or 0))
                for y, row in zip(places, rows, strict=True)
                if row.released is not None
            ]
            if shown:
                y, x, wide = np.array(shown, dtype=float).T
                style = look(0) | {"linestyle": "none", "markersize": 4}
                cell.errorbar(
                    x,
                    y,
                    xerr=wide if wide.any() else None,
                    elinewidth=1.1,
                    capsize=2.5,
                    label="published, with 1.96 sd",
                    **style,
                )
            named = [
                (y, row.exact or 0) for y, row in zip(places, rows, strict=True) if row.shown and row.released is None
            ]
            if named:
                y, x = np.array(named, dtype=float).T
                cell.plot(x, y, label=NAMED, **(look(2) | {"linestyle": "none", "markersize": 6}))
            hidden = [(y, row.exact or 0) for y, row in zip(places, rows, strict=True) if not row.shown]
            if hidden:
                y, x = np.array(hidden, dtype=float).T
                cell.plot(
                    x,
                    y,
                    marker="x",
                    color=WARNING,
                    linestyle="none",
                    markersize=6,
                    markeredgewidth=1.6,
                    label="not shown",
                )
            cell.set_yticks(places, [drawable(row.label, 10 + 24 // len(chosen)) for row in rows], fontsize=9)
            cell.set(ylim=(most - 0.4, -0.6), xlabel="count")
            cell.set_title(f"end of tick {tick - run.first_tick + 1:,}:\n{when(rows[0].end_ms)}", fontsize=9.5)
            counts_axis(cell.xaxis, 6 // len(chosen) + 1, short_number)
            cell.grid(visible=False, axis="y")
            cell.margins(x=0.04)
        _legend_of_all(figure, list(axes[0]))
        who = f", stream key {drawable(key)}" if len(of.board(run)) > 1 else ""
        caption = (
            f"Run {run.number} ({run.name}), one seed: the largest exact counts as bars, and what readers of the snapshot see as points, "
            "with the error bars that the snapshot states. A cross is an item that they do not see yet. Times are UTC."
        )
        return finish(
            figure, f"{slug(of.name)}-board_{at + 1}", f"{of.name}: exact and published{who}", caption, CONTAINS
        )


def _legend_of_all(figure: Any, cells: Sequence[Axes]) -> None:
    handles: dict[str, Any] = {}
    for cell in cells:
        handles |= {name: handle for handle, name in zip(*cell.get_legend_handles_labels(), strict=True)}
    order = [name for name in ("exact", "published, with 1.96 sd", NAMED, "not shown") if name in handles]
    figure.legend([handles[name] for name in order], order, loc="outside lower left", ncols=3, borderpad=0.1)
