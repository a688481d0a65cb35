"""What a histogram looks at in an event, and what all histograms of a worker look at together.

    View      one histogram's stream key, items, counts, conditions and buckets
    Shape     the views of a worker, each once, with the fields that all events have

Histograms that agree share a view. Settings that no event could ever fulfil are refused here, with
the place of the mistake; and a path through the items of another view, which scanners open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from workers.shapes.conditions import Condition
from workers.shapes.paths import Path, parse

ALL_KEYS = "$all"
RECORD_KEY = "$key"
UNITS = ("ms", "s", "us", "ns", "iso")


@dataclass(frozen=True, slots=True)
class View:
    """What one histogram looks at.

    Attributes:
        key: path of the stream key; "$key": the record key; "$all": there is one for all events.
        items: path of a label, a list of labels or an object of counts; with `[]`, of a label in
            each element.
        count: path of how often an event brings an item; None: once, or as an object says.
        where: conditions that an event must fulfil.
        edges: of the buckets that a number at `items` is put into; None: items are labels.
    """

    key: Path | str
    items: Path
    count: Path | None = None
    where: tuple[Condition, ...] = ()
    edges: tuple[float, ...] | None = None

    def paths(self) -> dict[str, Path]:
        """Return the paths that an event must have, by the names of their settings."""
        named = {"key": self.key, "items": self.items, "count": self.count}
        return {name: path for name, path in named.items() if isinstance(path, Path)}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a worker reads of an event.

    Attributes:
        views: by name, as lanes have it.
        time: path of the time; None: the record's own.
        unit: of the time, one of UNITS.
        user: path of the user, or "$key"; None: users are not looked at.
        empty: whether an event whose items are absent or null has none, or is rejected.
    """

    views: Mapping[str, View]
    time: Path | None = None
    unit: str = "ms"
    user: Path | str | None = None
    empty: bool = False


def path_complaints(fields: Mapping[str, str | None]) -> Iterator[str]:
    """Yield which settings are no paths, and at which character."""
    for name, text in fields.items():
        if text is not None and text not in (RECORD_KEY, ALL_KEYS):
            try:
                path = parse(text)
            except ValueError as error:
                yield f"{name} = {json.dumps(text, ensure_ascii=False)}: {error}"
            else:
                if path.list_at is not None and name not in ("items", "count"):
                    yield f"{name} = {json.dumps(text, ensure_ascii=False)}: one value is wanted, so no []"


def field(text: str | None) -> Path | str | None:
    """Return the path of a field that a setting names, "$key" and "$all" as they are."""
    return text if text is None or text in (RECORD_KEY, ALL_KEYS) else parse(text)


def complaints(shape: Shape) -> Iterator[tuple[str, str]]:
    """Yield what no event could fulfil, as (name of the view, what is wrong)."""
    common = {"timestamp": shape.time, "user": shape.user}
    fixed = {name: path for name, path in common.items() if isinstance(path, Path)}
    opened: dict[tuple[str, ...], bool] = {}
    for name, view in shape.views.items():
        yield from ((name, text) for text in _of_view(view, fixed))
        # What one view opens as a list or an object of items, another cannot walk through.
        for path in view.paths().values():
            for step in range(1, len(path.steps)):
                opened[path.steps[:step]] = True
    for name, view in shape.views.items():
        if view.items.list_at in (None, len(view.items.steps)) and view.items.steps in opened:
            yield name, f'items = "{view.items}": another path goes through it'


def _of_view(view: View, fixed: Mapping[str, Path]) -> Iterator[str]:
    named = {**view.paths(), **fixed}
    for (name, path), (other, second) in combinations(named.items(), 2):
        if path.steps == second.steps:
            yield f'{other} = "{second}": must be a field other than {name}\'s'
        elif _within(path, second):
            yield f'{other} = "{second}": it is inside {name} = "{path}", so no event has both'
        elif _within(second, path):
            yield f'{name} = "{path}": it is inside {other} = "{second}", so no event has both'
    lists = {path.steps[: path.list_at] for path in named.values() if path.list_at is not None}
    for name, path in named.items():
        for step in range(1, len(path.steps) + 1):
            if path.steps[:step] in lists and path.list_at is None:
                yield f'{name} = "{path}": "{Path(path.steps[:step])}" is a list for another path'
                break
    if view.count is not None and view.count.list_steps != view.items.list_steps:
        yield f'count = "{view.count}": must be in the same list as items = "{view.items}", or both without []'
    if view.count is not None and view.items.list_at == len(view.items.steps):
        yield f'count = "{view.count}": items = "{view.items}" are the elements themselves; nothing stands beside one'
    for condition in view.where:
        yield from _of_condition(view, condition, named, lists)


def _of_condition(
    view: View, condition: Condition, named: Mapping[str, Path], lists: set[tuple[str, ...]]
) -> Iterator[str]:
    asked = parse(condition.field)
    value = condition.in_ is not None or condition.min is not None or condition.max is not None
    if not value and condition.exists is not True:
        return  # what is not there fulfils it
    if value and any(_within(asked, path) for path in named.values()):
        yield f'where: field = "{asked}" is an object for another path, so it never has such a value'
    for step in range(1, len(asked.steps) + value):
        if asked.steps[:step] in lists:
            yield f'where: field = "{asked}": "{Path(asked.steps[:step])}" is a list for another path'
            break
    counts = view.count is None and view.edges is None and view.items.list_at is None
    for name, path in named.items():
        # Items may be an object of counts, and a condition ask about one of them.
        if _within(path, asked) and not (name == "items" and counts and len(asked.steps) == len(path.steps) + 1):
            yield f'where: field = "{asked}" is inside {name} = "{path}", so no event has both'


def _within(outer: Path, inner: Path) -> bool:
    """Return whether a path goes through the value that another one is."""
    return len(outer.steps) < len(inner.steps) and inner.steps[: len(outer.steps)] == outer.steps
