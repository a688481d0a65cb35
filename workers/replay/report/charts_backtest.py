"""Draw the charts of a backtest from one histogram's measurements.

A run is a combination of settings with several seeds, that is, with several noises; its bars go
from the worst seed to the best. A board is the list of a stream key's largest items at a tick, or
all buckets of a histogram of numbers; `Boards` has its rows by tick. A chart without data is None.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from workers.mechanisms.config.buckets import short
from workers.mechanisms.config.durations import format_duration
from workers.pipeline.snapshots import Numeric
from workers.replay.backtest.recommend import RECALL, Recommendation
from workers.replay.backtest.results import BoardRow, Outcome
from workers.replay.report import charts
from workers.replay.report.charts import (
    BAND,
    COLORS,
    INK,
    MUTED,
    STYLES,
    WARNING,
    Chart,
    Drawing,
    canvas,
    counts_axis,
    drawable,
    legend_below,
    log_axis,
    number,
    rows_axis,
    share_axis,
    shares_upward,
    short_number,
    stroke,
    style_of,
)
from workers.replay.report.runs import (
    BOARD_ROWS,
    Boards,
    Measured,
    buckets_of,
    chosen_ticks,
    when,
)

# Varied settings that are on the x axis, and so do not name a line.
BUDGET = ("epsilon", "rho")
DOTS = 40  # rows of a chart at most
NAME_LETTERS = 56
NORMAL_95 = 1.96
#: Bars from the worst seed to the best.
BARS: Any = {"elinewidth": 0.9, "capsize": 2}
# Metrics by which to compare runs; the first one that was measured is drawn. Each with the words
# for it on the axis and in the title, and a sentence for the caption ("" for none).
_TOP = "share of the true top {n} on the board", "top-{n} recall"
COMPARED = (
    (
        "recall_unbounded",
        *_TOP,
        " The true top is that of all events, before any bound.",
    ),
    ("recall", *_TOP, " The true top is that of the bounded counts."),
    ("within_error", "share of answers within the published error", "answers", ""),
)
UNITS = {
    "days": 86_400_000,
    "hours": 3_600_000,
    "minutes": 60_000,
    "seconds": 1_000,
    "ms": 1,
}


def error_over_ticks(data: Measured, runs: Sequence[Outcome]) -> Chart | None:
    """Draw measured errors beside the promised noise, with a panel per run."""
    drawn = [run for run in runs if len(data.over_ticks(run, "error_rms").at)]
    if not drawn:
        return None
    tops = [
        float(np.max(data.over_ticks(run, "error_worst").mean, initial=0))
        for run in drawn
    ]
    # One scale for all panels, unless some curve would be flat in it.
    share = "all" if max(tops) <= 5 * max(min(tops), 1e-9) else False
    height = 3.0 if len(drawn) == 1 else 2.2
    with canvas(len(drawn), 1, 1.2 + height * len(drawn), sharey=share) as (
        figure,
        axes,
    ):
        # A panel with all curves, for the legend: some runs state no sd.
        richest = axes[0, 0]
        for cell, run in zip(axes[:, 0], drawn, strict=True):
            metrics = ("sd", "error_rms", "error_worst")
            sd, rms, worst = (_curve(data, run, metric) for metric in metrics)
            ticks, promised = sd
            if len(ticks):
                richest = cell
                reach = NORMAL_95 * promised
                name = "19 of 20 errors belong in here (1.96 sd)"
                cell.fill_between(ticks, 0, reach, color=BAND, linewidth=0, label=name)
            cell.plot(*worst, **stroke(COLORS[1], 0.9, 2, 1), label="measured: largest")
            cell.plot(
                *rms, **stroke(COLORS[0], 2.2), label="measured: root mean square"
            )
            # Last, so that it lies above the measured lines.
            if len(ticks):
                thin = stroke(INK, 1.0, 4, 2)
                cell.plot(*sd, **thin, label="promised: sd, from the settings")
            cell.set(title=_title(data, run), ylabel="error of a count")
            counts_axis(cell.yaxis)
            _tick_axis(data, cell, run)
        for cell in axes[:, 0]:
            cell.set_ylim(0, None)
        legend_below(figure, [richest], 2)
        caption = (
            "How far published counts are from the exact ones that the noise was added to, tick by "
            f"tick, mean of {_seeds(drawn)}. The dashed line is the standard deviation that the "
            "settings promise, and that every snapshot states; the measured root mean square "
            "should follow it, closely where many items are shown. Of many items one is always far "
            "out: the dotted line."
        )
        return charts.finish(
            figure, data.name, "error_over_ticks", "error over the ticks", caption
        )


def recall_against_epsilon(data: Measured) -> Chart | None:
    """Draw the board's recall by budget; a line for every choice of other settings.

    In place of recall, answers to queries have the share that is within the published error.
    """
    measured = {name for run in data.runs for name in run.metrics}
    compared = next((one for one in COMPARED if one[0] in measured), None)
    if compared is None or len({run.row.epsilon for run in data.runs}) < 2:
        return None
    metric, axis, title, what_is_true = compared
    # By name, points: epsilon, mean, and how far the bar goes below and above it.
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    for run in data.runs:
        if metric in run.metrics:
            found = run.metrics[metric]
            point = (
                run.row.epsilon,
                found.mean,
                found.mean - found.least,
                found.most - found.mean,
            )
            series.setdefault(name_of(run, BUDGET), []).append(point)
    # The names with the highest mean over their points; there are only STYLES distinct styles.
    best = sorted(series, key=lambda name: -np.mean(series[name], axis=0)[1])[:STYLES]
    shown = [name for name in series if name in best]
    with canvas(1, 1, 4.3 + 0.2 * ((len(shown) + 1) // 2)) as (figure, [[cell]]):
        for place, name in enumerate(shown):
            epsilon, mean, *bars = np.array(sorted(series[name])).T
            x = epsilon * _beside(place, len(shown))
            style = style_of(place, label=drawable(name, NAME_LETTERS))
            cell.errorbar(x, mean, bars, **BARS, **style)
        _epsilon_axis(cell, data.runs)
        cell.set_ylabel(axis.format(n=data.input.top))
        share_axis(cell.yaxis)
        shares_upward(cell)
        legend_below(figure, [cell], 2)
        caption = (
            f"Mean over the measured ticks and {_seeds(data.runs)}; bars go from the worst seed to "
            f"the best.{what_is_true} Where a line is flat, more budget buys nothing."
        )
        if len(series) > STYLES:
            caption += f" The {STYLES} best of {len(series)} are drawn."
        title = f"{title.format(n=data.input.top)} against epsilon"
        return charts.finish(
            figure, data.name, "recall_against_epsilon", title, caption
        )


def pareto_front(data: Measured, advice: Recommendation) -> Chart | None:
    """Draw every run as a point, epsilon against score; connect the Pareto front."""
    scores = advice.scores
    front = advice.front
    recommended = advice.chosen
    runs = [run for run in data.runs if run.number in scores]
    if len(runs) < 2:
        return None
    mechanisms = list(dict.fromkeys(run.row.mechanism for run in runs))
    with canvas(1, 1, 4.6) as (figure, [[cell]]):
        best = sorted(
            (run.row.epsilon, scores[run.number]) for run in runs if run.number in front
        )
        if len(best) > 1:
            line = stroke(MUTED, 1.1)
            cell.step(
                *np.array(best).T, where="post", zorder=1, **line, label="Pareto front"
            )
        point_of: dict[int, tuple[float, float]] = {}
        for place, mechanism in enumerate(mechanisms):
            beside = _beside(place, len(mechanisms))
            mine = [run for run in runs if run.row.mechanism == mechanism]
            points = {
                run.number: (run.row.epsilon * beside, scores[run.number])
                for run in mine
            }
            point_of |= points
            style = style_of(place, linestyle="none", markersize=7)
            cell.plot(*zip(*points.values(), strict=True), label=mechanism, **style)
        _epsilon_axis(cell, runs)
        if recommended is not None:
            ring = style_of(0, color="none", linestyle="none", markersize=15)
            ring |= {"markeredgecolor": INK, "markeredgewidth": 1.4}
            x, y = point_of[recommended]
            cell.plot(x, y, **ring, label=f"recommended: run {recommended}")
        # The numbers of the runs to name, by point and whether they are of the front: runs at the
        # same point share a text, above it if they are, else below.
        named: dict[tuple[tuple[float, float], bool], list[int]] = defaultdict(list)
        for run in runs:
            of_front = run.number in front
            if of_front or run.number == recommended:
                named[point_of[run.number], of_front].append(run.number)
        for (point, of_front), numbers in named.items():
            several = f"{numbers[0]} and {len(numbers) - 1} more"
            text = several if len(numbers) > 2 else ", ".join(map(str, numbers))
            aside = (8, 7) if of_front else (8, -15)
            style = {"textcoords": "offset points", "fontsize": 9, "color": INK}
            cell.annotate(text, point, aside, **style)
        cell.margins(x=0.08, y=0.10)
        if advice.metric == RECALL:
            share_axis(cell.yaxis)
            cell.set_ylabel(f"share of the true top {data.input.top} on the board")
            shares_upward(cell)
        else:
            log_axis(cell.yaxis, [max(score, 1e-3) for score in scores.values()])
            cell.set_ylabel("mean error (less is better)")
        legend_below(figure, [cell], 4)
        caption = (
            f"Each point is a run, mean of {_seeds(runs)}. No run beats one on the grey line: with "
            "no more budget none has a better score. Numbers are those of the table of runs."
        )
        return charts.finish(
            figure, data.name, "pareto_front", "what a budget buys", caption
        )


def discovery(data: Measured, runs: Sequence[Outcome]) -> Chart | None:
    """Draw how many of the items that reached a count were shown, and how much later they were.

    Two panels, over the exact count; a line for each of `runs`.
    """
    if not runs:
        return None
    unit, unit_ms = _delay_unit(runs)
    with canvas(1, 2, 4.0 + 0.22 * ((len(runs) + 1) // 2)) as (figure, [[left, right]]):
        sizes: list[float] = []
        for place, run in enumerate(runs):
            names = ("found", "delay_median", "passed")
            found, delay, passed = (data.by_size(run, name) for name in names)
            # Of a seed in which half of them or fewer were found, the median delay is not known.
            sure = delay.seeds == passed.seeds[np.isin(passed.at, delay.at)]
            scale = 1.0 if unit_ms is None else run.row.tick_ms / unit_ms
            style = style_of(place, label=_title(data, run))
            left.plot(found.at, found.mean, clip_on=False, **style)
            right.plot(delay.at[sure], delay.mean[sure] * scale, **style)
            sizes += found.at.tolist()
        for cell in (left, right):
            cell.set_xlabel("exact count that the item reached")
            log_axis(cell.xaxis, sizes)
        right.set_xlim(left.get_xlim())
        share_axis(left.yaxis)
        left.set(ylim=(0, 1.02), ylabel="share of such items that were shown")
        end = "events" if runs[0].without_epochs else "epoch"
        left.set_title(f"Found by the end of the {end}")
        right.set(
            ylim=(0, max(1.0, right.get_ylim()[1])), ylabel=f"median delay ({unit})"
        )
        right.set_title("Delay, from reaching the count to being shown")
        counts_axis(right.yaxis)
        legend_below(figure, [left], 2)
        caption = (
            "Over an unknown domain an item waits until its noisy count passes the threshold. "
            "Left: of the items that reached a count, how many were on the board before the "
            f"{end} ended. Right: how long that took, in the median; the line begins at the count "
            "from which on more than half of them were found with every seed. "
            f"Mean of {_seeds(runs)}."
        )
        return charts.finish(figure, data.name, "discovery", "discovery", caption)


def coverage(data: Measured) -> Chart | None:
    """Draw, in a row per run, how many of the published 95 % error bars hold the exact count."""
    covered = [
        (run, run.metrics["coverage"]) for run in data.runs if "coverage" in run.metrics
    ]
    if not covered:
        return None
    drawn = covered[:DOTS]
    left_out = len(covered) - DOTS
    with canvas(1, 1, 1.5 + 0.24 * max(len(drawn), 3)) as (figure, [[cell]]):
        spreads = [(spread.mean, spread.least, spread.most) for _, spread in drawn]
        mean, least, most = np.array(spreads).T
        cell.axvspan(0.94, 0.96, color=BAND, linewidth=0, label="94 % to 96 %")
        cell.axvline(0.95, **stroke(INK, 1.1, 5, 2), label="claimed: 95 %")
        style = style_of(0, linestyle="none", label="measured, worst to best seed")
        cell.errorbar(
            mean, range(len(drawn)), xerr=(mean - least, most - mean), **BARS, **style
        )
        names = (f"{run.number}: {name_of(run)}" for run, _ in drawn)
        rows_axis(cell, [drawable(name, NAME_LETTERS) for name in names])
        cell.set_xlabel("share of published counts within 1.96 sd of the exact one")
        # The claim is in view in any case.
        low = min(float(least.min()), 0.93)
        cell.set_xlim(low - 0.01, min(max(float(most.max()), 0.965) + 0.005, 1.005))
        share_axis(cell.xaxis)
        cell.grid(visible=False, axis="y")
        legend_below(figure, [cell], 3)
        caption = (
            "Over all shown items, measured ticks and seeds. Below 95 % where counts are biased: "
            'an item over an unknown domain is shown when its noise was high ("of new items" in the '
            "table: those first shown in the last ten ticks); a sketch, a block or "
            "a choice leaves something out."
        )
        if left_out > 0:
            caption += f" The first {DOTS} runs; {left_out} more are in the results."
        return charts.finish(
            figure, data.name, "coverage", "do the error bars hold?", caption
        )


def _curve(data: Measured, run: Outcome, metric: str) -> tuple[Any, Any]:
    """Return a metric's ticks, of the run from 1 on, and its means over the seeds there.

    A single tick becomes a short line, to be visible.
    """
    line = data.over_ticks(run, metric)
    ticks = line.at - run.row.first_tick + 1
    if len(ticks) != 1:
        return ticks, line.mean
    return ticks[0] + np.array([-0.25, 0.25]), np.repeat(line.mean, 2)


def _tick_axis(data: Measured, cell: Axes, run: Outcome) -> None:
    """Label the x axis of a chart over the ticks of a run: their width, and when they begin."""
    begin = data.begin_ms(run)
    since = "" if begin is None else f", from {when(begin)} UTC"
    cell.set_xlabel(f"tick of {format_duration(run.row.tick_ms)}{since}")
    cell.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    cell.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    cell.margins(x=0.01)


def _epsilon_axis(cell: Axes, runs: Sequence[Outcome]) -> None:
    log_axis(cell.xaxis, [run.row.epsilon for run in runs])
    per = ", charged once, ever" if runs[0].without_epochs else " and an epoch"
    cell.set_xlabel(f"epsilon of one {runs[0].row.unit}{per} (less is more private)")


def _beside(place: int, series: int) -> float:
    """Return a factor near 1 that keeps coinciding series apart on a logarithmic axis.

    `place` is its number among the `series` that are drawn side by side, each 1.8 % further on.
    """
    return float(1.018 ** (place - (series - 1) / 2))


def name_of(run: Outcome, without: Sequence[str] = ()) -> str:
    """Return the varied settings as text, else the mechanism's name."""
    given = ((name, value) for name, value in run.given.items() if name not in without)
    parts = [
        value if name == "mechanism" else f"{name} {value}" for name, value in given
    ]
    return ", ".join(parts) or run.row.mechanism


