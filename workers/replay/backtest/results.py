"""Results directory of a backtest: four files of exact data, for the operator only.

    runs.parquet      one row for each (run, seed, series): settings, promise, progress
    results.parquet   tidy measurements: one number a row
    boards.parquet    exact counts beside the published ones, at chosen ticks
    rejects.json      input totals, rejects with reasons, and whether the run reached its end

docs/results.md defines every column and metric. No file holds the time, or the name of a machine or
user, so the same results give the same bytes. A run is a combination of settings, tried with
several seeds. A series is a histogram, or without epochs one of its windows. The top is a stream
key's items with the largest exact counts, and a rank is a place in it. A size is a count that items
reach: metrics of delays are by size. `by_histogram` reads the tables by combination.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.config.windows import NEVER, series_of
from workers.runtime.errors import SettingsError
from workers.settings.files import atomic_replacement, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, least and most of a metric over the seeds."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return mean, least and most of at least one value."""
        least = min(values)
        most = max(values)
        # In floats 0.7 + 0.7 + 0.7, divided by 3, is less than 0.7: a bar of negative length.
        return cls(min(max(sum(values) / len(values), least), most), least, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One combination of settings, all its seeds together; `row` is that of the first seed.

    `varied` holds the settings with several `--vary` values, without the histogram's name (None:
    not a setting of the mechanism); `metrics` cover the whole run and all stream keys; `seeds` is
    how many there are.
    """

    row: RunRow
    varied: Mapping[str, str | None]
    seeds: int
    metrics: Mapping[str, Spread]

    @property
    def number(self) -> int:
        return self.row.run

    @property
    def given(self) -> dict[str, str]:
        return {name: value for name, value in self.varied.items() if value is not None}

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.row.settings)
        return found

    @property
    def without_epochs(self) -> bool:
        """Return whether there are no epochs, and one charge for all windows, ever."""
        return self.settings.get("horizon") == NEVER

    @property
    def epoch_ms(self) -> int | None:
        """Return the epoch length; None: endless, or no epochs."""
        horizon = self.settings.get("horizon")
        return horizon * self.row.tick_ms if isinstance(horizon, int) else None


def by_histogram(tables: Tables) -> dict[str, list[Outcome]]:
    """Return the outcomes of each histogram, without epochs of each window, by run number.

    An outcome joins the seeds of a combination: their rows of runs.parquet and their metrics.
    """
    import pyarrow.compute as pc

    # Metrics of the whole run and of all stream keys have no key, tick, rank or size.
    whole = pc.equal(tables.results["key"], "")
    for name in ("tick", "rank", "size"):
        whole = pc.and_(whole, pc.equal(tables.results[name], 0))
    # By run and series, then metric: a value for each seed.
    values: dict[tuple[int, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in tables.results.filter(whole).to_pylist():
        values[row["run"], row["histogram"]][row["metric"]].append(row["value"])
    # By run and series, a row for each seed; and by setting, the values that it had in any run.
    seeds: dict[tuple[int, str], list[RunRow]] = defaultdict(list)
    choices: dict[str, set[str]] = defaultdict(set)
    for row in tables.runs.to_pylist():
        # What is left in `row` are the fields of `RunRow`.
        names = [name for name in row if name.startswith(SET)]
        varied = {name.removeprefix(SET): row.pop(name) for name in names}
        seeds[row["run"], row["histogram"]].append(RunRow(varied=varied, **row))
        for name, value in varied.items():
            if value is not None:
                choices[name].add(value)
    outcomes: dict[str, list[Outcome]] = {}
    for (number, series), runs in sorted(seeds.items(), key=lambda pair: pair[0][0]):
        first = runs[0]
        # The table has columns for the varied settings of all histograms.
        prefix = f"{first.configured}."
        # A setting with a single value does not distinguish runs.
        varied = {
            name.removeprefix(prefix): value
            for name, value in first.varied.items()
            if len(choices[name]) > 1 and name.startswith(prefix)
        }
        seen = values[number, series]
        metrics = {metric: Spread.of(numbers) for metric, numbers in seen.items()}
        outcome = Outcome(row=first, varied=varied, seeds=len(runs), metrics=metrics)
        outcomes.setdefault(series, []).append(outcome)
    return outcomes


VERSION = 1
RUNS = "runs.parquet"
RESULTS = "results.parquet"
BOARDS = "boards.parquet"
REJECTS = "rejects.json"
GROUP_ROWS = 1 << 18
# Prefix of columns with varied settings, in runs.parquet.
SET = "set."
#: Columns that are narrower than their field's type.
NARROW = {"run": "int32", "seed": "int32", "rank": "int32"}
RESULTS_COLUMNS = [
    "run",
    "seed",
    "histogram",
    "key",
    "tick",
    "rank",
    "size",
    "metric",
    "value",
]
#: Arrow types by field type, optional or not; fields of other types are no columns.
ARROW = {"int": "int64", "float": "float64", "str": "string", "bool": "bool_"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """Row of runs.parquet: one combination with one seed, and one window if it has no epochs.

    `histogram` is the name of the series, which has that of the window. `varied` holds the varied
    values as text by "<histogram>.<setting>" (None: the mechanism has no such setting), `settings`
    all settings as JSON.
    """

    run: int
    seed: int
    histogram: str
    window_ms: int | None
    mechanism: str
    varied: Mapping[str, str | None]
    settings: str
    rho: float
    epsilon: float
    delta: float
    unit: str
    tick_ms: int
    first_tick: int
    ticks: int
    epochs: int
    events: int
    complete: bool

    @property
    def configured(self) -> str:
        """The histogram's name in the settings: that of a window's series without its suffix."""
        if self.window_ms is None:
            return self.histogram
        return self.histogram.removesuffix(series_of("", self.window_ms).suffix)


@dataclass(frozen=True, slots=True)
class Series:
    """Rows of results.parquet that differ in tick and value only: int64 (n,) and float64 (n,).

    The key "" is all stream keys together, tick 0 the whole run; rank and size are 0 where the
    metric is about none.
    """

    run: int
    seed: int
    histogram: str
    key: str
    metric: str
    rank: int
    size: int
    ticks: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BoardRow:
    """Row of boards.parquet: one item of a stream key at one tick, exact and as published.

    `rank` is its place by exact count, from 1. `exact` is after the bounds on an event's items,
    `exact_unbounded` before them; `released` is the published count, None if the item is not shown,
    or shown without a count; `sd` is that of its noise.
    """

    run: int
    seed: int
    histogram: str
    key: str
    tick: int
    end_ms: int
    rank: int
    label: str
    exact: int | None
    exact_unbounded: int | None
    shown: bool
    released: int | None
    sd: float | None = None
    threshold: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Content of rejects.json: what was read.

    late        number of events dated further back than `events.grace` allows
    outside     number of events outside the range of time
    counts      rejects by reason; `first` holds (partition, number, reason) of the first ones, and
                `word` is what the numbers count: "line", "row" or "offset"
    top         the n of top-n metrics
    left_out    combinations of settings that are invalid, with the reason
    """

    complete: bool
    events: int
    late: int
    outside: int
    first_ms: int | None
    last_ms: int | None
    word: str
    counts: Mapping[str, int]
    first: Sequence[tuple[int, int, str]]
    top: int
    left_out: Sequence[str] = ()
    version: int = VERSION
    contains: str = "exact data: for the operator only"


