"""Keeps every snapshot of a histogram topic in a DuckDB file, and on request in Parquet.

    python examples/consumers/to_duckdb.py --topic orders.products --database board.duckdb --parquet board/

    snapshots   one row a snapshot: its series, stream key, tick, items (with sums), count of all items, and what the series promises
    positions   where to go on in each partition

Both change in one transaction of DuckDB, so a stop or a crash anywhere loses nothing and counts nothing twice. A snapshot that comes again
must be the same bytes, and is then left out; one that differs is refused: somebody published two truths about one tick, and nobody should
build on either. DuckDB lets one process write to a file.

Parquet files are `<histogram>/<id>/<first tick>.parquet` with a hundred ticks each. New ticks rewrite their
file from the database and put it in place by renaming: a reader finds a whole file or none.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
from reading import Record, Topic, add_options
from snapshots import NotASnapshot, Pages, Snapshot

TICKS_IN_A_FILE = 100
PARQUET_S = 10.0
ITEM = {
    "label": pa.string(),
    "count": pa.int64(),
    **dict.fromkeys(("sum", "mean", "low", "high"), pa.float64()),
}
WINDOW = {
    "ms": pa.int64(),
    "ticks": pa.int64(),
    **dict.fromkeys(("sd", "sum_sd", "all_items_sd"), pa.float64()),
}
COLUMNS = pa.schema(
    {
        "histogram": pa.string(),
        "id": pa.string(),
        "key": pa.string(),
        "epoch": pa.int64(),
        "tick": pa.int64(),
        "start": pa.timestamp("ms", "UTC"),
        "end": pa.timestamp("ms", "UTC"),
        "mechanism": pa.string(),
        "unit": pa.string(),
        "rho": pa.float64(),
        "epsilon": pa.float64(),
        "delta": pa.float64(),
        "sd": pa.float64(),
        "threshold": pa.float64(),
        "items": pa.list_(pa.struct(ITEM)),
        "sum": pa.struct(dict.fromkeys(("from", "to", "step", "sd"), pa.float64())),
        "all_items": pa.struct({"count": pa.int64(), "sd": pa.float64()}),
        "windows": pa.list_(pa.struct(WINDOW)),
        "window": pa.struct({"ms": pa.int64(), "from": pa.int64()}),
        "previous_id": pa.string(),
        "answer": pa.string(),
        "digest": pa.string(),
    }
)
TABLES = f"""
create table if not exists snapshots (
    histogram varchar, id varchar, key varchar, epoch bigint, tick bigint, "start" timestamptz, "end" timestamptz, mechanism varchar,
    unit varchar, rho double, epsilon double, delta double, sd double, threshold double,
    items struct(label varchar, count bigint, sum double, mean double, low double, high double)[],
    "sum" struct("from" double, "to" double, step double, sd double), all_items struct(count bigint, sd double),
    windows struct(ms bigint, ticks bigint, sd double, sum_sd double, all_items_sd double)[],
    "window" struct(ms bigint, "from" bigint), previous_id varchar, answer varchar, digest varchar,
    primary key (histogram, key, id, tick));
alter table snapshots add column if not exists previous_id varchar;
create table if not exists positions (topic varchar, part integer, next bigint, primary key (topic, part));
create table if not exists files (histogram varchar, id varchar, first bigint, stale boolean, primary key (histogram, id, first));
create or replace view first_ticks as
    select *, (tick - 1) // {TICKS_IN_A_FILE} * {TICKS_IN_A_FILE} + 1 as first from snapshots;
