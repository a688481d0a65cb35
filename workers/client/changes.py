"""Changes: the counts of one tick less those of an earlier tick of the same series.

Both ticks share noise. The error of a change is the snapshot's own where one of its `windows` spans
the two, else at most the sum of both standard deviations: whatever two variables share, the
standard deviation of their difference is no larger. At the beginning of a series every count is 0,
without noise.

An item that was not shown at the earlier tick had an unknown count there, at most that tick's
threshold: its change is listed as the whole count, and its label in `new`. Of its sum nothing is
said. Sums and the count of all items have noise of their own, and change in the same way.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import numpy as np

from workers.arrays.types import Floats
from workers.client.messages import Number, SumRange, SumRow
from workers.mechanisms.accounting import NotNegative
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.registry import about
from workers.pipeline.snapshots import SD_DIGITS, Means, Numeric, rounded_sum_sd
from workers.runtime.frozen import ready

Fields = Mapping[str, Any]
Positive = Annotated[int, msgspec.Meta(ge=1)]
_RANGE = ("from", "to", "step")


class Window(msgspec.Struct, frozen=True):
    ms: Positive
    ticks: Positive
    sd: NotNegative
    sum_sd: NotNegative | None = None
    all_items_sd: NotNegative | None = None


class Total(msgspec.Struct, frozen=True):
    count: Number
    sd: NotNegative


class Sums(msgspec.Struct, frozen=True):
    """A snapshot's counts and sums."""

    items: list[tuple[str, Number]]
    sums: list[SumRow]
    sum: SumRange
    sd: NotNegative


ready(Window, Total, Sums)


def can_subtract(snapshot: Fields) -> bool:
    """Return whether counts of this mechanism differ from the truth by noise only.

    Counts of a window cannot: two windows overlap, or have other events between them.
    """
    if "window" in snapshot:
        return False
    mechanism = about(snapshot["mechanism"])
    known = "windows" in snapshot or (mechanism is not None and mechanism.subtracts)
    return known and snapshot.get("items") is not None


def ticks_of(snapshot: Fields, window_ms: int) -> int:
    """Return the ticks of a window that ends with a snapshot; it may reach before the epoch."""
    for window in _windows(snapshot):
        if window.ms == window_ms:
            return window.ticks
    width: int = snapshot["end"] - snapshot["start"]
    return -(-window_ms // width)


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
    was = {} if older is None else dict(older.get("items") or ())
    missing = 0 if older is None else None
    sd, exact = _error(newer, older)
    rows = []
    new = set()
    for label, count in newer["items"]:
        before = was.get(label, missing)
        if before is None:
            new.add(label)
        rows.append((label, count - (before or 0), count))
    rows.sort(key=lambda row: (-row[1], row[0]))
    left_out = ("windows", "quantiles", "all_items", "sums", "sum")
    fields = {name: newer[name] for name in newer if name not in left_out} | _of_all(
        newer, older
    )
    of_sums = _of_sums(newer, older)
    if newer.get("quantiles") and sd is not None:
        # as another program may have written them
        with suppress(KeyError, TypeError, ValueError):
            quantiles = [quantile["q"] for quantile in newer["quantiles"]]
            numeric = Numeric(Buckets(tuple(newer["edges"])), quantiles)
            fields["quantiles"] = numeric.fields([row[:2] for row in rows], sd)[
                "quantiles"
            ]
    fields["total_items"] = len(rows)
    if items is not None:
        rows = [row for row in rows if row[0] in items][:top]
    elif "edges" not in newer:
        rows = rows[:top]
    fields |= {"items": [row[:2] for row in rows], "counts": [row[2] for row in rows]}
    if of_sums is not None:
        listed, about = of_sums
        fields |= {"sums": [listed[row[0]] for row in rows], "sum": about}
    fields |= {"sd": sd, "threshold": None}
    fields["change"] = {
        "from": begin_ms,
        "tick": 0 if older is None else older["tick"],
        "exact": exact,
        "new": [row[0] for row in rows if row[0] in new],
        "threshold": None if older is None else older["threshold"],
        "sd_from": 0.0 if older is None else older["sd"],
        "sd_to": newer["sd"],
    }
    return fields


def _windows(snapshot: Fields) -> list[Window]:
    try:
        return msgspec.convert(snapshot.get("windows", []), list[Window])
    except msgspec.ValidationError:  # of another program
        return []


def _of_all(newer: Fields, older: Fields | None) -> dict[str, Any]:
    """Return the change of the count of all items, if there is one at both ends."""
    fields: dict[str, Any] = {}
    with suppress(KeyError, msgspec.ValidationError):  # as above
        total = msgspec.convert(newer["all_items"], Total)
        older_total = Total(0, 0.0)
        sd = None
        if older is not None:
            older_total = msgspec.convert(older["all_items"], Total)
            ticks = newer["tick"] - older["tick"]
            sd = next(
                (
                    window.all_items_sd
                    for window in _windows(newer)
                    if window.ticks == ticks
                ),
                None,
            )
        sd = round(total.sd + older_total.sd, SD_DIGITS) if sd is None else sd
        fields["all_items"] = {"count": total.count - older_total.count, "sd": sd}
    return fields


def _of_sums(newer: Fields, older: Fields | None) -> tuple[Fields, Fields] | None:
    """Return the changes of sums by label, with their means, and the new `sum`; None: no sums."""
    # as above
    with suppress(KeyError, ValueError, OverflowError, msgspec.ValidationError):
        newer_sums = msgspec.convert(newer, Sums)
        counts_now = dict(newer_sums.items)
        sums_now: dict[str, Any] = dict(zip(counts_now, newer_sums.sums, strict=True))
        if older is None:
            return sums_now, newer["sum"]
        older_sums = msgspec.convert(older, Sums)
        counts_before = dict(older_sums.items)
        sums_before = dict(zip(counts_before, older_sums.sums, strict=True))
        means = Means(
            parse_sum({"field": "sum"} | {end: newer["sum"][end] for end in _RANGE})
        )
        errors = [
            (older_sums.sd, older_sums.sum.sd),
            (newer_sums.sd, newer_sums.sum.sd),
        ]
        ticks = newer["tick"] - older["tick"]
        for window in _windows(newer):
            if window.ticks == ticks and window.sum_sd is not None:
                errors = [(window.sd, window.sum_sd)]
        both = [label for label in sums_now if label in sums_before]
        counts = _array(counts_now, both) - _array(counts_before, both)
        sums = np.array(
            [sums_now[label][0] - sums_before[label][0] for label in both],
            dtype=np.float64,
        )
        changed: dict[str, Any] = dict.fromkeys(sums_now, means.unknown)
        changed |= zip(both, means.changed_rows(counts, sums, errors), strict=True)
        sd = rounded_sum_sd(sum(of_sum for _, of_sum in errors))
        return changed, newer["sum"] | {"sd": sd}
    return None


def _array(of: Mapping[str, int], labels: list[str]) -> Floats:
    return np.array([of[label] for label in labels], dtype=np.float64)


def _error(newer: Fields, older: Fields | None) -> tuple[float | None, bool]:
    """Return the standard deviation of a change, and whether it is exact or a bound."""
    if older is None:
        return newer["sd"], True
    ticks = newer["tick"] - older["tick"]
    for window in _windows(newer):
        if window.ticks == ticks:
            return window.sd, True
    if newer["sd"] is None or older["sd"] is None:
        return None, False
    return round(
        float(newer["sd"]) + older["sd"], SD_DIGITS
    ), False  # of integers, any length
