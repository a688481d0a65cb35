"""What an export must hold, and what it holds."""

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import orjson

KINDS = ("csv", "parquet", "iceberg")
COLUMNS = (
    *(
        "histogram",
        "key",
        "id",
        "epoch",
        "tick",
        "start",
        "end",
        "start_time",
        "end_time",
    ),
    *("item", "count", "sd", "threshold", "sum", "mean", "mean_low", "mean_high"),
    *("mechanism", "unit", "rho", "epsilon", "delta", "rest"),
)
Row = tuple[Any, ...]


def expected(documents: Iterable[dict[str, Any]]) -> list[Row]:
    """Return the rows of whole snapshots, from their JSON alone."""
    rows = []
    for document in documents:
        head = tuple(document[name] for name in COLUMNS[:7])
        promise = tuple(
            document["guarantee"][name] for name in ("unit", "rho", "epsilon", "delta")
        )
        # The field `sum` is the range of the sums.
        typed = {*COLUMNS, "items", "sums", "guarantee", "page", "pages"} - {"sum"}
        rest = {name: value for name, value in document.items() if name not in typed}
        text = (
            orjson.dumps(rest, option=orjson.OPT_SORT_KEYS).decode() if rest else None
        )
        items = document.get("items") or [(None, None)]
        for item, sums in zip(
            items, document.get("sums") or [(None,) * 4] * len(items), strict=True
        ):
            noise = document["sd"], document["threshold"]
            rows.append(
                (*head, *item, *noise, *sums, document["mechanism"], *promise, text)
            )
    return sorted(rows, key=repr)


def exported(directory: Path, kind: str) -> list[Row]:
    """Return the rows of an output, read as its users would."""
    with duckdb.connect() as database:
        if kind == "iceberg":
            from pyiceberg.catalog.sql import SqlCatalog

            place = {
                "uri": f"sqlite:///{quote(str(directory / 'catalog.db'))}",
                "warehouse": f"file://{directory}",
            }
            catalog = SqlCatalog("quietcount", **place)
            database.register(
                "rows", catalog.load_table("quietcount.snapshots").scan().to_arrow()
            )
        else:
            options = (
                ", allow_quoted_nulls = false, all_varchar = true"
                if kind == "csv"
                else ""
            )
            files = f"{glob.escape(str(directory))}/*.{kind}".replace("'", "''")
            database.execute(
                f"create view rows as select * from read_{kind}('{files}'{options})"
            )
        assert [one[0] for one in database.execute("describe rows").fetchall()] == list(
            COLUMNS
        )
        times = "epoch_ms(start_time::timestamptz), epoch_ms(end_time::timestamptz)"
        apart = f"""select count(*) from rows where ("start"::bigint, "end"::bigint) != ({times})"""
        assert database.execute(apart).fetchall() == [(0,)]
        rows = database.execute(
            """select histogram, key, id, epoch::bigint, tick::bigint, "start"::bigint, "end"::bigint,
            item, count::bigint, sd::double, threshold::double,
            sum::double, mean::double, mean_low::double, mean_high::double, mechanism, unit, rho::double,
            epsilon::double, delta::double, rest from rows"""
        ).fetchall()
    return sorted(((*row[:-1], _canonical(row[-1])) for row in rows), key=repr)


def _canonical(rest: str | None) -> str | None:
    if rest is None:
        return None
    return orjson.dumps(orjson.loads(rest), option=orjson.OPT_SORT_KEYS).decode()
