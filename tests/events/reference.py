"""Reference reader over `json.loads`, from the settings' reference; shares no package code."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

LONGEST = 1_024
MOST = 1 << 40
# Milliseconds in a unit.
TIMES = {unit: Fraction(1_000, 10**n) for unit, n in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))}
NOTHING: Any = object()
STEP = re.compile(r'("(?:[^"\\]|\\.)*"|[^.\[]+)(\[\])?(?:\.|$)')


# With 0 for every digit: `datetime.fromisoformat` reads more, such as weeks.
FRACTIONS = [point + "0" * digits for point in ".," for digits in range(1, 10)]
CLOCKS = ["00:00", "00:00:00", *("00:00:00" + fraction for fraction in FRACTIONS)]
ISO = {
    f"0000-00-00{mark}{clock}{zone}"
    for mark in "T "
    for clock in CLOCKS
    for zone in ("", "Z", "+00:00", "-00:00", "+0000", "-0000")
}


class Looked(NamedTuple):
    """A histogram's view of an event: its key (None: "$all"), and its items in order, with their
    counts.
    """

    key: str | None
    items: list[tuple[str | int, int]]


class Found(NamedTuple):
    """An event: time in ms (None: the record's), user, and every histogram's view (None: not
    selected).
    """

    time: int | None
    user: str | None
    views: tuple[Looked | None, ...]


class Refused(Exception): ...


@cache
def steps_of(path: str) -> Sequence[tuple[str, bool]]:
    """Return the names of a path, and whether `[]` follows each."""
    return tuple(
        (json.loads(name) if name[0] == '"' else name, bool(many))
        for name, many in STEP.findall(path)
    )


def walk(value: Any, names: Sequence[str]) -> Any:
    """Return the value at the end of a path; NOTHING if a step is absent or null."""
    for name in names:
        if value is None or value is NOTHING:
            return NOTHING
        if not isinstance(value, dict):
            raise Refused
        value = value.get(name, NOTHING)
    return value


def at(value: Any, path: str) -> Any:
    return walk(value, [name for name, _ in steps_of(path)])


def text_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else None


def number_of(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def label(value: Any) -> str:
    text = text_of(value)
    if text is None or len(text.encode()) > LONGEST:
        raise Refused
    return text


def matches(record: Any, condition: Mapping[str, Any]) -> bool:
    try:
        value = at(record, condition["field"])
    except Refused:
        value = NOTHING
    there = value is not NOTHING and value is not None
    text, number = (text_of(value), number_of(value)) if there else (None, None)
    checks: dict[str, Callable[[Any], bool]] = {
        "exists": lambda wanted: there == wanted,
        "in": lambda words: text is not None and text in [text_of(word) for word in words],
        "not_in": lambda words: text not in [text_of(word) for word in words],
        "min": lambda least: number is not None and number >= least,
        "max": lambda most: number is not None and number <= most,
    }
    return all(checks[name](given) for name, given in condition.items() if name != "field")


def times(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused
    return min(value, MOST)


def one(value: Any, edges: Sequence[float] | None) -> str | int:
    if edges is None:
        return label(value)
    number = number_of(value)
    if number is None:
        raise Refused
    return sum(edge <= number for edge in edges)


def in_steps(value: Any, of: Mapping[str, Any]) -> int:
    """Return a number in steps: clamped, to the nearest one, up from halfway."""
    if number_of(value) is None:
        raise Refused
    least, most, step = (Fraction(repr(of[name])) for name in ("from", "to", "step"))
    # Exponents of thousands: compared before they are expanded.
    if value <= Decimal(repr(of["from"])):
        return 0
    exact = most if value >= Decimal(repr(of["to"])) else Fraction(value)
    return int((exact - least) / step + Fraction(1, 2))


def summed(record: Any, view: Mapping[str, Any], empty: bool) -> list[tuple[str | int, int]]:
    """Return the items, each with the number beside it or the event's, in steps."""
    of, plainly = view["sum"], {name: of for name, of in view.items() if name != "sum"}
    items = items_of(record, plainly, empty)
    number = steps_of(of["field"])
    if not items:
        return []
    if not any(many for _, many in number):
        steps = in_steps(at(record, of["field"]), of)
        return [(label, steps) for label, _ in items]
    names, listed = [name for name, _ in number], [many for _, many in number].index(True) + 1
    label = [name for name, _ in steps_of(view["items"])][listed:]
    found = []
    for element in walk(record, names[:listed]):
        value = walk(element, label)
        if not empty or (value is not None and value is not NOTHING):
            found.append(in_steps(walk(element, names[listed:]), of))
    return [(item, steps) for (item, _), steps in zip(items, found, strict=True)]


def items_of(record: Any, view: Mapping[str, Any], empty: bool) -> list[tuple[str | int, int]]:
    if "sum" in view:
        return summed(record, view, empty)
    steps, edges, count = steps_of(view["items"]), view.get("buckets"), view.get("count")
    lists = [place for place, (_, many) in enumerate(steps, 1) if many]
    names = [name for name, _ in steps]
    found = walk(record, names[: lists[0]] if lists else names)
    if empty and (found is None or found is NOTHING):
        return []
    if not lists and not isinstance(found, list):
        if isinstance(found, dict) and edges is None and count is None:
            return [(label(name), times(given)) for name, given in found.items()]
        return [(one(found, edges), 1 if count is None else times(at(record, count)))]
    if not isinstance(found, list) or (count is not None and not lists):
        raise Refused
    rest = names[lists[0] :] if lists else []
    items = []
    for element in found:
        if rest and not isinstance(element, dict):
            raise Refused
        value = walk(element, rest)
        if empty and (value is None or value is NOTHING):
            continue
        counted = [] if count is None else [name for name, _ in steps_of(count)][lists[0] :]
        often = 1 if count is None else times(walk(element, counted))
        items.append((one(value, edges), often))
    return items


def time_of(value: Any, unit: str) -> int:
    found: int | Fraction = -1
    if unit == "iso":
        iso = isinstance(value, str) and re.sub("[0-9]", "0", value).upper() in ISO
        if iso and value[11:13] != "24":
            try:
                moment = datetime.fromisoformat(value[:10] + "T" + value[11:].upper())
            except ValueError:
                raise Refused from None
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            since = moment - datetime(1970, 1, 1, tzinfo=UTC)
            found = Fraction(since // timedelta(microseconds=1), 1_000)
    elif not isinstance(value, bool) and isinstance(value, int | Decimal if unit == "s" else int):
        found = Fraction(value) * TIMES[unit]
    if found < 0 or found // 1 > 2**53:
        raise Refused
    return int(found // 1)


def is_name(key: bytes | None) -> str:
    try:
        text = None if key is None else key.decode()
    except UnicodeDecodeError:
        text = None
    return label(text)


def views_of(
    events: Mapping[str, Any], histograms: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the fields of every histogram: its own settings, else those of [events]."""
    found = []
    for own in histograms:
        names = ("key", "items", "count", "where", "buckets", "sum")
        view = {name: own.get(name, events.get(name)) for name in names}
        if "items" in own:
            view["count"] = own.get("count")
        found.append({name: value for name, value in view.items() if value is not None})
    return found


def plain(value: bytes) -> Any:
    def refuse(word: str) -> Any:
        raise Refused(word)

    record = json.loads(value, parse_float=Decimal, parse_constant=refuse)
    if not isinstance(record, dict):
        raise Refused
    return record


def event(
    record: Any,
    key: bytes | None,
    events: Mapping[str, Any],
    histograms: Sequence[Mapping[str, Any]],
    user: str | None,
) -> Found | str:
    """Return the event of a record, "rejected", or "skipped": no histogram selects it, and its time
    cannot be read.
    """
    empty = events.get("missing") == "empty"
    looking = False
    try:
        seen: list[Looked | None] = []
        for view in views_of(events, histograms):
            if not all(matches(record, condition) for condition in view.get("where", [])):
                seen.append(None)
                continue
            looking = True
            name = None
            if view["key"] != "$all":
                name = is_name(key) if view["key"] == "$key" else label(at(record, view["key"]))
            seen.append(Looked(name, items_of(record, view, empty)))
        who = None
        if user is not None and looking:
            who = is_name(key) if user == "$key" else at(record, user)
            if isinstance(who, bool):
                raise Refused
            who = label(who)
        time = None
        if "timestamp" in events:
            time = time_of(at(record, events["timestamp"]), events.get("timestamp_unit", "ms"))
    except Refused:
        return "rejected" if looking else "skipped"
    return Found(time, who, tuple(seen))
