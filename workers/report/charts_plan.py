"""The pictures of a plan: what the settings promise, before there is any event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workers.durations import format_duration
from workers.plan.model import Alternative, HistogramPlan
from workers.report.charts import (
    BAND,
    COLORS,
    INK,
    Chart,
    canvas,
    counts_axis,
    drawable,
    finish,
    legend_below,
    log_axis,
    look,
    slug,
)

CONTAINS = "Computed from the settings alone: no data"
NAME_LETTERS = 44
# Up to this ratio of the largest to the smallest an axis from zero is easier to read.
LINEAR_UP_TO = 12
# Of a row, by which series stand above one another.
ASIDE = 0.13
Row = tuple[str, bool, bool, float | None, float | None, float | None]


def noise_over_ticks(one: HistogramPlan) -> Chart:
    """The standard deviation over the ticks, and the threshold below it where there is one."""
    bars = [tick for tick in one.noise.ticks if tick.threshold is not None]
    with canvas(2 if bars else 1, 1, 5.9 if bars else 3.8, sharex="all") as (figure, axes):
        cell = axes[0, 0]
        runs = one.noise.curve
        edges = np.array([run.first for run in runs] + [runs[-1].last + 1], dtype=float)
        least, most = (np.array([getattr(run, name) for run in runs]) for name in ("least", "most"))
        if (most > least).any():
            cell.fill_between(edges, [*least, least[-1]], [*most, most[-1]], step="post", color=BAND, linewidth=0)
            cell.stairs(
                least,
                edges,
                baseline=None,
                color=COLORS[2],
                linewidth=1.2,
                linestyle=(0, (1, 1)),
                label="least of a run of ticks",
            )
        cell.stairs(
            most,
            edges,
            baseline=None,
            color=COLORS[0],
            linewidth=1.6,
            label="standard deviation (most of a run of ticks)",
        )
        cell.axhline(
            one.noise.rms_sd, color=INK, linestyle=(0, (5, 2)), linewidth=1.1, label="root mean square of all ticks"
        )
        cell.set(ylabel="sd of the noise (counts)", ylim=(0, 1.08 * one.noise.worst_sd))
        counts_axis(cell.yaxis)
        last = axes[-1, 0]
        if bars:
            at, threshold = [tick.tick for tick in bars], [tick.threshold for tick in bars]
            last.plot(at, threshold, label="threshold, at chosen ticks", **(look(1) | {"linestyle": "none"}))
            last.set(ylabel="count that a new item\nmust have, with noise", ylim=(0, None))
            counts_axis(last.yaxis)
        last.set_xlabel(f"tick of {format_duration(one.tick_ms)} in an epoch")
        counts_axis(last.xaxis, 8)
        handles, names = cell.get_legend_handles_labels()
        more = last.get_legend_handles_labels() if bars else ([], [])
        figure.legend([*handles, *more[0]], [*names, *more[1]], loc="outside lower left", ncols=2, borderpad=0.1)
        caption = (
            "What every snapshot will state as its error: 19 of 20 published counts lie within twice this (1.96 times) of the exact one. "
            f"Ticks 1 to {one.noise.ticks_looked_at:,}; the noise on {one.noise.on}."
        )
        if bars:
            caption += " Below: a new item is shown once its noisy count is above the threshold, and then stays to the end of the epoch."
        title = f"{one.name}: noise over the ticks" + (", and threshold" if bars else "")
        return finish(figure, f"{slug(one.name)}-noise", title, caption, CONTAINS, alarm=False)


def counters(one: HistogramPlan) -> Chart | None:
    """The counters that these settings could have, at the same budget."""
    rows: list[Row] = [
        (f"{row.counter}, radix {row.radix}" if row.radix else row.counter, row.chosen, row.possible, row.worst_sd, row.rms_sd, None)
        for row in one.counters
    ]  # fmt: skip
    caption = (
        "Each counter at the budget of these settings. Hollow: not possible with them; the table in the text says why."
    )
    return _compared(one, rows, "counters", "counters at this budget", caption, [row.error for row in one.counters])


def mechanisms(one: HistogramPlan) -> Chart | None:
    """Other mechanisms for the same or a near question, at the same budget."""
    rows: list[Row] = [
        (_with(row), row.chosen, row.possible, row.worst_sd, row.rms_sd, row.threshold) for row in one.mechanisms
    ]
    caption = (
        "Mechanisms for the same or a near question, at the budget of these settings; what each answers and assumes is in the text "
        "below. Hollow: not possible with these settings. Thresholds of different mechanisms do not mean the same."
    )
    return _compared(one, rows, "mechanisms", "mechanisms at this budget", caption, [])


def _with(row: Alternative) -> str:
    return " ".join([row.mechanism, *(f"{name}={value}" for name, value in row.assumed.items() if name != "domain")])


def _compared(
    one: HistogramPlan, rows: Sequence[Row], name: str, title: str, caption: str, errors: Sequence[float | None]
) -> Chart | None:
    """A row each: worst and mean sd, and the threshold; where there is no sd, the error."""
    series = [("worst sd", 0, [row[3] for row in rows]), ("root mean square sd", 2, [row[4] for row in rows])]
    series += [("highest threshold", 1, [row[5] for row in rows])]
    series += [("error in segment 1", 1, list(errors))] if errors and all(row[3] is None for row in rows) else []
    values = [value for _, _, of in series for value in of if value]
    shown = [at for at in range(len(rows)) if any(of[at] for _, _, of in series)]
    if len(shown) < 2:
        return None
    with canvas(1, 1, 1.5 + 0.27 * max(len(shown), 3)) as (figure, axes):
        cell = axes[0, 0]
        for label, place, of in series:
            points = [(at, y, value) for y, at in enumerate(shown) if (value := of[at])]
            for possible in (True, False):
                part = [(value, y + ASIDE * (place - 1)) for at, y, value in points if rows[at][2] == possible]
                if part:
                    style = look(place) | {"linestyle": "none", "markersize": 7, "label": label if possible else None}
                    if not possible:
                        style |= {"markerfacecolor": "white", "markeredgecolor": style["color"], "markeredgewidth": 1.2}
                    cell.plot(*zip(*part, strict=True), **style)
        names = [drawable(rows[at][0], NAME_LETTERS) + (" (in use)" if rows[at][1] else "") for at in shown]
        cell.set_yticks(range(len(shown)), names)
        wide = max(values) > LINEAR_UP_TO * min(values)
        cell.set(ylim=(len(shown) - 0.4, -0.6), xlabel="counts, logarithmic" if wide else "counts")
        if wide:
            log_axis(cell.xaxis, values)
        else:
            counts_axis(cell.xaxis, 8)
            cell.set_xlim(0, 1.05 * max(values))
        legend_below(figure, cell, 4)
        return finish(figure, f"{slug(one.name)}-{name}", f"{one.name}: {title}", caption, CONTAINS, alarm=False)
