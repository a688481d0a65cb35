"""`quietcount replay`: turn past events into snapshots and an exact summary.

With `--report DIR` it is a backtest, which measures combinations of settings.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Self

from workers.commands.compiling import ensure_compiled
from workers.commands.failures import EXIT_INTERRUPTED, log
from workers.commands.options import Replay
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.snapshots import Snapshot
from workers.replay.backtest.grid import make_grid, runs_of
from workers.replay.backtest.measure import SUMS
from workers.replay.backtest.recommend import recommend
from workers.replay.backtest.results import (
    Outcome,
    Tables,
    by_histogram,
    prepare,
    read,
    write,
)
from workers.replay.backtest.sweep import Backtest, Pool, processes_for
from workers.replay.gaps import gap_remarks
from workers.replay.interrupts import Interrupts
from workers.replay.offline import REJECTS_LISTED, Rejected, Summary, Write, replay
from workers.replay.source import Source
from workers.replay.sources import open_source
from workers.runtime.errors import SettingsError
from workers.runtime.printing import ProgressLine, plural
from workers.settings.files import read_key
from workers.settings.settings import Settings
from workers.settings.times import parse_time, when

EXIT_TERMINATED = 143
# Of a backtest's results, for each histogram.
ROWS_SHOWN = 40
# Runs of empty ticks, for each histogram.
GAPS_SHOWN = 3
# Defaults of a backtest.
SEEDS = 3
TOP = 10
METRICS_SHOWN = (
    "shown",
    "error_mean",
    "recall_unbounded",
    "recall",
    "rank_correlation",
    "coverage",
    "lost",
)


def _opener(chosen: Replay) -> Callable[[Settings], AbstractContextManager[Source]]:
    """Return what opens the source, a file or the topic, for some settings."""
    if chosen.source is not None:
        return partial(open_source, name=chosen.source)
    from workers.replay.sources_topic import open_topic

    since_ms = None if chosen.since is None else parse_time("--from", chosen.since)
    until_ms = None if chosen.until is None else parse_time("--to", chosen.until)
    return partial(open_topic, since_ms=since_ms, until_ms=until_ms, say=log)


def replay_events(settings: Settings, chosen: Replay) -> int:
    """Replay the events of the file `source`, or (None) those of the topic from `since` to `until`.

    With `report` this is a backtest. Snapshots go to the file `snapshots`, one JSON object per
    line. Return the exit code: 0, even if lines were rejected; 130 after Ctrl-C and 143 after
    SIGTERM, with the ticks released by then.
    """
    source = chosen.source
    snapshots = chosen.snapshots
    if source is not None and snapshots is not None and "-" not in (source, snapshots):
        with suppress(OSError):  # one of them does not exist
            if Path(source).samefile(snapshots):
                raise SettingsError(
                    f"--snapshots {snapshots}: it is the input; choose another file"
                )
    open_events = _opener(chosen)
    key = NoiseKey(read_key(settings.worker.key_file))
    ensure_compiled()
    with Interrupts() as interrupts:
        backtest = (
            None
            if chosen.report is None
            else BacktestRun(chosen, chosen.report, settings, key)
        )
        # A backtest reads the events once, with all that any of its combinations needs.
        reader_settings = settings if backtest is None else backtest.settings
        with (
            backtest or nullcontext(),
            open_events(reader_settings) as events,
            Output(snapshots) as output,
            ProgressLine() as progress,
        ):

            def show(summary: Summary) -> None:
                progress.update(_progress_text(summary))

            if backtest is None:
                summary = replay(settings, key, events, output.write, show)
            else:
                for note in backtest.notes():
                    progress.print(f"replay: {note}")
                summary = backtest.runs.run(reader_settings, events, output.write, show)
            for note in events.notes():
                progress.print(f"replay: {note}")
            if not summary.events and not summary.partial:
                _refuse_empty(
                    summary, events, source is None, measured=backtest is not None
                )
            # A replay that was stopped before its first snapshot leaves no file.
            if not summary.partial or summary.snapshots:
                output.close(partial=summary.partial)
            for line in report(summary, events.word, events.places):
                progress.print(line)
            for line in empty_runs(summary, reader_settings.histograms):
                progress.print(f"  {line}")
            if backtest is not None:
                for line in backtest.write(summary, events.word):
                    progress.print(line)
            if summary.partial:
                progress.print(
                    _stopped(summary, output.place, measured=backtest is not None)
                )
        if interrupts.pressed is None:
            return 0
        return (
            EXIT_TERMINATED
            if interrupts.pressed is signal.SIGTERM
            else EXIT_INTERRUPTED
        )


def _refuse_empty(
    summary: Summary, source: Source, of_topic: bool, *, measured: bool
) -> None:
    """Refuse a source without events, unless it is a file whose rejected lines are listed.

    A topic is refused even if records were rejected: without a time they may lie outside the range.
    A backtest is always refused: it has nothing to measure.
    """
    if summary.rejects and not of_topic and not measured:
        return
    why = ""
    if summary.rejects:
        first = _place(summary.first_rejects[0], source.word, source.places)
        why = f"; {plural(summary.rejects.total(), source.word)} rejected, the first: {first}"
    if of_topic:
        raise SettingsError(f"{source.name}: no events in this range of the topic{why}")
    if measured:
        raise SettingsError(f"{source.name}: no events, so nothing to measure{why}")
    raise SettingsError(f"{source.name}: no events in it{why}")


def _place(reject: Rejected, word: str, places: Sequence[str]) -> str:
    """Return where a rejected line or record is, and why it was rejected.

    `word` is what the source has, line or record; `places` names its partitions.
    """
    partition = f"{places[reject.partition]}, " if len(places) > 1 else ""
    return f"{partition}{word} {reject.number:,}: {reject.reason}"


def _progress_text(summary: Summary) -> str:
    """Return how far a replay is, its speed, and how long it will take if that stays so."""
    text = totals(summary)
    if summary.seconds > 0:
        text += f", {summary.events / summary.seconds:,.0f} events/s"
    if summary.total and summary.position:
        left = summary.seconds * max(summary.total / summary.position - 1, 0)
        text += f", {min(summary.position / summary.total, 1):.0%}, {_clock(left)} left"
    return text


def totals(summary: Summary) -> str:
    rejects = sum(summary.rejects.values())
    return f"{summary.events:,} events, {rejects:,} rejected, {summary.snapshots:,} snapshots, {summary.seconds:.1f} s"


def report(summary: Summary, word: str, places: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a replay's summary.

    `word` is what the source has, line or record; `places` names its partitions.
    """
    mark = " PARTIAL:" if summary.partial else ""
    yield f"replay:{mark} {totals(summary)} (exact: for the operator only)"
    if summary.outside:
        yield f"  {summary.outside:,} events outside the time range, left out"
    if summary.late:
        yield f"  {summary.late:,} events later than events.grace allows, counted in the open tick, as the worker does"
    for name, late in summary.moved.items():
        if late:
            yield f"  {plural(late, 'event')} of {name} came after their tick had closed, and count in a later one"
    for reason, times in summary.rejects.most_common():
        yield f"  {plural(times, word)} rejected: {reason}"
    for reject in summary.first_rejects:
        yield f"  {_place(reject, word, places)}"
    if sum(summary.rejects.values()) > REJECTS_LISTED:
        yield f"  ... (the first {REJECTS_LISTED} are listed)"


