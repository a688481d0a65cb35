"""What a worker has spent: by histogram, generation and epoch, and in total.

An epoch is charged in full from its first tick: its budget is one mechanism's, whatever its later
ticks show. That includes mechanisms that answer until their budget is used up: what is left at the
end of an epoch is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.mechanisms.config.ticks import TickGrid
from workers.mechanisms.identity import mechanism_id
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling.charges import Charge
from workers.privacy.plan.model import Share
from workers.privacy.spending.left import left_of
from workers.privacy.spending.model import AllBudgets, Budget, Charged, Epoch, Generation, Histogram
from workers.privacy.spending.state import Entry, entries_of, generations_in
from workers.privacy.spending.total import person_of, total_of, total_of_all
from workers.privacy.total import together
from workers.settings.settings import Settings

# If there are more, only the newest epochs are listed; all of them are charged.
EPOCHS_LISTED = 1_000


def budget_of(
    settings: Settings, states: Sequence[ReleaseProgress | None] | None, others: Sequence[Charge] = ()
) -> Budget:
    """Return what was spent, from the states that `read_states` returned.

    `others` is what other workers on the same events have charged, which a ceiling counts too.
    """
    entries = entries_of(states or (), settings)
    wanted = generations_in(settings)
    begun = {(entry.name, entry.life.generation) for entry in entries if entry.pieces}
    names = list(dict.fromkeys(entry.name for entry in entries))
    total, outside = total_of(entries, settings, len(states or ()))
    return Budget(
        worker=settings.worker.name,
        unit=settings.privacy.unit,
        state="missing" if states is None else "there" if any(states) else "empty",
        histograms=tuple(
            Histogram(
                name=name,
                generation_in_settings=wanted.get(name),
                generations=tuple(_generation(entry) for entry in entries if entry.name == name),
            )
            for name in names
        ),
        total=total,
        not_in_total=outside,
        not_begun=tuple(name for name, generation in wanted.items() if (name, generation) not in begun),
        person=person_of(entries, settings, len(states or ())),
        ceiling=left_of(settings, states or (), others),
    )


def budget_of_all(
    all_: Sequence[tuple[Settings, Sequence[ReleaseProgress | None] | None, Sequence[Charge]]],
) -> AllBudgets:
    """Return what several workers on the same events have spent, each and all together."""
    total, outside = total_of_all(
        {one.worker.name: (entries_of(states or (), one), one, len(states or ())) for one, states, _ in all_}
    )
    return AllBudgets(
        workers=tuple(budget_of(*one) for one in all_),
        unit=all_[0][0].privacy.unit,
        total=total,
        not_in_total=outside,
    )


def _generation(entry: Entry) -> Generation:
    life, grid, epochs = entry.life, entry.grid, entry.epochs
    charged = None
    if epochs:
        found = together([entry.part])
        charged = Charged(epochs=entry.charged_epochs, rho=found.rho, epsilon=found.epsilon, delta=found.delta)
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
        deltas=None
        if life.deltas is None
        else tuple(Share(name=name, delta=delta) for name, delta in life.deltas.items()),
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
    inside = [piece for piece in entry.pieces if piece.first <= end and piece.last >= begin]
    ids = (mechanism_id(piece.life.description, piece.first, epoch).hex() for piece in inside)
    return Epoch(
        epoch=epoch,
        first_tick=grid.split(max(begin, entry.first))[1],
        last_tick=grid.split(min(end, entry.last))[1],
        ids=tuple(dict.fromkeys(ids)),
    )
