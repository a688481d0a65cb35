"""Privacy spending of a worker: per histogram, generation and epoch, in total, and under a ceiling.

`budget --json` prints a `Budget` (docs/budget.md). Field names are an interface: fields may be
added but not changed; a figure that does not apply is null. The source is a worker's release state:
identity, cost and published ticks of every generation, also of those no longer in the settings.
Reading it needs no key and no exact counts, and it says nothing of the content of events: snapshots
state ticks, ids and costs as well. An epoch is charged in full from its first tick; mechanisms that
answer until their budget is used up lose the rest at its end.

Total for one event. The worker assigns an event one time (late events count in the open tick), the
same for all histograms. So the event lies in one tick and one epoch of each generation that
published at that time, and has one stream key and one owner partition. The total is therefore the
largest, over stream keys and times, of the composed cost of the generations that counted it.
Generations of one histogram overlap in time only if the width or start of their ticks changed; a
running one has no end. If histograms take the stream key from different fields, the event has one
key per field and all of them count. All totals are converted at one delta, the largest sum that any
of them needs, so the stated epsilon holds for every event.

Total for one user, who may appear in every epoch with every key: all epochs of all generations add
up. No total is stated if a generation protected another unit: a user has many events; conversely,
removing one event of a user lets other pairs count, so a guarantee for users is none for events at
the same cost.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    charges_of,
    fullest_of,
    generations_of,
    merge,
    parts_of,
)
from workers.privacy.model import Record, Share, Span
from workers.privacy.outlook import Outlook, outlook_of
from workers.privacy.total import (
    EVER,
    Charge,
    Composed,
    by_key,
    compose,
    epsilon_at,
    spans_of,
    worst_group,
)
from workers.settings.settings import Settings

Status = Literal["running", "left out", "ended"]


class Epoch(Record, frozen=True, kw_only=True):
    epoch: int
    first_tick: int
    last_tick: int
    ids: tuple[str, ...]


class Charged(Record, frozen=True, kw_only=True):
    epochs: int
    rho: float
    epsilon: float | None
    delta: float


class Generation(Record, frozen=True, kw_only=True):
    """A generation; `rho`, `epsilon` and `delta` are the cost of one epoch."""

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


class Histogram(Record, frozen=True, kw_only=True):
    name: str
    generation_in_settings: int | None
    generations: tuple[Generation, ...]


class Counted(Record, frozen=True, kw_only=True):
    """A part of the total; `worker` is set only for other workers."""

    histogram: str
    generation: int
    epochs: int
    worker: str | None = None


class Total(Composed, frozen=True, kw_only=True):
    """Joint guarantee of everything in the state, for one event or user."""

    unit: str
    parts: tuple[Counted, ...]
    key: str | None


class NextEpoch(Record, frozen=True, kw_only=True):
    """The next epoch of a histogram, and the epsilon of the fullest period once it is charged."""

    histogram: str
    epoch: int
    begins: int | None
    epsilon: float | None
    fits: bool


class RemainingBudget(Record, frozen=True, kw_only=True):
    """The ceiling, the `rho_left` that still fits into the fullest period, and what that allows.

    `begins`, `ends`, `epsilon` describe that period, among those that touch the newest epochs.
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


class Budget(Record, frozen=True, kw_only=True):
    worker: str
    unit: str
    state: Literal["there", "empty", "missing"]
    histograms: tuple[Histogram, ...]
    total: Total | None
    not_in_total: tuple[Counted, ...]
    not_begun: tuple[str, ...]
    person: tuple[Span, ...] = ()
    ceiling: RemainingBudget | None = None


class AllBudgets(Record, frozen=True, kw_only=True):
    """Budgets of several workers on the same events, and their joint guarantee."""

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
    """A generation in all owner partitions; two settings with the same number are two entries."""

    name: str
    life: HistogramProgress
    grid: TickGrid
    charge: Charge
    pieces: list[Piece] = field(default_factory=list)
    status: Status = "ended"

    @property
    def first(self) -> int:
        return min(piece.first for piece in self.pieces)

    @property
    def last(self) -> int:
        return max(piece.last for piece in self.pieces)

    @property
    def epochs(self) -> range:
        if not self.pieces:
            return range(0)
        return range(self.grid.split(self.first)[0], self.grid.split(self.last)[0] + 1)

    @property
    def charged(self) -> PrivacyCost:
        """The cost of all epochs for a user, of one for an event, which falls in one."""
        begun = len(self.epochs)
        times = min(begun, 1) if self.life.unit == "event" else begun
        return replace(self.charge.cost, times=times)


