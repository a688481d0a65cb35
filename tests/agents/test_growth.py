"""What a worker does about partitions that have not joined."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.settings.test_settings import GOOD, loaded
from workers.agents import counted, growth
from workers.agents.growth import Growth, OwnerGrowth
from workers.agents.topics import _check_owners
from workers.kafka.clients import Connection
from workers.kafka.topics import ExistingTopic
from workers.mechanisms.config.ticks import TickGrid
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import (
    VERSION,
    Joined,
    SourceProgress,
    Sources,
    SourceTopic,
)
from workers.runtime.errors import SettingsError

EVENTS = SourceTopic("events", 2, "id")
SOURCES = Sources((EVENTS,))


class Scene:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, refusal: str | None = None
    ) -> None:
        self.did: list[object] = []
        self.joined: tuple[Joined, ...] = ()
        self.known = Owners(2)
        self.denied = False
        for module in (growth, counted):
            monkeypatch.setattr(module, "stored_progress", self._progress)
        monkeypatch.setattr(growth, "add_partitions", self._add)
        self.growth = Growth(
            connection=Connection("unused:9092"),
            state="state",
            sources=SOURCES,
            grow=self._grow,
            restart=lambda: self.did.append("restart"),
            refusal=refusal,
        )

    def owners(self, horizon: int | None) -> OwnerGrowth:
        grid = TickGrid(tick_ms=10, start_ms=0, horizon=horizon)
        settings: Any = SimpleNamespace(
            contributions_topic="c",
            contribute_state_topic="s",
            release_state_topic="r",
            histograms=[SimpleNamespace(grid=grid)],
        )
        return OwnerGrowth(
            settings=settings,
            connection=Connection("unused:9092"),
            owners=self.known,
            grow=self.did.append,
            restart=lambda: self.did.append("restart"),
        )

    def _progress(self, *_: object) -> SourceProgress:
        return SourceProgress(
            version=VERSION,
            offset=0,
            watermark=5,
            sources=2,
            topic_id="id",
            joined=self.joined,
            owners=self.known,
        )

    def _add(self, _: Connection, topic: str, partitions: int) -> None:
        if self.denied:
            raise SettingsError("not authorized")
        self.did.append((topic, partitions))

    def _grow(self, topics: Sequence[SourceTopic]) -> None:
        self.did.append([(one.name, one.partitions) for one in topics])


def test_the_state_topic_grows_first_then_source_partition_0_is_asked_then_the_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition that joins before its state has a place could commit nothing."""
    scene = Scene(monkeypatch)
    scene.growth.look({"events": 2, "state": 2})
    assert scene.did == []
    scene.growth.look({"events": 4, "state": 2})
    assert scene.did.pop() == ("state", 4)
    scene.growth.look({"events": 4, "state": 4})
    assert scene.did.pop() == [("events", 4)]
    scene.joined = (Joined("events", 4, 70),)
    scene.growth.look({"events": 4, "state": 4})
    assert scene.did == ["restart"]


@pytest.mark.parametrize("refusal", [None, "users would move"])
def test_why_partitions_do_not_join_is_said_once_and_the_worker_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusal: str | None,
) -> None:
    """Events wait in them, and an operator must learn of it without a line every five seconds."""
    scene = Scene(monkeypatch, refusal)
    scene.denied = True
    for _ in range(3):
        scene.growth.look({"events": 4, "state": 2})
    assert scene.did == []
    [line] = caplog.messages
    assert line == (
        "the events topic events has 4 partitions now, but only 2 source partitions are counted: "
        + (refusal or "not authorized")
    )


def test_a_topic_that_is_not_listed_has_not_shrunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.growth.look({})
    assert scene.did == []


def test_the_state_of_owners_grows_first_then_source_partition_0_is_asked_then_the_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that does not know a partition yet would refuse the message to its owner."""
    scene = Scene(monkeypatch)
    growth = scene.owners(horizon=5)
    growth.look({"c": 2, "r": 2, "s": 2})
    growth.look({})
    assert scene.did == []
    growth.look({"c": 4, "r": 2, "s": 2})
    assert scene.did.pop() == ("r", 4)
    growth.look({"c": 4, "r": 4, "s": 2})
    assert scene.did == []
    growth.look({"c": 4, "r": 4, "s": 2})
    assert scene.did.pop() == 4
    scene.known = Owners(2, ((4, 70),))
    growth.look({"c": 4, "r": 4, "s": 2})
    assert scene.did == ["restart"]


@pytest.mark.parametrize(("horizon", "partitions"), [(5, 3), (None, 4)])
def test_why_owners_do_not_grow_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    horizon: int | None,
    partitions: int,
) -> None:
    scene = Scene(monkeypatch)
    growth = scene.owners(horizon)
    for _ in range(3):
        growth.look({"c": partitions, "r": 2, "s": 2})
    [line] = caplog.messages
    why = (
        "epochs of all histograms never begin together"
        if horizon is None
        else "no multiple of 2"
    )
    expected = f"topic c has {partitions} partitions now, but only 2 owner partitions are counted"
    assert line == f"{expected}: {why}"
    assert scene.did == []


def test_more_owners_than_windows_without_epochs_allow_are_refused_with_what_helps(
    tmp_path: Path,
) -> None:
    """Windows for ever have no time at which stream keys could move."""
    never = GOOD.replace("horizon = 8640", 'horizon = "never"\nwindows = ["1m"]')
    text = never.replace("[worker]\n", "[worker]\nowner_partitions = 4\n")
    settings = loaded(tmp_path, text)
    there = ExistingTopic(settings.contributions_topic, 2, "id")
    said = (
        r"owner_partitions = 4: there are 2, .* there never is one \(products: without an "
        r"epoch's end\). A worker of another name may have more of them"
    )
    with pytest.raises(SettingsError, match=said):
        _check_owners(settings, Owners(2), {there.name: there})
