"""What a tick of noise costs for windows that never reset: nanoseconds a row and tick, beside `lifted`.

`python -m bench.window_columns [--rows N] [--ticks N] [--rho R]`

`lifted`, one window, and three windows with automatic hops take turns, tick by tick, so that what else runs
on the machine slows all of them. Measured is the thread's CPU time. The ticks are those of the longest hop, so
every begin moves at its own pace.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from workers.arrays.types import Tags
from workers.mechanisms.config.windows import default_hop
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.counters.line import LineColumns, line_counters
from workers.mechanisms.noise.keyed import NoiseKey

ONE = (1_800,)
THREE = (30, 1_800, 43_200)
HOPS = tuple(map(default_hop, THREE))
LONGEST_HOP = 512
HORIZON = 1 << 16
FIRST = 100_001


def measure(rows: int, ticks: int, rho_item: float) -> str:
    """Run consecutive ticks on random tags; the first one fills the cache, as after a restart."""
    stream = NoiseKey(bytes(32)).stream(bytes(16))
    tags = np.random.default_rng(1).integers(0, 2**64, size=(rows, 2), dtype=np.uint64)
    lifted = make_counter("lifted", HORIZON, rho_item).columns(stream)
    one = LineColumns(line_counters(ONE, (1,), rho_item), stream)
    three = LineColumns(line_counters(THREE, HOPS, rho_item), stream)
    first = FIRST % HORIZON
    subjects: list[tuple[str, Callable[[int, Tags], object], int, int]] = [
        (f"lifted, {HORIZON:,} ticks", lifted.at, first, lifted.bytes_per_row),
        (f"line, a window of {ONE[0]:,} ticks", one.at, FIRST, one.bytes_per_row),
        (f"line, windows of {THREE}", three.at, FIRST, three.bytes_per_row),
    ]
    spent = np.zeros((len(subjects), ticks + 1))
    for tick in range(ticks + 1):
        for i, (_, at, begin, _) in enumerate(subjects):
            start = time.thread_time()
            at(begin + tick, tags)
            spent[i, tick] = (time.thread_time() - start) / rows * 1e9
    means = spent[:, 1:].mean(axis=1)
    lines = [
        f"{rows:,} rows, {ticks} ticks: ns a row and tick, of the thread's CPU time"
    ]
    for i, (name, _, _, size) in enumerate(subjects):
        lines.append(
            f"  {name}: first {spent[i, 0]:.0f}, then mean {means[i]:.1f}, median "
            f"{np.median(spent[i, 1:]):.1f}, most {spent[i, 1:].max():.0f}; {means[i] / means[0]:.2f} times lifted; "
            f"{size} bytes of cache a row"
        )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ticks", type=int, default=LONGEST_HOP)
    parser.add_argument("--rho", type=float, default=0.0039)
    given = parser.parse_args()
    print(measure(given.rows, given.ticks, given.rho))


if __name__ == "__main__":
    main()
