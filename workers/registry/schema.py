"""A schema as a registry keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"


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
