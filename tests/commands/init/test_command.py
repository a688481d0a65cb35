"""The command on a real Kafka: what it reads, asks, writes and refuses."""

import json
import os
import pty
import select
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.admin import admin_of
from tests.commands.init.topics import events, partition_of
from tests.quietcount import Quietcount
from workers.commands.init.sample import sample_of
from workers.kafka.clients import Connection
from workers.mechanisms.accounting import rho_of
from workers.settings.settings import load

Records = Iterable[tuple[str | None, object]]


def made(bootstrap: str, records: Records, *, abort: bool = False) -> str:
    """Make a topic with records, objects as JSON; `abort` adds aborted ones before and after them."""
    partitions = 2
    topic = f"init-{uuid.uuid4().hex[:8]}"
    connection = Connection(bootstrap)
    admin = admin_of(connection)
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result()
    producer = connection.producer(f"{topic}-t")
    producer.init_transactions(30)

    def junk() -> None:
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, b'{"zqv": 1}', partition=partition)
        producer.abort_transaction(30)

    if abort:
        junk()
    producer.begin_transaction()
    for place, (key, value) in enumerate(records):
        body = value if isinstance(value, bytes) or value is None else json.dumps(value)
        producer.produce(topic, body, key, partition_of(key, place, partitions))
    producer.commit_transaction(30)
    if abort:
        junk()
    return topic


def options(bootstrap: str, topic: str, output: Path | str, more: str = "") -> str:
    return f"init --bootstrap {bootstrap} --topic {topic} --output {output} {more}"


def test_the_oldest_and_the_newest_committed_records_are_looked_at(
    bootstrap: str,
) -> None:
    topic = made(bootstrap, ((None, {"i": i}) for i in range(2_000)), abort=True)
    for number, found in (
        (200, [*range(100), *range(1_900, 2_000)]),
        (10_000, [*range(2_000)]),
    ):
        sample = sample_of(Connection(bootstrap), topic, number)
        assert (
            sorted(json.loads(record.value or b"")["i"] for record in sample.records)
            == found
        )
        assert (
            sample.partitions == 2
            and 2_000 <= sample.total <= 2_010
            and not sample.stopped
        )


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_written_once_with_next_steps(
    bootstrap: str, directory: Path, quietcount: Quietcount
) -> None:
    topic = made(bootstrap, events("orders", 600))
    run = f"init --bootstrap {bootstrap} --topic {topic} --keys public --client client.id=x.y"
    out = quietcount(run).out
    assert (
        f"{topic}.toml: written" in out
        and f"Next: quietcount check -c {topic}.toml" in out
    )
    settings = load(f"{topic}.toml")
    assert settings.events.count == "order.lines[].qty"
    assert settings.kafka.client == {"client.id": "x.y"}
    text = Path(f"{topic}.toml").read_text()
    assert f"quietcount key new {topic}.key" in text
    assert "settings are never overwritten" in quietcount(run, code=2).err
    assert Path(f"{topic}.toml").read_text() == text
    quietcount(f"key new {topic}.key")
    quietcount(f"topics -c {topic}.toml --create")
    # Its topics are there now: a second file gets another name, so that it cannot meddle with the first.
    quietcount(f"{run} --output second.toml")
    assert load("second.toml").worker.name == f"{topic}-2"


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "the topic is empty"),
        ([("k", None)], "no sampled record has a value"),
        ([(None, b"\x00\x00\x00\x00\x01abc")] * 20, "framed for a Schema Registry"),
        ([(None, b"nonsense")] * 20, "0 of 20 sampled values are JSON objects"),
        (
            [(None, {"id": f"{i:09}"}) for i in range(40)],
            "no field of the sampled records can be",
        ),
    ],
    ids=["empty", "tombstones", "framed", "no JSON", "ids"],
)
def test_no_file_is_written_if_nothing_can_be_guessed(
    records: Records, words: str, bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    topic = made(bootstrap, records)
    line = quietcount(options(bootstrap, topic, tmp_path / "x.toml"), code=1).line
    assert (
        line.startswith(f"quietcount: no settings for the topic {topic}: ")
        and words in line
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--client", "x"], "--client: NAME=VALUE"),
        (["--client", "sasl.password=hunter2"], "a secret must not be written here"),
        (["--client", "group.id=g"], "kafka.client.group.id: cannot be set"),
        (["--range", "5:1"], "--range 5:1: FROM:TO"),
        (["--output", "/nowhere/at/all.toml"], "no directory /nowhere/at"),
        (["--bootstrap", "localhost"], 'kafka.bootstrap = "localhost"'),
        (["--topic", "none-such"], "--topic none-such: no such topic on"),
    ],
)
def test_a_wrong_option_gives_one_line_and_exit_code_2(
    wrong: list[str],
    words: str,
    bootstrap: str,
    directory: Path,
    quietcount: Quietcount,
) -> None:
    line = quietcount(f"init --bootstrap {bootstrap} --topic some", *wrong, code=2).line
    assert words in line and "hunter2" not in line
    assert list(directory.iterdir()) == []


