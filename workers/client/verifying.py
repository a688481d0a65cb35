"""Check signed ticks, and whether snapshots are those that were signed; needs no secret.

`SignedHistory` takes the records of the signatures topic and checks that they are one unbroken
history, signed by a key that the reader trusts. Then it says of each snapshot whether it is what
was signed of that tick. The first thing that is wrong raises `NotAsSigned`, which names it.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from workers.pipeline.signatures import (
    NO_RECORD,
    SignedTick,
    decode,
    first_head,
    is_signed,
    next_head,
)
from workers.pipeline.signing_key import follows
from workers.settings.times import when

#: A series, a stream key, and the end of a tick, ms.
Place = tuple[str, str, int]
# A chain: a histogram, and an owner partition of it.
_Name = tuple[str, int]


class NotAsSigned(Exception):
    """Something was changed, dropped, reordered, repeated or forked; the message says what."""


@dataclass(slots=True)
class Signed:
    """What was signed of one snapshot, or of one part of it: the heads before and after it.

    `number` counts what is signed in a chain: its owner published in this order.
    """

    chain: _Name
    number: int
    before: str
    head: str
    found: bool = False


@dataclass(slots=True)
class _Read:
    """A record that was read, and waits for those before it."""

    record: SignedTick
    digest: bytes
    where: str


@dataclass(slots=True)
class Chain:
    """The records of one histogram and owner partition, up to the last that follows on."""

    #: Hashes of all records so far, by number.
    digests: list[bytes] = field(default_factory=list)
    last: SignedTick | None = None
    # Heads by series and stream key: after the last tick, and those of the tick being read.
    heads: dict[tuple[str, str], str] = field(default_factory=dict)
    current: dict[tuple[str, str], str] = field(default_factory=dict)
    # How many owners there were at the last tick, and how much was signed so far.
    owners: int = 0
    signed: int = 0
    # Read too early: the number before is still missing.
    waiting: dict[int, _Read] = field(default_factory=dict)
    # The last number read, by the log that it was read from.
    read: dict[object, int] = field(default_factory=dict)


class SignedHistory:
    """All records of a worker, and what they say of each snapshot.

    It takes some 400 bytes for each snapshot that was signed.
    """

    def __init__(self, keys: Collection[str]) -> None:
        """`keys` are the public keys that the reader trusts, as hexadecimal digits."""
        self._keys = frozenset(keys)
        self.chains: dict[_Name, Chain] = {}
        self.signed: dict[Place, list[Signed]] = {}
        #: The end of the first tick that was signed, by series.
        self.first: dict[str, int] = {}
        self.records = 0

    def add(self, value: bytes, where: str, log: object = None) -> SignedTick:
        """Take a record; `log` is what it was read from in the order of its numbers."""
        record = decode(value)
        if record is None:
            raise NotAsSigned(f"{where}: not a record of a signed tick")
        if not is_signed(record):
            raise NotAsSigned(f"{where}: {_named(record)}: changed since it was signed")
        chain = self.chains.setdefault(record.chain, Chain())
        read = _Read(record, hashlib.sha256(value).digest(), where)
        known = _digest_of(chain, record.number)
        if known == read.digest:
            raise NotAsSigned(f"{where}: {_named(record)}: there twice")
        if known is not None:
            raise NotAsSigned(
                f"{where}: {_named(record)}: a fork: another record {record.number} was read before it"
            )
        if record.number <= chain.read.get(log, 0):
            raise NotAsSigned(f"{where}: {_named(record)}: out of order")
        chain.read[log] = record.number
        chain.waiting[record.number] = read
        while (following := len(chain.digests) + 1) in chain.waiting:
            self._follow(chain, chain.waiting.pop(following))
        self.records += 1
        return record

    def _follow(self, chain: Chain, read: _Read) -> None:
        """Check that a record follows the last one of its chain, and take what it signs."""
        record = read.record
        last = chain.last
        name = f"{read.where}: {_named(record)}"
        before = chain.digests[-1].hex() if chain.digests else NO_RECORD
        if record.previous != before:
            raise NotAsSigned(
                f"{name}: a fork: it does not follow the record {record.number - 1} that is there"
            )
        begins = last is None or record.generation > last.generation
        trusted = {*(self._keys if begins else ()), *({last.key} if last else ())}
        if not follows(record.key, trusted, record.rotations):
            signer = "by another signer" if last else "with a key that is not trusted"
            raise NotAsSigned(f"{name}: signed {signer}: {record.key}")
        if begins:
            fits = record.page == 1
            chain.heads = {}
        elif last is not None and last.page < last.pages:
            fits = record.page == last.page + 1 and _of_tick(record) == _of_tick(last)
        elif last is not None:
            next_tick = record.page == 1 and record.tick == last.tick + 1
            fits = next_tick and _of_histogram(record) == _of_histogram(last)
        if not fits:
            raise NotAsSigned(f"{name}: not the tick that follows")
        if record.page == 1:
            chain.current = {}
        for series, by_key in record.heads.items():
            self.first[series] = min(record.end, self.first.get(series, record.end))
            for key, head in by_key.items():
                known = chain.heads.get((series, key))
                if known is None:
                    known = first_head(record.commitment, record.owner, series, key)
                chain.current[series, key] = head
                place = series, key, record.end
                chain.signed += 1
                one = Signed(record.chain, chain.signed, known, head)
                self.signed.setdefault(place, []).append(one)
        if record.page == record.pages:
            gone = chain.heads.keys() - chain.current.keys()
            if gone and chain.owners == record.owners:
                lost = min(gone)
                raise NotAsSigned(
                    f"{name}: nothing of stream key {lost[1]!r} of {lost[0]} any more"
                )
            chain.heads = chain.current
            chain.owners = record.owners
        chain.digests.append(read.digest)
        chain.last = record

    def finish(self) -> None:
        """Check that nothing is missing between the records, once all are taken."""
        owners: dict[str, int] = {}
        for (histogram, owner), chain in sorted(self.chains.items()):
            name = f"histogram {histogram!r}, owner partition {owner}"
            if chain.waiting:
                first = chain.waiting[min(chain.waiting)]
                raise NotAsSigned(
                    f"{name}: record {len(chain.digests) + 1} is missing: dropped before {first.where}"
                )
            last = chain.last
            if last is not None and last.page < last.pages:
                raise NotAsSigned(
                    f"{name}: record {last.number + 1} is missing, of tick {last.tick}"
                )
            if last is not None:
                owners[histogram] = max(last.owners, owners.get(histogram, 0))
        for histogram, number in owners.items():
            for owner in range(number):
                if (histogram, owner) not in self.chains:
                    raise NotAsSigned(
                        f"histogram {histogram!r}, owner partition {owner}: no record, and there are {number} owner partitions"
                    )

    def match(self, place: Place, snapshot: bytes, where: str) -> Signed | None:
        """Return what was signed of a snapshot, or raise; None from before anything was signed.

        `snapshot` is its JSON as one page.
        """
        series, _, end = place
        name = f"{where}: {name_of(place)}"
        signed = self.signed.get(place)
        if signed is None:
            if end < self.first.get(series, end + 1):
                return None
            raise NotAsSigned(f"{name}: nothing like it was signed")
        for one in signed:
            if next_head(one.before, snapshot) == one.head:
                if one.found:
                    raise NotAsSigned(f"{name}: there twice")
                one.found = True
                return one
        raise NotAsSigned(
            f"{name}: not what was signed: changed, or in the place of another"
        )

    def missing(self, places: Iterable[Place]) -> None:
        """Raise for the first of these places whose snapshot was signed and not found."""
        lost = [
            place
            for place in places
            if not all(one.found for one in self.signed[place])
        ]
        if lost:
            first = min(lost, key=lambda place: (place[2], place))
            raise NotAsSigned(f"{name_of(first)}: signed, and missing")

    def compare(self, other: "SignedHistory", mine: str, theirs: str) -> None:
        """Raise for the first record in which two readers were shown different histories."""
        for name in sorted(self.chains.keys() & other.chains.keys()):
            pairs = zip_longest(self.chains[name].digests, other.chains[name].digests)
            for number, (own, of_other) in enumerate(pairs, 1):
                if own is not None and of_other is not None and own != of_other:
                    histogram, owner = name
                    raise NotAsSigned(
                        f"histogram {histogram!r}, owner partition {owner}: {mine} and {theirs} have different records "
                        f"{number}, both signed: two readers were shown different histories"
                    )


def _digest_of(chain: Chain, number: int) -> bytes | None:
    """Return the hash of a chain's record of a number, if one was read."""
    if 1 <= number <= len(chain.digests):
        return chain.digests[number - 1]
    waiting = chain.waiting.get(number)
    return None if waiting is None else waiting.digest


def _of_histogram(record: SignedTick) -> Sequence[object]:
    """Return what all records of a chain's generation have in common."""
    return record.worker, record.generation, record.commitment


def _of_tick(record: SignedTick) -> Sequence[object]:
    """Return what all pages of a tick have in common."""
    of_tick = record.owners, record.tick, record.end, record.pages
    return *_of_histogram(record), *of_tick, record.contributions


def _named(record: SignedTick) -> str:
    """Return how messages call a record."""
    return (
        f"histogram {record.histogram!r}, owner partition {record.owner}, record {record.number}, "
        f"of the tick that ends at {when(record.end)}"
    )


def name_of(place: Place) -> str:
    """Return how messages call a snapshot."""
    series, key, end = place
    return f"histogram {series!r}, key {key!r}, the tick that ends at {when(end)}"