def entries_of(
    states: Sequence[ReleaseProgress | None], settings: Settings
) -> list[Entry]:
    """Return every generation, in the order of the settings, others last."""
    wanted = generations_in(settings)
    found: dict[bytes, Entry] = {}
    for owner, state in enumerate(states):
        stored = (
            ()
            if state is None
            else generations_of(settings.worker.name, state, settings)
        )
        for life, running, grid, charge in stored:
            key = charge.identity + b"%d" % life.generation
            entry = found.setdefault(key, Entry(charge.histogram, life, grid, charge))
            if charge.keys is None:
                entry.charge = charge
            if (
                life.first is not None
                and life.next is not None
                and life.next > life.first
            ):
                entry.pieces.append(
                    Piece(owner, life, running, life.first, life.next - 1)
                )
            if running:
                current = wanted.get(entry.name) == life.generation
                entry.status = "running" if current else "left out"
    place = {config.name: i for i, config in enumerate(settings.histograms)}
    return sorted(
        found.values(),
        key=lambda entry: (
            place.get(entry.name, len(place)),
            entry.name,
            entry.life.generation,
        ),
    )


def owners_of(states: Sequence[ReleaseProgress | None]) -> Owners:
    """Return how many owners the states know, which may not hold yet."""
    known = [Owners(one.owners, one.grown) for one in states if one is not None]
    return max(known, key=lambda one: one.number, default=Owners(max(1, len(states))))


def generations_in(settings: Settings) -> dict[str, int]:
    return {config.name: config.generation for config in settings.histograms}


# With more combinations than this, an event is assumed to count in everything.
_CHOICES_MAX = 4_096


def total_of(
    entries: Sequence[Entry], settings: Settings, owners: Owners
) -> tuple[Total | None, tuple[Counted, ...]]:
    """Return the total, None if empty or of mixed units, and the generations of another unit."""
    unit = settings.privacy.unit
    published = [entry for entry in entries if entry.pieces]
    unlike = [entry for entry in published if entry.life.unit != unit]
    outside = tuple(_counted(entry.charge, entry.charged) for entry in unlike)
    if outside or not published:
        return None, outside
    if unit == "user":
        return _total(
            unit, published, compose([entry.charged for entry in published]), None
        ), ()
    keys = dict(_sets(published, owners))
    order = sorted(keys, key=sorted, reverse=True)  # of equal ones, the last is stated
    groups = [_of(published, group) for group in order]
    worst, found = worst_group([[entry.charged for entry in group] for group in groups])
    # Name no key if the same running histograms serve all keys.
    served = {entry.charge.keys for entry in published if entry.status == "running"}
    key = keys[order[worst]] if len(served) > 1 else None
    return _total(unit, groups[worst], found, key), ()


def person_loss(
    entries: Sequence[Entry], settings: Settings, owners: Owners
) -> tuple[Span, ...]:
    """Return one person's loss from the generations that have not ended, or else from all."""
    published = [entry for entry in entries if entry.pieces]
    if not published or any(
        entry.life.unit != settings.privacy.unit for entry in published
    ):
        return ()
    running = [entry for entry in published if entry.status != "ended"] or published
    if settings.privacy.unit == "user":
        return spans_of([entry.charge for entry in running])
    groups = {group for group, _ in _sets(running, owners)}
    return spans_of(
        *([entry.charge for entry in _of(running, group)] for group in groups)
    )


def total_of_all(
    unit: str, found: Mapping[str, Sequence[Entry]], owners: Mapping[str, Owners]
) -> tuple[Total | None, tuple[str, ...]]:
    """Return the joint total of workers on the same events, and the workers with another unit."""
    published = {
        worker: [e for e in entries if e.pieces] for worker, entries in found.items()
    }
    outside = tuple(
        worker
        for worker, entries in published.items()
        if any(e.life.unit != unit for e in entries)
    )
    published = {worker: entries for worker, entries in published.items() if entries}
    if outside or not published:
        return None, outside
    # Users, or too many combinations: take everything.
    choices = [list(chain(*published.values()))]
    if unit == "event":
        sets = [
            [_of(entries, group) for group, _ in _sets(entries, owners[worker])]
            for worker, entries in published.items()
        ]
        if math.prod(map(len, sets)) <= _CHOICES_MAX:
            choices = [list(chain(*choice)) for choice in product(*sets)]
    worst, joint = worst_group(
        [[entry.charged for entry in choice] for choice in choices]
    )
    return _total(unit, choices[worst], joint, None, workers=True), ()


