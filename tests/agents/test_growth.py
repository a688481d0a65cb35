"""What a worker does about partitions that have not joined."""

from collections.abc import Sequence

import pytest

from workers.agents import growth
from workers.agents.growth import Growth
from workers.kafka.clients import Connection
from workers.pipeline.sources import VERSION, Joined, SourceProgress, Sources, SourceTopic
from workers.runtime.errors import SettingsError

EVENTS = SourceTopic("events", 2, "id")
SOURCES = Sources((EVENTS,))


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusal: str | None = None) -> None:
        self.did: list[object] = []
        self.joined: tuple[Joined, ...] = ()
        self.denied = False
        monkeypatch.setattr(growth, "_progress", self._progress)
        monkeypatch.setattr(growth, "add_partitions", self._add)
        self.growth = Growth(
            Connection("unused:9092"),
            "state",
            SOURCES,
            grow=self._grow,
            restart=lambda: self.did.append("restart"),
            refusal=refusal,
        )

    def _progress(self, *_: object) -> SourceProgress:
        of = {"version": VERSION, "offset": 0, "watermark": 5, "sources": 2, "topic_id": "id"}
        return SourceProgress(**of, joined=self.joined)  # type: ignore[arg-type]  # by name

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
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: str | None
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


def test_a_topic_that_is_not_listed_has_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.growth.look({})
    assert scene.did == []
