"""A week of a made-up shop on the dashboard's page, with its exact truth beside it.

    python -m tests.dashboard.shop DIRECTORY [--port 8080]

prints the page's address when all is there, and serves it until it is killed. Three branches sell
200 products. DIRECTORY then has, for those who ask questions about the page:

    sales.csv       every sale: time, branch, product, price
    truth.csv       exact counts, sums and means of each board at its newest tick
    quantiles.csv   exact quantiles of prices there
    shop.toml       the settings; snapshots.jsonl what was published

The sales are replayed through the worker's code and put on a Kafka within this process. The truth
is counted from the sales alone. Some products tell a story: see `STORIES`.
"""

import argparse
import csv
import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from tests.dashboard.feeding import public_budget, reads
from workers.client.config import load_reader_settings
from workers.dashboard.server import Background, Dashboard
from workers.kafka.clients import Connection, EmbeddedCluster
from workers.kafka.topics import Topic, create_missing
from workers.privacy.public import KEY, PublicCeiling

TICK_MS = 900_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: A day more than a week, so that a window of a week is full.
DAYS = 8
#: Sales a day.
BRANCHES = {"Berlin": 60_000, "Hamburg": 28_000, "Leipzig": 11_000}
WINDOWS_MS = {"1h": HOUR_MS, "1d": DAY_MS, "7d": 7 * DAY_MS}
QUANTILES = (0.5, 0.9)
KINDS = (
    "green",
    "black",
    "red",
    "white",
    "sweet",
    "dark",
    "mild",
    "wild",
    "fine",
    "raw",
)
THINGS = (
    "tea", "coffee", "cocoa", "honey", "bread", "cheese", "butter", "apple", "pear", "grape",
    "pepper", "salt", "sugar", "rice", "pasta", "oil", "vinegar", "soap", "candle", "towel",
)  # fmt: skip
PRODUCTS = tuple(f"{kind} {thing}" for kind in KINDS for thing in THINGS)

SETTINGS = """
[worker]
name = "shop"
data_dir = "var"
key_file = "noise.key"

[kafka]
bootstrap = {bootstrap}
[kafka.client]
{client}

[events]
topic = "sales"
key = "branch"
items = "product"
timestamp = "ts"

[[histogram]]
name = "sold"
mechanism = "unk_base"
tick = "15m"
horizon = "never"
windows = ["1h", "1d", "7d"]
hop = 1
max_items = 1
epsilon = 4.0
delta = 1e-9
keys = {keys}
sum = {{ field = "price", from = 0, to = 100, step = 0.01 }}
total_share = 0.05
label = "Price"
unit = "EUR"

[[histogram]]
name = "today"
mechanism = "unk_base"
tick = "15m"
horizon = "1d"
windows = ["1h"]
max_items = 1
epsilon = 2.0
delta = 1e-9
keys = {keys}

[[histogram]]
name = "prices"
mechanism = "known_base"
for = "quantiles"
items = "price"
tick = "15m"
horizon = "never"
windows = ["1h", "1d", "7d"]
hop = 1
max_items = 1
epsilon = 1.0
delta = 1e-9
keys = {keys}
buckets = {{ from = 1, to = 100, count = 40, scale = "log" }}
quantiles = [0.5, 0.9]
label = "Price"
unit = "EUR"
"""


class Story(NamedTuple):
    """How often a product is sold, as a share of a branch's sales, and when; days from the beginning."""

    share: float
    price: float
    first: float = 0.0
    last: float = DAYS
    branch: str | None = None
    #: Its price from day `turn` on.
    later: float | None = None
    turn: float = DAYS


#: All others fall off as 1 / rank.
STORIES = {
    "green tea": Story(0.080, 4.49),
    # Noise hides which of these two has more.
    "black coffee": Story(0.0551, 6.95),
    "dark cocoa": Story(0.0550, 5.25),
    # New on the sixth day, and at once among the first.
    "wild honey": Story(0.045, 11.9, first=5.3),
    # Sold out.
    "sweet grape": Story(0.035, 3.2, last=6.4),
    # Only there.
    "mild cheese": Story(0.070, 14.55, branch="Hamburg"),
    # Its price goes up a third.
    "fine oil": Story(0.030, 9.0, turn=4.5, later=12.0),
    # Few, but dear.
    "white towel": Story(0.004, 89.0),
}


