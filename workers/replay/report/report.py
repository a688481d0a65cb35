"""Write a backtest's report from its results: DIR/report.html, and DIR/plots/*.png and *.svg.

Page and charts state that they contain exact data. The same results give the same bytes.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workers.privacy.total import loss_caption
from workers.replay.backtest import results
from workers.replay.backtest.recommend import Recommendation, recommend
from workers.replay.backtest.results import Input, Outcome
from workers.replay.offline import REJECTS_LISTED
from workers.replay.report import charts_backtest, pages, runs
from workers.replay.report.charts import EXACT_DATA, Drawing, draw_each, write_charts
from workers.replay.report.pages import Table, sentences
from workers.replay.report.runs import Measured, numeric_of, rank_key, when
from workers.settings.files import write_atomically

PAGE = "report.html"
PLOTS = "plots"
# Number of runs drawn individually, and of stream keys with boards.
FEATURED = 4
KEYS = 3


def write_report(directory: Path) -> list[str]:
    """Write or replace the report of a results directory; return a line per missing chart."""
    tables = results.read(directory)
    source = tables.input
    histograms = runs.measured(tables)
    sections = [_section(data, recommend(data.runs)) for data in histograms]
    rejects = sorted(source.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    reasons = [(reason, f"{times:,}") for reason, times in rejects]
    body = pages.page(
        "backtest.html",
        script="copy.js",
        title="Backtest of " + ", ".join(data.name for data in histograms),
        contains=EXACT_DATA,
        exact=True,
        lead=_lead(source, [run for data in histograms for run in data.runs]),
        sections=sections,
        keys=KEYS,
        input=source,
        read=list(_input_facts(source)),
        reasons=Table(("reason", f"{source.word}s"), reasons),
        rejects=_rejects(source.word, source.first[:REJECTS_LISTED]),
        rejected=sum(source.counts.values()),
    )
    write_charts(
        directory / PLOTS,
        [chart for section in sections for chart in section["drawn"].charts],
    )
    write_atomically(directory / PAGE, body)
    return [
        f"{section['of'].name}: {line}"
        for section in sections
        for line in section["drawn"].missing
    ]


def _section(data: Measured, advice: Recommendation) -> dict[str, Any]:
    """Return what the template backtest.html shows of a histogram, by the names used there.

    Most of it is about one run: the one recommended, or the best. `advice.words` are sentences.
    """
    featured = _featured(data, advice)
    run = featured[0]
    numeric = numeric_of(run)
    # The page shows the first sentence, with its full stop, in bold, above the figures.
    headline, stop, more = advice.words[0].partition(". ")
    section = pages.histogram_section(run)
    drawn = draw_each(_drawings(data, advice, featured))
    shown = runs.board_tables(
        data, run, KEYS, () if numeric is None else numeric.labels
    )
    quantiles = None
    if numeric is not None and numeric.quantiles:
        quantiles = runs.quantile_table(data, run, numeric)
    pictures = ["pictures"] if drawn.charts or drawn.missing else []
    row = run.row
    sees = (
        "all snapshots of all windows"
        if run.without_epochs
        else "all snapshots of an epoch"
    )
    person = pages.spans_of_run(run)
    return {
        "of": data,
        "sentences": [
            headline + stop.strip(),
            *([more] if more else []),
            *advice.words[1:],
        ],
        "run": row,
        "epoch": runs.epoch_of(run),
        "without_epochs": run.without_epochs,
        "promise": sentences(row.epsilon, row.delta, row.unit, sees),
        "person": pages.table_of(person, row.unit),
        "explained": loss_caption(person, row.unit),
        "tiles": runs.tiles(run, data.input.top),
        "paste": section if run.number == advice.chosen else None,
        "settings": section,
        "contents": [
            "promise",
            "runs",
            *pictures,
            *(["boards"] if shown else []),
            "settings",
        ],
        "runs": runs.run_table(data, advice),
        "drawn": drawn,
        "quantiles": quantiles,
        "boards": shown,
    }


def _drawings(
    data: Measured, advice: Recommendation, featured: Sequence[Outcome]
) -> Iterator[Drawing]:
    """Yield the drawings of a histogram's charts; `featured` are the runs drawn one by one."""
    numeric = numeric_of(featured[0])
    discovering = [
        run for run in _by_merit(data, advice) if len(data.by_size(run, "found").at)
    ]
    yield "what a budget buys", partial(charts_backtest.pareto_front, data, advice)
    yield (
        "recall against epsilon",
        partial(charts_backtest.recall_against_epsilon, data),
    )
    yield (
        "error over the ticks",
        partial(charts_backtest.error_over_ticks, data, featured),
    )
    yield "discovery", partial(charts_backtest.discovery, data, discovering[:FEATURED])
    yield "do the error bars hold?", partial(charts_backtest.coverage, data)
    draw = charts_backtest.board
    kind = "board"
    if numeric is not None:
        draw = partial(charts_backtest.numbers_board, numeric)
        kind = "numbers"
    yield from charts_backtest.boards(data, featured[0], KEYS, draw, kind)


