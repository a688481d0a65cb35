"""Random settings and events on which the compiled, general and reference readers must agree.

`python -m tests.events.shapes_corpus [--records N] [--seed S]` is the long run.
"""

import json
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.events.comparison import Differs, Outcome, long_run, together
from tests.events.reading import amounts_of, read_general
from tests.events.reference import Found, Looked, expected, is_alike, steps_of
from tests.events.shapes_values import (
    ODD,
    One,
    a_count,
    a_label,
    a_number,
    a_time,
    a_user,
    dumped,
    many,
    some_of,
)
from workers.events.log import Format
from workers.events.reading import EventReader, Reading
from workers.kafka.records import Records
from workers.settings.settings import Settings, settings_of

# What a reader says of every record; nothing of skipped ones.
Said = dict[int, Found | str]
BATCH = 250
NAMES = (
    "a",
    "b",
    "c",
    "ab",
    "shop",
    "item",
    "n",
    "é",
    "x.y",
    "$t",
    "a b",
    "[]",
    "schlüssel",
    "long" * 8,
)
UNITS = ("ms", "s", "us", "ns", "iso")
EDGES = ([0, 10, 50, 100], [-5, 0.1, 9.99], [0, 0.30000000000000004, 1e2], [10, 1e6])
SUMS: tuple[dict[str, Any], ...] = (
    {"from": 0, "to": 100, "step": 0.01},
    {"from": -5.5, "to": 9.5, "step": 0.5},
    {"from": 0.1, "to": 1e6, "step": 999_999.9},
    {"from": 1e14, "to": 1.00001e14, "step": 1e6},
)
WORDS: tuple[Any, ...] = ("purchase", "view", "5", 5, True, "", "é", 0, -7)


