"""Find candidates for the items, the stream key and the user, likeliest first.

Objects of counts and lists of objects are best suited for counting, then lists of values. Single
values qualify if they repeat, with medium cardinality. Numbers are bucketed in a range of round
numbers around the sampled ones. A score is a relative likelihood; its weights are judgements. A
field has a name of a kind if one of its words is in that table of `names`.

A field is personal if it identifies whom or what the events are about (`Field.who`, `people`). The
"record key" is Kafka's, beside the event; $key in settings. A place is a record's number among
those that were surveyed.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import pairwise
from types import MappingProxyType

from aiokafka.partitioner import murmur2

from workers.commands.init import names
from workers.commands.init.fields import (
    NEARLY_ALL,
    OUTLIERS,
    Field,
    Form,
    Kind,
    field_label,
    percent,
)
from workers.commands.init.names import UserKind
from workers.commands.init.people import USERS_MIN, is_name_of_values
from workers.mechanisms.config.buckets import parse_buckets
from workers.mechanisms.config.views import RECORD_KEY, Path
from workers.runtime.printing import plural

# Equally wide buckets, at most, besides one that the last edge may need.
_STEPS = 20
# Of the ends of buckets, and of their width.
_LARGEST = 1e15
_SMALLEST = 1e-9
# If the largest numbers exceed the middle ones by this factor, buckets of one ratio show more.
_SKEWED = 20
_PER_DECADE = 3


@dataclass(frozen=True, slots=True)
class Range:
    """The `buckets` setting: `count` intervals from `first` to `last`.

    With the `scale` "linear" they are equally wide, with "log" their edges have a constant ratio.
    """

    first: Decimal
    last: Decimal
    count: int
    scale: str = "linear"

    def __str__(self) -> str:
        scale = ', scale = "log"' if self.scale == "log" else ""
        return f"{{ from = {self.first:f}, to = {self.last:f}, count = {self.count}{scale} }}"

    @property
    def edges(self) -> tuple[float, ...]:
        """Return the edges; raise ValueError if they are too many, or too close to each other."""
        ends = {"from": float(self.first), "to": float(self.last)}
        return parse_buckets({**ends, "count": self.count, "scale": self.scale}).edges


def range_of(numbers: Sequence[float]) -> Range | None:
    """Return a range of round numbers around nearly all of `numbers`; None if there is none."""
    ordered = sorted(numbers)
    outliers = int(OUTLIERS * len(ordered))
    low = ordered[outliers]
    high = ordered[-1 - outliers]
    median = ordered[len(ordered) // 2]
    least_positive = next((number for number in ordered if number > 0), 0.0)
    # Where buckets of one ratio begin: above 0, and with a twentieth of the numbers below.
    twentieth = ordered[max(outliers, len(ordered) // 20)]
    return range_around(low, max(least_positive, twentieth), median, high)


def range_around(low: float, usual: float, median: float, high: float) -> Range | None:
    """Return buckets with round edges for numbers from `low` to `high`; None if there are none.

    They are equally wide, unless the largest numbers are far above the median: then they have a
    constant ratio and begin at `usual`, at most six decades below `high`. (A few tiny numbers below
    would add decades of empty buckets.)
    """
    if low > high or not _is_usual(low, high):
        return None
    if low >= 0 and median > 0 and high > _SKEWED * median:
        return _checked(_log(max(usual, high / 1e6), high))
    return _checked(_linear(low, high))


def range_between(low: float, high: float) -> Range | None:
    """Return buckets for a chosen range, keeping its bounds; None if there are none."""
    if low >= high or not _is_usual(low, high):
        return None
    return _checked(
        Range(_plain(Decimal(repr(low))), _plain(Decimal(repr(high))), _STEPS)
    )


def _is_usual(low: float, high: float) -> bool:
    """Return whether two numbers can be the ends of buckets: finite, and not too large."""
    return (
        math.isfinite(low)
        and math.isfinite(high)
        and max(abs(low), abs(high)) <= _LARGEST
    )


def _linear(low: float, high: float) -> Range | None:
    """Return equally wide buckets with round edges that cover `low` to `high`; None: too narrow."""
    # A scale that begins at zero is easier to read, where that costs few buckets.
    if 0 <= low < 0.3 * high:
        low = 0.0
    width = high - low
    if width == 0:
        width = abs(high) or 1.0
        low = low - width / 2
        high = high + width / 2
    if width < _SMALLEST:
        return None
    # The smallest 1, 2, 5 or 10 times a power of ten that gives at most `_STEPS` buckets. (20, as
    # the power may be rounded down.)
    least = width / _STEPS
    power = Decimal(10) ** math.floor(math.log10(least))
    steps = (power * digit for digit in (1, 2, 5, 10, 20))
    step = next(step for step in steps if step >= Decimal(repr(least)))
    first = (Decimal(repr(low)) / step).to_integral_value(ROUND_FLOOR) * step
    last = (Decimal(repr(high)) / step).to_integral_value(ROUND_CEILING) * step
    if last <= Decimal(repr(high)):
        last += step  # the last edge is exclusive
    return Range(_plain(first), _plain(last), int((last - first) / step))


def _log(low: float, high: float) -> Range | None:
    """Return buckets between powers of ten, three a decade, that cover `low` to `high`.

    None if `low` is too near to zero, or below.
    """
    if low < _SMALLEST:
        return None
    first = math.floor(math.log10(low))
    # Above `high`: the last edge is exclusive.
    last = math.floor(math.log10(high)) + 1
    ends = _plain(Decimal(10) ** first), _plain(Decimal(10) ** last)
    return Range(*ends, _PER_DECADE * (last - first), "log")


def _plain(number: Decimal) -> Decimal:
    """Return a number without exponent or trailing zeros, as settings have it."""
    whole = number.to_integral_value()
    return Decimal(int(whole)) if number == whole else number.normalize()


def _checked(found: Range | None) -> Range | None:
    """Return a range if the settings accept its buckets, else None."""
    try:
        return found if found is not None and found.edges else None
    except ValueError:  # raised by `edges`
        return None


# More histograms would each be too small for their noise, unless there are many events.
KEYS_MAX = 50
_EVENTS_PER_KEY = 5
# Share of the records that a hash of the user must place as they are.
_PLACED = 0.99
# At this share of distinct values a field identifies single events.
_UNIQUE = 0.9
_LIKENESS = MappingProxyType(
    {
        None: 0.0,
        UserKind.PERSON: 40.0,
        UserKind.ACCOUNT: 30.0,
        UserKind.DEVICE: 20.0,
        UserKind.SESSION: 10.0,
    }
)
MEANS = MappingProxyType(
    {
        UserKind.PERSON: "all events of one person, as far as the field has one value for each person",
        UserKind.ACCOUNT: "all events of one account: a person with several accounts is several users, people who share one are one",
        UserKind.DEVICE: "all events of one device or address: a person who uses several is several users",
        UserKind.SESSION: "all events of one session, NOT of one person: a person who returns counts as another user",
        None: "all events with one value of this field: of a person only if it names a person",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Candidate:
    """Candidate for the stream key or the user, with a relative likelihood `score`.

    `setting` is as in the settings file: a path, or "$key". A user also has the `partitioner`, the
    hash by which the records are placed in partitions (None: by no known one), and the entity that
    its name identifies (`who`; None: its name says none). A stream key `fits` if its name is one of
    something that has a histogram, such as a shop; else it has few values, and is only named as an
    alternative.
    """

    setting: str
    reason: str
    values: Counter[str]
    score: float
    partitioner: str | None = None
    who: UserKind | None = None
    fits: bool = True

    @property
    def means(self) -> str:
        """What would be protected if this field were the user."""
        return MEANS[self.who]


def record_key_field(record_keys: Sequence[str | None]) -> Field:
    """Return the keys of records as a field, to compare them with the fields of the events.

    `record_keys` has a text for each record, None for one without a key, or with a binary one.
    """
    keys = {place: key for place, key in enumerate(record_keys) if key is not None}
    field = Field(path=Path((RECORD_KEY,)), form=Form.ONE, total=len(record_keys))
    field.records = len(keys)
    field.kinds[Kind.TEXT] = len(keys)
    field.values.update(keys.values())
    field.column.update(keys)
    return field


def keys_of(fields: Sequence[Field], record_key: Field) -> list[Candidate]:
    """Return the candidates for the stream key, likeliest first: fields with few values.

    Their names speak for them first, then that they are texts, have fewer values and shorter paths.
    """
    candidates = []
    for field in _with_record_key(fields, record_key):
        few = _is_few(field.distinct, field.number_of_values)
        if not (field.everywhere and field.labels and few) or field.who is not None:
            continue
        named = field.name_has(names.KEY)
        if not named and field.name_has(names.MEASURE, names.COUNT, names.SOURCE):
            continue
        # Bare numbers are more often amounts.
        if not (named or field.text or field.name_has(names.ID)):
            continue
        score = (
            30.0 * named
            + 10.0 * field.text
            - field.distinct / 5
            - len(field.path.steps)
        )
        setting = str(field.path)
        reason = _values_there(field)
        if field is record_key:
            score = 15.0 - field.distinct / 5
            setting = RECORD_KEY
            reason = f"the record key: {reason}"
        candidates.append(
            Candidate(
                setting=setting,
                reason=reason,
                values=field.values,
                score=score,
                fits=named or field is record_key,
            )
        )
    return _likeliest(candidates)


def users_of(
    fields: Sequence[Field],
    record_key: Field,
    partitions: Sequence[int],
    partition_count: int,
) -> list[Candidate]:
    """Return the candidates for the user of an event, likeliest first.

    They name a user, or are the record key, and have enough values. `partitions` has the partition
    of each record, `partition_count` is the topic's number of them.
    """
    same = {str(field.path) for field in _same_as_key(fields, record_key)}
    candidates = []
    for field in _with_record_key(fields, record_key):
        is_record_key = field is record_key
        who = None if is_record_key else field.who
        is_key = is_record_key or str(field.path) in same
        if (
            not (field.everywhere and (field.text or field.whole))
            or field.distinct < USERS_MIN
        ):
            continue
        # A user by its name, or, with a name that says nothing, by being the record key.
        if who not in names.USERS and not (who is None and is_key):
            continue
        unique = field.distinct > _UNIQUE * field.number_of_values
        if who is None and (unique or field.name_has(names.KEY, names.ITEM)):
            continue  # records are often keyed by their subject, which is not a user
        values = ((place, field_label(value)) for place, value in field.column.items())
        users = {place: user for place, user in values if user is not None}
        partitioner = _partitioner(users, partitions, partition_count)
        setting = str(field.path)
        score = _LIKENESS[who] + 5.0 * (partitioner is not None)
        # An identifier stays when an address or a name changes.
        score += 3.0 * field.name_has(names.ID) - 3.0 * field.name_has(names.CHANGING)
        score -= 6.0 * field.name_has(names.LINK)
        # Among equals, the one with the shortest path and name.
        score -= (
            len(field.path.steps) / 10 + len(names.words(field.path.steps[-1])) / 20
        )
        reason = _values_there(field)
        if is_record_key:
            # It has no name: only that the records are placed by it speaks for a user.
            if partitioner is None:
                continue
            setting = RECORD_KEY
            score = 1.0
            different = plural(field.distinct, "different value")
            reason = f"the record key, which no field of the events has: {different}"
        elif is_key:
            reason += ", the same as the record key"
        candidates.append(
            Candidate(
                setting=setting,
                reason=reason,
                values=field.values,
                score=score,
                partitioner=partitioner,
                who=who,
            )
        )
    return _likeliest(candidates)


def _with_record_key(fields: Sequence[Field], record_key: Field) -> Iterator[Field]:
    """Yield the fields, and the record key unless one of them has its values."""
    yield from fields
    if not _same_as_key(fields, record_key):
        yield record_key


def _likeliest(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda one: (-one.score, one.setting))


def _is_few(distinct: int, values: int) -> bool:
    """Return whether `distinct` values among so many are few enough for a histogram each."""
    return 2 <= distinct <= min(KEYS_MAX, values // _EVENTS_PER_KEY)


def _values_there(field: Field) -> str:
    """Return how many values a field has and how many events have it, as a reason."""
    different = plural(field.distinct, "different value")
    return f"{different}, in {percent(field.share)} of the events"


def _same_as_key(fields: Sequence[Field], record_key: Field) -> list[Field]:
    """Return the fields that have the record key's value in nearly every record."""
    same = []
    for field in fields:
        if field.everywhere and field.labels:
            equal = sum(
                field_label(value) == record_key.column.get(place)
                for place, value in field.column.items()
            )
            if equal >= NEARLY_ALL * record_key.total:
                same.append(field)
    return same


