"""The paths that records have, and which of them are near one that they do not have."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping

from workers.mechanisms.config.views import CHARACTERS_MAX, STEPS_MAX, Path, Shape, parse

# Of one object: an object of counts has a name for each item.
NAMES_MAX = 200
# Of a list, from its beginning.
ELEMENTS_MAX = 20
# Of all records together.
PATHS_MAX = 5_000
NEAREST = 3
_NEAR = 0.6
# The last name alone says less than the whole path, and short names are alike by chance.
_LAST_NAME, _NEAR_LAST = 0.95, 0.75


class Fields:
    """How many records have each path. Its repr shows none: names of fields may be data."""

    def __init__(self) -> None:
        self._met: Counter[str] = Counter()
        self._records = 0

    def __repr__(self) -> str:
        return f"Fields({len(self._met)})"

    def add(self, record: object) -> None:
        """Add the paths of one decoded record."""
        self._records += 1
        for path in set(_paths(record, (), None)):
            text = str(path)
            if text in self._met or (len(self._met) < PATHS_MAX and len(text) <= CHARACTERS_MAX):
                self._met[text] += 1

    def has(self, path: Path) -> bool:
        """Return whether some record has something at a path."""
        return str(path) in self._met

    def nearest(self, wanted: Path) -> list[str]:
        """Return the paths that are most like one, the best first; itself is none of them."""
        scores = {text: _likeness(wanted, text) for text in self._met if text != str(wanted)}
        good = sorted((text for text, score in scores.items() if score >= _NEAR), key=lambda text: (-scores[text], text))
        return good[:NEAREST]

    def share(self, path: str) -> float:
        """Return the share of the records that have a path."""
        return self._met[path] / self._records if self._records else 0.0


def wanted_paths(shape: Shape) -> dict[str, Path]:
    """Return every path that is looked at, with the name of its setting behind."""
    found: dict[str, Path] = {}
    for view in shape.views.values():
        for name, path in view.paths().items():
            found[f"{name} {path}"] = path
        for condition in view.where:
            found[f"where {condition.field}"] = parse(condition.field)
    for name, path in (("timestamp", shape.time), ("user", shape.user)):
        if isinstance(path, Path):
            found[f"{name} {path}"] = path
    return found


def _paths(value: object, steps: tuple[str, ...], list_at: int | None) -> Iterator[Path]:
    if steps:
        yield Path(steps, list_at)
    if isinstance(value, Mapping) and len(steps) < STEPS_MAX:
        for name in list(value)[:NAMES_MAX]:
            if isinstance(name, str) and name:
                yield from _paths(value[name], (*steps, name), list_at)
    elif isinstance(value, list) and steps and list_at is None:
        for element in value[:ELEMENTS_MAX]:
            yield from _paths(element, steps, len(steps))


def _likeness(wanted: Path, text: str) -> float:
    """Return how like a path is to the wanted one, from 0 to 1."""
    whole = _ratio(str(wanted), text)
    last = _ratio(wanted.steps[-1], parse(text).steps[-1])
    return max(whole, _LAST_NAME * last if last >= _NEAR_LAST else 0.0)


def _ratio(one: str, other: str) -> float:
    one, other = (text.casefold().replace("_", "").replace("-", "") for text in (one, other))
    matcher = difflib.SequenceMatcher(None, one, other)
    # Upper bounds that take little time; the ratio itself is quadratic in the length.
    likely = min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= _NEAR
    return matcher.ratio() if likely else 0.0
