"""Which topics hold the events, as the settings name them: one, several, or a regular expression.

The expression is Python's and must match the whole name of a topic. A list of one topic means what
its name means. The order of a list means nothing.
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
        names: in order; none where there is an expression.
        pattern: the expression, or None.
    """

    names: tuple[str, ...]
    pattern: str | None = None

    @classmethod
    def of(cls, topic: str | tuple[str, ...]) -> TopicNames:
        """Return what `events.topic` says."""
        if isinstance(topic, str):
            return cls((), topic) if topic.startswith("^") else cls((topic,))
        return cls(tuple(sorted(topic)))

    def __str__(self) -> str:
        return self.pattern or ", ".join(self.names)

    @property
    def one(self) -> bool:
        """Whether this is one topic whatever there is on the cluster."""
        return len(self.names) == 1

    @property
    def identity(self) -> str | list[str]:
        """What a mechanism id says of them."""
        return str(self) if self.one or self.pattern is not None else list(self.names)

    def matches(self, topic: str) -> bool:
        """Return whether the expression matches the whole name of a topic."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None


def topic_complaints(topic: str | tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with `events.topic` beyond its type.

    Names are looked at here: of a text with a pattern or else an array msgspec 0.22 makes a type
    whose fields it mixes up, and the next collection of cycles ends the process.
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
