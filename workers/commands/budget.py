"""`quietcount budget`: the privacy spent by every histogram, its composition, and the ceiling."""

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
        read = [_read(one, progress) for one in settings]
    console = Console(highlight=False)
    topics = [one.release_state_topic for one in settings]
    budget = (
        spending.budget_of(*read[0]) if len(read) == 1 else spending.budget_of_all(read)
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

    The states are None if the topic is missing.
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
    named = set[str]()
    for one in settings:
        if one.worker.name in named:
            raise SettingsError(
                f"worker.name = {one.worker.name!r} is in two of the settings files: each worker once"
            )
        named.add(one.worker.name)
        topics = one.events.topics
        if not topics_overlap(set(topics.names) or {str(topics)}, first.events.topics):
            raise SettingsError(
                f"worker {one.worker.name} counts {topics}, and worker {first.worker.name} counts "
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
    """Print one worker's budget; `topic` is where its state is."""
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
            wanted = histogram.generation_in_settings
            say.line()
            known = "" if wanted is not None else " (not in the settings)"
            say.line(f"{histogram.name}{known}", style="bold")
            for generation in histogram.generations:
                _generation(generation, wanted, say)
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
    """Print what one generation has spent; `in_settings` is the generation in the settings."""
    status: str = generation.status
    if status == "left out":
        status = f"ends when the worker starts with these settings, which have generation {in_settings}"
        if in_settings is None:
            status = "not in the settings: no worker starts until it is put back, or ended by `quietcount retire`"
    topic = f"topic {generation.topic}"
    if generation.windows:
        lengths = map(format_duration, generation.windows)
        topics = [f"{generation.topic}.{one}" for one in lengths]
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
    # Of every window as many: several where owner partitions began at different ticks.
    each = len(ids) // len(lengths)
    more = f" and {each - 1} more" if each > 1 else ""
    rows = [
        (length, f"{ids[place * each]}{more}") for place, length in enumerate(lengths)
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
    if len(rows) == generation.epochs_begun:
        yield from rows[:OLDEST]
    yield ("...", "", "", "")
    yield from rows[-NEWEST:]


def _total(
    total: spending.Total | None, outside: Sequence[str], unit: str, say: Printer
) -> None:
    """Print a total; `outside` names what is not in it, as it protects another unit."""
    if total is None and outside:
        unlike = ", ".join(outside)
        say.line(
            f"  no total can be stated for one {unit}: {unlike} protected another unit"
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
    """Print the ceiling, what the fullest period holds, and which epochs still fit."""
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
    """Print how long the worker may run on under the ceiling."""
    if outlook.until is None:
        say.line(
            "  the worker may run on without end: no period will come above the ceiling",
        )
        for one in outlook.seconds:
            second = f"a second histogram like {one.histogram} beside it"
            if one.epsilon is None:
                say.line(f"  {second} does not fit, whatever its epsilon")
            else:
                say.line(f"  {second} fits with an epsilon of at most {one.epsilon:g}")
    else:
        days = (outlook.until - outlook.newest) / DAY_MS
        within = f"{iso_time(outlook.until)}, {days:.3g} days after its newest tick"
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
                charged.windows
                for one in budget.histograms
                for charged in one.generations
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
