"""The `quietcount` command: options, exit codes, and one line for every expected error.

    0    done
    1    `audit` found a difference, `check` nothing that would be accepted, `init` nothing to count
    2    bad usage, settings, files or state, or Kafka does not answer
    3    `topics`: something is missing (with --create: something of the worker's own)
    70   an internal error
    75   another owner keeps the partitions (`run`)
    130  Ctrl-C (143: SIGTERM, of `replay`)

Every command imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click import option

from workers.commands.failures import EXIT_INTERRUPTED, explain, log

if TYPE_CHECKING:
    from click.decorators import FC

    from workers.settings.settings import Settings

# `sqrt` multiplies small matrices at every tick; BLAS threads cost four times what they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

EXIT_DEADLINE_S = 15.0
EXIT_BROKEN_PIPE = 141
CORE_DUMPS_ON = "--debug leaves core dumps on: a dump may hold the key and exact counts"

N = click.IntRange(1, 1_000)
PATH = click.Path(path_type=Path)
PORT = click.IntRange(0, 65_535)

flag = partial(option, is_flag=True)
config_option = option(
    "-c",
    "--config",
    type=PATH,
    required=True,
    metavar="FILE",
    help="The settings file (TOML).",
)


def records_option(least: int, default: int) -> Callable[[FC], FC]:
    allowed = click.IntRange(least, 100_000)
    return option(
        "--records",
        type=allowed,
        default=default,
        metavar="N",
        help="How many to read.",
    )


def _load(config: Path) -> Settings:
    from workers.settings.settings import load

    return load(config)


def _hide_client_logs() -> None:
    """Hide client log lines in commands that report errors themselves; --debug shows them."""
    debug = click.get_current_context().obj["debug"]
    logging.basicConfig(level=logging.DEBUG if debug else logging.CRITICAL)


def _load_quietly(config: Path) -> Settings:
    settings = _load(config)
    _hide_client_logs()
    return settings


def _version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from workers.runtime.process import version

        click.echo(f"quietcount {version() or '(a checkout that is not installed)'}")
        context.exit()


CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


@click.group(context_settings=CONTEXT)
@flag(
    "--debug",
    help="Show a traceback with an error, and more in the log; leave core dumps on.",
)
@flag(
    "--version",
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Publish differentially private histograms of a Kafka topic, tick by tick.

    Begin with `make demo` in a checkout, or with `quietcount key new FILE`, a settings file,
    `quietcount topics -c FILE --create` and `quietcount run -c FILE`.
    """
    context.obj["debug"] = debug
    # Before a command reads a key, a secret or an event.
    if not debug:
        from workers.runtime.process import forbid_core_dumps

        forbid_core_dumps()
    elif context.invoked_subcommand != "run":  # which logs it in its own format
        log(CORE_DUMPS_ON)


@cli.command()
@config_option
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Overrides worker.log_format: text, or one JSON object per line.",
)
@option(
    "--metrics-port",
    type=PORT,
    metavar="PORT",
    help="Overrides worker.metrics_port, the port of /metrics, /healthz and /readyz.",
)
@option(
    "--data-dir",
    type=PATH,
    metavar="DIR",
    help="Overrides worker.data_dir: workers on one machine need different ones.",
)
@option(
    "--embedded",
    hidden=True,
    metavar="ID",
    help="Cluster id of the demo's embedded Kafka.",
)
@click.pass_obj
def run(
    state: dict[str, Any],
    config: Path,
    log_format: str | None,
    metrics_port: int | None,
    data_dir: Path | None,
    embedded: str | None,
) -> int:
    """Run the worker until SIGTERM.

    Exits with 0 after a clean shutdown, 2 if the settings are wrong or do not match the stored
    state, and 75 if a newer owner keeps its partitions.
    """
    with _exit_on_early_sigterm():
        if log_format is not None:
            _log_as(log_format, state)
        settings = _load(config)
        _log_as(log_format or settings.worker.log_format, state)
        if state["debug"]:
            logging.getLogger(__name__).warning(CORE_DUMPS_ON)
        from workers.agents.worker import run as run_worker
        from workers.commands.compiling import ensure_compiled
        from workers.commands.compiling import logger as compiling

        ensure_compiled(compiling.info)
        status = run_worker(
            settings, metrics_port=metrics_port, data_dir=data_dir, embedded=embedded
        )
    # A shard's thread may be waiting for an unavailable broker. Nothing needs saving: do not wait.
    last_resort = threading.Timer(EXIT_DEADLINE_S, os._exit, (status,))
    last_resort.daemon = True
    last_resort.start()
    return status


