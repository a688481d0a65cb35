"""Records that validate every field against its annotation when created.

An annotation (`Meta`) states type, range and, except for a `Literal`, the error's allowed values. A
`Meta` with the extra "duration" marks a whole number of milliseconds, which a settings file writes
as "10s".
"""

import itertools
import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from workers.runtime.frozen import memoized, ready


def whole(least: int, most: int) -> Meta:
    """Return the annotation of a whole number in a range."""
    return Meta(
        ge=least, le=most, description=f"a whole number from {least:,} to {most:,}"
    )


class Rule(NamedTuple):
    """The check of one field of a record.

    `probe` is a record with only that field, for msgspec to check. A bare annotation would be
    hashed in Python at every call, which drops exceptions raised there (it lost 5 of 83 Ctrl-C).
    """

    attribute: str  # its name in Python
    name: str  # its name in a settings file
    probe: type[msgspec.Struct]
    allowed: str  # the values that an error names as allowed
    duration: bool  # whether it is in milliseconds
    required: bool

    def checked(self, value: object) -> object:
        """Return the value, converted if its type requires that, or raise `ValidationError`."""
        found = msgspec.convert({"value": value}, self.probe, dec_hook=_decode)
        return msgspec.structs.astuple(found)[0]


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of records that check each field, and then `complaints`, when they are made."""

    def __post_init__(self) -> None:
        """Check each field by its rule, then all together; raise ValueError for the first fault."""
        for rule in rules(type(self)):
            value = getattr(self, rule.attribute)
            try:
                checked = rule.checked(value)
            except msgspec.ValidationError:
                unit = " ms" if rule.duration and not isinstance(value, str) else ""
                text = f"{rule.name} = {display(value)}{unit}: {rule.allowed}"
                raise ValueError(self.where() + text) from None
            # Converted, as an int to a float.
            if checked is not value:
                msgspec.structs.force_setattr(self, rule.attribute, checked)
        for complaint in self.complaints():
            raise ValueError(self.where() + complaint)

    def where(self) -> str:
        """Return the beginning of error messages: where in the settings file the record is."""
        return ""

    def complaints(self) -> Iterator[str]:
        """Yield errors between fields that are individually valid."""
        return iter(())


@memoized(None)
def rules(record: type[Checked]) -> tuple[Rule, ...]:
    """Return the checks of all fields of a record, from their annotations."""
    hints = get_type_hints(record, include_extras=True)
    checks = []
    for field in msgspec.structs.fields(record):
        hint = hints[field.name]
        # Annotations of the field itself, then those of a union's members, as in `Count | None`.
        annotated = [
            getattr(part, "__metadata__", ()) for part in (hint, *get_args(hint))
        ]
        metas = [meta for meta in itertools.chain(*annotated) if isinstance(meta, Meta)]
        allowed = next((meta.description for meta in metas if meta.description), None)
        if get_origin(hint) is Literal:
            *others, last = map(json.dumps, get_args(hint))
            allowed = f"{', '.join(others)} or {last}" if others else last
        if allowed is None:
            raise TypeError(
                f"{record.__name__}.{field.name} does not say in words what is allowed"
            )
        duration = any((meta.extra or {}).get("duration") for meta in metas)
        probe = msgspec.defstruct(f"{record.__name__}_{field.name}", [("value", hint)])
        # Prepare it now: two threads that first use it at the same time may crash the process.
        ready(probe)
        checks.append(
            Rule(
                field.name, field.encode_name, probe, allowed, duration, field.required
            )
        )
    return tuple(checks)


_LARGEST_FLOAT = math.nextafter(math.inf, 0.0)


def is_finite(value: Any) -> bool:
    """Return whether a value of a settings file is a number that a finite float can be near to."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= _LARGEST_FLOAT


def display(value: object) -> str:
    """Return a value as in a settings file, cut to one line."""
    stamp = (
        value.isoformat().replace("+00:00", "Z")
        if isinstance(value, datetime)
        else None
    )
    text = stamp or json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _decode(kind: type, value: object) -> object:
    """Convert a value to the one type that msgspec does not know, a file path."""
    if isinstance(value, kind):
        return value
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise ValueError("not a file name")
