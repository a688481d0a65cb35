"""The report of a backtest: DIR/report.html and the pictures DIR/plots/*.png and *.svg, made from the files of a results directory.

The page is one file that needs no network and no script. Page and pictures say that they contain exact data. The same results give the
same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from workers.backtest import results
from workers.backtest.recommend import Recommendation, outcomes, recommend
from workers.backtest.results import Input
from workers.errors import SettingsError
from workers.files import write_whole
from workers.replay.offline import REJECTS_LISTED
from workers.report.data import Measured, OneRun, measured, when
from workers.report.html import Cell, Html, element, items, page, pairs, picture, table
from workers.report.runs import board_tables, guarantee, place, run_table, settings_block

if TYPE_CHECKING:
    from workers.report.charts import Chart

PAGE, PLOTS = "report.html", "plots"
CONTAINS = "Contains exact data: for the operator only"
# Runs that are drawn one by one, and stream keys whose boards are.
FEATURED, KEYS = 4, 3
USE = (
    "To choose settings, by people who may see the exact events.",
    "It is not to be published, in whole or in part: every figure here was computed from exact counts.",
    "Two backtests with the same settings and key have the same noise: of two inputs, the difference of their boards is the exact one.",
    "What is recommended was chosen by looking at this data. Choose on old events, not on those that you are about to publish.",
)


class Section(NamedTuple):
    """One histogram: what was measured, what to take, and the pictures."""

    of: Measured
    advice: Recommendation
    charts: Sequence[Chart]


def write_report(directory: Path) -> None:
    """Makes the report of a results directory, in it; what an earlier report left there is replaced.

    Raises:
        SettingsError: it is no results directory, or a package is missing.
    """
    tables = results.read(directory)
    try:
        from workers.report import charts
    except ImportError as error:
        raise SettingsError("a report needs matplotlib: install quietcount[replay]") from error
    rated, sections = outcomes(tables), []
    for of in measured(tables):
        advice = recommend([one for one in rated if one.histogram == of.name])
        sections.append(Section(of, advice, _charts(of, advice)))
    title = "Backtest of " + ", ".join(section.of.name for section in sections)
    body = page(title, CONTAINS, _body(tables.input, sections, title), exact=True)
    charts.write_charts(directory / PLOTS, [chart for section in sections for chart in section.charts])
    write_whole(directory / PAGE, body)


def _charts(of: Measured, advice: Recommendation) -> list[Chart]:
    from workers.report import charts_backtest as draw
    from workers.report.charts_boards import boards

    featured = _featured(of, advice)
    found = [
        draw.pareto_front(of, advice),
        draw.recall_against_epsilon(of),
        draw.error_over_ticks(of, featured),
        draw.discovery(of, [run for run in _best(of, advice) if len(of.by_size(run, "found").at)][:FEATURED]),
        draw.coverage(of),
        *boards(of, featured[0], KEYS),
    ]
    return [chart for chart in found if chart is not None]


def _best(of: Measured, advice: Recommendation) -> list[OneRun]:
    """All runs, first the recommended one, then the best."""
    return sorted(of.runs, key=lambda run: (run.number != advice.chosen, *place(run, advice)))


def _featured(of: Measured, advice: Recommendation) -> list[OneRun]:
    """The runs that are drawn one by one: the recommended one, the best of each other mechanism, then others of the front."""
    best = _best(of, advice)
    chosen = [best[0]]
    for run in best:
        if run.mechanism not in {one.mechanism for one in chosen}:
            chosen.append(run)
    chosen += [run for run in best if run.number in advice.front and run not in chosen]
    return chosen[:FEATURED]


# ---- the page --------------------------------------------------------------------------------------------------------


def _body(found: Input, sections: Sequence[Section], title: str) -> Iterator[Html]:
    yield element("h1", title)
    yield element("p", _lead(found, sections), kind="lead")
    if not found.complete:
        alarm = "Stopped before the end of the input: the figures are those of the ticks that were complete."
        yield element("div", alarm, kind="alarm")
    for of, advice, _ in sections:
        first, stop, more = advice.words[0].partition(". ")
        others = [more, *advice.words[1:]] if more else advice.words[1:]
        name = (element("p", of.name),) if len(sections) > 1 else ()
        words = (element("p", sentence) for sentence in others)
        yield element("div", *name, element("p", element("b", first + stop.strip())), *words, kind="advice")
    for section in sections:
        yield from _section(section)
    if found.left_out:
        yield element("h2", "Combinations that cannot be")
        yield items(found.left_out)
    yield element("h2", "What was read")
    yield from _input(found)
    yield element("h2", "What this may be used for")
    yield items(USE)
    yield element(
        "p",
        "The numbers are in runs.parquet, results.parquet, boards.parquet and rejects.json beside this page, the pictures in plots/. "
        "docs/results.md says what every column means, docs/backtesting.md how to read the figures.",
        kind="lead",
    )


def _section(section: Section) -> Iterator[Html]:
    of, advice, charts = section
    run = _featured(of, advice)[0]
    yield element("h2", of.name)
    yield from guarantee(of, run)
    yield from run_table(of, advice)
    yield element("h3", "Pictures")
    for chart in charts:
        yield picture(chart)
    yield from board_tables(of, run, KEYS)
    yield from settings_block(run)


def _lead(found: Input, sections: Sequence[Section]) -> str:
    runs = [run for section in sections for run in section.of.runs]
    seeds = max((run.seeds for run in runs), default=0)
    choices = f"{len(runs)} choices of settings" if len(runs) > 1 else "One choice of settings"
    text = f"{choices}, {seeds} seed{'s' if seeds > 1 else ''} each, over {found.events:,} events"
    if found.first_ms is not None and found.last_ms is not None:
        text += f" from {when(found.first_ms)} to {when(found.last_ms)} (UTC)"
    return text + ", measured against the exact counts."


def _input(found: Input) -> Iterator[Html]:
    rejected = sum(found.counts.values())
    rows: list[tuple[str, Cell]] = [("Events", f"{found.events:,}")]
    if found.first_ms is not None and found.last_ms is not None:
        rows.append(("Their times", f"{when(found.first_ms)} to {when(found.last_ms)} (UTC)"))
    rows += [("Later than events.grace", f"{found.late:,}")] if found.late else []
    rows += [("Outside the range of time", f"{found.outside:,}")] if found.outside else []
    rows.append((f"Rejected {found.word}s", f"{rejected:,}"))
    rows.append(("Read to its end", "yes" if found.complete else "no: stopped before"))
    yield pairs(rows)
    if not rejected:
        return
    yield element("h3", "Rejected, by reason")
    counts = sorted(found.counts.items(), key=lambda one: (-one[1], one[0]))
    yield table(("reason", f"{found.word}s"), ((reason, f"{times:,}") for reason, times in counts))
    listed = found.first[:REJECTS_LISTED]
    yield element("h3", f"The first {len(listed)}" if rejected > len(listed) else "One by one")
    parts = any(partition for partition, _, _ in listed)
    headings = (*(("partition",) if parts else ()), found.word, "reason")
    body = ((*((f"{partition}",) if parts else ()), f"{number:,}", reason) for partition, number, reason in listed)
    yield table(headings, body, words=(len(headings) - 1,))
