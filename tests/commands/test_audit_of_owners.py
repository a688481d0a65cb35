"""The audit follows stream keys to their new owners, and finds keys that were handed over wrongly."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.pipeline.fleet import FINE, STEADY, WIDE, Fleet, cut, fleet, grown_of
from tests.pipeline.pipeline import KEY
from workers.commands import audit
from workers.commands.audit import Auditor, Difference, RecomputedHistogram
from workers.mechanisms.registry import build
from workers.pipeline.contributions import decode
from workers.pipeline.merge import Merge, ReleaseProgress


class Read(NamedTuple):
    """A record, as of a consumer."""

    at: int
    name: bytes
    text: bytes

    def offset(self) -> int:
        return self.at

    def partition(self) -> int:
        return 0

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes:
        return self.text


class OfFleet(Auditor):
    """The audit of what a fleet has stored, handed over and published."""

    def __init__(self, found: Fleet, settings: Any) -> None:
        super().__init__(settings)
        self._fleet = found
        self.configs = found.owners[0].configs

    def _merge(self, owner: int) -> Merge:
        histograms = [
            RecomputedHistogram(
                config,
                build(config),
                worker="w",
                topic=f"w.{config.name}",
                stream="test",
                events={"items": "items"},
                key=KEY,
                owner=(owner, 2),
            )
            for config in self.configs
        ]
        return Merge(histograms, key=KEY, sources=1, owners=2)

    def _state(self, owner: int) -> tuple[Merge, int] | None:
        partition = self._fleet.owners[owner]
        known = self._merge(owner)
        if (value := partition.store.get(b"progress")) is None:
            return None
        progress = msgspec.json.decode(value, type=ReleaseProgress)
        known.restore(progress, partition.items)
        return known, progress.position

    def _messages(self, topic: str) -> Iterator[Any]:
        for _, one in self._fleet.published:
            if one.topic == topic:
                yield Read(0, one.key.encode(), one.value)


def audited(published: Fleet, monkeypatch: pytest.MonkeyPatch) -> OfFleet:
    def read(_: object, topic: str, owner: int, **__: object) -> Iterator[Read]:
        for at, value in enumerate(published.topics[owner]):
            yield Read(at, b"", value)

    named: Any = {
        "contributions_topic": "contributions",
        "release_state_topic": "state",
    }
    configs = published.owners[0].configs
    named |= {"output_topics": [f"w.{config.name}" for config in configs]}
    worker = SimpleNamespace(key_file=None)
    settings = SimpleNamespace(**named, worker=worker, histograms=configs)
    sources = SimpleNamespace(first_count=1)
    owners = grown_of(published.topics, 2)
    topics = SimpleNamespace(
        partitions=lambda _: 1, owners=lambda _: owners, sources=sources
    )
    monkeypatch.setattr(audit, "read_key", lambda _: bytes(range(32)))
    monkeypatch.setattr(audit, "connection_of", lambda _: None)
    monkeypatch.setattr(audit, "check_topics", lambda *_: topics)
    monkeypatch.setattr(audit, "mechanisms", lambda _: ())
    monkeypatch.setattr(audit, "read_partition", read)
    monkeypatch.setattr(audit, "await_commits", lambda *_: None)
    auditor = OfFleet(published, settings)
    progress: Any = SimpleNamespace(update=lambda _: None)
    auditor.run(progress, None)
    return auditor


@pytest.mark.parametrize("at_ms", [0, 40, 60, 90, 130, 170, 1_000])
def test_what_owners_published_before_and_after_keys_moved_is_clean(
    monkeypatch: pytest.MonkeyPatch, at_ms: int
) -> None:
    """An owner may have handed keys over, and the other not have begun."""
    found = fleet([STEADY], [FINE, WIDE], step=12)
    cut(found, at_ms)
    auditor = audited(found, monkeypatch)
    assert sum(one.snapshots for one in auditor.tallies.values()) == len(
        found.published
    )


def test_a_key_that_was_not_handed_over_or_not_known_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its snapshots nothing else would show that it was forgotten."""
    finished = fleet([STEADY], [FINE, WIDE], step=12).finish()
    audited(finished, monkeypatch)
    places = [
        (owner, offset, decode(value))
        for owner, topic in enumerate(finished.topics)
        for offset, value in enumerate(topic)
        if decode(value).handed is not None
    ]
    changed = 0
    for owner, offset, message in places:
        handed = message.handed
        before = finished.topics[owner][offset]
        assert handed is not None
        for keys in (handed.keys[1:], [*handed.keys, ("new", 1)]):
            if keys == handed.keys:
                continue
            other = msgspec.structs.replace(handed, keys=keys)
            finished.topics[owner][offset] = msgspec.structs.replace(
                message, handed=other
            ).encoded()
            with pytest.raises(Difference):
                audited(finished, monkeypatch)
            changed += 1
        finished.topics[owner][offset] = before
    assert changed > 6