@contextmanager
def _exit_on_early_sigterm() -> Iterator[None]:
    """Exit cleanly on SIGTERM until Faust handles it: otherwise PID 1 would ignore it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@cli.command()
@option(
    "--seconds", type=click.IntRange(min=1), metavar="N", help="Stop after N seconds."
)
@option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    metavar="N",
    help="Events a second.",
)
@option(
    "--port",
    type=PORT,
    metavar="P",
    help="Port of the page. Default: 8080, or a free one.",
)
@option(
    "--bootstrap",
    metavar="B",
    help="Kafka to use, host:port. Default: an embedded one.",
)
@option(
    "--picture",
    type=PATH,
    hidden=True,
    help="Write the last view as SVG; made docs/demo.svg.",
)
def demo(
    seconds: int | None,
    rate: int,
    port: int | None,
    bootstrap: str | None,
    picture: Path | None,
) -> int:
    """Show live private histograms beside the exact ones.

    They are shown here, and on a page.
    """
    _hide_client_logs()
    from workers.commands.demo.session import run_demo

    return run_demo(seconds, rate, bootstrap, picture, port)


@cli.command()
@config_option
@flag(
    "--create",
    help="Create missing topics of the worker's own; never alters existing ones.",
)
@flag("--events-topic", help="With --create: create a missing events topic as well.")
def topics(config: Path, create: bool, events_topic: bool) -> int:
    """Show the topics that the worker needs, and their state.

    Exits with 1 if an existing topic is not configured as it must be, 3 if one is missing. With
    --create a missing events topic is reported but no error: producers may create it later.
    """
    if events_topic and not create:
        raise click.UsageError("--events-topic goes with --create")
    settings = _load_quietly(config)
    from workers.commands.topics import show_topics

    return show_topics(settings, create=create, events_topic=events_topic)


@cli.command()
@config_option
@flag("--json", "as_json", help="Print one JSON object (docs/plan.md) instead of text.")
@option(
    "--report",
    type=PATH,
    metavar="DIR",
    help="Also write into DIR promise.html, one sheet to be signed, and plan.html, with charts.",
)
@option(
    "--since",
    type=PATH,
    metavar="OLD",
    help="With --report: say what changed since this settings file.",
)
@flag("--force", help="With --report: write into DIR even if it is not empty.")
def plan(
    config: Path, as_json: bool, report: Path | None, since: Path | None, force: bool
) -> int:
    """Show what the settings promise and cost, before anything runs.

    Prints the guarantee, the noise and thresholds over the ticks, the expected error, the memory,
    and other counters and mechanisms at the same budget. Reads only the settings: no Kafka, no
    key file, no events.
    """
    if report is None and (force or since is not None):
        raise click.UsageError("--since and --force go with --report DIR")
    settings = _load(config)
    old = None if since is None else _load(since)
    from workers.commands.plan import show_plan

    return show_plan(settings, as_json=as_json, report=report, since=old, force=force)


@cli.command()
@option(
    "-c",
    "--config",
    "configs",
    type=PATH,
    required=True,
    multiple=True,
    metavar="FILE",
    help="The settings file; repeatable.",
)
@flag(
    "--json", "as_json", help="Print one JSON object (docs/budget.md) instead of text."
)
def budget(configs: tuple[Path, ...], as_json: bool) -> int:
    """Show the budget spent so far, and what a ceiling still allows.

    By histogram, generation and epoch, and what it promises in total; of several workers on the
    same events also together.
    """
    settings = [_load(config) for config in configs]
    _hide_client_logs()
    from workers.commands.budget import show_budget

    return show_budget(settings, as_json=as_json)


@cli.command()
@config_option
@option(
    "--input",
    "source",
    metavar="FILE",
    help="JSON lines (may be gzipped) or Parquet; - is standard input.",
)
@flag("--topic", help="Read the events topic instead, up to its current end.")
@option(
    "--from",
    "since",
    metavar="T",
    help="With --topic: leave out events dated before T, such as 2026-11-21T08:00Z.",
)
@option(
    "--to", "until", metavar="T", help="With --topic: leave out ticks that end after T."
)
@option(
    "--snapshots",
    metavar="OUT",
    help="Write every snapshot to OUT, one per line; - is standard output.",
)
@option(
    "--report",
    type=PATH,
    metavar="DIR",
    help="Compare with the exact counts; write results and a report into DIR.",
)
@option(
    "--vary",
    multiple=True,
    metavar="H.SETTING=V,V",
    help="With --report: try these values of a histogram's setting, in every combination; repeatable.",
)
@option(
    "--seeds",
    type=N,
    metavar="N",
    help="With --report: repeat each run with N different seeds for its noise. Default: 3.",
)
@option(
    "--top",
    type=N,
    metavar="N",
    help="With --report: n of the top-n figures. Default: 10.",
)
@flag("--force", help="With --report: replace the results in DIR if it is not empty.")
def replay(
    config: Path,
    source: str | None,
    topic: bool,
    since: str | None,
    until: str | None,
    snapshots: str | None,
    report: Path | None,
    vary: tuple[str, ...],
    seeds: int | None,
    top: int | None,
    force: bool,
) -> int:
    """Run the histograms over past events.

    They are those of a file, or of the events topic. Its noise is never the worker's. What it
    reports is exact: for the operator only. Ctrl-C stops it with exit code 130 and keeps the ticks
    that are complete.
    """
    if topic == (source is not None):
        raise click.UsageError("give either --input FILE or --topic")
    if not topic and (since is not None or until is not None):
        raise click.UsageError("--from and --to go with --topic")
    if report is None and (vary or seeds or top or force):
        raise click.UsageError(
            "--vary, --seeds, --top and --force go with --report DIR"
        )
    settings = _load_quietly(config) if topic else _load(config)
    from workers.commands.replay import BacktestOptions, replay_events

    options = None
    if report is not None:
        numbers = {"seeds": seeds or 3, "top": top or 10}
        options = BacktestOptions(
            config=config, report=report, vary=vary, force=force, **numbers
        )
    return replay_events(
        settings,
        source=source,
        since=since,
        until=until,
        snapshots=snapshots,
        options=options,
    )


@cli.command()
@config_option
@option(
    "--exact",
    type=PATH,
    metavar="FILE",
    help="Write [label, released, exact] for every snapshot to a new FILE. For the operator only.",
)
def audit(config: Path, exact: Path | None) -> int:
    """Recompute every published snapshot, and compare byte for byte.

    Exits with 1 at the first difference, and prints it. A line of --exact also has [sum, exact sum,
    mean, exact mean] of each item with a sum, and [released, exact] of the count of all items.
    """
    settings = _load_quietly(config)
    from workers.commands.audit import audit as audit_topics

    return audit_topics(settings, exact)


@cli.command()
@config_option
@option(
    "--port",
    type=PORT,
    default=8080,
    metavar="P",
    help="Port to listen on; 0: any free one.",
)
@option("--host", default="127.0.0.1", metavar="H", help="The address to listen on.")
@option(
    "--token-file",
    type=PATH,
    metavar="F",
    help="Show histograms only to clients that send the token in this file.",
)
@click.pass_obj
def dashboard(
    state: dict[str, Any], config: Path, port: int, host: str, token_file: Path | None
) -> int:
    """Serve a live page and an API over the histogram topics.

    It reads only these topics. From the settings file it needs worker.name, [kafka] and the
    histograms' names. SIGTERM or Ctrl-C stops it with exit code 0.
    """
    from workers.dashboard.server import run_dashboard
    from workers.runtime.logs import log_to_stderr

    log_to_stderr(debug=state["debug"])
    return run_dashboard(config, host=host, port=port, token_file=token_file)


@cli.command()
@config_option
@option(
    "--output", type=PATH, required=True, metavar="DIR", help="The directory to add to."
)
@option(
    "--format",
    "kind",
    type=click.Choice(["csv", "parquet", "iceberg"]),
    required=True,
    help="Files, or an Iceberg table with its catalogue in DIR.",
)
@option(
    "--histogram",
    "histograms",
    multiple=True,
    metavar="NAME",
    help="Only this; repeatable.",
)
@option(
    "--from",
    "since",
    metavar="T",
    help="Leave out ticks that end at or before T, such as 2026-11-21T08:00Z.",
)
@option("--to", "until", metavar="T", help="Leave out ticks that end after T.")
def export(
    config: Path,
    output: Path,
    kind: str,
    histograms: tuple[str, ...],
    since: str | None,
    until: str | None,
) -> int:
    """Add what is new in the histogram topics to files or a table.

    Each snapshot is added once, whatever ends a run. It reads these topics alone, up to their
    present ends. From the settings file it needs worker.name, [kafka] and the histograms' names.
    """
    _hide_client_logs()
    from workers.commands.export.export import export as export_snapshots

    return export_snapshots(
        config,
        output=output,
        kind=kind,
        histograms=histograms,
        since=since,
        until=until,
    )


@cli.command()
@config_option
@records_option(1, 1_000)
@option(
    "--input",
    "source",
    metavar="FILE",
    help='Look at a file instead, as `replay` reads it: JSON lines, Parquet, or "-".',
)
def check(config: Path, records: int, source: str | None) -> int:
    """Show what the settings would make of the newest events.

    How many are accepted and why the others are not, and what the first ticks of each histogram
    would show. Nothing is written or charged. What it prints is exact: for the operator only.
    Exits with 1 if nothing would be accepted.
    """
    settings = _load_quietly(config)
    from workers.commands.check.check import check as check_events

    return check_events(settings, source=source, records=records)


@cli.command()
@config_option
@option("--reason", metavar="R", help="Only rejects with this reason.")
@option(
    "--show",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Print up to N of them as they are.",
)
@flag("--retry", help="Send back those that would be accepted now, each once.")
def rejects(config: Path, reason: str | None, show: int | None, retry: bool) -> int:
    """List rejects by reason, and retry them.

    --retry sends back those that would be accepted now. What --show prints is exact: for the
    operator only.
    """
    settings = _load_quietly(config)
    from workers.commands.rejects import list_rejects

    return list_rejects(settings, reason=reason, show=show, retry=retry)


@cli.command()
@option(
    "--bootstrap",
    required=True,
    metavar="B",
    help="Kafka cluster, host:port, or several separated by commas.",
)
@option("--topic", required=True, metavar="T", help="The topic of the events.")
@option(
    "--output",
    type=PATH,
    metavar="FILE",
    help="The settings file to write. Default: T.toml. Never overwrites one.",
)
@records_option(10, 2_000)
@option(
    "--client",
    multiple=True,
    metavar="NAME=VALUE",
    help="A librdkafka setting, such as security.protocol=ssl; secrets as NAME=file:PATH or NAME=env:VARIABLE. Repeatable.",
)
@option(
    "--schema-registry",
    "registry",
    metavar="URL",
    help="Where the schemas of Avro, Protobuf or JSON Schema are.",
)
@option(
    "--registry",
    "registry_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another setting of [schema_registry], such as ca=PATH; secrets as NAME=file:PATH or NAME=env:VARIABLE. Repeatable.",
)
@option(
    "--keys",
    type=click.Choice(["public", "declare", "none"]),
    help="May names of stream keys be published: all of them, those of the sample (written into the file), or none. "
    "Asked for on a terminal, else none.",
)
@option(
    "--users/--no-users",
    default=None,
    help="Protect all events of a user, not single events.",
)
@option(
    "--range",
    "range_",
    metavar="FROM:TO",
    help="Of numbers that are counted in buckets. Default: from the sample.",
)
@flag(
    "--yes",
    help="Do not ask; options not given take the values used without a terminal.",
)
def init(topic: str, output: Path | None, yes: bool, **options: Any) -> int:
    """Look at a topic, and write a settings file for it.

    Every line has a reason. Reads the oldest and the newest records of each partition, finds fields
    to count and the time, and chooses a tick by the rate. Nothing is written to Kafka. What it
    prints is exact: for the operator only. Exits with 1 if nothing in the topic could be counted.
    """
    if options["registry_options"] and options["registry"] is None:
        raise click.UsageError("--registry goes with --schema-registry URL")
    _hide_client_logs()
    from workers.commands.init.dialogue import write_settings

    output = output or Path(f"{topic}.toml")
    return write_settings(topic=topic, output=output, ask=not yes, **options)


@cli.command()
@config_option
@click.argument("name")
def retire(config: Path, name: str) -> int:
    """End a histogram that is no longer in the settings.

    What it published stays charged, and its topic stays as it is. It needs the worker's rights on
    Kafka, and no worker of this name may run.
    """
    settings = _load_quietly(config)
    from workers.agents.retiring import retire as end
    from workers.agents.topics import connection_of

    generation, owners = end(settings, connection_of(settings), name)
    click.echo(
        f"histogram {name}: generation {generation} is over, in {owners} owner "
        f"partition{'' if owners == 1 else 's'}. What it published stays charged, and its topic stays.\n"
        f"If {name} comes back it begins again with generation = {generation + 1}, which is charged again."
    )
    return 0


@cli.command("explain")
@click.argument("words", nargs=-1, required=True, metavar="MESSAGE")
def explain_message(words: tuple[str, ...]) -> int:
    """Say what a message means, and what to do.

    Prints the row of docs/operations.md for a line of a log or of a command. Put the line, or some
    of its words, in quotes. Exits with 1 if no row has these words.
    """
    from workers.commands.explaining import explain_message as show

    return show(" ".join(words))


@cli.group()
def key() -> None:
    """Create the key that all noise is derived from."""


@key.command("new")
@click.argument("file", type=PATH)
def key_new(file: Path) -> int:
    """Write a new key of 32 random bytes to FILE.

    Only you can read it. Never overwrites a file.
    """
    from workers.commands.key import new_key

    click.echo(new_key(file))
    return 0


@key.command("fingerprint")
@click.argument("file", type=PATH)
def key_fingerprint(file: Path) -> int:
    """Print a fingerprint of the key in FILE.

    It does not reveal the key. A worker without its key states the fingerprint of the key that it
    needs.
    """
    from workers.mechanisms.noise.keyed import NoiseKey
    from workers.settings.files import read_key

    click.echo(NoiseKey(read_key(file)).fingerprint.hex())
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    # Imports stay, and the rest goes with the process: nothing to collect (saves 0.4 s).
    gc.set_threshold(50_000, 20, 100)
    code = execute(arguments)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError):  # it is closed
            try:
                stream.flush()
            except OSError:
                # the reader is gone: Python would exit with 120 for what is left
                _discard(stream)
    if "_duckdb" in sys.modules:
        # End now: DuckDB would list on stderr as leaks what Python leaves to its end.
        os._exit(code)
    gc.freeze()
    sys.exit(code)


def _discard(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run a command; every exception becomes an exit code and a line on stderr."""
    state: dict[str, Any] = {}
    try:
        # Not cli.main(): if the reader of our output is gone it exits with 1, which `audit` uses.
        given = list(sys.argv[1:] if arguments is None else arguments)
        with cli.make_context("quietcount", given, obj=state) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        _discard(sys.stdout)
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 (the last place: everything becomes an exit code)
        return explain(
            error, debug=state.get("debug", False), say=state.get("say", log)
        )


def _log_as(form: str, state: dict[str, Any]) -> None:
    """Set up logging for `run`; with JSON, the command's final message is JSON too."""
    from workers.runtime.logs import log_fatal, log_to_stderr

    log_to_stderr(debug=state["debug"], json_lines=form == "json")
    state["say"] = log_fatal if form == "json" else log


if __name__ == "__main__":
    main()
