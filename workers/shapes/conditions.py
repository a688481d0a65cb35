"""Conditions on the fields of an event: which events a histogram looks at.

    where = [{ field = "type", in = ["purchase", "refund"] }, { field = "order.total", min = 10 }]

All conditions of a list must hold. Values are compared as labels are written: `in = [5]` also holds
for "5". A field that is absent or null fulfils `not_in` and `exists = false` and no other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from workers.shapes.paths import parse

ALLOWED = 'a list such as [{ field = "type", in = ["purchase"] }], with in, not_in, min, max or exists'
CONDITIONS_MAX = 20
VALUES_MAX = 1_000
_VALUES = f"a list of 1 to {VALUES_MAX:,} texts, whole numbers or booleans"


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename={"in_": "in"}, omit_defaults=True):
    """One condition; at least one of the others beside `field` is given, and all of them must hold.

    Attributes:
        field: path of one value.
        in_: the value, written as a label, is one of these.
        not_in: it is none of these.
        min, max: it is a number, at least and at most these.
        exists: whether it is there and not null.
    """

    field: str
    in_: tuple[str, ...] | None = None
    not_in: tuple[str, ...] | None = None
    min: float | None = None
    max: float | None = None
    exists: bool | None = None


def conditions(value: object) -> tuple[Condition, ...]:
    """Return the conditions that a settings file states.

    Raises:
        ValueError: one of them is wrong; the message says which, and what is allowed.
    """
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"where = {_shown(value)}: {ALLOWED}")
    if len(value) > CONDITIONS_MAX:
        raise ValueError(f"where: {len(value)} conditions; at most {CONDITIONS_MAX}")
    return tuple(_condition(one, place) for place, one in enumerate(value, 1))


def _condition(values: Mapping[str, Any], place: int) -> Condition:
    where = f"where, condition {place}: "
    known = ("field", "in", "not_in", "min", "max", "exists")
    for name in values:
        if name not in known:
            raise ValueError(f"{where}{name}: unknown name; one of {', '.join(known)}")
    if "field" not in values:
        raise ValueError(f"{where}field is missing: the path of one value, such as type")
    for complaint in _complaints(values):
        raise ValueError(where + complaint)
    asked = {name: value for name, value in values.items() if name not in ("in", "not_in")}
    for name, attribute in (("in", "in_"), ("not_in", "not_in")):
        if name in values:
            asked[attribute] = tuple(dict.fromkeys(map(as_label, values[name])))
    for name in ("min", "max"):
        if name in values:
            asked[name] = float(values[name])
    return Condition(**asked)


def _complaints(values: Mapping[str, Any]) -> Iterator[str]:
    field = values["field"]
    if not isinstance(field, str):
        yield f"field = {_shown(field)}: the path of one value, such as type"
    try:
        path = parse(field)
    except ValueError as error:
        yield f"field = {_shown(field)}: {error}"
        return
    if path.list_at is not None:
        yield f"field = {_shown(field)}: one value is wanted, so no []"
    if len(values) == 1:
        yield "in, not_in, min, max or exists is missing"
    for name in ("in", "not_in"):
        given = values.get(name, [""])
        if not isinstance(given, list) or not 0 < len(given) <= VALUES_MAX or not all(map(_is_label, given)):
            yield f"{name} = {_shown(given)}: {_VALUES}"
    for name in ("min", "max"):
        given = values.get(name, 0)
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
            yield f"{name} = {_shown(given)}: a number"
    if "min" in values and "max" in values and values["min"] > values["max"]:
        yield f"min = {values['min']} is above max = {values['max']}"
    if not isinstance(values.get("exists", True), bool):
        yield f"exists = {_shown(values['exists'])}: true or false"
    if values.get("exists") is False and len(values) > 2:
        yield "exists = false: with no other condition beside it"


def _is_label(value: object) -> bool:
    return isinstance(value, str | bool | int)


def as_label(value: str | bool | int) -> str:
    """Return how a value is written as a label: as JSON writes it, a text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