def _murmur2(key: bytes) -> int:
    """Return the hash by which Java's Kafka client places keys."""
    return int(murmur2(key)) & 0x7FFFFFFF


def _partitioner(
    users: dict[int, str], partitions: Sequence[int], partition_count: int
) -> str | None:
    """Return the known hash that places nearly all records by user; None: none does.

    `users`, at least one, are by the record's place; `partitions` has where each record lies.
    """
    keys = [
        (partitions[place], user.encode(errors="replace"))
        for place, user in users.items()
    ]
    for name, hash_of in (("murmur2", _murmur2), ("crc32", zlib.crc32)):
        good = sum(
            hash_of(key) % partition_count == partition for partition, key in keys
        )
        if good >= _PLACED * len(keys):
            return name
    return None


# Labels must repeat: at a larger share of distinct values a field more likely identifies events.
_REPEATED = 0.5
_FEW = 20
# Longer texts on average are prose.
_PROSE = 80


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ItemCandidate:
    """Field that may hold the items, with a relative likelihood `score`.

    `count` is a sibling field with the amount; None: each item counts once. Without a `range` of
    buckets, values are labels.
    """

    field: Field
    count: Field | None = None
    range: Range | None = None
    reason: str
    score: float

    @property
    def name(self) -> str:
        return f"{self.field.path}{' (a number, in buckets)' if self.range else ''}"


