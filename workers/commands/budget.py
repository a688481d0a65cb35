"""`quietcount budget`: the privacy spent by every histogram, its composition, and the ceiling.

Another generation of a histogram is one with other settings, and is charged again. What was spent
is computed in `privacy.spending`, whose records are printed here, or as JSON.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console

from workers.agents.ceiling_guard import OtherWorkers, topics_overlap
from workers.agents.progress import read_states
from workers.agents.topics import connection_of
from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.registry import about
from workers.pipeline.merge import ReleaseProgress
from workers.privacy import spending
from workers.privacy.outlook import Outlook
from workers.privacy.phrasing import cautions
from workers.privacy.total import DAY_MS, Charge, loss_caption, loss_table
from workers.runtime.errors import SettingsError
from workers.runtime.printing import Printer, ProgressLine, iso_time, plural, print_json
from workers.settings.settings import Settings

# With more epochs, the text shows only the oldest and the newest.
OLDEST = 2
NEWEST = 8


def show_budget(settings: Sequence[Settings], *, as_json: bool) -> int:
    """Print the spent budget of one worker, or of several on the same events; return exit code 0.

    Raises `StateRefused` for a state of another version, `KafkaException` for an unreadable one.
    """
    _check_together(settings)
    with ProgressLine() as progress:
        workers = [_read(of_worker, progress) for of_worker in settings]
    console = Console(highlight=False)
    topics = [of_worker.release_state_topic for of_worker in settings]
    budget = (
        spending.budget_of(*workers[0])
        if len(workers) == 1
        else spending.budget_of_all(workers)
    )
    if as_json:
        print_json(budget)
    elif isinstance(budget, spending.Budget):
        show(budget, console, topics[0])
    else:
        show_all(budget, console, topics)
    return 0


def _read(
    settings: Settings, progress: ProgressLine
) -> tuple[Settings, list[ReleaseProgress | None] | None, list[Charge]]:
    """Return (settings, the state of every owner partition, charges of other workers).

    The states are None if the topic is missing, and one is None if its owner has published nothing.
    """
    connection = connection_of(settings)
    states = read_states(connection, settings.worker.name, progress.update)
    # Other workers' spending counts only toward a ceiling.
    if settings.privacy.max_epsilon is None:
        return settings, states, []
    return settings, states, OtherWorkers(settings, connection).charges()


def _check_together(settings: Sequence[Settings]) -> None:
    """Refuse settings of which two are of one worker, or whose workers share no events."""
    first = settings[0]
    names = set[str]()
    for of_worker in settings:
        name = of_worker.worker.name
        if name in names:
            raise SettingsError(
                f"worker.name = {name!r} is in two of the settings files: each worker once"
            )
        names.add(name)
        # With the first is enough: what the others share with it adds up.
        topics = of_worker.events.topics
        # A regular expression has no names, and is given as it is.
        if not topics_overlap(set(topics.names) or {str(topics)}, first.events.topics):
            raise SettingsError(
                f"worker {name} counts {topics}, and worker {first.worker.name} counts "
                f"{first.events.topics}: no event is in both, so nothing adds up"
            )


def show_all(
    budgets: spending.AllBudgets, console: Console, topics: Sequence[str]
) -> None:
    """Print the budgets of several workers, and what they have spent together."""
    say = Printer(console)
    for budget, topic in zip(budgets.workers, topics, strict=True):
        show(budget, console, topic)
        say.line()
    names = ", ".join(budget.worker for budget in budgets.workers)
    say.line(f"workers {names}, all together, for one {budgets.unit}", style="bold")
    _total(budgets.total, budgets.not_in_total, budgets.unit, say)
    say.line(
        "  - not included: workers whose settings were not given, earlier workers whose topics were "
        "deleted, and anything else published about these events; all of it adds up",
    )


def show(budget: spending.Budget, console: Console, topic: str) -> None:
    """Print one worker's budget; `topic` is its topic of release state."""
    say = Printer(console)
    worker = f"worker {budget.worker}"
    if budget.state == "missing":
        say.line(
            f"{worker}: topic {topic} does not exist on this cluster: this worker has never run here."
        )
    elif not any(
        generation.epochs_begun
        for histogram in budget.histograms
        for generation in histogram.generations
    ):
        say.line(f"{worker}: nothing has been published yet, so nothing is spent.")
    else:
        say.line(f"{worker}: budget spent so far, from its release state", style="bold")
        for histogram in budget.histograms:
            in_settings = histogram.generation_in_settings
            say.line()
            remark = "" if in_settings is not None else " (not in the settings)"
            say.line(f"{histogram.name}{remark}", style="bold")
            for generation in histogram.generations:
                _generation(generation, in_settings, say)
        say.line()
        say.line(f"all together, for one {budget.unit}", style="bold")
        others = [
            f"{unlike.histogram} generation {unlike.generation}"
            for unlike in budget.not_in_total
        ]
        _total(budget.total, others, budget.unit, say)
        if budget.person:
            say.line()
            say.line("what one person loses", style="bold")
            say.table(*loss_table(budget.person, budget.unit), left=())
            say.line("  " + loss_caption(budget.person, budget.unit))
    if budget.ceiling is not None:
        say.line()
        _ceiling(budget.ceiling, budget.unit, say)
    for sentence in _unseen(budget):
        say.line(f"  - {sentence}")


