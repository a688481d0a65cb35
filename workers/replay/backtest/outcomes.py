"""What came out of a backtest, by combination of settings, from the tables of its results."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from workers.replay.backtest.results import RunRow, Tables, run_rows


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over the seeds; the mean lies between the other two."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of at least one value."""
        least, most = min(values), max(values)
        # In floats 0.7 + 0.7 + 0.7, divided by 3, is less than 0.7: a bar of negative length.
        return cls(min(max(sum(values) / len(values), least), most), least, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One combination of settings, all its seeds together.

    Attributes:
        row: the row of its first seed in runs.parquet.
        varied: the settings that `--vary` gave several values, without the histogram's name;
            None where its mechanism has no such setting.
        seeds: how many.
        metrics: of the whole run and all stream keys, by name.
    """

    row: RunRow
    varied: Mapping[str, str | None]
    seeds: int
    metrics: Mapping[str, Spread]

    @property
    def number(self) -> int:
        """Its number among the combinations, from 1."""
        return self.row.run

    @property
    def given(self) -> dict[str, str]:
        """Those of `varied` that its mechanism has."""
        return {name: value for name, value in self.varied.items() if value is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of its histogram."""
        found: dict[str, Any] = json.loads(self.row.settings)
        return found

    @property
    def epoch_ms(self) -> int | None:
        """How long its epochs are; None: without an end."""
        horizon = self.settings.get("horizon")
        return horizon * self.row.tick_ms if isinstance(horizon, int) else None


def outcomes(tables: Tables) -> list[Outcome]:
    """Return the combinations of a results directory, in the order of their numbers."""
    import pyarrow.compute as pc

    whole = pc.equal(tables.results["key"], "")
    for name in ("tick", "rank", "size"):
        whole = pc.and_(whole, pc.equal(tables.results[name], 0))
    values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in tables.results.filter(whole).to_pylist():
        values[row["run"]][row["metric"]].append(row["value"])
    rows = run_rows(tables.runs)
    seeds: dict[int, list[RunRow]] = {}
    choices: dict[str, set[str | None]] = {}
    for run in rows:
        seeds.setdefault(run.run, []).append(run)
        for name, value in run.varied.items():
            choices.setdefault(name, {None}).add(value)
    return [
        Outcome(
            row=runs[0],
            # A setting that was given one value does not tell runs apart.
            varied={
                name.removeprefix(prefix): value
                for name, value in runs[0].varied.items()
                if len(choices[name]) > 2 and name.startswith(prefix := f"{runs[0].histogram}.")
            },
            seeds=len(runs),
            metrics={metric: Spread.of(found) for metric, found in values[number].items()},
        )
        for number, runs in sorted(seeds.items())
    ]