def wave(hours: np.ndarray) -> np.ndarray:
    """Return how busy it is at an hour of the day, from 0 to 1."""
    return 0.55 - 0.45 * np.cos(2 * math.pi * (hours - 3) / 24)


class Sales(NamedTuple):
    """All sales of a branch, in the order of time."""

    ms: np.ndarray
    product: np.ndarray
    cents: np.ndarray


def sales_of(
    branch: str, begin_ms: int, end_ms: int, rng: np.random.Generator
) -> Sales:
    """Return what a branch sold."""
    often = BRANCHES[branch] * (end_ms - begin_ms) / DAY_MS
    # A moment is taken as often as it is busy there.
    drawn = rng.integers(begin_ms, end_ms, size=round(often / 0.55))
    kept = rng.random(len(drawn)) < wave(drawn % DAY_MS / HOUR_MS)
    ms = np.sort(drawn[kept])
    others = [name for name in PRODUCTS if name not in STORIES]
    left = 1.0 - sum(story.share for story in STORIES.values())
    falling = 1 / np.arange(5, 5 + len(others))
    shares = dict(zip(others, left * falling / falling.sum(), strict=True))
    shares |= {name: story.share for name, story in STORIES.items()}
    chances = np.array([shares[name] for name in PRODUCTS])
    product = rng.choice(len(PRODUCTS), len(ms), p=chances / chances.sum())
    usual = np.random.default_rng(7).lognormal(2.0, 0.7, len(PRODUCTS))
    euros = np.clip(usual, 0.8, 60.0)[product]
    day = (ms - begin_ms) / DAY_MS
    there = np.ones(len(ms), bool)
    for name, story in STORIES.items():
        own = product == PRODUCTS.index(name)
        euros[own] = story.price
        if story.later is not None:
            euros[own & (day >= story.turn)] = story.later
        away = (day < story.first) | (day >= story.last)
        if story.branch not in (None, branch):
            away[:] = True
        there &= ~(own & away)
    # A tenth of what is sold is reduced.
    euros = np.where(rng.random(len(ms)) < 0.1, 0.8 * euros, euros)
    cents = np.round(100 * euros).astype(np.int64)
    return Sales(ms[there], product[there], cents[there])


def write_sales(directory: Path, sales: dict[str, Sales]) -> None:
    """Write all sales, as events and as a table, in the order of time."""
    branches = list(sales)
    of = np.repeat(range(len(branches)), [len(sales[name].ms) for name in branches])
    ms, product, cents = (
        np.concatenate([getattr(sales[name], column) for name in branches])
        for column in Sales._fields
    )
    order = np.argsort(ms, kind="stable")
    columns = [column[order].tolist() for column in (ms, of, product, cents)]
    with (
        (directory / "events.jsonl").open("w") as events,
        (directory / "sales.csv").open("w") as table,
    ):
        table.write("time_ms,branch,product,price\n")
        for at, branch, sold, paid in zip(*columns, strict=True):
            price = f"{paid // 100}.{paid % 100:02}"
            events.write(
                f'{{"ts":{at},"branch":"{branches[branch]}","product":"{PRODUCTS[sold]}","price":{price}}}\n'
            )
            table.write(f"{at},{branches[branch]},{PRODUCTS[sold]},{price}\n")


