"""The command `quietcount`: options, exit codes, and one line for everything that is expected to go wrong.

    0    done
    1    `audit` found a difference
    2    bad usage, settings, files, state, or a Kafka that does not answer
    70   a fault of the program itself
    75   another owner holds the partitions for good (`run`)
    130  Ctrl-C (143: SIGTERM, of `replay`)

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workers.commands.failures import explain, say_as_text

# The `sqrt` counter multiplies small matrices at each tick; threads of BLAS cost it four times what they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if TYPE_CHECKING:
    from workers.settings import Settings

EXIT_DEADLINE_S = 15.0
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

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
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Overrides worker.log_format: text, or a JSON object a line.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Overrides worker.metrics_port: where /metrics, /healthz and /readyz are.",
)
@click.option("--embedded", hidden=True, metavar="ID", help="Cluster id of the embedded Kafka of the demo.")
@click.pass_context
def run(
    context: click.Context, config: Path, log_format: str | None, metrics_port: int | None, embedded: str | None
) -> int:
    """Run the worker until SIGTERM.

    Exit 0 after a clean hand-over, 2 for bad settings or state that does not belong to them, 75 where a newer owner
    keeps its partitions.
    """
    with _clean_end_before_it_begins():
        state = context.find_root().obj
        if log_format is not None:
            _log_as(log_format, state)
        settings = _load(config)
        _log_as(log_format or settings.worker.log_format, state)
        from workers.app import run as run_worker

        status = run_worker(settings, metrics_port=metrics_port, embedded=embedded)
    # A shard's thread may be in a call to a broker that is away; nothing needs saving, so the process need not wait for it.
    last_resort = threading.Timer(EXIT_DEADLINE_S, os._exit, (status,))
    last_resort.daemon = True
    last_resort.start()
    return status


@contextmanager
def _clean_end_before_it_begins() -> Iterator[None]:
    """Until Faust heeds it, SIGTERM is a clean end as well: nothing was begun. A container's first process would not even get it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@cli.command()
@click.option("--seconds", type=click.IntRange(min=1), metavar="N", help="End by itself after N seconds.")
@click.option(
    "--rate", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True, metavar="N", help="Events a second."
)
@click.option("--port", type=click.IntRange(0, 65_535), metavar="P", help="Of the page. Default: 8080, or a free one.")
@click.option("--bootstrap", metavar="B", help="A Kafka cluster to use, host:port. Default: an embedded one.")
@click.option(
    "--picture", type=click.Path(path_type=Path), hidden=True, help="Write the last view as SVG; made docs/demo.svg."
)
@click.pass_context
def demo(
    context: click.Context,
    seconds: int | None,
    rate: int,
    port: int | None,
    bootstrap: str | None,
    picture: Path | None,
) -> int:
    """Show live private histograms beside the exact ones, on an embedded Kafka: here and in a browser."""
    _only_one_line(context)
    from workers.demo import run as run_demo

    return run_demo(seconds, rate, bootstrap, picture, port)


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/plan.md) instead of text.")
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="DIR", help="Write a page with pictures into DIR as well."
)
@click.option("--force", is_flag=True, help="With --report: also into a DIR that is not empty.")
def plan(config: Path, as_json: bool, report: Path | None, force: bool) -> int:
    """Show what the settings promise and cost, before anything runs.

    Guarantee, noise and thresholds over the ticks, expected error, memory, and other counters and mechanisms at the
    same budget. Reads the settings only: no Kafka, no key file, no events.
    """
    if force and report is None:
        raise click.UsageError("--force goes with --report DIR")
    settings = _load(config)
    from workers.commands.plan import show_plan

    return show_plan(settings, as_json=as_json, report=report, force=force)


@cli.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/budget.md) instead of text.")
@click.pass_context
def budget(context: click.Context, config: Path, as_json: bool) -> int:
    """Show what was spent so far, by histogram, generation and epoch, and what all of it promises together."""
    settings = _load(config)
    _only_one_line(context)
    from workers.commands.budget import show_budget

    return show_budget(settings, as_json=as_json)


