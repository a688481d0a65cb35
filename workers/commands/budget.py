"""`quietcount budget`: the privacy spent by every histogram, its composition, and the ceiling."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from workers.agents.topics import connection_of
from workers.pipeline.merge import ReleaseProgress
from workers.pipeline.progress import read_states
from workers.privacy.ceiling_guard import OtherWorkers, moment, overlap
from workers.privacy.phrasing import cautions
from workers.privacy.spending import (
    AllBudgets,
    Budget,
    Counted,
    Epoch,
    Generation,
    Histogram,
    Left,
    Total,
    budget_of,
    budget_of_all,
)
from workers.privacy.total import Charge, explained, rows_of
from workers.runtime.errors import SettingsError
from workers.runtime.progress import ProgressLine
from workers.settings.durations import format_duration
from workers.settings.settings import Settings


class Say(Protocol):
    def __call__(self, text: str, indent: int = 0, style: str = "") -> None: ...


def show_ceiling(left: Left, unit: str, say: Say) -> None:
    period = "an epoch" if left.period == "epoch" else f"any {left.period}"
    say(
        f"ceiling: epsilon {left.max_epsilon!r} at delta {left.max_delta!r} for one {unit}, in {period}",
        style="bold",
    )
    if not left.parts:
        say("nothing is charged yet, so all of it is left", 2)
    else:
        when = (
            ""
            if left.begins is None or left.ends is None
            else f", {moment(left.begins)} to {moment(left.ends)},"
        )
        held = (
            "holds no promise at that delta"
            if left.epsilon is None
            else f"holds epsilon {left.epsilon:.9g}"
        )
        say(f"the fullest of the newest periods{when} {held}", 2)
        named = (
            f"{part.histogram} generation {part.generation}"
            + ("" if part.worker is None else f" of worker {part.worker}")
            + (f" ({part.epochs:,} epochs)" if part.epochs > 1 else "")
            for part in left.parts
        )
        say(f"it holds: {', '.join(named)}", 2)
        say(f"left in it: rho {left.rho_left:.6g}", 2)
    for one in left.next:
        begins = "" if one.begins is None else f", from {moment(one.begins)}"
        epsilon = "no promise" if one.epsilon is None else f"epsilon {one.epsilon:.9g}"
        verdict = "fits" if one.fits else "does not fit: the worker ends before it"
        say(
            f"next of {one.histogram}: epoch {one.epoch:,}{begins}, which makes {epsilon}: {verdict}",
            2,
        )
    if left.other_workers:
        say(
            f"counted with it, since they count the same events: {', '.join(left.other_workers)}", 2
        )


WIDTH = 100
# If there are many epochs, the text shows only the oldest and the newest.
OLDEST, NEWEST = 2, 8


def show_budget(settings: Sequence[Settings], *, as_json: bool) -> int:
    """Print the spent budget, as one JSON object (docs/budget.md) if `as_json`; return exit code 0.

    Args:
        settings: of one worker, or of several on the same events.

    Raises:
        SettingsError: no broker answers, or the workers count different events.
        StateRefused: the state is of another version.
        KafkaException: the state cannot be read.
    """
    _check_together(settings)
    with ProgressLine() as progress:
        read = [_read(one, progress) for one in settings]
    console = Console(highlight=False)
    if len(read) == 1:
        budget = budget_of(*read[0])
        _print(budget, as_json, lambda: show(budget, console, settings[0].release_state_topic))
    else:
        budgets = budget_of_all(read)
        _print(
            budgets,
            as_json,
            lambda: show_all(budgets, console, [one.release_state_topic for one in settings]),
        )
    return 0


def _read(
    settings: Settings, progress: ProgressLine
) -> tuple[Settings, list[ReleaseProgress | None] | None, list[Charge]]:
    connection = connection_of(settings)
    states = read_states(connection, settings.worker.name, progress.update)
    # Other workers' spending counts only toward a ceiling.
    others = (
        [] if settings.privacy.max_epsilon is None else OtherWorkers(settings, connection).charges()
    )
    return settings, states, others


def _check_together(settings: Sequence[Settings]) -> None:
    first, named = settings[0], set[str]()
    for one in settings:
        if one.worker.name in named:
            raise SettingsError(
                f"worker.name = {one.worker.name!r} is in two of the settings files: each worker once"
            )
        named.add(one.worker.name)
        counted = (
            {one.events.topics.pattern}
            if one.events.topics.pattern
            else set(one.events.topics.names)
        )
        if not overlap({name for name in counted if name}, first.events.topics):
            raise SettingsError(
                f"worker {one.worker.name} counts {one.events.topics}, and worker {first.worker.name} counts "
                f"{first.events.topics}: no event is in both, so nothing adds up"
            )


def _print(found: Budget | AllBudgets, as_json: bool, as_text: Callable[[], None]) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n")
    else:
        as_text()


def show_all(budgets: AllBudgets, console: Console, topics: Sequence[str]) -> None:
    for budget, topic in zip(budgets.workers, topics, strict=True):
        show(budget, console, topic)
        console.print()
    names = ", ".join(budget.worker for budget in budgets.workers)
    _line(console, f"workers {names}, all together, for one {budgets.unit}", style="bold")
    if budgets.total is not None:
        _total(budgets.total, console)
    elif budgets.not_in_total:
        outside = ", ".join(budgets.not_in_total)
        _line(
            console,
            f"no total can be stated for one {budgets.unit}: {outside} protected another unit",
            2,
        )
    else:
        _line(console, "nothing has been published yet, so nothing is spent", 2)
    _line(
        console,
        "- not included: workers whose settings were not given, earlier workers whose topics were deleted, and anything "
        "else published about these events; all of it adds up",
        2,
    )


def show(budget: Budget, console: Console, topic: str) -> None:
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    if budget.state == "missing":
        _line(
            console,
            f"worker {budget.worker}: topic {topic} does not exist on this cluster: this worker has never run here.",
        )
    elif not any(
        one.epochs_begun for histogram in budget.histograms for one in histogram.generations
    ):
        _line(
            console, f"worker {budget.worker}: nothing has been published yet, so nothing is spent."
        )
    else:
        _line(
            console,
            f"worker {budget.worker}: budget spent so far, from its release state",
            style="bold",
        )
        for histogram in budget.histograms:
            _histogram(histogram, console)
        _together(budget, console)
        if budget.person:
            _person(budget, console)
    if budget.ceiling is not None:
        console.print()
        show_ceiling(
            budget.ceiling,
            budget.unit,
            lambda text, indent=0, style="": _line(console, text, indent, style=style),
        )
    for sentence in _unseen(budget):
        _line(console, f"- {sentence}", 2)


def _histogram(histogram: Histogram, console: Console) -> None:
    console.print()
    known = "" if histogram.generation_in_settings is not None else " (not in the settings)"
    _line(console, f"{histogram.name}{known}", style="bold")
    for one in histogram.generations:
        _generation(one, histogram.generation_in_settings, console)


def _generation(one: Generation, wanted: int | None, console: Console) -> None:
    _line(
        console,
        f"generation {one.generation}: {one.mechanism}, {_status(one, wanted)}; topic {one.topic}",
        2,
    )
    price = f"epsilon {one.epsilon!r}, delta {one.delta!r}, rho {one.rho!r}"
    if not one.epochs_begun or one.charged is None:
        _line(
            console,
            f"no tick published, so nothing is spent. An epoch costs one {one.unit}: {price}",
            4,
        )
        return
    length = f"{one.horizon:,} ticks of {format_duration(one.tick_ms)}" if one.horizon else "no end"
    _line(
        console,
        f"an epoch ({length}) costs one {one.unit}, in full from its first tick: {price}",
        4,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("epoch", "ticks published", "of", "mechanism id"):
        table.add_column(
            Text(heading, style="dim"), justify="left" if heading == "mechanism id" else "right"
        )
    for row in _rows(one):
        table.add_row(*(Text(cell) for cell in row))
    console.print(Padding(table, (0, 0, 0, 4), expand=False))
    begun = f"{one.epochs_begun:,} epoch{'s' if one.epochs_begun > 1 else ''} begun, {one.ticks:,} ticks published"
    times = f"from {_time(one.published_from)} to {_time(one.published_to)}"
    _line(console, f"{begun}, {times}", 4)
    if one.unit == "event":
        _line(console, "charged to one event: one epoch, since it falls in one", 4)
    else:
        charged = f"epsilon {_number(one.charged.epsilon)} at delta {one.charged.delta:.9g} (rho {one.charged.rho:.6g})"
        _line(console, f"charged to one {one.unit}, who may be in all of them: {charged}", 4)
    if one.mechanism == "pay_what_you_get":
        _line(console, "labels and queries left unused in an epoch are charged all the same", 4)


def _status(one: Generation, wanted: int | None) -> str:
    if one.status == "running":
        return "running"
    if one.status == "left out":
        if wanted is None:
            return "not in the settings: no worker starts until it is put back, or ended by `quietcount retire`"
        return f"ends when the worker starts with these settings, which have generation {wanted}"
    return "ended"


def _rows(one: Generation) -> Iterator[Sequence[str]]:
    listed = one.epochs
    horizon = "" if one.horizon is None else f"{one.horizon:,}"
    if one.epochs_begun <= OLDEST + NEWEST:
        yield from (_row(epoch, horizon) for epoch in listed)
        return
    yield from (
        _row(epoch, horizon) for epoch in listed[:OLDEST] if len(listed) == one.epochs_begun
    )
    yield ("...", "", "", "")
    yield from (_row(epoch, horizon) for epoch in listed[-NEWEST:])


def _row(epoch: Epoch, horizon: str) -> Sequence[str]:
    more = f" and {len(epoch.ids) - 1} more" if len(epoch.ids) > 1 else ""
    ticks = f"{epoch.first_tick:,} to {epoch.last_tick:,}"
    return (f"{epoch.epoch:,}", ticks, horizon, f"{epoch.ids[0]}{more}" if epoch.ids else "")


def _together(budget: Budget, console: Console) -> None:
    console.print()
    _line(console, f"all together, for one {budget.unit}", style="bold")
    if budget.total is not None:
        _total(budget.total, console)
    elif budget.not_in_total:
        named = ", ".join(
            f"{one.histogram} generation {one.generation}" for one in budget.not_in_total
        )
        _line(
            console,
            f"no total can be stated for one {budget.unit}: {named} protected another unit",
            2,
        )


def _person(budget: Budget, console: Console) -> None:
    console.print()
    _line(console, "what one person loses", style="bold")
    headings, rows = rows_of(budget.person, budget.unit)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(Text(heading, style="dim"), justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    _line(console, explained(budget.unit), 2)


def _total(total: Total, console: Console) -> None:
    figure = f"epsilon {_number(total.epsilon)} at delta {total.delta:.9g} (rho {total.rho:.6g})"
    _line(
        console,
        figure if total.epsilon is not None else f"{figure}: nothing is promised",
        2,
        style="bold",
    )
    for warning in cautions(total.epsilon, total.delta, total.unit):
        _line(console, f"WARNING: {warning}", 2, style="bold red")
    who = f" (stream key {total.key!r}, which pays most)" if total.key is not None else ""
    _line(console, f"one {total.unit} counts in at most{who}: {', '.join(_parts(total.parts))}", 2)
    if len(total.parts) > 1 or total.parts[0].epochs > 1:
        _line(
            console,
            f"for comparison: the sum of the epsilons is {_number(total.epsilon_of_the_sum)}",
            2,
        )


def _parts(parts: Sequence[Counted]) -> Iterator[str]:
    for part in parts:
        times = f" ({part.epochs:,} epochs)" if part.epochs > 1 else ""
        whose = "" if part.worker is None else f" of worker {part.worker}"
        yield f"{part.histogram} generation {part.generation}{whose}{times}"


def _unseen(budget: Budget) -> Iterator[str]:
    if budget.not_begun and budget.total is not None:
        yield f"not begun, so not included: {', '.join(budget.not_begun)}; `quietcount plan` says what they will cost"
    if budget.total is not None:
        if budget.unit == "event":
            yield "a person with many events pays for each of them; histograms that continue charge later events alike"
        else:
            yield "every further epoch of a running histogram adds its price"
    if budget.ceiling is not None:
        yield (
            "the ceiling counts other workers on the same events as well, where their state is on this cluster and may be "
            "read; the total above is of this one"
        )
    yield (
        "not included: other workers on the same events, an earlier worker of this name whose topics were deleted, "
        "and anything else published about these events; all of it adds up"
    )


def _line(console: Console, text: str, indent: int = 0, *, style: str = "") -> None:
    for part in textwrap.wrap(
        text, console.width - indent, break_long_words=False, break_on_hyphens=False
    ):
        console.print(Text(" " * indent + part, style=style), soft_wrap=True)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "?"
    try:
        return (
            datetime.fromtimestamp(milliseconds / 1000, UTC)
            .isoformat(timespec="seconds")
            .replace("+00:00", "Z")
        )
    except (OverflowError, ValueError):  # a tick edge beyond the year 9999
        return f"{milliseconds:,} ms"