def _generation(
    generation: spending.Generation, in_settings: int | None, say: Printer
) -> None:
    """Print what one generation has spent.

    `in_settings` is the number of the generation in the settings; None: they lack the histogram.
    """
    status: str = generation.status
    if status == "left out":
        status = f"ends when the worker starts with these settings, which have generation {in_settings}"
        if in_settings is None:
            status = "not in the settings: no worker starts until it is put back, or ended by `quietcount retire`"
    topic = f"topic {generation.topic}"
    if generation.windows:
        lengths = map(format_duration, generation.windows)
        topics = [f"{generation.topic}.{length}" for length in lengths]
        topic = f"topic{'s' if len(topics) > 1 else ''} {', '.join(topics)}"
    say.line(
        f"  generation {generation.generation}: {generation.mechanism}, {status}; {topic}",
    )
    price = f"epsilon {generation.epsilon!r}, delta {generation.delta!r}, rho {generation.rho!r}"
    if not generation.epochs_begun or generation.charged is None:
        costs = (
            "All windows, for ever, cost" if generation.windows else "An epoch costs"
        )
        say.line(
            f"    no tick published, so nothing is spent. {costs} one {generation.unit}: {price}",
        )
        return
    if generation.windows:
        _without_epochs(generation, price, say)
        return
    length = (
        f"{generation.horizon:,} ticks of {format_duration(generation.tick_ms)}"
        if generation.horizon
        else "no end"
    )
    say.line(
        f"    an epoch ({length}) costs one {generation.unit}, in full from its first tick: {price}",
    )
    headings = ("epoch", "ticks published", "of", "mechanism id")
    say.table(headings, list(_rows(generation)), left=(3,), indent=4)
    say.line(
        f"    {plural(generation.epochs_begun, 'epoch')} begun, {generation.ticks:,} ticks published, from "
        f"{_time(generation.published_from)} to {_time(generation.published_to)}",
    )
    if generation.unit == "event":
        say.line("    charged to one event: one epoch, since it falls in one")
    else:
        say.line(
            f"    charged to one {generation.unit}, who may be in all of them: {_figures(generation.charged)}",
        )
    declared = about(generation.mechanism)
    if declared is not None and declared.family == "labels":
        say.line(
            "    labels and queries left unused in an epoch are charged all the same"
        )


