"""Recognise the fields that identify people: by their names, their surroundings and their values.

A name decides where it is known (`names.user_kind`). An identifier or a link inside an object that
is a person, or that holds a person's login or address, belongs to that person. By its values, a
field is personal if it is an address, contains the user of its own event, or goes with a user field
one to one. Published as labels or stream keys, the values of any of these would name people.

Fields of the form ELEMENT lie in the objects of a list. A record's place is its number among those
that were surveyed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from statistics import fmean

from workers.commands.init import names
from workers.commands.init.fields import Field, Form, Kind, field_label
from workers.commands.init.names import UserKind
from workers.mechanisms.config.views import Path

#: A field with fewer values is not taken for the user of an event.
USERS_MIN = 10
_ADDRESS = re.compile(
    r"(?:mailto:)?[^@\s]+@[^@\s]+\.[^@\s]+|.*<[^@\s]+@[^@\s]+\.[^@\s]+>|(?:[0-9]{1,3}\.){3}[0-9]{1,3}|"
    r"[0-9a-fA-F]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*|(?:[0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}|"
    r"(?:\+|00)[1-9][0-9 ()./-]{7,18}[0-9]|[0-9]{3}-[0-9]{2}-[0-9]{4}"
)
_LINK = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|//|/|www\.")
_WORDS = re.compile(r"\w+(?:[.@+-]\w+)*")
# Minimum share of a field's different values that are addresses.
_ADDRESSES = 0.2
# Fields go together one to one if on average at least this share of the further events of a user
# have one value, and of a value one user: one event in twenty may deviate.
_ONE_TO_ONE = 0.85
# One direction suffices, if nearly always, for a field with about as many values as users ...
_DETERMINED = 0.95
_AS_MANY = 0.8
# ... and from users or values that repeat, at least this number of them.
_REPEATED_MIN = 5
# With fewer values for each user, or users for each value, two fields do not go together.
_FEWER = 0.2
# Minimum share of the values that contain their event's user, beyond chance: of links, of others.
_IN_LINKS = 0.1
_IN_TEXTS = 0.8
# Shorter users occur in texts by chance.
_USER_CHARACTERS = 3
# User fields that others are compared with, and records in which a user is searched.
_COMPARED_MAX = 20
_SEARCHED_MAX = 500
_NAMES_OF_VALUES = frozenset(["key", "name", "field", "property", "attribute"])

Values = dict[int, frozenset[str]]  # by the record's place


def mark_people(fields: Sequence[Field], before: Iterable[Field] = ()) -> None:
    """Set `who` and `why` in every field that identifies people or single events.

    `before` are fields of a larger sample, where more may have shown.
    """
    for field in fields:
        field.who = names.user_kind(field.path)
        if field.who is None and _is_address(field):
            field.who = (
                UserKind.DEVICE if _is_network_address(field) else UserKind.PERSON
            )
            field.why = "its values look like addresses or phone numbers"
    _mark_by_container(fields)
    _mark_by_values(fields)
    marked = {
        (field.path, field.form): field for field in before if field.who is not None
    }
    for field in fields:
        known = marked.get((field.path, field.form))
        if field.who is None and known is not None:
            field.who = known.who
            field.why = known.why


def _is_address(field: Field) -> bool:
    """Return whether many values look like e-mail or network addresses, or phone numbers."""
    addresses = sum(_ADDRESS.fullmatch(value) is not None for value in field.values)
    return field.kinds[Kind.TEXT] > 0 and addresses > _ADDRESSES * field.distinct


def _is_network_address(field: Field) -> bool:
    """Return whether addresses are of devices: neither e-mail addresses nor phone numbers.

    The first one decides.
    """
    first = next(iter(field.values))
    return "@" not in first and not first.startswith(("+", "00"))


def _mark_by_container(fields: Iterable[Field]) -> None:
    """Mark identifiers and links in an object of a person, or beside a person's name in it."""
    inside = defaultdict[tuple[str, ...], list[Field]](list)
    for field in fields:
        if len(field.path.steps) > 1:
            inside[field.path.steps[:-1]].append(field)
    for steps, siblings in inside.items():
        kind = names.container_kind(steps)
        if kind is None and _names_a_person(steps, siblings):
            kind = UserKind.PERSON
        if kind is None:
            continue
        for field in siblings:
            if field.who is None and _belongs_to_container(field):
                field.who = kind
                field.why = f"it belongs to {'.'.join(steps)}"


