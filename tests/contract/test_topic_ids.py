"""Topics without an id are refused: a recreated topic would reuse the same noise on other data.

Broker answers are planted: packaged brokers all give ids (Kafka 2.7 and 2.8 were tried by hand).
"""

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicCollection, Uuid

from tests.agents.monitor.scene import Scene
from tests.pipeline.pipeline import KEY, unk
from tests.settings.test_settings import GOOD, TOPICS
from workers.agents.contribute import ContributeProgress
from workers.agents.progress import PROGRESS
from workers.agents.topics import Topics
from workers.cli import execute
from workers.kafka import topics as module
from workers.kafka.clients import Connection
from workers.kafka.store import Changelog, Store
from workers.kafka.topics import ZERO_ID, ExistingTopic, describe
from workers.mechanisms.registry import build
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import VERSION, Place, Sources, SourceTopic
from workers.pipeline.histogram import Histogram
from workers.runtime.errors import SettingsError, StateRefused

ZERO = Uuid(0, 0)
NAMES = ("orders", *(f"orders.{part}" for part in TOPICS))
PATHS: dict[str, list[str]] = {
    "run": ["run"],
    "audit": ["audit"],
    "budget": ["budget"],
    "replay": ["replay", "--topic", "--snapshots", "snapshots.jsonl"],
    "topics": ["topics"],
    "topics --create": ["topics", "--create"],
}


Futures = dict[str, Future[Any]]


