"""What the worker logs: lines on stderr, with no label, count, stream key, user or key material.

Text for people, or on request JSON: one object a line with `time`, `level`, `logger`, `message`,
perhaps `error` (kind and traceback), and the line's own fields. Both leave out the message of an
unforeseen error, even with `--debug`: it may quote an event (`errors.describe`).
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

from workers.runtime.errors import describe, traceback_of

REPEAT_S = 30.0
#: What they say changes to and fro, so that the same line again is news.
_NEWS = ("workers.runtime.availability", "workers.kafka.store", "workers.pipeline.merge")
# They log every step of their own at INFO; what goes wrong there is a warning.
QUIETER = ("aiokafka", "asyncio", "confluent_kafka", "faust", "kafka", "librdkafka", "mode")


def _ours(record: logging.LogRecord) -> bool:
    """Hold back what Faust's services (mode) log of every step, under our subclasses' names."""
    return record.levelno >= logging.WARNING or not record.getMessage().startswith("[^")


def _lasting(record: logging.LogRecord) -> bool:
    """Hold back that a coordinator of transactions is still loading, as at the first start on a new
    cluster: the client asks again by itself, and one that never answers ends the taking over.
    """
    text = record.getMessage() if record.name == "librdkafka" else ""
    return not (text.startswith("GETPID ") and text.endswith(": retrying"))


class _NotAgain(logging.Filter):
    """A filter of lines that were logged within the last half minute.

    Every client reports a broker that is away, all the time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name in _NEWS:
            return True
        text, now = record.getMessage(), time.monotonic()
        if now - self._last.get(text, -REPEAT_S) < REPEAT_S:
            return False
        if len(self._last) > 1000:
            self._last = {known: at for known, at in self._last.items() if now - at < REPEAT_S}
        self._last[text] = now
        return True


class _Lines(logging.Formatter):
    """One line a record; the error that ends the worker looks as in every other command."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        if (
            record.levelno >= logging.CRITICAL
            and record.exc_info is None
            and record.name.startswith("workers")
        ):
            return f"quietcount: {' '.join(record.getMessage().split())}"
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        return traceback_of(ei[1])


class _Objects(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
    """Return the `extra` of a log call: fields that JSON shows."""
    return {"about": fields}


def last_words(text: str) -> None:
    """Log the message that ends a command."""
    logging.getLogger("workers.cli").critical("%s", text)


def log_to_stderr(*, debug: bool, json_lines: bool = False) -> None:
    """Log to stderr; with `debug` our own lines from DEBUG on, and the libraries' from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Objects() if json_lines else _Lines())
    if not debug:
        handler.addFilter(_ours)
        handler.addFilter(_lasting)
        handler.addFilter(_NotAgain())
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True
    )
    for name in QUIETER:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _of_thread
    sys.excepthook = _uncaught


# Python's own hooks would print the message of the error.
def _of_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        name = "?" if hook.thread is None else hook.thread.name
        logging.getLogger("workers").error("thread %s failed", name, exc_info=hook.exc_value)


def _uncaught(
    _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
) -> None:
    logging.getLogger("workers").error("failed", exc_info=error)
