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
from pathlib import Path

import msgspec

from tests.chaos.figures import figures
from tests.chaos.rounds import cluster
from tests.chaos.schedule import read, rounds_of, write
from tests.chaos.segment import Result


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
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    results: list[Result] = []
    directory = given.directory or Path(tempfile.mkdtemp(prefix="quietcount-chaos-"))
    with cluster(given.brokers, directory) as running:
        for each in rounds:
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
