"""Noise of ranks: `python -m bench.ranks [--replay]`, for docs/decisions/0041-ranks.md.

The cost of one bucket and of the worst pair at every number of levels, and sd * mu of a bucket, of
the rank of the median and of ranges, beside a counter for each bucket. With `--replay`: both
choices on 2 million latencies in 1,000 buckets, through `replay`, with the errors of the ranks in
the snapshots (some minutes).
"""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workers.arrays.types import Floats, Longs
from workers.mechanisms.config.buckets import parse_buckets
from workers.mechanisms.counters.ranks import Ranks, ranks_of
from workers.pipeline.snapshots import Numeric, rank_variances

EVENTS = 2_000_000
TICKS = 8
# Histograms of each kind, which differ in their noise.
REPEATS = 400
QUANTILES = (0.5, 0.99)
BUCKETS = {"from": 1, "to": 10000, "count": 998, "scale": "log"}
SETTINGS = """
[worker]
name = "latencies"
data_dir = "var"
key_file = "noise.key"
[kafka]
bootstrap = "localhost:9092"
[events]
topic = "requests"
key = "service"
items = "latency_ms"
timestamp = "ts"
"""
HISTOGRAM = """
[[histogram]]
name = "{purpose}-{repeat}"
for = "{purpose}"
mechanism = "known_base"
tick = "1m"
horizon = 8
start = 2026-11-16T00:00:00Z
max_items = 1
epsilon = 1.0
delta = 1e-9
keys = ["web"]
buckets = {{ from = 1, to = 10000, count = 998, scale = "log" }}
quantiles = [0.5, 0.99]
"""
START_MS = 1_794_787_200_000
PURPOSES = ("counts", "quantiles")


def scaled(ranks: Ranks) -> Floats:
    """Return C, each node times the root of its weight: (nodes, 2^levels)."""
    sums = np.eye(1 << ranks.levels)
    rows = []
    for level in range(1, ranks.levels + 1):
        nodes = sums[0::2] - sums[1::2]
        padded = np.concatenate((-nodes[:1], nodes, -nodes[-1:]))
        sums = sums[0::2] + sums[1::2] + (padded[2:] - padded[:-2]) / 8
        of_level = [float(ranks.weight((level, k))) for k in range(len(nodes))]
        rows.append(nodes * np.sqrt(of_level)[:, None])
    rows.append(sums * math.sqrt(ranks.weight((0, 0))))
    return np.concatenate(rows)


def costs(levels: int) -> tuple[float, float]:
    """Return S and P of 2^levels buckets; doubles hold the nodes exactly."""
    nodes = scaled(ranks_of(1 << levels))
    pair = 0.0
    event = float((nodes * nodes).sum(axis=0).max())
    for first in range(0, nodes.shape[1], 512):
        products = np.abs(nodes[:, first : first + 512].T @ nodes)
        own = np.arange(len(products))
        products[own, own + first] = 0
        pair = max(pair, float(products.max()))
    return event, pair


def errors(buckets: int) -> tuple[float, ...]:
    """Return sd * mu of a bucket at most, of the median's rank, of a range of an eighth (rms)."""
    ranks = ranks_of(buckets)
    unit = ranks.of_bucket * float(ranks.of_event)
    at_edges, _, _ = rank_variances(buckets - 1, 0.5, True)
    length = buckets // 8
    begins = np.arange(buckets + 1 - length)
    ends = begins + length
    of_range = ranks.covariance(begins, begins) + ranks.covariance(ends, ends)
    of_range -= 2 * ranks.covariance(begins, ends)
    median = math.sqrt(float(at_edges.mean()) * unit)
    across = math.sqrt(float(of_range.mean()) * float(ranks.of_event))
    return math.sqrt(unit), median, across


