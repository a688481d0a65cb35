"""The pictures of a backtest, each from the measurements of one histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from workers.backtest.recommend import RECALL, Recommendation
from workers.durations import format_duration
from workers.report.charts import (
    BAND,
    COLORS,
    INK,
    LOOKS,
    MUTED,
    Chart,
    canvas,
    counts_axis,
    drawable,
    finish,
    legend_below,
    log_axis,
    look,
    number,
    share_axis,
    shares_upward,
    slug,
)
from workers.report.data import Line, Measured, OneRun, when

CONTAINS = "Contains exact data: for the operator only"
BUDGET = ("epsilon", "rho")
DOTS = 40
NAME_LETTERS = 56
NORMAL_95 = 1.96
# By which runs are compared, the first that applies: what a reader of the board wants.
RECALLS = (
    ("recall_unbounded", "share of the true top {n} on the board"),
    ("recall", "share of the true top {n} on the board"),
    ("within_error", "share of answers within the published error"),
)


def error_over_ticks(of: Measured, runs: Sequence[OneRun]) -> Chart | None:
    """Measured errors beside the noise that the settings promise, a panel a run."""
    drawn = [run for run in runs if len(of.over_ticks(run, "error_rms").at)]
    if not drawn:
        return None
    tops = [float(np.max(of.over_ticks(run, "error_worst").mean, initial=0)) for run in drawn]
    alike = max(tops) <= 5 * max(min(tops), 1e-9)
    height = 3.0 if len(drawn) == 1 else 2.2
    with canvas(len(drawn), 1, 1.2 + height * len(drawn), sharey="all" if alike else False) as (figure, axes):
        richest = axes[0, 0]
        for cell, run in zip(axes[:, 0], drawn, strict=True):
            sd, rms, worst = (of.over_ticks(run, metric) for metric in ("sd", "error_rms", "error_worst"))
            if len(sd.at):
                richest, (at, promised) = cell, _curve(run, sd)
                cell.fill_between(
                    at,
                    0,
                    NORMAL_95 * promised,
                    color=BAND,
                    linewidth=0,
                    label="19 of 20 errors belong in here (1.96 sd)",
                )
            cell.plot(
                *_curve(run, worst),
                color=COLORS[1],
                linewidth=0.9,
                linestyle=(0, (2, 1)),
                label="measured: largest",
            )
            cell.plot(*_curve(run, rms), color=COLORS[0], linewidth=2.2, label="measured: root mean square")
            if len(sd.at):
                cell.plot(
                    at,
                    promised,
                    color=INK,
                    linestyle=(0, (4, 2)),
                    linewidth=1.0,
                    label="promised: sd, from the settings",
                )
            cell.set(title=_title(of, run), ylabel="error of a count")
            counts_axis(cell.yaxis)
            _tick_axis(of, cell, run)
        for cell in axes[:, 0]:
            cell.set_ylim(0, None)
        legend_below(figure, richest, 2)
        caption = (
            f"How far published counts are from the exact ones that the noise was added to, tick by tick, mean of {_seeds(drawn)}. The "
            "dashed line is the standard deviation that the settings promise, and that every snapshot states; the measured root mean "
            "square should follow it, closely where many items are shown. Of many items one is always far out: the dotted line."
        )
        return finish(
            figure, f"{slug(of.name)}-error_over_ticks", f"{of.name}: error over the ticks", caption, CONTAINS
        )


def recall_against_epsilon(of: Measured) -> Chart | None:
    """What the board gets right for a budget; a line for each choice of the other settings."""
    chosen = next((pair for pair in RECALLS if any(of.whole(run, pair[0]) for run in of.runs)), None)
    if chosen is None or len({run.epsilon for run in of.runs}) < 2:
        return None
    metric, what = chosen
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    for run in of.runs:
        found = of.whole(run, metric)
        if found is not None:
            name = _name_without_budget(run)
            series.setdefault(name, []).append(
                (run.epsilon, found.mean, found.mean - found.least, found.most - found.mean)
            )
    best = sorted(series, key=lambda name: -float(np.mean([point[1] for point in series[name]])))[:LOOKS]
    shown = [name for name in series if name in best]
    with canvas(1, 1, 4.3 + 0.2 * ((len(shown) + 1) // 2)) as (figure, axes):
        cell = axes[0, 0]
        for place, name in enumerate(shown):
            points = np.array(sorted(series[name]))
            style = look(place)
            at = points[:, 0] * _beside(place, len(shown))
            cell.errorbar(
                at,
                points[:, 1],
                points[:, 2:].T,
                elinewidth=0.9,
                capsize=2,
                label=drawable(name, NAME_LETTERS),
                **style,
            )
        log_axis(cell.xaxis, [run.epsilon for run in of.runs])
        cell.set(
            xlabel=f"epsilon of {_unit(of.runs)} and an epoch (less is more private)",
            ylabel=what.format(n=of.input.top),
        )
        share_axis(cell.yaxis)
        shares_upward(cell)
        legend_below(figure, cell, 2)
        left_out = f" The {LOOKS} best of {len(series)} are drawn." if len(series) > LOOKS else ""
        caption = (
            f"Mean over the measured ticks and {_seeds(of.runs)}; bars go from the worst seed to the best."
            f"{_truth(metric)} Where a line is flat, more budget buys nothing.{left_out}"
        )
        title = (
            f"{of.name}: top-{of.input.top} recall against epsilon"
            if "recall" in metric
            else f"{of.name}: answers against epsilon"
        )
        return finish(figure, f"{slug(of.name)}-recall_against_epsilon", title, caption, CONTAINS)


def pareto_front(of: Measured, advice: Recommendation) -> Chart | None:
    """Every run as a point: epsilon against score; those that no other run beats are joined."""
    scores, front, recommended = advice.scores, advice.front, advice.chosen
    runs = [run for run in of.runs if run.number in scores]
    if len(runs) < 2:
        return None
    mechanisms = list(dict.fromkeys(run.mechanism for run in runs))
    with canvas(1, 1, 4.6) as (figure, axes):
        cell = axes[0, 0]
        best = sorted((run.epsilon, scores[run.number]) for run in runs if run.number in front)
        if len(best) > 1:
            cell.step(*np.array(best).T, where="post", color=MUTED, linewidth=1.1, label="Pareto front", zorder=1)
        for place, mechanism in enumerate(mechanisms):
            mine = [run for run in runs if run.mechanism == mechanism]
            style = look(place) | {"linestyle": "none", "markersize": 7}
            beside = _beside(place, len(mechanisms))
            cell.plot(
                [run.epsilon * beside for run in mine], [scores[run.number] for run in mine], label=mechanism, **style
            )
        log_axis(cell.xaxis, [run.epsilon for run in runs])
        named: dict[tuple[float, float, bool], list[int]] = {}  # runs that lie on one another share a text
        for run in runs:
            x, y = run.epsilon * _beside(mechanisms.index(run.mechanism), len(mechanisms)), scores[run.number]
            if run.number == recommended:
                ring = {"color": "none", "markeredgecolor": INK, "markersize": 15, "markeredgewidth": 1.4}
                cell.plot([x], [y], marker="o", linestyle="none", label=f"recommended: run {run.number}", **ring)
            if run.number in front or run.number == recommended:
                named.setdefault((x, y, run.number in front), []).append(run.number)
        for (x, y, of_front), numbers in named.items():
            text = f"{numbers[0]}" if len(numbers) < 3 else f"{numbers[0]} and {len(numbers) - 1} more"
            text = text if len(numbers) != 2 else f"{numbers[0]}, {numbers[1]}"
            aside = (8, 7) if of_front else (8, -15)
            cell.annotate(text, (x, y), aside, textcoords="offset points", fontsize=9, color=INK)
        if advice.metric == RECALL:
            share_axis(cell.yaxis)
            what = f"share of the true top {of.input.top} on the board"
        else:
            log_axis(cell.yaxis, [max(score, 1e-3) for score in scores.values()])
            what = "mean error (less is better)"
        cell.set(xlabel=f"epsilon of {_unit(runs)} and an epoch (less is more private)", ylabel=what)
        cell.margins(x=0.08, y=0.10)
        if advice.metric == RECALL:
            shares_upward(cell)
        legend_below(figure, cell, 4)
        caption = (
            f"Each point is a run, mean of {_seeds(runs)}. No run beats one on the grey line: with no more budget none has a better "
            "score. Numbers are those of the table of runs."
        )
        return finish(figure, f"{slug(of.name)}-pareto_front", f"{of.name}: what a budget buys", caption, CONTAINS)


def discovery(of: Measured, runs: Sequence[OneRun]) -> Chart | None:
    """How long an item has to wait for its place, and whether it gets one, by its size."""
    drawn = [run for run in runs if len(of.by_size(run, "found").at)]
    if not drawn:
        return None
    unit, width = _delay_unit(drawn)
    with canvas(1, 2, 4.0 + 0.22 * ((len(drawn) + 1) // 2)) as (figure, axes):
        left, right = axes[0]
        sizes: list[float] = []
        for place, run in enumerate(drawn):
            found, delay = of.by_size(run, "found"), of.by_size(run, "delay_median")
            sure = delay.seeds == of.by_size(run, "passed").seeds[np.isin(of.by_size(run, "passed").at, delay.at)]
            scale = 1.0 if width is None else run.tick_ms / width
            name = _title(of, run)
            left.plot(found.at, found.mean, label=name, clip_on=False, **look(place))
            right.plot(delay.at[sure], delay.mean[sure] * scale, label=name, **look(place))
            sizes += found.at.tolist()
        for cell in (left, right):
            cell.set_xlabel("exact count that the item reached")
            log_axis(cell.xaxis, sizes)
        right.set_xlim(left.get_xlim())
        share_axis(left.yaxis)
        left.set(ylim=(0, 1.02), ylabel="share of such items that were shown", title="Found by the end of the epoch")
        right.set(
            ylim=(0, max(1.0, right.get_ylim()[1])),
            ylabel=f"median delay ({unit})",
            title="Delay, from reaching the count to being shown",
        )
        counts_axis(right.yaxis)
        legend_below(figure, left, 2)
        caption = (
            "Over an unknown domain an item waits until its noisy count passes the threshold. Left: of the items that reached a count, how "
            "many were on the board before the epoch ended. Right: how long that took, in the median; the line begins at the count from "
            f"which on more than half of them were found with every seed. Mean of {_seeds(drawn)}."
        )
        return finish(figure, f"{slug(of.name)}-discovery", f"{of.name}: discovery", caption, CONTAINS)


def coverage(of: Measured) -> Chart | None:
    """Whether the published error bars hold what they claim, a row a run."""
    found = [(run, spread) for run in of.runs if (spread := of.whole(run, "coverage")) is not None]
    if not found:
        return None
    drawn, left_out = found[:DOTS], len(found) - DOTS
    with canvas(1, 1, 1.5 + 0.24 * max(len(drawn), 3)) as (figure, axes):
        cell = axes[0, 0]
        places = np.arange(len(drawn))
        mean, least, most = (
            np.array([getattr(spread, name) for _, spread in drawn]) for name in ("mean", "least", "most")
        )
        cell.axvspan(0.94, 0.96, color=BAND, linewidth=0, label="94 % to 96 %")
        cell.axvline(0.95, color=INK, linestyle=(0, (5, 2)), linewidth=1.1, label="claimed: 95 %")
        style = look(0) | {"linestyle": "none"}
        cell.errorbar(
            mean,
            places,
            xerr=(mean - least, most - mean),
            elinewidth=0.9,
            capsize=2,
            label="measured, worst to best seed",
            **style,
        )
        cell.set_yticks(places, [drawable(f"{run.number}: {run.name}", NAME_LETTERS) for run, _ in drawn])
        cell.set(xlabel="share of published counts within 1.96 sd of the exact one", ylim=(len(drawn) - 0.4, -0.6))
        low = min(float(least.min()), 0.93)
        cell.set_xlim(low - 0.01, min(max(float(most.max()), 0.965) + 0.005, 1.005))
        share_axis(cell.xaxis)
        cell.grid(visible=False, axis="y")
        legend_below(figure, cell, 3)
        caption = (
            "Over all shown items, measured ticks and seeds. Below 95 % where counts are biased: an item over an unknown domain is shown "
            "when its noise was high; a sketch, a block or a choice leaves something out."
            + (f" The first {DOTS} runs; {left_out} more are in the results." if left_out > 0 else "")
        )
        return finish(figure, f"{slug(of.name)}-coverage", f"{of.name}: do the error bars hold?", caption, CONTAINS)


# ---- what they share -------------------------------------------------------------------------------------------------


def _curve(run: OneRun, line: Line) -> tuple[Any, Any]:
    """Ticks of the run and values; of a single tick a short piece of a line."""
    ticks = line.at - run.first_tick + 1
    if len(ticks) != 1:
        return ticks, line.mean
    return ticks[0] + np.array([-0.25, 0.25]), np.repeat(line.mean, 2)


def _tick_axis(of: Measured, cell: Axes, run: OneRun) -> None:
    begin = of.begin_ms(run)
    since = "" if begin is None else f", from {when(begin)}"
    zone = "" if begin is None else " UTC"
    cell.set_xlabel(f"tick of {format_duration(run.tick_ms)}{since}{zone}")
    cell.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    cell.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    cell.margins(x=0.01)


def _beside(place: int, series: int) -> float:
    """A little to the side, on a logarithmic axis: points of several series that coincide stay visible."""
    return float(1.018 ** (place - (series - 1) / 2))


def _title(of: Measured, run: OneRun) -> str:
    return drawable(f"run {run.number}: {run.name}" if len(of.runs) > 1 else run.name, NAME_LETTERS)


def _name_without_budget(run: OneRun) -> str:
    parts = [
        value if name == "mechanism" else f"{name} {value}" for name, value in run.varied.items() if name not in BUDGET
    ]
    return ", ".join(parts) or run.mechanism


def _seeds(runs: Sequence[OneRun]) -> str:
    most = max(run.seeds for run in runs)
    return f"{most} seeds" if most > 1 else "one seed"


def _unit(runs: Sequence[OneRun]) -> str:
    return f"one {runs[0].unit}"


def _truth(metric: str) -> str:
    if metric == "recall_unbounded":
        return " The true top is that of all events, before any bound."
    return " The true top is that of the bounded counts." if metric == "recall" else ""


def _delay_unit(runs: Sequence[OneRun]) -> tuple[str, int | None]:
    """In ticks, if they are equally wide in all runs; else in a unit of time of so many ms."""
    widths = {run.tick_ms for run in runs}
    if len(widths) == 1:
        return f"ticks of {format_duration(widths.pop())}", None
    units: Sequence[tuple[str, int]] = (
        ("days", 86_400_000),
        ("hours", 3_600_000),
        ("minutes", 60_000),
        ("seconds", 1_000),
    )
    return next((unit for unit in units if unit[1] <= max(widths)), ("ms", 1))
