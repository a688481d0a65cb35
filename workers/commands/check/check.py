"""`quietcount check`: show the effect of the settings on a sample of events."""

from datetime import timedelta
from itertools import islice

from rich.console import Console

from workers.commands.check import examine
from workers.commands.check.sample import PATIENCE_S, Sample, of_file, of_topics
from workers.commands.compiling import ensure_compiled
from workers.commands.failures import log
from workers.commands.undeclared import QUOTES, shown_key, shown_keys
from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import Sum
from workers.privacy.ceiling import check_ceiling
from workers.replay.gaps import gap_remarks
from workers.runtime.printing import Printer, iso_time, percent, plural
from workers.settings.settings import Settings

EXIT_NOTHING_ACCEPTED = 1
REASONS_SHOWN = 20
GAPS_SHOWN = 2
BEFORE_BOUNDS = "    these are events before users are bounded: a sample does not show how often the same users come back"


def check(settings: Settings, *, source: str | None, records: int) -> int:
    """Print findings on `records` events of the file `source`; None: of the events topics.

    Return the exit code.
    """
    check_ceiling(settings)
    ensure_compiled()
    sample = (
        of_topics(settings, records)
        if source is None
        else of_file(settings, source, records)
    )
    if not len(sample):
        late = f" within {PATIENCE_S:g} s" if sample.stopped else ""
        log(f"{sample.name}: there are none{late}, so nothing can be checked")
        for note in sample.notes:
            log(note)
        return EXIT_NOTHING_ACCEPTED
    findings = examine.examine(settings, sample)
    show(findings, sample, settings, Console(highlight=False))
    if findings.accepted:
        return 0
    log(f"{sample.name}: none of {findings.records:,} would be accepted")
    return EXIT_NOTHING_ACCEPTED


def show(
    findings: examine.Findings, sample: Sample, settings: Settings, console: Console
) -> None:
    """Print the findings: how many records count, why the others do not, and each histogram."""
    say = Printer(console)
    say.line(f"{sample.name}: {findings.records:,}", style="bold")
    say.line(
        "Exact data, for the operator only: bounds chosen by it are in no guarantee."
    )
    if sample.stopped:
        say.line("  the time limit was reached before the requested number was read")
    for note in sample.notes:
        say.line(f"  ! {note}")
    rows = [
        (name, f"{n:,}", percent(n, findings.records), why if n else "")
        for name, n, why in (
            ("accepted", findings.accepted, ""),
            ("skipped", findings.skipped, "no histogram's where matches"),
            (
                "rejected",
                findings.rejected,
                f"as the worker would, into {settings.rejects_topic}",
            ),
        )
    ]
    say.table(("", "", "", ""), rows, left=(0, 3))
    if findings.first_ms is not None and findings.last_ms is not None:
        say.line(
            f"  events from {iso_time(findings.first_ms)} to {iso_time(findings.last_ms)}",
        )
    if findings.time_hint:
        say.line(f"  ! {findings.time_hint}")
    if findings.why:
        say.line()
        say.line("Why records are rejected, with an example of each", style="bold")
        for why in findings.why[:REASONS_SHOWN]:
            _why(why, findings.records, say)
        if len(findings.why) > REASONS_SHOWN:
            say.line(
                f"  and {plural(len(findings.why) - REASONS_SHOWN, 'more reason')}"
            )
    for histogram in findings.histograms:
        say.line()
        _histogram(histogram, findings, say)


def _why(why: examine.RejectReason, records: int, say: Printer) -> None:
    """Print one reject reason, with an example and what would help."""
    fault = "" if why.fault is None else f"; the first {why.fault.what}"
    say.line(f"  {why.reason}: {why.number:,} ({percent(why.number, records)}){fault}")
    if why.hint:
        say.line(f"      {why.hint}")
    if why.empty:
        say.line(
            f'      missing = "empty" would accept {why.empty:,} of them: as events without items, which count nothing',
        )
    if why.absent is not None:
        say.line("      " + _near(why.absent, "none of them"))
    for line in why.keys:
        say.line(f"      {line}")
    if why.fault is not None and why.fault.context:
        say.one_line(why.fault.context, 6)
    say.one_line(why.example or "(empty)", 6)


def _near(absent: examine.Nearest, who: str = "no record") -> str:
    """Return a sentence on a path that no record has, with similar paths that some have.

    `who` is its subject.
    """
    if not absent.nearest:
        return f"{who} has {absent.path}, nor anything like it"
    near = ", ".join(f"{path} (in {part:.0%})" for path, part in absent.nearest.items())
    return f"{who} has {absent.path}; nearest: {near}"


