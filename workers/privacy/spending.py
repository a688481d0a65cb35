"""Privacy spending of a worker: per histogram, generation and epoch, in total, and under a ceiling.

`budget --json` prints a `Budget` (docs/budget.md). Field names are an interface: fields may be
added but not changed; a figure that does not apply is null. The source is a worker's release state:
identity, cost and published ticks of every generation, also of those no longer in the settings.
Reading it needs no key and no exact counts, and it says nothing of the content of events: snapshots
state ticks, ids and costs as well. An epoch is charged in full from its first tick; mechanisms that
answer until their budget is used up lose the rest at its end. A generation without epochs is
charged once, for all its windows and for ever, from its first tick.

Total for one event. The worker assigns an event one time (late events count in the open tick), the
same for all histograms. So the event lies in one tick and one epoch of each generation that
published at that time, and has one stream key and one owner partition. The total is therefore the
largest, over stream keys and times, of the composed cost of the generations that counted it.
Generations of one histogram overlap in time only if the width or start of their ticks changed; a
running one has no end. If histograms take the stream key from different fields, the event has one
key and one owner partition per field, and the costliest key of each field counts. Every sample on
which a generation's bounds were chosen counts, as it may hold any event. All totals are
converted at one delta, the largest sum that any of them needs, so the stated epsilon holds for
every event.

Total for one user, who may appear in every epoch with every key: all epochs of all generations add
up. No total is stated if a generation protected another unit: a user has many events; conversely,
removing one event of a user lets other pairs count, so a guarantee for users is none for events at
the same cost.

A generation is one set of settings of a histogram; a new one begins anew. An owner partition is a
share of the stream keys, whose owner publishes them and stores one `ReleaseProgress`; in it, a
"life" is what is stored of one generation. A `Charge` is a cost per epoch, with the epochs charged.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Literal, NamedTuple

from msgspec import structs

from workers.mechanisms.accounting import PrivacyCost
from workers.mechanisms.config.ticks import TickGrid
from workers.mechanisms.identity import series_id
from workers.pipeline.growth.owners import Owners, owner_of
from workers.pipeline.histogram import HistogramProgress
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling import (
    Ceiling,
    FullestWindow,
    all_charges,
    fullest_of,
    generations_of,
    parts_of,
    period_of,
    windows_of,
)
from workers.privacy.model import Record, Share, Span
from workers.privacy.outlook import Outlook, outlook_of
from workers.privacy.total import (
    EVER,
    Charge,
    Composed,
    charges_by_key,
    compose,
    epsilon_at,
    sample_of,
    spans_of,
    worst_group,
)
from workers.settings.settings import Settings

Status = Literal["running", "left out", "ended"]


class Epoch(Record, frozen=True):
    """An epoch that has published: its ticks, and the ids of its snapshots in all owner partitions.

    Without epochs it is all time, and the ids are those of every window, one window after another.
    """

    epoch: int
    first_tick: int
    last_tick: int
    ids: tuple[str, ...]


class Charged(Record, frozen=True):
    """What a generation charges one event, or user: the joint cost of `epochs` epochs.

    An event lies in one epoch, a user may be in all; `epsilon` None: no guarantee.
    """

    epochs: int
    rho: float
    epsilon: float | None
    delta: float


class Generation(Record, frozen=True):
    """A generation; `rho`, `epsilon` and `delta` are the cost of one epoch.

    Without epochs it has `windows` (ms), and that is the cost of all of them, for ever. If it then
    protects users, it is the cost of one period of `user_period` ticks, and `epochs` are periods.
    `published_from` and `published_to` are when its first tick begins and its last one ends, ms.
    Before it has published a tick these are None, and so is `charged`. `epochs` lists the newest of
    the `epochs_begun`.
    """

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
    deltas: tuple[Share, ...]
    published_from: int | None
    published_to: int | None
    ticks: int
    epochs_begun: int
    epochs: tuple[Epoch, ...]
    charged: Charged | None
    windows: tuple[int, ...] = ()
    user_period: int | None = None


class HistogramSpending(Record, frozen=True):
    """One histogram in `Budget`: its generations, oldest first.

    `generation_in_settings` is None if the settings no longer have it.
    """

    name: str
    generation_in_settings: int | None
    generations: tuple[Generation, ...]


class Counted(Record, frozen=True):
    """A part of the total; `worker` is set only for other workers.

    Of a part with 0 epochs only the sample counts on which its bounds were chosen.
    """

    histogram: str
    generation: int
    epochs: int
    worker: str | None = None


class Total(Composed, frozen=True):
    """Joint guarantee of everything in the state, for one event or user.

    `parts` is what it pays for, `key` the stream key that pays most (None: no particular one).
    """

    unit: str
    parts: tuple[Counted, ...]
    key: str | None


class NextEpoch(Record, frozen=True):
    """The next epoch of a histogram, and the epsilon of the fullest period once it is charged.

    `begins`, ms, is None for an epoch without an end: it is the only one, and has begun. `epsilon`
    None: no guarantee. `fits`: it stays within the ceiling.
    """

    histogram: str
    epoch: int
    begins: int | None
    epsilon: float | None
    fits: bool


class RemainingBudget(Record, frozen=True):
    """The ceiling, and what is left of it.

    begins, ends, epsilon   of the fullest period, in which most was spent, of those that touch the
                newest epochs; times in ms (None: unbounded), epsilon None: no guarantee
    parts       what was spent in it
    rho_left    what still fits into it
    next        the epochs that begin next, and whether each fits
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
    outlook: Outlook | None
    other_workers: tuple[str, ...]


