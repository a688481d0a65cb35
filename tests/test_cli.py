"""The command line: what it lists, its exit codes, and that an error is one line."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.admin import admin_of
from tests.quietcount import Quietcount
from tests.settings.test_settings import GOOD, TOPICS
from tests.worker.harness import until
from workers.cli import execute
from workers.commands.failures import explain
from workers.kafka.clients import Connection
from workers.kafka.topics import default_partitions
from workers.runtime.errors import Fenced, SettingsError
from workers.settings.files import read_key

Capture = pytest.CaptureFixture[str]
COMMAND = [sys.executable, "-m", "workers.cli"]
FORBIDDEN = KafkaError.TOPIC_AUTHORIZATION_FAILED
EVENTS = [
    b'{"shop":"s1","products":["a","b"],"ts":1795219201000}',
    b"nonsense",
    b'{"shop":"s2","products":["a"],"ts":1795219211000}',
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "orders.toml"
    path.write_text(GOOD, encoding="utf-8")
    (tmp_path / "secrets").mkdir()
    assert execute(["key", "new", str(tmp_path / "secrets" / "noise.key")]) == 0
    return path


def test_help_lists_the_commands_there_are_and_no_others(
    quietcount: Quietcount,
) -> None:
    """A command in the help that does not work yet is a broken promise."""
    out = quietcount("--help").out
    lines = out[out.index("Commands:") :].splitlines()[1:]
    listed = " ".join(line.split()[0] for line in lines if line.strip())
    first = "audit budget check dashboard demo explain export init key"
    assert listed == f"{first} plan rejects replay retire run sql topics verify"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", "-c"),
        ("demo", "--seconds --rate --bootstrap"),
        ("topics", "-c --create --events-topic"),
        ("plan", "-c --json"),
        ("budget", "-c --json"),
        ("dashboard", "-c --port"),
        ("export", "-c --output --format --histogram --from --to"),
        ("sql", "--export --rows --seconds --memory"),
        ("replay", "-c --input --snapshots"),
        ("audit", "-c"),
        ("check", "-c --records --input"),
        ("rejects", "-c --reason --show --retry"),
        ("key new", "FILE"),
        (
            "init",
            "--bootstrap --topic --output --records --client --keys --users --range --yes",
        ),
        ("init", "--schema-registry --registry"),
    ],
)
def test_every_command_explains_its_options(
    command: str, options: str, quietcount: Quietcount
) -> None:
    """The names are the interface."""
    out = quietcount(f"{command} --help").out
    assert all(option in out for option in options.split())


@pytest.mark.parametrize("command", ["", "key "])
def test_the_list_of_commands_is_not_cut(
    command: str, quietcount: Quietcount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, _, commands = quietcount(f"{command} --help").out.partition("Commands:")
    assert commands.strip() and "..." not in commands


def test_help_loads_nothing_heavy() -> None:
    """Help must answer at once; numpy and the Kafka clients take most of a second to load."""
    code = (
        "import sys, workers.cli\n"
        "assert workers.cli.execute(['--help']) == 0\n"
        "heavy = {'numpy', 'faust', 'aiokafka', 'confluent_kafka', 'msgspec', 'rich'}\n"
        "print('LOADED', *sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_version_is_one_line(quietcount: Quietcount) -> None:
    """It is the first thing a bug report is asked for."""
    [line] = quietcount("--version").out.splitlines()
    assert line.startswith("quietcount ")


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("bogus", "bogus"),
        ("run", "--config"),
        ("replay -c x.toml", "--input"),
        ("demo --rate 0", "--rate"),
        ("demo --seconds 0", "--seconds"),
        ("key new", "FILE"),
        ("topics -c x.toml --events-topic", "--events-topic goes with --create"),
    ],
)
def test_wrong_usage_is_2_and_named(
    command: str, part: str, quietcount: Quietcount
) -> None:
    """Usage errors go to stderr, so that a pipe does not read them as data."""
    captured = quietcount(command, code=2)
    assert part in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "command", ["run", "topics", "audit", "check", "rejects", "replay --input -"]
)
def test_bad_settings_are_2_and_one_line_without_traceback(
    tmp_path: Path, command: str, quietcount: Quietcount
) -> None:
    """Every command that reads the settings refuses them alike, before it touches anything."""
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace("epsilon = 1.0", "epsilon = -1"), encoding="utf-8")
    captured = quietcount(f"{command} -c {path}", code=2)
    assert captured.out == ""
    [line] = captured.err.splitlines()
    refusal = "epsilon = -1: a number above 0 and at most 50"
    assert line == f"quietcount: {path}: histogram 'products': {refusal}"


def test_debug_adds_the_traceback_and_keeps_the_exit_code(
    tmp_path: Path, quietcount: Quietcount
) -> None:
    """The line that people and scripts look for stays the last one."""
    lines = quietcount(
        f"--debug run -c {tmp_path / 'none.toml'}", code=2
    ).err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == f"quietcount: {tmp_path / 'none.toml'}: no such file"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SettingsError("two\nlines"), 2, "two lines"),
        (Fenced("orders-release-0: taken"), 75, "orders-release-0: taken"),
        (
            PermissionError(13, "Permission denied", "x.key"),
            2,
            "x.key: Permission denied",
        ),
        (KafkaException(KafkaError(FORBIDDEN)), 2, "Kafka: Broker: Topic auth"),
        (
            KafkaConnectionError("no broker"),
            2,
            "Kafka: KafkaConnectionError: no broker",
        ),
    ],
)
def test_what_can_be_expected_to_fail_is_one_line(
    error: Exception, code: int, line: str, capsys: Capture
) -> None:
    """An operator reads these at night."""
    assert explain(error, debug=False) == code
    [shown] = capsys.readouterr().err.splitlines()
    assert shown.startswith(f"quietcount: {line}")


def test_a_fault_of_the_program_tells_its_place_and_not_its_message(
    capsys: Capture,
) -> None:
    """The message of an unforeseen error may quote an event; --debug shows it to those who may see events."""
    try:
        raise KeyError("alice bought p1")
    except KeyError as error:
        caught = error
    assert explain(caught, debug=False) == 70
    [line] = capsys.readouterr().err.splitlines()
    assert "KeyError at test_cli.py:" in line
    assert "alice" not in line
    assert explain(caught, debug=True) == 70
    assert "alice" in capsys.readouterr().err


# key new


def test_a_new_key_is_32_fresh_bytes_for_its_owner_alone(
    tmp_path: Path, quietcount: Quietcount
) -> None:
    """Whatever the umask is, and never the same twice."""
    paths = [tmp_path / "one.key", tmp_path / "two.key"]
    for path, umask in zip(paths, (0o000, 0o277), strict=True):
        before = os.umask(umask)
        try:
            assert "key_file" in quietcount(f"key new {path}").out
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = (read_key(path) for path in paths)
    assert len(first) == len(second) == 32
    assert first != second


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_key_is_never_written_over_something(
    tmp_path: Path, kind: str, quietcount: Quietcount
) -> None:
    """A lost key is a lost worker: its state cannot be continued."""
    path = tmp_path / "noise.key"
    target = tmp_path / "target"
    if kind == "file":
        path.write_bytes(b"precious")
    else:
        path.symlink_to(target)
        if kind == "link":
            target.write_bytes(b"precious")
    line = quietcount(f"key new {path}", code=2).line
    assert line.startswith(f"quietcount: {path}: exists already")
    if kind == "dangling link":
        assert not target.exists()
    else:
        assert path.read_bytes() == b"precious"


def test_a_key_in_no_directory_says_how_to_make_one(
    tmp_path: Path, quietcount: Quietcount
) -> None:
    assert (
        f"mkdir -m 700 {tmp_path / 'secrets'}"
        in quietcount(f"key new {tmp_path / 'secrets' / 'noise.key'}", code=2).err
    )


# replay


def replaying(config: Path, events: Path, snapshots: Path) -> str:
    return f"replay -c {config} --input {events} --snapshots {snapshots}"


def test_replay_writes_one_snapshot_a_tick_and_key_and_the_same_bytes_again(
    config: Path, tmp_path: Path, quietcount: Quietcount
) -> None:
    """Two ticks, two stream keys, and a broken line that is told on stderr only."""
    events = tmp_path / "events.jsonl"
    events.write_bytes(b"\n".join(EVENTS))
    text = config.read_text(encoding="utf-8")
    with_time = text.replace('key = "shop"', 'key = "shop"\ntimestamp = "ts"')
    config.write_text(with_time, encoding="utf-8")
    outputs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for output in outputs:
        captured = quietcount(replaying(config, events, output))
        assert captured.out == ""
        for part in (
            "2 events, 1 rejected, 4 snapshots",
            "line 2: not JSON",
            "operator only",
        ):
            assert part in captured.err
    found = [json.loads(line) for line in outputs[0].read_bytes().splitlines()]
    places = [(one["tick"], one["key"]) for one in found]
    assert places == [(1, "s1"), (1, "s2"), (2, "s1"), (2, "s2")]
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_replay_does_not_write_over_its_input(config: Path, tmp_path: Path) -> None:
    """The events may be the only copy."""
    events = tmp_path / "events.jsonl"
    events.write_bytes(EVENTS[0])
    assert execute(replaying(config, events, events).split()) == 2
    assert events.read_bytes() == EVENTS[0]


def opened_for(process: subprocess.Popen[str], pipe: Path) -> int:
    """The writing end of a named pipe, once the process reads it; a process that ends before fails the test."""
    while process.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads yet
                raise
        time.sleep(0.01)
    raise AssertionError(f"ended with {process.returncode} before it read its input")


def interrupted(
    process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT
) -> str:
    """What it writes to stderr after Ctrl-C; pressed again where CPython lost one just before a blocking read."""
    for _ in range(5):
        process.send_signal(number)
        try:
            return process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    raise AssertionError(f"five times {number.name} did not end the process")


@pytest.mark.slow
def test_sigterm_while_the_worker_starts_is_a_clean_end(tmp_path: Path) -> None:
    """A deployment that is taken back at once: nothing was begun, and a supervisor must not hear of a failure."""
    pipe = tmp_path / "orders.toml"
    os.mkfifo(pipe)
    command = [*COMMAND, "run", "-c", str(pipe)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # it has begun to read its settings, which never come
        writing = opened_for(process, pipe)
        try:
            assert interrupted(process, signal.SIGTERM) == ""
        finally:
            os.close(writing)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--snapshots", "-"]])
def test_a_closed_pipe_is_not_our_error(
    config: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """`| head` must not print a traceback, and must not end like a failed audit."""
    if arguments[0] == "replay":
        events = tmp_path / "events.jsonl"
        events.write_bytes(EVENTS[0])
        arguments = [*arguments, "-c", str(config), "--input", str(events)]
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, *arguments]
    errors = subprocess.PIPE
    done = subprocess.run(
        command, stdout=writing, stderr=errors, text=True, check=False
    )
    os.close(writing)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


# topics


def for_topics(config: Path, bootstrap: str) -> str:
    """Points a settings file at a real Kafka, with names nobody else has and three owners; returns worker.name."""
    name = f"cli-{uuid.uuid4().hex[:12]}"
    text = config.read_text(encoding="utf-8").replace(
        '"localhost:9092"', f'"{bootstrap}"'
    )
    text = text.replace('name = "orders"', f'name = "{name}"\nowner_partitions = 3')
    config.write_text(
        text.replace('topic = "orders"', f'topic = "{name}"'), encoding="utf-8"
    )
    return name


def shown_by_topics(
    config: Path, quietcount: Quietcount, *arguments: str
) -> tuple[int, dict[str, tuple[str, str]], list[str]]:
    """Exit code of `topics`, state and partitions of every topic, lines on stderr."""
    code, out, err = quietcount(f"topics -c {config}", *arguments, code=None)
    rows = [line.split() for line in out.splitlines()[1:]]
    return code, {row[0]: (row[1], row[2]) for row in rows}, err.splitlines()


def create(admin: AdminClient, topic: NewTopic) -> None:
    [made] = admin.create_topics([topic]).values()
    made.result()
    until(
        lambda: topic.topic in admin.list_topics(timeout=60).topics, "the topic appears"
    )


def test_topics_shows_creates_once_and_is_content_after_that(
    bootstrap: str, config: Path, quietcount: Quietcount
) -> None:
    """Showing creates nothing, creating twice is as creating once, and what is missing is said on stderr."""
    name = for_topics(config, bootstrap)
    needed = [name, *(f"{name}.{end}" for end in TOPICS)]
    states = []
    both = ["--create", "--events-topic"]
    for arguments in ([], [], both, both, ["--create"], []):
        code, topics, lines = shown_by_topics(config, quietcount, *arguments)
        assert list(topics) == needed
        states.append({state for state, _ in topics.values()})
        assert (
            any("--create" in line for line in lines)
            == ("missing" in states[-1])
            == (code == 3)
        )
        assert code in (0, 3)
        assert (
            topics[f"{name}.contributions"][1]
            == topics[f"{name}.release-state"][1]
            == "3"
        )
        creating = f"quietcount: creating the events topic {name} with 4 partitions"
        assert (creating in lines) == (states[-1] == {"created"})
    assert states == [
        {"missing"},
        {"missing"},
        {"created"},
        {"there"},
        {"there"},
        {"there"},
    ]


def test_mistyped_events_topics_are_not_created(
    bootstrap: str, config: Path, quietcount: Quietcount
) -> None:
    """A typo would create a topic that nobody writes. The worker's own topics are created anyway: producers may create theirs later."""
    name = for_topics(config, bootstrap)
    admin = admin_of(Connection(bootstrap))
    create(admin, NewTopic(f"{name}s", 4, 1))
    code, topics, [line] = shown_by_topics(config, quietcount, "--create")
    created = {f"{name}.{end}": "created" for end in TOPICS}
    assert {own: topics[own][0] for own in topics} == {name: "missing", **created}
    assert code == 0, "it did all that it was asked to"
    assert name not in admin.list_topics(timeout=60).topics
    absent = f"events topic {name} does not exist"
    for words in (absent, f"did you mean {name}s?", "--create --events-topic"):
        assert words in line
    # A question is answered with 3: a worker could not start yet.
    code, topics, [line] = shown_by_topics(config, quietcount)
    assert code == 3 and topics[name][0] == "missing" and absent in line
    assert (
        f"events.topic = '{name}': no such topic on"
        in quietcount(f"run -c {config}", code=2).err
    )


