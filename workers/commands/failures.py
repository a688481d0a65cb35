"""Turn an exception into one line and an exit code (`workers.cli` lists them)."""

import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from workers.runtime.errors import Fenced, QuietcountError, traceback_of

EXIT_EXPECTED = 2
EXIT_FAULT = 70
EXIT_FENCED = 75
EXIT_INTERRUPTED = 130

# Module and class of errors of Kafka's clients.
KAFKA_ERRORS = (
    ("confluent_kafka", "KafkaException"),
    ("aiokafka.errors", "KafkaError"),
)


def log(text: str) -> None:
    click.echo(f"quietcount: {text}", err=True)


def explain(error: Exception, *, debug: bool, say: Callable[[str], None] = log) -> int:
    """Say in one line what failed, with `debug` also where; return the exit code.

    `say` is another function where the line is to be a record of the log; then the place is, too.
    """
    if debug and say is log:
        click.echo(traceback_of(error), err=True)
    elif debug:
        logging.getLogger("workers.cli").debug("the command failed", exc_info=error)
    if isinstance(error, QuietcountError):
        say(_one_line(error))
        return EXIT_FENCED if isinstance(error, Fenced) else EXIT_EXPECTED
    # A library that this command has not loaded has raised nothing, and is not loaded for this: no
    # error is an instance of ().
    kinds = (
        getattr(sys.modules.get(module), name, ()) for module, name in KAFKA_ERRORS
    )
    if isinstance(error, tuple(kinds)) and (text := _kafka_text(error)) is not None:
        say(f"Kafka: {text}")
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


def _kafka_text(error: Exception) -> str | None:
    """Return what an operator should read; None for what only a defect can raise."""
    from workers.kafka.clients import text_of
    from workers.kafka.verdicts import Verdict, verdict_of

    verdict = verdict_of(error)
    text = text_of(error) or type(error).__name__
    if verdict is Verdict.FORBIDDEN:
        return f"{text.rstrip('.')}. See deploy/acls.md for the rights that are needed"
    return None if verdict is Verdict.BUG else text


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
