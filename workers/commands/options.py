"""The options of every command, each declared once: a field of its command's record.

The field's name is the option's unless it names others; its type says how the text is read. After
an option's help comes what the help calls its value, None for a flag or a choice. An option that
was not given is None, or has its default. `cli` makes the parameters of click, the library of the
command line, from these records.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, dataclass_transform, get_args, get_origin

import click

N = click.IntRange(1, 1_000)
PATH = click.Path(path_type=Path)
PORT = click.IntRange(0, 65_535)
RECORDS_MAX = 100_000


def option(text: str, metavar: str | None = None, *names: str, **declared: Any) -> Any:
    """Declare an option: its help, the name of its value, its own names, and more for click."""
    return field(metadata={"help": text, "metavar": metavar, "names": names} | declared)


def argument(**declared: Any) -> Any:
    """Declare an argument, which has no help of its own."""
    return field(metadata=declared)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Options:
    """Base of the records of options, which become frozen dataclasses by deriving from it."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


def parameters(record: Any) -> list[click.Parameter]:
    """Return click's parameters for a command's record of options."""
    return [
        _parameter(entry.name, entry.type, dict(entry.metadata))
        for entry in fields(record)
    ]


def _parameter(name: str, kind: Any, declared: dict[str, Any]) -> click.Parameter:
    """Return click's parameter for one field; `kind` is its type, `declared` its metadata."""
    # Also of `Path | None` and `tuple[Path, ...]`.
    if Path in (kind, *get_args(kind)):
        declared["type"] = PATH
    # It was declared by `argument`, not by `option`.
    if "help" not in declared:
        return click.Argument([name], **declared)
    if kind is bool:
        declared["is_flag"] = True
    elif get_origin(kind) is tuple:
        declared["multiple"] = True
    names = declared.pop("names") or (f"--{name.replace('_', '-')}",)
    return click.Option([*names, name], **declared)


class Configured(Options):
    """Options of a command that reads one settings file."""

    config: Path = option(
        "The settings file (TOML).", "FILE", "-c", "--config", required=True
    )


class Run(Configured):
    """Options of `run`, the worker."""

    log_format: str | None = option(
        "Overrides worker.log_format: text, or one JSON object per line.",
        type=click.Choice(["text", "json"]),
    )
    metrics_port: int | None = option(
        "Overrides worker.metrics_port, the port of /metrics, /healthz and /readyz.",
        "PORT",
        type=PORT,
    )
    data_dir: Path | None = option(
        "Overrides worker.data_dir: workers on one machine need different ones.", "DIR"
    )
    embedded: str | None = option(
        "Cluster id of the demo's embedded Kafka.", "ID", hidden=True
    )


class Demo(Options):
    """Options of `demo`."""

    seconds: int | None = option(
        "Stop after N seconds.", "N", type=click.IntRange(min=1)
    )
    rate: int = option(
        "Events a second.", "N", type=click.IntRange(1, 1_000_000), default=1_000
    )
    port: int | None = option(
        "Port of the page. Default: 8080, or a free one.", "P", type=PORT
    )
    bootstrap: str | None = option(
        "Kafka to use, host:port. Default: an embedded one.", "B"
    )
    picture: Path | None = option(
        "Write the last view as SVG; made docs/demo.svg.", hidden=True
    )


class Topics(Configured):
    """Options of `topics`, which shows and creates what a worker needs."""

    create: bool = option(
        "Create missing topics of the worker's own; never alters existing ones."
    )
    events_topic: bool = option("With --create: create a missing events topic as well.")


class Plan(Configured):
    """Options of `plan`, which says what the settings promise and cost."""

    as_json: bool = option(
        "Print one JSON object (docs/plan.md) instead of text.", None, "--json"
    )
    registry: bool = option(
        "Print an entry for the public registry of deployments (docs/plan.md) instead."
    )
    report: Path | None = option(
        "Also write into DIR promise.html, one sheet to be signed, and plan.html, with charts.",
        "DIR",
    )
    since: Path | None = option(
        "With --report: say what changed since this settings file.", "OLD"
    )
    force: bool = option("With --report: write into DIR even if it is not empty.")


class Budget(Options):
    """Options of `budget`; several settings files are of workers on the same events."""

    configs: tuple[Path, ...] = option(
        "The settings file; repeatable.", "FILE", "-c", "--config", required=True
    )
    as_json: bool = option(
        "Print one JSON object (docs/budget.md) instead of text.", None, "--json"
    )


class Replay(Configured):
    """Options of `replay`, which with a report is a backtest."""

    source: str | None = option(
        "JSON lines (may be gzipped) or Parquet; - is standard input.",
        "FILE",
        "--input",
    )
    topic: bool = option("Read the events topic instead, up to its current end.")
    since: str | None = option(
        "With --topic: leave out events dated before T, such as 2026-11-21T08:00Z.",
        "T",
        "--from",
    )
    until: str | None = option(
        "With --topic: leave out ticks that end after T.", "T", "--to"
    )
    snapshots: str | None = option(
        "Write every snapshot to OUT, one per line; - is standard output.", "OUT"
    )
    report: Path | None = option(
        "Compare with the exact counts; write results and a report into DIR.", "DIR"
    )
    vary: tuple[str, ...] = option(
        "With --report: try these values of a histogram's setting, in every combination; repeatable.",
        "H.SETTING=V,V",
    )
    seeds: int | None = option(
        "With --report: repeat each run with N different seeds for its noise. Default: 3.",
        "N",
        type=N,
    )
    top: int | None = option(
        "With --report: n of the top-n figures. Default: 10.", "N", type=N
    )
    force: bool = option(
        "With --report: replace the results in DIR if it is not empty."
    )


