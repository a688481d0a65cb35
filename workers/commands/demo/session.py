"""`quietcount demo`: real flights, a Kafka, the real worker, private counts beside exact ones.

    generator   reads the flights and sends them
    exact       exact counts of the sent events, which only a demo may know, for boards and page
    session     cluster, worker process, promise, and when to end
    view        draws on a terminal

A board is one airport's newest snapshot in a series, with exact counts beside the private ones.
Nothing here is part of a worker; the demo reads published snapshots like any downstream consumer.
The worker is the real command, as a child process in its own directory. A run ends on Ctrl-C,
SIGTERM, a closed terminal, or after the requested time.
"""

import json
import math
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any, Self

from aiohttp import web
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from rich.console import Console
from rich.live import Live

from workers.arrays.compiler import all_compiled
from workers.client.config import ReaderSettings, load_reader_settings
from workers.commands.demo.exact import EXACT_PATH, Boards, ExactCounts, Row
from workers.commands.demo.generator import (
    DESTINATIONS,
    ORIGINS,
    Generator,
    find_flights,
    flights,
)
from workers.commands.demo.view import Scene, ordinal, picture, render
from workers.commands.failures import EXIT_EXPECTED, EXIT_FAULT, EXIT_FENCED, log
from workers.commands.key import new_key
from workers.commands.options import Demo
from workers.dashboard.server import PORT, Background, Dashboard, is_free
from workers.kafka.clients import (
    EMBEDDED_PARTITIONS,
    Connection,
    EmbeddedCluster,
    unreachable,
)
from workers.kafka.topics import create_missing, describe, plan_topics
from workers.mechanisms.config.ticks import TickGrid
from workers.mechanisms.registry import build
from workers.privacy.phrasing import verdict
from workers.privacy.total import charge_of, total_of
from workers.runtime.errors import SettingsError
from workers.settings.settings import KafkaSettings, Settings, load

TICK_MS = 2_000
#: Of the histogram without epochs; page and terminal show the second, which slides before their
#: eyes and counts enough flights for most destinations to be shown.
WINDOWS = ("10s", "1m", "10m")
EPSILON = 1.0
DELTA = 1e-9
LOG_LINES = 15
PATIENCE_S = 15.0

# Names in braces are values that differ between demos.
SETTINGS = Path(__file__).with_name("settings.toml")


def settings_text(name: str, connection: Connection) -> str:
    """Return the settings file of a demo with this worker name, on this Kafka."""
    pairs = connection.client.items()
    return SETTINGS.read_text().format(
        name=json.dumps(name),
        bootstrap=json.dumps(connection.bootstrap),
        topic=json.dumps(f"{name}.flights"),
        domain=json.dumps(DESTINATIONS),
        keys=json.dumps(ORIGINS),
        client=", ".join(
            f"{json.dumps(key)} = {json.dumps(value)}" for key, value in pairs
        ),
        tick_ms=TICK_MS,
        windows=json.dumps(WINDOWS),
        epsilon=EPSILON,
        delta=DELTA,
    )


class Child:
    """Worker process and its directory; leaving the context removes both."""

    def __init__(self) -> None:
        """Make the directory; `prepare` and `start` come next."""
        self._directory = tempfile.TemporaryDirectory(
            prefix="quietcount-demo-", ignore_cleanup_errors=True
        )
        self.path = Path(self._directory.name)
        self.config = self.path / "demo.toml"
        self._log = self.path / "worker.log"
        # None until `start`.
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the worker, and remove its directory."""
        try:
            # After an exception, do not wait for the worker.
            self.stop(hurry=lambda: kind is not None)
        finally:
            self._directory.cleanup()

    def prepare(self, text: str) -> Settings:
        """Write a key and the settings file; return the settings."""
        new_key(self.path / "noise.key")
        self.config.write_text(text, encoding="utf-8")
        return load(self.config)

    def start(self, embedded: str | None = None) -> None:
        """Start the worker, on the embedded Kafka with this cluster id, else on a real one.

        It does not receive the terminal's Ctrl-C; `stop` ends it.
        """
        command = [sys.executable, "-m", "workers.cli", "run", "-c", str(self.config)]
        if embedded is not None:
            command += ["--embedded", embedded]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def last_lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()[
            -LOG_LINES:
        ]

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask it to end; kill it after `PATIENCE_S`, or once `hurry` returns true."""
        process = self._process
        if process is None:
            return
        process.terminate()
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline and not hurry():
            time.sleep(0.02)
        process.kill()
        process.wait()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Context in which signals are only recorded: a signal handler must not take a lock."""

    def __init__(self, seconds: float | None = None) -> None:
        """The demo also ends after `seconds`, from now; None: only by a signal."""
        self._started = time.monotonic()
        self._seconds = seconds
        self._signals = 0
        # The handlers that were set before, to be set again.
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """From here on, only count signals."""
        # Only the main thread may set a handler; in another one, as in a test, signals do nothing.
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._note) for number in SIGNALS
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def wanted(self) -> bool:
        return self._signals > 0 or (
            self._seconds is not None and self.elapsed_s >= self._seconds
        )

    def urgent(self) -> bool:
        """Whether a second signal came: end without waiting."""
        return self._signals > 1

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1


def promise(settings: Settings) -> str:
    """Return what the demo's snapshots promise, in words and figures."""
    total = total_of(
        [charge_of(config, build(config)) for config in settings.histograms]
    )
    learned = verdict(total.epsilon, total.delta, "any one flight was in the data")
    return (
        f"Anyone who sees all windows for ever, and all counts since midnight of a day, {learned} "
        f"In figures: epsilon {EPSILON:g}, delta {_power(DELTA)} for each histogram; "
        f"{math.ceil(total.epsilon * 100) / 100:g} and {_power(total.delta)} for both together."
    )


