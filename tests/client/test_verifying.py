"""Every change of what was signed is found and named; nothing is found in what was published."""

from typing import Any

import msgspec
import pytest

from tests.client.signed import Copy, missed_changes, signatures_remembered
from tests.pipeline.fleet import FINE, WIDE, Fleet, begun_again, cut, fleet
from tests.pipeline.pipeline import SIGNATURES, Event, unk
from workers.client.verifying import NotAsSigned, SignedHistory
from workers.commands.verify.topics import Record
from workers.pipeline.signatures import SignedTick, decode, encode, signed
from workers.pipeline.signing_key import SigningKey
from workers.runtime.errors import StateRefused

OLD = SigningKey(bytes(32))
NEW = OLD.followed_by(bytes([1] * 32))
PARTS = unk(name="parts", horizon=4, split=2, keys=("k0", "k1"))
EVENTS: list[Event] = [
    (f"k{i % 6}", ["a", f"b{i % 7}", "c"], 2 * i + 1) for i in range(80)
]


def copied(found: Fleet) -> Copy:
    """Return what a fleet has published, as records of topics with one partition."""
    signatures = []
    snapshots = []
    for _, one in found.published:
        key = one.key.encode()
        record = Record((one.topic, 0), 0, key, one.value, one.end_ms)
        if one.topic == SIGNATURES:
            signatures.append(record)
        else:
            snapshots.append((one.topic.removeprefix("w."), record))
    return Copy(tuple(signatures), tuple(snapshots))


def decoded(record: Record) -> SignedTick:
    tick = decode(record.value)
    assert tick is not None
    return tick


def published(events: list[Event] = EVENTS, **of: Any) -> Fleet:
    """Return owners that grow, restart in the middle, and go on with another key."""
    configs = of.pop("configs", [FINE, WIDE, PARTS])
    given: dict[str, Any] = {"grows": {1: 4}, "signing_key": OLD} | of
    made = fleet([events], configs, **given)
    cut(made, 80)
    for number, owner in enumerate(made.owners):
        owner.signing_key = NEW
        made.restart(number)
    return made.finish()


@pytest.fixture(scope="module")
def clean() -> Copy:
    return copied(published())


def test_nothing_is_found_in_what_was_published(clean: Copy) -> None:
    records = clean.verify(OLD.public)
    assert set(records.checked) == {"h", "wide", "parts"}
    assert sum(one.snapshots for one in records.checked.values()) == len(
        clean.snapshots
    )
    assert not any(one.early for one in records.checked.values())
    owners = {tick.owner for tick in map(decoded, clean.signatures)}
    assert len(owners) == 4
    assert any(b'"parts":2' in one.value for _, one in clean.snapshots)


def test_random_changes_are_found_and_named(clean: Copy) -> None:
    """A thousand changes of a real topic: `tests/worker/growing.py`."""
    assert missed_changes(clean, OLD.public, NEW, 200) == []


