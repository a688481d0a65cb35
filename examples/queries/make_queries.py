"""Writes made-up search sessions of one day: python make_queries.py OUT [--events N] [--queries K] [--seed S]

OUT is Parquet if its name ends in .parquet, else JSON lines; - is standard output. An event is one session:

    {"ts":1767571200432,"queries":["cheap desk lamp","used tent"]}

Queries follow the law of Zipf and Mandelbrot: the r-th most frequent of K has probability proportional to (r + 2.7)^-1.1. A session has
one query or more (another follows with probability 0.35, up to eight). There are more sessions in the evening than at night, and one
query in twenty is about the news: fifteen queries that nobody asks before their hour, and that are forgotten over the next.

The same arguments give the same file. Memory does not grow with N.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# from 2026-01-05T00:00:00Z
START_MS = 1_767_571_200_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
POWER = 1.1
SHIFT = 2.7
MORE = 0.35
MOST = 8
NEWS = 15
NEWS_SHARE = 0.05
AT_ONCE = 1 << 18

# First, second and third word of a query.
WORDS = (
    """cheap used new best blue red green small large old repair rent buy sell build free fast quiet light heavy
    wooden steel folding electric outdoor kitchen garden winter summer kids office travel""",
    """desk floor wall pocket bike car train boat phone camera dog cat bird fish coffee tea bread rice water rain
    snow sun wind paper glass stone cotton leather copper plastic carbon rubber""",
    """lamp tent chair table shelf bag box clock map book shoes jacket gloves hat ladder rope knife bowl cup pan
    stove heater fan filter pump lock key bell brush broom mirror frame""",
)


class Sessions(NamedTuple):
    """Some sessions: session i has the queries `queries[ends[i - 1]:ends[i]]`, numbers of labels."""

    times: NDArray[np.int64]
    ends: NDArray[np.int64]
    queries: NDArray[np.int64]


def labels(count: int) -> list[str]:
    """So many different queries, of three words each, and those of the news."""
    first, second, third = (words.split() for words in WORDS)
    most = len(first) * len(second) * len(third)
    if not 1 <= count <= most:
        raise SystemExit(f"--queries {count}: from 1 to {most:,}")
    texts = [" ".join(words) for words in product(first, second, third)]
    # Neighbours in rank should not look alike.
    order = np.random.default_rng(0).permutation(most)[:count]
    return [texts[i] for i in order.tolist()] + [
        f"news of the {second[i]} {third[i]}" for i in range(NEWS)
    ]


def sessions(events: int, count: int, seed: int) -> Iterator[Sessions]:
    """The day, in order of time."""
    rng = np.random.default_rng(seed)
    weights = (np.arange(1, count + 1) + SHIFT) ** -POWER
    share = np.cumsum(weights / weights.sum())
    hours = np.linspace(0, 1, 1_441)
    # least at 4, most at 16 o'clock
    until = np.cumsum(1 - 0.7 * np.cos(2 * np.pi * (hours - 4 / 24)))
    until = (until - until[0]) / (until[-1] - until[0])
    onsets = START_MS + np.sort(rng.integers(0, DAY_MS, NEWS))
    for begin in range(0, events, AT_ONCE):
        numbers = np.arange(begin, min(begin + AT_ONCE, events))
        times = START_MS + (
            np.interp((numbers + 0.5) / events, until, hours) * DAY_MS
        ).astype(np.int64)
        sizes = np.minimum(rng.geometric(1 - MORE, len(numbers)), MOST)
        ends = np.cumsum(sizes)
        drawn = np.minimum(np.searchsorted(share, rng.random(ends[-1])), count - 1)
        # A draw for the news counts if that news is out, and is not yet forgotten.
        story = rng.integers(0, NEWS, len(drawn))
        age = (np.repeat(times, sizes) - onsets[story]) / HOUR_MS
        fresh = rng.random(len(drawn)) < NEWS_SHARE * np.exp(-np.maximum(age, 0))
        yield Sessions(times, ends, np.where(fresh & (age >= 0), count + story, drawn))


def as_lines(parts: Iterator[Sessions], texts: list[str]) -> Iterator[bytes]:
    """JSON, a session a line."""
    quoted = [f'"{text}"' for text in texts]
    for part in parts:
        queries = [quoted[i] for i in part.queries.tolist()]
        bounds = pairwise([0, *part.ends.tolist()])
        rows = zip(part.times.tolist(), bounds, strict=True)
        lines = [
            f'{{"ts":{time},"queries":[{",".join(queries[a:b])}]}}\n'
            for time, (a, b) in rows
        ]
        yield "".join(lines).encode()


def write_parquet(path: Path, parts: Iterator[Sessions], texts: list[str]) -> None:
    """A row a session: ts, queries."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: Any = pa.schema([("ts", pa.int64()), ("queries", pa.list_(pa.string()))])
    names: Any = pa.array(texts, pa.string())
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for part in parts:
            starts = pa.array(np.concatenate(([0], part.ends)), pa.int32())
            lists = pa.ListArray.from_arrays(starts, names.take(pa.array(part.queries)))
            file.write_table(pa.table([pa.array(part.times), lists], schema=schema))


def main() -> None:
    """Reads the arguments, writes the file."""
    parser = argparse.ArgumentParser(description="Made-up search sessions of one day.")
    parser.add_argument(
        "out", metavar="OUT", help=".parquet, or JSON lines; - is standard output"
    )
    parser.add_argument(
        "--events",
        type=int,
        default=1_000_000,
        metavar="N",
        help="sessions (default: 1,000,000)",
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=30_000,
        metavar="K",
        help="different queries (default: 30,000)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    given = parser.parse_args()
    texts = labels(given.queries)
    parts = sessions(given.events, given.queries, given.seed)
    if given.out.endswith(".parquet"):
        write_parquet(Path(given.out), parts, texts)
    elif given.out == "-":
        sys.stdout.buffer.writelines(as_lines(parts, texts))
    else:
        with Path(given.out).open("wb") as file:
            file.writelines(as_lines(parts, texts))


if __name__ == "__main__":
    main()
