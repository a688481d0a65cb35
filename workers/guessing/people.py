"""Which field may be the stream key, and which the user."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiokafka.partitioner import murmur2

from workers.guessing import names
from workers.guessing.fields import Field, Form
from workers.guessing.words import many, percent
from workers.shapes.conditions import as_label
from workers.shapes.views import RECORD_KEY

_NEARLY_ALL = 0.99
# More histograms side by side are each too small for their noise, unless there are many events.
KEYS_MAX = 50
_EVENTS_PER_KEY = 5
_USERS_MIN = 10
_PLACED = 0.99


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Named:
    """What may be a stream key or a user.

    Attributes:
        setting: as the settings file has it: a path, or "$key".
        reason: what was found.
        values: how often each was met, as labels are written.
        score: how likely it is.
        partitioner: of a user, by which the records are placed; None: by none that is known.
    """

    setting: str
    reason: str
    values: Counter[str]
    score: float
    partitioner: str | None = None


def keys_of(fields: Sequence[Field], record_keys: Sequence[str | None]) -> list[Named]:
    """Return what may be the stream key, the likeliest first: it has few values."""
    found = []
    for field in fields:
        if field.form is not Form.ONE or field.share < _NEARLY_ALL or not field.labels:
            continue
        few = 2 <= field.distinct <= min(KEYS_MAX, field.number_of_values // _EVENTS_PER_KEY)
        named = names.says(field.path, names.KEY)
        other = names.says(field.path, names.MEASURE, names.COUNT, names.SOURCE) and not named
        if not few or other or names.says(field.path, names.USER):
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
        named = names.says(field.path, names.USER)
        is_key = str(field.path) in same
        if field.form is not Form.ONE or field.share < _NEARLY_ALL or not (field.text or field.whole):
            continue
        if field.distinct < _USERS_MIN or not (named or is_key):
            continue
        users = {place: as_label(value) for place, value in field.column.items() if isinstance(value, str | int)}
        reason = f"{many(field.distinct, 'different value')}, in {percent(field.share)} of the events"
        reason += ", the same as the record key" if is_key else ""
        partitioner = _partitioner(users, partitions, number)
        score = 20.0 * named + 10.0 * is_key + 20.0 * (partitioner is not None) - len(field.path.steps)
        found.append(
            Named(setting=str(field.path), reason=reason, values=field.values, score=score, partitioner=partitioner)
        )
    keys = {place: key for place, key in enumerate(record_keys) if key is not None}
    values = Counter(keys.values())
    if len(keys) >= _NEARLY_ALL * len(record_keys) and len(values) >= _USERS_MIN and not same:
        reason = f"the record key: {many(len(values), 'different value')}"
        partitioner = _partitioner(keys, partitions, number)
        found.append(
            Named(setting=RECORD_KEY, reason=reason, values=values, score=5.0 + 20.0 * (partitioner is not None), partitioner=partitioner)
        )
    return sorted(found, key=lambda named: (-named.score, named.setting))


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
