"""The worker's own errors. A message names the setting or topic, its value, and the remedy."""

import traceback
from pathlib import Path

#: Packages whose errors mention brokers, topics and partitions, but quote no record.
_OF_KAFKA = ("aiokafka", "cimpl", "confluent_kafka")


class QuietcountError(Exception):
    """Base of the worker's own errors; the message is for the operator and holds no data."""


class SettingsError(QuietcountError):
    """An unusable setting, file or topic (exit 2)."""


class KafkaAway(QuietcountError):
    """No broker answers: callers that can wait do, all others end (exit 2)."""


class KafkaRefuses(SettingsError):
    """A broker rejects us, or we do not trust it; waiting does not help (exit 2)."""


class StateRefused(QuietcountError):
    """Stored state of another configuration or log; continuing could publish twice (exit 2)."""


class CopyFailed(QuietcountError):
    """A local copy of state cannot be read or written; the state itself is in Kafka."""


class CeilingReached(QuietcountError):
    """The next release would exceed the configured ceiling and is not published (exit 2)."""


class SourcesGrown(QuietcountError):
    """More source or owner partitions are counted than this run knows: it must begin again."""


class Fenced(QuietcountError):
    """A newer owner holds this partition's transactional id; publish nothing more here."""


class MessageTooLong(QuietcountError):
    """Attempt to send a message longer than brokers accept: always a defect."""


class HorizonExceeded(QuietcountError):
    """A tick outside the mechanism's horizon."""


class BudgetExhausted(QuietcountError):
    """A mechanism's privacy budget is used up."""


def describe(error: BaseException) -> str:
    """Return a loggable description: the message of an error about Kafka, files or settings.

    Other messages may quote a label, key or event: return their type and location instead.
    """
    kind = type(error)
    of_kafka = kind.__module__.partition(".")[0] in _OF_KAFKA
    if of_kafka or isinstance(error, QuietcountError | OSError):
        # Without a message the kind alone is left.
        return " ".join(f"{kind.__name__}: {error}".split()).removesuffix(":")
    trace = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(trace[-1].filename).name}:{trace[-1].lineno}" if trace else ""
    return kind.__name__ + place


def traceback_of(error: BaseException) -> str:
    """Return a traceback as Python prints it, but with errors as `describe` shows them."""
    before = error.__cause__ or (
        None if error.__suppress_context__ else error.__context__
    )
    head = "" if before is None else f"{traceback_of(before)}\n\nThen:\n"
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{head}Traceback (most recent call last):\n{frames}{describe(error)}"