def _title(data: Measured, run: Outcome) -> str:
    number = f"run {run.number}: " if len(data.runs) > 1 else ""
    return drawable(number + name_of(run), NAME_LETTERS)


def _seeds(runs: Sequence[Outcome]) -> str:
    most = max(run.seeds for run in runs)
    return f"{most} seeds" if most > 1 else "one seed"


def _delay_unit(runs: Sequence[Outcome]) -> tuple[str, int | None]:
    """Return the unit of delays and its ms; None: it is ticks, equally wide in all runs."""
    widths = {run.row.tick_ms for run in runs}
    if len(widths) == 1:
        return f"ticks of {format_duration(widths.pop())}", None
    # The largest unit that is not above the widest tick.
    return next(unit for unit in UNITS.items() if unit[1] <= max(widths))


EXACT = "exact"
PUBLISHED = "published, with 1.96 sd"
NAMED = "shown, without a count"
HIDDEN = "not shown"


def boards(
    data: Measured, run: Outcome, keys: int, draw: Callable[..., Chart], kind: str
) -> Iterator[Drawing]:
    """Yield a drawing for each of the first `keys` stream keys, at chosen ticks of its boards.

    `draw` is `board`, or `numbers_board` with its first argument; `kind` begins the file names.
    """
    found = data.board(run)
    for at, (key, ticks) in enumerate(list(found.items())[:keys], start=1):
        who = f", stream key {drawable(key)}" if len(found) > 1 else ""
        title = f"exact and published{who}"
        yield (
            title,
            partial(draw, data, run, chosen_ticks(ticks), f"{kind}_{at}", title),
        )


