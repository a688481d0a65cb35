"""`quietcount rejects`: what was rejected, by reason; and sending back what is accepted by now."""

from __future__ import annotations

from rich.console import Console

from workers.agents.topics import connection_of
from workers.commands.compiling import ensure_compiled
from workers.commands.printing import Printer, many, when
from workers.commands.rejects.listing import by_reason
from workers.commands.rejects.retry import Outcome
from workers.commands.rejects.retry import retry as send_back
from workers.pipeline.rejected import Rejected
from workers.runtime.progress import ProgressLine
from workers.settings.settings import Settings


def list_rejects(settings: Settings, *, reason: str | None, show: int | None, retry: bool) -> int:
    """List the rejects whose reason holds `reason`, print up to `show` of them, send them back.

    Returns:
        The exit code, 0.

    Raises:
        SettingsError: there is no rejects topic, or it cannot be read.
    """
    say, connection = Printer(Console(highlight=False)), connection_of(settings)
    def wanted(text: str) -> bool:
        return reason is None or reason in text

    shown: list[Rejected] = []
    read = 0

    def keep(reject: Rejected, sent: bool) -> None:
        nonlocal read
        read += 1
        if read % 1_000 == 0:
            progress.update(f"{read:,} rejects read")
        if show is not None and not sent and len(shown) < show:
            shown.append(reject)

    if retry:
        ensure_compiled()
        _retried(send_back(settings, connection, wanted), say)
        say.line()
    with ProgressLine() as progress:
        found = by_reason(settings, connection, wanted, keep)
    if not found:
        of_reason = "" if reason is None else f" with a reason that holds {reason!r}"
        say.line(f"topic {settings.rejects_topic}: no rejects{of_reason}.")
        return 0
    number = sum(one.number for one in found.values())
    say.line(f"topic {settings.rejects_topic}: {many(number, 'reject')}", style="bold")
    for text, one in found.items():
        say.line(f"{text}: {one.number:,}", 2)
        say.line(f"{when(one.first_ms)} to {when(one.last_ms)}, from {', '.join(sorted(one.topics))}", 6)
        if one.sent:
            say.line(f"{one.sent:,} sent back", 6)
        if one.cut:
            say.line(f"{one.cut:,} not whole, as the record was too long: cannot be sent back", 6)
    if show is not None:
        say.line()
        say.line(f"The first {len(shown):,} that were not sent back. Exact: for the operator only.", style="bold")
        for reject in shown:
            at = "" if reject.time_ms is None else f", {when(reject.time_ms)}"
            say.line(f"{reject.topic}[{reject.partition}] offset {reject.offset:,}{at}: {reject.reason}", 2)
            say.exact("no value" if reject.value is None else reject.value.decode(errors="backslashreplace"), 6)
    return 0


def _retried(outcome: Outcome, say: Printer) -> None:
    """Print what became of the rejects."""
    say.line(f"sent back: {many(outcome.sent, 'record')}, to the topics and partitions they came from", style="bold")
    if outcome.sent:
        say.line("a worker counts each in the tick that is open when it reads it, if its own tick is closed by then", 2)
        say.line("a worker that still runs with other settings may reject them again", 2)
    for number, text in (
        (outcome.refused, "would not be accepted now, and stay"),
        (outcome.cut, "not whole, as the record was too long: cannot be sent back"),
        (outcome.foreign, "of topics or partitions that these settings do not read"),
        (outcome.timeless, "without their time, as an earlier version rejected them"),
    ):
        if number:
            say.line(f"{number:,} {text}", 2)