class Budget(Record, frozen=True):
    """What `quietcount budget --json` prints for one worker (docs/budget.md).

    `state`: of the release-state topic, "empty" before its first record. `total` is None if nothing
    was published or units differ, and `not_in_total` then names the parts of the other unit.
    `not_begun`: histograms that have published nothing in the generation of the settings.
    `person`: one person's loss to the generations that run.
    """

    worker: str
    unit: str
    state: Literal["there", "empty", "missing"]
    histograms: tuple[HistogramSpending, ...]
    total: Total | None
    not_in_total: tuple[Counted, ...]
    not_begun: tuple[str, ...]
    person: tuple[Span, ...] = ()
    ceiling: RemainingBudget | None = None


class AllBudgets(Record, frozen=True):
    """Budgets of several workers on the same events, and their joint guarantee.

    `total` is None if nothing was published or units differ; `not_in_total` then names the workers
    that protect another unit.
    """

    workers: tuple[Budget, ...]
    unit: str
    total: Total | None
    not_in_total: tuple[str, ...]


class Piece(NamedTuple):
    """A generation in one owner partition, from its first to its last published global tick."""

    owner: int
    life: HistogramProgress
    running: bool
    first: int
    last: int


@dataclass(slots=True)
class Entry:
    """A generation in all owner partitions, with the ticks that each of them published (`pieces`).

    `grid` numbers its ticks, `charge` has its cost. Its `status` is "left out" if the settings no
    longer have it, though it has not ended.
    """

    name: str
    life: HistogramProgress
    grid: TickGrid
    charge: Charge
    pieces: list[Piece] = field(default_factory=list)
    status: Status = "ended"

    @property
    def first(self) -> int:
        """The first global tick that any owner has published."""
        return min(piece.first for piece in self.pieces)

    @property
    def last(self) -> int:
        return max(piece.last for piece in self.pieces)

    @property
    def epochs(self) -> range:
        """The epochs that have published a tick."""
        if not self.pieces:
            return range(0)
        return range(self.grid.epoch_of(self.first), self.grid.epoch_of(self.last) + 1)

    @property
    def charged(self) -> PrivacyCost:
        """What an event or user pays: an event lies in one epoch, a user may be in all."""
        begun = len(self.epochs)
        times = min(begun, 1) if self.life.unit == "event" else begun
        return replace(self.charge.cost, times=times)


