"""`quietcount retire`: permanently end a histogram that was removed from the settings."""

from __future__ import annotations

from pathlib import Path

import click

from workers.commands.options import config_option, load_settings, only_one_line


@click.command()
@config_option
@click.argument("name")
@click.pass_context
def retire(context: click.Context, config: Path, name: str) -> int:
    """End the histogram NAME, which is no longer in the settings.

    What it published stays charged, and its topic stays as it is. It needs the worker's rights on
    Kafka, and no worker of this name may run.
    """
    settings = load_settings(config)
    only_one_line(context)
    from workers.agents.retiring import retire as end
    from workers.agents.topics import connection_of

    generation, owners = end(settings, connection_of(settings), name)
    click.echo(
        f"histogram {name}: generation {generation} is over, in {owners} owner "
        f"partition{'' if owners == 1 else 's'}. What it published stays charged, and its topic stays.\n"
        f"If {name} comes back it begins again with generation = {generation + 1}, which is charged again."
    )
    return 0
