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

# For sessions shorter than brokers allow by default.
_SESSIONS = "group.min.session.timeout.ms=2000\n"
# A frozen controller must not declare its own broker dead when both go on; a killed broker may have
# to wait as long, and gives up after 60 s.
_LIVING = "broker.session.timeout.ms=30000\n"
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

    def _run(self, segment: Segment, calm: threading.Event) -> Result:
        bootstraps = dict.fromkeys(("", *SLOTS), self.bootstrap)
        if self.network is not None:
            bootstraps["one"] = self.network.bootstrap
        directory = self.directory / f"segment-{segment.number}"
        try:
            running = Running(bootstraps, directory, segment, self.workers, calm)
            result = running.run()
            running.forget()
        except Exception as failure:  # noqa: BLE001  # the others go on, and the run ends with 1
            said = f"{directory}\n" + "".join(traceback.format_exception(failure))
            return Result(segment.number, segment.session_s, wrong=said)
        return result


@contextmanager
def cluster(brokers: int, directory: Path) -> Iterator[Cluster]:
    if brokers == 3:
        with (
            three_brokers(_SESSIONS + PROPERTIES) as three,
            Network(one.port for one in three) as network,
            Workers() as workers,
        ):
            yield Cluster(three.bootstrap, workers, directory, three, network)
        return
    own = own_broker(_SESSIONS + _LIVING + _KEPT, port=fixed_port(), java=LASTING)
    with own as one, Workers() as workers:
        yield Cluster(one.bootstrap, workers, directory, Brokers([one]))
