"""The public, frozen configuration of a histogram: what is counted, when, and at what privacy cost.

Every field states its type, range and allowed values, and every instance is validated on creation.
Nothing learned from data enters here. A mechanism's own configuration is a subclass in its module,
and declares what the mechanism is as `about`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
)

import msgspec
from msgspec import Meta

from workers.mechanisms.about import About
from workers.mechanisms.config.buckets import ALLOWED as BUCKETS_ALLOWED
from workers.mechanisms.config.buckets import QUANTILES_MAX, Buckets
from workers.mechanisms.config.checked import Checked, display, whole
from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.sums import ALLOWED as SUM_ALLOWED
from workers.mechanisms.config.sums import STEPS_MAX, Sum
from workers.mechanisms.config.ticks import TickGrid, shortest_tick
from workers.mechanisms.config.views import (
    ALL_KEYS,
    RECORD_KEY,
    SYNTAX,
    Condition,
    path_complaints,
)
from workers.mechanisms.config.views import ALLOWED as CONDITIONS_ALLOWED
from workers.mechanisms.config.windows import (
    NEVER,
    TICKS_MAX,
    Series,
    default_hop,
    hop_complaints,
    series_of,
)
from workers.mechanisms.counters.base import last_tick_of
from workers.mechanisms.counters.kinds import KINDS, kinds_with

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECENT = datetime(2026, 1, 1, tzinfo=UTC)
LABEL_BYTES_MAX = 1024
# In a plan's comparison with mechanisms that need them.
COMPARED_TOP_K = 10
COMPARED_KBAR = 100
DEFAULT_QUANTILES = (0.5,)
# Probability with which the error bounds of an epoch may fail, where no setting says it.
ERROR_BETA = 0.05
# Of sums and total together; the counts have the rest.
SHARES_MAX = 0.95
TOPIC_NAME = r"^(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z"

Duration = Annotated[int, Meta(extra={"duration": True})]
"""Milliseconds in Python; written as "10s" in a settings file."""
Label = Annotated[str, Meta(min_length=1)]
_DOMAIN = 'a list of labels such as ["p1", "p2"], at least one, none of them empty'
Domain = Annotated[tuple[Label, ...], Meta(min_length=1, description=_DOMAIN)]
FieldPath = Annotated[str, Meta(min_length=1, max_length=1_000)]
"""A path to a field of an event, as `workers.mechanisms.config.views` reads it."""
KEY_ALLOWED = f'{SYNTAX}, "{RECORD_KEY}" (the record key) or "{ALL_KEYS}"'
Conditions = Annotated[tuple[Condition, ...], Meta(description=CONDITIONS_ALLOWED)]
Budget = Annotated[
    float, Meta(gt=0, le=50, description="a number above 0 and at most 50")
]
Count = Annotated[int, whole(1, 10_000)]
if TYPE_CHECKING:
    CounterKind = str
else:
    CounterKind = Literal[*KINDS]
DEFAULT_COUNTER = next(iter(KINDS))
Window = Annotated[int, Meta(ge=1, le=31_622_400_000)]


_NAME = 'lower-case letters, digits, "_" and "-", at most 100 of them'
_HORIZON = 'a whole number of ticks from 1 to 1,073,741,824, a duration such as "1d", "unbounded" or "never"'
_FOR = '"counts" or "quantiles"'
_BOUNDS_RHO = "a number above 0 and at most 1, as init --private wrote it"
_HOP = "a power of two of ticks, from 1 to 4,194,304, or a duration that is one"
_PERIOD = "a whole number of ticks from 1 to 4,194,304, or a duration of so many ticks"
_START = "a date and time with a time zone and no quotes, such as 2026-11-21T00:00:00Z"
_DELTA = "a number from 1e-50 to 0.5, such as 1e-9"
_TOTAL_SHARE = "a number from 0.01 to 0.9, such as 0.05"
_END_SHARE = "a number from 0.01 to 0.99, such as 0.6"
_KEYS = 'a list of stream keys such as ["s1", "s2"], or "public": every key in the data may be named'
_WINDOWS = "a list of at most 20 durations from 1ms to 366d"
_QUANTILES = f"a list of at most {QUANTILES_MAX} numbers above 0 and below 1, such as [0.5, 0.95]"
Quantiles = Annotated[
    tuple[Annotated[float, Meta(gt=0, lt=1)], ...],
    Meta(max_length=QUANTILES_MAX, description=_QUANTILES),
]
WORDS = r"^[^\x00-\x1f\x7f]{1,40}\Z"
_WORDS = "1 to 40 characters without control characters"
_TOPIC = 'a Kafka topic name: letters, digits, ".", "_" and "-", at most 249 of them'


class Lane(NamedTuple):
    """What stage 1, which bounds and sums events, needs to know of a histogram.

    Histograms with equal lanes share one set of contributions. `max_items_per_user` bounds a user's
    (stream key, item) pairs per epoch of `horizon` ticks (None: one epoch); without users both are
    None. A `max_count` of 0 is for unique users: each of a user's pairs counts at every event, and
    contributions name users. `view` "" is that of `[events]`. `split` is how many parts a stream
    key's items are spread over. `sketch` is how many counters each sketch has with which stage 1
    counts; 0: exact counts.
    """

    tick_ms: int
    start_ms: int
    max_items: int
    max_count: int
    max_items_per_user: int | None = None
    horizon: int | None = None
    view: str = ""
    split: int = 1
    sketch: int = 0

    @property
    def names_users(self) -> bool:
        """Return whether contributions say which users an item has, for unique users."""
        return self.max_count == 0

    def end_ms(self, tick: int) -> int:
        """Return the time at which a global tick ends, as `TickGrid.end`."""
        return self.start_ms + tick * self.tick_ms

    def epoch(self, tick: int) -> int:
        """Return the epoch of a global tick, counted from 0 here."""
        return 0 if self.horizon is None else (tick - 1) // self.horizon


class HistogramConfig(Checked, frozen=True, kw_only=True, tag_field="mechanism"):
    """Settings common to all continual histograms.

    name        unique within a worker
    tick_ms     width of a tick of event time ("tick" outside Python)
    horizon     T, ticks in an epoch, or "unbounded": one epoch without an end; or "never": windows
                without epochs
    start       tick 1 begins here; None is 1970-01-01
    max_items   D0, most items of one event that count
    max_count   Dinf, most that one event, or one protected user in an epoch, adds to one item
    max_items_per_user   most items of one protected user that count in an epoch
    user_period without epochs: ticks of one user that are protected, and bounded, together
    unique_users   without epochs: of each item is counted how many users had an event with it
    epsilon, rho   total of one epoch, (epsilon, `delta`) or zCDP; exactly one of the two
    bounds_rho  the part of the budget that choosing bounds from a sample has cost already
    delta       probability, over one epoch, that the guarantee does not cover
    radix       base of the "tree" counter; None is the best for the horizon (5 if unbounded)
    end_share   the last tick's share of the budget, with the "lifted" counter
    keys        the declared stream keys, or "public"
    windows     ms; snapshots state the standard deviation of the change over every window; without
                epochs, each window's counts are published
    hop         without epochs: windows begin at its multiples; None: `windows.default_hop`
    key, items, count, where   fields read from an event, overriding `[events]`
    buckets     edges of intervals; their labels become `domain`
    quantiles   of the numbers in the buckets, in snapshots; None: the median, where possible
    for_        None is "counts"; with "quantiles" noise is made for ranks and ranges, and a bucket
                has more of it ("for" outside Python)
    split       parts of a stream key's items, each in an owner partition of its own
    label, unit   presentation of the numbers in the buckets or sum; the dashboard reads them
    sum         a field whose numbers are added up for each item, clamped
    total_share the total's share of the budget; None: no total is published
    generation  raised to begin a new mechanism, and a new charge, on purpose
    topic       output topic; None is `<worker.name>.<name>`
    """

    about: ClassVar[About]
    # The setting whose value decides whether labels are declared, if any does (`lists_labels`).
    decides_domain: ClassVar[str] = ""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,100}\Z", description=_NAME)]
    tick_ms: Annotated[
        Duration,
        Meta(ge=1, le=31_622_400_000, description="a duration from 1ms to 366d"),
    ] = msgspec.field(name="tick")
    horizon: (
        Annotated[int, Meta(ge=1, le=2**30, description=_HORIZON)]
        | Literal["unbounded", "never"]
    )
    start: Annotated[datetime, Meta(tz=True, description=_START)] | None = None
    max_items: Count
    max_count: Annotated[int, whole(1, 1_000_000)] = 1
    max_items_per_user: Count | None = None
    user_period: (
        Annotated[int, Meta(ge=1, le=TICKS_MAX, description=_PERIOD)] | None
    ) = None
    unique_users: Annotated[bool, Meta(description="true or false")] | None = None
    epsilon: Budget | None = None
    bounds_rho: Annotated[float, Meta(gt=0, le=1, description=_BOUNDS_RHO)] | None = (
        None
    )
    rho: Budget | None = None
    delta: Annotated[float, Meta(ge=1e-50, le=0.5, description=_DELTA)]
    counter: CounterKind = DEFAULT_COUNTER
    radix: Annotated[int, whole(2, 1_024)] | None = None
    end_share: (
        Annotated[float, Meta(ge=0.01, le=0.99, description=_END_SHARE)] | None
    ) = None
    keys: (
        Annotated[tuple[Label, ...], Meta(min_length=1, description=_KEYS)]
        | Literal["public"]
    )
    windows: Annotated[
        tuple[Window, ...],
        Meta(max_length=20, description=_WINDOWS, extra={"duration": True}),
    ] = ()
    hop: Annotated[int, Meta(ge=1, le=TICKS_MAX, description=_HOP)] | None = None
    key: Annotated[FieldPath | None, Meta(description=KEY_ALLOWED)] = None
    items: Annotated[FieldPath | None, Meta(description=SYNTAX)] = None
    count: Annotated[FieldPath | None, Meta(description=SYNTAX)] = None
    where_: Annotated[Conditions | None, Meta(description=CONDITIONS_ALLOWED)] = (
        msgspec.field(name="where", default=None)
    )
    buckets: Annotated[Buckets | None, Meta(description=BUCKETS_ALLOWED)] = None
    quantiles: Quantiles | None = None
    for_: Annotated[Literal["counts", "quantiles"] | None, Meta(description=_FOR)] = (
        msgspec.field(name="for", default=None)
    )
    split: Count = 1
    label: Annotated[str, Meta(pattern=WORDS, description=_WORDS)] | None = None
    unit: Annotated[str, Meta(pattern=WORDS, description=_WORDS)] | None = None
    sum: Annotated[Sum | None, Meta(description=SUM_ALLOWED)] = None
    total_share: (
        Annotated[float, Meta(ge=0.01, le=0.9, description=_TOTAL_SHARE)] | None
    ) = None
    generation: Annotated[int, whole(1, 2**31 - 1)] = 1
    topic: Annotated[str, Meta(pattern=TOPIC_NAME, description=_TOPIC)] | None = None

    @property
    def mechanism(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def pure(self) -> bool:
        """Return whether epsilon is pure, and delta covers only the samplers."""
        return False

    @property
    def start_given(self) -> bool:
        return self.start is not None

    @property
    def start_ms(self) -> int:
        return 0 if self.start is None else _milliseconds(self.start)

    @property
    def horizon_ticks(self) -> int | None:
        return None if isinstance(self.horizon, str) else self.horizon

    @property
    def without_epochs(self) -> bool:
        """Return whether horizon = "never": sliding windows are published in place of epochs."""
        return self.horizon == NEVER

    @property
    def window_ticks(self) -> tuple[int, ...]:
        return tuple(window // self.tick_ms for window in self.windows)

    @property
    def hops(self) -> tuple[int, ...]:
        """Return the ticks between beginnings of each window of a histogram without epochs."""
        if not self.without_epochs:
            return ()
        return tuple(self.hop or default_hop(ticks) for ticks in self.window_ticks)

    @property
    def series(self) -> tuple[Series, ...]:
        """Return the published series: one of counts since the epoch began, without a window.

        Without epochs there is one for each window, in the order of `windows`.
        """
        if not self.without_epochs:
            return (Series(self.name, None),)
        return tuple(series_of(self.name, window) for window in self.windows)

    def outputs(self, topic: str) -> tuple[tuple[str, str], ...]:
        """Return the name and the topic of each series; `topic` is what the topics begin with."""
        return tuple((one.name, topic + one.suffix) for one in self.series)

    @property
    def grid(self) -> TickGrid:
        """Return the ticks and the epochs in which counts are published."""
        return TickGrid(
            tick_ms=self.tick_ms, start_ms=self.start_ms, horizon=self.horizon_ticks
        )

    @property
    def charged_once(self) -> bool:
        """Return whether it has one charge, ever: neither epochs nor periods of users."""
        return self.without_epochs and self.user_period is None

    @property
    def charge_grid(self) -> TickGrid:
        """Return the ticks and the epochs that are charged: without epochs, periods of users.

        With neither epochs nor a `user_period` there is one endless epoch, charged once.
        """
        ticks = self.user_period if self.without_epochs else self.horizon_ticks
        return TickGrid(tick_ms=self.tick_ms, start_ms=self.start_ms, horizon=ticks)

    @property
    def ticks(self) -> int:
        """Return the ticks of an epoch, for a mechanism that needs an end (`About.needs_end`)."""
        return self.horizon_ticks or 1

    @property
    def lane(self) -> Lane:
        """Return what stage 1 needs to know; equal lanes share contributions."""
        return Lane(
            tick_ms=self.tick_ms,
            start_ms=self.start_ms,
            max_items=self.max_items,
            # 0 means that contributions name an item's users, so that each counts once.
            max_count=0 if self.unique_users else self.max_count,
            max_items_per_user=self.max_items_per_user,
            # Stage 1 keeps nothing longer than a tick, unless it bounds users.
            horizon=None
            if self.max_items_per_user is None
            else self.charge_grid.horizon,
            view=self.view,
            split=self.split,
            sketch=self.source_counters,
        )

    @property
    def sum_lane(self) -> Lane | None:
        """Return the lane of sums: an item's number, in steps, is added each time it counts."""
        if self.sum is None:
            return None
        # Another name than that of the counts, which read no number.
        view = _view_name([*self._view_fields, self.sum])
        return self.lane._replace(max_count=self.sum.steps * self.max_count, view=view)

    @property
    def lanes(self) -> Sequence[Lane]:
        """Return the lanes of counts and, with `sum`, of sums."""
        sums = self.sum_lane
        return (self.lane,) if sums is None else (self.lane, sums)

    @property
    def _view_fields(self) -> list[object]:
        return [self.key, self.items, self.count, self.where_, self.buckets]

    @property
    def view(self) -> str:
        """Return the name of the histogram's view of an event; "" for that of `[events]`."""
        fields = self._view_fields
        return "" if fields == [None] * len(fields) else _view_name(fields)

    @classmethod
    def lists_labels(cls, values: Mapping[str, object]) -> bool:
        """Return whether a histogram with these settings has a declared domain."""
        return "domain" in cls.__struct_fields__

    @classmethod
    def compared_settings(cls, other: "HistogramConfig") -> Iterator[dict[str, Any]]:
        """Yield this mechanism's own settings with which a plan compares it with `other`."""
        yield {}

    @property
    def has_quantiles(self) -> bool:
        """Return whether all labels are shown at every tick, with Gaussian noise: see `About`."""
        return self.about.has_quantiles

    @property
    def subtracts(self) -> bool:
        """Return whether an item's change between ticks is its events' count plus noise."""
        return self.about.subtracts

    @property
    def protects_users(self) -> bool:
        """Return whether the analysis covers a user with items in different ticks.

        It does if the cost is a sum over the items touched: a user with m items in an epoch, each
        counted at most max_count times, costs the same as one event with m items of that count, and
        discovery is charged for every tick that may hold part of an item
        (`Mechanism.ticks_of_item`). It does not if an event is charged once per release (top-k
        picks, shared thresholds): the user enters up to m releases.
        """
        return self.about.per_item

    @property
    def candidates(self) -> int:
        """Return how many of the largest items may be shown at most (kbar); 0: any number."""
        return 0

    @property
    def source_counters(self) -> int:
        """Return the counters of a sketch that stage 1 counts with; 0: it counts exactly."""
        return 0

    @property
    def threshold_is_count(self) -> bool:
        """Return whether a threshold is a count, not a distance from another item's count."""
        return True

    @property
    def pays(self) -> str:
        """Return when the mechanism is better than plain counters, after its name."""
        return self.about.pays

    @property
    def discovery_step(self) -> int | None:
        """Return the step between ticks that may show new items; None if every tick may."""
        return None

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the queries on order statistics."""
        return ()

    @property
    def error_beta(self) -> float:
        """Return the probability with which the error bounds of an epoch may fail."""
        return ERROR_BETA

    def with_quick_thresholds(self) -> "HistogramConfig":
        """Return a configuration of the same noise whose thresholds take no time to compute."""
        return self

    def other_schedules(self, ticks: int) -> Iterator[dict[str, Any]]:
        """Yield settings that only change which ticks may show new items, and their thresholds."""
        return iter(())

    @property
    def shown_quantiles(self) -> tuple[float, ...]:
        """Return which quantiles of the bucketed numbers snapshots state, if any."""
        if self.buckets is None or not self.has_quantiles:
            return ()
        return DEFAULT_QUANTILES if self.quantiles is None else self.quantiles

    @property
    def ranks(self) -> bool:
        """Return whether the noise is that of ranks."""
        return self.for_ == "quantiles"

    @property
    def can_end(self) -> bool:
        """Return whether `end_share` may be set."""
        able = self.about.takes_end_share and "end_share" in KINDS[self.counter].takes
        return able and self.horizon_ticks is not None

    @property
    def declared(self) -> Sequence[str]:
        """Return the declared labels; none if the domain is unknown."""
        return getattr(self, "domain", None) or ()

    @property
    def domain_from(self) -> str:
        """Return the setting from which the declared labels come."""
        return "domain" if self.buckets is None else "buckets"

    def where(self) -> str:
        return f"histogram {self.name!r}: "

    def complaints(self) -> Iterator[str]:
        """Yield errors in combinations of settings that are each allowed."""
        # Time and budget.
        yield from self._never_complaints()
        if self.about.needs_end and self.horizon == "unbounded":
            yield f'horizon = "unbounded": mechanism = "{self.mechanism}" needs a number of ticks'
        if self.about.needs_epsilon and self.epsilon is None:
            yield f'epsilon is missing: mechanism = "{self.mechanism}" needs it, not rho'
        if self.epsilon is not None and self.rho is not None:
            yield f"epsilon = {self.epsilon} and rho = {self.rho}: exactly one of them"
        if self.epsilon is None and self.rho is None:
            yield "epsilon and rho are both missing: exactly one of them"
        if self.start is None and self.horizon == "unbounded":
            yield 'start is missing: horizon = "unbounded" needs it, such as 2026-11-21T00:00:00Z'
        if self.start is not None and (
            self.start < EPOCH or self.start.microsecond % 1000
        ):
            yield f"start = {display(self.start)}: from 1970-01-01T00:00:00Z on, in whole milliseconds"
        if self.bounds_rho is not None and not self.about.plain:
            payers = " and ".join(names_of(lambda about: about.plain))
            yield f"bounds_rho = {self.bounds_rho}: only in {payers}"
        yield from self._tick_complaints()
        yield from self._counter_complaints()

        # What is read from an event.
        if self.keys != "public":
            yield from label_complaints("keys", self.keys)
        key = self.key or ""
        if key.startswith("$") and key not in (RECORD_KEY, ALL_KEYS):
            yield f"key = {display(self.key)}: {KEY_ALLOWED}"
        yield from path_complaints(
            {"key": self.key, "items": self.items, "count": self.count}
        )
        yield from self._bucket_complaints()
        yield from self._sum_complaints()
        yield from label_complaints("domain", self.declared)
        yield from self._window_complaints()

    def _tick_complaints(self) -> Iterator[str]:
        """Yield an error if tick numbers, which begin at `start`, outgrow a counter before 2100."""
        endless = self.horizon_ticks is None and not self.about.needs_end
        if not endless or not self.about.counters:
            return
        # The last tick without a horizon, 2^40 - 1. `shortest_tick` looks ahead to 2100.
        last_tick = last_tick_of(None)
        least_ms = shortest_tick(self.start_ms, last_tick)
        if self.tick_ms >= least_ms:
            return
        complaint = (
            f'tick = "{format_duration(self.tick_ms)}": ticks are numbered from start on, '
            f"and pass 2^40 before the year 2100: set a tick of at least {format_duration(least_ms)}"
        )
        recent_ms = shortest_tick(_milliseconds(RECENT), last_tick)
        if recent_ms < least_ms:
            complaint += f", or start = {display(RECENT)} (or later) and a tick of at least {format_duration(recent_ms)}"
        yield complaint

    def _counter_complaints(self) -> Iterator[str]:
        """Yield what is wrong with the counter and the settings that only some counters take."""
        kind = KINDS[self.counter]
        if kind.is_beyond(self.horizon_ticks):
            yield f'counter = "{kind.kind}": needs a horizon of at most {kind.longest:,} ticks'
        counters = self.about.counters
        # A kind that `grows` keeps more per row with every tick, so it needs declared labels.
        if kind.grows and counters != "every":
            users = names_of(lambda about: about.counters == "every")
            yield f'counter = "{kind.kind}": only with a declared domain, in {" or ".join(users)}'
        if not counters and kind.kind != DEFAULT_COUNTER:
            yield f'counter = "{kind.kind}": mechanism = "{self.mechanism}" keeps no counter'
        elif self.radix is not None and "radix" not in kind.takes:
            yield f"radix = {self.radix}: only with {kinds_with('radix')}"
        if self.end_share is not None and not self.can_end:
            users = names_of(lambda about: about.takes_end_share)
            yield (
                f"end_share = {self.end_share}: only in {', '.join(users)}, with {kinds_with('end_share')} and a number "
                "of ticks as horizon"
            )

    def _window_complaints(self) -> Iterator[str]:
        """Yield what is wrong with `windows`."""
        if self.windows and not self.subtracts:
            able = _able(names_of(lambda about: about.subtracts))
            yield (
                f'windows is set: mechanism = "{self.mechanism}" has no counts whose changes could be reported; '
                f"these have: {able}"
            )
        epoch_ms = (self.horizon_ticks or math.inf) * self.tick_ms
        for number, window_ms in enumerate(self.windows):
            if window_ms % self.tick_ms:
                yield f"windows holds {window_ms} ms: a multiple of the tick, {self.tick_ms} ms"
            elif window_ms > epoch_ms:
                yield f"windows holds {window_ms} ms: at most the epoch, {epoch_ms} ms"
            elif window_ms in self.windows[:number]:
                yield f"windows holds {window_ms} ms more than once: every one only once"

    def _never_complaints(self) -> Iterator[str]:
        """Yield what does not go with `horizon = "never"`, or only with it."""
        if not self.without_epochs:
            for name in ("hop", "user_period"):
                value = getattr(self, name)
                if value is not None:
                    yield f'{name} = {value}: only with horizon = "never"'
            if self.unique_users:
                yield (
                    'unique_users = true: only with horizon = "never"; with epochs, max_count = 1 counts '
                    "every user of an item once an epoch"
                )
            return
        if not self.about.takes_horizon_never:
            users = " and ".join(names_of(lambda about: about.takes_horizon_never))
            yield f'horizon = "never": only in {users}'
        if self.counter != DEFAULT_COUNTER:
            yield f'counter = "{self.counter}": leave it out with horizon = "never", which has its own counter'
        if not self.windows:
            yield 'windows is missing: horizon = "never" needs it, such as ["1m", "1h", "1d"]'
            return
        yield from self._period_complaints()
        longest = max(self.windows)
        if longest > TICKS_MAX * self.tick_ms:
            yield f"windows holds {longest} ms: at most {TICKS_MAX:,} ticks without epochs"
        if self.hop is not None:
            yield from hop_complaints(self.hop, min(self.windows) // self.tick_ms)

    def _period_complaints(self) -> Iterator[str]:
        """Yield what does not go with users who are protected by period."""
        bound = self.max_items_per_user
        period = self.user_period
        if bound is None and period is not None:
            yield f'user_period = {period}: only with privacy.unit = "user" and max_items_per_user'
        elif bound is not None and period is None:
            yield (
                'user_period is missing: horizon = "never" with max_items_per_user needs it, such as "1h": what '
                "one user does in one such period is protected together"
            )
        if self.ranks and period is not None:
            yield f'user_period = {period}: not with for = "quantiles"'
        if not self.unique_users:
            return
        unique = "unique_users = true"
        if bound is None or period is None:
            yield f'{unique}: needs privacy.unit = "user", max_items_per_user and user_period'
            return
        shortest = min(self.windows)
        if period * self.tick_ms > shortest:
            yield (
                f"user_period = {period}: with {unique} at most the shortest window, {format_duration(shortest)}: "
                "in a longer period one user could come and go several times"
            )
        for name, plain in (("max_count", 1), ("split", 1)):
            value = getattr(self, name)
            if value != plain:
                yield f"{name} = {value}: leave it out with {unique}, which counts a user of an item once"
        for name in ("sum", "total_share"):
            if getattr(self, name) is not None:
                yield f"{name} is set: not with {unique}, which counts users and not what they do"

    def _bucket_complaints(self) -> Iterator[str]:
        """Yield what does not go with `buckets`, or only with them."""
        if self.quantiles is not None:
            given = f"quantiles = {display(self.quantiles)}"
            if self.buckets is None:
                yield f"{given}: only with buckets"
            elif not self.has_quantiles:
                able = _able(names_of(lambda about: about.has_quantiles))
                yield f"{given}: needs a mechanism that shows every bucket at every tick, with Gaussian noise: {able}"
            elif len(set(self.quantiles)) < len(self.quantiles):
                yield f"{given}: every one only once"
        if self.ranks:
            yield from self._rank_complaints()
        for name in ("label", "unit"):
            numbers = self.buckets is not None or self.sum is not None
            if not numbers and getattr(self, name) is not None:
                yield f"{name} = {display(getattr(self, name))}: only with buckets or sum"
        if self.buckets is not None:
            if not hasattr(self, "domain"):
                yield f'buckets is set: mechanism = "{self.mechanism}" has no declared domain'
            elif self.domain != self.buckets.labels:
                yield "domain: buckets define the labels, so leave it out"

    def _rank_complaints(self) -> Iterator[str]:
        """Yield what does not go with `for = "quantiles"`."""
        given = 'for = "quantiles"'
        if self.buckets is None:
            yield f"{given}: only with buckets"
        if not self.about.takes_for_quantiles:
            able = " and ".join(names_of(lambda about: about.takes_for_quantiles))
            yield f"{given}: only in {able}"
        if self.counter != DEFAULT_COUNTER:
            yield f'counter = "{self.counter}": with {given} only "{DEFAULT_COUNTER}"'
        if self.sum is not None:
            yield f"sum is set: not with {given}"

    def _sum_complaints(self) -> Iterator[str]:
        """Yield what is wrong with `sum` and `total_share`."""
        if self.sum is not None:
            yield from path_complaints({"sum.field": self.sum.field})
            if not self.about.takes_sum:
                yield f"sum is set: only in {' and '.join(names_of(lambda about: about.takes_sum))}"
            if self.sum.steps * self.max_count > STEPS_MAX:
                most = STEPS_MAX // self.sum.steps
                yield f"max_count = {self.max_count}: with {self.sum.steps:,} steps of sum at most {most:,}"
        if self.total_share is not None:
            if not self.about.takes_total_share:
                users = " and ".join(names_of(lambda about: about.takes_total_share))
                yield f"total_share = {self.total_share}: only in {users}, which hides items"
            if self.split > 1:
                yield f"total_share = {self.total_share}: only with split = 1: no part counts all items"
            if self.sum is not None and self.sum.share + self.total_share > SHARES_MAX:
                yield (
                    f"total_share = {self.total_share}: with sum.share = {self.sum.share} at most {SHARES_MAX}, "
                    "so that counts have a share too"
                )


def _able(names: Sequence[str]) -> str:
    """Return the names of suitable mechanisms as an error lists them.

    Those that are suitable only with a certain setting (`About.subtracts_with`) come last.
    """
    also = [
        f"{name} with {kind.about.subtracts_with}"
        for name, kind in declared().items()
        if kind.about.subtracts_with
    ]
    return ", ".join(names) + ", or " + ", or ".join(also)


def most_shown_by(config: HistogramConfig) -> int:
    """Return how many items a configuration shows at most, if a setting says so, else 0."""
    return getattr(config, "top_k", None) or getattr(config, "k", None) or 0


def kbar_of(config: HistogramConfig, least: int) -> int:
    """Return how many largest items a configuration looks at, its setting `kbar`.

    Without such a number return one to compare with, of at least `least`.
    """
    kbar = getattr(config, "kbar", None)
    return kbar if isinstance(kbar, int) else max(COMPARED_KBAR, least)


def declared() -> dict[str, type[HistogramConfig]]:
    """Return the configurations of all mechanisms imported so far by name, in order of tables."""
    kinds = [kind for kind in subclasses(HistogramConfig) if "about" in vars(kind)]
    kinds.sort(key=lambda kind: kind.about.order_in_tables)
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


def subclasses(kind: type[T]) -> Iterator[type[T]]:
    """Yield a class and all its subclasses, at any depth."""
    yield kind
    for narrower in kind.__subclasses__():
        yield from subclasses(narrower)


def names_of(ability: Callable[[About], bool]) -> list[str]:
    """Return the names of the mechanisms whose `about` has an ability."""
    return [name for name, kind in declared().items() if ability(kind.about)]


def _milliseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def _view_name(fields: Sequence[object]) -> str:
    """Return the name of a view of these fields: equal fields, equal name."""
    return blake2b(
        msgspec.json.encode(fields), digest_size=8, person=b"qc-view"
    ).hexdigest()


def label_complaints(field: str, labels: Sequence[str]) -> Iterator[str]:
    """Yield errors about labels of the setting `field` that are too long or occur twice."""
    for label in labels:
        if (size := len(label.encode())) > LABEL_BYTES_MAX:
            yield f"{field} holds {display(label)} of {size:,} bytes: at most {LABEL_BYTES_MAX:,} bytes"
    repeated = [label for label, times in Counter(labels).items() if times > 1]
    if repeated:
        yield f"{field} holds {display(repeated[0])} more than once: every one only once"
