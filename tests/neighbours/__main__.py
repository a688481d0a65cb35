"""`python -m tests.neighbours --pairs 1000000 --seed N [--only SEED]`; exit 1 at a violation."""

import argparse
import gc
import logging
import sys
import time

from tests.neighbours.driver import replaced
from tests.neighbours.pairing import Search, shrunk
from tests.neighbours.planted import LEAKS

SHOWN = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours", description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1, help="of all pairs")
    parser.add_argument("--only", type=int, metavar="SEED", help="of one pair, as printed")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--planted", action="store_true", help="how soon planted leaks are found")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)  # as in the worker
    if given.planted:
        return planted(given.seed * 10**9, min(given.pairs, 2_000))
    search, begun, found = Search(), time.perf_counter(), 0
    first, number = given.seed * 10**9, given.pairs
    if given.only is not None:
        first, number = given.only, 1
    with replaced():
        at = first
        while at < first + number and time.perf_counter() - begun < 60 * given.minutes:
            some = min(64, first + number - at)
            for violation in search.pairs(at, some):
                found += 1
                if found <= SHOWN:
                    print(shrunk(violation), flush=True)
            at += some
            gc.collect()  # cycles hold arrays, which the collector does not weigh
    seconds = time.perf_counter() - begun
    print(f"{'mechanism':20}{'pairs':>10}{'ticks':>12}{'rows':>12}{'violations':>12}")
    for name, one in sorted(search.figures.items()):
        print(f"{name:20}{one.pairs:10,}{one.ticks:12,}{one.rows:12,}{one.violations:12,}")
    pairs = sum(one.pairs for one in search.figures.values())
    print(f"{pairs:,} pairs, {seconds:.0f} s, {pairs / seconds:.0f} a second; by change:")
    print(", ".join(f"{name} {n:,}" for name, n in sorted(search.kinds.items())))
    return 1 if found else 0


def planted(first: int, most: int) -> int:
    """Print after how many pairs each planted leak is found; exit 1 if one is not."""
    missed = 0
    for name, (leak, _) in LEAKS.items():
        search = Search()
        with replaced(), leak():
            found = next(search.pairs(first, most), None)
        pairs = sum(one.pairs for one in search.figures.values())
        after = "NOT FOUND" if found is None else f"seed {found.seed}: {found.texts[0][:150]}"
        print(f"{name:42}{pairs:6} pairs, {after}", flush=True)
        missed += found is None
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
