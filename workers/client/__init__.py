"""Read histogram topics from Python: typed snapshots, tables, the newest board.

    from workers.client import latest, snapshots, table

    for one in snapshots("orders.toml", "products"):
        print(one.key, one.tick, one.items, one.sd)
    table(snapshots("orders.toml", since="2026-11-26")).df()
    Tables.of(snapshots("orders.toml")).ticks.df()
    latest("orders.toml", "products")["products", "s1"].items
    budget("orders.toml").sentence()

Of the settings file only `worker.name`, `[kafka]`, and names and windows of histograms are read. A
reader joins no group, and needs only the right to read the histogram topics, and for `budget` that
of the budget topic.

Imports `privacy`, `pipeline`, `kafka` and `settings`. Start with `reading`; `tables` makes rows for
DuckDB, DataFrames and files. `messages` joins pages and parts to snapshots, `changes` subtracts
them, `config` reads what a reader needs of the settings file: the dashboard and `quietcount export`
share these. `schema` has the JSON Schema of snapshots.
"""

from workers.client.messages import CountedWindow, Stream
from workers.client.reading import (
    Item,
    Quantile,
    Snapshot,
    Sum,
    Window,
    budget,
    latest,
    snapshots,
)
from workers.client.schema import snapshot_schema
from workers.client.tables import Tables, table
from workers.privacy.public import PublicBudget

__all__ = [
    "CountedWindow",
    "Item",
    "PublicBudget",
    "Quantile",
    "Snapshot",
    "Stream",
    "Sum",
    "Tables",
    "Window",
    "budget",
    "latest",
    "snapshot_schema",
    "snapshots",
    "table",
]
