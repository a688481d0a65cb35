"""Views: the fields of an event that a histogram reads, and the combined shape for a worker.

Histograms with equal settings share a view. This module rejects, with the location, settings that
no event can satisfy and paths through another view's items, which scanners open.

Paths: `order.lines[].sku` has the steps order, lines, sku. `[]`, at most once in a path, means
every element of the list `lines`. A name with a dot, a bracket, a quote, white space or a leading $
is quoted as in JSON: `order."shop.name"`, and so is the name `*` or one with a leading slash, which
other notations use for lists and paths. Conditions select the events of a histogram; all must
hold:

    where = [{ field = "type", in = ["purchase", "refund"] }, { field = "order.total", min = 10 }]

Values are compared in label form: `in = [5]` also matches "5". An absent or null field satisfies
only `not_in` and `exists = false`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any, overload

import msgspec

from workers.mechanisms.config.checked import display, is_finite
from workers.mechanisms.config.sums import Sum

# The compiled readers cannot walk deeper.
STEPS_MAX = 16
CHARACTERS_MAX = 1_000
SYNTAX = 'the name of a field, or a path such as order.lines[].sku (a name with a dot in quotes: order."shop.name")'

_PLAIN = re.compile(r"(?!\*(?:[.\[]|$))[^.\[\]\"'\s$/][^.\[\]\"'\s]*")
_QUOTED = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Path:
    """A place in an event: `steps` are names, from the outermost in.

    `list_at` is the number of names before `[]`, None if there is no list.
    """

    steps: tuple[str, ...]
    list_at: int | None = None

    def __str__(self) -> str:
        """Return the path as a settings file writes it."""
        parts = [
            name if _PLAIN.fullmatch(name) else _quoted(name) for name in self.steps
        ]
        if self.list_at is not None:
            parts[self.list_at - 1] += "[]"
        return ".".join(parts)

    @property
    def list_steps(self) -> tuple[str, ...] | None:
        return None if self.list_at is None else self.steps[: self.list_at]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parse(text: str) -> Path:
    """Parse a path; the message of a `ValueError` states the character position."""
    if len(text) > CHARACTERS_MAX:
        raise ValueError(f"at most {CHARACTERS_MAX:,} characters")
    steps: list[str] = []
    list_at: int | None = None
    position = 0
    while True:
        name, position = _name(text, position)
        steps.append(name)
        while text.startswith("[]", position):
            if list_at is not None:
                raise _wrong(text, position, "a second []; a path has one at most")
            list_at = len(steps)
            position += 2
        if position == len(text):
            break
        if text[position] != ".":
            raise _wrong(
                text, position, "a name with such a character must be in quotes"
            )
        position += 1
    if len(steps) > STEPS_MAX:
        raise ValueError(f"{len(steps)} names; at most {STEPS_MAX}")
    return Path(tuple(steps), list_at)


def _name(text: str, position: int) -> tuple[str, int]:
    """Parse the name that begins at a position; return it, and the position behind it."""
    if text.startswith('"', position):
        match = _QUOTED.match(text, position)
        try:
            name = json.loads(match.group()) if match else ""
            name.encode()
        except ValueError:
            # an escape that JSON does not know, or half a surrogate pair
            match = None
        if match is None:
            why = "a name in quotes that does not end, or is not as JSON writes it"
            raise _wrong(text, position, why)
        if not name:
            raise _wrong(text, position, "an empty name")
        return name, match.end()
    match = _PLAIN.match(text, position)
    if match is None:
        missing = position == len(text) or text[position] in ".["
        raise _wrong(
            text, position, "a name is missing" if missing else "no name begins so"
        )
    return match.group(), match.end()


def _wrong(text: str, at: int, why: str) -> ValueError:
    """Return the error about a position in a path, to raise."""
    place = "at its end" if at == len(text) else f"at character {at + 1}, {text[at]!r}"
    return ValueError(f"{place}: {why}")


# Elements of a list in other notations: one of them, a range, all, or those that pass a filter.
_ELEMENTS = re.compile(
    r"\.?\[\s*(?:\*|-?[0-9]+|[-0-9]*:[-0-9:]*|\?[^\]]*)?\s*\]|\.\*(?=[.\[]|$)"
)
_NAME_IN_BRACKETS = re.compile(r"""\[\s*(?:'([^'\\]+)'|"([^"\\]+)")\s*\]""")
_DOLLAR_NAME = re.compile(r"""(?<![^.])\$[^.\[\]"'\s]+""")


