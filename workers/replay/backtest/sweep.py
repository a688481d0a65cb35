"""Backtest: measure every combination of settings and every seed against the exact counts.

A worker has two stages: stage 1 bounds and sums events, stage 2 adds noise and publishes. Both run
here without Kafka (`replay.offline`). Histograms of equal bounds, ticks and fields share a *lane*.
Events are decoded, bounded and summed once per lane, exact counts made once for all runs with the
same bounds, exact boards once per tick. Only the noise and the shown items are a run's own.

Runs that count the same events over the same ticks and epochs form a group (`scope_of`). Its
unbounded counts are released last in a tick (`truth.unbounded`), and with them the group is
measured, at a thinned set of ticks: memory does not grow with the number of ticks or events. A tick
is *whole* once all of the group has released it.

`Pool` uses all cores. This process reads and sums the events once; forked processes do the runs and
return figures. They receive what the worker's stage 1 sends to stage 2 (`Merge`), so each is a
complete stage 2 with its own exact counts. They are forked before anything is read: the key is
inherited, never sent. The assignment of runs to processes does not affect any figure. The processes
ignore Ctrl-C; this process handles it between two batches and makes them end there.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from multiprocessing.connection import Connection
from typing import Any, cast

from workers.mechanisms.config.histogram import HistogramConfig, Lane
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import Message
from workers.pipeline.merge import Released
from workers.pipeline.snapshots import ReleasedTick
from workers.replay.backtest.grid import Run, settings_text
from workers.replay.backtest.measure import Watch, has_rows_of_truth, watch
from workers.replay.backtest.results import Input, Results, RunRow
from workers.replay.backtest.truth import (
    Mirrored,
    Truth,
    View,
    truth_of,
    unbounded,
    with_cache,
)
from workers.replay.interrupts import HANDLED_SIGNALS, Interrupts
from workers.replay.offline import (
    STREAM,
    Progress,
    ReplayHistogram,
    ReplayMerge,
    Summary,
    Write,
    fresh_histograms,
    infrequent_gc,
    replay,
)
from workers.replay.source import Source
from workers.runtime.errors import QuietcountError
from workers.runtime.process import cores
from workers.settings.settings import Settings

# With fewer runs, the processes' own counting costs more than it saves.
RUNS_EACH_MIN = 2


def processes_for(runs: Sequence[Run]) -> int:
    """Return how many processes to share the runs between; 1: only this one."""
    if not sys.platform.startswith("linux"):
        return 1  # on other systems, forking with library threads is unsafe
    return max(1, min(cores(), len(runs) // RUNS_EACH_MIN))


def split_runs(runs: Sequence[Run], number: int) -> list[list[Run]]:
    """Split the runs evenly between `number` processes, so that few have runs of the same lane.

    Runs of one lane share bounded counts.
    """
    # Lanes are ordered by their first run.
    first: dict[Lane, int] = {}
    for i, run in enumerate(runs):
        first.setdefault(run.combination.config.lane, i)
    ordered = sorted(
        runs,
        key=lambda run: (first[run.combination.config.lane], run.number, run.seed),
    )
    cuts = [len(ordered) * i // number for i in range(number + 1)]
    return [ordered[a:b] for a, b in pairwise(cuts)]


class Pool:
    """Processes that share the runs; this one reads and sums the events for all of them.

    It takes the place of the merge (`offline.Merging`): calls are recorded, and sent at `release`.
    """

    def __init__(
        self, runs: Sequence[Run], key: NoiseKey, top: int, number: int
    ) -> None:
        """Fork `number` processes, each with a share of `runs`; `top` is the n of top-n metrics."""
        self._key = key
        self._top = top
        self._calls: list[tuple[Any, ...]] = []
        backtests = [Backtest(share, key, top) for share in split_runs(runs, number)]
        # Not run here; they determine which lanes to count.
        self.histograms = [one for backtest in backtests for one in backtest.histograms]
        context = multiprocessing.get_context("fork")
        self._children: list[tuple[Any, Connection]] = []
        for backtest in backtests:
            ours, theirs = context.Pipe()
            # A child inherits our ends of all pipes. It closes them, so that this process alone
            # holds them: when it is gone, the children see the end.
            others = [ours, *(connection for _, connection in self._children)]
            child = context.Process(
                target=_serve, args=(backtest, key, theirs, others), daemon=True
            )
            # Block signals until the child ignores them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
            child.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            self._children.append((child, ours))

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for child, connection in self._children:
            child.kill()
            connection.close()
            child.join()

    def take(self, message: Message, offset: int) -> None:
        self._calls.append(("take", message, offset))

    def reached(self, position: int) -> None:
        self._calls.append(("reached", position))

    def end_of_input(self, until_ms: int | None = None) -> None:
        self._calls.append(("end_of_input", until_ms))

    def release(self, *, after_tick: Callable[[], object] = lambda: None) -> Released:
        """Send the recorded calls: the other processes release the ticks and measure them."""
        calls = self._calls
        self._calls = []
        if calls:
            self._send("release", calls)
        return Released(0, [])  # no ticks, no snapshots: nothing is released here

    def run(
        self, settings: Settings, source: Source, write: Write, progress: Progress
    ) -> Summary:
        """Read the source, to its end or to Ctrl-C, for the processes, which do the runs.

        No snapshot is written: `write` is there as for a `Backtest`.
        """
        with Interrupts() as interrupts:
            # Part of a message would be read as the start of the next.
            with interrupts.deferred():
                self._send("begin", source.partitions)
            return replay(
                settings,
                self._key,
                source,
                None,
                progress,
                histograms=self.histograms,
                merge=self,
            )

    def results(
        self, summary: Summary, word: str, left_out: Sequence[str] = ()
    ) -> Results:
        """Collect the results of all processes; only this one knows what was read."""
        self._send("results", summary, word)
        results = Results(input_of(summary, word, self._top, left_out))
        for _, connection in self._children:
            part = self._receive(connection)
            results.runs += part.runs
            results.series += part.series
            results.boards += part.boards
        for rows in (results.runs, results.series, results.boards):
            rows.sort(key=lambda row: (row.run, row.seed))
        return results

    def _send(self, *message: object) -> None:
        """Send a message to every process; raise the error of one that has failed."""
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        for _, connection in self._children:
            # A process sends unasked, and ends, only if it has failed: then `_receive` raises.
            if connection.poll():
                self._receive(connection)
            try:
                connection.send_bytes(content)
            except OSError:
                self._receive(connection)

    @staticmethod
    def _receive(connection: Connection) -> Results:
        """Return the results of a process, or raise the error that it sends."""
        try:
            answer: Results | Exception = connection.recv()
        except EOFError:
            raise RuntimeError(
                "a backtest process ended: was it killed for its memory?"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(
    backtest: Backtest,
    key: NoiseKey,
    connection: Connection,
    others: Sequence[Connection],
) -> None:
    """Be a process of a `Pool`: do the runs of `backtest`, then send the results, or an error.

    `connection` is to the parent; `others` are its ends of pipes, to be closed.
    """
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
    for other in others:
        other.close()
    answer: Results | Exception
    try:
        answer = _served(backtest, key, connection)
    except EOFError:
        return  # the parent is gone
    except QuietcountError as error:
        answer = error
    except Exception as error:  # noqa: BLE001 (a process boundary: the caller reports it)
        answer = RuntimeError(f"{type(error).__name__}: {error}")
    with contextlib.suppress(OSError):  # the parent is gone
        connection.send(answer)


def _served(backtest: Backtest, key: NoiseKey, connection: Connection) -> Results:
    """Make the parent's calls to its merge here; return the results when it asks for them.

    Messages are ("begin", source partitions), ("release", calls) and ("results", arguments...). The
    backtest's histograms measure what they release.
    """
    with infrequent_gc():
        while True:
            # Safe to unpickle: only the parent process can send it.
            what, *arguments = pickle.loads(connection.recv_bytes())
            if what == "begin":
                merge = ReplayMerge(
                    backtest.histograms, key=key, sources=arguments[0], owners=1
                )
            elif what == "release":
                for name, *details in arguments[0]:
                    getattr(merge, name)(*details)
                while merge.release().ticks:
                    # A worker would store the tick's changes; here they would only fill the memory.
                    for histogram in backtest.histograms:
                        histogram.forget()
            else:
                return backtest.results(*arguments)


# Most measured ticks and most boards of a group.
TICKS_MEASURED = 256
BOARDS_KEPT = 8


class Thinned:
    """A set of at most `most` ticks: multiples of a power of two, which doubles when it is full.

    So ticks stay evenly spread, however many there will be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self.ticks: set[int] = set()

    def due(self, tick: int) -> bool:
        """Return whether a tick belongs to the set; add it if so."""
        if tick % self._stride:
            return False
        self.ticks.add(tick)
        while len(self.ticks) > self._most:
            self._stride *= 2
            self.ticks = {tick for tick in self.ticks if tick % self._stride == 0}
        # Thinning may have dropped it at once.
        return tick in self.ticks