def entries_of(
    states: Sequence[ReleaseProgress | None], settings: Settings
) -> list[Entry]:
    """Return every generation that the owners' `states` know, in the order of the settings.

    Histograms that are no longer in the settings come last. A state is None before its first
    record.
    """
    generations = generations_in(settings)
    stored: dict[bytes, Entry] = {}
    for owner, state in enumerate(states):
        if state is None:
            continue
        for life, running, grid, charge in generations_of(
            settings.worker.name, state, settings
        ):
            entry = stored.setdefault(
                charge.identity, Entry(charge.histogram, life, grid, charge)
            )
            # It has ended with this owner, so its keys are no longer known: it may serve all.
            if charge.keys is None:
                entry.charge = charge
            # Its published ticks are those in [first, next).
            if (
                life.first is not None
                and life.next is not None
                and life.next > life.first
            ):
                entry.pieces.append(
                    Piece(owner, life, running, life.first, life.next - 1)
                )
            if running:
                current = generations.get(entry.name) == life.generation
                entry.status = "running" if current else "left out"
    place = {config.name: i for i, config in enumerate(settings.histograms)}
    return sorted(
        stored.values(),
        key=lambda entry: (
            place.get(entry.name, len(place)),
            entry.name,
            entry.life.generation,
        ),
    )


def owners_of(states: Sequence[ReleaseProgress | None]) -> Owners:
    """Return how many owners there are: when they have just grown, not all states know it yet."""
    known = [Owners(one.owners, one.grown) for one in states if one is not None]
    return max(known, key=lambda one: one.number, default=Owners(max(1, len(states))))


def generations_in(settings: Settings) -> dict[str, int]:
    """Return the generation that the settings have of each histogram."""
    return {config.name: config.generation for config in settings.histograms}


# Generations that may count one event, and the stream key of that event if it is a declared one.
_Group = tuple[list["Entry"], str | None]
# With more combinations than this, an event is assumed to count in everything.
_CHOICES_MAX = 4_096


def total_of(
    unit: str, workers: Sequence[tuple[Sequence[Entry], Owners]]
) -> Total | None:
    """Return the joint total of workers on the same events; None if empty or of mixed units.

    A worker is its generations and its owner partitions; `unit` is "event" or "user".
    """
    published = [
        ([entry for entry in entries if entry.pieces], owners)
        for entries, owners in workers
    ]
    everything = list(chain(*(entries for entries, _ in published)))
    if not everything or any(entry.life.unit != unit for entry in everything):
        return None
    # What one event may count in, with its stream key. For users, or if there are too many
    # combinations, that is all that was published.
    groups: list[_Group] = [(everything, None)]
    if unit == "event":
        by_worker = [
            _payers_of_an_event(entries, owners)
            for entries, owners in published
            if entries
        ]
        if math.prod(map(len, by_worker)) <= _CHOICES_MAX:
            groups = [
                (list(chain(*(entries for entries, _ in choice))), choice[0][1])
                for choice in product(*by_worker)
            ]
    # By group: the generations that an event pays for, and what it pays.
    payments: list[list[tuple[Charge, PrivacyCost]]] = []
    for group, _ in groups:
        paid = [(entry.charge, entry.charged) for entry in group]
        # It may also be in the samples of generations in which it does not count.
        counting = {id(entry) for entry in group}
        paid += [
            (entry.charge, sample_of(entry.charge.cost))
            for entry in everything
            if id(entry) not in counting and entry.charge.cost.sample_rho
        ]
        payments.append(paid)
    worst, joint = worst_group([[cost for _, cost in paid] for paid in payments])
    several = len(workers) > 1
    # Name no key if the same running histograms serve all keys.
    served = {entry.charge.keys for entry in everything if entry.status == "running"}
    _, key = groups[worst]
    return Total(
        **structs.asdict(joint),
        unit=unit,
        parts=tuple(
            _counted(charge, cost, worker=several) for charge, cost in payments[worst]
        ),
        key=None if several or len(served) < 2 else key,
    )


