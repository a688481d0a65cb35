"""Guess settings from a sample, with the evidence for every guess.

Candidates are tried with the worker's own rule for accepting events (`events.project`), so the
draft's accepted events are the sample's events that the worker would accept. That rule returns an
event, or, as a text, the reason for rejecting the record.

A view is what a histogram reads of an event: stream key, items and counts; a shape is that with the
time and the user. A draft has one histogram, so its events have one view. A candidate is a field
that could be one of these. An "index" is a record's in the sample, a "place" its number among the
records that are surveyed: first all that hold an object, then those that the condition accepts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType

import numpy as np

from workers.commands.init.fields import (
    NEARLY_ALL,
    ConditionGuess,
    Field,
    Form,
    field_label,
    guess_condition,
    survey,
)
from workers.commands.init.formats import CannotGuess, DecodedSample
from workers.commands.init.items import (
    Candidate,
    ItemCandidate,
    Range,
    items_of,
    keys_of,
    record_key_field,
    users_of,
)
from workers.commands.init.people import mark_people
from workers.commands.init.private import AMOUNTS, ITEMS, Chosen, PrivateChoice
from workers.commands.init.sample import Sample
from workers.commands.init.times import (
    MAX_AHEAD_MS,
    OLDEST_MS,
    TimeCandidate,
    grace_of,
    times_of,
)
from workers.commands.rates import PartitionSample, estimated_records, event_rates
from workers.commands.undeclared import json_string
from workers.events.project import Projection, ViewValues
from workers.mechanisms.config.views import (
    ALL_KEYS,
    RECORD_KEY,
    Condition,
    Shape,
    View,
    complaints,
    parse_field,
)

# Candidates for the items that are tried on the records.
_TRIED = 12
# Personal fields in a message.
_NAMED = 6
# If fewer events have items, a field may identify those that do.
_SOME = 0.98
# Share of the events, and of the counts in them, that the bounds do not cut.
_UNCUT = 0.99
_ITEMS_MAX = 10_000
# Of one user in an epoch; a sample cannot tell.
ITEMS_PER_USER = 10
# Of max_items (of users ITEMS_PER_USER) times the square of max_count: with more, a counter refuses
# to draw the noise.
_PRODUCT_MAX = 7_000_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Draft:
    """Contents of the settings file, with reasons. Sensitive.

    Attributes:
        decoded: how many values hold an object.
        where: condition on events; None: all count.
        time: None: the record's.
        grace: how long a tick stays open, and why.
        key: stream key; None: one histogram for all events.
        other_keys: other fields that could be the stream key.
        keys: which stream keys may be named, "public", "declare" or "none", as the operator says.
        user: None if events are protected.
        empty: share of the events in which items are absent or null, but which are accepted all the
            same; 0: there are none.
        accepted, skipped: decoded records that are events, and that `where` skips.
        pairs: occurrences of every (stream key, label) in them, within the bounds of an event.
        max_items, max_count: bounds on the items of an event, and on the count of each.
        items_within, counts_within: the shares of the events, and of the counts, within them.
        private: the same bounds, where they were chosen privately, and what that cost.
        times: of the accepted events, ms since 1970.
        rate: accepted events per second of event time; 0: unknown.
        personal: fields that are never offered as labels or stream keys.
        quoted_keys: whether the record keys are texts written as JSON, in quotes.
    """

    sample: Sample
    format: str
    decoded: int
    items: ItemCandidate
    other_items: Sequence[ItemCandidate]
    where: ConditionGuess | None
    time: TimeCandidate | None
    other_times: Sequence[TimeCandidate]
    grace: tuple[str, str]
    range_given: bool
    key: Candidate | None
    other_keys: Sequence[Candidate]
    keys: str
    user: Candidate | None
    users: Sequence[Candidate]
    empty: float
    accepted: int
    skipped: int
    pairs: Counter[tuple[str, str]]
    max_items: int
    max_count: int
    items_within: float
    counts_within: float
    private: Chosen | None
    times: Sequence[int]
    rate: float
    personal: Sequence[Field]
    quoted_keys: bool


class SampleGuesses:
    """Guesses about one sample, up to the questions for the operator."""

    def __init__(self, sample: Sample, decoded: DecodedSample, now_ms: int) -> None:
        """Survey the decoded sample; guess items, time, and which records have the items."""
        self._sample = sample
        self._decoded = decoded
        # Of the records that are surveyed, by place: first all that hold an object.
        self._indices = sorted(decoded.objects)
        self._latest_ms = now_ms + MAX_AHEAD_MS
        #: Fields of the first survey, before the condition left records out.
        self.all_fields: Sequence[Field] = ()
        self._survey(now_ms)
        self.all_fields = self.fields
        #: None: all events count.
        self.where: ConditionGuess | None = None
        places_with_items = self._places_with(self.items)
        # Where some records lack the items, perhaps a field tells which.
        if len(places_with_items) < _SOME * len(self._indices):
            self.where = guess_condition(self.fields, places_with_items)
        if self.where is not None:
            # Then fields that nearly every event must have are looked for only among those.
            column = self.where.field.column
            values = set(self.where.values)
            self._indices = [
                index
                for place, index in enumerate(self._indices)
                if field_label(column.get(place)) in values
            ]
            self._survey(now_ms)
        # The times that settings can read beside the items; the likeliest one is taken.
        views = views_of(self.items)
        shapes = ((time, Shape(views, time.field.path)) for time in self._times)
        self.other_times = [
            time for time, shape in shapes if not list(complaints(shape))
        ]
        self.time = self.other_times.pop(0) if self.other_times else None

    def _survey(self, now_ms: int) -> None:
        """Look at the fields of the records in `_indices`, and find times and items among them."""
        records = [self._sample.records[index] for index in self._indices]
        self.objects = [self._decoded.objects[index] for index in self._indices]
        self._partitions = [record.partition for record in records]
        self._logged = [record.time_ms for record in records]
        self.fields = survey(self.objects)
        keys = [_text_key(record.key) for record in records]
        self._record_key = record_key_field(keys)
        mark_people([*self.fields, self._record_key], self.all_fields)
        times = times_of(self.fields, self._partitions, self._logged, now_ms)
        # The time of a person's first visit goes with the person, not with the event.
        self._times = [time for time in times if time.field.who is None]
        self.items, *self.other_items = self._item_candidates()

    def _item_candidates(self) -> list[ItemCandidate]:
        """Return the fields that could be the items, likeliest first, each tried on the records."""
        times = {time.field.path.steps for time in self._times}
        good: list[ItemCandidate] = []
        for items in items_of(self.fields)[:_TRIED]:
            if items.field.path.steps in times:
                continue
            # With a count that does not fit the items may still be counted once each.
            without_count = [] if items.count is None else [replace(items, count=None)]
            for tried in (items, *without_count):
                fits = not list(complaints(Shape(views_of(tried))))
                if fits and self._places_with(tried):
                    good.append(tried)
                    break
        if not good:
            raise CannotGuess(
                "no field of the sampled records can be counted: "
                f"none{_other_than(self.fields)} holds lists, repeated texts or numbers"
            )
        return good

    def _places_with(self, items: ItemCandidate) -> set[int]:
        """Return the places of the records that have any of these items."""
        # `empty`: elements of a list that lack the item are passed over, not a reason to reject.
        projection = Projection(Shape(views_of(items), empty=True))
        places = set[int]()
        for place, record in enumerate(self.objects):
            event = projection.event(record)
            if not isinstance(event, str) and (view := event.views[0]) and view.labels:
                places.add(place)
        return places

    @property
    def quoted_keys(self) -> bool:
        """Return whether nearly all record keys are JSON strings: their quotes are part of them."""
        keys = self._record_key.values.items()
        quoted = sum(number for key, number in keys if json_string(key) is not None)
        return 0 < quoted >= NEARLY_ALL * self._record_key.records

    @property
    def keys(self) -> list[Candidate]:
        """The fields that could be the stream key, likeliest first."""
        found = keys_of(self.fields, self._record_key)
        return [candidate for candidate in found if self._fits(candidate, None)]

    def users(self, key: Candidate | None) -> list[Candidate]:
        """Return the fields that can be the user beside this key (None: none), likeliest first."""
        found = users_of(
            self.fields, self._record_key, self._partitions, self._sample.partitions
        )
        return [candidate for candidate in found if self._fits(key, candidate)]

    def _fits(self, key: Candidate | None, user: Candidate | None) -> bool:
        """Return whether the settings accept this stream key and user (None: none) together."""
        if key is not None and user is not None and key.setting == user.setting:
            return False
        return not list(complaints(self._shape(key, user, empty=False)))

    def _shape(
        self, key: Candidate | None, user: Candidate | None, *, empty: bool
    ) -> Shape:
        """Return how the worker would read events with these choices.

        None: one stream key for all events, or no user. `empty`: events without items are accepted,
        as with the setting `missing = "empty"`.
        """
        where: tuple[Condition, ...] = ()
        if self.where is not None:
            where = (
                Condition(field=str(self.where.field.path), in_=self.where.values),
            )
        views = views_of(self.items, ALL_KEYS if key is None else key.setting, where)
        time, unit = (
            (None, "ms")
            if self.time is None
            else (self.time.field.path, self.time.unit)
        )
        of_user = None if user is None else parse_field(user.setting)
        return Shape(views, time, unit, of_user, empty)

    def _private(
        self,
        views: Sequence[ViewValues],
        rho: float,
        range_: Range | None,
    ) -> Chosen:
        """Choose bounds by noisy quantiles of the events' views, for `rho` together.

        Max_items unless an event has just one item, max_count unless that counts once, and buckets
        of numbers unless their `range_` was given (None: it was not).
        """
        chooses_items = self.items.field.form is not Form.ONE
        chooses_count = self.items.count is not None or chooses_items
        chooses_ends = self.items.range is not None and range_ is None
        parts = chooses_items + chooses_count + chooses_ends
        # Without a choice, nothing is spent.
        choice = PrivateChoice(rho, max(1, parts))
        max_items = 1
        max_count = 1
        chosen_range = None
        if chooses_items:
            sizes = [len(set(view.labels)) for view in views]
            max_items = choice.bound("items", sizes, ITEMS)
        if chooses_count:
            largest = [max(_amounts(view).values()) for view in views]
            max_count = choice.bound("count", largest, AMOUNTS)
            # So that max_items times its square is at most `_PRODUCT_MAX`.
            max_count = min(max_count, math.isqrt(_PRODUCT_MAX // max_items))
        if chooses_ends:
            chosen_range = choice.ends(self.items.field.numbers)
            if chosen_range is None:
                raise CannotGuess("--private: no buckets fit: give them with --range")
        return Chosen(max_items, max_count, chosen_range, choice.rho)

    def draft(
        self,
        name_keys: str = "none",
        protect_users: bool = False,
        range_: Range | None = None,
        private_rho: float | None = None,
    ) -> Draft:
        """Draft the settings, with answers that only the operator can give.

        Args:
            name_keys: "public": stream keys may be named; "declare": those of the sample, written
                into the file; "none": one histogram for all events.
            protect_users: users instead of events.
            range_: for bucketing numbers; None: a round one around the sample's.
            private_rho: what the choice of bounds may cost; None: they are those of exact data.

        Raises CannotGuess: these answers leave no event accepted, or no user known.
        """
        if range_ is not None and self.items.range is not None:
            self.items = replace(self.items, range=range_)
        # The stream key and the user.
        keys = self.keys
        key = next(
            (candidate for candidate in keys if candidate.fits and name_keys != "none"),
            None,
        )
        users = self.users(key)
        user = users[0] if users and protect_users else None
        if protect_users and user is None:
            raise CannotGuess(
                "--users: no field with a user's name was found, nor are the records keyed by one"
            )
        # The events, also those without items, if the settings accept them.
        with_items = self._events(self._shape(key, user, empty=False))
        events = self._events(self._shape(key, user, empty=True))
        empty = 1 - len(with_items) / len(events) if events else 0.0
        # Without the events that the condition skips.
        views = {index: view for index, (_, view) in events.items() if view is not None}
        times = [events[index][0] for index in views]
        # For the bounds on an event's items: the events that have any.
        counted = [view for view in views.values() if view.labels]
        if not counted:
            raise CannotGuess(
                "no sampled record would be an event with anything to count"
            )
        # How many different items events have, and how often each of these counts.
        items_per_event = sorted(len(set(view.labels)) for view in counted)
        counts = sorted(count for view in counted for count in _amounts(view).values())
        max_items = min(quantile(items_per_event, _UNCUT), _ITEMS_MAX)
        # What is protected, an event or a user, has at most so many items.
        items_of_unit = max_items if user is None else ITEMS_PER_USER
        count_limit = math.isqrt(_PRODUCT_MAX // items_of_unit)
        max_count = min(_round_up(quantile(counts, _UNCUT)), count_limit)
        private = None
        if private_rho is not None:
            private = self._private(counted, private_rho, range_)
            max_items = private.max_items
            max_count = private.max_count
            if private.range is not None:
                self.items = replace(self.items, range=private.range)
        by_place = dict(enumerate(self._logged))
        if self.time is not None:
            by_place = self.time.times
        return Draft(
            sample=self._sample,
            format=self._decoded.format,
            decoded=len(self._decoded.objects),
            items=self.items,
            other_items=self.other_items,
            where=self.where,
            time=self.time,
            other_times=self.other_times,
            grace=grace_of(by_place, self._partitions),
            range_given=range_ is not None,
            key=key,
            other_keys=[candidate for candidate in keys if candidate is not key],
            keys=name_keys if key is not None else "none",
            user=user,
            users=users,
            empty=empty,
            accepted=len(views),
            skipped=len(events) - len(views),
            pairs=self._pairs(views, key, max_items, max_count),
            max_items=max_items,
            max_count=max_count,
            items_within=fmean(number <= max_items for number in items_per_event),
            counts_within=fmean(count <= max_count for count in counts),
            private=private,
            times=times,
            rate=self._rate(list(views), times),
            personal=[field for field in self.all_fields if field.who is not None],
            quoted_keys=self.quoted_keys,
        )

    def _pairs(
        self,
        views: Mapping[int, ViewValues],
        key: Candidate | None,
        max_items: int,
        max_count: int,
    ) -> Counter[tuple[str, str]]:
        """Return how often each (stream key, label) would be counted within the bounds.

        `views` has what is read of the events by their index. Without a `key`, all have the key "".
        """
        pairs: Counter[tuple[str, str]] = Counter()
        for index, view in views.items():
            name = view.key
            if key is not None and key.setting == RECORD_KEY:
                name = _text_key(self._sample.records[index].key) or ""
            # The first items of an event count, as in the worker.
            for item, count in list(_amounts(view).items())[:max_items]:
                pairs[name, item] += min(count, max_count)
        return pairs

    def _rate(self, indices: Sequence[int], times: Sequence[int]) -> float:
        """Estimate the accepted events per second in the topic.

        `indices` are those of the sample's accepted events, `times` their times in ms.
        """
        offsets: dict[int, list[int]] = {}
        for record in self._sample.records:
            offsets.setdefault(record.partition, []).append(record.offset)
        times_by_partition: dict[int, list[int]] = {
            partition: [] for partition in offsets
        }
        for index, time_ms in zip(indices, times, strict=True):
            times_by_partition[self._sample.records[index].partition].append(time_ms)
        samples = []
        for partition, accepted in times_by_partition.items():
            sampled = np.array(offsets[partition], dtype=np.int64)
            # Without bounds, from the first offset to behind the last that was sampled.
            low, high = self._sample.bounds.get(partition, (0, int(sampled.max()) + 1))
            # The others may be the oldest records, far from these.
            newest = self._sample.newest.get(partition, len(sampled))
            records = estimated_records(sampled[-newest:], low, high)
            sample = PartitionSample(
                times=np.array(accepted, dtype=np.int64),
                # As many of all records are accepted as of the sampled ones.
                events=records * len(accepted) / len(sampled),
                from_start=low == 0,
            )
            samples.append(sample)
        return sum(event_rates(samples))

    def _events(self, shape: Shape) -> dict[int, tuple[int, ViewValues | None]]:
        """Return the events among all decoded records, by their index in the sample.

        Of each its time in ms, and what the view reads of it: None if the condition skips it.
        """
        projection = Projection(shape)
        events = {}
        for index, record in self._decoded.objects.items():
            event = projection.event(record)
            if isinstance(event, str):
                continue
            time_ms = (
                self._sample.records[index].time_ms
                if shape.time is None
                else event.time
            )
            [view] = event.views
            # An event that the condition skips is accepted whatever its time.
            if view is None or OLDEST_MS <= time_ms <= self._latest_ms:
                events[index] = time_ms, view
        return events


def views_of(
    items: ItemCandidate, key: str = ALL_KEYS, where: tuple[Condition, ...] = ()
) -> Mapping[str, View]:
    """Return the one view of a draft, which needs no name: how its histogram reads an event."""
    edges = None if items.range is None else items.range.edges
    count = None if items.count is None else items.count.path
    view = View(parse_field(key), items.field.path, count, where, edges)
    return MappingProxyType({"": view})


def _other_than(fields: Sequence[Field]) -> str:
    """Return which fields were left out as they identify somebody, for a message."""
    paths = [str(field.path) for field in fields if field.who is not None]
    if not paths:
        return ""
    shown = ", ".join(paths[:_NAMED])
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return f", other than those that seem to identify people or single events ({shown}{more}),"


def _amounts(view: ViewValues) -> dict[str, int]:
    """Return how often an event has each item, in order of first occurrence."""
    amounts = Counter[str]()
    for item, amount in zip(view.labels, view.amounts, strict=True):
        amounts[str(item)] += amount
    return amounts


def quantile(ordered: Sequence[int], share: float) -> int:
    """Return the least number that this share of `ordered` does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _round_up(number: int) -> int:
    """Round up to 20, 30, 50, 100, 200, ...; 1 to 10 stay as they are, and less becomes 1."""
    if number <= 10:
        return max(number, 1)
    steps = (digit * 10**power for power in range(20) for digit in (1, 2, 3, 5))
    return int(next(step for step in steps if step >= number))


def _text_key(key: bytes | None) -> str | None:
    """Return a record key as text; None if there is none, or it is not UTF-8."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None