def _histogram(
    histogram: examine.HistogramFindings, findings: examine.Findings, say: Printer
) -> None:
    """Print what one histogram makes of the sample; "!" marks what deserves a look."""
    config = histogram.config
    seen = histogram.looked_at
    say.line(
        f"{config.name}: {config.mechanism}, ticks of {format_duration(config.tick_ms)}",
        style="bold",
    )
    events = f"{seen:,} of {plural(findings.accepted, 'event')} ({percent(seen, findings.accepted)})"
    matched = "" if config.where_ is None else ", those that its where matches"
    say.line(f"  looks at {events}{matched}")
    for absent in histogram.absent:
        say.line(f"  ! {_near(absent)}")
    if not seen:
        return
    say.line(
        f"  {plural(histogram.keys, 'stream key')}: {_declared(histogram)}; {plural(histogram.labels, 'item')}",
    )
    if histogram.quoted_keys:
        keys = ", ".join(map(shown_key, histogram.quoted_keys))
        say.line(f"  ! {QUOTES}: {keys}")
    if histogram.early:
        say.line(
            f"  ! {plural(histogram.early, 'event')} of these dated before its start {iso_time(config.start_ms)}: not counted",
        )
    if histogram.late:
        say.line(
            f"  ! {plural(histogram.late, 'event')} of these ({percent(histogram.late, seen)}) come after their tick has "
            "closed, and count in a later one",
        )
    # Gaps between wrong times mean nothing.
    if not findings.time_hint:
        # In a gap, snapshots of every key are published all the same.
        key_count = histogram.served if config.keys == "public" else len(config.keys)
        remarks = gap_remarks(findings.gaps, config, key_count)
        for remark in islice(remarks, GAPS_SHOWN):
            say.line(f"  ! {remark}")
    if histogram.without_items:
        empty = histogram.without_items
        say.line(
            f"  ! {plural(empty, 'event')} of these ({percent(empty, seen)}) accepted without any item: they count nothing",
        )
    spread = _spread(histogram.items, f"max_items = {config.max_items}", seen, "event")
    say.line(f"  items an event: {spread}")
    counts = "counts of an item in an event"
    bound = f"max_count = {config.max_count}"
    if histogram.of_users is not None:
        _users(histogram.of_users, config, say)
    elif histogram.amounts.most > 1:
        say.line(f"  {counts}: {_spread(histogram.amounts, bound, None, 'count')}")
    elif config.max_count > 1:
        say.line(f"  {counts}: 1; max_count = {config.max_count:,} only adds noise")
    if histogram.numbers is not None and config.sum is not None:
        _numbers(histogram.numbers, config.sum, say)
    if findings.time_hint:
        say.line(
            "  no estimate of its ticks: the times are not in this century (above)"
        )
    elif histogram.expected is None:
        say.line(
            "  no estimate of its ticks: all events have the same time, or none counts"
        )
    else:
        _expected(histogram.expected, histogram, say)
        if findings.times_of_records:
            say.line(
                "    by the records' own times: too many events if the topic was filled at once",
            )


def _numbers(numbers: examine.Numbers, summed: Sum, say: Printer) -> None:
    """Print how many numbers of a sum lie outside its range, and so are clamped to its ends."""
    clamped = numbers.below + numbers.above
    share = percent(clamped, numbers.read)
    say.line(
        f"  numbers in {summed.field}: {numbers.read:,}, of which {clamped:,} ({share}) are clamped: "
        f"{numbers.below:,} below from = {summed.from_}, {numbers.above:,} above to = {summed.to}",
    )


def _users(
    contributions: examine.UserContributions, config: HistogramConfig, say: Printer
) -> None:
    """Print how much the sample's users contribute, against the bounds on a user.

    The bounds hold over an epoch, or, without epochs, over a period of the settings.
    """
    epoch = "an epoch (all time)"
    if (ticks := config.charge_grid.horizon) is not None:
        span = _span(config.tick_ms * ticks)
        epoch = f"a period of {span}" if config.without_epochs else f"an epoch ({span})"
    say.line(
        f"  {plural(contributions.users, 'user')} in the sample; bounds hold over {epoch}, in which they may "
        "contribute more:",
    )
    pairs = _spread(
        contributions.pairs,
        f"max_items_per_user = {config.max_items_per_user}",
        contributions.users,
        "user",
    )
    say.line(f"    pairs of stream key and item of a user: {pairs}")
    if config.unique_users:
        say.line("    a user counts once for an item in a window, however often")
        return
    amounts = _spread(
        contributions.amounts, f"max_count = {config.max_count}", None, "count"
    )
    say.line(f"    counts of such a pair: {amounts}")


