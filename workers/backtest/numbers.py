"""Numbers of one tick, and of a whole run: errors, hits, delays (docs/results.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workers.backtest.truth import SIZES
from workers.backtest.view import Counts, Top

# The share of a normal law within this many standard deviations is 0.95.
COVERED_SD = 1.96
# An item is new for so many ticks after it was first shown, that one included.
NEW_TICKS = 10

BOUNDED = ("error_mean", "error_rms", "error_worst", "error_bias", "coverage")
UNBOUNDED = ("error_unbounded_mean", "error_unbounded_rms", "error_unbounded_worst")
METRICS = (
    "shown", "sd", "threshold", *BOUNDED, *UNBOUNDED, "deserving", "deserving_shown", "recall", "precision",
    "recall_unbounded", "precision_unbounded", "rank_correlation", "lost", "within_error", "shortfall", "shown_new", "coverage_new",
)  # fmt: skip
PLACE = {name: i for i, name in enumerate(METRICS)}
# Behind them follow, for each rank, the error of its item and whether it is shown.
RANKED = ("error_mean", "shown_rate")
# Of all stream keys together these are the mean over the keys; so are those by rank.
OF_KEYS = ("recall", "precision", "recall_unbounded", "precision_unbounded", "rank_correlation", "shortfall")
WEIGHTS = {"coverage": "shown", "coverage_new": "shown_new", "deserving_shown": "deserving"}

Numbers = NDArray[np.float64]
Ticks = NDArray[np.int32] | NDArray[np.int64]


class Delays:
    """From an item's reaching a size to its being shown, over all epochs."""

    def __init__(self) -> None:
        self._passed = np.zeros(len(SIZES), dtype=np.int64)
        self._of: list[Counter[int]] = [Counter() for _ in SIZES]

    def add(self, reached: Ticks, first: Ticks) -> None:
        """Take in an epoch that is over.

        Args:
            reached: (rows, sizes), the tick at which each row reached each size; 0: never.
            first: (rows,), the tick at which it was first shown; 0: never.
        """
        shown = np.zeros(len(reached), dtype=np.int64)
        shown[: min(len(first), len(reached))] = first[: len(reached)]
        for size, counter in enumerate(self._of):
            rows = np.flatnonzero(reached[:, size])
            self._passed[size] += len(rows)
            found = rows[shown[rows] > 0]
            counter.update(np.maximum(shown[found] - reached[found, size], 0).tolist())

    def metrics(self) -> Iterator[tuple[str, int, float]]:
        """Yield (metric, size, value)."""
        for size, passed, counter in zip(SIZES.tolist(), self._passed.tolist(), self._of, strict=True):
            if not passed:
                continue
            found = counter.total()
            yield "passed", size, passed
            yield "found", size, found / passed
            if found:
                yield "delay_mean", size, sum(delay * times for delay, times in counter.items()) / found
            if 2 * found > passed:
                yield "delay_median", size, _middle(counter, (passed + 1) // 2)


def _middle(counter: Counter[int], place: int) -> int:
    """Return the value at a place, from 1, in order."""
    for value, times in sorted(counter.items()):
        place -= times
        if place <= 0:
            return value
    raise ValueError("place: beyond the end")


def fill_errors(
    row: Numbers, published: Counts, exact: Counts, unbounded: Counts, sd: float | None = None
) -> None:
    """Fill in what published counts, at least one, are off from bounded and unbounded ones."""
    error = published - exact
    for name, off in (("error", error), ("error_unbounded", published - unbounded)):
        size = np.abs(off)
        row[PLACE[f"{name}_mean"]] = size.mean()
        row[PLACE[f"{name}_rms"]] = math.sqrt(np.square(off, dtype=np.float64).mean())
        row[PLACE[f"{name}_worst"]] = size.max()
    row[PLACE["error_bias"]] = error.mean()
    if sd is not None:
        row[PLACE["coverage"]] = np.count_nonzero(np.abs(error) <= COVERED_SD * sd) / len(error)


def fill_new(row: Numbers, published: Counts, exact: Counts, sd: float) -> None:
    """Fill in how many new items there are, and of how many the error bar holds."""
    row[PLACE["shown_new"]] = len(exact)
    if len(exact):
        held = np.count_nonzero(np.abs(published - exact) <= COVERED_SD * sd)
        row[PLACE["coverage_new"]] = held / len(exact)


def fill_hits(row: Numbers, suffix: str, exact: Counts, top: Top) -> None:
    """Fill in precision and recall of the items named, by their exact counts."""
    right = int((exact >= top.floor).sum())
    if len(exact):
        row[PLACE["precision" + suffix]] = right / len(exact)
    if top.size:
        row[PLACE["recall" + suffix]] = min(right, top.size) / top.size


def over_all(metric: str, values: Numbers, weight: Numbers | None) -> float:
    """Return one number for the whole run; see docs/results.md."""
    if metric.endswith("_worst"):
        return float(values.max())
    if metric.endswith("_rms"):
        return math.sqrt(float(np.square(values).mean()))
    if weight is not None:
        return float((values * weight).sum() / weight.sum())
    return float(values.mean())
