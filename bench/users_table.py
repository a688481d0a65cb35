"""`quietcount replay` of 59.0 M records of 10 M users, at most 32 items each: seconds and memory, at two horizons.

The table has the shape of the one in SQLP's experiments: records a user by a Zipf-Mandelbrot law, a million items by
another, ticks at random. It is made from a fixed seed, which takes a minute or two and 2 GB, and lies in a temporary directory (600 MB).
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench import replay

USERS = 10_000_000
ITEMS = 1_000_000
PAIRS_A_USER = 32
ROWS = 1_000_000
SETTINGS = """
[worker]
name = "bench"
data_dir = "data"
key_file = "noise.key"

[kafka]
bootstrap = "localhost:9092"

[events]
topic = "events"
key = "$all"
items = "item"
timestamp = "ts"
user = "user"

[privacy]
unit = "user"

[[histogram]]
name = "items"
mechanism = "unk_base"
tick = "1s"
horizon = {ticks}
max_items = 1
max_items_per_user = {pairs}
epsilon = 1.0
delta = 1e-9
"""


def write(path: Path, ticks: int, users: int) -> NDArray[np.int64]:
    """Write the table in order of time; return how many records each item has."""
    rng = np.random.default_rng(0)
    weights = np.cumsum((np.arange(100_000) + 26.0) ** -6.738)
    number_of = (np.searchsorted(weights / weights[-1], rng.random(users)) + 1).astype(
        np.int32
    )
    number = int(number_of.sum())
    weights = np.cumsum((np.arange(1, ITEMS + 1) + 1000.0) ** -1.4)
    weights /= weights[-1]
    items = np.empty(number, dtype=np.int32)
    for first in range(0, number, 4 * ROWS):
        rows = min(4 * ROWS, number - first)
        items[first : first + rows] = np.searchsorted(weights, rng.random(rows))
    user = np.repeat(np.arange(users, dtype=np.int32), number_of)
    tick = rng.integers(0, ticks, number).astype(np.uint16)
    start_ms = replay.START_MS - replay.START_MS % (1000 * ticks)  # an epoch's
    order = np.argsort(tick, kind="stable")
    labels = pa.array([f"k{i}" for i in range(ITEMS)])
    schema = pa.schema(
        [("ts", pa.int64()), ("user", pa.int64()), ("item", pa.string())]
    )
    with pq.ParquetWriter(path, schema) as out:
        for first in range(0, number, ROWS):
            some = order[first : first + ROWS]
            columns = [
                pa.array(start_ms + tick[some].astype(np.int64) * 1000),
                pa.array(user[some].astype(np.int64)),
            ]
            out.write_table(
                pa.table([*columns, labels.take(pa.array(items[some]))], schema=schema),
                row_group_size=ROWS,
            )
    return np.bincount(items, minlength=ITEMS)


def table(horizons: tuple[int, ...], share: float) -> None:
    """Print a row for each horizon."""
    users = int(USERS * share)
    print(
        f"\nreplay of records of {users:,} users, at most {PAIRS_A_USER} of {ITEMS:,} items each, "
        "from Parquet"
    )
    print(f"{'':40} {'s':>8} {'CPU s':>8} {'M records/s':>12} {'peak MB':>8}")
    for ticks in horizons:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            number = int(write(directory / "events.parquet", ticks, users).sum())
            settings = SETTINGS.format(ticks=ticks, pairs=PAIRS_A_USER)
            found = replay.run(directory, number, "parquet", settings, ticks)
        row = f"{number:,} records, horizon {ticks:,}"
        print(
            f"{row:40} {found.wall_s:8.1f} {found.cpu_s:8.1f} {number / found.wall_s / 1e6:12.2f} {found.peak_mb:8,}",
            flush=True,
        )
