"""Turn an exception into one line and an exit code (`workers.cli` lists them)."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from workers.runtime.errors import Fenced, QuietcountError

EXIT_EXPECTED = 2
EXIT_FAULT = 70
EXIT_FENCED = 75
EXIT_INTERRUPTED = 130

# Checked only if a command has already loaded the module.
KAFKA_ERRORS = (("confluent_kafka", "KafkaException"), ("aiokafka.errors", "KafkaError"))


def log(text: str) -> None:
    click.echo(f"quietcount: {text}", err=True)


def explain(error: Exception, *, debug: bool, say: Callable[[str], None] = log) -> int:
    if debug:
        _show_traceback(error, as_json=say is not log)
    if isinstance(error, QuietcountError):
        say(_one_line(error))
        return EXIT_FENCED if isinstance(error, Fenced) else EXIT_EXPECTED
    kafka_errors = (getattr(sys.modules.get(module), name, ()) for module, name in KAFKA_ERRORS)
    if isinstance(error, tuple(kafka_errors)):
        say(f"Kafka: {_kafka_message(error)}")
        return EXIT_EXPECTED
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        say(f"{place}{error.strerror}")
        return EXIT_EXPECTED
    # An unexpected error may quote an event: show only its kind and place (--debug: the traceback).
    place = "an unknown place"
    if frames := traceback.extract_tb(error.__traceback__):
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    say(f"internal error: {type(error).__name__} at {place}; --debug shows more")
    return EXIT_FAULT


def _show_traceback(error: Exception, *, as_json: bool) -> None:
    if as_json:
        import logging

        logging.getLogger("workers.cli").debug("the command failed", exc_info=error)
        return
    from workers.runtime.errors import traceback_of

    click.echo(traceback_of(error), err=True)


def _kafka_message(error: Exception) -> str:
    """Return the text of an error of librdkafka (the exception's first argument) or aiokafka."""
    text = getattr(error.args[0], "str", None) if error.args else None
    return str(text()) if callable(text) else _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
