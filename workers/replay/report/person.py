"""What settings promise, in words and as the table of what one person loses, for a page."""

from __future__ import annotations

from collections.abc import Sequence

from workers.privacy.phrasing import measures, verdict
from workers.privacy.plan.model import Span
from workers.privacy.total import NUMERICAL, Charge, Part, rows_of, spans_of, stated
from workers.replay.backtest.outcomes import Outcome
from workers.replay.report.pages import Table


def sentences(epsilon: float | None, delta: float, unit: str, sees: str) -> list[str]:
    """Return the promise in words; `sees` is what somebody sees, as in "all snapshots"."""
    whether = "any one event was counted" if unit == "event" else "any one user is among those counted"
    return [f"Whoever sees {sees}, keeps it and knows all else {verdict(epsilon, delta, whether)}", *measures(epsilon, delta)]


def table_of(spans: Sequence[Span], unit: str) -> Table:
    """Return the table of what one person loses."""
    headings, rows = rows_of(spans, unit)
    return Table(headings, rows, words=())


def spans_of_run(run: Outcome) -> tuple[Span, ...]:
    """Return what one person loses by a run's histogram alone."""
    return spans_of([Charge(_part(run), run.epoch_ms)])


def _part(run: Outcome) -> Part:
    row, settings = run.row, run.settings
    if settings.get("accounting") == "pure" or settings.get("release") == "pure":
        return Part(rho=row.rho, epsilon=row.epsilon, delta=row.delta, failures={NUMERICAL: row.delta}, pure=True)
    return stated(row.mechanism, row.rho, row.epsilon, row.delta)
