"""The page of a plan: DIR/plan.html and the pictures DIR/plots/*.png and *.svg. Computed from settings; nothing in it is secret."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from workers.durations import format_duration
from workers.errors import SettingsError
from workers.files import write_whole
from workers.plan.model import HistogramPlan, Plan
from workers.plan.text import WIDTH, show
from workers.report.html import Html, element, items, page, pairs, picture
from workers.report.report import PLOTS

if TYPE_CHECKING:
    from workers.report.charts import Chart

PAGE = "plan.html"


def write_plan_report(directory: Path, plan: Plan) -> None:
    """Makes the page and its pictures.

    Raises:
        SettingsError: matplotlib is missing.
    """
    try:
        from workers.report import charts, charts_plan
    except ImportError as error:
        raise SettingsError("a report needs matplotlib: install quietcount[replay]") from error
    sections = [
        (one, [chart for chart in (charts_plan.noise_over_ticks(one), charts_plan.counters(one), charts_plan.mechanisms(one)) if chart])
        for one in plan.histograms
    ]  # fmt: skip
    body = page(f"Plan of {plan.worker}", charts_plan.CONTAINS, _body(plan, sections), exact=False)
    charts.write_charts(directory / PLOTS, [chart for _, drawn in sections for chart in drawn])
    write_whole(directory / PAGE, body)


def _body(plan: Plan, sections: list[tuple[HistogramPlan, list[Chart]]]) -> Iterator[Html]:
    yield element("h1", f"Plan of {plan.worker}")
    total = plan.total
    together = (
        f"All histograms together: epsilon {total.epsilon:.6g}, delta {total.delta:g} for one {total.unit} and epoch."
    )
    yield element("p", together, kind="lead")
    for one, charts in sections:
        yield element("h2", one.name)
        if one.advice:
            yield element("div", items(one.advice), kind="advice")
        yield _facts(one)
        for chart in charts:
            yield picture(chart)
    yield element("h2", "In full")
    yield element("p", "As the command prints it; docs/plan.md says how to read it.", kind="lead")
    yield Html("<pre>" + "\n".join(element("span", line).text for line in _lines(plan)) + "</pre>")


def _facts(one: HistogramPlan) -> Html:
    promise, noise = one.guarantee, one.noise
    horizon = "without an end" if one.horizon is None else f"{one.horizon:,} ticks"
    rows = [
        ("mechanism", one.mechanism + (f", counter {one.counter}" if one.counter else "")),
        ("epoch", f"{horizon} of {format_duration(one.tick_ms)}"),
        (f"for one {promise.unit}", f"epsilon {promise.epsilon:.6g}, delta {promise.delta:g}, rho {promise.rho:.6g}"),
        ("sd of the noise", f"{noise.rms_sd:,.4g} (root mean square), {noise.worst_sd:,.4g} at the worst tick, {noise.worst_tick:,}"),
    ]  # fmt: skip
    if one.thresholds is not None:
        found = one.thresholds
        rows.append(("threshold", f"{found.least:,.0f} to {found.most:,.0f}: {found.meaning}"))
    return pairs(rows)


def _lines(plan: Plan) -> list[str]:
    """The text of the command."""
    out = io.StringIO()
    show(plan, Console(file=out, width=WIDTH, highlight=False, color_system=None, legacy_windows=False))
    return [line.rstrip() for line in out.getvalue().splitlines()]