@dataclass(frozen=True, slots=True)
class Role:
    """A path of the settings and its value in a matching event; `one` draws the value."""

    path: str
    one: One


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Settings, their reader, the view names, and the roles of a matching event."""

    events: dict[str, Any]
    histograms: list[dict[str, Any]]
    user: str | None
    reader: EventReader
    names: list[str]
    roles: list[Role]

    @property
    def shown(self) -> str:
        return f"{self.events}, {self.histograms}, {self.user}"


class Maker:
    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)

    def path(self, most: int = 4) -> str:
        number = self.choose.choice((1, 1, 2, 2, 3, 4)[: most + 2])
        return ".".join(self.name() for _ in range(number))

    def name(self) -> str:
        name = self.choose.choice(NAMES) if self.choose.random() < 0.997 else 'q"'
        quoted = any(mark in name for mark in '. []"$') or self.choose.random() < 0.1
        return (
            json.dumps(name, ensure_ascii=self.choose.random() < 0.5)
            if quoted
            else name
        )

    def looked(self) -> tuple[dict[str, Any], list[Role]]:
        """Return items, perhaps with a count, a sum and buckets, and their values in an event."""
        choose = self.choose
        own: dict[str, Any] = {}
        one: One = a_label
        if choose.random() < 0.3:
            own["buckets"] = choose.choice(EDGES)
            one = a_number
        kind = choose.random()
        roles = []
        if kind < 0.45:
            where = self.path(2) + "[]"
            own["items"] = where + "." + self.path(2)
            if choose.random() < 0.6:
                own["count"] = where + "." + self.path(2)
                roles.append(Role(own["count"], a_count))
            elif choose.random() < 0.6:
                own["sum"] = choose.choice(SUMS) | {"field": where + "." + self.path(2)}
        elif kind < 0.6:
            own["items"] = self.path() + "[]"
        elif kind < 0.8:
            own["items"] = self.path()
            if choose.random() < 0.4:
                own["count"] = self.path()
                roles.append(Role(own["count"], a_count))
        else:
            own["items"] = self.path()
            one = many(one, objects="buckets" not in own)
        if not {"count", "sum"} & own.keys() and choose.random() < 0.2:
            own["sum"] = choose.choice(SUMS) | {"field": self.path()}
        if "sum" in own:
            roles.append(Role(own["sum"]["field"], a_number))
        return own, [Role(own["items"], one), *roles]

    def where(self) -> tuple[list[dict[str, Any]], list[Role]]:
        """Return conditions, and fields that sometimes satisfy them."""
        choose = self.choose
        conditions = []
        roles = []
        for _ in range(choose.choice((1, 1, 2))):
            condition: dict[str, Any] = {"field": self.path()}
            one: One = a_label
            kind = choose.randrange(5)
            if kind == 0:
                given = choose.sample(WORDS, choose.randrange(1, 5))
                condition["in"] = given
                one = some_of(WORDS if choose.random() < 0.5 else given)
            elif kind == 1:
                condition["not_in"] = choose.sample(WORDS, 2)
                one = some_of(WORDS)
            elif kind == 2:
                condition["exists"] = choose.random() < 0.6
            else:
                if kind == 3 or choose.random() < 0.5:
                    condition["min"] = choose.choice((-1, 0.1, 9.99, 10, 0))
                if kind == 4 or len(condition) == 1:
                    condition["max"] = choose.choice((10, 50.5, 100))
                one = a_number
            conditions.append(condition)
            roles.append(Role(condition["field"], one))
        return conditions, roles

    def case(self) -> Case:
        while True:
            case = self._case()
            if case is not None:
                return case

    def _case(self) -> Case | None:
        choose = self.choose
        own, roles = self.looked()
        of_histogram: dict[str, Any] = {
            name: own.pop(name) for name in ("buckets", "sum") if name in own
        }
        key = choose.choice((self.path(), self.path(), "$key", "$all"))
        events: dict[str, Any] = {"key": key, **own}
        if choose.random() < 0.7:
            events["timestamp"] = self.path()
            events["timestamp_unit"] = choose.choice(UNITS)
            roles.append(Role(events["timestamp"], a_time(events["timestamp_unit"])))
        if choose.random() < 0.3:
            events["missing"] = "empty"
        if choose.random() < 0.3:
            events["where"], more = self.where()
            roles += more
        user = choose.choice((None, None, self.path(), "$key"))
        histograms: list[dict[str, Any]] = [of_histogram]
        for _ in range(choose.choice((0, 0, 0, 1, 2, 4))):
            other: dict[str, Any] = {}
            if choose.random() < 0.6:
                other, more = self.looked()
                roles += more
            if choose.random() < 0.3:
                other["key"] = choose.choice((self.path(), "$key", "$all"))
            if choose.random() < 0.5:
                other["where"], more = self.where()
                roles += more
            if other:
                histograms.append(other)
        keys = {view.get("key", events["key"]) for view in histograms}
        roles += [Role(key, a_label) for key in sorted(keys - {"$all", "$key"})]
        roles += [Role(user, a_user)] if user not in (None, "$key") else []
        settings = settings_or_none(events, histograms, user)
        if settings is None:
            return None
        return Case(
            events,
            histograms,
            user,
            EventReader(settings.shape),
            views_of(settings),
            roles,
        )

    def record(self, case: Case) -> dict[str, Any]:
        """Return a matching event, as far as the settings' fields do not collide."""
        record: dict[str, Any] = {}
        roles = case.roles[:]
        if self.choose.random() < 0.5:
            self.choose.shuffle(roles)
        for role in roles:
            self._put(record, steps_of(role.path), role.one)
        if self.choose.random() < 0.3:
            record["further"] = self.choose.choice(
                (1, "x", [1, {"a": None}], {"items": [1]}, None)
            )
        return record

    def _put(
        self, value: dict[str, Any], steps: Sequence[tuple[str, bool]], one: One
    ) -> None:
        (name, many), *rest = steps
        if many:
            if not isinstance(value.get(name), list):
                number = self.choose.choice((0, 1, 2, 2, 3, 7))
                value[name] = [{} if rest else None for _ in range(number)]
            for place, element in enumerate(value[name]):
                if rest and isinstance(element, dict):
                    self._put(element, rest, one)
                elif not rest:
                    value[name][place] = one(self.choose)
        elif not rest:
            value[name] = one(self.choose)
        else:
            inner = value.setdefault(name, {})
            if isinstance(inner, dict):
                self._put(inner, rest, one)

    def changed(self, record: dict[str, Any]) -> Any:
        choose = self.choose
        places = [*_places(record)]
        if not places:
            return record
        holder, name = choose.choice(places)
        kind = choose.randrange(7)
        if kind == 0:
            del holder[name]
        elif kind == 1:
            holder[name] = None
        elif kind == 2:
            holder[name] = deepcopy(choose.choice(ODD))
        elif kind == 3:
            other, place = choose.choice(places)
            holder[name], other[place] = deepcopy(other[place]), deepcopy(holder[name])
        elif kind == 4 and isinstance(holder[name], list):
            place = choose.randrange(len(holder[name]) + 1)
            holder[name].insert(place, deepcopy(choose.choice(ODD)))
        elif kind == 5:
            holder[name] = choose.choice((a_label, a_number, a_count, a_user))(choose)
        elif isinstance(holder[name], dict):
            holder[name]["further"] = deepcopy(choose.choice(ODD))
        return record

    def batch(self, case: Case, size: int = BATCH) -> list[bytes]:
        """Return records: half match, the rest are changed once or twice."""
        found = []
        for _ in range(size):
            record: Any = self.record(case)
            for _ in range(self.choose.choice((0, 0, 0, 0, 1, 1, 2))):
                record = self.changed(record)
            found.append(dumped(record, self.choose).encode())
        return found


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place within a value, as its container and its name or index there."""
    if not isinstance(value, dict | list):
        return
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, name
        yield from _places(each)


def document(
    events: dict[str, Any], histograms: list[dict[str, Any]], user: str | None
) -> dict[str, Any]:
    bounds: dict[str, Any] = {
        "tick": "10s",
        "horizon": 10,
        "max_items": 3,
        "epsilon": 1.0,
        "delta": 1e-9,
    }
    if user is not None:
        bounds["max_items_per_user"] = 5
    sections = []
    for place, own in enumerate(histograms):
        kind = {"mechanism": "known_base" if "buckets" in own else "unk_base"}
        keys = {} if own.get("key", events["key"]) == "$all" else {"keys": "public"}
        sections.append({"name": f"h{place}", **bounds, **kind, **keys, **own})
    return {
        "worker": {"name": "w", "data_dir": "d", "key_file": "k"},
        "kafka": {"bootstrap": "localhost:9092"},
        "events": {"topic": "t", **events} | ({} if user is None else {"user": user}),
        "privacy": {"unit": "event" if user is None else "user"},
        "histogram": sections,
    }


def views_of(settings: Settings) -> list[str]:
    """Return every histogram's view; of one with a sum, that of the numbers."""
    return [config.lanes[-1].view for config in settings.histograms]