def _unlike(entries: Sequence[Entry], unit: str) -> list[Entry]:
    """Return the published generations that protect another unit, so that no total holds."""
    return [entry for entry in entries if entry.pieces and entry.life.unit != unit]


def person_loss(
    entries: Sequence[Entry], unit: str, owners: Owners
) -> tuple[Span, ...]:
    """Return one person's loss from the generations that have not ended, or from all if all have.

    It is empty if nothing was published, or something that protects another unit.
    """
    published = [entry for entry in entries if entry.pieces]
    if not published or _unlike(entries, unit):
        return ()
    running = [entry for entry in published if entry.status != "ended"] or published
    groups = [running]
    if unit == "event":
        groups = [group for group, _ in _payers_of_an_event(running, owners)]
    return spans_of(*([entry.charge for entry in group] for group in groups))


def _payers_of_an_event(entries: Sequence[Entry], owners: Owners) -> list[_Group]:
    """Return every group of generations that may count the same event, each with a stream key.

    Generations of a group serve its stream key, in its owner partition, at the same time. A group
    within another costs no more, so it may be missing.
    """
    charges = [entry.charge for entry in entries]
    several_fields = len({charge.key_field for charge in charges}) > 1
    # By owner partition (None: any) and the entries, by index, that serve a stream key.
    served: dict[tuple[int | None, frozenset[int]], str | None] = {}
    for key, serving in charges_by_key(charges):
        partitions: Iterable[int | None] = range(owners.number)
        if several_fields:
            # The event has a stream key, and so an owner partition, for each field.
            partitions = [None]
        elif key is not None:
            # Its partition now, and those where it was when there were fewer owners.
            partitions = [owner_of(key, number) for number in owners.numbers]
        for owner in partitions:
            served.setdefault((owner, serving), key)
    groups: dict[frozenset[int], str | None] = {}
    for (owner, serving), key in served.items():
        for group in _at_one_time(entries, serving, owner):
            groups[group] = key  # the last of several keys
    if not groups:
        # No declared key lies with the owners that have published: take everything.
        groups[frozenset(range(len(entries)))] = None
    # Newest generations first: of equal losses the first is stated.
    return [
        ([entries[i] for i in sorted(group)], groups[group])
        for group in sorted(groups, key=sorted, reverse=True)
    ]


def _at_one_time(
    entries: Sequence[Entry], serving: Iterable[int], owner: int | None
) -> Iterator[frozenset[int]]:
    """Yield groups of entries, by index, that published at the same time; all are among `serving`.

    Only what the partition `owner` published counts; None: any. Every largest group is among them:
    it is complete when the last of its entries begins.
    """
    spans = [
        (
            entries[i].grid.start(piece.first),
            math.inf if piece.running else entries[i].grid.end(piece.last),
            i,
        )
        for i in serving
        for piece in entries[i].pieces
        # The parts of a split stream key lie in several partitions.
        if owner is None or piece.owner == owner or "split" in piece.life.description
    ]
    for begin, _, _ in spans:
        yield frozenset(i for first, end, i in spans if first <= begin < end)


def _counted(charge: Charge, cost: PrivacyCost, *, worker: bool = False) -> Counted:
    """Return `charge`, of which an event or user pays `cost`, as a part of a total.

    `worker`: also name the worker, as several are added up.
    """
    return Counted(
        histogram=charge.histogram,
        generation=charge.generation,
        epochs=0 if cost.only_sample else cost.times,
        worker=charge.worker if worker else None,
    )


_HALVINGS = 60


