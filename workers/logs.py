"""What the worker says while it runs: lines on stderr, and no label, count, stream key, user or key material in any of them.

Text for people, or JSON on request: one object a line with `time`, `level`, `logger`, `message`, where there is one `error` (kind and
traceback), and what else the line is about under names of its own. The message of an unforeseen error is left out of both, with
`--debug` too: it may quote an event (`errors.describe`).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from workers.errors import describe, traceback_of

# They report every step of their own at INFO; what goes wrong there is a warning.
REPEAT_S = 30.0
QUIETER = ("aiokafka", "asyncio", "confluent_kafka", "faust", "kafka", "librdkafka", "mode")


def _ours(record: logging.LogRecord) -> bool:
    """Not the life of Faust's services (mode), which log every step under the names of our subclasses."""
    return record.levelno >= logging.WARNING or not record.getMessage().startswith("[^")


class _NotAgain(logging.Filter):
    """Lets a line through that was not there in the last half minute: a broker that is away is reported by every client, all the time."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), time.monotonic()
        if now - self._last.get(text, -REPEAT_S) < REPEAT_S:
            return False
        if len(self._last) > 1000:
            self._last = {known: at for known, at in self._last.items() if now - at < REPEAT_S}
        self._last[text] = now
        return True


class _Lines(logging.Formatter):
    """One line a record; what ends the worker looks as it does in every other command."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.CRITICAL and record.exc_info is None and record.name.startswith("workers"):
            return f"quietcount: {' '.join(record.getMessage().split())}"
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        return traceback_of(ei[1])


class _Objects(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "about", {}),
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            entry["error"] = {"kind": describe(error), "traceback": traceback_of(error)}
        return json.dumps(entry, ensure_ascii=False, default=str)


def about(**fields: object) -> dict[str, dict[str, object]]:
    """Return the `extra` of a log call: what the line is about, as JSON shows it."""
    return {"about": fields}


def last_words(text: str) -> None:
    """What ends a command, as a line of the log."""
    logging.getLogger("workers.cli").critical("%s", text)


def log_to_stderr(*, debug: bool, json_lines: bool = False) -> None:
    """Set up logging for `run`.

    Args:
        debug: everything of our own at DEBUG and of the libraries at INFO.
        json_lines: JSON instead of text.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Objects() if json_lines else _Lines())
    if not debug:
        handler.addFilter(_ours)
        handler.addFilter(_NotAgain())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    for name in QUIETER:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _of_thread
    sys.excepthook = _uncaught


def _of_thread(hook: threading.ExceptHookArgs) -> None:
    """Python would print the message of the error."""
    if hook.exc_value is not None:
        name = "?" if hook.thread is None else hook.thread.name
        logging.getLogger("workers").error("thread %s failed", name, exc_info=hook.exc_value)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python would print the message of the error."""
    logging.getLogger("workers").error("failed", exc_info=error)