def items_of(fields: Sequence[Field]) -> list[ItemCandidate]:
    """Return the fields that could be the items, likeliest first."""
    candidates = [items for field in fields for items in _items(field, fields)]

    def order(items: ItemCandidate) -> tuple[float, str]:
        # A field that most records lack is less likely to be their main content.
        weight = 0.5 + 0.5 * items.field.share
        return -items.score * weight, str(items.field.path)

    return sorted(candidates, key=order)


def _items(field: Field, fields: Sequence[Field]) -> Iterator[ItemCandidate]:
    """Yield a field as a candidate for the items: one value an event as labels, numbers, or both.

    Nothing if it is personal, as its published values would identify people or single events, or
    the same in every record. Scores: objects of counts 100, elements of lists 85, lists 80, single
    values at most 50, give or take what names and values say.
    """
    if not field.number_of_values or field.who is not None or field.constant:
        return
    where = f"in {percent(field.share)} of the events"
    if field.form is Form.MAP:
        yield ItemCandidate(
            field=field,
            score=100.0,
            reason=f"an object of counts, {where}, with {plural(field.distinct, 'different name')}",
        )
    elif field.form is Form.LIST:
        if field.labels and field.distinct > 1 and not _unique(field):
            yield ItemCandidate(
                field=field,
                score=80.0 + _name_score(field) / 2,
                reason=f"a list, {where}, of {plural(field.distinct, 'different value')}",
            )
    elif field.form is Form.ELEMENT:
        yield from _of_element(field, fields, where)
    else:
        is_redundant = _is_link_beside_name(field, fields)
        yield from _of_value(field, where, is_redundant=is_redundant)


