"""End workers at named steps and at random, break disks, clocks and brokers, and check every count.

SIGTERM or Ctrl-C end the run after its running round, with the figures so far.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec

from tests.chaos.figures import figures
from tests.chaos.rounds import BRIEFLY, LIVING, cluster
from tests.chaos.schedule import Round, read, rounds_of, starts_of, write
from tests.chaos.segment import Result
from tests.chaos.worker import Workers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=100, help="ends of workers, of any kind"
    )
    parser.add_argument("--seed", type=int, default=None)
    said = "the schedule of a run, or its output: instead of drawing one"
    parser.add_argument("--schedule", type=Path, default=None, help=said)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--together", type=int, default=4, help="segments side by side")
    said = "instead of that: kill the only broker at every step of workers' starts"
    parser.add_argument("--starts", action="store_true", help=said)
    said = "repeat with further schedules until so much time has passed"
    parser.add_argument("--minutes", type=float, default=0.0, help=said)
    parser.add_argument("--print", action="store_true", help="only print the schedule")
    kept = "of a segment that fails, all is kept there; default: a temporary one"
    parser.add_argument("--directory", type=Path, default=None, help=kept)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    until_s = time.monotonic() + 60 * given.minutes

    def schedules() -> Iterator[Round]:
        if given.schedule is not None:
            yield from read(given.schedule)
            return
        for number in count():
            drawn = rounds_of(seed + number, given.kills, given.brokers, given.together)
            if given.starts:
                drawn = starts_of(seed + number, given.kills, given.together)
            yield from drawn
            if given.print or time.monotonic() >= until_s:
                return

    rounds = schedules()
    if given.print:
        for line in write(rounds):
            print(line)
        return 0
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    results: list[Result] = []
    directory = given.directory or Path(tempfile.mkdtemp(prefix="quietcount-chaos-"))
    living = BRIEFLY if given.starts else LIVING
    with (
        Workers() as workers,
        cluster(given.brokers, directory, workers, living=living) as running,
    ):
        for each in rounds:
            if given.minutes and results and time.monotonic() >= until_s:
                break
            print(*write([each]), flush=True)
            for result in running.run(each):
                results.append(result)
                print(msgspec.json.encode(result).decode(), flush=True)
            print(*list(figures(results))[-1:], flush=True)
            if ending.is_set():
                break
    for line in figures(results):
        print(line)
    wrong = [result for result in results if result.wrong]
    for result in wrong:
        print(f"segment {result.segment}: {result.wrong}")
    if given.directory is None and not wrong:
        shutil.rmtree(directory)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