def _declared(histogram: examine.HistogramFindings) -> str:
    """Return how many of the stream keys are declared, and which others are frequent."""
    if histogram.config.keys == "public":
        return "every key may be named"
    if histogram.served == histogram.keys:
        return "all declared"
    others = plural(histogram.unserved, "event")
    most = shown_keys(histogram.undeclared)
    return f"{histogram.served:,} declared; {others} of the others do not count here; the most frequent: {most}"


def _spread(
    spread: examine.Distribution, bound: str, total: int | None, thing: str
) -> str:
    """Return how a quantity is distributed, and how much of it a bound cuts off.

    `bound` is text such as "max_items = 2", `thing` what is cut, such as "event"; `total` is how
    many there are of it, to state a share; None: without a share.
    """
    text = f"median {spread.median:g}, 99 % have at most {spread.most_of_99:g}, the most {spread.most:,}; {bound}"
    if not spread.above:
        return f"{text} cuts none"
    share = "" if total is None else f" ({percent(spread.above, total)})"
    return f"{text} cuts {plural(spread.above, thing)}{share}"


def _expected(
    expected: examine.Expected, histogram: examine.HistogramFindings, say: Printer
) -> None:
    """Print what the first ticks would show if events continue as in the sample."""
    say.line("  estimate, if events continue like this:")
    if expected.declared is not None:
        # Nearly all and nearly none are written without a digit, as 100 % and 0 %.
        digits = 1 if 0.001 < expected.declared < 0.999 else 0
        say.line(
            f"    {expected.declared:.{digits}%} of all contributions are in its declared domain",
        )
    largest = _about(expected.largest)
    median = _about(expected.median)
    say.line(
        f"    {_about(expected.events)} events a tick; {largest} of the largest item, {median} of the median one",
    )
    if expected.windows:
        _windows(expected, histogram, say)
        return
    if expected.has_counts:
        # If they are not the same to three digits.
        worse = expected.sd_worst > expected.sd_first * 1.005
        worst = f", {expected.sd_worst:.3g} at worst" if worse else ""
        when = "the first tick" if expected.first == 1 else f"tick {expected.first:,}"
        say.line(f"    noise of sd {expected.sd_first:.3g} after {when}{worst}")
    if histogram.of_users is not None:
        say.line(BEFORE_BOUNDS)
    span = _span(expected.last * histogram.config.tick_ms)
    max_count = histogram.config.max_count
    for passing in expected.passing:
        after = f"after tick {passing.tick:,}"
        if histogram.of_users is not None:
            # How many must count as often as they may, for a count above the threshold; rounded up.
            users = -(-(passing.threshold + 1) // max_count)
            say.line(
                f"    {after}: threshold {passing.threshold:,}: an item is shown from about {users:,} different users on, at least "
                f"(in an epoch each counts at most {max_count} times, by max_count)",
            )
            continue
        # That is the end of an epoch, or of the first year.
        if passing.tick == expected.last:
            after += f" ({span})"
        say.line(
            f"    {after}: {_passed(passing.threshold, passing.shown, expected.items)}",
        )


def _passed(threshold: int, shown: int, items: int) -> str:
    """Return a threshold, and how many of the sampled pairs of stream key and item pass it."""
    share = percent(shown, items)
    return f"threshold {threshold:,}, passed by {shown:,} of {items:,} pairs of stream key and item ({share})"


def _windows(
    expected: examine.Expected, histogram: examine.HistogramFindings, say: Printer
) -> None:
    """Print what every window would show if events continue as in the sample."""
    of_users = histogram.of_users is not None
    if of_users:
        say.line(BEFORE_BOUNDS)
    for window in expected.windows:
        length = format_duration(window.ms)
        counts = f"{_about(window.largest)} of the largest item, {_about(window.median)} of the median one"
        say.line(
            f"    in the last {length}: {counts}; noise of sd up to {window.sd:.3g}"
        )
        if window.threshold is None:
            continue
        if of_users:
            least = f"a count of about {window.threshold + 1:,}"
            if histogram.config.unique_users:
                least = f"about {window.threshold + 1:,} different users in it"
            say.line(
                f"      threshold {window.threshold:,}: an item is shown from {least} on"
            )
        else:
            say.line(
                f"      {_passed(window.threshold, window.shown, expected.items)}",
            )
    if any(window.threshold is not None for window in expected.windows):
        say.line(
            "    an item is shown, in all windows, once it passes the threshold of one of them",
        )


def _span(milliseconds: int) -> str:
    """Return a duration: as the settings have it, or, if that is long, as 7:30:00."""
    short = format_duration(milliseconds)
    return short if len(short) < 5 else str(timedelta(seconds=milliseconds // 1000))


def _about(number: float) -> str:
    """Return a number to two digits below ten, else whole."""
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.2g}"
