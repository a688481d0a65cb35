"""The command `quietcount`: options, exit codes, and one line for everything that is expected to go wrong.

    0    done
    1    `audit` found a difference
    2    bad usage, settings, files, state, or a Kafka that does not answer
    70   a fault of the program itself
    75   another owner holds the partitions for good (`run`)
    130  Ctrl-C

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workers.errors import Fenced, QuietcountError

# The `sqrt` counter multiplies small matrices at each tick; threads of BLAS cost it four times what they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if TYPE_CHECKING:
    from workers.settings import Settings

EXIT_EXPECTED = 2
EXIT_DEADLINE_S = 15.0
EXIT_FAULT = 70
EXIT_FENCED = 75
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

#: Modules whose exceptions mean that Kafka said no; looked up only where a command has loaded them.
KAFKA_ERRORS = (("confluent_kafka", "KafkaException"), ("aiokafka.errors", "KafkaError"))

config_option = click.option(
    "-c", "--config", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The settings file (TOML)."
)


def _version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Prints the installed version; the metadata is read only when asked for."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("quietcount")
    except PackageNotFoundError:
        number = "(a checkout that is not installed)"
    click.echo(f"quietcount {number}")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show a traceback with an error, and more in the log.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Publish differentially private histograms of a Kafka topic, tick by tick.

    Begin with `make demo` in a checkout, or with `quietcount key new FILE`, a settings file,
    `quietcount topics -c FILE --create` and `quietcount run -c FILE`.
    """
    context.obj["debug"] = debug


@cli.command()
@config_option
@click.pass_context
def run(context: click.Context, config: Path) -> int:
    """Run the worker until SIGTERM.

    Exit 0 after a clean hand-over, 2 for bad settings or state that does not belong to them, 75 where a newer owner
    keeps its partitions.
    """
    settings = _load(config)
    from workers.app import run as run_worker
    from workers.logs import log_to_stderr

    log_to_stderr(debug=context.find_root().obj["debug"])
    status = run_worker(settings)
    # A shard's thread may be in a call to a broker that is away; nothing needs saving, so the process need not wait for it.
    last_resort = threading.Timer(EXIT_DEADLINE_S, os._exit, (status,))
    last_resort.daemon = True
    last_resort.start()
    return status


@cli.command()
@click.option("--seconds", type=click.IntRange(min=1), metavar="N", help="End by itself after N seconds.")
@click.option(
    "--rate", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True, metavar="N", help="Events a second."
)
@click.option("--bootstrap", metavar="B", help="A Kafka cluster to use, host:port. Default: an embedded one.")
@click.option(
    "--picture", type=click.Path(path_type=Path), hidden=True, help="Write the last view as SVG; made docs/demo.svg."
)
@click.pass_context
def demo(
    context: click.Context, seconds: int | None, rate: int, bootstrap: str | None, picture: Path | None
) -> int:
    """Show live private histograms beside the exact ones, on an embedded Kafka."""
    _only_one_line(context)
    from workers.demo import run as run_demo

    return run_demo(seconds, rate, bootstrap, picture)


@cli.command()
@config_option
@click.option("--create", is_flag=True, help="Create the topics that are missing. Existing ones are never altered.")
@click.pass_context
def topics(context: click.Context, config: Path, create: bool) -> int:
    """Show the topics the worker needs, and what is there.

    Exit 1 if one that is there is not as it must be.
    """
    settings = _load(config)
    _only_one_line(context)
    from workers.commands.topics import show_topics

    return show_topics(settings, create=create)


@cli.command()
@config_option
@click.option(
    "--input", "source", required=True, metavar="FILE", help="Events, one JSON object a line; - is standard input."
)
@click.option("--snapshots", metavar="OUT", help="Write every snapshot here, one a line; - is standard output.")
def replay(config: Path, source: str, snapshots: str | None) -> int:
    """Run the histograms over a file of events, without Kafka.

    Its noise is never that of the worker. What it reports is exact: for the operator only.
    """
    settings = _load(config)
    from workers.commands.replay import replay_file

    return replay_file(settings, source=source, snapshots=snapshots)


@cli.command()
@config_option
@click.option(
    "--exact",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write [label, released, exact] of every snapshot to a new FILE. For the operator only.",
)
@click.pass_context
def audit(context: click.Context, config: Path, exact: Path | None) -> int:
    """Compute every published snapshot again, and compare byte for byte.

    Exit 1, with the first difference, if one is not as it must be.
    """
    settings = _load(config)
    _only_one_line(context)
    from workers.replay.audit import audit as audit_topics

    return audit_topics(settings, exact)


@cli.group()
def key() -> None:
    """Make the key that all noise comes from."""


@key.command("new")
@click.argument("file", type=click.Path(path_type=Path))
def key_new(file: Path) -> int:
    """Write a new key of 32 random bytes to FILE, readable by you alone. Never overwrites."""
    from workers.commands.key import new_key

    click.echo(new_key(file))
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and ends the process with its exit code."""
    sys.exit(execute(arguments))


def execute(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; every exception becomes an exit code and a line on stderr."""
    state: dict[str, bool] = {}
    try:
        # Not cli.main(): that ends with 1 when the reader of our output has gone, which `audit` means otherwise.
        with cli.make_context(
            "quietcount", list(sys.argv[1:] if arguments is None else arguments), obj=state
        ) as context:
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
        # Whoever read our output has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 (the last place: everything becomes an exit code)
        return explain(error, debug=state.get("debug", False))


def explain(error: Exception, *, debug: bool) -> int:
    """Says what went wrong, and with which exit code the process ends."""
    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, QuietcountError):
        click.echo(f"quietcount: {_one_line(error)}", err=True)
        return EXIT_FENCED if isinstance(error, Fenced) else EXIT_EXPECTED
    if _is_kafka_error(error):
        click.echo(f"quietcount: Kafka: {_kafka_message(error)}", err=True)
        return EXIT_EXPECTED
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        click.echo(f"quietcount: {place}{error.strerror}", err=True)
        return EXIT_EXPECTED
    # The message of an unforeseen error may quote an event, so without --debug only its kind and place are shown.
    click.echo(f"quietcount: internal error: {type(error).__name__} at {_place(error)}; --debug shows more", err=True)
    return EXIT_FAULT


def _is_kafka_error(error: Exception) -> bool:
    for module, name in KAFKA_ERRORS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return True
    return False


def _kafka_message(error: Exception) -> str:
    """The text of a librdkafka error, which hides in the exception's first argument, or of aiokafka's."""
    text = getattr(error.args[0], "str", None) if error.args else None
    return str(text()) if callable(text) else _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _place(error: Exception) -> str:
    """File and line where an error was raised."""
    trace = error.__traceback__
    if trace is None:
        return "an unknown place"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _load(config: Path) -> Settings:
    from workers.settings import load

    return load(config)


def _only_one_line(context: click.Context) -> None:
    """Keeps clients' own log lines off the terminal in commands that report an error themselves; --debug shows them."""
    import logging

    logging.basicConfig(level=logging.DEBUG if context.find_root().obj["debug"] else logging.CRITICAL)


if __name__ == "__main__":
    main()
