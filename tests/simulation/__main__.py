"""Simulate schedules: `python -m tests.simulation --schedules 10000 --seed 1`.

Exit status 1 if one violates an invariant: its seed and last steps are shown; `--only SEED` repeats
it. With `--plant NAME` the worker has that fault, and the status is 1 if no schedule finds it.
"""

import argparse
import gc
import os
import sys
import time

from tests.simulation.planted import PLANTS
from tests.simulation.running import SITES, first_violation
from tests.simulation.sites import make_sites
from tests.simulation.world import Outcome
from workers.runtime.process import keep_freed_memory


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument(
        "--only", type=int, metavar="SEED", help="run this schedule alone"
    )
    parser.add_argument(
        "--plant", choices=sorted(PLANTS), help="plant a fault in the worker"
    )
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--processes", type=int, default=cores, help="default: one for each core"
    )
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.schedules)
    if given.only is not None:
        seeds = range(given.only, given.only + 1)
    # As in the worker: most of the time would go to page faults and to looking for cycles.
    keep_freed_memory()
    gc.set_threshold(200_000, 20, 100)
    SITES.extend(make_sites())
    gc.freeze()
    began_s = time.monotonic()

    def show(outcome: Outcome) -> None:
        done = outcome.seed - seeds.start + 1
        if done % 500 == 0:
            passed_s = time.monotonic() - began_s
            print(
                f"{done:,} schedules in {passed_s:,.0f} s", file=sys.stderr, flush=True
            )

    totals, found = first_violation(seeds, given.plant, show, given.processes)
    print(totals)
    if found is not None:
        print(
            f"\nseed {found.seed}, schedule {totals.schedules:,}: {found.violation}\n"
        )
        print("\n".join(found.last))
    return int((found is None) == (given.plant is not None))


if __name__ == "__main__":
    sys.exit(main())
