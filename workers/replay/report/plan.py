"""Write the page of a plan, DIR/plan.html, and its charts, DIR/plots/*; none of it is secret.

The charts show the effect of the settings, before any event exists.
"""

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from workers.mechanisms.config.durations import format_duration
from workers.privacy.model import (
    Alternative,
    CounterChoice,
    HistogramPlan,
    OneWindow,
    Plan,
    WindowPlan,
    WithoutEpochs,
)
from workers.privacy.plan.text import seen_of, show, warnings_in
from workers.privacy.total import loss_caption
from workers.replay.report import charts
from workers.replay.report.charts import (
    BAND,
    COLORS,
    INK,
    NO_DATA,
    Chart,
    Drawing,
    canvas,
    counts_axis,
    draw_each,
    drawable,
    legend_below,
    log_axis,
    rows_axis,
    stroke,
    style_of,
    write_charts,
)
from workers.replay.report.pages import page, sentences, table_of
from workers.replay.report.registry import registry_facts
from workers.replay.report.report import PLOTS
from workers.runtime.printing import WIDTH
from workers.settings.files import write_atomically
from workers.settings.settings import Settings

PAGE = "plan.html"
NAME_LETTERS = 44
# Values of `end_share` to draw, beside those in use and recommended.
DRAWN_SHARES = (None, 0.3, 0.6, 0.8)
# Up to this ratio of the largest to the smallest value, an axis from zero is easier to read.
LINEAR_UP_TO = 12
# Vertical distance between the points of a row, whose height is 1.
ASIDE = 0.13


def write_plan_report(directory: Path, settings: Settings, plan: Plan) -> None:
    """Write the page of a plan, with the text that `plan` prints, and its charts."""
    sections = [
        (histogram, list(_facts(histogram)), draw_each(drawings(histogram)))
        for histogram in plan.histograms
    ]
    printed = io.StringIO()
    total = plan.total
    console = Console(
        file=printed,
        width=WIDTH,
        highlight=False,
        color_system=None,
        legacy_windows=False,
    )
    show(plan, console)
    epsilon = None if total.delta >= 1 else total.epsilon
    body = page(
        "plan.html",
        title=f"Plan of {plan.worker}",
        contains=NO_DATA,
        exact=False,
        total=total,
        warnings=list(warnings_in(plan)),
        promise=sentences(epsilon, total.delta, total.unit, seen_of(plan.histograms)),
        person=table_of(total.person, total.unit),
        explained=loss_caption(total.person, total.unit),
        sections=sections,
        registry=list(_for_registry(settings, plan)),
        text=[line.rstrip() for line in printed.getvalue().splitlines()],
    )
    pictures = [chart for _, _, drawn in sections for chart in drawn.charts]
    write_charts(directory / PLOTS, pictures)
    write_atomically(directory / PAGE, body)