def measure() -> None:
    """Print the errors of ranks, and how often intervals hold the exact quantile."""
    rng = np.random.default_rng(51)
    latencies = np.round(rng.lognormal(math.log(80), 0.9, EVENTS), 2)
    ticks = np.sort(rng.integers(0, TICKS, EVENTS))
    buckets = parse_buckets(BUCKETS)
    bins = [-np.inf, *buckets.edges, np.inf]
    of_tick = [np.histogram(latencies[ticks == t], bins=bins)[0] for t in range(TICKS)]
    exact = np.cumsum(of_tick, axis=0).astype(float)
    numbers = Numeric(buckets, QUANTILES)
    off: dict[tuple[str, float], list[float]] = {}
    held: dict[tuple[str, float], list[bool]] = {}
    for snapshot in replayed(latencies, ticks):
        purpose = snapshot["histogram"].partition("-")[0]
        items = dict(snapshot["items"])
        row = exact[snapshot["tick"] - 1]
        errors_of_ranks = np.cumsum([items[label] for label in buckets.labels] - row)
        for q, published in zip(QUANTILES, snapshot["quantiles"], strict=True):
            place = int(np.searchsorted(np.cumsum(row), q * row.sum()))
            error = errors_of_ranks[place] - q * errors_of_ranks[-1]
            off.setdefault((purpose, q), []).append(float(error))
            truth = numbers.quantile(row, 0.0, q)["value"]
            holds = published["low"] <= truth <= published["high"]
            held.setdefault((purpose, q), []).append(holds)
    sizes = f"{EVENTS:,} latencies, {len(buckets.labels):,} buckets, {TICKS} ticks"
    print(f"{sizes}, {REPEATS} histograms of each kind")
    for q in QUANTILES:
        rms = [math.sqrt(np.mean(np.square(off[name, q]))) for name in PURPOSES]
        shares = [100 * np.mean(held[name, q]) for name in PURPOSES]
        print(
            f"{q:g}-quantile: root mean square error of its rank {rms[0]:.1f} for counts, {rms[1]:.1f} "
            f"for quantiles ({rms[0] / rms[1]:.2f} times); in its interval {shares[0]:.1f} %, {shares[1]:.1f} %"
        )


def replayed(latencies: Floats, ticks: Longs) -> Iterator[dict[str, Any]]:
    """Yield the snapshots of a replay of the events."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "events.jsonl").open("w") as file:
            for t, latency in zip(ticks.tolist(), latencies.tolist(), strict=True):
                ts = START_MS + 60_000 * t
                file.write(f'{{"service":"web","latency_ms":{latency},"ts":{ts}}}\n')
        config = folder / "latencies.toml"
        histograms = [
            HISTOGRAM.format(purpose=purpose, repeat=repeat)
            for purpose in PURPOSES
            for repeat in range(REPEATS)
        ]
        config.write_text(SETTINGS + "".join(histograms))
        out = folder / "snapshots.jsonl"
        key = ["quietcount", "key", "new", str(folder / "noise.key")]
        subprocess.run(key, check=True, stdout=subprocess.DEVNULL)
        command = ["quietcount", "replay", "-c", str(config)]
        command += ["--input", str(folder / "events.jsonl"), "--snapshots", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for line in out.read_text().splitlines():
            found = json.loads(line)
            yield found.get("value", found)


def main(replay: bool) -> None:
    if replay:
        measure()
        return
    print("S and P in 1/4096 of 2^1 to 2^12 buckets")
    pairs = [costs(levels) for levels in range(1, 13)]
    # More than all roundings of floats.
    small = 2.0**-20
    print(*(math.ceil((event + small) * 4096) for event, _ in pairs), sep=", ")
    print(*(math.ceil((pair + small) * 4096) for _, pair in pairs), sep=", ")
    print(
        "sd * mu: a bucket (a counter for each: 1), the median's rank, a range of an eighth"
    )
    for buckets in (26, 100, 200, 1_000, 1_024, 4_096):
        bucket, median, across = errors(buckets)
        print(
            f"{buckets:,}: {bucket:.2f}; {median:.2f} ({math.sqrt(buckets) / 2:.2f}); "
            f"{across:.2f} ({math.sqrt(buckets // 8):.2f})"
        )


if __name__ == "__main__":
    main("--replay" in sys.argv[1:])