def _power(number: float) -> str:
    return f"{number:g}".replace("e-0", "e-")


REFRESH_S = 0.2
SILENCE_S = 60.0
# Before the worker starts; the embedded cluster keeps 5 MiB a partition, about 200,000 events.
EMBEDDED_AHEAD = 100_000
SPEED_OVER_S = 3.0
PLAIN_ITEMS = 4
NOTE = "Real flights from New York in 2013, played again quickly: where they go, for each airport."


class Session:
    """One demo, from its topics to its summary."""

    def __init__(self, chosen: Demo) -> None:
        """Begin with nothing but the chosen options; `run` makes the rest."""
        self._chosen = chosen
        self._console = Console(highlight=False)
        # Of the worker; a new one for every demo, so that no topics are there.
        self._name = f"demo-{secrets.token_hex(4)}"
        # Of the last seconds: (time in s, events sent by then).
        self._sent_at: deque[tuple[float, int]] = deque()
        # When the first snapshot came, s after the start.
        self._first_s: float | None = None
        # Of what has been printed without a terminal.
        self._year = 1
        self._printed_ticks = 0

    def run(self, stop: Stop) -> int:
        """Start everything, show what arrives until the end, and stop everything.

        Return 0, or the exit code of a failed worker.
        """
        flights_file = find_flights()
        with ExitStack() as stack:
            connection = self._connect(stack)
            child = stack.enter_context(Child())
            settings = child.prepare(settings_text(self._name, connection))
            created = self._create_topics(connection, settings)
            self._prepare(connection, settings, flights_file)
            # The settings file cannot name the embedded cluster.
            shown = replace(load_reader_settings(child.config), connection=connection)
            self._page = stack.enter_context(self._dashboard(shown)).url
            consumer = _consumer_of_all(connection, settings.output_topics)
            stack.callback(consumer.close)
            failed = False
            exit_code = None
            try:
                if not stop.wanted():
                    child.start(connection.embedded)
                    self._generator.start()
                failed = self._show(stop, child, consumer)
                # Before `child.stop`, after which it has one in any case.
                exit_code = child.exit_code
            finally:
                if self._console.is_terminal and not stop.urgent():
                    self._console.print(
                        "Ending: the worker hands over ...", style="bright_black"
                    )
                # It sends what is queued while the worker still counts.
                self._generator.stop()
                child.stop(hurry=stop.urgent)
                if self._chosen.bootstrap:
                    self._print(
                        f"Left on {self._chosen.bootstrap}: topics {', '.join(created)}"
                    )
            if self._generator.error is not None:
                raise self._generator.error
            if failed:
                return _report_failure(child, exit_code)
            self._summarize(stop)
            return 0

    def _create_topics(self, connection: Connection, settings: Settings) -> list[str]:
        """Create the demo's topics; return their names."""
        existing = describe(connection, [])
        plan = plan_topics(
            self._name,
            settings.events.topics.names,
            EMBEDDED_PARTITIONS,
            # As many owner partitions as the events have.
            None,
            settings.output_topics,
            existing,
        )
        return create_missing(connection, plan, existing)

    def _prepare(
        self, connection: Connection, settings: Settings, flights_file: Path
    ) -> None:
        """Make what the demo shows, and the generator of its events."""
        windows, since_midnight = settings.histograms
        # The two series that are shown: the second window, and the counts since midnight.
        self._discovered = windows.series[1].name
        self._declared = since_midnight.name
        self._promise = promise(settings)
        # All series, with their mechanisms.
        self._series = {
            series.name: config.mechanism
            for config in settings.histograms
            for series in config.series
        }
        exact = ExactCounts(TickGrid(tick_ms=TICK_MS, start_ms=0, horizon=None))
        self._boards = Boards(exact, list(self._series), ORIGINS)
        self._generator = Generator(
            # None: without transactions.
            connection.producer(None, **{"enable.idempotence": True, "linger.ms": 10}),
            topic=str(settings.events.topics),
            partitions=EMBEDDED_PARTITIONS,
            rate=self._chosen.rate,
            year=partial(flights, flights_file),
            exact=exact,
            ahead=math.inf if self._chosen.bootstrap else EMBEDDED_AHEAD,
        )

    def _connect(self, stack: ExitStack) -> Connection:
        """Connect to the Kafka that was named, or start an embedded one."""
        if self._chosen.bootstrap is None:
            return stack.enter_context(EmbeddedCluster()).connection
        try:
            return Connection(KafkaSettings(bootstrap=self._chosen.bootstrap).bootstrap)
        except ValueError as error:
            raise SettingsError(f"--bootstrap: {error}") from None

    def _dashboard(self, settings: ReaderSettings) -> Background:
        """Make the page, with the demo's route for exact counts."""
        port = self._chosen.port
        if port is None:
            port = PORT if is_free(PORT) else 0
        routes = [web.get(f"/{EXACT_PATH}", self._boards.answer)]
        further = {"exact": EXACT_PATH, "note": NOTE}
        return Background(
            Dashboard(settings, port=port, routes=routes, further=further)
        )

    def _show(self, stop: Stop, child: Child, consumer: Consumer) -> bool:
        """Show arriving snapshots until it is time to end; return whether the worker failed."""
        scene = self._scene(stop)
        with self._display() as live:
            heard_s = time.monotonic()
            while not stop.wanted():
                if self._receive(consumer):
                    heard_s = time.monotonic()
                    if self._first_s is None:
                        self._first_s = stop.elapsed_s
                        # The worker reads now: the embedded cluster will not fill up.
                        self._generator.lift_limit()
                scene = self._scene(stop)
                if live is not None:
                    live.update(render(scene, self._console), refresh=True)
                else:
                    self._print_tick()
                if self._generator.error is not None:
                    break
                is_silent = time.monotonic() - heard_s > SILENCE_S
                # A worker that ends because the demo does has not failed.
                if not stop.wanted() and (is_silent or child.exit_code is not None):
                    return True
        if live is not None and self._boards.snapshots:
            self._console.print(render(scene, self._console))
        if self._chosen.picture is not None:
            picture(scene, self._chosen.picture)
        return False

    @contextmanager
    def _display(self) -> Iterator[Live | None]:
        """Take over the terminal; yield None where there is none."""
        if not self._console.is_terminal:
            self._print(f"Dashboard: {self._page}")
            self._print(
                f"{self._chosen.rate:,} flights a second from 2013-01-01 on; the first private histogram takes some seconds."
            )
            yield None
            return
        with Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            vertical_overflow="crop",
        ) as live:
            yield live

    def _receive(self, consumer: Consumer) -> int:
        """Take arriving snapshots; return how many became whole."""
        before = self._boards.snapshots
        for message in consumer.consume(num_messages=500, timeout=REFRESH_S):
            error = message.error()
            if error is None:
                self._boards.receive(json.loads(message.value() or b""))
            # While Kafka is away the client tries again by itself.
            elif error.fatal() or not unreachable(KafkaException(error)):
                raise KafkaException(error)
        return self._boards.snapshots - before

    def _scene(self, stop: Stop) -> Scene:
        """Return what to draw now, with the speed measured over the last seconds."""
        now_s = time.monotonic()
        sent = self._generator.sent
        self._sent_at.append((now_s, sent))
        while len(self._sent_at) > 2 and now_s - self._sent_at[0][0] > SPEED_OVER_S:
            self._sent_at.popleft()
        before_s, sent_before = self._sent_at[0]
        seconds = now_s - before_s
        return Scene(
            boards=self._boards.newest,
            discovered=self._discovered,
            declared=self._declared,
            promise=self._promise,
            simulated=self._generator.simulated,
            sent=sent,
            speed=(sent - sent_before) / seconds if seconds > 0 else 0.0,
            year=self._generator.years,
            elapsed_s=stop.elapsed_s,
            now_ms=time.time_ns() // 1_000_000,
            page=self._page,
        )

    def _print_tick(self) -> None:
        """Print the newest tick as plain lines, where there is no terminal to draw on."""
        if self._generator.years > self._year:
            self._year = self._generator.years
            self._print(
                f"the year is over: it begins again, for the {ordinal(self._year)} time"
            )
        boards = self._boards.newest
        if not self._boards.complete() or self._boards.ticks <= self._printed_ticks:
            return
        self._printed_ticks = self._boards.ticks
        discovered = self._discovered
        declared = self._declared
        first = boards[discovered, ORIGINS[0]]
        age = max(0, time.time_ns() // 1_000_000 - first.end_ms) / 1000
        sent = self._generator.sent
        date = self._generator.simulated
        self._print(
            f"tick {self._boards.ticks}, {age:.1f} s old; {sent:,} events sent, now {date}"
        )
        for origin in ORIGINS:
            board = boards[discovered, origin]
            rows = (
                "  ".join(_plain(row) for row in board.rows[:PLAIN_ITEMS])
                or "nothing yet"
            )
            self._print(
                f"  {discovered} {origin} +-{2 * board.sd:.0f}: {rows}  ({len(board.rows)} shown, {board.hidden} hidden, "
                f"threshold {board.threshold or 0:.0f})"
            )
        largest = "  ".join(
            f"{origin}-{_plain(boards[declared, origin].rows[0])}" for origin in ORIGINS
        )
        sd = boards[declared, ORIGINS[0]].sd
        self._print(f"  {declared} +-{2 * sd:.0f}: {largest}")

    def _summarize(self, stop: Stop) -> None:
        """Print what was sent and seen, and how near the private counts were."""
        boards = self._boards
        generator = self._generator
        self._print("")
        self._print(
            f"{generator.sent:,} events in {stop.elapsed_s:.0f} s; {boards.ticks} ticks and {boards.snapshots} snapshots seen."
        )
        if generator.failed:
            self._print(
                f"{generator.failed:,} events did not reach Kafka, so the exact counts are too large."
            )
        if self._first_s is None:
            self._print("Nothing was published yet: that takes some seconds.")
        else:
            self._print(
                f"The first private histogram was there after {self._first_s:.1f} s."
            )
        for name, mechanism in self._series.items():
            errors = boards.errors[name]
            if errors.counts:
                self._print(
                    f"{name} ({mechanism}): {errors.counts:,} counts, "
                    f"mean absolute error {errors.absolute / errors.counts:.1f} "
                    f"with sd {errors.sd / errors.counts:.1f}, "
                    f"{errors.within / errors.counts:.1%} within 2 sd"
                )
        self._print(self._promise)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _consumer_of_all(connection: Connection, topics: Iterable[str]) -> Consumer:
    """Return an ordinary downstream consumer of all these topics: it sees published snapshots."""
    consumer = connection.consumer(**{"fetch.wait.max.ms": 100})
    consumer.assign(
        [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic, partition in product(topics, range(EMBEDDED_PARTITIONS))
        ]
    )
    return consumer


def _report_failure(child: Child, exit_code: int | None) -> int:
    """Print how the worker failed, and the end of its log; return the demo's exit code.

    `exit_code` is the worker's; None: it still runs, but is silent.
    """
    what = f"has published nothing for {SILENCE_S:.0f} s"
    if exit_code is not None:
        what = f"ended by itself with exit code {exit_code}"
    log(f"the demo's worker {what}; the end of its log:")
    for line in child.last_lines():
        print(f"  {line}", file=sys.stderr)
    return exit_code if exit_code in (EXIT_EXPECTED, EXIT_FENCED) else EXIT_FAULT


def run_demo(chosen: Demo) -> int:
    """Run the demo until Ctrl-C or for `seconds`; remove everything it started.

    Return 0, or the exit code of a failed worker.
    """
    if not all_compiled():  # after `pip install`; `make` compiles them itself
        from workers.commands.compiling import ensure_compiled

        ensure_compiled()
    with Stop(
        chosen.seconds
    ) as stop:  # first: from here on, Ctrl-C ends the demo cleanly
        return Session(chosen).run(stop)


def _plain(row: Row) -> str:
    return f"{row.label} {row.private:,} (exact {row.exact:,})"
