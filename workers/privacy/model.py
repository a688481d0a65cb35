"""Data model of a plan: the object that `plan --json` prints, described in docs/plan.md.

Field names are an interface: fields may be added but not changed. A figure that is not defined is
null, such as the sd of counts for a mechanism that publishes none.
"sd" is the standard deviation of the noise, "worst" its largest value over the ticks, "rms" its
root mean square over them; "threshold" is the noisy count that an item must exceed to be shown
(null: no threshold hides items).
A label is the name of an item; a row is an item of a stream key. rho is the cost in zCDP, from
which epsilon follows. The setting `end_share` gives the last tick of an epoch less noise.
"""

from typing import Any, Literal

import msgspec

from workers.mechanisms.about import Bound, Figure
from workers.mechanisms.accounting import Guarantee


class Record(msgspec.Struct, frozen=True): ...


class Share(Record, frozen=True):
    """A named part of delta, such as "discovery" or "conversion"."""

    name: str
    delta: float


class Tick(Record, frozen=True):
    """Noise at one tick. `sd`: as a snapshot states it, of counts only; `noise_sd`: unrounded.

    `half_width_95`: the error of a count is at most this with probability 95 %.
    """

    tick: int
    sd: float | None
    threshold: float | None
    noise_sd: float
    mean_absolute_error: float | None
    half_width_95: float | None


class Bucket(Record, frozen=True):
    """Least and largest noise sd over a run of ticks."""

    first: int
    last: int
    least: float
    most: float


class Change(Record, frozen=True):
    """Noise of a count's change over a window, which is `ms` or `ticks` long.

    It is computed for windows that end at `ticks_computed` ticks of the epoch, among them the last
    (`last_sd`). `apart_sd` is what `rms_sd` would be if the counts at the two ends of a window had
    independent noise.
    """

    ms: int
    ticks: int
    ticks_computed: int
    least_sd: float
    most_sd: float
    rms_sd: float
    last_sd: float
    apart_sd: float


class Noise(Record, frozen=True):
    """Noise of a histogram over the ticks of an epoch.

    `on` says what it is added to, `law` how it is distributed. The epoch has `ticks_looked_at`
    ticks: `ticks` has some of them, `curve` all in ranges, `windows` the changes over windows.
    """

    on: str
    law: str
    ticks_looked_at: int
    worst_sd: float
    worst_tick: int
    rms_sd: float
    ticks: tuple[Tick, ...]
    curve: tuple[Bucket, ...]
    windows: tuple[Change, ...] = ()


class Thresholds(Record, frozen=True):
    """Range of the thresholds over the ticks; an item is shown once its noisy count exceeds one.

    `meaning` says what happens then. `ticks_computed` is the number of ticks looked at.
    `likely_from` is the true count from which on that happens with probability 95 % at any tick.
    """

    meaning: str
    least: float
    most: float
    most_tick: int
    ticks_computed: int
    likely_from: int


class Worst(Record, frozen=True):
    """Error bound for all counts of `items` items, with probability 1 - beta."""

    items: int
    error: float


class Segment(Record, frozen=True):
    """Error bound of a query's answers, such as a maximum, while its value is at most `up_to`.

    Segments are numbered from 1; the error grows from one to the next.
    """

    segment: int
    up_to: int
    error: float


class Error(Record, frozen=True):
    """Expected errors. `worst`, `segments` and `theorems` hold with probability 1 - `beta`.

    `worst` bounds all counts at all ticks at once; `segments` bound the answers to queries;
    `figures` are what else a mechanism states about its error.
    """

    beta: float
    mean_absolute_error: float | None
    worst: tuple[Worst, ...]
    segments: tuple[Segment, ...]
    figures: tuple[Figure, ...]
    theorems: tuple[Bound, ...]


class Size(Record, frozen=True):
    """Bytes for this many rows: in memory between the two figures, and on disk."""

    rows: int
    memory_least: int
    memory_most: int
    disk: int


class Memory(Record, frozen=True):
    """Bytes that a histogram takes; `row` says what a row is.

    `rows_most` is how many rows there can be (None: any number).
    In memory a row has four parts (`columns_per_row` to `state_per_row`); on disk it takes
    `disk_per_row`. A label is assumed to have `label_bytes`, which the columns and the disk
    include. A stream key takes `per_key` besides its rows. `sizes` adds it all up for some numbers
    of rows.
    """

    row: str
    label_bytes: int
    columns_per_row: int
    index_per_row: int
    noise_per_row: int
    state_per_row: int
    disk_per_row: int
    rows_most: int | None
    per_key: int
    sizes: tuple[Size, ...]
    note: str