def _of(entries: Sequence[Entry], group: Iterable[int]) -> list[Entry]:
    return [entries[i] for i in sorted(group)]


def _sets(
    entries: Sequence[Entry], owners: Owners
) -> Iterator[tuple[frozenset[int], str | None]]:
    """Yield every set of generations that counts one event, and its key if declared."""
    charges = [entry.charge for entry in entries]
    if len({charge.key for charge in charges}) > 1:
        # The event has a stream key and an owner partition per field.
        yield from (
            (group, None) for group in _at_one_time(entries, range(len(entries)), None)
        )
        return
    seen: set[tuple[int, frozenset[int]]] = set()
    for key, serving in by_key(charges):
        # One key may have moved; at each time it lay with one of these.
        own = (
            range(owners.number)
            if key is None
            else [owner_of(key, n) for n in owners.numbers]
        )
        for owner in own:
            if (owner, serving) not in seen:
                seen.add((owner, serving))
                for group in _at_one_time(entries, serving, owner):
                    yield group, key


def _at_one_time(
    entries: Sequence[Entry], serving: Iterable[int], owner: int | None
) -> Iterator[frozenset[int]]:
    """Yield sets of generations that published at the same time, in partition `owner` or any."""
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
    # Every largest set begins where a generation begins.
    for begin, _, _ in spans:
        yield frozenset(i for first, end, i in spans if first <= begin < end)


def _counted(charge: Charge, cost: PrivacyCost, *, worker: bool = False) -> Counted:
    return Counted(
        histogram=charge.histogram,
        generation=charge.generation,
        epochs=cost.times,
        worker=charge.worker if worker else None,
    )


def _total(
    unit: str,
    entries: Iterable[Entry],
    found: Composed,
    key: str | None,
    *,
    workers: bool = False,
) -> Total:
    parts = tuple(_counted(one.charge, one.charged, worker=workers) for one in entries)
    return Total(**structs.asdict(found), unit=unit, parts=parts, key=key)


_HALVINGS = 60


def remaining_budget(
    settings: Settings,
    states: Sequence[ReleaseProgress | None],
    others: Sequence[Charge] = (),
) -> RemainingBudget | None:
    """Return the unspent part of the ceiling, if any; `others` are other workers' charges."""
    ceiling = Ceiling.of(settings.privacy)
    if ceiling is None:
        return None
    known = [state for state in states if state is not None]
    worker = settings.worker.name
    charges = merge(
        [*chain(*(charges_of(worker, one, settings) for one in known)), *others]
    )
    nothing = FullestWindow(None, None, 0.0, (0,) * len(charges))
    newest = [
        ceiling.fullest(charges, *one.span(one.last), locate=True) for one in charges
    ]
    held = fullest_of(newest or [nothing])
    paid = list(parts_of(charges, held.counts, ceiling.unit))
    return RemainingBudget(
        max_epsilon=ceiling.epsilon,
        max_delta=ceiling.delta,
        period=settings.privacy.period,
        begins=_finite(held.begin),
        ends=_finite(held.end),
        epsilon=held.epsilon,
        rho_left=_rho_left(ceiling, [cost for _, cost in paid], held),
        parts=tuple(
            _counted(one, cost, worker=one.worker != worker) for one, cost in paid
        ),
        next=tuple(_next(ceiling, settings, known, others)),
        outlook=outlook_of(ceiling, settings, known, others),
        other_workers=tuple(sorted({charge.worker for charge in others})),
    )


def _rho_left(
    ceiling: Ceiling, paid: Sequence[PrivacyCost], held: FullestWindow
) -> float:
    low = 0.0
    high = 1e4
    if not ceiling.holds(held.epsilon):
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # Known only as zCDP, so it has no useful pure epsilon.
        more = PrivacyCost(middle, 1e9, 0.0)
        if ceiling.holds(epsilon_at([*paid, more], ceiling.delta)):
            low = middle
        else:
            high = middle
    return low


