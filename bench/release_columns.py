"""What one tick of a counter's noise costs: nanoseconds a row and tick, with the cache of noise columns.

`python -m bench.release_columns [--rows N] [--horizon T|unbounded] [--ticks N] [--first T] [--kind K] [--rho R]`
"""

import argparse
import time

import numpy as np

from workers.mechanisms.counters.kinds import KINDS, make_counter
from workers.mechanisms.noise.keyed import NoiseKey


def measure(
    kind: str, horizon: int | None, rho_item: float, rows: int, first: int, ticks: int
) -> str:
    """Run consecutive ticks from `first` on random tags; the first one fills the cache, as after a restart."""
    counter = make_counter(kind, horizon, rho_item)
    columns = counter.columns(NoiseKey(bytes(32)).stream(bytes(16)))
    tags = np.random.default_rng(1).integers(0, 2**64, size=(rows, 2), dtype=np.uint64)
    spent = []
    for t in range(first, first + ticks):
        start = time.perf_counter()
        columns.at(t, tags)
        spent.append((time.perf_counter() - start) / rows * 1e9)
    later = spent[1:] or spent
    return (
        f"{kind} horizon {horizon or 'unbounded'}, {rows} rows, ticks "
        f"{first}..{first + ticks - 1}: ns a row and tick: "
        f"first {spent[0]:.0f}, then mean {np.mean(later):.1f}, median {np.median(later):.1f}, "
        f"most {max(later):.0f}; "
        f"{columns.bytes_per_row} bytes of cache a row"
    )


def main() -> None:
    """Read the arguments and print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--horizon", default="65536")
    parser.add_argument("--ticks", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, default="lifted")
    parser.add_argument(
        "--rho",
        type=float,
        default=0.0039,
        help="rho of one item (about epsilon 1, delta 1e-9, 4 items)",
    )
    given = parser.parse_args()
    horizon = None if given.horizon == "unbounded" else int(given.horizon)
    print(measure(given.kind, horizon, given.rho, given.rows, given.first, given.ticks))


if __name__ == "__main__":
    main()
