"""The table of what one person loses: by events (or user ids) of theirs, over spans of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workers.plan.adding_up import Part
from workers.plan.model import Loss, Span
from workers.plan.person.group import lost
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


def spans_of(charges: Sequence[Charge]) -> tuple[Span, ...]:
    """Return what is lost over an epoch, a day, thirty days and a year.

    Args:
        charges: of the mechanisms that count each event, at least one.
    """
    return tuple(_span(charges, days) for days in DAYS)


def _span(charges: Sequence[Charge], days: int | None) -> Span:
    parts = [replace(one.part, times=one.epochs(days)) for one in charges]
    losses = []
    for events in EVENTS:
        epsilon, delta = lost(parts, events)
        losses.append(Loss(events=events, epsilon=epsilon, delta=delta, void=is_void(epsilon, delta)))
    return Span(days=days, epochs=max(part.times for part in parts), losses=tuple(losses))


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
