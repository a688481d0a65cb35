"""The boards of a backtest: exact counts beside what readers see, at a few ticks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from workers.backtest.outcomes import Outcome
from workers.backtest.results import BoardRow
from workers.report.charts import (
    WARNING,
    Chart,
    Drawing,
    canvas,
    counts_axis,
    drawable,
    legend_below,
    look,
    rows_axis,
    short_number,
)
from workers.report.charts_backtest import NORMAL_95, finish_of, name_of
from workers.report.data import Measured, when
from workers.report.runs import BOARD_ROWS, chosen_ticks

EXACT, PUBLISHED = "exact", "published, with 1.96 sd"
NAMED, HIDDEN = "shown, without a count", "not shown"


def boards(of: Measured, run: Outcome, keys: int) -> Iterator[Drawing]:
    """Yield exact beside published, for each of the first stream keys, at three ticks."""
    for at, title, ticks in boards_of(of, run, keys):
        yield title, partial(_board, of, run, ticks, f"board_{at}", title)


def boards_of(
    of: Measured, run: Outcome, keys: int
) -> Iterator[tuple[int, str, dict[int, list[BoardRow]]]]:
    """Yield number, title and ticks of the boards of each of the first stream keys."""
    found = of.board(run)
    for at, (key, ticks) in enumerate(list(found.items())[:keys], start=1):
        who = f", stream key {drawable(key)}" if len(found) > 1 else ""
        yield at, f"exact and published{who}", ticks


def _board(
    of: Measured, run: Outcome, ticks: dict[int, list[BoardRow]], kind: str, title: str
) -> Chart:
    chosen = {tick: ticks[tick][:BOARD_ROWS] for tick in chosen_ticks(list(ticks))}
    most = max(map(len, chosen.values()))
    with canvas(1, len(chosen), 1.6 + 0.25 * max(most, 3)) as (figure, axes):
        for cell, (tick, rows) in zip(axes[0], chosen.items(), strict=True):
            _draw(cell, rows)
            names = [drawable(row.label, 10 + 24 // len(chosen)) for row in rows]
            rows_axis(cell, names, fontsize=9)
            cell.set(ylim=(most - 0.4, -0.6), xlabel="count")
            number = tick - run.row.first_tick + 1
            cell.set_title(f"end of tick {number:,}:\n{when(rows[0].end_ms)}", fontsize=9.5)
            counts_axis(cell.xaxis, 6 // len(chosen) + 1, short_number)
            cell.grid(visible=False, axis="y")
            cell.margins(x=0.04)
        legend_below(figure, axes[0], 3, (EXACT, PUBLISHED, NAMED, HIDDEN), spacing=None)
        caption = (
            f"Run {run.number} ({name_of(run)}), one seed: the largest exact counts as bars, and "
            "what readers of the snapshot see as points, with the error bars that the snapshot "
            "states. A cross is an item that they do not see yet. Times are UTC."
        )
        return finish_of(figure, of, kind, title, caption)


def _draw(cell: Axes, rows: Sequence[BoardRow]) -> None:
    exact = np.array([row.exact or 0 for row in rows])
    cell.barh(range(len(rows)), exact, height=0.62, color="#C9CDD2", label=EXACT)
    published = [
        (row.released, place, NORMAL_95 * (row.sd or 0))
        for place, row in enumerate(rows)
        if row.released is not None
    ]
    if published:
        x, y, wide = np.array(published, dtype=float).T
        style = look(0, linestyle="none", markersize=4, elinewidth=1.1, capsize=2.5)
        cell.errorbar(x, y, xerr=wide if wide.any() else None, label=PUBLISHED, **style)
    named = [place for place, row in enumerate(rows) if row.shown and row.released is None]
    if named:
        style = look(2, linestyle="none", markersize=6)
        cell.plot(exact[named], named, label=NAMED, **style)
    hidden = [place for place, row in enumerate(rows) if not row.shown]
    if hidden:
        cross: Any = {"marker": "x", "color": WARNING, "linestyle": "none"}
        cross |= {"markersize": 6, "markeredgewidth": 1.6}
        cell.plot(exact[hidden], hidden, label=HIDDEN, **cross)
