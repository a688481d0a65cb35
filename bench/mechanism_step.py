"""What one whole tick of `unk_base` costs: contributions merged, noise, threshold, shown rows; nanoseconds a row and tick.

`python -m bench.mechanism_step [--rows N] [--ticks N] [--horizon T] [--counter lifted|tree|line]`

`line` is a board without epochs, with windows of a minute, an hour and a day of ticks of two seconds. It also counts
what leaves the windows and tests hidden labels by window.
"""

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Longs
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, build
from workers.runtime.process import keep_freed_memory

KEYS = 10
#: One row in so many is shown from the first tick on.
SHOWN_EVERY = 10
WINDOWS_MS = (60_000, 3_600_000, 86_400_000)
#: Windows have ended before the first tick.
FIRST_SLIDING = 100_000
#: Nanoseconds a row and tick at most, of `line`.
GOAL = 40.0


@dataclass(frozen=True, slots=True)
class Step:
    """Nanoseconds a row and tick, of the thread's CPU time."""

    first: float
    mean: float
    median: float
    most: float


def measure(
    rows: int, ticks: int, horizon: int, counter: str, touched: int = 20_000
) -> Step:
    """Run consecutive ticks that contribute to `touched` random rows each.

    The first one counts an event of every row, many events of one in `SHOWN_EVERY`, and fills the
    noise cache.
    """
    of_counter: dict[str, Any] = {"horizon": horizon, "counter": counter}
    first = 1
    if counter == "line":
        of_counter = {"horizon": "never", "windows": WINDOWS_MS}
        first = FIRST_SLIDING
    config = MECHANISMS["unk_base"](
        name="bench",
        tick_ms=2_000,
        max_items=2,
        epsilon=1.0,
        delta=1e-9,
        keys="public",
        **of_counter,
    )
    mechanism = build(config)
    state = mechanism.init()
    noise = mechanism.noise(NoiseKey(bytes(32)).stream(bytes(16)))
    rng = np.random.default_rng(1)
    tags = rng.integers(0, 2**64, size=(rows, 2), dtype=np.uint64)
    key_of_row = rng.integers(0, KEYS, size=rows).astype(np.int32)
    labels = Texts.of(b"%08d" % i for i in range(rows))
    index = np.arange(KEYS, dtype=np.int32)
    names = tuple(f"shop-{i}" for i in range(KEYS))

    def part(chosen: Longs, counts: Longs) -> tuple[Contributions, Codes]:
        of_rows = Contributions(
            names, key_of_row[chosen], tags[chosen], labels.take(chosen), counts
        )
        return of_rows, index

    every = np.arange(rows)
    contributed = part(every, np.where(every % SHOWN_EVERY == 0, 2_000, 1))
    spent = []
    for t in range(first, first + ticks + 1):
        begun = time.thread_time()
        state, _ = mechanism.step(state, t, [contributed], noise)
        spent.append((time.thread_time() - begun) / rows * 1e9)
        state.ledger.clean()
        chosen = np.unique(rng.integers(0, rows, size=touched))
        contributed = part(chosen, np.ones(len(chosen), dtype=np.int64))
    later = np.array(spent[1:])
    return Step(
        spent[0], float(later.mean()), float(np.median(later)), float(later.max())
    )


def line_of(counter: str, step: Step) -> str:
    """Return a line about a counter's step, which says where its goal is missed."""
    missed = "   above its goal" if counter == "line" and step.mean > GOAL else ""
    return (
        f"{counter}: first {step.first:.0f}, then mean {step.mean:.1f}, median {step.median:.1f}, "
        f"most {step.most:.0f} ns a row and tick{missed}"
    )


def main() -> None:
    """Read the arguments and print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ticks", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=65_536)
    parser.add_argument(
        "--counter", choices=("lifted", "tree", "line"), default="lifted"
    )
    given = parser.parse_args()
    keep_freed_memory()
    step = measure(given.rows, given.ticks, given.horizon, given.counter)
    print(line_of(given.counter, step))


if __name__ == "__main__":
    main()
