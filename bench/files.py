"""Time, bytes a row and largest memory of the dashboard's files; of Parquet the bytes by column.

    python -m bench.files [--ticks 99990] [--items 200] [--sums] [--query format=parquet ...]
        [--floor]

Makes a history of one stream key, serves it in this process, and downloads it with another one. The
memory is that of this process while the file is made and sent. `--floor` writes the Parquet file
again in other ways, to see how small it could be.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
from aiohttp import web

from tests.dashboard.feeding import message, reader_settings, seen
from workers.dashboard.api import application
from workers.dashboard.hub import Hub
from workers.dashboard.store.store import Store
from workers.dashboard.store.writing import Arrival, Position, Writer, compact, connect
from workers.settings.settings import DashboardSettings

PIECE = 500
QUERIES = ("format=csv", "format=csv gzip", "format=parquet")
COLUMNS = """
select path_in_schema, sum(total_compressed_size) as size
from parquet_metadata(?) group by all order by size desc limit 8
"""
# Other ways to write the same rows: what is selected, and options beside those of an export.
SUMMED = ("sum", "mean", "mean_low", "mean_high")
DECIMALS = ", ".join(f"{name}::decimal(18, 5) as {name}" for name in SUMMED)
TO_THREE_DIGITS = ", ".join(
    f"round({name}, (2 - floor(log10(greatest(mean_high - mean_low, 1e-9))))::int) as {name}"
    for name in SUMMED[1:]
)
OTHERWISE = {
    "as it is": ("*", ""),
    "zstd level 19": ("*", ", compression_level 19"),
    "byte stream split": ("*", ", parquet_version v2"),
    "decimals, delta encoded": (
        f"* replace ({DECIMALS})",
        ", parquet_version v2",
    ),
    "means to three digits of their interval": (f"* replace ({TO_THREE_DIGITS})", ""),
    "without means": ("* exclude (mean, mean_low, mean_high)", ""),
}
DOWNLOAD = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Accept-Encoding": sys.argv[2]})
with urllib.request.urlopen(request) as answer, open(sys.argv[3], "wb") as file:
    size = 0
    while piece := answer.read(1 << 20):
        size += file.write(piece)
print(size)
"""


def snapshots(ticks: int, items: int, sums: bool) -> Iterator[dict[str, Any]]:
    """Yield snapshots whose counts grow, with noise, and perhaps sums of a price."""
    draw = random.Random(1)
    counts = [draw.randrange(10_000) for _ in range(items)]
    for tick in range(1, ticks + 1):
        counts = [count + draw.randrange(5) for count in counts]
        noisy = [
            (f"item {i}", n + round(draw.gauss(0, 17))) for i, n in enumerate(counts)
        ]
        noisy.sort(key=lambda item: (-item[1], item[0]))
        fields: dict[str, Any] = {}
        if sums:
            rows = []
            for _, count in noisy:
                mean = round(draw.gauss(14.55, 0.2), 5)
                half = round(abs(draw.gauss(0.2, 0.02)), 5)
                ends = round(mean - half, 5), round(mean + half, 5)
                rows.append([round(mean * count, 3), mean, *ends])
            fields["sums"] = rows
            fields["sum"] = {"from": 0, "to": 20, "step": 0.01, "sd": 767.859451}
        yield message(tick, noisy, **fields)


def make(path: Path, ticks: int, items: int, sums: bool) -> None:
    database = connect(path)
    writer = Writer(database)
    piece = []
    for number, document in enumerate(snapshots(ticks, items, sums), 1):
        piece.append(Arrival(0, seen(document)))
        if len(piece) == PIECE or number == ticks:
            writer.write(piece, {("topic", 0): Position("id", number)})
            compact(database)
            piece = []
    database.close()


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096 / 1e6


def print_floor(file: Path, rows: int) -> None:
    """Print the bytes a row, and the time, of other ways to write a Parquet file."""
    target = file.with_name("otherwise")
    for name, (columns, options) in OTHERWISE.items():
        begun = time.monotonic()
        duckdb.execute(
            f"copy (select {columns} from read_parquet('{file}')) to '{target}' "
            f"(format parquet, compression zstd{options})"
        )
        took = time.monotonic() - begun
        size = target.stat().st_size
        print(f"{name}: {size / rows:.1f} bytes a row, {took:.1f} s", flush=True)


async def measure(path: Path, queries: list[str], rows: int, floor: bool) -> None:
    history = DashboardSettings(store=path)
    settings = replace(reader_settings("products"), history=history)
    store = Store(settings)
    store.backlog.away = True
    store.start()
    while store.state["state"] != "waiting":
        await asyncio.sleep(0.05)
    store.reading = None
    runner = web.AppRunner(application(Hub(), store, settings))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    print(f"memory before: {memory_mb():.0f} MB", flush=True)
    for query in queries:
        asked, _, encoding = query.partition(" ")
        address = (
            f"http://127.0.0.1:{port}/api/history?histogram=products&key=s1&{asked}"
        )
        file = path.with_name("answer")
        command = [
            sys.executable,
            "-c",
            DOWNLOAD,
            address,
            encoding or "identity",
            str(file),
        ]
        begun = time.monotonic()
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe)
        most = 0.0
        while process.returncode is None:
            most = max(most, memory_mb())
            await asyncio.sleep(0.05)
        assert process.stdout is not None
        size = int(await process.stdout.read())
        took = time.monotonic() - begun
        print(
            f"{query}: {rows:,} rows, {size / rows:.1f} bytes a row, {took:.0f} s, "
            f"at most {most:.0f} MB",
            flush=True,
        )
        if "parquet" in asked:
            by_column = duckdb.execute(COLUMNS, [str(file)]).fetchall()
            listed = [f"{name} {size / rows:.2f}" for name, size in by_column]
            print(f"bytes a row by column: {', '.join(listed)}", flush=True)
            if floor:
                await asyncio.to_thread(print_floor, file, rows)
    await asyncio.to_thread(store.close)
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=99_990)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("--query", nargs="+", default=QUERIES)
    parser.add_argument("--floor", action="store_true")
    chosen = parser.parse_args()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "history.duckdb"
        make(path, chosen.ticks, chosen.items, chosen.sums)
        rows = chosen.ticks * chosen.items
        asyncio.run(measure(path, list(chosen.query), rows, chosen.floor))


if __name__ == "__main__":
    main()
