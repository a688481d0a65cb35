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
TIMES = {
    unit: Fraction(1_000, 10**n)
    for unit, n in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))
}
NOTHING: Any = object()
STEP = re.compile(r'("(?:[^"\\]|\\.)*"|[^.\[]+)(\[\])?(?:\.|$)')


# With 0 for every digit: `datetime.fromisoformat` reads more, such as weeks.
FRACTIONS = ["", *(point + "0" * digits for point in ".," for digits in range(1, 19))]
CLOCKS = [
    "00:00",
    "0000",
    *(at + part for at in ("00:00:00", "000000") for part in FRACTIONS),
]
OFFSETS = [sign + form for sign in "+-" for form in ("00", "0000", "00:00")]
ZONES = [
    "",
    *(
        space + zone
        for space in ("", " ")
        for zone in ("Z", "z", "UTC", "GMT", *OFFSETS)
    ),
]
ISO = {
    f"{date}{mark}{clock}{zone}"
    for date in ("0000-00-00", "00000000")
    for mark in "Tt "
    for clock in CLOCKS
    for zone in ZONES
}
BRACKETS = re.compile(r"(?<=.)(\[[A-Za-z][-A-Za-z0-9_+/.=]*\])+$")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)


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


def unicode_only(value: Any) -> Any:
    if isinstance(value, str) and any(0xD800 <= ord(each) < 0xE000 for each in value):
        raise Refused
    return value


def text_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        value
        if isinstance(value, str)
        else str(value)
        if isinstance(value, int)
        else None
    )


def number_in(value: Any) -> Any:
    """Return a text that is exactly a number as that number; any other value as it is."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return json.loads(
            value, parse_float=Decimal, parse_int=lambda text: int(text[:4_000])
        )
    return value


def number_of(value: Any) -> float | None:
    value = number_in(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def label(value: Any) -> str:
    text = text_of(unicode_only(value))
    if text is None or len(text.encode()) > LONGEST:
        raise Refused
    return text


def matches(record: Any, condition: Mapping[str, Any]) -> bool:
    try:
        value = at(record, condition["field"])
    except Refused:
        value = NOTHING
    unicode_only(value)
    there = value is not NOTHING and value is not None
    text, number = (text_of(value), number_of(value)) if there else (None, None)
    checks: dict[str, Callable[[Any], bool]] = {
        "exists": lambda wanted: there == wanted,
        "in": lambda words: (
            text is not None and text in [text_of(word) for word in words]
        ),
        "not_in": lambda words: text not in [text_of(word) for word in words],
        "min": lambda least: number is not None and number >= least,
        "max": lambda most: number is not None and number <= most,
    }
    return all(
        checks[name](given) for name, given in condition.items() if name != "field"
    )


def times(value: Any) -> int:
    value = number_in(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value < 0:
        raise Refused
    # An exponent of more than 400 is beyond what readers keep.
    if isinstance(value, Decimal) and (
        value.adjusted() > 400 or Fraction(value).denominator > 1
    ):
        raise Refused
    return min(int(value), MOST)


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
    value = number_in(value)
    # Exponents of thousands: compared before they are expanded.
    if value <= Decimal(repr(of["from"])):
        return 0
    exact = most if value >= Decimal(repr(of["to"])) else Fraction(value)
    return int((exact - least) / step + Fraction(1, 2))


def summed(
    record: Any, view: Mapping[str, Any], empty: bool
) -> list[tuple[str | int, int]]:
    """Return the items, each with the number beside it or the event's, in steps."""
    of, plainly = view["sum"], {name: of for name, of in view.items() if name != "sum"}
    items = items_of(record, plainly, empty)
    number = steps_of(of["field"])
    if not items:
        return []
    if not any(many for _, many in number):
        steps = in_steps(at(record, of["field"]), of)
        return [(label, steps) for label, _ in items]
    names = [name for name, _ in number]
    listed = [many for _, many in number].index(True) + 1
    label = [name for name, _ in steps_of(view["items"])][listed:]
    found = []
    for element in walk(record, names[:listed]):
        value = walk(element, label)
        if not empty or (value is not None and value is not NOTHING):
            found.append(in_steps(walk(element, names[listed:]), of))
    return [(item, steps) for (item, _), steps in zip(items, found, strict=True)]