def settings_or_none(
    events: dict[str, Any], histograms: list[dict[str, Any]], user: str | None
) -> Settings | None:
    """Return settings with these fields; None if they are refused."""
    try:
        return settings_of(document(events, histograms, user), Path())
    except ValueError:
        return None


def told(case: Case, reading: Reading) -> Said:
    """Return what a reader says of every record; nothing of skipped ones."""
    data = reading.data.tobytes()
    layout = case.reader.layout

    def texts(spans: Any) -> list[Any]:
        if spans is None:
            return [None] * len(reading)
        return [data[start:stop].decode() for start, stop in spans.tolist()]

    of_view: dict[str, list[Looked | None]] = {}
    for view, name in enumerate(layout.names):
        column = layout.column_of[view]
        labels = reading.labels[column]
        bucketed = layout.items_of[column].edges is not None
        named = labels[:, 0].tolist() if bucketed else texts(labels)
        items = list(zip(named, amounts_of(reading, column), strict=True))
        rows = zip(
            texts(reading.keys[layout.key_of[view]]),
            reading.label_starts[view].tolist(),
            reading.label_counts[view].tolist(),
            strict=True,
        )
        of_view[name] = [
            None if number < 0 else Looked(key, items[first : first + number])
            for key, first, number in rows
        ]
    found: Said = {reject.index: "rejected" for reject in reading.rejects}
    users = texts(reading.users)
    has_time = "timestamp" in case.events
    for row, record in enumerate(reading.index.tolist()):
        views = tuple(of_view[name][row] for name in case.names)
        found[record] = Found(
            int(reading.times[row]) if has_time else None,
            users[row] if any(view is not None for view in views) else None,
            views,
        )
    return found


def read_twice(
    case: Case, records: Records, fmt: Format | None = None
) -> tuple[Reading, Said]:
    """Return what is read without the scanner, and what it says; Differs if the scanner disagrees."""
    [slow] = read_general(case.reader, records, fmt)
    without = told(case, slow)
    scanned(case, records, slow, without, fmt)
    return slow, without


def scanned(
    case: Case,
    records: Records,
    slow: Reading,
    without: Said,
    fmt: Format | None = None,
) -> Reading:
    """Return what is read with the scanner; raise Differs unless it is what is read without."""
    [fast] = case.reader.read(records, fmt)
    with_it = told(case, fast)
    for record in range(len(records)):
        if with_it.get(record) != without.get(record):
            raise Differs(
                f"{case.shown}\n{records.value(record)!r}: {with_it.get(record)} with the scanner, "
                f"{without.get(record)} without"
            )
    if fast.rejects != slow.rejects:
        raise Differs(
            f"{case.shown}: {fast.rejects}, without the scanner {slow.rejects}"
        )
    return fast


def compare_with_reference(
    case: Case, value: bytes, key: bytes | None, said: object
) -> None:
    right = expected(value, key, case.events, case.histograms, case.user)
    if said != right:
        raise Differs(
            f"{case.shown}\n{value!r}, key {key!r}: {said}\nreference: {right}"
        )


@lru_cache(1 << 9)
def _general(
    case: Case, values: Sequence[bytes], hostile: bool
) -> tuple[Records, Reading, Said]:
    """Return what the general reader says, as the reference does: the same with each planted defect."""
    keys = [
        {0: None, 1: b"\xff"}.get(place % 40, b"k%d" % (place % 7))
        for place in range(len(values))
    ]
    records = Records.of(values, keys, range(len(values)))
    [slow] = read_general(case.reader, records)
    said = told(case, slow)
    for place, (value, key) in enumerate(zip(values, keys, strict=True)):
        if not hostile or is_alike(value):
            compare_with_reference(case, value, key, said.get(place, "skipped"))
    return records, slow, said


def difference(
    case: Case, values: Sequence[bytes], *, hostile: bool = False
) -> Outcome:
    """Compare scanner, general reader and reference; `hostile` bytes as far as Python reads them."""
    try:
        records, slow, said = _general(case, tuple(values), hostile)
        fast = scanned(case, records, slow, said)
    except Differs as error:
        return Outcome(str(error))
    return Outcome(None, len(slow), len(values) - fast.declined)


def run(records: int, seed: int) -> Outcome:
    maker = Maker(seed)
    cases = (maker.case() for _ in range(0, records, BATCH))
    return together(difference(case, maker.batch(case)) for case in cases)


if __name__ == "__main__":
    long_run(run)
