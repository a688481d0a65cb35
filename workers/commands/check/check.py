"""`quietcount check`: show the effect of the settings on a sample of events."""

from __future__ import annotations

import sys
from datetime import timedelta

from rich.console import Console

from workers.commands.check.examine import (
    Examined,
    Expected,
    Nearest,
    OfHistogram,
    OfUsers,
    Spread,
    Why,
    examine,
)
from workers.commands.check.sample import Sample, of_file, of_topics
from workers.commands.compiling import ensure_compiled
from workers.mechanisms.config.histogram import HistogramConfig
from workers.privacy.ceiling_check import check_ceiling
from workers.runtime.printing import Printer, many, share, when
from workers.settings.durations import format_duration
from workers.settings.settings import Settings

EXIT_NOTHING_ACCEPTED = 1
REASONS_SHOWN = 20


def check(settings: Settings, *, source: str | None, records: int) -> int:
    """Print findings on `records` events of the events topics, or of the file `source`.

    Return exit code 0, or 1 if nothing would be accepted.

    Raises:
        SettingsError: nothing can be read, or a budget cannot be met.
    """
    check_ceiling(settings)
    ensure_compiled()
    sample = of_topics(settings, records) if source is None else of_file(settings, source, records)
    if not len(sample):
        late = " within 15 s" if sample.stopped else ""
        print(
            f"quietcount: {sample.name}: there are none{late}, so nothing can be checked",
            file=sys.stderr,
        )
        return EXIT_NOTHING_ACCEPTED
    found = examine(settings, sample)
    show(found, sample, settings, Console(highlight=False))
    if not found.accepted:
        print(
            f"quietcount: {sample.name}: none of {found.records:,} would be accepted",
            file=sys.stderr,
        )
    return 0 if found.accepted else EXIT_NOTHING_ACCEPTED


def show(found: Examined, sample: Sample, settings: Settings, console: Console) -> None:
    say = Printer(console)
    say.line(f"{sample.name}: {found.records:,}. Exact: for the operator only.", style="bold")
    if sample.stopped:
        say.line("there was no time to read as many as were asked for", 2)
    rows = [
        ("accepted", found.accepted, ""),
        ("skipped", found.skipped, "no histogram's where matches" if found.skipped else ""),
        (
            "rejected",
            found.rejected,
            "as the worker would, into " + settings.rejects_topic if found.rejected else "",
        ),
    ]
    say.table(
        ("", "", "", ""),
        [(name, f"{n:,}", share(n, found.records), why) for name, n, why in rows],
        left=(0, 3),
    )
    if found.first_ms is not None and found.last_ms is not None:
        say.line(f"events from {when(found.first_ms)} to {when(found.last_ms)}", 2)
    if found.time_hint:
        say.line(f"! {found.time_hint}", 2)
    if found.why:
        say.line()
        say.line("Why records are rejected, with an example of each", style="bold")
        for why in found.why[:REASONS_SHOWN]:
            _why(why, found.records, say)
        if len(found.why) > REASONS_SHOWN:
            say.line(f"and {many(len(found.why) - REASONS_SHOWN, 'more reason')}", 2)
    for one in found.histograms:
        say.line()
        _histogram(one, found, say)


def _why(why: Why, records: int, say: Printer) -> None:
    say.line(f"{why.reason}: {why.number:,} ({share(why.number, records)})", 2)
    if why.hint:
        say.line(why.hint, 6)
    if why.empty:
        say.line(
            f'missing = "empty" would accept {why.empty:,} of them: as events without items, which count nothing',
            6,
        )
    if why.absent is not None:
        say.line(_near(why.absent, "none of them"), 6)
    say.exact(why.example, 6)


def _near(absent: Nearest, who: str = "no record") -> str:
    if not absent.nearest:
        return f"{who} has {absent.path}, nor anything like it"
    near = ", ".join(f"{path} (in {part:.0%})" for path, part in absent.nearest)
    return f"{who} has {absent.path}; nearest: {near}"