def done(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@dataclass
class Broker:
    """Planted cluster answers: admin client and metadata in one."""

    ids: dict[str, Uuid | None]
    new: Uuid | None = ZERO  # the id of a created topic
    # successively, the last for ever
    controllers: list[int] = field(default_factory=lambda: [1])
    cluster_id: str = "qWekw_-8T3mMKJmzheyagg"

    def list_topics(self, timeout: float = 0) -> SimpleNamespace:
        topic = SimpleNamespace(partitions={0: None, 1: None}, error=None)
        controller = (
            self.controllers.pop(0)
            if len(self.controllers) > 1
            else self.controllers[0]
        )
        return SimpleNamespace(
            topics=dict.fromkeys(self.ids, topic),
            brokers={1: None},
            controller_id=controller,
            cluster_id=self.cluster_id,
        )

    def describe_topics(
        self, names: TopicCollection, request_timeout: float
    ) -> Futures:
        return {
            name: done(SimpleNamespace(topic_id=self.ids[name]))
            for name in names.topic_names
        }

    def describe_configs(self, _resources: object, request_timeout: float) -> Futures:
        return {}

    def create_topics(self, topics: Iterable[Any], operation_timeout: float) -> Futures:
        made = [topic.topic for topic in topics]
        self.ids |= dict.fromkeys(made, self.new)
        return {name: done(None) for name in made}

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> Connection:
        monkeypatch.setattr(
            Connection,
            "connect",
            lambda _self, _within_s: nullcontext((self, self.list_topics())),
        )
        return Connection("127.0.0.1:1")


def ids() -> dict[str, Uuid | None]:
    return {name: Uuid(number, 0) for number, name in enumerate(NAMES, start=1)}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "orders.toml"
    path.write_text(GOOD, encoding="utf-8")
    (tmp_path / "secrets").mkdir()
    assert execute(["key", "new", str(tmp_path / "secrets" / "noise.key")]) == 0
    return path


@pytest.mark.parametrize("planted", [ZERO, None], ids=["zero", "none"])
@pytest.mark.parametrize("path", PATHS)
def test_a_cluster_without_topic_ids_is_refused_on_every_path(
    path: str,
    planted: Uuid | None,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All look topics up by name and could use another topic's noise, or vouch for it."""
    Broker(dict.fromkeys(NAMES, planted)).serve(monkeypatch)
    command, *options = PATHS[path]
    assert execute([command, "-c", str(config), *options]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    for said in ("gives it no topic id", "Kafka 2.8", "inter.broker.protocol.version"):
        assert said in line


@pytest.mark.parametrize("planted", NAMES)
@pytest.mark.parametrize("value", [ZERO, None], ids=["zero", "none"])
def test_one_topic_without_an_id_is_enough(
    planted: str, value: Uuid | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a cluster upgrade some topics have ids and others not yet."""
    connection = Broker(ids() | {planted: value}).serve(monkeypatch)
    with pytest.raises(
        SettingsError, match=f"topic {planted}: the cluster gives it no topic id"
    ):
        describe(connection, NAMES)


def test_topics_with_ids_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: only the missing id is refused above, nothing else of the planted broker."""
    found = describe(Broker(ids()).serve(monkeypatch), NAMES)
    assert {topic.topic_id for topic in found.values()} == set(map(str, ids().values()))


def test_an_empty_cluster_is_refused_once_its_first_topics_show_no_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No existing topic can lack an id, so the worker would find out only at start."""
    for new, refused in ((ZERO, True), (Uuid(1, 0), False)):
        connection = Broker({}, new).serve(monkeypatch)
        plan = module.plan_topics(
            "orders", ["orders"], None, None, ["orders.products"], {}
        )
        if refused:
            with pytest.raises(SettingsError, match="no topic id"):
                module.create_missing(connection, plan, {})
        else:
            assert module.create_missing(connection, plan, {}) == [
                topic.name for topic in plan
            ]


def test_a_cluster_without_a_controller_is_not_taken_for_the_embedded_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While electing its controller a cluster says nothing of ids; state must not go to memory."""
    found = describe(
        Broker(ids(), controllers=[-1, -1, 7, 1]).serve(monkeypatch), NAMES
    )
    assert None not in {topic.topic_id for topic in found.values()}, (
        "the election was waited for"
    )
    monkeypatch.setattr(module, "_ANSWER_S", 0.2)
    with pytest.raises(SettingsError, match="no controller"):
        describe(Broker(ids(), controllers=[-1]).serve(monkeypatch), NAMES)


@pytest.mark.parametrize(
    ("cluster_id", "controller", "said"),
    [
        ("mockCluster1", 1, "mockCluster1"),  # it has a controller
        ("mockCluster2", 0, "mockCluster1"),  # another one
        (
            "qWekw_-8T3mMKJmzheyagg",
            -1,
            "qWekw_-8T3mMKJmzheyagg",
        ),  # a real one in an election
        ("", -1, ""),
    ],
)
def test_a_real_cluster_is_not_embedded_because_somebody_says_so(
    cluster_id: str,
    controller: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    config: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both the caller's declaration and the cluster's answers must agree."""
    Broker(ids(), controllers=[controller], cluster_id=cluster_id).serve(monkeypatch)
    assert execute(["run", "-c", str(config), "--embedded", said]) == 2
    assert "not the expected embedded Kafka" in capsys.readouterr().err


def test_an_id_that_is_missing_does_not_get_into_a_mechanism_id() -> None:
    existing = {"t": ExistingTopic("t", 1, None), "z": ExistingTopic("z", 1, ZERO_ID)}
    topics = Topics(plan=[], existing=existing, origins=Sources(()), owners=Owners(1))
    for name in existing:
        with pytest.raises(SettingsError, match="no topic id"):
            topics.id(name)
    assert replace(topics, embedded=True).id("t") is None
    for planted in (ZERO_ID, ""):
        with pytest.raises(SettingsError, match="no topic id"):
            module.checked_id("t", planted)
    assert str(ZERO) == ZERO_ID, "Kafka's own way to write it"
    assert module.checked_id("t", Uuid(0, 1)) != ZERO_ID


def histogram(stream: str) -> Histogram:
    config = unk()
    return Histogram(
        config,
        build(config),
        worker="w",
        topic="w.h",
        stream=stream,
        events={"topic": "e"},
        key=KEY,
        owner=(0, 1),
    )


def test_state_that_was_made_without_ids_is_refused() -> None:
    """After an upgrade nobody can tell whether these are the topics the state knew."""
    now = f"w.contributions#{Uuid(1, 0)} w.release-state#{Uuid(2, 0)}"
    for then in (
        f"w.contributions#{ZERO_ID} w.release-state#{ZERO_ID}",
        "w.contributions# w.release-state#",
    ):
        assert module.lacks_ids(then)
        with pytest.raises(StateRefused, match=r"no ids.*new worker name"):
            histogram(now).restore(histogram(then).life, [])
    other = f"w.contributions#{Uuid(1, 0)} w.release-state#{Uuid(3, 0)}"
    with pytest.raises(StateRefused, match="deleted and created again"):
        histogram(now).restore(histogram(other).life, [])
    histogram(now).restore(histogram(now).life, [])


def restore(directory: Path, stored: str | None, events_id: str) -> None:
    """Restore stage 1 from progress made under id `stored`, where the topic has `events_id`."""
    shard = Scene(directory).contribute[0]
    shard._place = Place(0, SourceTopic("events", 2, events_id), 0)
    progress = ContributeProgress(
        version=VERSION,
        offset=3,
        topic_id=stored,
        watermark=None,
        first=None,
        sequences=[0],
        sources=2,
    )
    shard.store.open().write([(PROGRESS, msgspec.json.encode(progress))], 1)
    shard.restore()


@pytest.mark.parametrize("stored", [None, ZERO_ID], ids=["none", "zero"])
def test_progress_that_was_made_without_an_id_is_refused(
    tmp_path: Path, stored: str | None
) -> None:
    """Accepting a missing id would accept any re-created events topic."""
    with pytest.raises(StateRefused, match=r"no ids.*new worker name"):
        restore(tmp_path, stored, str(Uuid(1, 0)))


def test_progress_of_the_same_events_topic_is_taken_and_of_another_not(
    tmp_path: Path,
) -> None:
    restore(tmp_path, str(Uuid(1, 0)), str(Uuid(1, 0)))
    with pytest.raises(StateRefused, match="deleted and created again"):
        restore(tmp_path, str(Uuid(2, 0)), str(Uuid(1, 0)))


@pytest.mark.parametrize("known", [None, ZERO_ID], ids=["none", "zero"])
def test_a_local_copy_that_was_made_without_an_id_is_read_again(
    tmp_path: Path, known: str | None
) -> None:
    """It may belong to an earlier topic of that name; the changelog in Kafka decides."""
    copy = Store(tmp_path / "copy", Changelog("state", 0, known)).open()
    copy.write([(b"a", b"1")], 5)
    copy.close()
    again = Store(tmp_path / "copy", Changelog("state", 0, str(Uuid(1, 0)))).open()
    assert (again.get(b"a"), again.offset) == (None, None)
