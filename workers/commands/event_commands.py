"""Commands that inspect events before and after a worker reads them: `check` and `rejects`."""

from __future__ import annotations

from pathlib import Path

import click

from workers.commands.options import config_option, load_settings, only_one_line


@click.command()
@config_option
@click.option(
    "--records",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="How many to look at.",
)
@click.option(
    "--input",
    "source",
    metavar="FILE",
    help='Look at a file instead, as `replay` reads it: JSON lines, Parquet, or "-".',
)
@click.pass_context
def check(context: click.Context, config: Path, records: int, source: str | None) -> int:
    """Show what the settings would make of the newest events.

    How many are accepted and why the others are not, and what the first ticks of each histogram
    would show. Nothing is written or charged. What it prints is exact: for the operator only.
    Exits with 1 if nothing would be accepted.
    """
    settings = load_settings(config)
    only_one_line(context)
    from workers.commands.check.check import check as check_events

    return check_events(settings, source=source, records=records)


@click.command()
@config_option
@click.option("--reason", metavar="R", help="Only rejects with this reason.")
@click.option(
    "--show",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Print up to N of them, as they are.",
)
@click.option(
    "--retry", is_flag=True, help="Send those back that would be accepted now, each once."
)
@click.pass_context
def rejects(
    context: click.Context, config: Path, reason: str | None, show: int | None, retry: bool
) -> int:
    """List what was rejected, by reason; send back what is accepted by now.

    What --show prints is exact: for the operator only.
    """
    settings = load_settings(config)
    only_one_line(context)
    from workers.commands.rejects import list_rejects

    return list_rejects(settings, reason=reason, show=show, retry=retry)
