"""Ticks a second of `two_level_k`, whose ticks look at columns: `python -m bench.columns [--columns N] [--ticks N] [--touched N]`.

A row for each kind of query the settings allow, and one for all of them at once. Every tick changes some columns, so that every tick looks
at all sums; what is contributed is made before the clock starts. Time is that of the processor, on one core: others on the machine do not
count. The target is 10,000 ticks a second at 1,000 columns, so 100 us a tick; exit 1 where the worst row misses it.
"""

import argparse
import sys
import time

import numpy as np

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.order_statistics.mechanisms import TwoLevel, TwoLevelKConfig

TARGET_US = 100.0
NOISE_KEY = NoiseKey(bytes(32))
QUERIES = (
    "max",
    "argmax",
    "min",
    "quantile:0.5",
    "quantile:0.99",
    "top_k:3",
    "top_k:100",
    "top_k_select:100",
    "histogram",
)


def measure(
    queries: tuple[str, ...], columns: int, ticks: int, touched: int, horizon: int
) -> float:
    """Microseconds of a tick."""
    labels = [b"%06d" % i for i in range(columns)]
    config = TwoLevelKConfig(
        name="bench",
        tick_ms=1_000,
        horizon=horizon,
        max_items=2,
        epsilon=4.0,
        delta=1e-6,
        keys="public",
        domain=tuple(label.decode() for label in labels),
        queries=queries,
    )
    mechanism = TwoLevel(config)
    tags = NOISE_KEY.tags("s", labels)
    rng = np.random.default_rng(1)
    state = mechanism.init()
    noise = mechanism.noise(NOISE_KEY.stream(bytes(16)))
    state.key_tags = NOISE_KEY.tags("s", [b"\xff"])
    mechanism.prepare_key(state, 0, tags, labels)
    index = np.zeros(1, dtype=np.int32)
    parts = []
    for _ in range(ticks):
        chosen = np.unique((rng.random(touched) ** 3 * columns).astype(np.int64))
        ones = np.ones(len(chosen), dtype=np.int64)
        parts.append(
            Contributions(
                ("s",),
                np.zeros(len(chosen), dtype=np.int32),
                tags[chosen],
                Texts.of(labels[i] for i in chosen.tolist()),
                ones,
            )
        )
    begun = time.process_time()
    for t, part in enumerate(parts, 1):
        state, _ = mechanism.step(state, t, [(part, index)], noise)
        state.changed()
        state.ledger.clean()
    return (time.process_time() - begun) / ticks * 1e6


def table(columns: int, ticks: int, touched: int, horizon: int) -> bool:
    """Prints a row for each query, and says whether the worst meets the target."""
    print(
        f"\ntwo_level_k, {columns:,} columns of which {touched} change at each of {ticks:,} ticks: "
        "us a tick"
    )
    worst = 0.0
    for queries in (*((query,) for query in QUERIES), QUERIES):
        spent = measure(queries, columns, ticks, touched, horizon)
        worst = max(worst, spent)
        print(
            f"  {queries[0] if len(queries) == 1 else 'all of them at once':24} {spent:8.1f}  {1e6 / spent:10,.0f} ticks/s",
            flush=True,
        )
    print(
        f"  worst: {worst:.1f} us, {1e6 / worst:,.0f} ticks/s; target {TARGET_US:.0f} us: "
        f"{'met' if worst <= TARGET_US else 'NOT met'}"
    )
    return worst <= TARGET_US


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=int, default=1_000)
    parser.add_argument("--ticks", type=int, default=20_000)
    parser.add_argument("--touched", type=int, default=3)
    parser.add_argument("--horizon", type=int, default=1 << 16)
    given = parser.parse_args()
    if not table(given.columns, given.ticks, given.touched, given.horizon):
        sys.exit(1)


if __name__ == "__main__":
    main()
