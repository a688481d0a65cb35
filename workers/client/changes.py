"""Changes: the counts of one tick less those of an earlier tick of the same series.

Both ticks share noise. The error of a change is the snapshot's own where one of its `windows` spans
the two, else at most the sum of both standard deviations: whatever two variables share, the
standard deviation of their difference is no larger. At the beginning of a series every count is 0,
without noise.

Where the earlier tick lies in the epoch before, what was counted since then is the count, plus the
last one of that epoch, less the earlier one. Two epochs have independent noise.

An item that was not shown at the earlier tick had an unknown count there, at most that tick's
threshold: its change is listed as the whole count, and its label in `new`. Of its sum nothing is
said. Sums and the count of all items have noise of their own, and change in the same way. An item
that the last tick of the epoch before did not show is listed in `new` too, with its count since:
what it had before that, at most that tick's threshold, is not in it.

Throughout, `newer` is the later snapshot and `older` the earlier, as parsed JSON; `older` is None
for the beginning of a series. `last` is the last snapshot of the epoch before if the change begins
in that epoch, else None. So with all three a change is newer + last - older.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from workers.arrays.types import Floats
from workers.client.messages import Number, SumRange, SumRow
from workers.mechanisms.accounting import NotNegative
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.registry import about
from workers.pipeline.snapshots import (
    RANKS,
    SD_DIGITS,
    Means,
    Numeric,
    rounded_sum_sd,
)
from workers.runtime.frozen import ready

Fields = Mapping[str, Any]
Positive = Annotated[int, msgspec.Meta(ge=1)]
_RANGE = ("from", "to", "step")


class Window(msgspec.Struct, frozen=True):
    """The last `ticks` ticks before a snapshot, with the standard deviations (sd) of changes.

    `ms` is the window as the settings name it. The sds are of a count, of a sum, and of the count
    of all items; None: not published.
    """

    ms: Positive
    ticks: Positive
    sd: NotNegative
    sum_sd: NotNegative | None = None
    all_items_sd: NotNegative | None = None


class Total(msgspec.Struct, frozen=True):
    """The noisy count of all items together, which has noise of its own."""

    count: Number
    sd: NotNegative


class Sums(msgspec.Struct, frozen=True):
    """The part of a snapshot from which changes of sums are computed.

    `items` are labels with their counts, whose standard deviation is `sd`; `sums` has a row for
    each of them.
    """

    items: list[tuple[str, Number]]
    sums: list[SumRow]
    sum: SumRange
    sd: NotNegative


ready(Window, Total, Sums)


def can_subtract(snapshot: Fields) -> bool:
    """Return whether changes of a snapshot can be computed: its counts have no error but noise.

    Those of a window cannot: two windows overlap, or have other events between them.
    """
    if "window" in snapshot:
        return False
    mechanism = about(snapshot["mechanism"])
    # A snapshot that lists errors of changes (`windows`) says so itself, whatever its mechanism.
    subtracts = "windows" in snapshot or (mechanism is not None and mechanism.subtracts)
    return subtracts and snapshot.get("items") is not None


def ticks_of(snapshot: Fields, window_ms: int) -> int:
    """Return how many ticks a window has that ends with a snapshot and lasts `window_ms`.

    It may reach back before the series began. A window that the snapshot does not list is rounded
    up to whole ticks.
    """
    for window in _windows(snapshot):
        if window.ms == window_ms:
            return window.ticks
    tick_ms: int = snapshot["end"] - snapshot["start"]
    return -(-window_ms // tick_ms)  # rounded up


def changes(
    newer: Fields,
    older: Fields | None,
    begin_ms: int,
    *,
    last: Fields | None = None,
    items: Collection[str] | None = None,
    top: int | None = None,
) -> dict[str, Any]:
    """Return `newer` with changes in place of its counts, which go to `counts`, as parsed JSON.

    The changes are since `older`, at `begin_ms`, or without it since the series began there. Of
    `items` (None: all) the `top` largest changes are listed; all buckets of numbers stay unless
    `items` are named. The field `change` says between what, and with what errors.
    """
    rows = _rows(newer, older, last)
    sd, exact = _error(newer, older, last)
    # A change has no `windows`; the others are computed below.
    left_out = ("windows", "quantiles", "all_items", "sums", "sum")
    fields = {name: newer[name] for name in newer if name not in left_out}
    fields |= _change_of_all_items(newer, older, last)
    of_sums = _changes_of_sums(newer, older, last)
    if newer.get("quantiles") and sd is not None:
        # Another program may have written a snapshot without what quantiles need: then none.
        with suppress(KeyError, TypeError, ValueError):
            quantiles = [quantile["q"] for quantile in newer["quantiles"]]
            ranks = newer.get("for") == RANKS
            buckets = Buckets(tuple(newer["edges"]))
            numeric = Numeric(buckets, quantiles, ranks=ranks)
            fields["quantiles"] = numeric.fields([row[:2] for row in rows], sd)[
                "quantiles"
            ]
    fields["total_items"] = len(rows)
    if items is not None:
        rows = [row for row in rows if row.label in items][:top]
    elif "edges" not in newer:
        rows = rows[:top]
    fields["items"] = [row[:2] for row in rows]  # label and change
    fields["counts"] = [row.newer_count for row in rows]
    if of_sums is not None:
        sum_rows, sum_range = of_sums
        fields["sums"] = [sum_rows[row.label] for row in rows]
        fields["sum"] = sum_range
    # A change has no threshold: the items are those that `newer` shows.
    fields |= {"sd": sd, "threshold": None}
    fields["change"] = {
        "from": begin_ms,
        "tick": 0 if older is None else older["tick"],
        "exact": exact,
        "new": [row.label for row in rows if row.is_new],
        "threshold": None if older is None else older["threshold"],
        "sd_from": 0.0 if older is None else older["sd"],
        "sd_to": newer["sd"],
    }
    if last is not None:
        if newer["sd"] is not None and last["sd"] is not None:
            # What is added is a count of each of two epochs, whose noise is independent.
            added_sd = math.hypot(newer["sd"], last["sd"])
            fields["change"]["sd_to"] = round(added_sd, SD_DIGITS)
        fields["change"]["last"] = {
            "id": last["id"],
            "epoch": last["epoch"],
            "tick": last["tick"],
            "end": last["end"],
            "threshold": last["threshold"],
            "absent": [row.label for row in rows if row.is_absent],
        }
    return fields


class _Row(NamedTuple):
    """An item's change, and its count in the newer snapshot.

    `is_new`: its count at the earlier tick is unknown. `is_absent`: the last tick of the epoch
    before did not show it, so what it counted in that epoch is unknown; it is new as well.
    """

    label: str
    change: Number
    newer_count: Number
    is_new: bool
    is_absent: bool


def _rows(newer: Fields, older: Fields | None, last: Fields | None) -> list[_Row]:
    """Return the change of every item of `newer`, the largest first."""
    older_counts = {} if older is None else dict(older.get("items") or ())
    last_counts = {} if last is None else dict(last.get("items") or ())
    rows = []
    for label, newer_count in newer["items"]:
        is_absent = last is not None and label not in last_counts
        was_hidden = older is not None and label not in older_counts
        change = newer_count
        # A count that is not known, or of no snapshot, is 0 here.
        if not is_absent:
            change += last_counts.get(label, 0) - older_counts.get(label, 0)
        is_new = is_absent or was_hidden
        rows.append(_Row(label, change, newer_count, is_new, is_absent))
    return sorted(rows, key=lambda row: (-row.change, row.label))


def _windows(snapshot: Fields) -> list[Window]:
    """Return the windows that a snapshot lists; none if another program has written others."""
    try:
        return msgspec.convert(snapshot.get("windows", []), list[Window])
    except msgspec.ValidationError:
        return []


def _ticks_between(newer: Fields, older: Fields | None, last: Fields | None) -> int:
    """Return how many ticks after `older`, or after the series began, `newer` is.

    Ticks are numbered from 1 in each epoch: with `last` its epoch's ticks come on top.
    """
    older_tick = 0 if older is None else older["tick"]
    ticks: int = newer["tick"] - older_tick
    return ticks if last is None else ticks + last["tick"]


def _exact_window(
    newer: Fields, older: Fields | None, last: Fields | None
) -> Window | None:
    """Return the window of `newer` that covers just this change: it has the errors. None: none."""
    ticks = _ticks_between(newer, older, last)
    return next((window for window in _windows(newer) if window.ticks == ticks), None)


def _bound(newer_sd: float, older_sd: float, last_sd: float) -> float:
    """Bound the standard deviation of a change by those of the counts that it is computed from.

    Those of a snapshot that is None are 0. Within an epoch the bound is the sum. Else `newer` has
    noise of its own epoch, which is independent of that of `last` and `older`: variances add up.
    """
    return math.hypot(newer_sd, last_sd + older_sd) if last_sd else newer_sd + older_sd


def _change_of_all_items(
    newer: Fields, older: Fields | None, last: Fields | None
) -> dict[str, Any]:
    """Return the field `all_items` of the change, the count of all items with its error.

    No field unless all the snapshots have one.
    """
    fields: dict[str, Any] = {}
    # Also none if another program has written a snapshot with something else under this name.
    with suppress(KeyError, msgspec.ValidationError):
        total = msgspec.convert(newer["all_items"], Total)
        older_total = Total(0, 0.0)
        last_total = Total(0, 0.0)
        sd = None
        if older is not None:
            older_total = msgspec.convert(older["all_items"], Total)
        if last is not None:
            last_total = msgspec.convert(last["all_items"], Total)
        if older is not None or last is not None:
            window = _exact_window(newer, older, last)
            sd = None if window is None else window.all_items_sd
        if sd is None:
            sd = round(_bound(total.sd, older_total.sd, last_total.sd), SD_DIGITS)
        count = total.count + last_total.count - older_total.count
        fields["all_items"] = {"count": count, "sd": sd}
    return fields


def _changes_of_sums(
    newer: Fields, older: Fields | None, last: Fields | None
) -> tuple[Fields, Fields] | None:
    """Return the rows of changed sums and their means, by label, and the field `sum` for them.

    None without sums, or where another program has written fields that do not fit.
    """
    with suppress(KeyError, ValueError, OverflowError, msgspec.ValidationError):
        newer_sums = msgspec.convert(newer, Sums)
        if older is None and last is None:
            return _by_label(newer_sums), newer["sum"]
        # The settings of a sum also name a field: for means any name will do.
        means = Means(
            parse_sum({"field": "sum"} | {name: newer["sum"][name] for name in _RANGE})
        )
        # Each snapshot with its sign: 1 if it is added, -1 if it is subtracted.
        signed = [(newer_sums, 1)]
        if last is not None:
            signed.append((msgspec.convert(last, Sums), 1))
        if older is not None:
            signed.append((msgspec.convert(older, Sums), -1))
        # Standard deviations of a count and of a sum, to be added up: a bound, whatever they share.
        errors = [(snapshot.sd, snapshot.sum.sd) for snapshot, _ in signed]
        window = _exact_window(newer, older, last)
        if window is not None and window.sum_sd is not None:
            errors = [(window.sd, window.sum_sd)]
        sd = rounded_sum_sd(sum(sum_sd for _, sum_sd in errors))
        return _changed_sums(signed, means, errors), newer["sum"] | {"sd": sd}
    return None


def _changed_sums(
    signed: Sequence[tuple[Sums, int]],
    means: Means,
    errors: Sequence[tuple[float, float]],
) -> dict[str, Any]:
    """Return rows of sums by label: the snapshots added up, each with its sign (1 or -1).

    The labels are those of the first, the newest; a sum is unknown where another does not show its
    label. `errors` are pairs of the published standard deviation of a count and of a sum: one pair
    of the change, or one of each snapshot. From these `means` computes the intervals.
    """
    all_counts = [dict(snapshot.items) for snapshot, _ in signed]
    all_sums = [_by_label(snapshot) for snapshot, _ in signed]
    newest_labels = all_counts[0]
    shared = [
        label
        for label in newest_labels
        if all(label in counts for counts in all_counts)
    ]
    counts = np.zeros(len(shared))
    sums = np.zeros(len(shared))
    for (_, sign), count_of, sums_of in zip(signed, all_counts, all_sums, strict=True):
        counts += sign * _array([count_of[label] for label in shared])
        # The first number of a row is the sum.
        sums += sign * _array([sums_of[label][0] for label in shared])
    changed: dict[str, Any] = dict.fromkeys(newest_labels, means.unknown)
    changed |= zip(shared, means.changed_rows(counts, sums, errors), strict=True)
    return changed


def _by_label(snapshot: Sums) -> dict[str, SumRow]:
    """Return a snapshot's rows of sums by the labels of its items."""
    labels = [label for label, _ in snapshot.items]
    return dict(zip(labels, snapshot.sums, strict=True))


def _array(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _error(
    newer: Fields, older: Fields | None, last: Fields | None
) -> tuple[float | None, bool]:
    """Return the standard deviation of a change of counts, and whether it is exact, not a bound.

    It is None where a snapshot states none.
    """
    if older is None and last is None:
        return newer["sd"], True
    window = _exact_window(newer, older, last)
    if window is not None:
        return window.sd, True
    sds = [
        0.0 if snapshot is None else snapshot["sd"] for snapshot in (newer, older, last)
    ]
    if None in sds:
        return None, False
    # JSON may have integers there, whose sum would be written as one.
    bound = _bound(*map(float, sds))
    # Without `older` it is exact: noise of two epochs is independent, and `_bound` adds variances.
    return round(bound, SD_DIGITS), older is None