def test_every_bit_of_a_small_topic_counts() -> None:
    made = fleet(
        [[("k", ["a"], 1)]],
        [unk(keys=("k",))],
        owners=1,
        grows={},
        further_ms=25,
        signing_key=OLD,
    ).finish()
    small = copied(made)
    assert len(small.signatures) == 2
    small.verify(OLD.public)
    records = [*small.signatures, *(one for _, one in small.snapshots)]
    with signatures_remembered():
        for at, record in enumerate(records):
            for bit in range(8 * len(record.value)):
                content = bytearray(record.value)
                content[bit // 8] ^= 1 << bit % 8
                changed = list(records)
                changed[at] = record._replace(value=bytes(content))
                shown = tuple(("h", one) for one in changed[2:])
                with pytest.raises(NotAsSigned):
                    Copy(tuple(changed[:2]), shown).verify(OLD.public)


def test_a_tick_that_is_released_again_has_the_same_signature() -> None:
    """Readers of uncommitted records may see both."""
    first = fleet([EVENTS], [FINE, WIDE, PARTS], signing_key=OLD).finish()
    second = fleet([EVENTS], [FINE, WIDE, PARTS], signing_key=OLD)
    for _ in range(4):
        cut(second, 10)
        for number in range(len(second.owners)):
            second.restart(number)
    assert second.finish().bytes() == first.bytes()


def test_readers_who_have_only_the_new_key_trust_no_older_record(clean: Copy) -> None:
    with pytest.raises(NotAsSigned, match="with a key that is not trusted"):
        clean.verify(NEW.public)


def test_a_key_that_the_old_one_has_not_signed_is_refused() -> None:
    made = fleet([EVENTS], [FINE], grows={}, signing_key=OLD)
    cut(made, 120)
    made.owners[0].signing_key = SigningKey(bytes([2] * 32))
    with pytest.raises(StateRefused, match="quietcount key rotate"):
        made.restart(0)
    made.owners[0].signing_key = None
    with pytest.raises(StateRefused, match="signing_key_file is missing"):
        made.restart(0)


def test_a_new_generation_goes_on_with_the_chain() -> None:
    found = begun_again([EVENTS], OLD)
    copy = copied(found)
    generations = [decoded(record).generation for record in copy.signatures]
    assert generations.count(1) > 9
    assert generations.count(2) > 9
    newer = [one for one in copy.signatures if decoded(one).generation == 2]
    copy.verify(OLD.public)
    with pytest.raises(NotAsSigned, match="is missing: dropped before"):
        Copy(tuple(newer), copy.snapshots).verify(OLD.public)
    # Changes of either generation are found.
    assert missed_changes(copy, OLD.public, OLD, 100) == []


def test_after_a_lost_key_readers_trust_both() -> None:
    """A new generation may begin with a key that nobody has signed."""
    other = SigningKey(bytes([3] * 32))
    copy = copied(begun_again([EVENTS], OLD, other))
    copy.verify(OLD.public, other.public)
    for public in (OLD.public, other.public):
        with pytest.raises(NotAsSigned, match="signed by another|is not trusted"):
            copy.verify(public)


def test_two_readers_who_were_shown_different_histories_find_the_first_record() -> None:
    mine = SignedHistory([OLD.public])
    theirs = SignedHistory([OLD.public])
    for history, label in ((mine, "a"), (theirs, "b")):
        events: list[Event] = [("k", ["a"], 1), ("k", [label], 51)]
        made = fleet(
            [events], [unk(keys=("k",))], owners=1, grows={}, signing_key=OLD
        ).finish()
        for record in copied(made).signatures:
            history.add(record.value, record.place, record.log)
        history.finish()
    with pytest.raises(NotAsSigned, match="different records 6, both signed"):
        mine.compare(theirs, "mine", "theirs")
    mine.compare(mine, "mine", "mine")


def test_a_key_that_was_replaced_signs_no_more(clean: Copy) -> None:
    """Whoever steals the old key after the new one has signed is found."""
    last = clean.signatures[-1]
    record = decoded(last)
    own: dict[str, Any] = {"signature": "", "key": OLD.public}
    value = signed(msgspec.structs.replace(record, **own), OLD.signer())
    stolen = Copy((*clean.signatures[:-1], last._replace(value=value)), clean.snapshots)
    with pytest.raises(NotAsSigned, match="signed by another signer"):
        stolen.verify(OLD.public)


def test_a_tick_with_many_stream_keys_is_signed_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.pipeline.signing._HEADS_BYTES_MAX", 100)
    monkeypatch.setattr("workers.pipeline.signing._HEADS_ALWAYS_FIT", 0)
    made = copied(published())
    assert any(tick.pages > 1 for tick in map(decoded, made.signatures))
    made.verify(OLD.public)
    shortest = [one for one in made.signatures if b'"page":2' not in one.value]
    with pytest.raises(NotAsSigned, match="is missing"):
        Copy(tuple(shortest), made.snapshots).verify(OLD.public)


def test_a_record_has_one_spelling(clean: Copy) -> None:
    value = clean.signatures[0].value
    record = decode(value)
    assert record is not None and encode(record) == value
    assert decode(value.replace(b'"owner"', b' "owner"')) is None
    assert decode(value + b" ") is None
