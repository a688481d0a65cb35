"""What one whole tick of `unk_base` costs: contributions merged, noise, threshold, shown rows; nanoseconds a row and tick.

`python -m bench.mechanism_step [--rows N] [--ticks N] [--horizon T] [--counter lifted|tree]`
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.running.base import UnkBase, UnkBaseConfig

KEYS = 10


@dataclass(frozen=True, slots=True)
class Step:
    """Nanoseconds a row and tick."""

    first: float
    mean: float
    most: float


def measure(
    rows: int, ticks: int, horizon: int, counter: str, touched: int = 10_000
) -> Step:
    """Runs consecutive ticks that contribute to `touched` random rows each; the first one fills the noise cache."""
    config = UnkBaseConfig(
        name="bench",
        tick_ms=10_000,
        horizon=horizon,
        max_items=2,
        epsilon=1.0,
        delta=1e-9,
        keys="public",
        counter=counter,
    )
    mechanism = UnkBase(config)
    state = mechanism.init()
    noise = mechanism.noise(NoiseKey(bytes(32)).stream(bytes(16)))
    rng = np.random.default_rng(1)
    tags = rng.integers(0, 2**64, size=(rows, 2), dtype=np.uint64)
    key_of_row = rng.integers(0, KEYS, size=rows).astype(np.int32)
    state.ledger.append(tags, key_of_row, Texts.of(b"%08d" % i for i in range(rows)))
    state.ledger.clean()
    index = np.arange(KEYS, dtype=np.int32)
    names = tuple(f"shop-{i}" for i in range(KEYS))
    spent = []
    for t in range(1, ticks + 2):
        chosen = np.unique((rng.random(touched) ** 4 * rows).astype(np.int64))
        labels = Texts.of(b"%08d" % i for i in chosen.tolist())
        part = Contributions(
            names,
            key_of_row[chosen],
            tags[chosen],
            labels,
            np.ones(len(chosen), dtype=np.int64),
        )
        begun = time.perf_counter()
        state, _ = mechanism.step(state, t, [(part, index)], noise)
        spent.append((time.perf_counter() - begun) / rows * 1e9)
        state.ledger.clean()
    return Step(spent[0], float(np.mean(spent[1:])), max(spent[1:]))


def main() -> None:
    """Read the arguments and print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ticks", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=65_536)
    parser.add_argument("--counter", choices=("lifted", "tree"), default="lifted")
    given = parser.parse_args()
    step = measure(given.rows, given.ticks, given.horizon, given.counter)
    print(
        f"{given.counter}: first {step.first:.0f}, then mean {step.mean:.1f}, most {step.most:.0f} "
        "ns a row and tick"
    )


if __name__ == "__main__":
    main()