def remaining_budget(
    settings: Settings,
    states: Sequence[ReleaseProgress | None],
    other_charges: Sequence[Charge],
) -> RemainingBudget | None:
    """Return the unspent part of the ceiling, if any; `other_charges` are of other workers."""
    ceiling = Ceiling.of(settings.privacy)
    if ceiling is None:
        return None
    stored = [state for state in states if state is not None]
    charges = all_charges(settings, stored, other_charges)
    fullest = FullestWindow(None, None, 0.0, ())  # if nothing was charged
    if charges:
        fullest = fullest_of(
            ceiling.fullest(charges, *charge.span(charge.last), locate=True)
            for charge in charges
        )
    paid = list(parts_of(charges, fullest.counts, ceiling.unit))
    return RemainingBudget(
        max_epsilon=ceiling.epsilon,
        max_delta=ceiling.delta,
        period=settings.privacy.period,
        begins=_finite(fullest.begin),
        ends=_finite(fullest.end),
        epsilon=fullest.epsilon,
        rho_left=_rho_left(ceiling, [cost for _, cost in paid], fullest),
        parts=tuple(
            _counted(charge, cost, worker=charge.worker != settings.worker.name)
            for charge, cost in paid
        ),
        next=tuple(_next(ceiling, settings, stored, other_charges)),
        outlook=outlook_of(ceiling, settings, stored, other_charges),
        other_workers=tuple(sorted({charge.worker for charge in other_charges})),
    )


def _rho_left(
    ceiling: Ceiling, paid: Sequence[PrivacyCost], fullest: FullestWindow
) -> float:
    """Return the largest rho, by bisection, that the fullest period still has room for.

    `paid` is what one event or user pays in it.
    """
    if not ceiling.holds(fullest.epsilon):
        return 0.0
    low = 0.0
    high = 1e4  # more than any ceiling allows
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # It is known as zCDP only: an epsilon this large never helps to compose it as a pure one.
        more = PrivacyCost(middle, 1e9, 0.0)
        if ceiling.holds(epsilon_at([*paid, more], ceiling.delta)):
            low = middle
        else:
            high = middle
    return low


def _next(
    ceiling: Ceiling,
    settings: Settings,
    stored: Sequence[ReleaseProgress],
    other_charges: Sequence[Charge],
) -> Iterator[NextEpoch]:
    """Yield the next epoch of every histogram that has begun, as if it were charged now."""
    for config in settings.histograms:
        if config.charged_once:
            continue  # nothing more begins
        lives = (state.histograms.get(config.name) for state in stored)
        ticks = [
            life.next
            for life in lives
            if life is not None
            and life.generation == config.generation
            and life.next is not None
        ]
        if not ticks:
            # A histogram that has not begun has no stored price; `plan` computes it.
            continue
        epoch = config.charge_grid.epoch_of(max(ticks))
        charges = all_charges(settings, stored, other_charges, {config.name: epoch})
        generation = (settings.worker.name, config.name, config.generation)
        charge = next(
            charge for charge in charges if charge.generation_id == generation
        )
        fullest = ceiling.fullest(charges, *charge.span(epoch), locate=True)
        yield NextEpoch(
            histogram=config.name,
            epoch=epoch,
            begins=_finite(charge.span(epoch)[0]),
            epsilon=fullest.epsilon,
            fits=ceiling.holds(fullest.epsilon),
        )


def _finite(milliseconds: int | None) -> int | None:
    """Return a time, None for one that means "always"."""
    return None if milliseconds is None or abs(milliseconds) >= EVER else milliseconds


# Only the newest epochs are listed; all are charged.
EPOCHS_LISTED = 1_000


def budget_of(
    settings: Settings,
    states: Sequence[ReleaseProgress | None] | None,
    other_charges: Sequence[Charge] = (),
) -> Budget:
    """Return a worker's spending.

    `states` are those of its owner partitions, each None before its first record; None without a
    topic for them. `other_charges` are those of other workers on the same events.
    """
    entries = entries_of(states or (), settings)
    owners = owners_of(states or ())
    unit = settings.privacy.unit
    generations = generations_in(settings)
    begun = {(entry.name, entry.life.generation) for entry in entries if entry.pieces}
    state: Literal["there", "empty", "missing"] = "missing"
    if states is not None:
        state = "there" if any(states) else "empty"
    return Budget(
        worker=settings.worker.name,
        unit=unit,
        state=state,
        histograms=tuple(
            HistogramSpending(
                name=name,
                generation_in_settings=generations.get(name),
                generations=tuple(
                    _generation(entry) for entry in entries if entry.name == name
                ),
            )
            for name in dict.fromkeys(entry.name for entry in entries)
        ),
        total=total_of(unit, [(entries, owners)]),
        not_in_total=tuple(
            _counted(entry.charge, entry.charged) for entry in _unlike(entries, unit)
        ),
        not_begun=tuple(
            name for name, number in generations.items() if (name, number) not in begun
        ),
        person=person_loss(entries, unit, owners),
        ceiling=remaining_budget(settings, states or (), other_charges),
    )


