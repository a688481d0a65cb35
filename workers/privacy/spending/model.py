"""What was spent, as data: the object that `budget --json` prints, described in docs/budget.md.

A figure that does not apply is null. Names here are an interface: they may be added to, not
changed. Nothing in it is learned from events: snapshots state ticks, ids and prices as well.
"""

from __future__ import annotations

from typing import Literal

from workers.privacy.plan.model import Record, Share, Span

Status = Literal["running", "left out", "ended"]


class Epoch(Record, frozen=True, kw_only=True):
    """One epoch: its published ticks, and the mechanism ids in their snapshots."""

    epoch: int
    first_tick: int
    last_tick: int
    ids: tuple[str, ...]


class Charged(Record, frozen=True, kw_only=True):
    """What a generation charges one event or user."""

    epochs: int
    rho: float
    epsilon: float | None
    delta: float


class Generation(Record, frozen=True, kw_only=True):
    """One generation; `rho`, `epsilon` and `delta` are the price of each of its epochs."""

    generation: int
    mechanism: str
    status: Status
    topic: str
    unit: str
    tick_ms: int
    horizon: int | None
    rho: float
    epsilon: float
    delta: float
    deltas: tuple[Share, ...] | None
    published_from: int | None
    published_to: int | None
    ticks: int
    epochs_begun: int
    epochs: tuple[Epoch, ...]
    charged: Charged | None


class Histogram(Record, frozen=True, kw_only=True):
    """One histogram of the state."""

    name: str
    generation_in_settings: int | None
    generations: tuple[Generation, ...]


class Counted(Record, frozen=True, kw_only=True):
    """One part of the total; `worker` where it is not the one that the budget is of."""

    histogram: str
    generation: int
    epochs: int
    worker: str | None = None


class Total(Record, frozen=True, kw_only=True):
    """What everything in the state promises together, for one event or user."""

    unit: str
    epsilon: float | None
    delta: float
    rho: float
    deltas: tuple[Share, ...]
    epsilon_of_the_sum: float
    parts: tuple[Counted, ...]
    key: str | None


class NextEpoch(Record, frozen=True, kw_only=True):
    """The epoch that a histogram begins next, and what the fullest period then holds."""

    histogram: str
    epoch: int
    begins: int | None
    epsilon: float | None
    fits: bool


class Left(Record, frozen=True, kw_only=True):
    """The ceiling of the settings, and what is left of it.

    `begins`, `ends` and `epsilon` are of the fullest period that touches the newest epochs, and
    `rho_left` is how much more zCDP fits into it.
    """

    max_epsilon: float
    max_delta: float
    period: str
    begins: int | None
    ends: int | None
    epsilon: float | None
    rho_left: float
    parts: tuple[Counted, ...]
    next: tuple[NextEpoch, ...]
    other_workers: tuple[str, ...]


class Budget(Record, frozen=True, kw_only=True):
    """The budget of one worker."""

    worker: str
    unit: str
    state: Literal["there", "empty", "missing"]
    histograms: tuple[Histogram, ...]
    total: Total | None
    not_in_total: tuple[Counted, ...]
    not_begun: tuple[str, ...]
    person: tuple[Span, ...] = ()
    ceiling: Left | None = None


class AllBudgets(Record, frozen=True, kw_only=True):
    """The budgets of several workers on the same events, and what all of it promises together."""

    workers: tuple[Budget, ...]
    unit: str
    total: Total | None
    not_in_total: tuple[str, ...]
