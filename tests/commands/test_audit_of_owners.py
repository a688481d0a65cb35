"""The audit follows stream keys to their new owners, and finds keys that were handed over wrongly."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.pipeline.fleet import (
    FINE,
    GROWS,
    STEADY,
    WIDE,
    Fleet,
    begun_again,
    cut,
    fleet,
    grown_of,
)
from tests.pipeline.pipeline import KEY, SIGNATURES, contribute, unk
from workers.commands import audit
from workers.commands.audit import (
    Auditor,
    Difference,
    Recommitted,
    RecomputedHistogram,
)
from workers.mechanisms.registry import build
from workers.pipeline.contributions import decode
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.pipeline.signatures import decode as decode_signature
from workers.pipeline.signing_key import SigningKey

EMPTY: Any = MappingProxyType({})


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


#: What owners had stored when they made a checkpoint.
Copies = Mapping[int, Mapping[bytes, bytes]]


def progress_in(copy: Mapping[bytes, bytes]) -> ReleaseProgress:
    return msgspec.json.decode(copy[b"progress"], type=ReleaseProgress)


def items_in(
    copy: Mapping[bytes, bytes], prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    return iter(sorted(pair for pair in copy.items() if pair[0].startswith(prefix)))


class OfFleet(Auditor):
    """The audit of what a fleet has stored, handed over and published."""

    def __init__(self, found: Fleet, settings: Any, copies: Copies) -> None:
        super().__init__(settings)
        self._fleet = found
        self._copies = copies
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
        signing = None
        if self._fleet.owners[0].signing_key is not None:
            signing = Recommitted(KEY, owner, self._computed)
        return Merge(histograms, key=KEY, sources=1, owners=2, signing=signing)

    def _state(self, owner: int) -> tuple[Merge, int] | None:
        partition = self._fleet.owners[owner]
        known = self._merge(owner)
        if (value := partition.store.get(b"progress")) is None:
            return None
        progress = msgspec.json.decode(value, type=ReleaseProgress)
        known.restore(progress, partition.items)
        if (copy := self._copies.get(owner)) is not None:
            self._begin_with(owner, known, progress_in(copy), partial(items_in, copy))
        return known, progress.position

    def _messages(self, topic: str) -> Iterator[Any]:
        for _, one in self._fleet.published:
            if one.topic == topic:
                yield Read(0, one.key.encode(), one.value)


def audited(
    published: Fleet, monkeypatch: pytest.MonkeyPatch, copies: Copies = EMPTY
) -> OfFleet:
    """Audit what is there: contributions before the offset in an owner's copy are deleted."""

    def read(_: object, topic: str, owner: int, **__: object) -> Iterator[Read]:
        copy = copies.get(owner)
        begin = 0 if copy is None else progress_in(copy).offset
        for at, value in enumerate(published.topics[owner]):
            if at >= begin:
                yield Read(at, b"", value)

    named: Any = {
        "contributions_topic": "contributions",
        "release_state_topic": "state",
        "signatures_topic": None
        if published.owners[0].signing_key is None
        else SIGNATURES,
    }
    configs = published.owners[0].configs
    named |= {"output_topics": [f"w.{config.name}" for config in configs]}
    worker = SimpleNamespace(key_file=None)
    settings = SimpleNamespace(**named, worker=worker, histograms=configs)
    sources = SimpleNamespace(first_count=1)
    owners = grown_of(published.topics, 2)
    topics = SimpleNamespace(partitions=lambda _: 1, owners=owners, sources=sources)
    monkeypatch.setattr(audit, "read_key", lambda _: bytes(range(32)))
    monkeypatch.setattr(audit, "connection_of", lambda _: None)
    monkeypatch.setattr(audit, "check_topics", lambda *_: topics)
    monkeypatch.setattr(audit, "mechanisms", lambda _: ())
    monkeypatch.setattr(audit, "read_partition", read)
    monkeypatch.setattr(audit, "await_commits", lambda *_: None)
    auditor = OfFleet(published, settings, copies)
    progress: Any = SimpleNamespace(update=lambda _: None)
    auditor.run(progress, None)
    return auditor


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at_ms", "later_ms"),
    [(40, 60), (40, 500), (90, 0), (130, 60), (130, 500), (170, 0)],
)
def test_an_audit_that_begins_with_checkpoints_compares_all_that_follows(
    monkeypatch: pytest.MonkeyPatch, at_ms: int, later_ms: int
) -> None:
    """Before and after keys moved, and where owners made theirs at other times."""
    found = fleet([STEADY], [FINE, WIDE], step=12)
    copies: dict[int, Mapping[bytes, bytes]] = {}
    cut(found, at_ms)
    begun = len(found.published)
    for owner in (0, 2):
        copies[owner] = dict(found.owners[owner].store)
    if later_ms:
        cut(found, at_ms + later_ms)
    for owner in (1, 3):
        copies[owner] = dict(found.owners[owner].store)
    copies = {owner: copy for owner, copy in copies.items() if b"progress" in copy}
    found.finish()
    auditor = audited(found, monkeypatch, copies)
    compared = sum(one.snapshots for one in auditor.tallies.values())
    assert compared + auditor.older == len(found.published)
    if not later_ms:
        assert compared == len(found.published) - begun
        assert begun == 0 or auditor.begin_ms is not None
    # A forged count is found behind the checkpoints.
    owner, latest = found.published[-1]
    forged = msgspec.json.decode(latest.value)
    forged["sd"] += 1
    other = replace(latest, value=msgspec.json.encode(forged))
    found.published.append((owner, other))
    with pytest.raises(Difference, match="does not follow"):
        audited(found, monkeypatch, copies)


