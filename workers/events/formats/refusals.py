"""What it means that a schema cannot be used."""

from __future__ import annotations


class Refused(Exception):
    """Why no event of a schema can be used: a reason from a fixed set, with paths of settings."""


NOT_OF_FORMAT = "schema of another format"
UNREADABLE = "schema cannot be read"
NO_MESSAGE = "no such message in the schema"