@cli.command()
@config_option
@click.option(
    "--input",
    "source",
    metavar="FILE",
    help="Events, one JSON object a line (also gzipped), or Parquet; - is standard input.",
)
@click.option("--topic", is_flag=True, help="Read the events topic instead, to the end that it has now.")
@click.option(
    "--from", "since", metavar="T", help="With --topic: leave out events dated before T, such as 2026-11-21T08:00Z."
)
@click.option("--to", "until", metavar="T", help="With --topic: the last ticks are those that end by T.")
@click.option("--snapshots", metavar="OUT", help="Write every snapshot here, one a line; - is standard output.")
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Measure against the exact counts; write results and a report into DIR.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="H.SETTING=V,V",
    help="With --report: try these values of a histogram's setting, each with each; may be repeated.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="With --report: run each so often with other noise. Default: 3.",
)
@click.option(
    "--top", type=click.IntRange(1, 1_000), metavar="N", help="With --report: the n of the top-n figures. Default: 10."
)
@click.option("--force", is_flag=True, help="With --report: replace the results in a DIR that is not empty.")
@click.pass_context
def replay(
    context: click.Context,
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
    """Run the histograms over events that have been: a file, or the events topic.

    Its noise is never that of the worker. What it reports is exact: for the operator only. Ctrl-C ends it with exit 130,
    and leaves the ticks that are complete.
    """
    if topic == (source is not None):
        raise click.UsageError("one of --input FILE and --topic")
    if not topic and (since is not None or until is not None):
        raise click.UsageError("--from and --to go with --topic")
    if report is None and (vary or seeds or top or force):
        raise click.UsageError("--vary, --seeds, --top and --force go with --report DIR")
    settings = _load(config)
    from workers.commands.backtest import Options
    from workers.commands.replay import parse_time, replay_file, replay_topic

    options = None
    if report is not None:
        options = Options(config=config, report=report, vary=vary, seeds=seeds or 3, top=top or 10, force=force)
    if source is not None:
        return replay_file(settings, source=source, snapshots=snapshots, options=options)
    _only_one_line(context)
    times = (None if text is None else parse_time(name, text) for name, text in (("--from", since), ("--to", until)))
    since_ms, until_ms = times
    return replay_topic(settings, since_ms=since_ms, until_ms=until_ms, snapshots=snapshots, options=options)


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
    from workers.audit import audit as audit_topics

    return audit_topics(settings, exact)


@cli.command()
@config_option
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, metavar="P", help="0: any free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="H", help="The address to listen on.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="Show histograms only to those who give the token in this file.",
)
@click.pass_context
def dashboard(context: click.Context, config: Path, port: int, host: str, token_file: Path | None) -> int:
    """Serve a live page over the histogram topics, and an API.

    It reads nothing but these topics. Of the settings file it needs worker.name, [kafka] and the histograms' names.
    SIGTERM or Ctrl-C ends it, with exit 0.
    """
    from workers.commands.dashboard import run_dashboard
    from workers.logs import log_to_stderr

    log_to_stderr(debug=context.find_root().obj["debug"])
    return run_dashboard(config, host=host, port=port, token_file=token_file)


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
    state: dict[str, Any] = {}
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
        return explain(error, debug=state.get("debug", False), say=state.get("say", say_as_text))


def _log_as(form: str, state: dict[str, Any]) -> None:
    """Sets logging up for `run`; with JSON what ends the command is JSON too."""
    from workers.logs import last_words, log_to_stderr

    log_to_stderr(debug=state["debug"], json_lines=form == "json")
    state["say"] = last_words if form == "json" else say_as_text


def _load(config: Path) -> Settings:
    from workers.settings import load

    return load(config)


def _only_one_line(context: click.Context) -> None:
    """Keeps clients' own log lines off the terminal in commands that report an error themselves; --debug shows them."""
    import logging

    logging.basicConfig(level=logging.DEBUG if context.find_root().obj["debug"] else logging.CRITICAL)


if __name__ == "__main__":
    main()
