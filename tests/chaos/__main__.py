"""End workers at named steps and at random, break disks, clocks and brokers, and check every count."""

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.broker import LASTING, Brokers, own_broker, three_brokers
from tests.chaos.faults import make_trouble
from tests.chaos.figures import figures
from tests.chaos.schedule import Round, Segment, Trouble, read, rounds_of, write
from tests.chaos.segment import SLOTS, Result, Running
from tests.chaos.worker import Workers

# A frozen controller must not declare its broker dead when both go on; the group's least session.
FURTHER = "group.min.session.timeout.ms=2000\n"
LIVING = FURTHER + "broker.session.timeout.ms=3600000\n"


@contextmanager
def cluster(brokers: int) -> Iterator[Brokers]:
    if brokers == 3:
        with three_brokers(FURTHER) as three:
            yield three
        return
    with own_broker(FURTHER, java=LASTING) as one:
        yield Brokers([one])


def run_segment(brokers: Brokers, directory: Path, segment: Segment, workers: Workers) -> Result:
    bootstraps = dict.fromkeys(("", *SLOTS), brokers.bootstrap)
    try:
        running = Running(bootstraps, directory / f"segment-{segment.number}", segment, workers)
        result = running.run()
        running.forget()
    except Exception as failure:  # noqa: BLE001  # the others go on, and the run ends with 1
        said = "".join(traceback.format_exception(failure))
        return Result(segment.number, segment.session_s, wrong=said)
    return result


def run_round(brokers: Brokers, directory: Path, each: Round, workers: Workers) -> list[Result]:
    """Run a round's segments side by side, and its trouble beside them."""
    began_s = time.monotonic()

    def make(trouble: Trouble) -> None:
        time.sleep(max(0.0, began_s + trouble.at_s - time.monotonic()))
        make_trouble(brokers, trouble)

    def make_all() -> None:
        for trouble in each.trouble:
            make(trouble)

    troubling = threading.Thread(target=make_all)
    troubling.start()
    with ThreadPoolExecutor(len(each.segments)) as pool:
        results = list(
            pool.map(lambda one: run_segment(brokers, directory, one, workers), each.segments)
        )
    troubling.join()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="ends of workers, of any kind")
    parser.add_argument("--seed", type=int, default=None)
    said = "the schedule of a run, or its output: instead of drawing one"
    parser.add_argument("--schedule", type=Path, default=None, help=said)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--together", type=int, default=4, help="segments side by side")
    parser.add_argument("--print", action="store_true", help="only print the schedule")
    kept = "of a segment that fails, all is kept there; default: a temporary one"
    parser.add_argument("--directory", type=Path, default=None, help=kept)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    rounds = (
        rounds_of(seed, given.kills, given.brokers, given.together)
        if given.schedule is None
        else read(given.schedule)
    )
    if given.print:
        for line in write(rounds):
            print(line)
        return 0
    results: list[Result] = []
    # The running round ends, and the figures follow.
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    directory = given.directory or Path(tempfile.mkdtemp(prefix="quietcount-chaos-"))
    with cluster(given.brokers) as brokers, Workers() as workers:
        for each in rounds:
            print(*write([each]), flush=True)
            for result in run_round(brokers, directory, each, workers):
                results.append(result)
                print(msgspec.json.encode(result).decode(), flush=True)
            print(*list(figures(results))[-1:], flush=True)
            if ending.is_set():
                break
    for line in figures(results):
        print(line)
    wrong = [result for result in results if result.wrong]
    for result in wrong:
        print(f"segment {result.segment}: {directory}/segment-{result.segment}\n{result.wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
