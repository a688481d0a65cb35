"""`quietcount replay --report DIR`: measure combinations of settings on past events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from workers.mechanisms.noise.keyed import NoiseKey
from workers.replay.backtest.grid import make_grid, runs_of
from workers.replay.backtest.recommend import recommend
from workers.replay.backtest.results import Outcome, Tables, by_histogram, prepare, read, write
from workers.replay.backtest.sweep import Backtest, Pool, processes_for
from workers.replay.offline import Summary, Write
from workers.replay.source import Source
from workers.runtime.errors import SettingsError
from workers.runtime.progress import ProgressLine
from workers.settings.settings import Settings

PROGRESS_INTERVAL_S = 0.2
ROWS_SHOWN = 40
METRICS_SHOWN = (
    "shown",
    "error_mean",
    "recall_unbounded",
    "recall",
    "rank_correlation",
    "coverage",
    "lost",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    config: Path
    report: Path
    vary: Sequence[str]
    seeds: int
    top: int
    force: bool


class Prepared:
    def __init__(
        self, options: Options, settings: Settings, key: NoiseKey, snapshots: str | None
    ) -> None:
        if options.vary and snapshots is not None:
            raise SettingsError(
                "--snapshots writes those of one run, so it cannot be used with --vary"
            )
        self._options = options
        self._grid = make_grid(settings, options.config, options.vary)
        self.settings = self._grid.read_with(settings)
        prepare(options.report, force=options.force)
        runs = runs_of(self._grid.combinations, options.seeds)
        self._number = len(runs)
        # This process writes the snapshots; other processes are forked before reading starts.
        processes = 1 if snapshots is not None else processes_for(runs)
        self._runs: Backtest | Pool
        if processes > 1:
            self._runs = Pool(runs, key, options.top, processes)
        else:
            self._runs = Backtest(runs, key, options.top)
            for one in self._runs.watches():
                one.histogram.written = snapshots is not None and one.run.seed == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._runs, Pool):
            self._runs.close()

    def run(
        self,
        source: Source,
        write_snapshot: Write,
        progress: ProgressLine,
        where: Callable[[Summary], str],
    ) -> Summary:
        for note in self._grid.notes:
            progress.print(f"replay: {note}")
        for reason in self._grid.left_out:
            progress.print(f"replay: left out: {reason}")
        progress.print(
            f"replay: {len(self._grid.combinations):,} combinations of settings, "
            f"{self._number:,} runs with their seeds"
        )
        last = 0.0

        def show(summary: Summary) -> None:
            nonlocal last
            now = time.perf_counter()
            if now - last >= PROGRESS_INTERVAL_S:
                last = now
                progress.update(where(summary))

        return self._runs.run(self.settings, source, write_snapshot, show)

    def write(self, summary: Summary, word: str) -> Iterator[str]:
        begun, directory = time.perf_counter(), self._options.report
        write(directory, self._runs.results(summary, word, self._grid.left_out))
        yield from table(read(directory))
        from workers.replay.report.report import write_report

        for line in write_report(directory):
            yield f"replay: {line}"
        seconds = time.perf_counter() - begun
        yield f"replay: results and report in {directory} ({seconds:.1f} s): exact data, for the operator only"


def table(tables: Tables) -> Iterator[str]:
    for histogram, of in by_histogram(tables).items():
        yield f"{histogram}:"
        yield from _aligned([_row(outcome) for outcome in of[:ROWS_SHOWN]])
        if len(of) > ROWS_SHOWN:
            yield f"  ... (the first {ROWS_SHOWN} of {len(of)}; all are in the report)"
        for sentence in recommend(of).words:
            yield f"  {sentence}"


def _row(outcome: Outcome) -> dict[str, str]:
    of = outcome.row
    row = {"run": str(of.run), "mechanism": of.mechanism, "epsilon": f"{of.epsilon:g}"}
    row |= {name: value or "-" for name, value in outcome.varied.items() if name not in row}
    for metric in METRICS_SHOWN:
        row[metric] = "-"
        if metric in outcome.metrics:
            value = outcome.metrics[metric].mean
            row[metric] = f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
    return row


def _aligned(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([row.get(name, "-") for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    for line in lines:
        yield "  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