"""
PUBLIC = ", ".join(f'"{name}"' for name in COLUMNS.names if name != "digest")


class Sink:
    """The database of one topic."""

    def __init__(self, database: Path, topic: str, parquet: Path | None) -> None:
        self.topic = topic
        self._parquet = parquet
        self._db = duckdb.connect(str(database))
        self._db.execute(TABLES)
        self._pages: defaultdict[int, Pages] = defaultdict(Pages)

    def close(self) -> None:
        self._db.close()

    def begin(self, bounds: dict[int, tuple[int, int]]) -> dict[int, int]:
        """Where to go on in each partition.

        Args:
            bounds: first offset and end of each.

        Raises:
            SystemExit: what was read is not there any more.
        """
        stored = dict(
            self._db.execute(
                "select part, next from positions where topic = ?", [self.topic]
            ).fetchall()
        )
        start = {}
        for partition, (low, high) in bounds.items():
            start[partition] = stored.get(partition, low)
            if start[partition] > high:
                sys.exit(
                    f"{self.topic}[{partition}] ends before what was read of it: is it another topic of that name?"
                )
            if start[partition] < low:
                print(
                    f"{self.topic}[{partition}]: retention removed records that were not read yet",
                    file=sys.stderr,
                )
                start[partition] = low
        return start

    def take(self, records: Sequence[Record]) -> int:
        """Stores the snapshots that some records complete, and the new positions; returns how many were new.

        Raises:
            NotASnapshot: a record is none, or differs from what is stored. Nothing of this batch is kept then.
        """
        found: dict[tuple[str, str, str, int], Snapshot] = {}
        positions: dict[int, int] = {}
        for record in records:
            try:
                snapshot = self._pages[record.partition].receive(
                    record.value, record.offset
                )
            except NotASnapshot as error:
                raise NotASnapshot(
                    f"{self.topic}[{record.partition}] offset {record.offset}: {error}"
                ) from None
            if snapshot is None:
                continue
            place = (snapshot.histogram, snapshot.key, snapshot.id, snapshot.tick)
            _compare(snapshot.digest, found.setdefault(place, snapshot).digest)
            positions[record.partition] = record.offset + 1
        if not positions:
            return 0
        # A restart reads the records of incomplete snapshots again.
        waiting = {
            partition: self._pages[partition].first_offset for partition in positions
        }
        positions |= {
            partition: at for partition, at in waiting.items() if at is not None
        }
        self._db.execute("begin")
        try:
            new = self._insert(list(found.values()))
            for partition, offset in positions.items():
                self._db.execute(
                    "insert or replace into positions values (?, ?, ?)",
                    [self.topic, partition, offset],
                )
            self._db.execute("commit")
        except BaseException:
            self._db.execute("rollback")
            raise
        return new

    def _insert(self, snapshots: Sequence[Snapshot]) -> int:
        self._db.register(
            "batch",
            pa.Table.from_pylist([_row(snapshot) for snapshot in snapshots], COLUMNS),
        )
        same = "on (batch.histogram, batch.key, batch.id, batch.tick) = (known.histogram, known.key, known.id, known.tick)"
        for one, other in self._db.execute(
            f"select batch.digest, known.digest from batch join snapshots known {same}"
        ).fetchall():
            _compare(one, other)
        promises = "select distinct id, mechanism, unit, rho, epsilon, delta"
        several = f"select id from ({promises} from batch union {promises} from snapshots where id in (select id from batch))"
        if self._db.execute(f"{several} group by id having count(*) > 1").fetchone():
            raise NotASnapshot("two snapshots of one id with different guarantees")
        self._db.execute(
            "create or replace temp table fresh as select batch.* from batch anti join snapshots known "
            "using (histogram, key, id, tick)"
        )
        self._db.execute("insert into snapshots by name select * from fresh")
        self._db.execute(
            f"insert or replace into files select distinct histogram, id, (tick - 1) // {TICKS_IN_A_FILE} * {TICKS_IN_A_FILE} + 1, "
            "true from fresh"
        )
        self._db.unregister("batch")
        counted = self._db.execute("select count(*) from fresh").fetchone()
        return int(counted[0]) if counted else 0

    def write_parquet(self) -> None:
        """Brings the files up to what is stored; a file that is missing is written too."""
        if self._parquet is None:
            return
        for histogram, series, first, stale in self._db.execute(
            "select * from files order by all"
        ).fetchall():
            path = self._parquet / histogram / series / f"{first:010d}.parquet"
            if not stale and path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            half = path.with_suffix(".half")
            rows = f"select {PUBLIC} from first_ticks where histogram = ? and id = ? and first = ? order by key, tick"
            self._db.execute(
                f"copy ({rows}) to '{_quoted(half)}' (format parquet)",
                [histogram, series, first],
            )
            os.replace(half, path)
            self._db.execute(
                "update files set stale = false where (histogram, id, first) = (?, ?, ?)",
                [histogram, series, first],
            )


def _row(snapshot: Snapshot) -> dict[str, object]:
    items = None
    if snapshot.items is not None:
        sums = [dataclasses.asdict(one) for one in snapshot.sums] or [{}] * len(
            snapshot.items
        )
        pairs = zip(snapshot.items, sums, strict=True)
        items = [{"label": label, "count": count, **of} for (label, count), of in pairs]
    return {
        **{
            name: getattr(snapshot, name)
            for name in COLUMNS.names
            if hasattr(snapshot, name)
        },
        **dataclasses.asdict(snapshot.guarantee),
        "items": items,
        "windows": [dataclasses.asdict(window) for window in snapshot.windows],
        "answer": json.dumps(snapshot.answer, ensure_ascii=False)
        if snapshot.answer
        else None,
    }


def _compare(one: str, other: str) -> None:
    if one != other:
        raise NotASnapshot(
            "a snapshot came again with other content: nothing of it is kept; tell whoever runs the worker"
        )


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def main() -> None:
    """Follows the topic from where the database stands."""
    parser = argparse.ArgumentParser(
        description="Keeps the snapshots of a histogram topic in DuckDB."
    )
    add_options(parser)
    parser.add_argument(
        "--database",
        type=Path,
        required=True,
        metavar="FILE",
        help="is made where there is none",
    )
    parser.add_argument(
        "--parquet",
        type=Path,
        metavar="DIRECTORY",
        help="also write Parquet files there",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    topic = Topic(options.bootstrap, options.topic, options.client)
    sink = Sink(options.database, options.topic, options.parquet)
    new = 0
    written = time.monotonic()
    try:
        for batch in topic.batches(
            sink.begin(topic.bounds), until_end=options.until_end
        ):
            new += sink.take(batch)
            if not batch or time.monotonic() - written > PARQUET_S:
                sink.write_parquet()
                written = time.monotonic()
        sink.write_parquet()
    except KeyboardInterrupt:
        pass
    except NotASnapshot as error:
        sys.exit(str(error))
    finally:
        sink.close()
        print(f"{new:,} new snapshots", file=sys.stderr)


if __name__ == "__main__":
    main()
