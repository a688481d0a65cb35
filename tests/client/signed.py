"""Topics with signatures, and what can be done to a copy of them."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from unittest.mock import patch

import msgspec
from confluent_kafka import Message

from workers.client import verifying
from workers.client.verifying import NotAsSigned, SignedHistory
from workers.commands.verify.records import Records
from workers.commands.verify.topics import Record, take_signature, take_snapshot
from workers.pipeline import signatures
from workers.pipeline.signatures import SignedTick, decode, encode, signed
from workers.pipeline.signing_key import SigningKey


@dataclass(frozen=True)
class Copy:
    """Records of the signatures topic, and by series those of the histogram topics."""

    signatures: tuple[Record, ...]
    snapshots: tuple[tuple[str, Record], ...]

    def verify(self, *keys: str) -> Records:
        """Check as `quietcount verify -c` does."""
        history = SignedHistory(keys)
        for record in self.signatures:
            take_signature(history, record)
        history.finish()
        records = Records(history)
        for series, record in self.snapshots:
            take_snapshot(records, series, record)
        records.finish()
        history.refuse_missing(history.signed)
        return records


def record_of(message: Message) -> Record:
    return Record(
        (message.topic() or "", message.partition() or 0),
        message.offset() or 0,
        message.key() or b"",
        message.value() or b"",
        message.timestamp()[1],
    )


@contextmanager
def signatures_remembered() -> Iterator[None]:
    """Check the signature of equal records once: a thousand copies have nearly the same ones."""

    @lru_cache(None)
    def known(value: bytes) -> bool:
        record = decode(value)
        assert record is not None
        return signatures.is_signed(record)

    with patch.object(verifying, "is_signed", lambda record: known(encode(record))):
        yield


def fault_of(copy: Copy, key: str) -> str | None:
    """Return what `verify` says is wrong with a copy; None if nothing is."""
    try:
        copy.verify(key)
    except NotAsSigned as fault:
        return str(fault)
    return None


def missed_changes(
    copy: Copy, public: str, key: SigningKey, number: int
) -> list[tuple[str, int]]:
    """Change a clean copy in many ways; return the changes that are not found and placed.

    `key` is the one that signed last.
    """
    missed = []
    with signatures_remembered():
        for seed in range(number):
            change = CHANGES[seed % len(CHANGES)]
            changed = change(random.Random(seed), copy, key)
            assert changed != copy
            fault = fault_of(changed, public)
            if fault is None or not re.search(r"histogram '|offset", fault):
                missed.append((change.__name__, seed))
    return missed


Change = Callable[[random.Random, Copy, SigningKey], Copy]


def _pick(rng: random.Random, copy: Copy) -> tuple[bool, int]:
    """Return one of all records: whether it is a signature, and its index."""
    number = len(copy.signatures)
    at = rng.randrange(number + len(copy.snapshots))
    return at < number, at if at < number else at - number


def _is_last(copy: Copy, at: int) -> bool:
    """Return whether a record of the signatures is the last of its chain."""
    key = copy.signatures[at].key
    return all(one.key != key for one in copy.signatures[at + 1 :])


def _edited(
    copy: Copy, of_signatures: bool, edit: Callable[[list[Record]], None]
) -> Copy:
    """Return a copy with an edited list of records of one kind."""
    if of_signatures:
        records = list(copy.signatures)
        edit(records)
        return replace(copy, signatures=tuple(records))
    records = [record for _, record in copy.snapshots]
    by_topic = {record.log[0]: series for series, record in copy.snapshots}
    edit(records)
    pairs = tuple((by_topic[record.log[0]], record) for record in records)
    return replace(copy, snapshots=pairs)


def flip_bit(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    of_signatures, at = _pick(rng, copy)

    def edit(records: list[Record]) -> None:
        record = records[at]
        of_key = rng.random() < 0.25
        content = bytearray(record.key if of_key else record.value)
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        changed = bytes(content)
        records[at] = (
            record._replace(key=changed) if of_key else record._replace(value=changed)
        )

    return _edited(copy, of_signatures, edit)


def drop(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    """Leave out a record, but not the end of a chain without stream keys: nothing follows it."""
    of_signatures, at = _pick(rng, copy)
    while (
        of_signatures
        and _is_last(copy, at)
        and b'"heads":{}' in copy.signatures[at].value
    ):
        of_signatures, at = _pick(rng, copy)
    return _edited(copy, of_signatures, lambda records: records.pop(at) and None)


def repeat(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    of_signatures, at = _pick(rng, copy)

    def edit(records: list[Record]) -> None:
        records.insert(rng.randint(at + 1, len(records)), records[at])

    return _edited(copy, of_signatures, edit)


def redate(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    of_signatures, at = _pick(rng, copy)

    def edit(records: list[Record]) -> None:
        time_ms = (records[at].time_ms or 0) + rng.choice([-1, 1])
        records[at] = records[at]._replace(time_ms=time_ms)

    return _edited(copy, of_signatures, edit)


def swap(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    """Let two records of one log, record key and part change places."""
    of_signatures, at = _pick(rng, copy)

    def edit(records: list[Record]) -> None:
        place = _part(records[at])
        same = [i for i, one in enumerate(records) if _part(one) == place]
        other = rng.choice([i for i in same if i != at])
        first = records[at]
        records[at] = records[other]
        records[other] = first

    return _edited(copy, of_signatures, edit)


def _part(record: Record) -> tuple[object, ...]:
    part = re.search(rb'"part":\d+', record.value)
    return record.log, record.key, part and part[0]


def overwrite(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    """Put one record's value into another of the same log and key."""
    of_signatures, at = _pick(rng, copy)

    def edit(records: list[Record]) -> None:
        place = records[at].log, records[at].key
        same = [one for one in records if (one.log, one.key) == place]
        other = rng.choice([one for one in same if one.value != records[at].value])
        records[at] = records[at]._replace(value=other.value, time_ms=other.time_ms)

    return _edited(copy, of_signatures, edit)


