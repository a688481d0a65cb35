"""The `quietcount` command: options, exit codes, and one line for every expected error.

    0    done
    1    `audit` found a difference, `check` nothing that would be accepted, `init` nothing to count
    2    bad usage, settings, files or state, or Kafka does not answer
    3    `topics`: something is missing (with --create: something of the worker's own)
    70   an internal error
    75   another owner keeps the partitions (`run`)
    130  Ctrl-C (143: SIGTERM, of `replay`)

A command is a function here: its docstring is its help, its parameter `chosen` is a record of
`workers.commands.options` with what the user chose, and its result is the exit code. It checks how
options go together; the work is done in `workers.commands`, which it imports when it runs, so that
`--help` is quick. Most commands report errors themselves and load the settings quietly, without
log lines of Kafka's client.
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
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, get_type_hints

import click

from workers.commands import failures, options
from workers.commands.failures import EXIT_INTERRUPTED, log

if TYPE_CHECKING:
    from workers.settings.settings import Settings

# `sqrt` multiplies small matrices at every tick; BLAS threads cost four times what they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

EXIT_DEADLINE_S = 15.0
EXIT_BROKEN_PIPE = 141
CORE_DUMPS_ON = "--debug leaves core dumps on: a dump may hold the key and exact counts"

T = TypeVar("T", bound=options.Options)


def _load(config: Path) -> Settings:
    from workers.settings.settings import load

    return load(config)


def _hide_client_logs() -> None:
    """Hide log lines of Kafka's client, in commands that report errors themselves.

    --debug shows them.
    """
    debug = click.get_current_context().obj["debug"]
    logging.basicConfig(level=logging.DEBUG if debug else logging.CRITICAL)


def _load_quietly(config: Path) -> Settings:
    """Load the settings for a command that prints its own errors."""
    settings = _load(config)
    _hide_client_logs()
    return settings


def _version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the version for `--version`, and exit before a command runs."""
    # Not where a shell only asks how to complete a line.
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
@click.option(
    "--debug",
    is_flag=True,
    help="Show a traceback with an error, and more in the log; leave core dumps on.",
)
@click.option(
    "--version",
    is_flag=True,
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


@cli.group()
def key() -> None:
    """Create the key of all noise, and keys that sign ticks."""


def command(
    function: Callable[[T], int], group: click.Group = cli
) -> Callable[[T], int]:
    """Make a function a command of a group, under its name's last word: `key_new` is `key new`.

    The type of its parameter `chosen`, a record, says which options it has.
    """
    record = get_type_hints(function)["chosen"]
    added = click.Command(
        function.__name__.rpartition("_")[2],
        params=options.parameters(record),
        callback=lambda **values: function(record(**values)),
        help=getdoc(function),
    )
    group.add_command(added)
    return function


key_command = partial(command, group=key)


@command
def run(chosen: options.Run) -> int:
    """Run the worker until SIGTERM.

    Exits with 0 after a clean shutdown, 2 if the settings are wrong or do not match the stored
    state, and 75 if a newer owner keeps its partitions.
    """
    state = click.get_current_context().obj
    with _exit_on_early_sigterm():
        # Before the settings are loaded: errors in them have the form too.
        if chosen.log_format is not None:
            _log_as(chosen.log_format, state)
        settings = _load(chosen.config)
        _log_as(chosen.log_format or settings.worker.log_format, state)
        if state["debug"]:
            logging.getLogger(__name__).warning(CORE_DUMPS_ON)
        from workers.agents.worker import run as run_worker
        from workers.commands.compiling import ensure_compiled
        from workers.commands.compiling import logger as compiling

        ensure_compiled(compiling.info)
        status = run_worker(
            settings,
            metrics_port=chosen.metrics_port,
            data_dir=chosen.data_dir,
            embedded=chosen.embedded,
        )
    # A shard's thread may be waiting for an unavailable broker. Nothing needs saving: do not wait.
    last_resort = threading.Timer(EXIT_DEADLINE_S, os._exit, (status,))
    last_resort.daemon = True
    last_resort.start()
    return status


@contextmanager
def _exit_on_early_sigterm() -> Iterator[None]:
    """Exit cleanly on SIGTERM until Faust handles it: otherwise PID 1 would ignore it."""
    # Only the main thread may set a handler.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@command
def demo(chosen: options.Demo) -> int:
    """Show live private histograms beside the exact ones.

    They are shown here, and on a page.
    """
    _hide_client_logs()
    from workers.commands.demo.session import run_demo

    return run_demo(chosen)


@command
def topics(chosen: options.Topics) -> int:
    """Show the topics that the worker needs, and their state.

    Exits with 1 if an existing topic is not configured as it must be, 3 if one is missing. With
    --create a missing events topic is reported but no error: producers may create it later.
    """
    if chosen.events_topic and not chosen.create:
        raise click.UsageError("--events-topic goes with --create")
    settings = _load_quietly(chosen.config)
    from workers.commands.topics import show_topics

    return show_topics(settings, create=chosen.create, events_topic=chosen.events_topic)


@command
def plan(chosen: options.Plan) -> int:
    """Show what the settings promise and cost, before anything runs.

    Prints the guarantee, the noise and thresholds over the ticks, the expected error, the memory,
    and other counters and mechanisms at the same budget. Reads only the settings: no Kafka, no
    key file, no events.
    """
    if chosen.report is None and (chosen.force or chosen.since is not None):
        raise click.UsageError("--since and --force go with --report DIR")
    if chosen.as_json and chosen.registry:
        raise click.UsageError("--json and --registry exclude each other")
    settings = _load(chosen.config)
    old = None if chosen.since is None else _load(chosen.since)
    from workers.commands.plan import show_plan

    return show_plan(settings, old, chosen)


@command
def budget(chosen: options.Budget) -> int:
    """Show the budget spent so far, and what a ceiling still allows.

    By histogram, generation and epoch, and what it promises in total; of several workers on the
    same events also together.
    """
    settings = [_load(config) for config in chosen.configs]
    _hide_client_logs()
    from workers.commands.budget import show_budget

    return show_budget(settings, as_json=chosen.as_json)


@command
def replay(chosen: options.Replay) -> int:
    """Run the histograms over past events.

    They are those of a file, or of the events topic. Its noise is never the worker's. What it
    reports is exact: for the operator only. Ctrl-C stops it with exit code 130 and keeps the ticks
    that are complete.
    """
    if chosen.topic == (chosen.source is not None):
        raise click.UsageError("give either --input FILE or --topic")
    if not chosen.topic and (chosen.since is not None or chosen.until is not None):
        raise click.UsageError("--from and --to go with --topic")
    measuring = chosen.vary or chosen.seeds or chosen.top or chosen.force
    if chosen.report is None and measuring:
        raise click.UsageError(
            "--vary, --seeds, --top and --force go with --report DIR"
        )
    load = _load_quietly if chosen.topic else _load
    settings = load(chosen.config)
    from workers.commands.replay import replay_events

    return replay_events(settings, chosen)


@command
def audit(chosen: options.Audit) -> int:
    """Recompute every published snapshot, and compare byte for byte.

    Exits with 1 at the first difference, and prints it. A line of --exact also has [sum, exact sum,
    mean, exact mean] of each item with a sum, and [released, exact] of the count of all items.
    """
    settings = _load_quietly(chosen.config)
    from workers.commands.audit import audit as audit_topics

    return audit_topics(settings, chosen.exact)


@command
def verify(chosen: options.Verify) -> int:
    """Check that a copy of the snapshots is what was signed.

    It needs no secret. COPY is an export's directory, a CSV or Parquet file, or snapshots as JSON
    lines; none: the topics themselves. Exits with 1 at the first fault, which it names.
    """
    if chosen.config is None and chosen.signatures is None:
        raise click.UsageError("give -c, or --signatures with a file")
    if chosen.config is None and not (chosen.copies or chosen.compare):
        raise click.UsageError("give a COPY, or -c to read the topics")
    _hide_client_logs()
    from workers.commands.verify.verify import verify_copies

    return verify_copies(chosen)


@command
def dashboard(chosen: options.Dashboard) -> int:
    """Serve a live page and an API over the histogram topics.

    It reads only these topics. From the settings file it needs worker.name, [kafka] and the
    histograms' names. SIGTERM or Ctrl-C stops it with exit code 0.
    """
    from workers.dashboard.server import run_dashboard
    from workers.runtime.logs import log_to_stderr

    log_to_stderr(debug=click.get_current_context().obj["debug"])
    return run_dashboard(
        chosen.config,
        host=chosen.host,
        port=chosen.port,
        token_file=chosen.token_file,
        readers_file=chosen.readers_file,
        tls_certificate=chosen.tls_certificate,
        tls_key=chosen.tls_key,
    )


@command
def export(chosen: options.Export) -> int:
    """Add what is new in the histogram topics to files or a table.

    Each snapshot is added once, whatever ends a run. It reads these topics alone, up to their
    present ends. From the settings file it needs worker.name, [kafka] and the histograms' names.
    """
    _hide_client_logs()
    from workers.commands.export.export import export as export_snapshots

    return export_snapshots(chosen)


@command
def sql(chosen: options.Sql) -> int:
    """Answer a select over an export in Parquet, as CSV.

    There are tables items and ticks, and views latest, changes and totals (docs/sql.md). It writes
    nothing, and reads no other file.
    """
    from workers.commands.sql.sql import sql as answer

    return answer(chosen)


@command
def check(chosen: options.Check) -> int:
    """Show what the settings would make of the newest events.

    How many are accepted and why the others are not, and what the first ticks of each histogram
    would show. Nothing is written or charged. What it prints is exact: for the operator only.
    Exits with 1 if nothing would be accepted.
    """
    settings = _load_quietly(chosen.config)
    from workers.commands.check.check import check as check_events

    return check_events(settings, source=chosen.source, records=chosen.records)


@command
def rejects(chosen: options.Rejects) -> int:
    """List rejects by reason, and retry them.

    --retry sends back those that would be accepted now. What --show prints is exact: for the
    operator only.
    """
    settings = _load_quietly(chosen.config)
    from workers.commands.rejects import list_rejects

    return list_rejects(settings, chosen)


@command
def init(chosen: options.Init) -> int:
    """Look at a topic, and write a settings file for it.

    Every line has a reason. Reads the oldest and the newest records of each partition, finds fields
    to count and the time, and chooses a tick by the rate. Nothing is written to Kafka. What it
    prints is exact: for the operator only. Exits with 1 if nothing in the topic could be counted.
    """
    if chosen.registry and chosen.schema_registry is None:
        raise click.UsageError("--registry goes with --schema-registry URL")
    _hide_client_logs()
    from workers.commands.init.dialogue import write_settings

    return write_settings(chosen)


@command
def retire(chosen: options.Retire) -> int:
    """End a histogram that is no longer in the settings.

    What it published stays charged, and its topic stays as it is. It needs the worker's rights on
    Kafka, and no worker of this name may run.
    """
    settings = _load_quietly(chosen.config)
    from workers.agents.retiring import retire as end
    from workers.agents.topics import connection_of

    name = chosen.name
    generation, owners = end(settings, connection_of(settings), name)
    click.echo(
        f"histogram {name}: generation {generation} is over, in {owners} owner "
        f"partition{'' if owners == 1 else 's'}. What it published stays charged, and its topic stays.\n"
        f"If {name} comes back it begins again with generation = {generation + 1}, which is charged again."
    )
    return 0


@command
def explain(chosen: options.Explain) -> int:
    """Say what a message means, and what to do.

    Prints the row of docs/operations.md for a line of a log or of a command. Put the line, or some
    of its words, in quotes. Exits with 1 if no row has these words.
    """
    from workers.commands.explaining import explain_message

    return explain_message(" ".join(chosen.words))


@key_command
def key_new(chosen: options.KeyFile) -> int:
    """Write a new key of 32 random bytes to FILE.

    Only you can read it. Never overwrites a file.
    """
    from workers.commands.key import new_key

    click.echo(new_key(chosen.file))
    return 0


@key_command
def key_fingerprint(chosen: options.KeyFile) -> int:
    """Print a fingerprint of the key in FILE.

    It does not reveal the key. A worker without its key states the fingerprint of the key that it
    needs.
    """
    from workers.mechanisms.noise.keyed import NoiseKey
    from workers.settings.files import read_key

    click.echo(NoiseKey(read_key(chosen.file)).fingerprint.hex())
    return 0


@key_command
def key_signing(chosen: options.KeyFile) -> int:
    """Write a new key that signs ticks to FILE.

    Only you can read it. Never overwrites a file.
    """
    from workers.commands.key import new_signing_key

    click.echo(new_signing_key(chosen.file))
    return 0


@key_command
def key_public(chosen: options.KeyFile) -> int:
    """Print the public key of the signing key in FILE."""
    from workers.pipeline.signing_key import read_signing_key

    click.echo(read_signing_key(chosen.file).public)
    return 0


@key_command
def key_rotate(chosen: options.KeyRotation) -> int:
    """Write a new signing key to NEW, signed by that in OLD.

    Only you can read it. Never overwrites a file.
    """
    from workers.commands.key import rotate_signing_key

    click.echo(rotate_signing_key(chosen.old, chosen.new))
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code, also if the output's reader is gone.

    `arguments` None: those of the process.
    """
    # Rare collections: imports stay, and the rest goes with the process (saves 0.4 s).
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
    gc.freeze()  # no last collection either
    sys.exit(code)


def _discard(stream: TextIO) -> None:
    """Let what is still written to a stream go nowhere: its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run a command; every exception becomes an exit code and a line on stderr.

    `arguments` None: those of the process.
    """
    # Filled by commands: "debug", and "say", how to report an error in the form of the log.
    state: dict[str, Any] = {}
    try:
        # Not cli.main(): if the reader of our output is gone it exits with 1, which `audit` uses.
        chosen = list(sys.argv[1:] if arguments is None else arguments)
        with cli.make_context("quietcount", chosen, obj=state) as context:
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
        return failures.explain(
            error, debug=state.get("debug", False), say=state.get("say", log)
        )


def _log_as(form: str, state: dict[str, Any]) -> None:
    """Set up logging for `run` in a form, "json" or "text".

    An error that ends the command is said in the same form: `execute` calls `state["say"]`.
    """
    from workers.runtime.logs import log_fatal, log_to_stderr

    log_to_stderr(debug=state["debug"], json_lines=form == "json")
    state["say"] = log_fatal if form == "json" else log


if __name__ == "__main__":
    main()
