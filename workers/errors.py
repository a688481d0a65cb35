"""What the worker refuses, under one base: every message names the setting or topic, its value, and what to do."""

from __future__ import annotations

import traceback
from pathlib import Path

#: Packages whose errors speak of brokers, topics and partitions, and quote no record.
_OF_KAFKA = ("aiokafka", "cimpl", "confluent_kafka")


class QuietcountError(Exception):
    """Base of the worker's own errors; the message is meant for the operator and holds no label, count or key."""


class SettingsError(QuietcountError):
    """A setting, file or topic is not usable as given (exit 2)."""


class StateRefused(QuietcountError):
    """Stored state does not belong to this configuration or log: going on could publish twice or uncounted (exit 2)."""


class Fenced(QuietcountError):
    """A newer owner holds this partition's transactional id: nothing more may be published here."""


class MessageTooLong(QuietcountError):
    """A message that no broker need take was about to be sent; no settings and no data should lead here."""


class HorizonExceeded(QuietcountError):
    """A tick outside the mechanism's horizon was asked for."""


class BudgetExhausted(QuietcountError):
    """A mechanism's privacy budget is used up."""


def describe(error: BaseException) -> str:
    """What may be said of an error in a log: its message where that is about Kafka, files or settings, else its kind and place.

    The message of any other error may quote what was worked on: a label, a key, an event.
    """
    kind = type(error)
    if isinstance(error, QuietcountError | OSError) or kind.__module__.partition(".")[0] in _OF_KAFKA:
        return " ".join(f"{kind.__name__}: {error}".split()).removesuffix(":")
    trace = traceback.extract_tb(error.__traceback__)
    return f"{kind.__name__} at {Path(trace[-1].filename).name}:{trace[-1].lineno}" if trace else kind.__name__


def traceback_of(error: BaseException) -> str:
    """A traceback without the messages that `describe` would not show."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    head = "" if before is None else f"{traceback_of(before)}\n\nThen:\n"
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{head}Traceback (most recent call last):\n{frames}{describe(error)}"