def _histogram(one: OfHistogram, found: Examined, say: Printer) -> None:
    config = one.config
    say.line(
        f"{config.name}: {config.mechanism}, ticks of {format_duration(config.tick_ms)}",
        style="bold",
    )
    seen = one.looked_at
    matched = "" if config.where_ is None else ", those that its where matches"
    say.line(
        f"looks at {seen:,} of {many(found.accepted, 'event')} ({share(seen, found.accepted)}){matched}",
        2,
    )
    for absent in one.absent:
        say.line(f"! {_near(absent)}", 2)
    if not seen:
        return
    say.line(f"{many(one.keys, 'stream key')}: {_declared(one)}; {many(one.labels, 'item')}", 2)
    if one.early:
        say.line(
            f"! {many(one.early, 'event')} of these dated before its start {when(config.start_ms)}: not counted",
            2,
        )
    if one.without_items:
        say.line(
            f"! {many(one.without_items, 'event')} of these ({share(one.without_items, seen)}) accepted without any item: "
            "they count nothing",
            2,
        )
    say.line(
        f"items an event: {_spread(one.items, f'max_items = {config.max_items}', seen, 'event')}", 2
    )
    rows = "counts of an item in an event"
    if one.of_users is not None:
        _users(one.of_users, config, say)
    elif one.amounts.most > 1:
        say.line(
            f"{rows}: {_spread(one.amounts, f'max_count = {config.max_count}', None, 'count')}", 2
        )
    elif config.max_count > 1:
        say.line(f"{rows}: 1; max_count = {config.max_count:,} only adds noise", 2)
    if found.time_hint:
        say.line(
            "nothing can be said of its ticks while the times are not of this century (above)", 2
        )
    elif one.expected is None:
        say.line(
            "its events have one time, or none counts: no rate, so nothing can be said of its ticks",
            2,
        )
    else:
        _expected(one.expected, one, say)


def _users(found: OfUsers, config: HistogramConfig, say: Printer) -> None:
    epoch = (
        "all time" if config.horizon_ticks is None else _span(config.tick_ms * config.horizon_ticks)
    )
    say.line(
        f"{many(found.users, 'user')} in the sample; bounds hold over an epoch ({epoch}), in which they may bring more:",
        2,
    )
    bound = f"max_items_per_user = {config.max_items_per_user}"
    say.line(
        f"pairs of stream key and item of a user: {_spread(found.pairs, bound, found.users, 'user')}",
        4,
    )
    say.line(
        f"counts of such a pair: {_spread(found.amounts, f'max_count = {config.max_count}', None, 'count')}",
        4,
    )


def _declared(one: OfHistogram) -> str:
    if one.config.keys == "public":
        return "every key may be named"
    if one.served == one.keys:
        return "all declared"
    return f"{one.served:,} declared; {many(one.unserved, 'event')} of the others do not count here"


def _spread(spread: Spread, bound: str, events: int | None, thing: str) -> str:
    text = f"median {spread.median:g}, 99 % have at most {spread.most_of_99:g}, the most {spread.most:,}; {bound}"
    if not spread.above:
        return f"{text} cuts none"
    return f"{text} cuts {many(spread.above, thing)}" + (
        "" if events is None else f" ({share(spread.above, events)})"
    )


def _expected(expected: Expected, one: OfHistogram, say: Printer) -> None:
    say.line("estimate, if events go on like this:", 2)
    if expected.declared is not None:
        inside = (
            f"{expected.declared:.1%}"
            if 0.001 < expected.declared < 0.999
            else f"{expected.declared:.0%}"
        )
        say.line(f"{inside} of what events bring is in its declared domain", 4)
    say.line(
        f"{_about(expected.events)} events a tick; {_about(expected.largest)} of the largest item, "
        f"{_about(expected.median)} of the median one",
        4,
    )
    if expected.counts:
        sd = f"noise of sd {expected.sd_first:.3g} after the first tick"
        say.line(
            sd
            + (
                f", {expected.sd_worst:.3g} at worst"
                if expected.sd_worst > expected.sd_first * 1.005
                else ""
            ),
            4,
        )
    span = _span(expected.last * one.config.tick_ms)
    if one.of_users is not None:
        say.line(
            "these are events before users are bounded: a sample does not show how often the same users come back",
            4,
        )
        for passing in expected.passing:
            users = -(-(passing.threshold + 1) // one.config.max_count)
            say.line(
                f"after tick {passing.tick:,}: threshold {passing.threshold:,}: an item is shown from about {users:,} different "
                f"users on, at least (in an epoch each counts at most {one.config.max_count} times, by max_count)",
                4,
            )
        return
    for passing in expected.passing:
        at = f"after tick {passing.tick:,}" + (
            f" ({span})" if passing.tick == expected.last else ""
        )
        say.line(
            f"{at}: threshold {passing.threshold:,}, passed by {passing.shown:,} of {expected.items:,} pairs of stream key and item "
            f"({share(passing.shown, expected.items)})",
            4,
        )


def _span(milliseconds: int) -> str:
    short = format_duration(milliseconds)
    return short if len(short) < 5 else str(timedelta(seconds=milliseconds // 1000))


def _about(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.2g}"