def _for_registry(settings: Settings, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (field, value) of the facts that the registry of deployments asks for."""
    for fields in registry_facts(settings, plan).values():
        for name, value in fields.items():
            text = str(value)
            if isinstance(value, Mapping):
                text = ", ".join(f"{one} {number:.6g}" for one, number in value.items())
            yield name.replace("_", " "), text


def _facts(histogram: HistogramPlan) -> Iterator[tuple[str, str]]:
    """Yield (name, figures) about a histogram, for the top of its section."""
    promise = histogram.guarantee
    noise = histogram.noise
    thresholds = histogram.thresholds
    without = histogram.without_epochs
    horizon = (
        "without an end"
        if histogram.horizon is None
        else f"{histogram.horizon:,} ticks"
    )
    budget = (
        f"epsilon {promise.epsilon:.6g}, delta {promise.delta:g}, rho {promise.rho:.6g}"
    )
    worst = f"{noise.worst_sd:,.4g} at the worst tick, {noise.worst_tick:,}"
    yield (
        "mechanism",
        histogram.mechanism
        + (f", counter {histogram.counter}" if histogram.counter else ""),
    )
    if without is not None:
        yield "epoch", f"none; ticks of {format_duration(histogram.tick_ms)}"
        yield f"for one {promise.unit}, ever", budget
        for window in without.windows:
            sds = f"sd {window.rms_sd:,.4g} (root mean square), {window.worst_sd:,.4g} at the worst tick"
            bar = (
                ""
                if window.threshold is None
                else f"; threshold {window.threshold:,.0f}"
            )
            yield f"the last {format_duration(window.ms)}", f"{sds}{bar}"
        return
    yield "epoch", f"{horizon} of {format_duration(histogram.tick_ms)}"
    yield f"for one {promise.unit}", budget
    yield "sd of the noise", f"{noise.rms_sd:,.4g} (root mean square), {worst}"
    if thresholds is not None:
        yield (
            "threshold",
            f"{thresholds.least:,.0f} to {thresholds.most:,.0f}: {thresholds.meaning}",
        )


def drawings(one: HistogramPlan) -> Iterator[Drawing]:
    """Yield the drawings of a histogram's charts."""
    if one.without_epochs is not None:
        yield "windows", partial(_windows, one, one.without_epochs)
        return
    yield "noise over the ticks", partial(_noise_over_ticks, one)
    yield "counters at this budget", partial(_counters, one)
    yield "the end of an epoch", partial(_ends, one)
    yield "mechanisms at this budget", partial(_mechanisms, one)


def _noise_over_ticks(histogram: HistogramPlan) -> Chart:
    """Draw the standard deviation over the ticks, and the threshold below it if there is one."""
    thresholds = [
        (tick.tick, tick.threshold)
        for tick in histogram.noise.ticks
        if tick.threshold is not None
    ]
    panels, height = (2, 5.9) if thresholds else (1, 3.8)
    with canvas(panels, 1, height, sharex="all") as (figure, axes):
        cell = axes[0, 0]
        # The panel of thresholds, or the only one.
        lowest = axes[-1, 0]
        runs = histogram.noise.curve
        edges = np.array([run.first for run in runs] + [runs[-1].last + 1], dtype=float)
        least = np.array([run.least for run in runs])
        most = np.array([run.most for run in runs])
        if (most > least).any():
            # A step ends where the next begins, so the last value is needed twice.
            low = [*least, least[-1]]
            high = [*most, most[-1]]
            cell.fill_between(edges, low, high, step="post", color=BAND, linewidth=0)
            thin = stroke(COLORS[2], 1.2, 1, 1)
            cell.stairs(
                least, edges, baseline=None, label="least of a run of ticks", **thin
            )
        name = "standard deviation (most of a run of ticks)"
        cell.stairs(most, edges, baseline=None, **stroke(COLORS[0], 1.6), label=name)
        thin = stroke(INK, 1.1, 5, 2)
        cell.axhline(
            histogram.noise.rms_sd, label="root mean square of all ticks", **thin
        )
        cell.set(
            ylabel="sd of the noise (counts)", ylim=(0, 1.08 * histogram.noise.worst_sd)
        )
        counts_axis(cell.yaxis)
        if thresholds:
            style = style_of(1, linestyle="none", label="threshold, at chosen ticks")
            lowest.plot(*zip(*thresholds, strict=True), **style)
            lowest.set(
                ylabel="count that a new item\nmust have, with noise", ylim=(0, None)
            )
            counts_axis(lowest.yaxis)
        lowest.set_xlabel(f"tick of {format_duration(histogram.tick_ms)} in an epoch")
        counts_axis(lowest.xaxis, 8)
        legend_below(figure, [cell, lowest], 2, spacing=None)
        caption = (
            "What every snapshot will state as its error: 19 of 20 published counts lie within "
            "twice this (1.96 times) of the exact one. "
            f"Ticks 1 to {histogram.noise.ticks_looked_at:,}; the noise on {histogram.noise.on}."
        )
        if thresholds:
            caption += (
                " Below: a new item is shown once its noisy count is above the threshold, and then "
                "stays to the end of the epoch."
            )
        title = "noise over the ticks" + (", and threshold" if thresholds else "")
        return charts.finish(figure, histogram.name, "noise", title, caption, NO_DATA)


def _windows(histogram: HistogramPlan, without: WithoutEpochs) -> Chart | None:
    """Draw every window with the noise it has, and with that of a window alone."""
    rows = []
    for window in without.windows:
        name = f"the last {format_duration(window.ms)}"
        rows.append(_Row(name, window, chosen=True))
        if window.alone is not None:
            rows.append(_Row(f"{name}, alone", window.alone))
    caption = (
        "What every snapshot will state as its error: 19 of 20 published counts lie within twice this (1.96 times) of the exact "
        "one. One noise serves all windows; alone, a window has less."
    )
    return _compared(histogram, rows, "windows", caption)


def _counters(histogram: HistogramPlan) -> Chart | None:
    """Compare the noise of all counters at the same budget."""
    rows = []
    for one in histogram.counters:
        name = f"{one.counter}, radix {one.radix}" if one.radix else one.counter
        rows.append(_Row(name, one, one.chosen, one.possible))
    caption = (
        "Each counter at the budget of these settings. Hollow: not possible with them; the table "
        "in the text says why."
    )
    return _compared(histogram, rows, "counters", caption)


def _ends(histogram: HistogramPlan) -> Chart | None:
    """Draw the noise over an epoch for several `end_share`, the budget's share of its last tick."""
    drawn = [
        row.chosen or row.recommended or row.end_share in DRAWN_SHARES
        for row in histogram.ends
    ]
    rows = list(itertools.compress(histogram.ends, drawn))
    if len(rows) < 2:
        return None
    with canvas(1, 1, 3.8) as (figure, [[cell]]):
        for number, row in enumerate(rows):
            title = (
                "no end_share"
                if row.end_share is None
                else f"end_share {row.end_share:g}"
            )
            # The last tick on its own: the share is for it.
            runs = [(run.first, run.most) for run in row.curve[:-1]]
            runs.append((row.curve[-1].last, row.last_sd))
            style = style_of(
                number, markersize=5, label=title + (" (in use)" if row.chosen else "")
            )
            # Only the last tick has a marker.
            cell.plot(*zip(*runs, strict=True), **style, markevery=[len(runs) - 1])
        highest = max(row.worst_sd for row in rows)
        cell.set(ylabel="sd of the noise (counts)", ylim=(0, 1.08 * highest))
        counts_axis(cell.yaxis)
        cell.set_xlabel(f"tick of {format_duration(histogram.tick_ms)} in an epoch")
        counts_axis(cell.xaxis, 8)
        legend_below(figure, [cell], 3)
        caption = (
            "The most noise of each run of ticks, and that of the last tick, at the budget of "
            "these settings. A share of the last tick is paid for by all others: worth it where "
            "the last counts of an epoch are those that are kept."
        )
        return charts.finish(
            figure, histogram.name, "end", "the end of an epoch", caption, NO_DATA
        )


def _mechanisms(histogram: HistogramPlan) -> Chart | None:
    """Compare mechanisms for the same or a near question at the same budget."""
    rows = []
    for one in histogram.mechanisms:
        assumed = (
            f"{name}={value}" for name, value in one.assumed.items() if name != "domain"
        )
        name = " ".join([one.mechanism, *assumed])
        rows.append(_Row(name, one, one.chosen, one.possible))
    caption = (
        "Mechanisms for the same or a near question, at the budget of these settings; what each "
        "answers and assumes is in the text below. Hollow: not possible with these settings. "
        "Thresholds of different mechanisms do not mean the same."
    )
    return _compared(histogram, rows, "mechanisms", caption)


class _Row(NamedTuple):
    """A row of a comparison; `figures` may have worst_sd, rms_sd, threshold and error.

    `chosen`: in use; not `possible`: it cannot be used with these settings, so its points are
    hollow.
    """

    name: str
    figures: Alternative | CounterChoice | WindowPlan | OneWindow
    chosen: bool = False
    possible: bool = True


def _compared(
    histogram: HistogramPlan, rows: Sequence[_Row], kind: str, caption: str
) -> Chart | None:
    """Draw points in a row for each of `rows`: worst and mean sd, threshold; without sds the error.

    Points of a row that is not possible are hollow. Return None for fewer than two rows.
    """
    # By attribute of the figures: label, and the number of the style, which is the point's place
    # in a row as well, from the top: 0, 1 or 2.
    series = {
        "worst_sd": ("worst sd", 0),
        "rms_sd": ("root mean square sd", 2),
        "threshold": ("highest threshold", 1),
    }
    if kind == "counters" and all(row.figures.worst_sd is None for row in rows):
        series["error"] = ("error in segment 1", 1)

    def value_of(row: _Row, name: str) -> float:
        return getattr(row.figures, name, None) or 0

    values = [
        value for row in rows for name in series if (value := value_of(row, name))
    ]
    shown = [row for row in rows if any(value_of(row, name) for name in series)]
    if len(shown) < 2:
        return None
    with canvas(1, 1, 1.5 + 0.27 * max(len(shown), 3)) as (figure, [[cell]]):
        for name, (label, number) in series.items():
            filled = style_of(number, linestyle="none", markersize=7)
            edge = {"markeredgecolor": filled["color"], "markeredgewidth": 1.2}
            hollow = filled | {"markerfacecolor": "white"} | edge
            # Only filled points are in the legend.
            for possible, style in ((True, filled | {"label": label}), (False, hollow)):
                points = [
                    (value, y + ASIDE * (number - 1))
                    for y, row in enumerate(shown)
                    if (value := value_of(row, name)) and row.possible == possible
                ]
                if points:
                    cell.plot(*zip(*points, strict=True), **style)
        names = []
        for row in shown:
            name = drawable(row.name, NAME_LETTERS)
            names.append(f"{name} (in use)" if row.chosen else name)
        rows_axis(cell, names)
        if max(values) > LINEAR_UP_TO * min(values):
            cell.set_xlabel("counts, logarithmic")
            log_axis(cell.xaxis, values)
        else:
            cell.set_xlabel("counts")
            counts_axis(cell.xaxis, 8)
            cell.set_xlim(0, 1.05 * max(values))
        legend_below(figure, [cell], 4)
        return charts.finish(
            figure, histogram.name, kind, f"{kind} at this budget", caption, NO_DATA
        )