def empty_runs(
    summary: Summary, histograms: Sequence[HistogramConfig]
) -> Iterator[str]:
    """Yield remarks on long runs of ticks without events, in which all is published as well."""
    gaps = summary.times.gaps()
    for config in histograms:
        yield from islice(gap_remarks(gaps, config), GAPS_SHOWN)


def _stopped(summary: Summary, place: str | None, *, measured: bool) -> str:
    """Return how far a replay came that was stopped, and the `place` of its snapshots.

    `place` None: none were written. `measured`: it is a backtest.
    """
    text = "replay: stopped: "
    if summary.last_ms is None:
        return text + "no events were read"
    text += f"events up to {when(summary.last_ms)} were read, "
    if measured:
        return text + "and the results cover the ticks that were complete by then"
    text += f"{summary.ticks:,} ticks are complete"
    return text + (f"; they are in {place}" if place is not None else "")


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Output:
    """The file of snapshots, which gets its name once it is complete.

    "-" is standard output, None writes nothing.
    """

    def __init__(self, name: str | None) -> None:
        """Open the file `name`, for now as NAME.part; "-": standard output, None: no file."""
        self._name = name
        # None: nothing is written.
        self._file: IO[bytes] | None = None
        # The file's path until it gets its name.
        self._part: Path | None = None
        #: Where the snapshots are, once closed.
        self.place: str | None = None
        #: What a replay calls with each snapshot; None: it need not make any.
        self.write: Write = None if name is None else self._write
        if name == "-":
            self._file = sys.stdout.buffer
        elif name is not None:
            path = Path(name)
            with self._explain_errors():
                # A pipe or a device must not be replaced.
                if path.is_file() or not path.exists():
                    self._part = path.with_name(path.name + ".part")
                self._file = (self._part or path).open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; remove it unless `close` gave it its name."""
        if self._file is not None and self._file is not sys.stdout.buffer:
            with suppress(OSError):  # write errors have already been reported
                self._file.close()
        if self._part is not None:
            self._part.unlink(missing_ok=True)

    def _write(self, snapshot: Snapshot) -> None:
        with self._explain_errors():
            if self._file is not None:
                self._file.write(snapshot.value + b"\n")

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn errors of writing into one clear line."""
        try:
            yield
        except BrokenPipeError:
            # A reader such as `head` has enough: `cli` ends without a message.
            raise
        except OSError as error:
            raise SettingsError(
                f"--snapshots {self._name}: {error.strerror}"
            ) from error

    def close(self, *, partial: bool) -> None:
        """Give the file its name; a `partial` one (ticks missing) never replaces an older file.

        Then it is NAME.partial.
        """
        if self._file is None or self._name is None:
            return
        with self._explain_errors():
            self._file.flush()
            self.place = "standard output" if self._name == "-" else self._name
            if self._part is not None:
                path = Path(self._name)
                if partial and path.exists():
                    path = path.with_name(path.name + ".partial")
                self._file.close()
                os.replace(self._part, path)
                self.place = str(path)
                self._part = None