def _without_epochs(generation: spending.Generation, price: str, say: Printer) -> None:
    """Print what a generation without epochs has spent: one charge, for all its windows."""
    lengths = list(map(format_duration, generation.windows))
    windows = ", ".join(lengths)
    say.line(
        f"    no epochs: all windows ({windows}), for ever, cost one {generation.unit} once, in full from the first tick: {price}",
    )
    ids = [name for epoch in generation.epochs for name in epoch.ids]
    # Window after window, of each as many: several where owner partitions began at other ticks.
    per_window = len(ids) // len(lengths)
    more = f" and {per_window - 1} more" if per_window > 1 else ""
    rows = [
        (length, f"{ids[i * per_window]}{more}") for i, length in enumerate(lengths)
    ]
    say.table(("window", "mechanism id"), rows, left=(0, 1), indent=4)
    say.line(
        f"    {generation.ticks:,} ticks of {format_duration(generation.tick_ms)} published, from "
        f"{_time(generation.published_from)} to {_time(generation.published_to)}",
    )
    say.line(
        f"    charged to one {generation.unit}: once, ever; a new generation is charged again"
    )


def _rows(generation: spending.Generation) -> Iterator[Sequence[str]]:
    """Yield the table's rows, an epoch each; of many, the oldest and the newest."""
    horizon = "" if generation.horizon is None else f"{generation.horizon:,}"
    rows = []
    for epoch in generation.epochs:
        more = f" and {len(epoch.ids) - 1} more" if len(epoch.ids) > 1 else ""
        ticks = f"{epoch.first_tick:,} to {epoch.last_tick:,}"
        mechanism = f"{epoch.ids[0]}{more}" if epoch.ids else ""
        rows.append((f"{epoch.epoch:,}", ticks, horizon, mechanism))
    if generation.epochs_begun <= OLDEST + NEWEST:
        yield from rows
        return
    # Of very many epochs, `generation` lists only the newest itself.
    if len(rows) == generation.epochs_begun:
        yield from rows[:OLDEST]
    yield ("...", "", "", "")
    yield from rows[-NEWEST:]


def _total(
    total: spending.Total | None, not_in_total: Sequence[str], unit: str, say: Printer
) -> None:
    """Print a total for one `unit`; `not_in_total` names what protects another unit.

    Where there is such a thing, no total can be stated: None, as where nothing was published.
    """
    if total is None and not_in_total:
        names = ", ".join(not_in_total)
        say.line(
            f"  no total can be stated for one {unit}: {names} protected another unit"
        )
        return
    if total is None:
        say.line("  nothing has been published yet, so nothing is spent")
        return
    nothing = ": nothing is promised" if total.epsilon is None else ""
    say.line(f"  {_figures(total)}{nothing}", style="bold")
    for warning in cautions(total.epsilon, total.delta, total.unit):
        say.line(f"  WARNING: {warning}", style="bold red")
    who = (
        f" (stream key {total.key!r}, which pays most)" if total.key is not None else ""
    )
    say.line(f"  one {total.unit} counts in at most{who}: {_parts(total.parts)}")
    if len(total.parts) > 1 or total.parts[0].epochs > 1:
        summed = _number(total.epsilon_of_the_sum)
        say.line(f"  for comparison: the sum of the epsilons is {summed}")


def _figures(cost: spending.Total | spending.Charged) -> str:
    return f"epsilon {_number(cost.epsilon)} at delta {cost.delta:.9g} (rho {cost.rho:.6g})"


def _parts(parts: Sequence[spending.Counted]) -> str:
    """Name the parts of a total, with how many epochs of each count."""
    named = []
    for part in parts:
        times = f" ({part.epochs:,} epochs)" if part.epochs > 1 else ""
        # What bounds cost is charged to events that a sample may hold, and that count in no epoch.
        if not part.epochs:
            times = " (the sample for its bounds)"
        worker = "" if part.worker is None else f" of worker {part.worker}"
        named.append(f"{part.histogram} generation {part.generation}{worker}{times}")
    return ", ".join(named)