def meant(text: str) -> Path | None:
    """Return the path that a JSONPath, a JSON pointer or a filter of jq most likely means.

    None if there is no such path, or it is the text itself.
    """
    if text.startswith("/"):
        ours = _from_pointer(text)
    else:
        # $.a and .a become a. This comes first, as any $ that is left is part of a name.
        ours = re.sub(r"^[$@]?\.(?=[^.])|^[$@](?=\[)", "", text)
        # a['b'] becomes a.b; all other brackets, as in a[0] or a[*], mean a list.
        ours = _NAME_IN_BRACKETS.sub(
            lambda found: f".{_quoted(found[1] or found[2])}", ours
        )
        ours = _ELEMENTS.sub("[]", ours)
        # a[]b becomes a[].b, and names that begin with $ are quoted.
        ours = re.sub(r"\[\](?=[^.\[])", "[].", ours)
        ours = _DOLLAR_NAME.sub(lambda found: _quoted(found[0]), ours).removeprefix(".")
    try:
        path = parse(ours)
    except ValueError:
        return None
    return None if str(path) == text else path


def _from_pointer(text: str) -> str:
    """Return a JSON pointer in our notation; a number is taken as an element of a list."""
    parts: list[str] = []
    for name in text[1:].split("/"):
        if parts and (name.isdecimal() or name in ("*", "-")):
            parts[-1] += "[]"
        else:
            parts.append(_quoted(name.replace("~1", "/").replace("~0", "~")))
    return ".".join(parts)


def _hint(text: str, *, lists: bool) -> str:
    """Return the end of an error about a path: the one that was most likely meant, if any.

    `lists`: whether the setting may name a value in each element of a list.
    """
    path = meant(text)
    if path is None:
        return ""
    if path.list_at is not None and not lists:
        return "; one value is wanted, not one in a list"
    every = " (every element of the list)" if path.list_at is not None else ""
    return f"; did you mean {path}{every}?"


ALLOWED = 'a list such as [{ field = "type", in = ["purchase"] }], with in, not_in, min, max or exists'
CONDITIONS_MAX = 20
VALUES_MAX = 1_000
_VALUES = f"a list of 1 to {VALUES_MAX:,} texts, whole numbers or booleans"


class Condition(
    msgspec.Struct, frozen=True, kw_only=True, rename={"in_": "in"}, omit_defaults=True
):
    """Tests on one value, all required; `min` and `max` are inclusive, `exists` means not null.

    Tests that are None are skipped.
    """

    field: str
    in_: tuple[str, ...] | None = None
    not_in: tuple[str, ...] | None = None
    min: float | None = None
    max: float | None = None
    exists: bool | None = None


def conditions(value: object) -> tuple[Condition, ...]:
    """Return the conditions of a settings file, or raise `ValueError` with the allowed values."""
    if not isinstance(value, list) or not all(
        isinstance(one, Mapping) for one in value
    ):
        raise ValueError(f"where = {display(value)}: {ALLOWED}")
    if len(value) > CONDITIONS_MAX:
        raise ValueError(f"where: {len(value)} conditions; at most {CONDITIONS_MAX}")
    return tuple(_condition(one, place) for place, one in enumerate(value, 1))


def _condition(values: Mapping[str, Any], place: int) -> Condition:
    """Return one condition, or raise `ValueError` that names its place."""
    where = f"where, condition {place}: "
    known = ("field", "in", "not_in", "min", "max", "exists")
    for name in values:
        if name not in known:
            raise ValueError(f"{where}{name}: unknown name; one of {', '.join(known)}")
    if "field" not in values:
        raise ValueError(
            f"{where}field is missing: the path of one value, such as type"
        )
    for complaint in _complaints(values):
        raise ValueError(where + complaint)
    # By attribute of `Condition`: labels each once, numbers as floats.
    fields = dict(values)
    for name in values:
        if name in ("in", "not_in"):
            labels = tuple(dict.fromkeys(map(as_label, fields.pop(name))))
            fields["in_" if name == "in" else name] = labels
        elif name in ("min", "max"):
            fields[name] = float(fields[name])
    return Condition(**fields)