def _by_merit(data: Measured, advice: Recommendation) -> list[Outcome]:
    """Return all runs of a histogram: the recommended one, then the others, best first."""
    return sorted(
        data.runs, key=lambda run: (run.number != advice.chosen, *rank_key(run, advice))
    )


def _featured(data: Measured, advice: Recommendation) -> list[Outcome]:
    """Return up to FEATURED runs to draw one by one.

    The recommended one, the best of every other mechanism, then others of the Pareto front.
    """
    by_merit = _by_merit(data, advice)
    best_of: dict[str, Outcome] = {}
    for run in by_merit:
        best_of.setdefault(run.row.mechanism, run)
    chosen = list(best_of.values())
    for run in by_merit:
        if run.number in advice.front and run not in chosen:
            chosen.append(run)
    return chosen[:FEATURED]


def _lead(source: Input, outcomes: Sequence[Outcome]) -> str:
    """Return the first sentence of the page: how much was run, over which events."""
    seeds = max((run.seeds for run in outcomes), default=0)
    number = len(outcomes)
    choices = (
        f"{number} choices of settings" if number > 1 else "One choice of settings"
    )
    text = f"{choices}, {seeds} seed{'s' if seeds > 1 else ''} each, over {source.events:,} events"
    if source.first_ms is not None and source.last_ms is not None:
        text += f" from {_times(source.first_ms, source.last_ms)}"
    return text + ", measured against the exact counts."


def _input_facts(source: Input) -> Iterator[tuple[str, str]]:
    """Yield (name, figure) about the events that were read."""
    yield "Events", f"{source.events:,}"
    if source.first_ms is not None and source.last_ms is not None:
        yield "Their times", _times(source.first_ms, source.last_ms)
    if source.late:
        yield "Later than events.grace", f"{source.late:,}"
    if source.outside:
        yield "Outside the range of time", f"{source.outside:,}"
    yield f"Rejected {source.word}s", f"{sum(source.counts.values()):,}"
    yield "Read to its end", "yes" if source.complete else "no: stopped before"


def _times(first_ms: int, last_ms: int) -> str:
    return f"{when(first_ms)} to {when(last_ms)} (UTC)"


def _rejects(word: str, listed: Sequence[tuple[int, int, str]]) -> Table:
    """Return a table of rejects, each (partition, number, reason); `word` says what is numbered.

    It has a column of partitions unless all are 0, as they are for files.
    """
    rows = [
        (f"{partition}", f"{number:,}", reason) for partition, number, reason in listed
    ]
    first = 0 if any(partition for partition, _, _ in listed) else 1
    headings = ("partition", word, "reason")[first:]
    return Table(headings, [row[first:] for row in rows], words=(len(headings) - 1,))
