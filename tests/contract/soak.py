"""Soak: every mechanism from many threads under random switch intervals, again and again, against one thread.

A round takes one variant, a random number of threads and a random switch interval, with every cache cold, and compares what each thread
released and stored with what a fresh mechanism gives to one thread. With `--kafka` a worker is run in between, again and again: all
mechanisms, eight owner partitions in one process, random switch intervals, and `audit`, which computes every snapshot in one thread.
The suite runs a short version; the long one is

    python -m tests.contract.soak --minutes 60 [--kafka] [--seed N]

It ends by itself, or at Ctrl-C after the round it is at, with one line; its exit status is 1 where a difference was found.
"""

import argparse
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from tests.contract.racing import alone, cold, race
from tests.contract.variants import VARIANTS, Variant

THREADS = (2, 16)
INTERVALS_S = (1e-6, 5e-3)


class Soak:
    """Rounds over variants in random order; `differences` describes every failed round."""

    def __init__(self, seed: int, variants: Sequence[Variant] = VARIANTS) -> None:
        self.seed = seed
        self._variants = variants
        self._rng = random.Random(seed)
        self._waiting: list[Variant] = []
        self._expected: dict[tuple[str, int], str] = {}
        self._seen: set[str] = set()
        self.rounds = self.threads = 0
        self.differences: list[str] = []

    def round(self) -> None:
        if not self._waiting:
            self._waiting = self._rng.sample(self._variants, len(self._variants))
        variant = self._waiting.pop()
        threads = self._rng.randint(*THREADS)
        interval_s = math.exp(self._rng.uniform(*map(math.log, INTERVALS_S)))
        seeds = self._rng.sample(range(1, THREADS[1] + 1), threads)
        unknown = [seed for seed in seeds if (str(variant), seed) not in self._expected]
        for seed, digest in zip(unknown, alone(cold(variant), unknown), strict=True):
            self._expected[str(variant), seed] = digest
        found = race(cold(variant), seeds, interval_s)
        self.rounds += 1
        self.threads += threads
        self._seen.add(str(variant))
        expected = [self._expected[str(variant), seed] for seed in seeds]
        wrong = sum(
            digest != right for digest, right in zip(found, expected, strict=True)
        )
        if wrong:
            self.differences.append(
                f"{variant}: {wrong} of {threads} threads differ, switch interval {interval_s:.2e} s, "
                f"seed {self.seed}, round {self.rounds}"
            )

    def summary(self) -> str:
        return f"{len(self._seen)} variants, {self.rounds} rounds, {self.threads} threads: {len(self.differences)} differences"


class Stop:
    """Stop after the current round on Ctrl-C or SIGTERM; a second signal ends Python as usual."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, signal.SIG_DFL)
        print("ending after this round", file=sys.stderr, flush=True)


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--kafka", action="store_true", help="run workers on a real Kafka, too"
    )
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    stop = Stop()
    soak = Soak(seed)
    end_s = time.monotonic() + 60 * given.minutes
    told_s = time.monotonic()
    told = 0
    snapshots = 0
    runs = 0
    with ExitStack() as stack:
        if given.kafka:
            from tests.broker import LASTING, broker
            from tests.worker.threads import audited_run

            bootstrap = stack.enter_context(broker(LASTING))
            temporary = tempfile.TemporaryDirectory(prefix="quietcount-soak-")
            directory = Path(stack.enter_context(temporary))
        while not stop.asked and time.monotonic() < end_s:
            for _ in range(len(VARIANTS)):
                if stop.asked or time.monotonic() >= end_s:
                    break
                soak.round()
                for difference in soak.differences[told:]:
                    print(difference, flush=True)
                told = len(soak.differences)
            if time.monotonic() > told_s + 60:
                told_s = time.monotonic()
                print(soak.summary(), flush=True)
            if given.kafka and not stop.asked and time.monotonic() < end_s:
                runs += 1
                own = seed * 1000 + runs
                place = directory / f"run-{runs}"
                try:
                    snapshots += audited_run(bootstrap, place, seed=own)
                except AssertionError as error:
                    if not stop.asked:
                        soak.differences.append(
                            f"worker run {runs}, seed {own}: {error}"
                        )
    workers = (
        f"; {runs} workers with 8 owner partitions each, {snapshots} snapshots audited"
    )
    print(soak.summary() + (workers if given.kafka else ""), flush=True)
    return 1 if soak.differences else 0


if __name__ == "__main__":
    sys.exit(main())