class BacktestRun:
    """The runs of a backtest, and its results; leaving the context ends its processes."""

    def __init__(
        self, chosen: Replay, directory: Path, settings: Settings, key: NoiseKey
    ) -> None:
        """Prepare the runs that the options ask for, and the report's directory."""
        writes = chosen.snapshots is not None
        if chosen.vary and writes:
            raise SettingsError(
                "--snapshots writes those of one run, so it cannot be used with --vary"
            )
        self._directory = directory
        self._grid = make_grid(settings, chosen.config, chosen.vary)
        self.settings = self._grid.reader_settings(settings)
        prepare(directory, force=chosen.force)
        runs = runs_of(self._grid.combinations, chosen.seeds or SEEDS)
        self._number = len(runs)
        # This process reads the events, and writes snapshots itself. If there are many runs, other
        # processes begin here, before that, and share them.
        processes = 1 if writes else processes_for(runs)
        top = chosen.top or TOP
        self.runs: Backtest | Pool
        if processes > 1:
            self.runs = Pool(runs, key, top, processes)
        else:
            self.runs = Backtest(runs, key, top)
            # The first seed's, as one replay has one.
            for watch in self.runs.watches():
                watch.histogram.written = writes and watch.run.seed == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self.runs, Pool):
            self.runs.close()

    def notes(self) -> Iterator[str]:
        """Yield what is varied and what was left out, before the runs begin."""
        yield from self._grid.notes
        yield from (f"left out: {reason}" for reason in self._grid.left_out)
        yield f"{len(self._grid.combinations):,} combinations of settings, {self._number:,} runs with their seeds"

    def write(self, summary: Summary, word: str) -> Iterator[str]:
        """Write the results and the report; yield the lines to print."""
        begun = time.perf_counter()
        directory = self._directory
        write(directory, self.runs.results(summary, word, self._grid.left_out))
        yield from table(read(directory))
        from workers.replay.report.report import write_report

        for line in write_report(directory):
            yield f"replay: {line}"
        seconds = time.perf_counter() - begun
        yield f"replay: results and report in {directory} ({seconds:.1f} s): exact data, for the operator only"


def table(tables: Tables) -> Iterator[str]:
    """Yield a backtest's results as tables, one a histogram, with recommendations."""
    for histogram, outcomes in by_histogram(tables).items():
        yield f"{histogram}:"
        yield from _aligned([_row(outcome) for outcome in outcomes[:ROWS_SHOWN]])
        if len(outcomes) > ROWS_SHOWN:
            yield f"  ... (the first {ROWS_SHOWN} of {len(outcomes)}; all are in the report)"
        for sentence in recommend(outcomes).words:
            yield f"  {sentence}"


def _row(outcome: Outcome) -> dict[str, str]:
    """Return one line of results, by column, for a combination of settings."""
    row = {
        "run": str(outcome.row.run),
        "mechanism": outcome.row.mechanism,
        "epsilon": f"{outcome.row.epsilon:g}",
    }
    # Varied settings, those of the columns above once.
    row |= {
        name: value or "-" for name, value in outcome.varied.items() if name not in row
    }
    metrics_of_sums = [metric for metric in SUMS if metric in outcome.metrics]
    for metric in (*METRICS_SHOWN, *metrics_of_sums):
        row[metric] = "-"
        if metric in outcome.metrics:
            value = outcome.metrics[metric].mean
            row[metric] = f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
    return row


def _aligned(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of a table: the names of the columns, then the rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([row.get(name, "-") for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    for line in lines:
        yield "  " + "  ".join(
            text.rjust(width) for text, width in zip(line, widths, strict=True)
        )