#: Everything that the unbounded counts of a histogram depend on.
Scope = tuple[object, ...]


def scope_of(config: HistogramConfig) -> Scope:
    """Return what unbounded counts depend on: histograms with equal scopes share them."""
    # When counts begin, and when they return to 0: at an epoch, or at every tick.
    epochs = (
        config.start_given,
        config.horizon,
        config.about.family == "tick",
    )
    windows = (config.window_ticks, config.hops) if config.without_epochs else ()
    return unbounded(config.lane), *epochs, *windows, config.keys


class Group:
    """Runs with one scope, measured against common unbounded counts, `wide`.

    A watch observes one series of a run; it measures against a view, of the exact counts.
    """

    def __init__(self, wide: Truth) -> None:
        self.wide = wide
        self.watches: list[Watch] = []
        #: By bounds and declared domain: a view of each series.
        self.views: dict[tuple[Lane, tuple[bytes, ...]], tuple[View, ...]] = {}
        self._measured = Thinned(TICKS_MEASURED)
        self._boards = Thinned(BOARDS_KEPT)
        # The global tick that `wide` counted last.
        self._tick = 0
        wide.observe = self._on_tick

    @property
    def whole(self) -> bool:
        """Whether every run has released the tick counted last: no tick is half done."""
        return all(watch.last_tick == self._tick for watch in self.watches)

    def _on_tick(self, shown: ReleasedTick) -> None:
        """Measure a due tick, when `wide` has released one of its series, `shown`.

        `wide` is last, so all runs have released the tick; and every series has been counted.
        """
        # Once a tick, at the first series (number 0): without epochs every window is a series.
        if shown.series:
            return
        self._tick = self.wide.last_tick
        ticks = len(self._measured.ticks)
        boards = len(self._boards.ticks)
        if self._measured.due(self._tick):
            self._measure(board=self._boards.due(self._tick))
        # If the sets were thinned, drop what was measured elsewhere.
        if len(self._measured.ticks) < ticks or len(self._boards.ticks) < boards:
            for one in self.watches:
                one.retain(self._measured.ticks, self._boards.ticks)

    def _measure(self, *, board: bool) -> None:
        """Measure the last tick counted in every run; keep its boards if `board`."""
        for view in chain.from_iterable(self.views.values()):
            view.update()
        for one in self.watches:
            one.measure(board=board)

    def finish(self) -> None:
        """At the end of the input, measure the last tick, if whole, and end its epoch."""
        if self._tick and self.whole:
            self._measure(board=True)
        for one in self.watches:
            one.end_epoch()


