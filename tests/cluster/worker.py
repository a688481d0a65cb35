"""`quietcount run` and other commands in this process, on the simulated Kafka and its clock.

A worker is the real one from its settings file to its shards, and from its shards to its exit code.
Only Faust's application is replaced: `serve` gives every partition's shard what its log has, each
shard in a greenlet of its own. Shards of two workers are not divided among them: that is Kafka's to
do, so tests with two workers at a time take a real one.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from unittest.mock import patch

from tests.cluster.broker import Broker, Log, Watcher
from tests.cluster.connection import (
    PAUSE_S,
    AbsentAdmin,
    Running,
    SimulatedConnection,
    SimulatedReader,
    follow,
)
from tests.cluster.loop import (
    TIME,
    Actor,
    Loop,
    current,
    driving,
    simulated_time,
)
from tests.cluster.network import LONGEST_S, Network, Rates
from workers.agents import worker as worker_module
from workers.agents.worker import Factory
from workers.cli import execute
from workers.commands.failures import explain
from workers.commands.init import sample as init_sample
from workers.kafka.clients import Connection, unreachable
from workers.kafka.handover import KAFKA_AWAY
from workers.kafka.shard import Shard, ShardClosed
from workers.replay import sources_topic
from workers.runtime.errors import CopyFailed, SourcesGrown
from workers.runtime.logs import log_fatal, log_to_stderr
from workers.settings.settings import load

ADDRESS = "simulated:9092"

logger = logging.getLogger("workers.kafka.handover")


class Process(Actor):
    """A worker, as `tests.forked.Started` shows the process of one."""

    pid = -1

    def __init__(self, config: Path, output: IO[bytes]) -> None:
        super().__init__(TIME.loop, "worker")
        self.returncode: int | None = None
        self.stopping = False
        self.factory: Factory | None = None
        self._shards: list[Actor] = []
        self._config = config
        self._output = os.fdopen(os.dup(output.fileno()), "w", buffering=1)
        self.loop.after(LONGEST_S, lambda: self.start(self._run))

    def _run(self) -> None:
        root = logging.getLogger()
        before = root.handlers[:], root.level
        Running.network.broker.workers.append(self)
        try:
            with redirect_stderr(self._output):
                log_to_stderr(debug=False)
                try:
                    self.returncode = worker_module.run(load(self._config))
                except Exception as error:  # noqa: BLE001  # as the command line does
                    self.returncode = explain(error, debug=False, say=log_fatal)
        finally:
            root.handlers[:] = before[0]
            root.setLevel(before[1])
            Running.network.broker.workers.remove(self)
            self._output.close()

    def serve(self, factory: Factory) -> int:
        """Run the shards of all partitions until told to stop, or until one fails."""
        self.factory = factory
        # It is held during requests, and one thread cannot wait for itself.
        factory._others._lock = nullcontext()  # type: ignore[assignment]
        failures: list[Exception] = []
        broker = Running.network.broker
        shards = []
        self._shards = []
        for topics in factory.stages.values():
            for topic, make in topics.items():
                for partition in range(broker.partitions(topic)):
                    if (shard := make(partition)) is not None:
                        shards.append(shard)
                        log = broker.logs[topic, partition]
                        self._begin(shard, log, failures)
        while not (self.stopping or failures):
            self.park(1.0)
        for shard in shards:
            shard.closed = True
        while not all(actor.ended for actor in self._shards):
            self.park(PAUSE_S)
        # In place of its thread.
        factory.budget.write(PAUSE_S)
        for failure in failures:
            again = isinstance(failure, CopyFailed | SourcesGrown)
            if not again and not unreachable(failure):
                raise failure
        return KAFKA_AWAY if failures else 0

    def _begin(self, shard: Shard, log: Log, failures: list[Exception]) -> None:
        def work() -> None:
            try:
                for handed in follow(shard, log):
                    logger.info("%s: took over at %d", shard.transactional_id, handed)
            except ShardClosed:
                pass
            except Exception as error:  # noqa: BLE001  # the worker ends with it
                failures.append(error)
                self.wake()
            finally:
                shard.closed = True
                shard.store.close()

        actor = Actor(self.loop, shard.transactional_id)
        self._shards.append(actor)
        self.loop.after(0.0, lambda: actor.start(work))

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end_s = self.loop.now_s + (timeout or 0.0)
        while not self.ended:
            if self.loop.now_s > end_s:
                raise subprocess.TimeoutExpired("quietcount", timeout or 0.0)
            current().park(PAUSE_S)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM and self.factory is not None:
            self.stopping = True
            self.wake()
        elif number in (signal.SIGTERM, signal.SIGKILL):
            self._end(0 if number == signal.SIGTERM else -number)

    def kill(self) -> None:
        self._end(-signal.SIGKILL)

    def _end(self, status: int) -> None:
        if self.ended:
            return
        self.returncode = status
        for actor in (*self._shards, self):
            actor.dead = True
            actor.wake()
            for client in actor.clients:
                client.close()
        # Held any longer, a request would fence the next worker, and nothing starts that one again.
        Running.network.deliver_held()


def launch(arguments: Sequence[str], output: IO[bytes], _errors: object) -> Process:
    """Start a worker, as `tests.forked.launch` does."""
    command, _, config = arguments
    assert command == "run", arguments
    return Process(Path(config), output)


def run(
    arguments: Sequence[str], patience_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `tests.forked.run` does."""
    if arguments[0] == "run":
        with TemporaryFile("w+b") as output:
            status = launch(arguments, output, output).wait(patience_s)
            output.seek(0)
            return subprocess.CompletedProcess(
                arguments, status, "", output.read().decode()
            )
    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()) as errors:
        status = execute(arguments)
    written = said.getvalue(), errors.getvalue()
    return subprocess.CompletedProcess(arguments, status, *written)


def _on_cluster(name: str) -> Callable[..., Any]:
    simulated = getattr(SimulatedConnection, name)

    def make(self: Connection, *given: Any, **options: Any) -> Any:
        if self.bootstrap == ADDRESS:
            return simulated(self, *given, **options)
        return AbsentAdmin()

    return make


@contextmanager
def running_cluster(now_ms: int, harness: Any) -> Iterator[str]:
    """Yield the address of a Kafka at which `harness` runs its workers and commands, all of it here.

    Time passes only where something waits for it.
    """
    loop = Loop(1, now_ms)
    broker = Broker(
        loop, Watcher(), verifies=True, marker_s=lambda: Running.network.marker_s()
    )
    Running.network = Network(loop, broker, Rates())
    with ExitStack() as stack:
        doubles: list[tuple[Any, str, Any]] = [
            (worker_module, "_run_once", lambda factory, _: current().serve(factory)),  # type: ignore[attr-defined]
            (worker_module, "_prepare", lambda: None),
            (worker_module, "filter_outage_logs", lambda: None),
            (harness, "launch", launch),
            (harness, "run", run),
            *(
                (Connection, name, _on_cluster(name))
                for name in ("producer", "consumer", "admin")
            ),
            *(
                (module, "open_reader", _reader)
                for module in (sources_topic, init_sample)
            ),
        ]
        for module, name, double in doubles:
            stack.enter_context(patch.object(module, name, double))
        stack.enter_context(driving(loop))
        stack.enter_context(simulated_time(harness.__name__))
        yield ADDRESS


@contextmanager
def _reader(_connection: Connection, _say: object) -> Iterator[SimulatedReader]:
    yield SimulatedReader(Running.network)