class Audit(Configured):
    """Options of `audit`."""

    exact: Path | None = option(
        "Write [label, released, exact] for every snapshot to a new FILE. For the operator only.",
        "FILE",
    )


class Dashboard(Configured):
    """Options of `dashboard`, which serves the page and the API."""

    port: int = option(
        "Port to listen on; 0: any free one.", "P", type=PORT, default=8080
    )
    host: str = option("The address to listen on.", "H", default="127.0.0.1")
    token_file: Path | None = option(
        "Show histograms only to clients that send the token in this file.", "F"
    )
    readers_file: Path | None = option(
        "Several tokens, or the names that a proxy gives, and the histograms that each may see.",
        "F",
        "--readers",
    )
    tls_certificate: Path | None = option(
        "Speak TLS, with the certificate chain (PEM) in this file.", "F"
    )
    tls_key: Path | None = option("The certificate's key (PEM).", "F")


class Export(Configured):
    """Options of `export`, which copies snapshots into files or a table."""

    output: Path = option("The directory to add to.", "DIR", required=True)
    kind: str = option(
        "Files, or an Iceberg table with its catalogue in DIR.",
        None,
        "--format",
        type=click.Choice(["csv", "parquet", "iceberg"]),
        required=True,
    )
    histograms: tuple[str, ...] = option(
        "Only this; repeatable.", "NAME", "--histogram"
    )
    since: str | None = option(
        "Leave out ticks that end at or before T, such as 2026-11-21T08:00Z.",
        "T",
        "--from",
    )
    until: str | None = option("Leave out ticks that end after T.", "T", "--to")


class Sql(Options):
    """Options of `sql`, which answers a query within limits."""

    query: str = argument()
    export: Path = option(
        "The directory of an export, in Parquet.", "DIR", required=True
    )
    rows: int = option(
        "At most so many rows.", "N", type=click.IntRange(1, 10_000_000), default=10_000
    )
    seconds: int = option(
        "At most so long.", "S", type=click.IntRange(1, 86_400), default=60
    )
    memory: int = option(
        "At most so much memory, in MB.",
        "MB",
        type=click.IntRange(64, 1_000_000),
        default=1_024,
    )


class Check(Configured):
    """Options of `check`, which tries the settings on a sample."""

    records: int = option(
        "How many to read.", "N", type=click.IntRange(1, RECORDS_MAX), default=1_000
    )
    source: str | None = option(
        'Look at a file instead, as `replay` reads it: JSON lines, Parquet, or "-".',
        "FILE",
        "--input",
    )


class Rejects(Configured):
    """Options of `rejects`."""

    reason: str | None = option("Only rejects with this reason.", "R")
    show: int | None = option(
        "Print up to N of them as they are.", "N", type=click.IntRange(1, 10_000)
    )
    retry: bool = option("Send back those that would be accepted now, each once.")


class Init(Options):
    """Options of `init`, which writes settings for a topic."""

    bootstrap: str = option(
        "Kafka cluster, host:port, or several separated by commas.", "B", required=True
    )
    topic: str = option("The topic of the events.", "T", required=True)
    output: Path | None = option(
        "The settings file to write. Default: T.toml. Never overwrites one.", "FILE"
    )
    records: int | None = option(
        "How many to read. Default: 2,000, with --private 20,000.",
        "N",
        type=click.IntRange(10, RECORDS_MAX),
    )
    client: tuple[str, ...] = option(
        "A librdkafka setting, such as security.protocol=ssl; secrets as NAME=file:PATH or NAME=env:VARIABLE. Repeatable.",
        "NAME=VALUE",
    )
    schema_registry: str | None = option(
        "Where the schemas of Avro, Protobuf or JSON Schema are.", "URL"
    )
    registry: tuple[str, ...] = option(
        "Another setting of [schema_registry], such as ca=PATH; secrets as NAME=file:PATH or NAME=env:VARIABLE. Repeatable.",
        "NAME=VALUE",
    )
    keys: str | None = option(
        "May names of stream keys be published: all of them, those of the sample (written into the file), or none. "
        "Asked for on a terminal, else none.",
        type=click.Choice(["public", "declare", "none"]),
    )
    users: bool | None = option(
        "Protect all events of a user, not single events.",
        None,
        "--users/--no-users",
        default=None,
    )
    range: str | None = option(
        "Of numbers that are counted in buckets. Default: from the sample.", "FROM:TO"
    )
    private: str | None = option(
        "Choose max_items, max_count and the ends of buckets with noise, for E of the histogram's budget. Protects single events.",
        "epsilon=E",
    )
    yes: bool = option(
        "Do not ask; options not given take the values used without a terminal."
    )


class Retire(Configured):
    name: str = argument()


class Explain(Options):
    words: tuple[str, ...] = argument(nargs=-1, required=True, metavar="MESSAGE")


class KeyFile(Options):
    file: Path = argument()


class KeyRotation(Options):
    old: Path = argument()
    new: Path = argument()


class Verify(Options):
    """Options of `verify`; `cli` checks which of them go together."""

    copies: tuple[Path, ...] = argument(nargs=-1, metavar="[COPY]...")
    config: Path | None = option(
        "The settings file: reads the topics that it names.", "FILE", "-c", "--config"
    )
    keys: tuple[str, ...] = option(
        "The public key of the worker, as `quietcount key public` prints it; repeatable.",
        "KEY",
        "--key",
        required=True,
    )
    signatures: Path | None = option(
        "Signatures in a file, a line each, in place of the topic.", "FILE"
    )
    save: Path | None = option("Write the signatures to a new FILE.", "FILE")
    compare: Path | None = option(
        "Another reader's signatures: say whether both were shown the same.", "FILE"
    )