class Backtest:
    """All runs over one stream of events. Sensitive: it holds exact counts."""

    def __init__(self, runs: Sequence[Run], key: NoiseKey, top: int) -> None:
        """Make the histograms of all runs, of their truths and of unbounded counts.

        `top` is the n of top-n metrics.
        """
        self._key = key
        self._top = top
        self._groups: dict[Scope, Group] = {}
        # By number of the combination: its seeds share one.
        self._mechanisms = {
            run.number: with_cache(run.combination.mechanism) for run in runs
        }
        # This also fills the groups.
        running = [self._histogram(run) for run in runs]
        groups = self._groups.values()
        # The views of a histogram's series share one truth.
        truths = [views[0].truth for group in groups for views in group.views.values()]
        wide = [group.wide for group in groups]
        # A truth counts a tick before the runs look at it; unbounded counts follow all runs.
        self.histograms: list[ReplayHistogram] = [*truths, *running, *wide]

    def _group_of(self, config: HistogramConfig) -> Group:
        """Return the group that a histogram belongs to; create it if it is the first there."""
        scope = scope_of(config)
        if scope not in self._groups:
            wide = truth_of(
                config, self._key, (), lane=unbounded(config.lane), sizes=False
            )
            self._groups[scope] = Group(wide)
        return self._groups[scope]

    def _views_of(self, run: Run, group: Group) -> tuple[View, ...]:
        """Return the exact counts to measure a run against, one view for each of its series.

        Runs with equal bounds and domain share them.
        """
        config = run.combination.config
        # Exact counts are never made in sketches, even if the run's are.
        lane = config.lane._replace(sketch=0)
        domain = tuple(run.combination.mechanism.domain())
        bounds_and_domain = (lane, domain)
        if bounds_and_domain not in group.views:
            truth = truth_of(
                config,
                self._key,
                domain,
                lane=lane,
                sizes=run.combination.discovers,
            )
            group.views[bounds_and_domain] = tuple(
                View(truth, group.wide, self._key, self._top, number)
                for number in range(len(config.series))
            )
        return group.views[bounds_and_domain]

    def _histogram(self, run: Run) -> ReplayHistogram:
        """Return the histogram of a run; the watches that see its ticks join those of its group.

        Seed 0 draws a plain replay's noise, every other seed its own.
        """
        config = run.combination.config
        group = self._group_of(config)
        views = self._views_of(run, group)
        mechanism = self._mechanisms[run.number]
        stream = STREAM if run.seed == 0 else f"{STREAM} seed {run.seed}"
        if has_rows_of_truth(config):
            mechanism = cast(Mechanism, Mirrored(mechanism, views[0].truth))
        [histogram] = fresh_histograms(
            run.combination.settings, self._key, stream, [mechanism]
        )
        histogram.written = False
        watches = [watch(run, histogram, view) for view in views]
        histogram.observe = partial(_show, watches)
        group.watches += watches
        return histogram

    def run(
        self, settings: Settings, source: Source, write: Write, progress: Progress
    ) -> Summary:
        """Do all runs over a source, to its end or to Ctrl-C, which leaves whole ticks."""
        with Interrupts() as interrupts:

            def after_tick(summary: Summary) -> None:
                progress(summary)
                # Ctrl-C takes effect only here: elsewhere some runs lack a tick that others have.
                if all(group.whole for group in self._groups.values()):
                    interrupts.check()

            return replay(
                settings,
                self._key,
                source,
                write,
                progress,
                histograms=self.histograms,
                after_tick=after_tick,
            )

    def watches(self) -> Iterator[Watch]:
        """Yield the observers of all runs and series, by run and seed."""
        found = [watch for group in self._groups.values() for watch in group.watches]
        yield from sorted(found, key=lambda one: (one.run.number, one.run.seed))

    def results(
        self, summary: Summary, word: str, left_out: Sequence[str] = ()
    ) -> Results:
        """Measure the last tick and return all results.

        `word` is the unit of reject numbers, `left_out` the combinations that are invalid.
        """
        for group in self._groups.values():
            group.finish()
        results = Results(input_of(summary, word, self._top, left_out))
        for one in self.watches():
            results.runs.append(row_of(one, summary))
            results.series += one.series()
            results.boards += one.boards()
        return results


