"""What a plan says, as data: the object that `plan --json` prints, described in docs/plan.md.

Numbers are numbers; a figure that does not apply is null. Names here are an interface: they may be
added to, not changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from workers.mechanisms.mechanism import Guarantee


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every part of a plan."""


class Share(Record, frozen=True, kw_only=True):
    """One part of delta, by what it is spent on."""

    name: str
    delta: float


class Printed(Record, frozen=True, kw_only=True):
    """A figure as a paper's own formula gives it, beside ours."""

    name: str
    ours: float
    printed: float
    formula: str
    source: str


class Tick(Record, frozen=True, kw_only=True):
    """The noise of one tick as published, and what follows from it."""

    tick: int
    sd: float | None
    threshold: float | None
    noise_sd: float
    mean_absolute_error: float | None
    half_width_95: float | None


class Bucket(Record, frozen=True, kw_only=True):
    """Least and largest sd of the noise over a run of ticks."""

    first: int
    last: int
    least: float
    most: float


class Change(Record, frozen=True, kw_only=True):
    """The noise of the change of a count over a window, at ticks of which it is not the beginning.

    `apart_sd` is what two independent counts would leave, root mean square as `rms_sd`.
    """

    ms: int
    ticks: int
    ticks_computed: int
    least_sd: float
    most_sd: float
    rms_sd: float
    last_sd: float
    apart_sd: float


class Noise(Record, frozen=True, kw_only=True):
    """The noise over the ticks that were looked at."""

    on: str
    law: str
    ticks_looked_at: int
    worst_sd: float
    worst_tick: int
    rms_sd: float
    ticks: tuple[Tick, ...]
    curve: tuple[Bucket, ...]
    windows: tuple[Change, ...] = ()


class Thresholds(Record, frozen=True, kw_only=True):
    """The counts from which on an item can be shown."""

    meaning: str
    least: float
    most: float
    most_tick: int
    ticks_computed: int
    likely_from: int


class Worst(Record, frozen=True, kw_only=True):
    """The error bound for all counts of this many items, with probability 1 - beta."""

    items: int
    error: float


class Segment(Record, frozen=True, kw_only=True):
    """The error promised while a watched value is at most `up_to`."""

    segment: int
    up_to: int
    error: float


class Figure(Record, frozen=True, kw_only=True):
    """A further number of one mechanism."""

    name: str
    value: float
    meaning: str


class TheoremError(Record, frozen=True, kw_only=True):
    """An error that the mechanism's own theorem promises, with probability 1 - beta.

    `printed` is the paper's own figure, `ours` that for what is built here.
    """

    name: str
    bounds: str
    assumes: str
    beta: float
    ours: float
    printed: float | None
    source: str


class Error(Record, frozen=True, kw_only=True):
    """The error to expect."""

    beta: float
    mean_absolute_error: float | None
    worst: tuple[Worst, ...]
    segments: tuple[Segment, ...]
    figures: tuple[Figure, ...]
    theorems: tuple[TheoremError, ...]


class Size(Record, frozen=True, kw_only=True):
    """Bytes for a number of rows in one owner partition."""

    rows: int
    memory_least: int
    memory_most: int
    disk: int


class Memory(Record, frozen=True, kw_only=True):
    """The cost of a row in memory and on disk."""

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


class CounterChoice(Record, frozen=True, kw_only=True):
    """One counter that this mechanism can have, at the same cost."""

    counter: str
    radix: int | None
    chosen: bool
    possible: bool
    reason: str = ""
    worst_sd: float | None = None
    rms_sd: float | None = None
    error: float | None = None
    times_worst: float | None = None
    noise_per_row: int | None = None


class EndChoice(Record, frozen=True, kw_only=True):
    """What one `end_share` does to the noise over an epoch, at the same cost; None: not set."""

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
    """One mechanism for the same or a near question, at the same budget."""

    mechanism: str
    chosen: bool
    possible: bool
    assumed: dict[str, Any]
    answers: str
    reason: str = ""
    worst_sd: float | None = None
    rms_sd: float | None = None
    threshold: float | None = None
    error: float | None = None


class HistogramPlan(Record, frozen=True, kw_only=True):
    """One histogram."""

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
    printed: tuple[Printed, ...]
    noise: Noise
    thresholds: Thresholds | None
    error: Error
    memory: Memory
    counters: tuple[CounterChoice, ...]
    ends: tuple[EndChoice, ...]
    mechanisms: tuple[Alternative, ...]
    advice: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class Loss(Record, frozen=True, kw_only=True):
    """What somebody with so many events, or user ids, in every epoch of a span loses.

    `epsilon` is None, and `delta` 1, where nothing is promised; `void`: it counts as nothing.
    """

    events: int
    epsilon: float | None
    delta: float
    void: bool


class Span(Record, frozen=True, kw_only=True):
    """A time over which it is lost: an epoch where `days` is None. `epochs`: at most, in it."""

    days: int | None
    epochs: int
    losses: tuple[Loss, ...]


class Total(Record, frozen=True, kw_only=True):
    """The joint guarantee of all histograms that one event counts in."""

    unit: str
    histograms: tuple[str, ...]
    key: str | None
    rho: float
    epsilon: float
    delta: float
    deltas: tuple[Share, ...]
    epsilon_of_the_sum: float
    epsilon_printed: float | None
    warnings: tuple[str, ...] = ()
    person: tuple[Span, ...] = ()


class Plan(Record, frozen=True, kw_only=True):
    """The plan of a settings file."""

    worker: str
    histograms: tuple[HistogramPlan, ...]
    total: Total