def _is_link_beside_name(field: Field, fields: Sequence[Field]) -> bool:
    """Return whether a field is a web address, in an object that has a name or title, too.

    As in {"url": "https://...", "name": "tea"}: the name is the better item.
    """
    container = field.path.steps[:-1]
    if not container or not field.name_has(names.LINK):
        return False
    siblings = (other for other in fields if other.path.steps[:-1] == container)
    return any(
        other.path.steps[-1] in ("name", "title") and other.labels for other in siblings
    )


def _of_element(
    field: Field, fields: Sequence[Field], where: str
) -> Iterator[ItemCandidate]:
    """Yield a field of the elements of a list, with a count beside it if there is one.

    `where` says in which events the field is, for the reason.
    """
    is_label = field.name_has(names.ITEM, names.ITEM_OF_LIST, names.ID)
    if not (field.labels and (field.text or is_label)):
        return
    if field.name_has(names.COUNT) or _unique(field):
        return
    score = (
        85.0
        + 8.0 * field.name_has(names.ITEM)
        + 4.0 * field.name_has(names.ITEM_OF_LIST)
    )
    # Neither prose, one value alone, nor names of properties tell much if they are counted.
    score -= 40.0 * _is_prose(field) + 20.0 * (field.distinct < 2)
    score -= 50.0 * is_name_of_values(field, fields)
    counts = (
        other
        for other in fields
        if other.form is Form.ELEMENT
        and other.path.list_steps == field.path.list_steps
        and other.whole
        # The worker rejects negative counts.
        and min(other.numbers) >= 0
        # Every item must have one.
        and other.number_of_values >= field.number_of_values
        and other.name_has(names.COUNT)
    )
    yield ItemCandidate(
        field=field,
        count=next(counts, None),
        score=score,
        reason=f"in each element of a list, {where}, with {plural(field.distinct, 'different value')}",
    )