def _show(watches: Sequence[Watch], shown: ReleasedTick) -> None:
    """Show a released tick to the observer of its series."""
    watches[shown.series].on_tick(shown)


def input_of(summary: Summary, word: str, top: int, left_out: Sequence[str]) -> Input:
    """Return what the results say of the events that were read.

    `word` is the unit of reject numbers, `top` the n of top-n metrics, `left_out` the combinations
    that are invalid.
    """
    return Input(
        complete=not summary.partial,
        events=summary.events,
        late=summary.late,
        outside=summary.outside,
        first_ms=summary.first_ms,
        last_ms=summary.last_ms,
        word=word,
        counts=dict(sorted(summary.rejects.items())),
        first=summary.first_rejects,
        top=top,
        left_out=left_out,
    )


def row_of(watch: Watch, summary: Summary) -> RunRow:
    """Return the row of runs.parquet of the series that was watched."""
    combination = watch.run.combination
    promise = combination.mechanism.guarantee
    return RunRow(
        run=combination.run,
        seed=watch.run.seed,
        histogram=watch.name,
        window_ms=watch.window_ms,
        mechanism=combination.config.mechanism,
        varied=combination.varied,
        settings=settings_text(combination.config),
        rho=promise.rho,
        epsilon=promise.epsilon,
        delta=promise.delta,
        unit=promise.unit,
        tick_ms=combination.config.tick_ms,
        first_tick=watch.first_tick,
        ticks=watch.ticks,
        epochs=watch.histogram.life.epochs,
        events=summary.events,
        complete=not summary.partial,
    )