def drop_tick(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    """Leave out all of a tick, but for the last ones: its signatures and its snapshots."""
    last: dict[bytes, int] = {}
    for record in copy.signatures:
        last[record.key] = record.time_ms or 0
    ends = sorted({one.time_ms or 0 for one in copy.signatures})
    end = rng.choice([end for end in ends if end < min(last.values())])
    kept = [one for one in copy.signatures if one.time_ms != end]
    shown = [(series, one) for series, one in copy.snapshots if one.time_ms != end]
    return Copy(tuple(kept), tuple(shown))


def recount(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    """Change a count of a snapshot, as JSON."""
    at = rng.randrange(len(copy.snapshots))

    def edit(records: list[Record]) -> None:
        value = msgspec.json.decode(records[at].value)
        value["epoch"] += not value["items"]
        for item in value["items"][:1]:
            item[1] += rng.choice([-1, 1])
        records[at] = records[at]._replace(value=encode(value))

    return _edited(copy, False, edit)


def sign_by_another(rng: random.Random, copy: Copy, _: SigningKey) -> Copy:
    """Let a stranger sign what the worker has signed."""
    return _resigned(rng, copy, SigningKey(rng.randbytes(32)), {})


def fork(rng: random.Random, copy: Copy, key: SigningKey) -> Copy:
    """Let the worker's own key sign another tick of the same number, as after a restore."""
    return _resigned(rng, copy, key, {"contributions": "0" * 64})


def _resigned(
    rng: random.Random, copy: Copy, key: SigningKey, changes: dict[str, str]
) -> Copy:
    at = rng.randrange(len(copy.signatures))
    # Instead of the last record it is what the key's holder says, and nobody else knows better.
    adds = rng.random() < 0.5 or _is_last(copy, at)

    def edit(records: list[Record]) -> None:
        record = decode(records[at].value)
        assert record is not None
        own: dict[str, object] = {"signature": "", "key": key.public, **changes}
        other: SignedTick = msgspec.structs.replace(record, **own)
        value = signed(other, key.signer())
        new = records[at]._replace(value=value)
        records[at : at + 1] = [records[at], new] if adds else [new]

    return _edited(copy, True, edit)


CHANGES: Sequence[Change] = (
    flip_bit,
    drop,
    repeat,
    redate,
    swap,
    overwrite,
    drop_tick,
    recount,
    sign_by_another,
    fork,
)
