"""What is left of a ceiling: how full the newest periods are, and whether the next epochs fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from workers.mechanisms.config.ticks import TickGrid
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling.ceiling import Ceiling, Held, parts_of
from workers.privacy.ceiling.charges import EVER, Charge, charges_of, merged
from workers.privacy.spending.model import Counted, Left, NextEpoch
from workers.privacy.total import Part, epsilon_at
from workers.settings.settings import Settings

_HALVINGS = 60


def left_of(
    settings: Settings, states: Sequence[ReleaseProgress | None], others: Sequence[Charge] = ()
) -> Left | None:
    """Return what is left of the ceiling; None if the settings have none.

    Args:
        settings: of the worker.
        states: of its owner partitions.
        others: what other workers on the same events have charged.
    """
    ceiling = Ceiling.of(settings.privacy)
    if ceiling is None:
        return None
    own = [charge for state in states if state is not None for charge in charges_of(settings.worker.name, state, settings)]
    charges = merged([*own, *others])
    held = _fullest(ceiling, charges, [(charge, charge.last) for charge in charges])
    paid = [part for _, part in parts_of(charges, held.counts, ceiling.unit)]
    return Left(
        max_epsilon=ceiling.epsilon,
        max_delta=ceiling.delta,
        period=settings.privacy.period,
        begins=_finite(held.begin),
        ends=_finite(held.end),
        epsilon=held.epsilon,
        rho_left=_rho_left(ceiling, paid, held),
        parts=tuple(
            Counted(
                histogram=charge.histogram, generation=charge.generation, epochs=part.times,
                worker=None if charge.worker == settings.worker.name else charge.worker,
            )
            for charge, part in parts_of(charges, held.counts, ceiling.unit)
        ),
        next=tuple(_next(ceiling, settings, [state for state in states if state is not None], others)),
        other_workers=tuple(sorted({charge.worker for charge in others})),
    )  # fmt: skip


def _fullest(ceiling: Ceiling, charges: Sequence[Charge], epochs: Sequence[tuple[Charge, int]]) -> Held:
    found = [ceiling.fullest(charges, *charge.span(epoch), named=True) for charge, epoch in epochs]
    nothing = Held(None, None, 0.0, (0,) * len(charges))
    return max(found, key=lambda held: math.inf if held.epsilon is None else held.epsilon, default=nothing)


def _rho_left(ceiling: Ceiling, paid: Sequence[Part], held: Held) -> float:
    """Return how much rho may be added, rounded down."""
    low, high = 0.0, 1e4
    if not ceiling.holds(held.epsilon):
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # No epsilon of its own: it is only known as zCDP.
        more = Part(rho=middle, epsilon=1e9, delta=0.0)
        if ceiling.holds(epsilon_at([*paid, more], ceiling.delta)):
            low = middle
        else:
            high = middle
    return low


def _next(
    ceiling: Ceiling, settings: Settings, states: Sequence[ReleaseProgress], others: Sequence[Charge]
) -> Iterator[NextEpoch]:
    """Yield the next epoch of each histogram that runs, or that has a place to begin."""
    for config in settings.histograms:
        grid = TickGrid(tick_ms=config.tick_ms, start_ms=config.start_ms, horizon=config.horizon_ticks)
        ticks = []
        for state in states:
            life = state.histograms.get(config.name)
            if life is not None and life.generation == config.generation and life.next is not None:
                ticks.append(life.next)
        if not ticks:
            # One that has not begun needs a price, which only its mechanism knows: `plan` says it.
            continue
        epoch = grid.split(max(ticks))[0]
        charges = merged(
            [
                *(
                    charge
                    for state in states
                    for charge in charges_of(settings.worker.name, state, settings, {config.name: epoch})
                ),
                *others,
            ]
        )
        for charge in charges:
            mine = (charge.worker, charge.histogram, charge.generation)
            if mine == (settings.worker.name, config.name, config.generation):
                held = _fullest(ceiling, charges, [(charge, epoch)])
                begins = _finite(charge.span(epoch)[0])
                yield NextEpoch(
                    histogram=config.name, epoch=epoch, begins=begins, epsilon=held.epsilon, fits=ceiling.holds(held.epsilon)
                )
                break


def _finite(milliseconds: int | None) -> int | None:
    return None if milliseconds is None or abs(milliseconds) >= EVER else milliseconds
