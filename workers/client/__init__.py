"""Read histogram topics from Python: typed snapshots, tables, the newest board.

    from workers.client import latest, snapshots, table

    for one in snapshots("orders.toml", "products"):
        print(one.key, one.tick, one.items, one.sd)
    table(snapshots("orders.toml", since="2026-11-26")).df()
    latest("orders.toml", "products")["products", "s1"].items

Of the settings file only `worker.name`, `[kafka]` and the histograms' names are read. A reader
joins no group, and needs only the right to read the histogram topics.

Imports `dashboard`, `kafka` and `settings`. Start with `reading`; `tables` makes rows for DuckDB,
DataFrames and files. `quietcount export` reads by these too.
"""

from workers.client.reading import (
    Item,
    Quantile,
    Snapshot,
    Sum,
    Window,
    latest,
    snapshots,
)
from workers.client.tables import table
from workers.dashboard.snapshots import Stream

__all__ = [
    "Item",
    "Quantile",
    "Snapshot",
    "Stream",
    "Sum",
    "Window",
    "latest",
    "snapshots",
    "table",
]