class CounterChoice(Record, frozen=True):
    """A counter, the algorithm that adds noise to running counts, at the same budget.

    `chosen`: it is the one in use. If the mechanism answers queries, there is an `error`, else
    there are sds; `times_worst` is the worst, divided by that of the counter in use.
    `noise_per_row` is in bytes; `reason` says why the counter is not possible. `radix` None: it has
    none.
    """

    counter: str
    radix: int | None
    chosen: bool
    possible: bool = True
    reason: str = ""
    worst_sd: float | None = None
    rms_sd: float | None = None
    error: float | None = None
    times_worst: float | None = None
    noise_per_row: int | None = None


class EndChoice(Record, frozen=True):
    """Effect of an `end_share` (None: not set) on the noise over an epoch, at the same cost.

    `chosen`: it is the one in use; `recommended`: the best, if any is worth it. `offset` says how
    many places before tick 1 the counter begins; `curve` is over the epoch, `last_...` at its end.
    `last_threshold` is also None where it would take too long to find.
    """

    end_share: float | None
    chosen: bool
    recommended: bool
    offset: int
    worst_sd: float
    rms_sd: float
    last_sd: float
    last_threshold: float | None
    curve: tuple[Bucket, ...]


class Alternative(Record, frozen=True, kw_only=True):
    """A mechanism at the same budget; `chosen`: the one in use.

    `assumed` are settings that it needs and the histogram lacks; `answers` says what it publishes,
    `reason` why it is not possible; `error` bounds the errors of all counts at once, with
    probability 1 - `Error.beta`.
    """

    mechanism: str
    chosen: bool = False
    possible: bool
    assumed: dict[str, Any]
    answers: str
    reason: str = ""
    worst_sd: float | None = None
    rms_sd: float | None = None
    threshold: float | None = None
    error: float | None = None


class MeanError(Record, frozen=True):
    """Half the 95 % interval of the mean of an item with `count` events, at the worst tick.

    `middle` is for a mean in the middle of the range of numbers, `end` for one at an end of it.
    """

    count: int
    middle: float
    end: float


class SumPlan(Record, frozen=True):
    """Noise of the sums of a numeric `field` over an epoch, in the unit of its numbers.

    Numbers are cut to `low`..`high`, a range of so many `steps`. `share` is the sums' part of the
    budget, and `rho` what that comes to.
    """

    field: str
    low: float
    high: float
    step: float
    steps: int
    share: float
    rho: float
    worst_sd: float
    rms_sd: float
    means: tuple[MeanError, ...]


class AllItems(Record, frozen=True):
    """Noise of the count of all items of a stream key, as standard deviations (sd).

    `share` is its part of the budget, and `rho` what that comes to.
    """

    share: float
    rho: float
    worst_sd: float
    rms_sd: float


class OneWindow(Record, frozen=True):
    """A window's noise if nothing else were published at this budget."""

    worst_sd: float
    rms_sd: float
    threshold: float | None


class WindowPlan(Record, frozen=True, kw_only=True):
    """A window of a histogram without epochs, published as a series of its own, at every tick.

    ticks, hop, most_ticks   its length; it begins at multiples of `hop` ticks, so it covers `ticks`
                to `most_ticks` ticks
    sd_times_mu     worst and root mean square standard deviation times mu, the root of 2 rho of one
                item in all windows together: the noise of this window on one scale for any budget
    tested_for  ticks after its last event for which a hidden label is tested for this window
    likely_from true count shown with probability 95 % at any one tick
    kept        how many partial sums are stored for an item with events in all of the window
    alone       its noise if it were the histogram's only window; None if it is

    If all labels are shown, `threshold`, `tested_for` and `likely_from` are None.
    """

    series: str
    topic: str
    ms: int
    ticks: int
    hop: int
    most_ticks: int
    worst_sd: float
    worst_tick: int
    rms_sd: float
    sd_times_mu: tuple[float, float]
    mean_absolute_error: float | None
    half_width_95: float | None
    threshold: float | None
    tested_for: int | None
    likely_from: int | None
    kept: int
    sum: SumPlan | None = None
    all_items: AllItems | None = None
    alone: OneWindow | None = None


class PeriodsCost(Record, frozen=True):
    """What everything that one user does in so many periods costs; `epsilon` None: no guarantee."""

    periods: int
    rho: float
    epsilon: float | None
    delta: float


