"""The demo's worker: the real command as a child process, in a directory of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from workers.commands.demo.generator import DESTINATIONS, ORIGINS
from workers.commands.key import new_key
from workers.kafka.clients import Connection
from workers.settings.settings import Settings, load

TICK_MS = 2_000
#: Ticks of an epoch: 34 minutes. A longer one would need more noise.
HORIZON = 1_024
EPSILON = 1.0
DELTA = 1e-9
LOG_LINES = 15
PATIENCE_S = 15.0

#: Settings of the worker, with names in braces for what differs from demo to demo.
SETTINGS = Path(__file__).with_name("settings.toml")


def settings_text(name: str, connection: Connection, start_ms: int) -> str:
    """Return the settings file of the demo's worker; `start_ms` is the start of tick 1."""
    start = datetime.fromtimestamp(start_ms / 1000, UTC).isoformat(timespec="milliseconds")
    client = (f"{json.dumps(key)} = {json.dumps(value)}" for key, value in connection.client.items())
    return SETTINGS.read_text().format(
        name=json.dumps(name), bootstrap=json.dumps(connection.bootstrap), client=", ".join(client),
        topic=json.dumps(f"{name}.flights"), domain=json.dumps(DESTINATIONS), keys=json.dumps(ORIGINS),
        tick_ms=TICK_MS, horizon=HORIZON, start=start.replace("+00:00", "Z"), epsilon=EPSILON, delta=DELTA,
    )  # fmt: skip


class Child:
    """The worker's process and directory; on exit from the context both are gone."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="quietcount-demo-", ignore_cleanup_errors=True
        )
        self.path = Path(self._directory.name)
        self.config = self.path / "demo.toml"
        self._log = self.path / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop(hurry=lambda: kind is not None)
        finally:
            self._directory.cleanup()

    def prepare(self, text: str) -> Settings:
        """Write key and settings; return the settings as the worker will read them."""
        new_key(self.path / "noise.key")
        self.config.write_text(text, encoding="utf-8")
        return load(self.config)

    def start(self, embedded: str | None = None) -> None:
        """Start the worker, on the embedded Kafka with this cluster id, else on a real one.

        A Ctrl-C at the terminal does not reach it, `stop` does.
        """
        command = [sys.executable, "-m", "workers.cli", "run", "-c", str(self.config)]
        if embedded is not None:
            command += ["--embedded", embedded]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or was never started."""
        return None if self._process is None else self._process.poll()

    def last_lines(self) -> list[str]:
        """Return the end of its log."""
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-LOG_LINES:]

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask it to end, and kill it after `PATIENCE_S`, or as soon as `hurry` says so."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            deadline = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < deadline and not hurry():
                time.sleep(0.02)
        if process.poll() is None:
            process.kill()
        process.wait()