def items_of(
    record: Any, view: Mapping[str, Any], empty: bool
) -> list[tuple[str | int, int]]:
    if "sum" in view:
        return summed(record, view, empty)
    steps = steps_of(view["items"])
    edges = view.get("buckets")
    count = view.get("count")
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
        counted = (
            [] if count is None else [name for name, _ in steps_of(count)][lists[0] :]
        )
        often = 1 if count is None else times(walk(element, counted))
        items.append((one(value, edges), often))
    return items


def iso_of(text: str) -> Fraction | int:
    zoned = BRACKETS.sub("", text)
    form = re.sub("[0-9]", "0", zoned)
    if form not in ISO or (zoned != text and form in ISO_WITHOUT_ZONE):
        raise Refused
    date = zoned[: 10 if "-" in zoned[:5] else 8]
    clock = zoned[11 if "-" in zoned[:5] else 9 :]
    clock = clock.replace(" ", "").replace("UTC", "Z").replace("GMT", "Z").upper()
    seconds = 0
    if re.match("24:?00($|[^0-9:]|:?00([.,]0*)?($|[^0-9.,]))", clock):
        clock = "00" + clock[2:]
        seconds = 86_400
    if leaping := re.match("[0-9]{2}:?[0-9]{2}:?60", clock):
        end = leaping.end()
        clock = clock[: end - 2] + "59" + clock[end:]
        seconds = 1
    if re.search("[-+][0-9]{2}:?[6-9][0-9]$", clock):
        raise Refused  # Python reads +00:60
    fraction = re.search("[.,][0-9]+", clock)
    clock = re.sub("[.,][0-9]+", "", clock)
    try:
        moment = datetime.fromisoformat(date + "T" + clock)
    except ValueError:
        raise Refused from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if seconds == 1 and moment.astimezone(UTC).strftime("%H:%M") != "23:59":
        raise Refused
    since = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        seconds=1
    ) + seconds
    return since * 1_000 + (Fraction("0." + fraction[0][1:]) * 1_000 if fraction else 0)


ISO_WITHOUT_ZONE = {
    form for form in ISO if re.search("[0-9]$", form) and "+" not in form[8:]
}
ISO_WITHOUT_ZONE = {form for form in ISO_WITHOUT_ZONE if "-" not in form[9:]}


def time_of(value: Any, unit: str) -> int:
    found: int | Fraction = -1
    if unit == "iso":
        found = iso_of(value) if isinstance(value, str) else -1
    else:
        value = number_in(value)
        if not isinstance(value, bool) and isinstance(value, int | Decimal):
            found = -1 if value > 10**30 else Fraction(value) * TIMES[unit]
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

    record = json.loads(value.decode(), parse_float=Decimal, parse_constant=refuse)
    if not isinstance(record, dict):
        raise Refused
    return record


# What Python's reader decides differently, and rightly: see json_log_corpus.
UNLIKE = re.compile(rb"\\u[dD][89a-fA-F]|[0-9]{300}|[0-9.][eE]|\x00|^\xef\xbb\xbf")
DEEP = 30


def is_alike(value: bytes) -> bool:
    """Return whether Python reads JSON as we do."""
    depth = value.count(b"[") + value.count(b"{")
    return depth <= DEEP and not UNLIKE.search(value)


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
            try:
                selected = all(
                    matches(record, condition) for condition in view.get("where", [])
                )
            except Refused:
                return "rejected"
            if not selected:
                seen.append(None)
                continue
            looking = True
            name = None
            if view["key"] != "$all":
                name = (
                    is_name(key)
                    if view["key"] == "$key"
                    else label(at(record, view["key"]))
                )
            seen.append(Looked(name, items_of(record, view, empty)))
        who = None
        if user is not None and looking:
            who = is_name(key) if user == "$key" else at(record, user)
            if isinstance(who, bool):
                raise Refused
            who = label(who)
        time = None
        if "timestamp" in events:
            time = time_of(
                at(record, events["timestamp"]), events.get("timestamp_unit", "ms")
            )
    except Refused:
        return "rejected" if looking else "skipped"
    return Found(time, who, tuple(seen))


def expected(
    value: bytes,
    key: bytes | None,
    events: Mapping[str, Any],
    histograms: Sequence[Mapping[str, Any]],
    user: str | None,
) -> Found | str:
    """Return what a reader should say of a record's bytes; see `event`."""
    try:
        return event(plain(value), key, events, histograms, user)
    except (Refused, ValueError, RecursionError):
        return "rejected"
