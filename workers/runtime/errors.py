"""The worker's own errors: every message names the setting or topic, its value, and what to do."""

from __future__ import annotations

import traceback
from pathlib import Path

#: Packages whose errors speak of brokers, topics and partitions, and quote no record.
_OF_KAFKA = ("aiokafka", "cimpl", "confluent_kafka")


class QuietcountError(Exception):
    """Base of the worker's own errors; the message is for the operator, without any data."""


class SettingsError(QuietcountError):
    """A setting, file or topic is not usable as given (exit 2)."""


class KafkaAway(SettingsError):
    """No broker answers: who can wait does, everybody else ends (exit 2)."""


class KafkaRefuses(SettingsError):
    """A broker does not let us in, or we do not trust it: no waiting cures that (exit 2)."""


class StateRefused(QuietcountError):
    """Stored state is of another configuration or log: to go on could publish twice (exit 2)."""


class CopyFailed(QuietcountError):
    """A local copy of state cannot be read or written: the state itself is in Kafka."""


class CeilingReached(QuietcountError):
    """What comes next would exceed the ceiling of the settings: it is not published (exit 2)."""


class Fenced(QuietcountError):
    """A newer owner holds this partition's transactional id: nothing more may be published here."""


class MessageTooLong(QuietcountError):
    """A message longer than brokers take was about to be sent: a defect, whatever the data."""


class HorizonExceeded(QuietcountError):
    """A tick outside the mechanism's horizon was asked for."""


class BudgetExhausted(QuietcountError):
    """A mechanism's privacy budget is used up."""


def describe(error: BaseException) -> str:
    """Return what a log may say of an error: its message if about Kafka, files or settings.

    Of any other it is kind and place: its message may quote a label, a key or an event.
    """
    kind = type(error)
    if (
        isinstance(error, QuietcountError | OSError)
        or kind.__module__.partition(".")[0] in _OF_KAFKA
    ):
        return " ".join(f"{kind.__name__}: {error}".split()).removesuffix(":")
    trace = traceback.extract_tb(error.__traceback__)
    return (
        f"{kind.__name__} at {Path(trace[-1].filename).name}:{trace[-1].lineno}"
        if trace
        else kind.__name__
    )


def traceback_of(error: BaseException) -> str:
    """Return a traceback without the messages that `describe` would not show."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    head = "" if before is None else f"{traceback_of(before)}\n\nThen:\n"
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{head}Traceback (most recent call last):\n{frames}{describe(error)}"
