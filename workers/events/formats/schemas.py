"""A schema as a registry keeps it, and what it means that it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one refers to: by which name, and its text."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema.

    Attributes:
        kind: AVRO, PROTOBUF or JSON.
        text: as it was registered.
        references: those it refers to, and those that they do; each behind what it refers to.
    """

    kind: str
    text: str = field(repr=False)
    references: tuple[Reference, ...] = ()


class Refused(Exception):
    """Why no event of a schema can be used: a reason from a fixed set."""


NOT_OF_FORMAT = "schema of another format"
UNREADABLE = "schema cannot be read"