def _names_a_person(steps: tuple[str, ...], fields: Iterable[Field]) -> bool:
    """Return whether an object, no shop and no envelope, has a person's name or address.

    `steps` is its path, `fields` are those in it.
    """
    words = names.words(steps[-1])
    # An object named as something else, such as a session, a shop or a product, is no person.
    has_kind = names.user_kind(Path(steps)) is not None
    is_thing = not names.KEY.union(names.ITEM).isdisjoint(words)
    if names.is_around(steps[-1]) or is_thing or has_kind:
        return False
    # A field such as `email` or `nickname`, which only a person has.
    by_name = (
        field for field in fields if names.kind_of_name(field.path) is UserKind.PERSON
    )
    return any(field.name_has(names.CHANGING) for field in by_name)


def _belongs_to_container(field: Field) -> bool:
    """Return whether a field's name makes it an identifier or link of the object around it."""
    name = field.path.steps[-1]
    if names.only_identifies(name) or field.name_has(names.LINK):
        return True
    # An id of what is grouped by, counted, or shared by several people is not the object's own.
    return field.name_has(names.ID) and not field.name_has(
        names.KEY, names.ITEM, names.TYPE, names.SHARED
    )


def _mark_by_values(fields: Sequence[Field]) -> None:
    """Mark the fields that contain an event's user, or go with a user field one to one."""
    user_fields = [
        field for field in fields if field.who in names.USERS and _may_be_user(field)
    ]
    # Sessions last: a field that goes with a person, too, is the person's.
    user_fields.sort(key=lambda field: (field.who is UserKind.SESSION, -field.records))
    compared = [(field, _values(field)) for field in user_fields[:_COMPARED_MAX]]
    for field in fields:
        if field.who is not None or field.constant:
            continue
        values = _values(field)
        distinct = len(frozenset[str]().union(*values.values()))
        if distinct < 2:
            continue
        for user, users in compared:
            if _about_as_many(field, distinct, user) and _goes_with(
                users, values, field
            ):
                field.who = user.who
                field.why = f"it goes with {user.path}, nearly one to one"
                break
            if field.kinds[Kind.TEXT] and _contains(values, users):
                field.who = user.who
                field.why = f"it contains {user.path}"
                break
    _mark_values_by_name(fields)


def _may_be_user(field: Field) -> bool:
    """Return whether a field has one of many values an event, as a user would be."""
    return field.form is Form.ONE and field.labels and field.distinct >= USERS_MIN


def _about_as_many(field: Field, distinct: int, user: Field) -> bool:
    """Return whether `distinct` values are near enough in number to those of a user field.

    If not, the two cannot go together, and need not be compared event by event.
    """
    # Allow for this: the field that fewer records have has fewer values for that reason alone.
    overlap = min(field.records / user.records, user.records / field.records)
    return _FEWER * overlap < distinct / user.distinct < 1 / (_FEWER * overlap)


def _values(field: Field) -> Values:
    """Return a field's values as texts, by the record's place."""
    if field.form is not Form.ONE:
        return {index: frozenset(values) for index, values in field.elements.items()}
    texts: Values = {}
    for index, value in field.column.items():
        # Fractions are no labels, but places on a map, such as a home, are fractions.
        text = repr(value) if isinstance(value, float | Decimal) else field_label(value)
        if text:
            texts[index] = frozenset((text,))
    return texts


def _goes_with(users: Values, values: Values, field: Field) -> bool:
    """Return whether values go with users nearly one to one, judged by those that repeat.

    `values` are those of `field`, whose name decides in doubt.
    """
    by_user = defaultdict[str, Counter[str]](Counter)
    by_value = defaultdict[str, Counter[str]](Counter)
    for place, values_here in values.items():
        for user in users.get(place, ()):
            for value in values_here:
                by_user[user][value] += 1
                by_value[value][user] += 1
    # Too few occur together: there are USERS_MIN users or more, of whom half must have a value.
    if min(len(by_user), len(by_value)) < USERS_MIN / 2:
        return False
    # Values for each user, on average.
    ratio = len(by_value) / len(by_user)
    if not _FEWER < ratio < 1 / _FEWER:
        return False
    value_of_user = _determines(by_user)
    user_of_value = _determines(by_value)
    if value_of_user is None or user_of_value is None:
        return False
    if min(value_of_user, user_of_value) >= _ONE_TO_ONE:
        return True
    if max(value_of_user, user_of_value) < _DETERMINED:
        return False
    # One decides the other: enough where there are about as many of both.
    if _AS_MANY <= ratio <= 1 / _AS_MANY:
        return True
    # Else there must be more values than users, each of one user: several pictures or tokens, in a
    # field that is named as an id or a link, or has mostly links. Names of what is counted (a
    # product, a song) or grouped by (a shop) are not of users.
    things = names.ITEM - names.LINK - frozenset(("page", "pages", "path"))
    links = sum(_LINK.match(value) is not None for value in by_value)
    identifies = field.name_has(names.ID, names.LINK) or 2 * links > len(by_value)
    return (
        identifies
        and not field.name_has(names.KEY, things)
        and ratio >= _AS_MANY
        and user_of_value >= _DETERMINED
    )