def tick_of(run: Outcome, tick: int, end_ms: int, gap: str = " ") -> str:
    """Return the title of a board: the tick's number in the run, and its end."""
    return f"end of tick {tick - run.row.first_tick + 1:,}:{gap}{when(end_ms)}"


def board(data: Measured, run: Outcome, ticks: Boards, kind: str, title: str) -> Chart:
    """Draw a stream key's largest items at each tick: exact counts as bars, published as points."""
    chosen = {tick: rows[:BOARD_ROWS] for tick, rows in ticks.items()}
    most = max(map(len, chosen.values()))
    with canvas(1, len(chosen), 1.6 + 0.25 * max(most, 3)) as (figure, axes):
        for cell, (tick, rows) in zip(axes[0], chosen.items(), strict=True):
            _draw(cell, rows)
            names = [drawable(row.label, 10 + 24 // len(chosen)) for row in rows]
            rows_axis(cell, names, fontsize=9)
            cell.set(ylim=(most - 0.4, -0.6), xlabel="count")
            cell.set_title(tick_of(run, tick, rows[0].end_ms, "\n"), fontsize=9.5)
            counts_axis(cell.xaxis, 6 // len(chosen) + 1, short_number)
            cell.grid(visible=False, axis="y")
            cell.margins(x=0.04)
        legend_below(
            figure, axes[0], 3, (EXACT, PUBLISHED, NAMED, HIDDEN), spacing=None
        )
        caption = (
            f"Run {run.number} ({name_of(run)}), one seed: the largest exact counts as bars, and "
            "what readers of the snapshot see as points, with the error bars that the snapshot "
            "states. A cross is an item that they do not see yet. Times are UTC."
        )
        return charts.finish(figure, data.name, kind, title, caption)


def _draw(cell: Axes, rows: Sequence[BoardRow]) -> None:
    """Draw one tick's board, a row per item: its exact count as a bar, and what readers see.

    That is the published count with its error bar, or that it is shown without one, or not shown.
    """
    exact = np.array([row.exact or 0 for row in rows])
    cell.barh(range(len(rows)), exact, height=0.62, color="#C9CDD2", label=EXACT)
    # Rows lie at y = 0, 1, ...
    y = [number for number, row in enumerate(rows) if row.released is not None]
    if y:
        x, sd = np.array(
            [(rows[number].released, rows[number].sd or 0) for number in y], dtype=float
        ).T
        reach = NORMAL_95 * sd
        style = style_of(0, linestyle="none", markersize=4, elinewidth=1.1, capsize=2.5)
        cell.errorbar(
            x, y, xerr=reach if reach.any() else None, label=PUBLISHED, **style
        )
    named = [
        number for number, row in enumerate(rows) if row.shown and row.released is None
    ]
    if named:
        style = style_of(2, linestyle="none", markersize=6)
        cell.plot(exact[named], named, label=NAMED, **style)
    hidden = [number for number, row in enumerate(rows) if not row.shown]
    if hidden:
        style = {
            "color": WARNING,
            "marker": "x",
            "linestyle": "none",
            "markersize": 6,
        }
        cell.plot(exact[hidden], hidden, label=HIDDEN, markeredgewidth=1.6, **style)


OPEN = "open-ended bucket"
EXACT_QUANTILE = "exact quantile"
QUANTILE = "published quantile, with its 95 % interval"
# Maximum number of edges labelled below a chart.
EDGES_WRITTEN = 12


def numbers_board(
    numeric: Numeric, data: Measured, run: Outcome, ticks: Boards, kind: str, title: str
) -> Chart:
    """Draw the buckets of a histogram of numbers at each tick, with their quantiles."""
    with canvas(len(ticks), 1, 1.3 + 2.5 * len(ticks)) as (figure, axes):
        for cell, (tick, rows) in zip(axes[:, 0], ticks.items(), strict=True):
            _draw_buckets(cell, numeric, rows)
            cell.set_title(tick_of(run, tick, rows[0].end_ms), fontsize=9.5)
            cell.set_ylabel("count")
            counts_axis(cell.yaxis)
        order = (EXACT, OPEN, PUBLISHED, EXACT_QUANTILE, QUANTILE)
        legend_below(figure, axes[:, 0], 3, order, spacing=None)
        caption = (
            f"Run {run.number} ({name_of(run)}), one seed: exact counts as bars, and what readers of the snapshot see "
            "as points, with the error bars that the snapshot states. All buckets are drawn equally wide, with their "
            "edges below; those at the ends, hatched, hold all that lies beyond. Quantiles take numbers as spread "
            "evenly within a bucket. Times are UTC."
        )
        return charts.finish(figure, data.name, kind, title, caption)


def _draw_buckets(cell: Axes, numeric: Numeric, rows: Sequence[BoardRow]) -> None:
    """Draw one tick's buckets, with their published and exact quantiles.

    On the x axis edge k is at k, so that bucket k is from k - 1 to k; the first and the last of the
    n + 1 buckets are open-ended, and drawn as wide as the others.
    """
    buckets = buckets_of(numeric, rows)
    n = len(numeric.edges)
    middle = np.arange(n + 1) - 0.5
    bars: Any = {"width": 0.94, "color": "#C9CDD2"}
    cell.bar(middle[1:-1], buckets.exact[1:-1], label=EXACT, **bars)
    bars |= {"hatch": "///", "edgecolor": "white", "label": OPEN}
    cell.bar(middle[[0, -1]], buckets.exact[[0, -1]], **bars)
    # Points and error bars of many buckets are drawn small.
    few = n < 60
    style = style_of(0, linestyle="none", markersize=4 if few else 1.5, label=PUBLISHED)
    style |= {"elinewidth": 1.1 if few else 0.4, "capsize": 2.5 if few else 0}
    cell.errorbar(middle, buckets.published, yerr=NORMAL_95 * buckets.sd, **style)
    for q in numeric.quantiles:
        published, truth = buckets.quantiles(numeric, q)
        if truth["value"] is not None:
            line = stroke(INK, 1.3, 4, 2)
            cell.axvline(_place(numeric, truth["value"]), label=EXACT_QUANTILE, **line)
        if published["bucket"] is not None:
            # If an end of the interval is None, draw to the far end of the open-ended bucket.
            low = published["low"]
            high = published["high"]
            left = -1.0 if low is None else _place(numeric, low)
            right = float(n) if high is None else _place(numeric, high)
            cell.axvspan(left, right, color=COLORS[1], alpha=0.18, linewidth=0)
        if published["value"] is not None:
            at = _place(numeric, published["value"])
            cell.axvline(at, **stroke(COLORS[1], 1.5), label=QUANTILE)
            text: Any = {"va": "top", "fontsize": 8.5, "color": COLORS[1]}
            cell.annotate(
                f" {short(q)}", (at, 1), xycoords=("data", "axes fraction"), **text
            )
    stride = -(-n // EDGES_WRITTEN)  # rounded up
    cell.set_xticks(
        range(0, n, stride), [short(edge) for edge in numeric.edges[::stride]]
    )
    cell.set_xlim(-1.15, n + 0.15)
    cell.grid(visible=False, axis="x")


def _place(numeric: Numeric, value: float) -> float:
    """Return where a value lies on the x axis, on which edge k is at k."""
    return float(np.interp(value, numeric.edges, np.arange(len(numeric.edges))))
