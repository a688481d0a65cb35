"""Parts of a report about the runs of one histogram: what they promise, their table, their boards with labels as they are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from workers.backtest.recommend import RECALL, Recommendation
from workers.backtest.results import BoardRow
from workers.durations import format_duration
from workers.report.data import Measured, OneRun, Spread, when
from workers.report.html import Cell, Html, element, label, table

SIDE_LETTERS = 48
BOARD_ROWS, BOARD_TICKS = 12, 3
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
    ("within_error", "answers within error", "share"),
    ("shortfall", "short\u00adfall", "count"),
)


NOTHING = Spread(0.0, 0.0, 0.0)


def place(run: OneRun, advice: Recommendation) -> tuple[float, float, int]:
    """The best score first."""
    score = advice.scores.get(run.number)
    if score is None:
        return math.inf, run.epsilon, run.number
    return -score if advice.metric == RECALL else score, run.epsilon, run.number


def chosen_ticks(ticks: list[int]) -> list[int]:
    """At most three of them, evenly spaced, the last among them."""
    found = sorted(ticks)
    if len(found) <= BOARD_TICKS:
        return found
    return [found[round((i + 1) * len(found) / BOARD_TICKS) - 1] for i in range(BOARD_TICKS)]


def guarantee(of: Measured, run: OneRun) -> Iterator[Html]:
    """What production with these settings would promise, in words."""
    which = f"With the settings of run {run.number}" if len(of.runs) > 1 else "With these settings"
    who = "one event" if run.unit == "event" else "the events of one user"
    often = "" if run.unit == "event" else " A user is charged in each epoch anew."
    yield element("h3", "What these settings promise")
    yield element(
        "p",
        f"{which}, a worker would promise this to everyone whose events it counts: whoever sees all its snapshots of an epoch "
        f"({_epoch(run)}), and whatever they look for, finds it at most {_factor(run.epsilon)} times as likely with {who} counted as "
        f"without, and the reverse, but for a probability of {run.delta:g}. That is differential privacy with epsilon "
        f"{run.epsilon:.6g} and delta {run.delta:g} (rho {run.rho:.4g}) for one {run.unit}.{often} It says nothing of this "
        "report, which is exact.",
    )


def run_table(of: Measured, advice: Recommendation) -> Iterator[Html]:
    """All runs, the best first; those of the Pareto front marked."""
    settings = list(dict.fromkeys(name for run in of.runs for name in run.varied))
    columns = [column for column in COLUMNS if _tells(of, column[0])]
    order = sorted(of.runs, key=lambda run: place(run, advice))
    promised = [] if "epsilon" in settings else ["epsilon"]
    many_ticks = ["ticks"] if len({run.ticks for run in of.runs}) > 1 else []
    headings = [
        "run",
        *settings,
        *promised,
        *(heading.format(n=of.input.top) for _, heading, _ in columns),
        *many_ticks,
    ]
    rows: list[list[Cell]] = []
    for run in order:
        row: list[Cell] = [f"{run.number}", *(run.varied.get(name, "") for name in settings)]
        row += [f"{run.epsilon:.4g}" for _ in promised]
        row += [_written(of, run, metric, kind) for metric, _, kind in columns]
        rows.append(row + [f"{run.ticks:,}" for _ in many_ticks])
    chosen, front = advice.chosen, advice.front if len(order) > 1 else ()
    kinds = [" ".join(("chosen",) * (run.number == chosen) + ("front",) * (run.number in front)) for run in order]
    yield element("h3", "Runs")
    lead = "Means over seeds and measured ticks."
    if len(order) > 1:
        front_is = "A bar at the left: on the Pareto front; no run with as little epsilon does better."
        lead = f"Best first. {front_is} Shaded: recommended. {lead}"
    yield element("p", lead, kind="lead")
    yield table(headings, rows, words=tuple(range(1, 1 + len(settings))), kinds=kinds)


def settings_block(run: OneRun) -> Iterator[Html]:
    """All settings of a run, as they would stand in a file."""
    yield element("h3", f"All settings of run {run.number}")
    lines = (
        element("span", f"{name} = {json.dumps(value, ensure_ascii=False)}") for name, value in run.settings.items()
    )
    yield Html("<pre>" + "\n".join(line.text for line in lines) + "</pre>")


def board_tables(of: Measured, run: OneRun, keys: int) -> Iterator[Html]:
    """The boards of the pictures, of the first stream keys, with labels as they are."""
    found = list(of.board(run).items())
    if not found:
        return
    yield element("h3", f"The boards of run {run.number} as tables")
    if len(found) > keys:
        text = f"Of the first {keys} of {len(found)} stream keys that were measured; the others are in boards.parquet."
        yield element("p", text, kind="lead")
    for key, ticks in found[:keys]:
        if len(found) > 1:
            yield element("p", "Stream key ", element("b", label(key)))
        boards = (
            _board(ticks[tick][:BOARD_ROWS], f"Tick {tick - run.first_tick + 1:,}")
            for tick in chosen_ticks(list(ticks))
        )
        yield element("div", *boards, kind="side")


def _board(rows: list[BoardRow], name: str) -> Html:
    unbounded = any(row.exact_unbounded not in (None, row.exact) for row in rows)
    cells = []
    for row in rows:
        more = (_count(row.exact_unbounded),) if unbounded else ()
        cells.append((label(row.label, SIDE_LETTERS), _count(row.exact), _published(row), *more))
    headings = ("", "exact", "published", *(("unbounded",) if unbounded else ()))
    return element("div", element("p", f"{name}, to {when(rows[0].end_ms)} (UTC)"), table(headings, cells))


def _published(row: BoardRow) -> str:
    if row.released is not None:
        return f"{row.released:,}"
    return "shown" if row.shown else "not shown"


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _tells(of: Measured, metric: str) -> bool:
    """Whether a column is worth its place: where bounds cut nothing off, what they cost is nothing everywhere."""
    if metric in ("recall", "lost") and not any((of.whole(run, "lost") or NOTHING).most > 0.0005 for run in of.runs):
        return metric == "recall" and not any(of.whole(run, "recall_unbounded") for run in of.runs)
    return any(of.whole(run, metric) for run in of.runs)


def _written(of: Measured, run: OneRun, metric: str, kind: str) -> str | None:
    found = of.whole(run, metric)
    if found is None:
        return None
    if kind == "share":
        return f"{100 * found.mean:.1f} %"
    if kind == "plain":
        return f"{found.mean:.3f}"
    return f"{found.mean:,.0f}" if found.mean >= 100 else f"{found.mean:.3g}"


def _factor(epsilon: float) -> str:
    """e^epsilon, for people."""
    return f"e^{epsilon:.4g}" if epsilon > 7 else f"{math.exp(epsilon):.3g}"


def _epoch(run: OneRun) -> str:
    horizon = run.settings.get("horizon")
    ticks = f"{horizon:,} ticks" if isinstance(horizon, int) else "without an end, in ticks"
    return f"{ticks} of {format_duration(run.tick_ms)}"
