"""`python -m tests.bounds --minutes 60 --seed 1`: search for the worst shapes; exit 1 where one is above its bound."""

import argparse
import logging
import sys
import time
from contextlib import suppress

from tests.bounds.encoded import FORMS
from tests.bounds.search import Search, cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forms", nargs="*", default=["json", *FORMS])
    parser.add_argument("--stages", nargs="*")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    asked = [
        cell
        for cell in cells(given.forms)
        if not given.stages or cell.stage in given.stages
    ]
    search = Search(given.seed, asked)
    begun = time.monotonic()
    end = begun + 60 * given.minutes
    said_s = begun
    with suppress(KeyboardInterrupt):
        for cell, worst in search.climb(lambda: time.monotonic() > end):
            now = time.monotonic()
            if now - said_s > 60:
                said_s = now
                done = f"{(now - begun) / 60:6.1f} min, {search.tried:,} tried"
                print(f"{done}; {cell}: {worst.score:,.1f}", flush=True)
    took = f"{(time.monotonic() - begun) / 60:.0f} minutes"
    print(f"\n{search.tried:,} batches in {took}, seed {given.seed}")
    print(
        "stage      format      bytes allocated a byte read | ns of processor time a byte read"
    )
    for line in search.table():
        print(line)
    for cell, worst in sorted(search.worst.items()):
        print(f"    ({cell}, {worst.shape}),  # {worst.score:,.1f}")
    above = search.above()
    for cell, worst in above:
        print(f"above its bound: {cell}: {worst.score:,.1f}: {worst.shape}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
