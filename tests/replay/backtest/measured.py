"""What a backtest measured of one series, and what was exact: from its events and snapshots, with loops."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.replay.backtest.backtests import backtest, bounded, numbers
from tests.replay.site import settings_of
from workers.replay.backtest.results import Results

TOP = 5
#: The number `paid` of an event counts for each of its items, in whole steps.
OF_SUM = {"field": "paid", "from": 0, "to": 6, "step": 1}
Events = Sequence[dict[str, Any]]


class Measured:
    """Figures, and the snapshots of the first seed by tick and key; `exact` is what they should have said."""

    def __init__(
        self, name: str, some: Events, results: Results, snapshots: Events
    ) -> None:
        series = [one for one in results.series if one.histogram == name]
        boards = [row for row in results.boards if row.histogram == name]
        self.results = Results(results.input, results.runs, series, boards)
        self.ticks: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for snapshot in snapshots:
            if snapshot["histogram"] == name:
                self.ticks[snapshot["end"] // 1_000][snapshot["key"]] = snapshot
        self._events = some
        self._exact: dict[Any, tuple[Counter[str], Counter[str]]] = {}

    def numbers(self, metric: str, **of: Any) -> dict[int, float]:
        return numbers(self.results, metric, **of)

    def sums(
        self, snapshot: Mapping[str, Any], *, wide: bool = False
    ) -> tuple[Counter[str], Counter[str]]:
        """Return counts and sums by label of a snapshot's window, tick, or epoch so far; `wide`: without bounds."""
        at = snapshot["key"], snapshot["end"], wide
        if at not in self._exact:
            counts: Counter[str] = Counter()
            sums: Counter[str] = Counter()
            for event in self._events:
                inside = begin_ms(snapshot) <= event["ts"] < snapshot["end"]
                if not inside or event["key"] != snapshot["key"]:
                    continue
                if wide:
                    counts.update(event["items"])
                    continue
                for label, times in bounded(event, 2, 1):
                    counts[label] += times
                    sums[label] += min(max(event.get("paid", 0), 0), 6)
            self._exact[at] = counts, sums
        return self._exact[at]

    def exact(self, snapshot: Mapping[str, Any], *, wide: bool = False) -> Counter[str]:
        return self.sums(snapshot, wide=wide)[0]

    def errors(self, tick: int, keys: str, *, wide: bool = False) -> list[int]:
        found = []
        for key in keys:
            snapshot = self.ticks[tick][key]
            exact = self.exact(snapshot, wide=wide)
            found += [count - exact[label] for label, count in snapshot["items"]]
        return found


def begin_ms(snapshot: Mapping[str, Any]) -> int:
    if "window" in snapshot:
        return int(snapshot["window"]["from"])
    one_shot = snapshot["mechanism"] == "positive_gauss"
    return int(snapshot["start"]) - (0 if one_shot else (snapshot["tick"] - 1) * 1_000)


def measured(
    directory: Path, some: Events, histogram: Mapping[str, object], seeds: int = 1
) -> dict[str, Measured]:
    """Return what a backtest measured, by series."""
    snapshots: list[dict[str, Any]] = []
    settings = settings_of(directory, [histogram])
    results = backtest(
        settings, directory, some, seeds=seeds, top=TOP, snapshots=snapshots
    )
    names = dict.fromkeys(one.histogram for one in results.series)
    return {name: Measured(name, some, results, snapshots) for name in names}
