"""Events: from the bytes of a record to (stream key, items, time), or to a reason why not.

The whole of a batch is decoded by msgspec into typed objects; a record that fails is looked at again, alone, to name what is wrong
with it. Nothing here keeps a label or a key in a message: reasons name fields of the configuration only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.bounding import Items
from workers.mechanisms.config import LABEL_BYTES_MAX
from workers.mechanisms.frozen import Frozen
from workers.settings import ALL_KEYS, ALL_STREAM_KEY, RECORD_KEY, EventsSettings

TIME_MAX = 2**53
_Items = str | list[str] | dict[str, Annotated[int, msgspec.Meta(ge=0)]]
_generic = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is no event: its place in the batch and a reason from a fixed set."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Events:
    """The valid events of a batch, in order, as parallel columns."""

    keys: Sequence[str]
    items: Sequence[Items]
    times: NDArray[np.int64]
    users: Sequence[str] | None = None


class EventReader(Frozen):
    """Reads events as `[events]` in the settings says; all source partitions of a worker share it."""

    def __init__(
        self, events: EventsSettings, declared_keys: frozenset[str] | None, user_field: str | None = None
    ) -> None:
        """
        Args:
            events: names of the JSON fields, limits.
            declared_keys: the stream keys that any histogram serves; None where every key may be named in public.
            user_field: what names an event's user (`Settings.user_field`); None where users are not looked at.
        """
        self._user = user_field
        self._events = events
        self._declared = declared_keys
        self._short = min(LABEL_BYTES_MAX, events.max_bytes)
        self._constant_key = events.key == ALL_KEYS
        self._record_key = events.key == RECORD_KEY
        self._has_time = events.timestamp is not None
        fields: list[tuple[str, Any]] = [("items", _Items)]
        rename = {"items": events.items}
        if not (self._constant_key or self._record_key):
            fields.append(("key", str))
            rename["key"] = events.key
        if events.timestamp is not None:
            fields.append(("time", Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX)]))
            rename["time"] = events.timestamp
        if user_field is not None and user_field != RECORD_KEY:
            fields.append(("user", str | int))
            rename["user"] = user_field
        kind = msgspec.defstruct("Event", fields, rename=rename, gc=False, frozen=True)
        self._size: Callable[[Any], int] = len  # raises for None, which is then looked at alone
        self._decode: Callable[[Any], Any] = msgspec.json.Decoder(kind).decode

    def read(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        timestamps: Sequence[int],
        *,
        latest_ms: int | None,
        here: Callable[[str], bool] | None = None,
    ) -> tuple[Events, list[Reject]]:
        """Decode a batch.

        Args:
            values: the records' values.
            keys: the records' keys.
            timestamps: the records' own times, ms.
            latest_ms: events dated later are rejected: they must not close ticks early. None: no limit.
            here: whether a user's records belong in this source partition; None: they all do.

        Returns:
            The valid events, and a reject for each other record.
        """
        rejects: list[Reject] = []
        index: list[int] | None = None  # of the decoded ones in the batch; None: all of them
        try:
            # A record no longer than a label may be cannot hold one that is too long, nor be too long itself.
            if max(map(self._size, values), default=0) > self._short:
                raise ValueError
            decoded = list(map(self._decode, values))
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
            decoded, index = self._one_by_one(values, rejects)
        times = self._times(decoded, timestamps, index)
        names = self._keys(decoded, keys, index)
        users = self._users(decoded, keys, index)
        if (
            None in names
            or None in users
            or (here is not None and not all(map(here, cast(list[str], users))))
            or (latest_ms is not None and len(times) and int(times.max()) > latest_ms)
            or (self._declared is not None and not self._declared.issuperset(names))
        ):
            places = index if index is not None else range(len(values))
            good: list[int] = []
            for i, place in enumerate(places):
                name = names[i]
                user = users[i] if users else ""
                if name is None or user is None:
                    rejects.append(Reject(place, "record key is no label"))
                elif here is not None and not here(user):
                    rejects.append(Reject(place, "user's records belong in another partition"))
                elif latest_ms is not None and times[i] > latest_ms:
                    rejects.append(Reject(place, "dated too far ahead"))
                elif self._declared is not None and name not in self._declared:
                    rejects.append(Reject(place, "key not declared"))
                else:
                    good.append(i)
            decoded, times, names = [decoded[i] for i in good], times[good], [names[i] for i in good]
            users = [users[i] for i in good] if users else users
        of_users = None if self._user is None else cast(list[str], users)
        return Events(cast(list[str], names), [e.items for e in decoded], times, of_users), rejects

    def _users(self, decoded: Sequence[Any], keys: Sequence[bytes | None], index: list[int] | None) -> list[str | None]:
        """Return each event's user; nothing where users are not looked at."""
        if self._user is None:
            return []
        if self._user != RECORD_KEY:
            return [str(e.user) for e in decoded]
        return [_label(keys[i]) for i in (index if index is not None else range(len(keys)))]

    def _times(self, decoded: Sequence[Any], timestamps: Sequence[int], index: list[int] | None) -> NDArray[np.int64]:
        if self._has_time:
            return np.array([e.time for e in decoded], dtype=np.int64)
        times = np.array(timestamps, dtype=np.int64)
        return times if index is None else times[index]

    def _keys(self, decoded: Sequence[Any], keys: Sequence[bytes | None], index: list[int] | None) -> list[str | None]:
        if self._constant_key:
            return [ALL_STREAM_KEY] * len(decoded)
        if not self._record_key:
            return [e.key for e in decoded]
        return [_label(keys[i]) for i in (index if index is not None else range(len(keys)))]

    def _one_by_one(self, values: Sequence[bytes | None], rejects: list[Reject]) -> tuple[list[Any], list[int]]:
        decoded, index = [], []
        for i, value in enumerate(values):
            reason = None
            if value is None:
                reason = "no value"
            elif len(value) > self._events.max_bytes:
                reason = "record too large"
            else:
                try:
                    event = self._decode(value)
                except (msgspec.DecodeError, ValueError, RecursionError):
                    reason = self._why(value)
                else:
                    if len(value) > LABEL_BYTES_MAX and _longest(event) > LABEL_BYTES_MAX:
                        reason = "label too long"
            if reason is None:
                decoded.append(event)
                index.append(i)
            else:
                rejects.append(Reject(i, reason))
        return decoded, index

    def _why(self, value: bytes) -> str:
        """Why a value is no event; the fields are looked at in the order of the settings."""
        try:
            found = _generic.decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return "not JSON"
        if not isinstance(found, dict):
            return "not a JSON object"
        events = self._events
        if not (self._constant_key or self._record_key):
            if events.key not in found:
                return f"missing field {events.key!r}"
            if not isinstance(found[events.key], str):
                return f"field {events.key!r} is not a string"
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
        if self._user is not None and self._user != RECORD_KEY:
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


def _label(key: bytes | None) -> str | None:
    if key is None or len(key) > LABEL_BYTES_MAX:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