def _determines(groups: Mapping[str, Counter[str]]) -> float | None:
    """Return how surely the group decides the value, from 0 to 1; None: too few groups repeat.

    `groups` has the values of each group's events. Of a group of n events, of which m have the
    commonest value, it is (m - 1) / (n - 1). Every group that repeats has the same weight, so one
    busy user decides nothing.
    """
    repeated = [group for group in groups.values() if group.total() > 1]
    if len(repeated) < _REPEATED_MIN:
        return None
    return fmean((max(group.values()) - 1) / (group.total() - 1) for group in repeated)


def _contains(values: Values, users: Values) -> bool:
    """Return whether many values contain the user of their event, as a word, beyond chance.

    Chance is how many contain the user of another event, half of all events away.
    """
    places = [place for place in values if place in users]
    # Some of them, evenly spread.
    places = places[:: max(len(places) // _SEARCHED_MAX, 1)]
    if len(places) < USERS_MIN:
        return False
    half = len(places) // 2
    links = 0
    with_own = 0
    with_other = 0
    for i, own_place in enumerate(places):
        # For the first half of them the index is negative, so from the end.
        other_place = places[i - half]
        user = next(iter(users[own_place]), "")
        other_user = next(iter(users[other_place]), "")
        if len(user) < _USER_CHARACTERS or len(other_user) < _USER_CHARACTERS:
            continue
        # Of several values, one is enough.
        for value in islice(values[own_place], 1):
            links += _LINK.match(value) is not None
            with_own += _has_word(value, user)
            with_other += user != other_user and _has_word(value, other_user)
    # Only some links lead to the user; other texts must nearly all name the user.
    least = _IN_LINKS if 2 * links > len(places) else _IN_TEXTS
    return with_own - with_other >= least * len(places)


def _has_word(text: str, word: str) -> bool:
    """Return whether a text has a word, not just as a part of another."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        before = text[start - 1 : start]
        after = text[end : end + 1]
        if not (before.isalnum() or after.isalnum()):
            return True
        start = text.find(word, start + 1)
    return False


def _mark_values_by_name(fields: Sequence[Field]) -> None:
    """Mark the values in lists of names and values, where some of the names are of people.

    Such as the `event_params` of Google Analytics, with `ga_session_id` among the keys.
    """
    for key in fields:
        if not is_name_of_values(key, fields):
            continue
        kinds = (names.user_kind(Path((name,))) for name in key.values)
        who = next((kind for kind in kinds if kind is not None), None)
        if who is None:
            continue
        for field in fields:
            if field.who is None and _is_value_beside(field, key):
                field.who = UserKind.TRAIT
                field.why = f"some of {key.path} name people or single events"


def is_name_of_values(key: Field, fields: Iterable[Field]) -> bool:
    """Return whether a field has the names, in a list of names and values.

    In [{"name": "size", "value": 3}] a name is one of a property, not of a person.
    """
    named = key.path.steps[-1].lower() in _NAMES_OF_VALUES
    if not (named and key.form is Form.ELEMENT and key.text):
        return False
    return any(_is_value_beside(field, key) for field in fields)


def _is_value_beside(field: Field, key: Field) -> bool:
    """Return whether a field is the value beside the name `key`, in a list of names and values.

    It may lie deeper, as in {"key": "size", "value": {"int_value": 3}}.
    """
    if field.form is not Form.ELEMENT or field.path.list_steps != key.path.list_steps:
        return False
    depth = len(key.path.steps) - 1
    steps = field.path.steps
    same_object = steps[:depth] == key.path.steps[:-1] and len(steps) > depth
    return same_object and "value" in names.words(steps[depth])