def _next(
    ceiling: Ceiling,
    settings: Settings,
    known: Sequence[ReleaseProgress],
    others: Sequence[Charge],
) -> Iterator[NextEpoch]:
    for config in settings.histograms:
        grid = config.grid
        lives = [
            one.histograms[config.name]
            for one in known
            if config.name in one.histograms
        ]
        running = (life.next for life in lives if life.generation == config.generation)
        ticks = [tick for tick in running if tick is not None]
        if not ticks:
            # A histogram that has not begun has no stored price; `plan` computes it.
            continue
        epoch = grid.split(max(ticks))[0]
        worker = settings.worker.name
        beginning = {config.name: epoch}
        own = (charges_of(worker, state, settings, beginning) for state in known)
        charges = merge([*chain(*own), *others])
        key = (worker, config.name, config.generation)
        charge = next(
            one for one in charges if (one.worker, one.histogram, one.generation) == key
        )
        held = ceiling.fullest(charges, *charge.span(epoch), locate=True)
        yield NextEpoch(
            histogram=config.name,
            epoch=epoch,
            begins=_finite(charge.span(epoch)[0]),
            epsilon=held.epsilon,
            fits=ceiling.holds(held.epsilon),
        )


def _finite(milliseconds: int | None) -> int | None:
    return None if milliseconds is None or abs(milliseconds) >= EVER else milliseconds


# Only the newest epochs are listed; all are charged.
EPOCHS_LISTED = 1_000


def budget_of(
    settings: Settings,
    states: Sequence[ReleaseProgress | None] | None,
    others: Sequence[Charge] = (),
) -> Budget:
    """Return a worker's spending; `states` are from `read_states`, `others` charges of others."""
    entries = entries_of(states or (), settings)
    wanted = generations_in(settings)
    begun = {(entry.name, entry.life.generation) for entry in entries if entry.pieces}
    names = list(dict.fromkeys(entry.name for entry in entries))
    total, outside = total_of(entries, settings, owners_of(states or ()))
    return Budget(
        worker=settings.worker.name,
        unit=settings.privacy.unit,
        state="missing" if states is None else "there" if any(states) else "empty",
        histograms=tuple(
            Histogram(
                name=name,
                generation_in_settings=wanted.get(name),
                generations=tuple(
                    _generation(entry) for entry in entries if entry.name == name
                ),
            )
            for name in names
        ),
        total=total,
        not_in_total=outside,
        not_begun=tuple(
            name for name, number in wanted.items() if (name, number) not in begun
        ),
        person=person_loss(entries, settings, owners_of(states or ())),
        ceiling=remaining_budget(settings, states or (), others),
    )


def budget_of_all(
    all_: Sequence[
        tuple[Settings, Sequence[ReleaseProgress | None] | None, Sequence[Charge]]
    ],
) -> AllBudgets:
    """Return the budgets of workers on the same events: (settings, states, other charges)."""
    entries = {
        one.worker.name: entries_of(states or (), one) for one, states, _ in all_
    }
    owners = {one.worker.name: owners_of(states or ()) for one, states, _ in all_}
    total, outside = total_of_all(all_[0][0].privacy.unit, entries, owners)
    return AllBudgets(
        workers=tuple(budget_of(*one) for one in all_),
        unit=all_[0][0].privacy.unit,
        total=total,
        not_in_total=outside,
    )


def _generation(entry: Entry) -> Generation:
    life = entry.life
    grid = entry.grid
    epochs = entry.epochs
    charged = None
    if epochs:
        begun = entry.charged.times
        found = compose([entry.charged])
        charged = Charged(
            epochs=begun, rho=found.rho, epsilon=found.epsilon, delta=found.delta
        )
    return Generation(
        generation=life.generation,
        mechanism=str(life.description.get("mechanism", "")),
        status=entry.status,
        topic=str(life.description.get("topic", "")),
        unit=life.unit,
        tick_ms=grid.tick_ms,
        horizon=grid.horizon,
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
    )


def _epoch(entry: Entry, grid: TickGrid, epoch: int) -> Epoch:
    """Return an epoch over all owner partitions; their ids differ if their first ticks do."""
    begin = 1 if grid.horizon is None else (epoch - 1) * grid.horizon + 1
    end = entry.last if grid.horizon is None else epoch * grid.horizon
    inside = [
        piece for piece in entry.pieces if piece.first <= end and piece.last >= begin
    ]
    ids = (series_id(piece.life.description, piece.first, epoch) for piece in inside)
    return Epoch(
        epoch=epoch,
        first_tick=grid.split(max(begin, entry.first))[1],
        last_tick=grid.split(min(end, entry.last))[1],
        ids=tuple(dict.fromkeys(ids)),
    )
