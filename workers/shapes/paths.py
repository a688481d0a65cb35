"""Paths to the fields of an event: `order.lines[].sku`.

    parse("order.lines[].sku")   the steps order, lines, sku; lines is a list

Names are separated by dots. A name that holds a dot, a bracket, a quote or white space, or begins
with $, is written in quotes as in JSON: `order."shop.name"`. `[]` behind a name stands for each
element of the list there; a path has it at most once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

# Names in a path; deeper fields could not be walked by the compiled readers.
STEPS_MAX = 16
CHARACTERS_MAX = 1_000
SYNTAX = 'the name of a field, or a path such as order.lines[].sku (a name with a dot in quotes: order."shop.name")'

_PLAIN = re.compile(r"[^.\[\]\"'\s$][^.\[\]\"'\s]*")
_QUOTED = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Path:
    """Where a field of an event is.

    Attributes:
        steps: names, from the outermost in.
        list_at: after how many of the names `[]` stands; None: nowhere.
    """

    steps: tuple[str, ...]
    list_at: int | None = None

    def __str__(self) -> str:
        parts = [name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in self.steps]
        if self.list_at is not None:
            parts[self.list_at - 1] += "[]"
        return ".".join(parts)

    @property
    def list_steps(self) -> tuple[str, ...] | None:
        """Return the path of the list whose elements it is about; None: of none."""
        return None if self.list_at is None else self.steps[: self.list_at]


def parse(text: str) -> Path:
    """Return the path that a text writes.

    Raises:
        ValueError: it is none; the message says at which character.
    """
    if len(text) > CHARACTERS_MAX:
        raise ValueError(f"at most {CHARACTERS_MAX:,} characters")
    steps: list[str] = []
    list_at: int | None = None
    at = 0
    while True:
        name, at = _name(text, at)
        steps.append(name)
        while text.startswith("[]", at):
            if list_at is not None:
                raise _wrong(text, at, "a second []; a path has one at most")
            list_at = len(steps)
            at += 2
        if at == len(text):
            break
        if text[at] != ".":
            raise _wrong(text, at, "a name with such a character must be in quotes")
        at += 1
    if len(steps) > STEPS_MAX:
        raise ValueError(f"{len(steps)} names; at most {STEPS_MAX}")
    return Path(tuple(steps), list_at)


def _name(text: str, at: int) -> tuple[str, int]:
    """Return the name at `at` and where it ends."""
    if text.startswith('"', at):
        found = _QUOTED.match(text, at)
        try:
            name = json.loads(found.group()) if found else ""
            name.encode()
        except ValueError:  # an escape that JSON does not know, or half a surrogate pair
            found = None
        if found is None:
            raise _wrong(text, at, "a name in quotes that does not end, or is not as JSON writes it")
        if not name:
            raise _wrong(text, at, "an empty name")
        return name, found.end()
    found = _PLAIN.match(text, at)
    if found is None:
        raise _wrong(text, at, "a name is missing" if at == len(text) or text[at] in ".[" else "no name begins so")
    return found.group(), found.end()


def _wrong(text: str, at: int, why: str) -> ValueError:
    place = "at its end" if at == len(text) else f"at character {at + 1}, {text[at]!r}"
    return ValueError(f"{place}: {why}")
