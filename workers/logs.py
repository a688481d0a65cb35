"""What the worker says while it runs: lines on stderr, and no label, count, key of a stream or key material in any of them."""

from __future__ import annotations

import logging
import sys
import time

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


def log_to_stderr(*, debug: bool) -> None:
    """Sets logging up for `run`.

    Args:
        debug: everything of our own at DEBUG and of the libraries at INFO.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    if not debug:
        handler.addFilter(_ours)
        handler.addFilter(_NotAgain())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    for name in QUIETER:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)