def _of_value(
    field: Field, where: str, *, is_redundant: bool
) -> Iterator[ItemCandidate]:
    """Yield a field with one value an event, as labels if they repeat, or numbers in buckets.

    `is_redundant`: another field names the same thing better. `where` says in which events the
    field is, for the reason.
    """
    measure = field.name_has(names.MEASURE)
    distinct_max = max(_FEW, _REPEATED * field.number_of_values)
    repeats = 1 < field.distinct <= distinct_max and not _unique(field)
    if field.labels and repeats and not (field.whole and measure):
        # Texts are likelier labels than numbers, and these than booleans.
        score = 35.0 if field.whole else 15.0
        if 2 * field.kinds[Kind.TEXT] > field.number_of_values:
            score = 50.0
        score += _name_score(field) + min(5.0 * math.log10(field.distinct), 9.0)
        score -= 40.0 * _is_prose(field) + 35.0 * is_redundant
        yield ItemCandidate(
            field=field,
            score=score,
            reason=f"{field.holds}, {where}, with {plural(field.distinct, 'different value')}",
        )
    if not field.numeric or _counts_up(field) or field.name_has(names.PLACE, names.ID):
        return
    buckets = range_of(field.numbers)
    if buckets is not None:
        # Whole numbers that are not named as a measure may be codes.
        may_be_code = field.whole and (field.name_has(names.ITEM) or not measure)
        score = (15.0 if may_be_code else 40.0) + 22.0 * measure
        yield ItemCandidate(
            field=field,
            range=buckets,
            score=score,
            reason=f"{field.holds}, {where}: in buckets",
        )


def _name_score(field: Field) -> float:
    """Return how much the words of a field's name speak for items."""
    if field.name_has(names.SOURCE):
        return -25.0
    if field.name_has(names.ITEM):
        return 20.0
    if names.words(field.path.steps[-1]) in (["event"], ["event", "name"]):
        return 10.0  # what analytics tools call an action
    return -10.0 if field.name_has(names.KEY, names.TYPE) else 0.0


def _unique(field: Field) -> bool:
    """Return whether nearly every value differs, as the ids of events do."""
    return (
        field.number_of_values >= _FEW
        and field.distinct > _UNIQUE * field.number_of_values
    )


def _is_prose(field: Field) -> bool:
    """Return whether texts are on average too long to be labels."""
    characters = sum(len(text) * times for text, times in field.values.items())
    return field.text and characters > _PROSE * field.number_of_values


def _counts_up(field: Field) -> bool:
    """Return whether numbers nearly always grow, as a serial number does."""
    if not field.whole or len(field.numbers) < 3:
        return False
    up = sum(second > first for first, second in pairwise(field.numbers))
    return _unique(field) and up > _UNIQUE * (len(field.numbers) - 1)