@dataclass(slots=True)
class Results:
    """What `write` stores; `Tables` is what `read` returns."""

    input: Input
    runs: list[RunRow] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    boards: list[BoardRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tables:
    """The files of a results directory: the three of them that are tables, and rejects.json."""

    runs: pa.Table
    results: pa.Table
    boards: pa.Table
    input: Input


def require(option: str, *packages: str) -> None:
    """Refuse an option that needs a package which is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise SettingsError(f"{option} needs {package}: install quietcount[replay]")


def prepare(directory: Path, *, force: bool) -> None:
    """Create and check the directory before hours of work; without `force` it must be empty."""
    require("--report", "pyarrow", "matplotlib", "jinja2")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not force and any(directory.iterdir()):
            raise SettingsError(
                f"--report {directory}: it is not empty: choose another directory, or use --force to replace the results in it"
            )
        if not os.access(directory, os.W_OK | os.X_OK):
            raise SettingsError(f"--report {directory}: Permission denied")
    except OSError as error:
        raise SettingsError(f"--report {directory}: {error.strerror}") from None


def write(directory: Path, results: Results) -> None:
    """Write the four files, each whole or not at all; runs.parquet, which marks results, last."""
    runs = directory / RUNS
    runs.unlink(missing_ok=True)  # marks earlier results; the new files are not theirs
    about = msgspec.json.format(msgspec.json.encode(results.input), indent=2)
    write_atomically(directory / REJECTS, about + b"\n")
    _write_table(directory / BOARDS, table_of(BoardRow, results.boards))
    _write_table(directory / RESULTS, results_table(results.series))
    _write_table(runs, table_of(RunRow, results.runs))


def table_of(kind: type, rows: Sequence[Any]) -> pa.Table:
    """Return a table of `rows`, of dataclass `kind`: a column for each field of a type in ARROW.

    `varied` becomes a column per varied setting; fields of other types, arrays, are left out.
    """
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    for column in fields(kind):
        if column.name == "varied":
            for name in dict.fromkeys(name for row in rows for name in row.varied):
                texts = [row.varied.get(name) for row in rows]
                columns[SET + name] = pa.array(texts, pa.string())
        # Types are texts here, as annotations are not evaluated.
        elif arrow_type := ARROW.get(str(column.type).removesuffix(" | None")):
            # Numbers of runs, seeds and ranks take a narrower type.
            arrow = getattr(pa, NARROW.get(column.name, arrow_type))()
            values = [getattr(row, column.name) for row in rows]
            columns[column.name] = pa.array(values, arrow)
    return pa.table(columns)


def results_table(series: Sequence[Series]) -> pa.Table:
    """Return results.parquet: one row for each value of each series."""
    import pyarrow as pa

    lengths = [len(one.values) for one in series]
    # By row, the index of its series, of which it takes the other columns.
    series_of_row = pa.array(np.repeat(np.arange(len(series)), lengths))
    table = table_of(Series, series).take(series_of_row)
    for name, kind in (("tick", "int64"), ("value", "float64")):
        parts = (getattr(one, f"{name}s") for one in series)
        column = np.concatenate([np.empty(0, dtype=kind), *parts])
        table = table.append_column(name, pa.array(column))
    return table.select(RESULTS_COLUMNS)


def _write_table(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    with atomic_replacement(path) as part:
        pq.write_table(table, part, compression="zstd", row_group_size=GROUP_ROWS)


def read(directory: Path) -> Tables:
    """Read the files of `write`; refuse another directory or version."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise SettingsError(
            "results need pyarrow: install quietcount[replay]"
        ) from error
    try:
        about = msgspec.json.decode((directory / REJECTS).read_bytes(), type=Input)
        if about.version != VERSION:
            raise SettingsError(
                f"{directory}: results of version {about.version}; this program reads {VERSION}"
            )
        runs, results, boards = (
            pq.read_table(directory / file) for file in (RUNS, RESULTS, BOARDS)
        )
    except (OSError, msgspec.DecodeError, pa.ArrowInvalid) as error:
        why = str(error).splitlines()[0]
        raise SettingsError(f"{directory}: not a results directory: {why}") from error
    return Tables(runs, results, boards, about)