class UserPeriods(Record, frozen=True, kw_only=True):
    """The periods in which a histogram without epochs protects users.

    unique      whether users are counted, and not their events
    overlap     n periods cost at most min(n, overlap) n times the rho of one
    costs       of some numbers of periods that follow each other
    """

    ms: int
    ticks: int
    unique: bool
    overlap: float
    costs: tuple[PeriodsCost, ...]


class WithoutEpochs(Record, frozen=True, kw_only=True):
    """What `horizon = "never"` publishes: windows, charged together, once, ever.

    period      ticks after which noise and error repeat
    leaves_at   a shown label may leave at multiples of this many ticks, the longest window
    watched     ticks for which it is then published again once its noisy count passes a low bar
    rests       ticks after them for which it is neither published nor tested
    remembered  ticks after its last event for which a hidden label is known
    fresh_after events this many ticks apart or more share no noise: n of them cost n rho
    users       None: events are protected

    If all labels are shown, as they are declared, `leaves_at` and the next three are None.
    """

    period: int
    windows: tuple[WindowPlan, ...]
    leaves_at: int | None
    watched: int | None
    rests: int | None
    remembered: int | None
    fresh_after: int
    users: UserPeriods | None = None


class RankChoice(Record, frozen=True):
    """Noise at the worst tick of a histogram of numbers, for one value of the setting `for`.

    Of a bucket; of the rank of the median, which is the count below an edge less half of all (root
    mean square over the edges); of a range of `range_buckets` buckets (over where it begins).
    """

    purpose: str
    chosen: bool
    bucket_sd: float
    median_rank_sd: float
    range_buckets: int
    range_sd: float


class HistogramPlan(Record, frozen=True, kw_only=True):
    """Everything that `plan` says of one histogram; `keys` and `domain` are numbers of them.

    `keys` None: any stream key; `domain` None: labels are not declared; `horizon` None: epochs do
    not end, or there are none; `counter` None: the mechanism has none. `parameters` are all public
    parameters of the mechanism. `counters`, `ends` and `mechanisms` are the alternatives; `advice`
    says which are worth it.
    """

    name: str
    mechanism: str
    counter: str | None
    topic: str
    tick_ms: int
    horizon: int | None
    keys: int | None
    domain: int | None
    max_items: int
    max_count: int
    guarantee: Guarantee
    deltas: tuple[Share, ...]
    parameters: dict[str, Any]
    noise: Noise
    thresholds: Thresholds | None
    sum: SumPlan | None = None
    all_items: AllItems | None = None
    without_epochs: WithoutEpochs | None = None
    ranks: tuple[RankChoice, ...] = ()
    error: Error
    memory: Memory
    counters: tuple[CounterChoice, ...]
    ends: tuple[EndChoice, ...]
    mechanisms: tuple[Alternative, ...]
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Loss(Record, frozen=True):
    """Loss of a person with `events` events or user ids in every epoch; `void`: next to no promise.

    `epsilon` None: no promise at all. In histograms without epochs a person's events of the whole
    span count together.
    """

    events: int
    epsilon: float | None
    delta: float
    void: bool


class Span(Record, frozen=True):
    """Losses over `days` days, at most `epochs` epochs; `days` is None for one epoch.

    `without_epochs` says which of the histograms have none; if all, the losses are of all time.
    `weekly` is the loss of a person with one event a week, or a user seen once a week; None: no
    epoch ends.
    """

    days: int | None
    epochs: int
    losses: tuple[Loss, ...]
    without_epochs: Literal["none", "some", "all"] = "none"
    weekly: Loss | None = None


class Total(Record, frozen=True):
    """Joint guarantee of all `histograms` that one event, or user, counts in.

    `key` is the stream key that pays most (None: no particular one); `person` one person's loss. If
    `delta` is 1, nothing is promised, and `epsilon` is the sum of the epsilons.
    """

    unit: str
    histograms: tuple[str, ...]
    key: str | None
    rho: float
    epsilon: float
    delta: float
    deltas: tuple[Share, ...]
    epsilon_of_the_sum: float
    warnings: tuple[str, ...] = ()
    person: tuple[Span, ...] = ()


class Plan(Record, frozen=True):
    """A plan of all histograms of a worker, and their joint guarantee.

    `deliver_after_ms`: with `neighbours = "record"`, from the end of a tick to its delivery.
    """

    worker: str
    histograms: tuple[HistogramPlan, ...]
    total: Total
    deliver_after_ms: int | None = None