def write_truth(directory: Path, sales: dict[str, Sales], end_ms: int) -> None:
    """Write what the boards would show at the newest tick if nothing were hidden."""
    boards = {f"sold.{name}": end_ms - ms for name, ms in WINDOWS_MS.items()}
    boards["today"] = (end_ms - 1) // DAY_MS * DAY_MS
    boards["today, last hour"] = end_ms - HOUR_MS
    with (directory / "truth.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["board", "branch", "from", "until", "item", "count", "sum", "mean"]
        )
        for board, from_ms in boards.items():
            for branch, sold in sales.items():
                inside = sold.ms >= from_ms
                counts = np.bincount(sold.product[inside], minlength=len(PRODUCTS))
                sums = np.bincount(
                    sold.product[inside], sold.cents[inside], len(PRODUCTS)
                )
                for place in np.argsort(-counts, kind="stable"):
                    number = int(counts[place])
                    total = sums[place] / 100
                    mean = f"{total / number:.4f}" if number else ""
                    row = [PRODUCTS[place], number, f"{total:.2f}", mean]
                    table.writerow([board, branch, iso(from_ms), iso(end_ms), *row])
    with (directory / "quantiles.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["board", "branch", "from", "until", "sales", "q", "price"])
        for name, ms in WINDOWS_MS.items():
            for branch, sold in sales.items():
                paid = np.sort(sold.cents[sold.ms >= end_ms - ms]) / 100
                for q in QUANTILES:
                    value = paid[math.ceil(q * len(paid)) - 1]
                    times = [iso(end_ms - ms), iso(end_ms)]
                    table.writerow(
                        [f"prices.{name}", branch, *times, len(paid), q, value]
                    )


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def settings_text(connection: Connection) -> str:
    client = "\n".join(
        f"{json.dumps(name)} = {json.dumps(value)}"
        for name, value in connection.client.items()
    )
    return SETTINGS.format(
        bootstrap=json.dumps(connection.bootstrap),
        client=client,
        keys=json.dumps(list(BRANCHES)),
    )


def quietcount(*arguments: str, directory: Path) -> None:
    command = [sys.executable, "-m", "workers.cli", *arguments]
    subprocess.run(command, cwd=directory, check=True)


def send(path: Path, connection: Connection) -> None:
    """Put snapshots on their topics, each branch in a partition of its own.

    A partition of the embedded cluster keeps about 5 MiB, so batches are compressed.
    """
    small = {"compression.type": "zstd", "linger.ms": 500, "enable.idempotence": True}
    producer = connection.producer(None, **small)
    partitions = {name: place for place, name in enumerate(BRANCHES)}
    with path.open("rb") as lines:
        for line in lines:
            value = line.rstrip()
            snapshot = json.loads(value)
            while True:
                try:
                    producer.produce(
                        f"shop.{snapshot['histogram']}",
                        value,
                        snapshot["key"].encode(),
                        partitions[snapshot["key"]],
                        timestamp=snapshot["end"],
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0


def tell_budget(connection: Connection, end_ms: int) -> None:
    """Tell readers that the boards may run another 41 days; no worker computed it."""
    budget = msgspec.structs.replace(
        public_budget("shop"),
        unit="event",
        newest=end_ms,
        ceiling=PublicCeiling(9.0, 1e-6, "90d", 7.4, end_ms + 41 * DAY_MS),
    )
    topic = Topic("shop.budget", 1, "compact", None, "the budget")
    create_missing(connection, [topic], {})
    producer = connection.producer(None)
    producer.produce(topic.name, msgspec.json.encode(budget), KEY, 0)
    assert producer.flush(60) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a week of a shop.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    directory: Path = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    for old in ("snapshots.jsonl", "noise.key", "shop.toml"):
        (directory / old).unlink(missing_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())
    end_ms = time.time_ns() // 1_000_000 // TICK_MS * TICK_MS
    begin_ms = end_ms - DAYS * DAY_MS
    rng = np.random.default_rng(52)
    sales = {name: sales_of(name, begin_ms, end_ms, rng) for name in BRANCHES}
    print(f"{sum(len(sold.ms) for sold in sales.values()):,} sales", flush=True)
    write_sales(directory, sales)
    write_truth(directory, sales, end_ms)
    with EmbeddedCluster() as cluster:
        path = directory / "shop.toml"
        path.write_text(settings_text(cluster.connection))
        quietcount("key", "new", "noise.key", directory=directory)
        replay = ("replay", "-c", "shop.toml", "--input", "events.jsonl")
        quietcount(*replay, "--snapshots", "snapshots.jsonl", directory=directory)
        # The file cannot name a cluster within a process.
        settings = replace(load_reader_settings(path), connection=cluster.connection)
        with cluster.connection.admin() as admin:
            for one in settings.histograms:
                admin.list_topics(one.topic, timeout=60)
        send(directory / "snapshots.jsonl", cluster.connection)
        tell_budget(cluster.connection, end_ms)
        with Background(Dashboard(settings, port=options.port)) as running:
            reads(running)
            print(f"ready: {running.url} until it is killed", flush=True)
            signal.pause()


if __name__ == "__main__":
    main()
