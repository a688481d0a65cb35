"""Which field may be the stream key, and which the user."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from aiokafka.partitioner import murmur2

from workers.commands.init import names
from workers.commands.init.fields import Field, Form, many, percent
from workers.commands.init.names import Who
from workers.mechanisms.config.views import RECORD_KEY, as_label

_NEARLY_ALL = 0.99
# More histograms side by side are each too small for their noise, unless there are many events.
KEYS_MAX = 50
_EVENTS_PER_KEY = 5
_USERS_MIN = 10
_PLACED = 0.99
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+|(?:[0-9]{1,3}\.){3}[0-9]{1,3}|[0-9a-fA-F]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*")


# Nearly every event has another value: it names one event.
_UNIQUE = 0.9
_LIKENESS = MappingProxyType(
    {
        Who.PERSON: 40.0,
        Who.ACCOUNT: 30.0,
        Who.DEVICE: 20.0,
        Who.SESSION: 10.0,
    }
)
#: What "user" means in the promise, by what a field identifies.
MEANS = MappingProxyType(
    {
        Who.PERSON: "all events of one person, as far as the field has one value for each person",
        Who.ACCOUNT: "all events of one account: not of a person who has several, and of all who share one",
        Who.DEVICE: "all events of one device or address: not of a person who uses several",
        Who.SESSION: "all events of one session, NOT of one person: who comes back is another user each time",
        None: "all events with one value of this field: of a person only if it names a person",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Named:
    """What may be a stream key or a user.

    Attributes:
        setting: as the settings file has it: a path, or "$key".
        reason: what was found.
        values: how often each was met, as labels are written.
        score: how likely it is.
        partitioner: of a user, by which the records are placed; None: by none that is known.
        who: of a user, what its name says that it identifies.
    """

    setting: str
    reason: str
    values: Counter[str]
    score: float
    partitioner: str | None = None
    who: Who | None = None

    @property
    def means(self) -> str:
        """Return what is protected where this is the user."""
        return MEANS[self.who]


def keys_of(fields: Sequence[Field], record_keys: Sequence[str | None]) -> list[Named]:
    """Return what may be the stream key, the likeliest first: it has few values."""
    found = []
    for field in fields:
        if field.form is not Form.ONE or field.share < _NEARLY_ALL or not field.labels:
            continue
        few = 2 <= field.distinct <= min(KEYS_MAX, field.number_of_values // _EVENTS_PER_KEY)
        named = names.says(field.path, names.KEY)
        other = names.says(field.path, names.MEASURE, names.COUNT, names.SOURCE) and not named
        if not few or other or is_personal(field):
            continue
        if not field.text and not named and not names.says(field.path, names.ID):
            continue
        score = 30.0 * named + 10.0 * field.text - field.distinct / 5 - len(field.path.steps)
        reason = f"{many(field.distinct, 'different value')}, in {percent(field.share)} of the events"
        found.append(Named(setting=str(field.path), reason=reason, values=field.values, score=score))
    values = Counter(key for key in record_keys if key is not None)
    there = values.total() / len(record_keys)
    few = 2 <= len(values) <= min(KEYS_MAX, values.total() // _EVENTS_PER_KEY)
    if there >= _NEARLY_ALL and few and not _same(fields, record_keys):
        reason = f"the record key: {many(len(values), 'different value')}, in {percent(there)} of the events"
        found.append(Named(setting=RECORD_KEY, reason=reason, values=values, score=15.0 - len(values) / 5))
    return sorted(found, key=lambda named: (-named.score, named.setting))


def users_of(
    fields: Sequence[Field], record_keys: Sequence[str | None], partitions: Sequence[int], number: int
) -> list[Named]:
    """Return what may name the user of an event, the likeliest first.

    Args:
        fields: of the sampled records.
        record_keys: of each record, None where it has none or one that is no text.
        partitions: of each record.
        number: partitions of the topic.
    """
    same = {str(field.path) for field in _same(fields, record_keys)}
    found = []
    for field in fields:
        who = names.who(field.path)
        is_key = str(field.path) in same
        if field.form is not Form.ONE or field.share < _NEARLY_ALL or not (field.text or field.whole):
            continue
        if who is Who.EVENT or field.distinct < _USERS_MIN or not (who or is_key):
            continue
        if who is None and (field.distinct > _UNIQUE * field.number_of_values or names.says(field.path, names.KEY, names.ITEM)):
            continue  # a record is often keyed by what it is about, which is no user
        users = {place: as_label(value) for place, value in field.column.items() if isinstance(value, str | int)}
        reason = f"{many(field.distinct, 'different value')}, in {percent(field.share)} of the events"
        reason += ", the same as the record key" if is_key else ""
        partitioner = _partitioner(users, partitions, number)
        score = (0.0 if who is None else _LIKENESS[who]) + 5.0 * (partitioner is not None) - len(field.path.steps) / 10
        # An identifier stays when an address or a name changes.
        score += 3.0 * names.says(field.path, names.ID) - 3.0 * names.says(field.path, names.CHANGING)
        found.append(
            Named(
                setting=str(field.path), reason=reason, values=field.values, score=score, partitioner=partitioner, who=who
            )
        )
    keys = {place: key for place, key in enumerate(record_keys) if key is not None}
    values = Counter(keys.values())
    partitioner = _partitioner(keys, partitions, number)
    repeated = _USERS_MIN <= len(values) <= _UNIQUE * len(keys)
    if len(keys) >= _NEARLY_ALL * len(record_keys) and repeated and not same and partitioner is not None:
        reason = f"the record key, which no field of the events has: {many(len(values), 'different value')}"
        found.append(Named(setting=RECORD_KEY, reason=reason, values=values, score=1.0, partitioner=partitioner))
    return sorted(found, key=lambda named: (-named.score, named.setting))


def is_personal(field: Field) -> bool:
    """Return whether a field identifies somebody, or one event: by its name, or by its values."""
    return names.who(field.path) is not None or _is_address(field)


def _is_address(field: Field) -> bool:
    """Return whether most values are email or IP addresses."""
    return field.text and 2 * sum(_ADDRESS.fullmatch(value) is not None for value in field.values) > field.distinct


def _same(fields: Sequence[Field], record_keys: Sequence[str | None]) -> list[Field]:
    """Return the fields that hold the record key."""
    found = []
    for field in fields:
        if field.form is Form.ONE and field.labels and field.share >= _NEARLY_ALL:
            equal = sum(
                isinstance(value, str | int) and as_label(value) == record_keys[place]
                for place, value in field.column.items()
            )
            if equal >= _NEARLY_ALL * len(record_keys):
                found.append(field)
    return found


def _murmur2(key: bytes) -> int:
    return int(murmur2(key)) & 0x7FFFFFFF


def _partitioner(users: dict[int, str], partitions: Sequence[int], number: int) -> str | None:
    """Return which partitioner places the users where their records are."""
    ways: dict[str, Callable[[bytes], int]] = {"murmur2": _murmur2, "crc32": zlib.crc32}
    for name, place_of in ways.items():
        good = sum(place_of(user.encode(errors="replace")) % number == partitions[place] for place, user in users.items())
        if good >= _PLACED * len(users):
            return name
    return None