def budget_of_all(
    workers: Sequence[
        tuple[Settings, Sequence[ReleaseProgress | None] | None, Sequence[Charge]]
    ],
) -> AllBudgets:
    """Return the budgets of workers on the same events; a worker has the arguments of `budget_of`.

    The first one's settings say what is protected.
    """
    unit = workers[0][0].privacy.unit
    entries = {
        settings.worker.name: (
            entries_of(states or (), settings),
            owners_of(states or ()),
        )
        for settings, states, _ in workers
    }
    return AllBudgets(
        workers=tuple(budget_of(*worker) for worker in workers),
        unit=unit,
        total=total_of(unit, list(entries.values())),
        not_in_total=tuple(
            worker for worker, (found, _) in entries.items() if _unlike(found, unit)
        ),
    )


def _generation(entry: Entry) -> Generation:
    """Return a generation as `budget --json` prints it."""
    life = entry.life
    grid = entry.grid
    epochs = entry.epochs
    period = period_of(life)
    charged = None
    if epochs:
        cost = entry.charged
        joint = compose([cost])
        charged = Charged(
            epochs=cost.times, rho=joint.rho, epsilon=joint.epsilon, delta=joint.delta
        )
    return Generation(
        generation=life.generation,
        mechanism=str(life.description.get("mechanism", "")),
        status=entry.status,
        topic=str(life.description.get("topic", "")),
        unit=life.unit,
        tick_ms=grid.tick_ms,
        # Where users are charged for periods, the grid's horizon is a period.
        horizon=grid.horizon if period is None else None,
        user_period=None if period is None else period.ticks,
        rho=life.rho,
        epsilon=life.epsilon,
        delta=life.delta,
        deltas=tuple(
            Share(name=name, delta=delta) for name, delta in life.deltas.items()
        ),
        published_from=grid.start(entry.first) if epochs else None,
        published_to=grid.end(entry.last) if epochs else None,
        ticks=entry.last - entry.first + 1 if epochs else 0,
        epochs_begun=len(epochs),
        epochs=tuple(_epoch(entry, grid, epoch) for epoch in epochs[-EPOCHS_LISTED:]),
        charged=charged,
        windows=windows_of(life, grid),
    )


def _epoch(entry: Entry, grid: TickGrid, epoch: int) -> Epoch:
    """Return an epoch over all owner partitions, with the ids that its snapshots have in each.

    The ids differ where the partitions' first ticks do; without epochs each window has its own.
    """
    # Global ticks, as in an entry; the result numbers ticks from the epoch's first one.
    begin = 1 if grid.horizon is None else (epoch - 1) * grid.horizon + 1
    end = entry.last if grid.horizon is None else epoch * grid.horizon
    inside = [
        piece for piece in entry.pieces if piece.first <= end and piece.last >= begin
    ]
    windows = windows_of(entry.life, grid)
    ids = (
        # Without epochs, snapshots have epoch 1 in their ids, whatever the period of users.
        series_id(piece.life.description, piece.first, 1 if windows else epoch, window)
        for window in windows or (None,)
        for piece in inside
    )
    return Epoch(
        epoch=epoch,
        first_tick=max(begin, entry.first) - begin + 1,
        last_tick=min(end, entry.last) - begin + 1,
        ids=tuple(dict.fromkeys(ids)),
    )
