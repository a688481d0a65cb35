"""The general reader: it decides about every record that the scanner of plain JSON declines.

msgspec decodes a record into a typed object; one that fails is looked at again, to name what is
wrong with it. Reasons name fields of the configuration only, never a label or a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from workers.kernels.json_events import TIME_MAX
from workers.mechanisms.config import LABEL_BYTES_MAX
from workers.mechanisms.frozen import Frozen
from workers.settings import ALL_KEYS, RECORD_KEY, EventsSettings

# Lists and objects in each other. CPython lets about 1,000 calls lie in each other, ours included,
# and which of msgspec's it counts differs between versions. All of them allow this many.
NESTED_MAX = 512

_Items = str | list[str] | dict[str, Annotated[int, msgspec.Meta(ge=0)]]
_generic = msgspec.json.Decoder()


class GeneralReader(Frozen):
    """Decodes one record at a time, or says what is wrong with it; what it accepts is an event."""

    def __init__(self, events: EventsSettings, user_field: str | None) -> None:
        """
        Args:
            events: names of the JSON fields, limits.
            user_field: what names an event's user; None where users are not looked at.
        """
        self._events = events
        self._key = None if events.key in (ALL_KEYS, RECORD_KEY) else events.key
        self._user = None if user_field == RECORD_KEY else user_field
        fields: list[tuple[str, Any]] = [("items", _Items)]
        rename = {"items": events.items}
        if self._key is not None:
            fields.append(("key", str))
            rename["key"] = self._key
        if events.timestamp is not None:
            fields.append(("time", Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX)]))
            rename["time"] = events.timestamp
        if self._user is not None:
            fields.append(("user", str | int))
            rename["user"] = self._user
        kind = msgspec.defstruct("Event", fields, rename=rename, gc=False, frozen=True)
        self._decode: Callable[[Any], Any] = msgspec.json.Decoder(kind).decode

    def read(self, value: bytes, depth: int) -> Any:
        """Return the event of a record, or a string: the reason why it is none.

        An event has `items`, and `key`, `time` and `user` where these are fields of it.

        Args:
            value: the record's value.
            depth: how many lists and objects it opens in each other.
        """
        if len(value) > self._events.max_bytes:
            return "record too large"
        if depth > NESTED_MAX:
            return "not JSON"
        try:
            event = self._decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return self._why(value)
        # A record no longer than a label may be cannot hold one that is too long.
        if len(value) > LABEL_BYTES_MAX and _longest(event) > LABEL_BYTES_MAX:
            return "label too long"
        return event

    def _why(self, value: bytes) -> str:
        """Say why a value is no event; the fields are looked at in the order of the settings."""
        try:
            found = _generic.decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return "not JSON"
        if not isinstance(found, dict):
            return "not a JSON object"
        events = self._events
        if self._key is not None:
            if self._key not in found:
                return f"missing field {self._key!r}"
            if not isinstance(found[self._key], str):
                return f"field {self._key!r} is not a string"
        if events.items not in found:
            return f"missing field {events.items!r}"
        items = found[events.items]
        if isinstance(items, dict):
            if not all(type(n) is int and n >= 0 for n in items.values()):
                return f"a count in {events.items!r} is not a non-negative integer"
        elif isinstance(items, list):
            if not all(isinstance(label, str) for label in items):
                return f"field {events.items!r} has an item that is not a string"
        elif not isinstance(items, str):
            return f"field {events.items!r} is not a string, list or object"
        if events.timestamp is not None:
            if events.timestamp not in found:
                return f"missing field {events.timestamp!r}"
            if not _is_time(found[events.timestamp]):
                return f"field {events.timestamp!r} is not a time in ms"
        if self._user is not None:
            if self._user not in found:
                return f"missing field {self._user!r}"
            return f"field {self._user!r} is not a string or a whole number"
        return "not an event"


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= TIME_MAX


def _longest(event: Any) -> int:
    """Return the bytes of the longest label, key or user in an event."""
    items = event.items
    labels = [items] if isinstance(items, str) else list(items)
    key, user = getattr(event, "key", ""), str(getattr(event, "user", ""))
    return max((len(label.encode()) for label in (*labels, key, user)), default=0)
