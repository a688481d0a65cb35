"""Rounds: segments side by side on one cluster, and the trouble of its brokers beside them."""

import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.broker import LASTING, Brokers, fixed_port, own_broker, three_brokers
from tests.chaos.faults import make_trouble
from tests.chaos.network import PROPERTIES, Network
from tests.chaos.schedule import Round, Segment
from tests.chaos.segment import SLOTS, Result, Running
from tests.chaos.worker import Workers
from workers.settings.files import write_atomically

# For sessions shorter than brokers allow by default.
_SESSIONS = "group.min.session.timeout.ms=2000\n"
# A frozen controller must not declare its own broker dead when both go on; a killed broker may have
# to wait as long, and gives up after 60 s.
LIVING = "broker.session.timeout.ms=30000\n"
#: Where the broker is only killed, it comes back at once.
BRIEFLY = "broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n"
# Rejects that a worker on a slow clock writes would be old at once.
_KEPT = "log.retention.ms=-1\n"


@dataclass(frozen=True)
class Cluster:
    """Where segments run; without `brokers` there is no trouble."""

    bootstrap: str
    workers: Workers
    directory: Path
    brokers: Brokers | None = None
    #: Between the first worker of every segment and three brokers.
    network: Network | None = None

    def run(self, each: Round) -> list[Result]:
        if each.away_s:
            return self._run_with_restarts(each)
        began_s = time.monotonic()

        calm = threading.Event()

        def trouble() -> None:
            try:
                for one in each.trouble:
                    assert self.brokers is not None
                    time.sleep(max(0.0, began_s + one.at_s - time.monotonic()))
                    make_trouble(self.brokers, self.network, one)
            finally:
                calm.set()

        troubling = threading.Thread(target=trouble)
        troubling.start()
        with ThreadPoolExecutor(len(each.segments)) as pool:
            results = list(pool.map(lambda one: self._run(one, calm), each.segments))
        troubling.join()
        return results

    def _run_with_restarts(self, each: Round) -> list[Result]:
        """Run segments whose workers kill the only broker, which is started again each time."""
        assert self.brokers is not None
        [broker] = self.brokers
        number = self.directory / "broker.pid"
        calm = threading.Event()
        over = threading.Event()
        write_atomically(number, str(broker.pid).encode())
        # All topics are there before the first kill.
        running = [self._prepared(segment, calm, number) for segment in each.segments]

        def restart() -> None:
            away_s = iter(each.away_s)
            while not over.wait(0.1):
                if broker.pid is not None:
                    if not any(one.kills_broker for one in running):
                        calm.set()
                    continue
                over.wait(next(away_s, 0.0))
                broker.start()
                write_atomically(number, str(broker.pid).encode())

        restarting = threading.Thread(target=restart)
        restarting.start()
        try:
            with ThreadPoolExecutor(len(running)) as pool:
                results = list(pool.map(self._result, running))
        finally:
            over.set()
            restarting.join()
        return results

    def _prepared(
        self, segment: Segment, calm: threading.Event, broker: Path | None = None
    ) -> Running:
        bootstraps = dict.fromkeys(("", *SLOTS), self.bootstrap)
        if self.network is not None:
            bootstraps["one"] = self.network.bootstrap
        directory = self.directory / f"segment-{segment.number}"
        return Running(bootstraps, directory, segment, self.workers, calm, broker)

    def _run(self, segment: Segment, calm: threading.Event) -> Result:
        try:
            running = self._prepared(segment, calm)
        except Exception as failure:  # noqa: BLE001  # the others go on, and the run ends with 1
            return _failed(segment, failure)
        return self._result(running)

    def _result(self, running: Running) -> Result:
        try:
            result = running.run()
            running.forget()
        except Exception as failure:  # noqa: BLE001  # as above
            said = f"{running.site.directory}\n"
            return _failed(running.segment, failure, said)
        return result


def _failed(segment: Segment, failure: Exception, said: str = "") -> Result:
    said += "".join(traceback.format_exception(failure))
    return Result(segment.number, segment.session_s, wrong=said)


@contextmanager
def cluster(
    brokers: int,
    directory: Path,
    workers: Workers,
    *,
    living: str = LIVING,
    java: tuple[str, ...] = LASTING,
) -> Iterator[Cluster]:
    """Start one broker or three; `living` and `java` are those of a single one."""
    if brokers == 3:
        with (
            three_brokers(_SESSIONS + PROPERTIES) as three,
            Network(one.port for one in three) as network,
        ):
            yield Cluster(three.bootstrap, workers, directory, three, network)
        return
    own = own_broker(_SESSIONS + living + _KEPT, port=fixed_port(), java=java)
    with own as one:
        yield Cluster(one.bootstrap, workers, directory, Brokers([one]))
