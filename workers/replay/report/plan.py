"""Write the page of a plan, DIR/plan.html, and its charts, DIR/plots/*; none of it is secret."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from workers.privacy.plan.model import HistogramPlan, Plan
from workers.privacy.plan.text import show
from workers.privacy.total import explained
from workers.replay.report import charts_plan
from workers.replay.report.charts import draw_each, write_charts
from workers.replay.report.pages import page, sentences, table_of
from workers.replay.report.report import PLOTS
from workers.runtime.printing import WIDTH
from workers.settings.durations import format_duration
from workers.settings.files import write_whole

PAGE = "plan.html"


def write_plan_report(directory: Path, plan: Plan) -> None:
    sections = [
        (one, list(_facts(one)), draw_each(charts_plan.drawings(one))) for one in plan.histograms
    ]
    printed, total = io.StringIO(), plan.total
    plain: Any = {"highlight": False, "color_system": None, "legacy_windows": False}
    show(plan, Console(file=printed, width=WIDTH, **plain))
    epsilon = None if total.delta >= 1 else total.epsilon
    warnings = [f"{one.name}: {text}" for one in plan.histograms for text in one.warnings]
    if len(plan.histograms) > 1:
        warnings += [f"all together: {text}" for text in total.warnings]
    body = page(
        "plan.html",
        title=f"Plan of {plan.worker}",
        contains=charts_plan.CONTAINS,
        exact=False,
        total=total,
        warnings=warnings,
        promise=sentences(epsilon, total.delta, total.unit, "all snapshots of an epoch"),
        person=table_of(total.person, total.unit),
        explained=explained(total.unit),
        sections=sections,
        text=[line.rstrip() for line in printed.getvalue().splitlines()],
    )
    write_charts(directory / PLOTS, [chart for _, _, drawn in sections for chart in drawn.charts])
    write_whole(directory / PAGE, body)


def _facts(one: HistogramPlan) -> Iterator[tuple[str, str]]:
    promise, noise, found = one.guarantee, one.noise, one.thresholds
    horizon = "without an end" if one.horizon is None else f"{one.horizon:,} ticks"
    budget = f"epsilon {promise.epsilon:.6g}, delta {promise.delta:g}, rho {promise.rho:.6g}"
    worst = f"{noise.worst_sd:,.4g} at the worst tick, {noise.worst_tick:,}"
    yield "mechanism", one.mechanism + (f", counter {one.counter}" if one.counter else "")
    yield "epoch", f"{horizon} of {format_duration(one.tick_ms)}"
    yield f"for one {promise.unit}", budget
    yield "sd of the noise", f"{noise.rms_sd:,.4g} (root mean square), {worst}"
    if found is not None:
        yield "threshold", f"{found.least:,.0f} to {found.most:,.0f}: {found.meaning}"