def _ceiling(left: spending.RemainingBudget, unit: str, say: Printer) -> None:
    """Print the ceiling, what the fullest period holds, and which epochs still fit.

    The ceiling bounds what is charged in any period of a given length, which is an epoch's if the
    settings give none.
    """
    period = "an epoch" if left.period == "epoch" else f"any {left.period}"
    say.line(
        f"ceiling: epsilon {left.max_epsilon!r} at delta {left.max_delta!r} for one {unit}, in {period}",
        style="bold",
    )
    if not left.parts:
        say.line("  nothing is charged yet, so all of it is left")
    else:
        window = ""
        if left.begins is not None and left.ends is not None:
            window = f", {iso_time(left.begins)} to {iso_time(left.ends)},"
        spent = (
            "no promise at that delta"
            if left.epsilon is None
            else f"epsilon {left.epsilon:.9g}"
        )
        say.line(f"  the fullest of the newest periods{window} holds {spent}")
        say.line(f"  it holds: {_parts(left.parts)}")
        say.line(f"  left in it: rho {left.rho_left:.6g}")
    for epoch_ahead in left.next:
        begins = (
            ""
            if epoch_ahead.begins is None
            else f", from {iso_time(epoch_ahead.begins)}"
        )
        epsilon = (
            "no promise"
            if epoch_ahead.epsilon is None
            else f"epsilon {epoch_ahead.epsilon:.9g}"
        )
        verdict = (
            "fits" if epoch_ahead.fits else "does not fit: the worker ends before it"
        )
        say.line(
            f"  next of {epoch_ahead.histogram}: epoch {epoch_ahead.epoch:,}{begins}, which makes {epsilon}: {verdict}",
        )
    if left.outlook is not None:
        _outlook(left.outlook, say)
    if left.other_workers:
        others = ", ".join(left.other_workers)
        say.line(f"  counted with it, since they count the same events: {others}")


def _outlook(outlook: Outlook, say: Printer) -> None:
    """Print how long the worker may run on under the ceiling.

    If that is without end, also which second histogram would fit beside those of the settings.
    """
    if outlook.until is None:
        say.line(
            "  the worker may run on without end: no period will come above the ceiling",
        )
        for second in outlook.seconds:
            what = f"a second histogram like {second.histogram} beside it"
            if second.epsilon is None:
                say.line(f"  {what} does not fit, whatever its epsilon")
            else:
                say.line(f"  {what} fits with an epsilon of at most {second.epsilon:g}")
    else:
        days = (outlook.until - outlook.newest) / DAY_MS
        within = f"{iso_time(outlook.until)}, {days:.3g} days after its newest tick"
        # The search went no further, and had not met an epoch that does not fit.
        if outlook.epoch is None:
            say.line(f"  the worker may run on at least until {within}")
        elif outlook.until <= outlook.newest:
            say.line(
                f"  the worker may not run on: epoch {outlook.epoch:,} of {outlook.histogram} does not fit",
            )
        else:
            say.line(
                f"  the worker may run on until {within}: it ends before epoch {outlook.epoch:,} of {outlook.histogram}, which "
                "does not fit",
            )
    say.line(
        "  that is if the histograms of these settings all run on, and no other worker begins an epoch",
    )


def _unseen(budget: spending.Budget) -> Iterator[str]:
    """Yield what the figures above do not include."""
    if budget.not_begun and budget.total is not None:
        yield f"not begun, so not included: {', '.join(budget.not_begun)}; `quietcount plan` says what they will cost"
    if budget.total is not None:
        if budget.unit == "event":
            yield "a person with many events pays for each of them; histograms that continue charge later events alike"
            if any(
                generation.windows
                for histogram in budget.histograms
                for generation in histogram.generations
            ):
                yield (
                    "without epochs, all events that a person ever has add up in one charge, which grows with the "
                    "square of their number at most"
                )
        else:
            yield "every further epoch of a running histogram adds its price"
    if budget.ceiling is None:
        yield "there is no ceiling (privacy.max_epsilon), so nothing stops what is still to be spent"
    else:
        yield (
            "the ceiling counts other workers on the same events as well, where their state is on "
            "this cluster and may be read; the total above is of this one"
        )
    yield (
        "not included: other workers on the same events, an earlier worker of this name whose "
        "topics were deleted, and anything else published about these events; all of it adds up"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"


def _time(milliseconds: int | None) -> str:
    return "?" if milliseconds is None else iso_time(milliseconds)
