"""The table of what one person loses: by events (or user ids) of theirs, over spans of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workers.plan.adding_up import Part
from workers.plan.model import Loss, Span
from workers.plan.person.group import converting, lost
from workers.plan.person.words import is_void, up_to

EVENTS = (1, 2, 5, 10, 50)
DAY_MS = 86_400_000
DAYS = (None, 1, 30, 365)
VOID = "void"


@dataclass(frozen=True, slots=True)
class Charge:
    """A mechanism's price for one epoch, and how long an epoch is; None where it has no end."""

    part: Part
    epoch_ms: int | None

    def epochs(self, days: int | None) -> int:
        """Return how many epochs such a span has, one begun counted in full."""
        if days is None or self.epoch_ms is None:
            return 1
        return max(1, -(-days * DAY_MS // self.epoch_ms))


def spans_of(*groups: Sequence[Charge]) -> tuple[Span, ...]:
    """Return what is lost over an epoch, a day, thirty days and a year.

    Args:
        groups: the mechanisms that count an event, at least one; a group for each kind of stream
            key, as somebody's events may have several. Rho and failures are convex in how many
            events have which key, so the largest of any group bounds every mixture.
    """
    return tuple(_span(groups, days) for days in DAYS)


def _span(groups: Sequence[Sequence[Charge]], days: int | None) -> Span:
    parts = [[replace(one.part, times=one.epochs(days)) for one in group] for group in groups]
    losses = []
    for events in EVENTS:
        epsilon, delta = _most([(*lost(group, events), converting(group)) for group in parts], events)
        losses.append(Loss(events=events, epsilon=epsilon, delta=delta, void=is_void(epsilon, delta)))
    return Span(days=days, epochs=max(part.times for group in parts for part in group), losses=tuple(losses))


def _most(found: Sequence[tuple[float | None, float, float]], events: int) -> tuple[float | None, float]:
    """Return what bounds every mixture, of (epsilon, delta, the part of delta that converts)."""
    epsilons, deltas, converted = zip(*found, strict=True)
    delta = max(deltas)
    if events > 1 and len(found) > 1:
        # Of a mixture one group's part converts, and failures are at most the largest.
        failures = max(one - part for one, part in zip(deltas, converted, strict=True))
        delta = math.nextafter(max(delta, max(converted) + failures), 2)
    if delta >= 1 or None in epsilons:
        return None, 1.0
    return max(epsilons), delta


def rows_of(spans: Sequence[Span], unit: str) -> tuple[list[str], list[list[str]]]:
    """Return the table as texts, headings and rows: figures rounded up, to three digits.

    A span that has no more epochs than the one before it is left out.
    """
    shown = [span for at, span in enumerate(spans) if not at or span.epochs > spans[at - 1].epochs]
    headings = [f"{unit}s" if unit == "event" else f"{unit} ids", *map(_heading, shown)]
    rows = [
        [f"{losses[0].events}", *(_cell(loss) for loss in losses)]
        for losses in zip(*(span.losses for span in shown), strict=True)
    ]
    return headings, rows


def explained(unit: str) -> str:
    """Return what the table's figures are."""
    whose = "events in every epoch" if unit == "event" else "user ids, who comes in every epoch"
    return (
        f"epsilon, and delta, for somebody with so many {whose}; {VOID}: epsilon is above 20 or delta 0.01 or more, "
        "so next to nothing is promised, or nothing"
    )


def _heading(span: Span) -> str:
    if span.days is None:
        return "an epoch"
    name = "a day" if span.days == 1 else "a year" if span.days == 365 else f"{span.days} days"
    return f"{name}: {span.epochs:,} epoch{'s' if span.epochs > 1 else ''}"


def _cell(loss: Loss) -> str:
    return VOID if loss.void or loss.epsilon is None else f"{up_to(loss.epsilon)}, {up_to(loss.delta, 2)}"
