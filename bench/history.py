"""A year in the dashboard's history: `python -m bench --only history [--history-days 365]`.

Ticks of ten seconds of one stream with 100 items, epochs of a day, in the tables of the dashboard: the first day from JSON, as it reads
them, the others from arrays. Prints how long a tick takes, the file's size, memory, and how long each view takes: the median of five,
after a first one. Exit 1 where the file has 1 GB or more, or a view of the page takes 300 ms or more.
"""

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import orjson

from workers.client.messages import Pages, SeenSnapshot, Stream
from workers.dashboard.store.queries import (
    EpochsQuery,
    HistoryQuery,
    Range,
    TickQuery,
    epochs,
    history,
    one_tick,
)
from workers.dashboard.store.writing import (
    QUARTER_MS,
    Arrival,
    Writer,
    compact,
    connect,
)

TICK_MS = 10_000
DAY_TICKS = 8_640
ITEMS = 100
SD = 45.0
BEGIN_MS = 1_735_689_600_000
BATCH = 500
BYTES = 1_000_000_000
VIEW_S = 0.3
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
LABELS = [f"product {i:03}" for i in range(ITEMS)]
ONE = Stream("products", "s1")


def counts_of(day: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Running counts of a day with noise, from zero: a row a tick."""
    draw = np.random.default_rng(day)
    sums = np.cumsum(
        draw.poisson(1_000 / np.arange(1, ITEMS + 1), (DAY_TICKS, ITEMS)), axis=0
    )
    return (sums + np.rint(draw.normal(0, SD, sums.shape))).astype(np.int64)


def sd_of(tick: int) -> float:
    """The noise follows the tick."""
    return SD + tick % 13 * 0.3


def snapshots(day: int) -> Iterator[SeenSnapshot]:
    """The snapshots of a day, as the worker publishes them."""
    for tick, counts in enumerate(counts_of(day), 1):
        start = BEGIN_MS + (day * DAY_TICKS + tick - 1) * TICK_MS
        items = sorted(
            zip(LABELS, counts.tolist(), strict=True), key=lambda item: -item[1]
        )
        document = {
            "histogram": ONE.histogram,
            "key": ONE.key,
            "epoch": day + 1,
            "tick": tick,
            "start": start,
            "end": start + TICK_MS,
            "items": items,
            "sd": sd_of(tick),
            "threshold": 352.0,
            "guarantee": {"unit": "event", "rho": 0.021, "epsilon": 1.0, "delta": 1e-9},
            "mechanism": "unk_base",
            "id": f"{day:032x}",
            "page": 1,
            "pages": 1,
            "windows": windows_of(tick),
        }
        found = Pages().receive(ONE.histogram, orjson.dumps(document))
        assert found is not None
        yield found


def windows_of(tick: int) -> list[dict[str, float]]:
    """What a snapshot says of the last hour."""
    return [{"ms": HOUR_MS, "ticks": 360, "sd": 31.5 + tick % 13 * 0.3}]


def fill(path: Path, days: int) -> float:
    """Store the first day as the dashboard does, and the others by the same tables from arrays.

    Returns:
        Seconds that a tick of the first day took.
    """
    database = connect(path)
    writer = Writer(database)
    batch = [Arrival(0, snapshot) for snapshot in snapshots(0)]
    before = time.perf_counter()
    for start in range(0, len(batch), BATCH):
        writer.write(batch[start : start + BATCH], {})
    spent = time.perf_counter() - before
    tick = np.arange(1, DAY_TICKS + 1)
    for day in range(1, days):
        shown = counts_of(day)
        place = day * DAY_TICKS + tick
        end = BEGIN_MS + place * TICK_MS
        heads = {
            "place": place,
            "stream": np.ones(DAY_TICKS, np.int32),
            "series": np.full(DAY_TICKS, day + 1, np.int32),
            "tick": tick,
            "start_ms": end - TICK_MS,
            "end_ms": end,
            "sd": SD + tick % 13 * 0.3,
            "threshold": np.full(DAY_TICKS, 352.0),
            "shown": np.full(DAY_TICKS, ITEMS, np.int32),
            "total": shown.sum(axis=1),
            "rest": np.array(
                [
                    orjson.dumps({"windows": windows_of(one)}).decode()
                    for one in tick.tolist()
                ],
                object,
            ),
        }
        counts = {
            "stream": np.ones(DAY_TICKS * ITEMS, np.int32),
            "item": np.tile(np.arange(1, ITEMS + 1, dtype=np.int32), DAY_TICKS),
            "place": np.repeat(place, ITEMS),
            "n": shown.ravel(),
        }
        database.begin()
        guarantee = '{"unit":"event","rho":0.021,"epsilon":1.0,"delta":1e-9}'
        database.execute(
            "insert into series values (?, 1, ?, ?, 'unk_base', ?, '')",
            [day + 1, f"{day:032x}", day + 1, guarantee],
        )
        for table, columns in (
            ("ticks_heads_new", heads),
            ("ticks_counts_new", counts),
        ):
            database.register("added", columns)
            database.execute(f"insert into {table} by name from added")
            database.unregister("added")
        last = place[(end % QUARTER_MS) == 0]
        # The last tick of a day is overtaken by the first of the next one.
        writer._promote(
            {"quarters": (last - 90).tolist(), "epochs": [int(place[0]) - 1]}
        )
        database.commit()
        compact(database)
        if day % 30 == 0:
            print(
                f"  day {day}: {path.stat().st_size / 1e6:,.0f} MB, {resident_mb():,.0f} MB resident",
                flush=True,
            )
    database.close()
    return spent / DAY_TICKS


def views(days: int) -> dict[str, Callable[[duckdb.DuckDBPyConnection], object]]:
    """What the page asks, and what only somebody else may ask (in brackets)."""
    end = BEGIN_MS + days * DAY_MS

    def over(
        span_ms: int, step: int | None, items: int, limit: int = 10_000
    ) -> Callable[[duckdb.DuckDBPyConnection], object]:
        asked = HistoryQuery(
            stream=ONE,
            range=Range(end - span_ms, end),
            items=LABELS[:items],
            step=step,
            limit=limit,
        )
        return lambda cursor: history(cursor, asked, None)

    middle = BEGIN_MS + days // 2 * DAY_MS + 12_345
    return {
        "the year, an item, a step of 12 h": over(days * DAY_MS, 12 * HOUR_MS, 1),
        "the year, 10 items, a step of 12 h": over(days * DAY_MS, 12 * HOUR_MS, 10),
        "the year, 100 items, a step of a day": over(days * DAY_MS, DAY_MS, 100),
        "the year, an item, a step of an hour": over(days * DAY_MS, HOUR_MS, 1),
        "30 days, 10 items, a step of an hour": over(30 * DAY_MS, HOUR_MS, 10),
        "a week, 10 items, a step of 15 min": over(7 * DAY_MS, HOUR_MS // 4, 10),
        "3 days, 6 items, a step of 10 min": over(3 * DAY_MS, 600_000, 6),
        "a day, 10 items, a step of 2 min": over(DAY_MS, 120_000, 10),
        "an hour, 100 items, every tick": over(HOUR_MS, None, 100),
        "a tick in the middle of the year": lambda cursor: one_tick(
            cursor, TickQuery(stream=ONE, at=middle)
        ),
        "100 epochs with 100 items": lambda cursor: epochs(
            cursor, EpochsQuery(stream=ONE, range=Range(), top=100), None
        ),
        "365 epochs, an item": lambda cursor: epochs(
            cursor,
            EpochsQuery(stream=ONE, range=Range(), items=LABELS[:1], limit=1_000),
            None,
        ),
        "(a day, an item, every tick)": over(DAY_MS, None, 1),
        "(the year, 10 items, a step of 59 min)": over(days * DAY_MS, 59 * 60_000, 10),
    }


def resident_mb() -> float:
    """Resident memory of this process."""
    return (
        int(Path("/proc/self/statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / 1e6
    )


def table(days: int) -> bool:
    """Print all of it; return whether the targets are met."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.duckdb"
        print(f"\n{days} days of ticks of 10 s with {ITEMS} items:")
        spent = fill(path, days)
        size = path.stat().st_size
        ticks = days * DAY_TICKS
        print(
            f"  {spent * 1e6:,.0f} us a tick to store, {size / 1e6:,.0f} MB "
            f"({size / ticks / ITEMS:.2f} bytes a count)"
        )
        kept = size < BYTES
        database = connect(path)
        for name, view in views(days).items():
            times = []
            processor = time.process_time()
            for _ in range(6):
                before = time.perf_counter()
                view(database)
                times.append(time.perf_counter() - before)
            median = statistics.median(times[1:])
            processor = (time.process_time() - processor) / 6
            figures = [
                f"{1_000 * seconds:,.0f} ms"
                for seconds in (median, times[0], processor)
            ]
            print(
                "  {:<42} {}, the first {}; {} of a core".format(name, *figures),
                flush=True,
            )
            kept = kept and (median < VIEW_S or name.startswith("("))
        database.close()
    print(
        "  most memory of this process: "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB"
    )
    return kept