def test_an_events_topic_that_comes_later_fits_what_was_made_before_it(
    bootstrap: str, config: Path, quietcount: Quietcount
) -> None:
    """A producer creates it with the cluster's default number, `--events-topic` with the number that the state was made for."""
    name = for_topics(config, bootstrap)
    assert shown_by_topics(config, quietcount, "--create")[0] == 0
    default = str(default_partitions(Connection(bootstrap)))
    code, topics, _ = shown_by_topics(config, quietcount)
    assert topics[name] == ("missing", default)
    assert topics[f"{name}.contribute-state"] == ("there", default)
    code, topics, _ = shown_by_topics(config, quietcount, "--create", "--events-topic")
    assert (code, topics[name]) == (0, ("created", default))
    assert shown_by_topics(config, quietcount)[0] == 0


def test_topics_is_1_for_misconfigured_topics(
    bootstrap: str, config: Path, quietcount: Quietcount
) -> None:
    """State in a topic that is not compacted is lost after a week: a script must not go on from there."""
    name = for_topics(config, bootstrap)
    admin = admin_of(Connection(bootstrap))
    state = f"{name}.release-state"
    create(admin, NewTopic(state, 3, config={"cleanup.policy": "delete"}))
    assert (
        f"quietcount: {state} has cleanup.policy = delete"
        in quietcount(f"topics -c {config} --create", code=1).err
    )