def _complaints(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a condition of a settings file.

    The caller raises the first one, so later checks may rely on earlier ones.
    """
    field = values["field"]
    if not isinstance(field, str):
        yield f"field = {display(field)}: the path of one value, such as type"
    try:
        path = parse(field)
    except ValueError as error:
        yield f"field = {display(field)}: {error}{_hint(field, lists=False)}"
        return
    if path.list_at is not None:
        yield f"field = {display(field)}: one value is wanted, so no []"
    if len(values) == 1:
        yield "in, not_in, min, max or exists is missing"
    for name, (fits, allowed) in _TESTS.items():
        if name in values and not fits(values[name]):
            yield f"{name} = {display(values[name])}: {allowed}"
    if "min" in values and "max" in values and values["min"] > values["max"]:
        yield f"min = {values['min']} is above max = {values['max']}"
    if not isinstance(values.get("exists", True), bool):
        yield f"exists = {display(values['exists'])}: true or false"
    if values.get("exists") is False and len(values) > 2:
        yield "exists = false: with no other condition beside it"


def _are_labels(values: Any) -> bool:
    if not isinstance(values, list) or not 0 < len(values) <= VALUES_MAX:
        return False
    return all(isinstance(value, str | bool | int) for value in values)


# Of the values in a condition: what fits, and how an error says it.
_TESTS: Mapping[str, tuple[Callable[[Any], bool], str]] = MappingProxyType(
    {
        "in": (_are_labels, _VALUES),
        "not_in": (_are_labels, _VALUES),
        "min": (is_finite, "a number"),
        "max": (is_finite, "a number"),
    }
)


def as_label(value: str | bool | int) -> str:
    """Return a value in label form: its JSON, but strings without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


ALL_KEYS = "$all"
RECORD_KEY = "$key"
UNITS = ("ms", "s", "us", "ns", "iso")


@dataclass(frozen=True, slots=True)
class View:
    """The fields of an event that a histogram reads, and the events that it includes (`where`)."""

    # Of the stream key; "$key": the record key; "$all": one key for all events.
    key: Path | str
    # Of a label, a list of labels or an object of counts; with `[]`, of a label in each element.
    items: Path
    # Of an item's count in an event; None: once, or as an object says.
    count: Path | None = None
    where: tuple[Condition, ...] = ()
    # Of buckets for a number at `items`; None: labels.
    edges: tuple[float, ...] | None = None
    # Numbers to add up: an item's amount is its first number, in steps; None: its count.
    sum: Sum | None = None

    @property
    def number(self) -> Path | None:
        """The number's path, beside each item in its list or one for the event."""
        return None if self.sum is None else parse(self.sum.field)

    def paths(self) -> dict[str, Path]:
        """Return the paths to fields of an event, by the settings that name them."""
        named = {
            "key": self.key,
            "items": self.items,
            "count": self.count,
            "sum.field": self.number,
        }
        return {name: path for name, path in named.items() if isinstance(path, Path)}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a worker reads of an event: its views by name (as in lanes), time and user.

    `time` None is the record's own, and `unit` one of UNITS; `user` may be "$key", and with None
    users are not read. `empty`: whether absent or null items count as none; if not, the event is
    rejected.
    """

    views: Mapping[str, View]
    time: Path | None = None
    unit: str = "ms"
    user: Path | str | None = None
    empty: bool = False


# Settings that may name a value in each element of a list.
_LISTED = ("items", "count", "sum.field")


def path_complaints(fields: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what is wrong with paths as the settings have them, by setting."""
    for name, text in fields.items():
        if text is not None and text not in (RECORD_KEY, ALL_KEYS):
            try:
                path = parse(text)
            except ValueError as error:
                hint = _hint(text, lists=name in _LISTED)
                yield f"{name} = {_quoted(text)}: {error}{hint}"
            else:
                if path.list_at is not None and name not in _LISTED:
                    yield f"{name} = {_quoted(text)}: one value is wanted, so no []"


@overload
def parse_field(text: str) -> Path | str: ...
@overload
def parse_field(text: None) -> None: ...
def parse_field(text: str | None) -> Path | str | None:
    """Return the path that a setting names; None, "$key" and "$all" stay as they are."""
    return text if text is None or text in (RECORD_KEY, ALL_KEYS) else parse(text)


def complaints(shape: Shape) -> Iterator[tuple[str, str]]:
    """Yield settings that no event could satisfy, as (view name, error)."""
    common = {"timestamp": shape.time, "user": shape.user}
    fixed = {name: path for name, path in common.items() if isinstance(path, Path)}
    # Places that some path leads through, so that they are objects or lists.
    opened: set[tuple[str, ...]] = set()
    for name, view in shape.views.items():
        yield from ((name, text) for text in _view_complaints(view, fixed))
        for path in view.paths().values():
            opened.update(path.steps[:step] for step in range(1, len(path.steps)))
    # Items that are whole values, not fields in elements of a list, must not be among these.
    for name, view in shape.views.items():
        if (
            view.items.list_at in (None, len(view.items.steps))
            and view.items.steps in opened
        ):
            yield name, f'items = "{view.items}": another path goes through it'


def _view_complaints(view: View, fixed: Mapping[str, Path]) -> Iterator[str]:
    """Yield fields of a view that no event can have together; `fixed` are time and user."""
    named = {**view.paths(), **fixed}
    # A field is one value: no two settings name the same, or one inside the other.
    for (name, path), (other, second) in combinations(named.items(), 2):
        if path.steps == second.steps:
            yield f'{other} = "{second}": must be a field other than {name}\'s'
        elif _within(path, second):
            yield f'{other} = "{second}": it is inside {name} = "{path}", so no event has both'
        elif _within(second, path):
            yield f'{name} = "{path}": it is inside {other} = "{second}", so no event has both'
    lists = {
        path.steps[: path.list_at]
        for path in named.values()
        if path.list_at is not None
    }
    # Where one path has a list, with [], no other may end or pass there without [].
    for name, path in named.items():
        steps = _first_list(path, len(path.steps), lists)
        if steps and path.list_at is None:
            yield f'{name} = "{path}": "{Path(steps)}" is a list for another path'
    # Fields beside the items of a list: setting, path, and what else the error suggests. A number
    # without a list is one for the whole event; a count never is.
    number = view.number
    beside_items = (
        ("count", view.count, "both without []"),
        ("sum.field", number if number and number.list_at else None, "without []"),
    )
    for name, beside, otherwise in beside_items:
        if beside is not None and beside.list_steps != view.items.list_steps:
            yield f'{name} = "{beside}": must be in the same list as items = "{view.items}", or {otherwise}'
        elif beside is not None and view.items.list_at == len(view.items.steps):
            yield f'{name} = "{beside}": items = "{view.items}" are the elements themselves; nothing stands beside one'
    for condition in view.where:
        yield from _condition_complaints(view, condition, named, lists)


def _condition_complaints(
    view: View,
    condition: Condition,
    named: Mapping[str, Path],
    lists: set[tuple[str, ...]],
) -> Iterator[str]:
    """Yield why no event could meet a condition and have the fields of the view.

    `named` are the view's paths by setting, `lists` the places that they take for lists.
    """
    tested = parse(condition.field)
    needs_value = (
        condition.in_ is not None
        or condition.min is not None
        or condition.max is not None
    )
    if not needs_value and condition.exists is not True:
        return  # an absent field satisfies it
    if needs_value and any(_within(tested, path) for path in named.values()):
        yield f'where: field = "{tested}" is an object for another path, so it never has such a value'
    # A list at the end of the path has no value to compare, but it exists.
    most = len(tested.steps) if needs_value else len(tested.steps) - 1
    if steps := _first_list(tested, most, lists):
        yield f'where: field = "{tested}": "{Path(steps)}" is a list for another path'
    may_be_counts = (
        view.count is None and view.edges is None and view.items.list_at is None
    )
    for name, path in named.items():
        # In an object of counts, a condition may test one of them.
        of_item = (
            name == "items"
            and may_be_counts
            and len(tested.steps) == len(path.steps) + 1
        )
        if _within(path, tested) and not of_item:
            yield f'where: field = "{tested}" is inside {name} = "{path}", so no event has both'


def _first_list(path: Path, most: int, lists: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the shortest beginning of a path, of 1 to `most` steps, that is a list, else ()."""
    starts = (path.steps[:step] for step in range(1, most + 1))
    return next((start for start in starts if start in lists), ())


def _within(outer: Path, inner: Path) -> bool:
    """Return whether `inner` leads through the value at `outer`."""
    return (
        len(outer.steps) < len(inner.steps)
        and inner.steps[: len(outer.steps)] == outer.steps
    )