def test_secrets_are_not_copied_into_the_file(
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quietcount: Quietcount,
) -> None:
    monkeypatch.setenv("QC_TEST_PASSWORD", "hunter2")
    topic = made(bootstrap, events("flights", 200))
    secret = "--client sasl.password=env:QC_TEST_PASSWORD"
    quietcount(options(bootstrap, topic, tmp_path / "x.toml", secret))
    text = (tmp_path / "x.toml").read_text()
    assert (
        '"sasl.password" = { env = "QC_TEST_PASSWORD" }' in text
        and "hunter2" not in text
    )
    assert load(tmp_path / "x.toml").kafka.client == {"sasl.password": "hunter2"}


def test_on_a_terminal_it_asks(bootstrap: str, tmp_path: Path) -> None:
    topic = made(bootstrap, events("sensors", 1_000))
    answers = [
        ("May the names be published?", "declare"),
        ("Protect all events of one user", "y"),
        ("Buckets FROM:TO [0:70]", "-10:90"),
    ]
    out, code = on_a_terminal(options(bootstrap, topic, tmp_path / "x.toml"), answers)
    assert code == 0, out
    assert (
        "there are 2 different values: " in out
        and "The records are placed by sensor" in out
    )
    settings = load(tmp_path / "x.toml")
    [histogram] = settings.histograms
    assert histogram.keys == ("humidity", "temperature")
    assert settings.privacy.unit == "user" and settings.events.user == "sensor"
    assert histogram.buckets is not None
    assert (histogram.buckets.edges[0], histogram.buckets.edges[-1]) == (-10, 90)


def test_with_yes_it_asks_nothing_and_publishes_no_names(
    bootstrap: str, tmp_path: Path
) -> None:
    topic = made(bootstrap, events("sensors", 1_000))
    out, code = on_a_terminal(
        options(bootstrap, topic, tmp_path / "x.toml", "--yes"), []
    )
    assert code == 0 and "published?" not in out
    settings = load(tmp_path / "x.toml")
    assert settings.events.key == "$all" and settings.privacy.unit == "event"


def test_bounds_chosen_with_noise_are_charged_in_all_that_follows(
    bootstrap: str, directory: Path, quietcount: Quietcount
) -> None:
    """The topic, the file, what `check` and `plan` say of it, and who may ask for it."""
    topic = made(bootstrap, events("sensors", 5_000))
    asked = "--private epsilon=0.4"
    out = quietcount(options(bootstrap, topic, "x.toml", asked)).out
    assert out.count("were chosen with noise, which bounds_rho charges") == 1
    assert "were chosen by looking at exact data" not in out
    [histogram] = load("x.toml").histograms
    assert histogram.bounds_rho is not None
    assert 0.99 < histogram.bounds_rho / rho_of(0.4, 1e-9, gaussian=True) <= 1
    assert histogram.buckets is not None
    edges = histogram.buckets.edges
    assert 0 <= edges[0] <= 20
    assert 70 <= edges[-1] <= 105
    said = quietcount("plan -c x.toml").out
    assert f"of rho, {histogram.bounds_rho!r} was spent on choosing bounds" in said
    planned = json.loads(quietcount("plan -c x.toml --json").out)
    assert planned["total"]["epsilon"] == histogram.epsilon
    assert (
        "bounds chosen by it are in no guarantee" in quietcount("check -c x.toml").out
    )
    out = quietcount(options(bootstrap, topic, "y.toml")).out
    assert out.count("were chosen by looking at exact data") == 1
    assert load("y.toml").histograms[0].bounds_rho is None
    for wrong, words in (
        ("--private epsilon=2", "epsilon=E, E from 0.01 to 0.5"),
        (f"{asked} --users", "--private: not with --users"),
    ):
        run = options(bootstrap, topic, "z.toml", wrong)
        assert words in quietcount(run, code=2).line
    few = quietcount(
        options(bootstrap, topic, "z.toml", f"{asked} --records 300"), code=1
    )
    assert "takes a sample of about" in few.err
    assert not Path("z.toml").exists()


def on_a_terminal(command: str, answers: list[tuple[str, str]]) -> tuple[str, int]:
    """Run the command on a terminal and answer its questions; return its output and exit code."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(
            sys.executable, [sys.executable, "-m", "workers.cli", *command.split()]
        )
    shown = ""
    deadline = time.monotonic() + 60
    waiting = list(answers)
    with suppress(OSError):  # Linux ends a terminal with an error
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            if not (part := os.read(terminal, 65_536)):
                break
            shown += part.decode(errors="replace")
            if waiting and waiting[0][0] in shown:
                os.write(terminal, f"{waiting.pop(0)[1]}\n".encode())
    os.close(terminal)
    assert not waiting, shown
    return shown, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