def test_a_part_that_moved_before_a_checkpoint_keeps_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more parts, four, than there were owners at first, and owners that grew twice since."""
    parts = unk(name="parts", horizon=4, split=4)
    topics = contribute(
        [STEADY], [FINE, parts], owners=2, further_ms=100, grows=GROWS, step=12
    )
    found = Fleet(topics, 2, sources=1, configs=[FINE])
    # Then there are four owners, enough for the parts to begin, and it is not known yet that there
    # will be eight.
    cut(found, 60)
    for number, owner in enumerate(found.owners):
        owner.configs = [FINE, parts]
        found.restart(number)
    cut(found, 130)
    copies = {owner: dict(found.owners[owner].store) for owner in range(2)}
    found.finish()
    auditor = audited(found, monkeypatch, copies)
    compared = sum(one.snapshots for one in auditor.tallies.values())
    assert compared + auditor.older == len(found.published)
    assert auditor.others == 0


def test_a_forged_snapshot_of_an_impossible_time_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a checkpoint, no time makes it an older one, which would only be counted."""
    found = fleet([STEADY], [FINE], grows={}, step=12).finish()
    owner, latest = found.published[-1]
    forged = msgspec.json.decode(latest.value) | {"start": -1_000}
    other = replace(latest, value=msgspec.json.encode(forged))
    found.published.append((owner, other))
    with pytest.raises(Difference, match="does not follow"):
        audited(found, monkeypatch)


@pytest.mark.slow
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


def signed_places(found: Fleet) -> Mapping[int, list[int]]:
    """Return by generation where the signed ticks are among all that was published."""
    places: dict[int, list[int]] = {}
    for at, (_, one) in enumerate(found.published):
        if one.topic == SIGNATURES:
            record = decode_signature(one.value)
            assert record is not None
            places.setdefault(record.generation, []).append(at)
    return places


def difference_with(
    found: Fleet, at: int, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> str | None:
    """Return what the audit finds after a change of the JSON that was published at a place."""
    owner, record = found.published[at]
    value = msgspec.json.encode({**msgspec.json.decode(record.value), **change})
    found.published[at] = owner, replace(record, value=value)
    try:
        audited(found, monkeypatch)
    except Difference as difference:
        return str(difference)
    finally:
        found.published[at] = owner, record
    return None


def test_public_commitments_are_to_what_was_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who gets the key later holds the contributions against what was signed then."""
    key = SigningKey(bytes(32))
    found = fleet([STEADY], [FINE, WIDE], step=12, signing_key=key).finish()
    [signed] = signed_places(found).values()
    assert audited(found, monkeypatch).commitments == len(signed)
    for name in ("contributions", "commitment"):
        change: dict[str, object] = {name: "0" * 64}
        difference = difference_with(found, signed[5], change, monkeypatch)
        assert difference is not None and "is not to what was counted" in difference


def test_a_new_generation_is_held_against_its_own_commitments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ended one is not computed again; its signatures still hold, see `quietcount verify`."""
    found = begun_again([STEADY], SigningKey(bytes(32)))
    signed = signed_places(found)
    snapshots = len(found.published) - len(signed[1]) - len(signed[2])
    auditor = audited(found, monkeypatch)
    [tally] = auditor.tallies.values()
    assert auditor.commitments == len(signed[2])
    assert auditor.others > 0
    assert auditor.others + tally.snapshots == snapshots
    change: dict[str, object] = {"contributions": "0" * 64}
    for generation, is_found in ((1, False), (2, True)):
        difference = difference_with(found, signed[generation][3], change, monkeypatch)
        assert (difference is not None) == is_found
    at = next(
        at
        for at, (_, one) in enumerate(found.published)
        if at > signed[2][0] and one.topic != SIGNATURES
    )
    difference = difference_with(found, at, {"sd": 1.5}, monkeypatch)
    assert difference is not None and 'published {"sd":1.5}' in difference
