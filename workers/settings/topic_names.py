"""The events topics in the settings: one name, several, or a regular expression.

The expression is Python's and must match the whole name of a topic. A list of one topic is
equivalent to its name. The order of a list has no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from workers.mechanisms.config.checked import display
from workers.mechanisms.config.histogram import TOPIC_NAME

ALLOWED = (
    'a Kafka topic name: letters, digits, ".", "_" and "-", at most 249 of them; a list of such names; or a regular '
    'expression of whole names, such as "^orders-.*"'
)
TOPICS_MAX, PATTERN_MAX = 1_000, 1_001


class TopicNames(msgspec.Struct, frozen=True):
    """The topics that hold the events.

    Attributes:
        names: sorted; empty where there is an expression.
    """

    names: tuple[str, ...]
    pattern: str | None = None

    @classmethod
    def of(cls, topic: str | tuple[str, ...]) -> TopicNames:
        """Return the topics of the setting `events.topic`."""
        if isinstance(topic, str):
            return cls((), topic) if topic.startswith("^") else cls((topic,))
        return cls(tuple(sorted(topic)))

    def __str__(self) -> str:
        return self.pattern or ", ".join(self.names)

    @property
    def one(self) -> bool:
        """Return whether this is a single topic, whatever topics the cluster has."""
        return len(self.names) == 1

    @property
    def identity(self) -> str | list[str]:
        """Return the topics' form in a mechanism id."""
        return str(self) if self.one or self.pattern is not None else list(self.names)

    def matches(self, topic: str) -> bool:
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None


def topic_complaints(topic: str | tuple[str, ...]) -> Iterator[str]:
    """Yield errors in `events.topic` beyond its type.

    Names are checked here because msgspec 0.22 mixes up the fields of a type that is a text with a
    pattern or an array, and the next garbage collection of cycles ends the process.
    """
    expression = isinstance(topic, str) and topic.startswith("^")
    names = (topic,) if isinstance(topic, str) else topic
    fits = (
        1 < len(topic) <= PATTERN_MAX
        if expression
        else all(re.match(TOPIC_NAME, name) for name in names)
    )
    if not fits or not 0 < len(names) <= TOPICS_MAX:
        yield f"topic = {display(topic)}: {ALLOWED}"
    elif isinstance(topic, tuple):
        if len(set(topic)) < len(topic):
            repeated = next(name for name in topic if topic.count(name) > 1)
            yield f"topic holds {display(repeated)} more than once: every one only once"
    elif topic.startswith("^"):
        try:
            re.compile(topic)
        except (re.error, OverflowError, RecursionError) as error:
            yield f"topic = {display(topic)}: not a regular expression: {error}"
