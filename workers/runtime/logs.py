"""The worker's logs: lines on stderr, without label, count, stream key, user or key material.

Text, or on request one JSON object per line: `time`, `level`, `logger`, `message`, possibly `error`
(kind and traceback), and extra fields. Both omit the message of an unexpected error, even with
`--debug`: it may quote an event (`errors.describe`).
"""

import json
import logging
import math
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

from workers.runtime.errors import describe, traceback_of

REPEAT_S = 30.0
#: Loggers that alternate between states, so a repeated line is news.
_NEVER_DROPPED = (
    "workers.runtime.availability",
    "workers.kafka.store",
    "workers.pipeline.merge",
)
# Loggers that report every internal step at INFO; their problems are warnings.
QUIET_LOGGERS = (
    "aiokafka",
    "asyncio",
    "confluent_kafka",
    "faust",
    "httpx",
    "httpx2",
    "kafka",
    "librdkafka",
    "mode",
)


def _without_mode_steps(record: logging.LogRecord) -> bool:
    """Drop Faust services' (mode's) step logs, which appear under our subclasses' names."""
    return record.levelno >= logging.WARNING or not record.getMessage().startswith("[^")


def _without_retries(record: logging.LogRecord) -> bool:
    """Drop reports of a loading transaction coordinator: the client retries by itself.

    GETPID is librdkafka's name for getting a producer id.
    """
    text = record.getMessage() if record.name == "librdkafka" else ""
    return not (text.startswith("GETPID ") and text.endswith(": retrying"))


class _RepeatFilter(logging.Filter):
    """Filter of lines repeated within `REPEAT_S`: clients report an absent broker nonstop."""

    def __init__(self) -> None:
        super().__init__()
        # When each line was let through last.
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to let a line through: not again within `REPEAT_S`."""
        if record.name in _NEVER_DROPPED:
            return True
        text = record.getMessage()
        now_s = time.monotonic()
        if now_s - self._last_s.get(text, -math.inf) < REPEAT_S:
            return False
        # Memory is bounded by the lines of one interval.
        if len(self._last_s) > 1000:
            self._last_s = {
                line: last_s
                for line, last_s in self._last_s.items()
                if now_s - last_s < REPEAT_S
            }
        self._last_s[text] = now_s
        return True


class _TextFormatter(logging.Formatter):
    """Text formatter; the worker's final error looks as in other commands."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return a line; the worker's last one, CRITICAL, looks like any command's error."""
        is_ours = record.name.startswith("workers") and record.exc_info is None
        if is_ours and record.levelno >= logging.CRITICAL:
            return f"quietcount: {' '.join(record.getMessage().split())}"
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        return traceback_of(ei[1])


class _JsonFormatter(logging.Formatter):
    """JSON formatter, with the fields that the module's docstring lists."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line of JSON; an error is described without its message."""
        created = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "time": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            # Set by `json_fields`.
            **getattr(record, "about", {}),
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            entry["error"] = {"kind": describe(error), "traceback": traceback_of(error)}
        return json.dumps(entry, ensure_ascii=False, default=str)


def json_fields(**fields: object) -> dict[str, dict[str, object]]:
    """Return the `extra` argument of a log call: further fields of a JSON line."""
    return {"about": fields}


def log_fatal(text: str) -> None:
    logging.getLogger("workers.cli").critical("%s", text)


def log_to_stderr(*, debug: bool, json_lines: bool = False) -> None:
    """Log to stderr; with `debug`, our own lines from DEBUG and the libraries' from INFO."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if json_lines else _TextFormatter())
    if not debug:
        handler.addFilter(_without_mode_steps)
        handler.addFilter(_without_retries)
        handler.addFilter(_RepeatFilter())
    level = logging.DEBUG if debug else logging.INFO
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_error
    sys.excepthook = _log_uncaught


def _log_thread_error(hook: threading.ExceptHookArgs) -> None:
    """Log an error that ended a thread; Python's own hook would print its message."""
    if hook.exc_value is not None:
        name = "?" if hook.thread is None else hook.thread.name
        logging.getLogger("workers").error(
            "thread %s failed", name, exc_info=hook.exc_value
        )


def _log_uncaught(_kind: object, error: BaseException, _trace: object) -> None:
    """Log an error that ends the process; Python's own hook would print its message."""
    logging.getLogger("workers").error("failed", exc_info=error)
