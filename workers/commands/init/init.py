"""Options of `quietcount init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from workers.commands.options import PATH, only_one_line


@click.command()
@click.option(
    "--bootstrap",
    required=True,
    metavar="B",
    help="Kafka cluster, host:port, or several separated by commas.",
)
@click.option("--topic", required=True, metavar="T", help="The topic of the events.")
@click.option(
    "--output",
    type=PATH,
    metavar="FILE",
    help="The settings file to write. Default: T.toml. Never overwrites one.",
)
@click.option(
    "--records",
    type=click.IntRange(10, 100_000),
    default=2_000,
    show_default=True,
    metavar="N",
    help="How many to look at.",
)
@click.option(
    "--client",
    multiple=True,
    metavar="NAME=VALUE",
    help="A librdkafka setting, such as security.protocol=ssl; secrets as NAME=file:PATH or NAME=env:VARIABLE. Repeatable.",
)
@click.option(
    "--schema-registry",
    "registry",
    metavar="URL",
    help="Where the schemas of Avro, Protobuf or JSON Schema are.",
)
@click.option(
    "--registry",
    "registry_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another setting of [schema_registry], such as ca=PATH; secrets as NAME=file:PATH or NAME=env:VARIABLE. Repeatable.",
)
@click.option(
    "--keys",
    type=click.Choice(["public", "declare", "none"]),
    help="May names of stream keys be published: all of them, those of the sample (written into the file), or none. "
    "Asked for on a terminal, else none.",
)
@click.option(
    "--users/--no-users", default=None, help="Protect all events of one user, not single events."
)
@click.option(
    "--range",
    "range_",
    metavar="FROM:TO",
    help="Of numbers that are counted in buckets. Default: from the sample.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask; options that are not given take the values used without a terminal.",
)
@click.pass_context
def init(
    context: click.Context, /, topic: str, output: Path | None, yes: bool, **options: Any
) -> int:
    """Look at a topic and write a settings file for it, with a reason for every line.

    Reads the oldest and the newest records of each partition, finds fields to count and the time,
    and chooses a tick by the rate. Nothing is written to Kafka. What it prints is exact: for the
    operator only. Exits with 1 if nothing in the topic could be counted.
    """
    if options["registry_options"] and options["registry"] is None:
        raise click.UsageError("--registry goes with --schema-registry URL")
    only_one_line(context)
    from workers.commands.init.dialogue import InitOptions, write_settings

    return write_settings(
        InitOptions(output=output or Path(f"{topic}.toml"), ask=not yes, topic=topic, **options)
    )
