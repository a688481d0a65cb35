"""A backtest on all cores: events are read and added up here, once; other processes do the runs.

What goes to them is what the worker's stage 1 tells stage 2 (`Merge`), so each is a stage 2 of its
own, with its own exact counts; what comes back are figures. They are forked before anything is
read: the key is inherited, never sent. Which process has which run does not show in any figure.
They ignore Ctrl-C; this process heeds it, between two batches, and tells them to end there.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import Message
from workers.pipeline.merge import Released
from workers.pipeline.snapshots import Snapshot
from workers.replay.backtest.grid import Run
from workers.replay.backtest.results import Results
from workers.replay.backtest.sweep import Backtest, input_of
from workers.replay.interrupts import HEEDED, Interrupts
from workers.replay.offline import Offline, ReplayHistogram, ReplayMerge, Summary, drive, few_collections
from workers.replay.source import Source
from workers.runtime.errors import QuietcountError
from workers.runtime.process import cores
from workers.settings.settings import Settings

# Below it the processes' own counting costs more than is won.
RUNS_EACH_MIN = 2


def processes_for(runs: Sequence[Run]) -> int:
    """Return how many processes to share the runs between; 1: none but this."""
    if not sys.platform.startswith("linux"):
        return 1  # elsewhere a fork is not safe where a library has threads
    return max(1, min(cores(), len(runs) // RUNS_EACH_MIN))


def shares_of(runs: Sequence[Run], number: int) -> list[list[Run]]:
    """Return as many runs for each, those together that share what is counted for their bounds."""
    lanes = [run.combination.config.lane for run in runs]
    first = {lane: at for at, lane in reversed(list(enumerate(lanes)))}
    ordered = sorted(runs, key=lambda run: (first[run.combination.config.lane], run.number, run.seed))
    cuts = [len(ordered) * i // number for i in range(number + 1)]
    return [ordered[a:b] for a, b in pairwise(cuts)]


class Pool:
    """Processes with runs, until it is closed."""

    def __init__(self, runs: Sequence[Run], key: NoiseKey, top: int, number: int) -> None:
        """Fork `number` processes; see `Backtest`."""
        self._key, self._top = key, top
        self._calls: list[tuple[Any, ...]] = []
        backtests = [Backtest(share, key, top) for share in shares_of(runs, number)]
        # They are not run here, but say which lanes to count.
        self.histograms: list[ReplayHistogram] = [one for backtest in backtests for one in backtest.histograms]
        context = multiprocessing.get_context("fork")
        self._children: list[tuple[Any, Connection]] = []
        for backtest in backtests:
            ours, theirs = context.Pipe()
            others = [connection for _, connection in self._children]
            child = context.Process(target=_serve, args=(backtest, key, theirs, [ours, *others]), daemon=True)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)  # until the child heeds them no more
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

    # ---- as a merge -----------------------------------------------------------------------------

    def take(self, message: Message, offset: int) -> None:
        self._calls.append(("take", message, offset))

    def reached(self, position: int) -> None:
        self._calls.append(("reached", position))

    def end_of_input(self, until_ms: int | None = None) -> None:
        self._calls.append(("end_of_input", until_ms))

    def release(self, *, after_tick: Callable[[], object] = lambda: None) -> Released:
        """Hand over what was told; the ticks are released elsewhere."""
        calls, self._calls = self._calls, []
        if calls:
            self._tell("release", calls)
        return Released(0, [])

    # ---- what goes and comes --------------------------------------------------------------------

    def run(
        self,
        settings: Settings,
        source: Source,
        write: Callable[[Snapshot], object] | None,
        progress: Callable[[Summary], object],
    ) -> Summary:
        """Read the source, to its end or to Ctrl-C; see `Backtest.run`. No snapshot is written."""
        with Interrupts() as interrupts, few_collections():
            with interrupts.held():  # half a message would be taken for the beginning of the next
                self._tell("begin", source.partitions)
            offline = Offline(
                settings,
                self._key,
                self.histograms,
                partitions=source.partitions,
                until_ms=source.until_ms,
                merge=self,
            )
            return drive(offline, source, interrupts, progress)

    def results(self, summary: Summary, word: str, left_out: Sequence[str] = ()) -> Results:
        """Return what was measured, in the order of the runs."""
        self._tell("results", summary, word)
        results = Results(input_of(summary, word, self._top, left_out))
        for _, connection in self._children:
            part = self._hear(connection)
            results.runs += part.runs
            results.series += part.series
            results.boards += part.boards
        for rows in (results.runs, results.series, results.boards):
            rows.sort(key=lambda row: (row.run, row.seed))
        return results

    def _tell(self, *message: object) -> None:
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        for _, connection in self._children:
            if connection.poll():
                self._hear(connection)  # it speaks unasked only to say what went wrong
            try:
                connection.send_bytes(content)
            except OSError:
                self._hear(connection)

    @staticmethod
    def _hear(connection: Connection) -> Results:
        try:
            answer = connection.recv()
        except EOFError:
            raise RuntimeError("a process of the backtest ended: was it killed for its memory?") from None
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Results):
            raise TypeError("a process of the backtest answered something else than results")
        return answer


def _serve(backtest: Backtest, key: NoiseKey, connection: Connection, others: Sequence[Connection]) -> None:
    """Release what this process is told of, until it is asked for its results."""
    for number in HEEDED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
    for other in others:
        other.close()
    answer: Results | Exception
    try:
        answer = _served(backtest, key, connection)
    except EOFError:
        return  # nobody wants to know any more
    except QuietcountError as error:
        answer = error
    except Exception as error:  # noqa: BLE001 (the last place: it is told where it is shown)
        answer = RuntimeError(f"{type(error).__name__}: {error}")
    with contextlib.suppress(OSError):  # again nobody
        connection.send(answer)


def _served(backtest: Backtest, key: NoiseKey, connection: Connection) -> Results:
    merge = ReplayMerge(backtest.histograms, key=key, sources=1, owners=1)
    with few_collections():
        while True:
            what, *arguments = pickle.loads(connection.recv_bytes())  # from the process that forked this one
            if what == "begin":
                merge = ReplayMerge(backtest.histograms, key=key, sources=arguments[0], owners=1)
            elif what == "release":
                for name, *details in arguments[0]:
                    getattr(merge, name)(*details)
                while merge.release().ticks:
                    for histogram in backtest.histograms:
                        histogram.forget()
            else:
                backtest.finish()
                return backtest.results(*arguments)
