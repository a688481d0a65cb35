"""Changes: the counts of one tick less those of an earlier tick of the same series.

Both ticks share noise. The error of a change is the snapshot's own where one of its `windows` spans
the two, else at most the sum of both standard deviations: whatever two variables share, the
standard deviation of their difference is no larger. At the beginning of a series every count is 0,
without noise.

An item that was not shown at the earlier tick had an unknown count there, at most that tick's
threshold: its change is listed as the whole count, and its label in `new`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.histogram import SUBTRACTING
from workers.pipeline.snapshots import SD_DIGITS, Numeric

Fields = Mapping[str, Any]


def can_subtract(snapshot: Fields) -> bool:
    """Return whether counts of this mechanism differ from the truth by noise only."""
    return snapshot["mechanism"] in SUBTRACTING or "windows" in snapshot


def ticks_of(snapshot: Fields, window_ms: int) -> int:
    """Return the ticks of a window that ends with a snapshot; it may reach before the epoch."""
    for window in snapshot.get("windows", ()):
        if window["ms"] == window_ms:
            return int(window["ticks"])
    return -(-window_ms // (snapshot["end"] - snapshot["start"]))


def changes(
    newer: Fields,
    older: Fields | None,
    begin_ms: int,
    *,
    items: Collection[str] | None = None,
    top: int | None = None,
) -> dict[str, Any]:
    """Return `newer` with changes in place of counts; the counts are in `counts`.

    Without `older` the series began at `begin_ms`. `items` and `top` cut as elsewhere: all buckets
    of a histogram of numbers stay unless `items` are named.
    """
    was = {} if older is None else dict(older["items"])
    missing = 0 if older is None else None
    sd, exact = _error(newer, older)
    rows, new = [], set()
    for label, count in newer["items"]:
        before = was.get(label, missing)
        if before is None:
            new.add(label)
        rows.append((label, count - (before or 0), count))
    rows.sort(key=lambda row: (-row[1], row[0]))
    found = {name: newer[name] for name in newer if name not in ("windows", "quantiles")}
    if newer.get("quantiles") and sd is not None:
        numeric = Numeric(Buckets(tuple(newer["edges"])), [one["q"] for one in newer["quantiles"]])
        found["quantiles"] = numeric.fields([row[:2] for row in rows], sd)["quantiles"]
    found["total_items"] = len(rows)
    if items is not None:
        rows = [row for row in rows if row[0] in items][:top]
    elif "edges" not in newer:
        rows = rows[:top]
    found |= {"items": [row[:2] for row in rows], "counts": [row[2] for row in rows]}
    found |= {"sd": sd, "threshold": None}
    found["change"] = {
        "from": begin_ms,
        "tick": 0 if older is None else older["tick"],
        "exact": exact,
        "new": [row[0] for row in rows if row[0] in new],
        "threshold": None if older is None else older["threshold"],
        "sd_from": 0.0 if older is None else older["sd"],
        "sd_to": newer["sd"],
    }
    return found


def _error(newer: Fields, older: Fields | None) -> tuple[float | None, bool]:
    """Return the standard deviation of a change, and whether it is exact or a bound."""
    if older is None:
        return newer["sd"], True
    ticks = newer["tick"] - older["tick"]
    for window in newer.get("windows", ()):
        if window["ticks"] == ticks:
            return window["sd"], True
    if newer["sd"] is None or older["sd"] is None:
        return None, False
    return round(newer["sd"] + older["sd"], SD_DIGITS), False
