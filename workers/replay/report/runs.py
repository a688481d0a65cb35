"""The runs of one histogram in a report: their table, and their boards with labels as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workers.replay.backtest.outcomes import Outcome, Spread
from workers.replay.backtest.recommend import RECALL, Recommendation
from workers.replay.backtest.results import BoardRow
from workers.replay.report.data import Measured, when
from workers.replay.report.pages import Table, label
from workers.settings.durations import format_duration

SIDE_LETTERS = 48
BOARD_ROWS, BOARD_TICKS = 12, 3
# Buckets of numbers that a table lists in their order; of more, the largest.
BUCKET_ROWS = 40
#: Columns of the table of runs: metric, heading, and how the number is written.
COLUMNS = (
    ("recall_unbounded", "true top {n} shown", "share"),
    ("recall", "bounded top {n} shown", "share"),
    ("deserving_shown", "above thresh\u00adold shown", "share"),
    ("rank_correlation", "rank corre\u00adlation", "plain"),
    ("error_rms", "error, rms", "count"),
    ("error_worst", "error, largest", "count"),
    ("error_unbounded_mean", "error with bounds, mean", "count"),
    ("lost", "lost to bounds", "share"),
    ("shown", "items shown", "count"),
    ("coverage", "error bars hold", "share"),
    ("coverage_new", "of new items", "share"),
    ("within_error", "answers within error", "share"),
    ("shortfall", "short\u00adfall", "count"),
)
# Below this share, bounds cut nothing off.
LOST_LEAST = 0.0005


def place(run: Outcome, advice: Recommendation) -> tuple[float, float, int]:
    """Return what sorts runs, the best score first."""
    score = advice.scores.get(run.number, math.inf)
    better = -score if advice.metric == RECALL and score < math.inf else score
    return better, run.row.epsilon, run.number


def chosen_ticks(ticks: Sequence[int]) -> list[int]:
    """Return at most `BOARD_TICKS` of them, evenly spaced, the last among them."""
    found = sorted(ticks)
    most = min(BOARD_TICKS, len(found))
    return [found[round((i + 1) * len(found) / most) - 1] for i in range(most)]


def epoch_of(run: Outcome) -> str:
    """Return how long an epoch is, in words."""
    tick = format_duration(run.row.tick_ms)
    if run.epoch_ms is None:
        return f"without an end, in ticks of {tick}"
    return f"{format_duration(run.epoch_ms)}: {run.epoch_ms // run.row.tick_ms:,} ticks of {tick}"


def tiles(run: Outcome, top: int) -> list[tuple[str, str, str]]:
    """Return the figures for whoever reads no further: name, value, what it means."""
    found = []
    for metric, name, kind, more in (
        ("recall_unbounded", f"of the true top {top}", "share", "are shown, on average"),
        ("error_unbounded_mean", "a published count is off", "count", "on average, bounds included"),
        ("coverage", "of the error bars", "share", "hold the exact count; 95 % should"),
    ):
        if (text := _written(run.metrics.get(metric), kind)) is not None:
            found.append((name, text, more))
    who = "one event" if run.row.unit == "event" else "one user"
    promise = f"{run.row.epsilon:.4g}"
    return [*found, (f"epsilon for {who} and epoch", promise, f"with delta {run.row.delta:g}")]


def run_table(of: Measured, advice: Recommendation) -> Table:
    """Return all runs, the best first; those of the Pareto front marked."""
    settings = list(dict.fromkeys(name for run in of.runs for name in run.given))
    columns = [column for column in COLUMNS if _tells(of, column[0])]
    order = sorted(of.runs, key=lambda run: place(run, advice))
    epsilon = "epsilon" not in settings
    ticks = len({run.row.ticks for run in of.runs}) > 1
    headings = ["run", *settings, *(["epsilon"] if epsilon else [])]
    headings += [heading.format(n=of.input.top) for _, heading, _ in columns]
    headings += ["ticks"] if ticks else []
    rows: list[list[str | None]] = []
    for run in order:
        row: list[str | None] = [f"{run.number}", *(run.given.get(name, "") for name in settings)]
        row += [f"{run.row.epsilon:.4g}"] if epsilon else []
        row += [_written(run.metrics.get(metric), kind) for metric, _, kind in columns]
        rows.append(row + ([f"{run.row.ticks:,}"] if ticks else []))
    marks = (
        (run.number == advice.chosen, run.number in advice.front and len(order) > 1) for run in order
    )
    kinds = [" ".join(("chosen",) * chosen + ("front",) * front) for chosen, front in marks]
    return Table(headings, rows, words=range(1, 1 + len(settings)), kinds=kinds)


def board_tables(
    of: Measured, run: Outcome, keys: int, labels: Sequence[str] = ()
) -> list[tuple[str, list[tuple[str, Table]]]]:
    """Return a run's boards by stream key, of the first `keys` of these with their tables.

    Items come largest first, or in the order of `labels` where these are few.
    """
    place = {label: i for i, label in enumerate(labels)} if len(labels) <= BUCKET_ROWS else {}

    def listed(rows: list[BoardRow]) -> list[BoardRow]:
        return sorted(rows, key=lambda row: place[row.label]) if place else rows[:BOARD_ROWS]

    found = []
    for number, (key, ticks) in enumerate(of.board(run).items()):
        chosen = chosen_ticks(list(ticks)) if number < keys else []
        found.append((key, [_board(run, tick, listed(ticks[tick])) for tick in chosen]))
    return found


def _board(run: Outcome, tick: int, rows: Sequence[BoardRow]) -> tuple[str, Table]:
    unbounded = any(row.exact_unbounded not in (None, row.exact) for row in rows)
    columns = 4 if unbounded else 3
    cells = [
        (label(row.label, SIDE_LETTERS), _count(row.exact), _published(row), _count(row.exact_unbounded))
        for row in rows
    ]
    name = f"Tick {tick - run.row.first_tick + 1:,}, to {when(rows[0].end_ms)} (UTC)"
    headings = ("", "exact", "published", "unbounded")
    return name, Table(headings[:columns], [row[:columns] for row in cells])


def _published(row: BoardRow) -> str:
    return _count(row.released) or ("shown" if row.shown else "not shown")


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _tells(of: Measured, metric: str) -> bool:
    """Return whether a column is worth its place; bounds that cut nothing off cost nothing."""
    has = {name for run in of.runs for name in run.metrics}
    if metric in ("recall", "lost"):
        losses = (run.metrics["lost"].most for run in of.runs if "lost" in run.metrics)
        if not any(most > LOST_LEAST for most in losses):
            return metric == "recall" and "recall_unbounded" not in has
    return metric in has


def _written(found: Spread | None, kind: str) -> str | None:
    if found is None:
        return None
    if kind == "share":
        return f"{100 * found.mean:.1f} %"
    if kind == "plain":
        return f"{found.mean:.3f}"
    return f"{found.mean:,.0f}" if found.mean >= 100 else f"{found.mean:.3g}"
