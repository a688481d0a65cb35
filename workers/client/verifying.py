"""Check signed ticks, and whether snapshots are those that were signed; needs no secret.

`SignedHistory` takes the records of the signatures topic and checks that they are one unbroken
history, signed by a key that the reader trusts. Then it says of each snapshot whether it is what
was signed of that tick. The first thing that is wrong raises `NotAsSigned`, which names it.

A worker's snapshots are signed in chains: each owner partition of a histogram has one. The records
of a chain are numbered from 1, and each has the hash of the one before. A record is one page of a
tick; it has a head for each series and stream key: a hash over the head at the tick before and the
snapshot of this tick, and so over all snapshots until then. A new generation of the histogram
starts new heads.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

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

#: What a snapshot is of: a series, a stream key, and the end of a tick, ms.
Place = tuple[str, str, int]
# Names a chain: a histogram, and the number of an owner partition.
_ChainName = tuple[str, int]


class NotAsSigned(Exception):
    """Something was changed, dropped, reordered, repeated or forked; the message says what."""


@dataclass(slots=True)
class Signed:
    """What was signed of one snapshot, or of one part of it: the heads before and after it.

    `number` counts the heads of a chain: its owner published in this order. `found` once a snapshot
    matched.
    """

    chain: _ChainName
    number: int
    before: str
    head: str
    found: bool = False


@dataclass(slots=True)
class _Read:
    """A record that was read, its SHA-256, and how messages call the place it was read from."""

    record: SignedTick
    digest: bytes
    where: str


@dataclass(slots=True)
class Chain:
    """The state of reading one chain: the records up to the first number that is missing."""

    #: Hashes of these records: that of number n is at n - 1.
    digests: list[bytes] = field(default_factory=list)
    # The last of these records; None before the first.
    last: SignedTick | None = None
    # Heads by series and stream key: after the last whole tick, and those of the tick being read.
    heads: dict[tuple[str, str], str] = field(default_factory=dict)
    current: dict[tuple[str, str], str] = field(default_factory=dict)
    # How many owner partitions the histogram had at the last tick, and how many heads were signed.
    owners: int = 0
    signed: int = 0
    # Read too early, by number: the number before is still missing.
    waiting: dict[int, _Read] = field(default_factory=dict)
    # The last number read, by the log that it was read from.
    last_read: dict[object, int] = field(default_factory=dict)


class SignedHistory:
    """All records of a worker's signatures topic, and what they say of each snapshot.

    First `add` every record, then `finish`; after that `match` snapshots. It takes some 400 bytes
    for each snapshot that was signed.
    """

    def __init__(self, keys: Collection[str]) -> None:
        """`keys` are the public keys that the reader trusts, as hexadecimal digits."""
        self._keys = frozenset(keys)
        self.chains: dict[_ChainName, Chain] = {}
        self.signed: dict[Place, list[Signed]] = {}
        #: The end of the first tick that was signed, by series.
        self.first: dict[str, int] = {}
        self.records = 0

    def add(self, value: bytes, where: str, log: object = None) -> SignedTick:
        """Take a record, check its signature, and check all that now follow on in its chain.

        `where` begins messages. `log` is the partition or file that it was read from: within one,
        the records of a chain ascend, but several may be read in turn.
        """
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
        if record.number <= chain.last_read.get(log, 0):
            raise NotAsSigned(f"{where}: {_named(record)}: out of order")
        chain.last_read[log] = record.number
        chain.waiting[record.number] = read
        while (following := len(chain.digests) + 1) in chain.waiting:
            self._follow(chain, chain.waiting.pop(following))
        self.records += 1
        return record

    def _follow(self, chain: Chain, read: _Read) -> None:
        """Check that a record follows the last one of its chain, and note what it signs."""
        record = read.record
        last = chain.last
        name = f"{read.where}: {_named(record)}"
        before = chain.digests[-1].hex() if chain.digests else NO_RECORD
        if record.previous != before:
            raise NotAsSigned(
                f"{name}: a fork: it does not follow the record {record.number - 1} that is there"
            )
        # Signed with the key of the last record, or with one that it was rotated to.
        trusted = {last.key} if last else set()
        if last is None or record.generation > last.generation:
            # A generation begins, with any trusted key.
            trusted |= self._keys
            fits = record.page == 1
            chain.heads = {}
        elif last.page < last.pages:
            # The next page of the same tick.
            fits = record.page == last.page + 1 and _of_tick(record) == _of_tick(last)
        else:
            # The first page of the next tick.
            next_tick = record.page == 1 and record.tick == last.tick + 1
            fits = next_tick and _of_histogram(record) == _of_histogram(last)
        if not follows(record.key, trusted, record.rotations):
            signer = "by another signer" if last else "with a key that is not trusted"
            raise NotAsSigned(f"{name}: signed {signer}: {record.key}")
        if not fits:
            raise NotAsSigned(f"{name}: not the tick that follows")
        if record.page == 1:
            chain.current = {}
        # Note the heads, which sign the snapshots of this tick.
        for series, by_key in record.heads.items():
            self.first[series] = min(record.end, self.first.get(series, record.end))
            for key, head in by_key.items():
                # A new stream key, and every key of a new generation, has a first head.
                head_before = chain.heads.get((series, key))
                if head_before is None:
                    head_before = first_head(
                        record.commitment, record.owner, series, key
                    )
                chain.current[series, key] = head
                place = series, key, record.end
                chain.signed += 1
                signed = Signed(record.chain, chain.signed, head_before, head)
                # Several owner partitions may each publish a part of one snapshot.
                self.signed.setdefault(place, []).append(signed)
        # The tick is whole.
        if record.page == record.pages:
            # A stream key has a snapshot at every tick, and stays with its owner partition as long
            # as their number does.
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
        """Check, once all records are added, that none is missing, nor all of a partition."""
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
        """Return what was signed of a snapshot, and note that it was found.

        `snapshot` is its JSON as one page, or that of one part; `where` begins messages. None if
        nothing of its series was signed up to then. Raise NotAsSigned for a snapshot that differs,
        or that was found before.
        """
        series, _, end = place
        name = f"{where}: {name_of(place)}"
        signed = self.signed.get(place)
        if signed is None:
            first_end = self.first.get(series)
            if first_end is None or end < first_end:
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

    def refuse_missing(self, places: Iterable[Place]) -> None:
        """Raise NotAsSigned for the first of these places with a snapshot that was never found."""
        lost = [
            (end, series, key)
            for series, key, end in places
            if not all(one.found for one in self.signed[series, key, end])
        ]
        if lost:
            end, series, key = min(lost)
            raise NotAsSigned(f"{name_of((series, key, end))}: signed, and missing")

    def compare(self, other: "SignedHistory", mine: str, theirs: str) -> None:
        """Raise NotAsSigned for the first record of which another reader was shown another version.

        `mine` and `theirs` are what the message calls this history and the other.
        """
        for name in sorted(self.chains.keys() & other.chains.keys()):
            # Not what only the longer one has: the other reader has read less.
            pairs = zip(
                self.chains[name].digests, other.chains[name].digests, strict=False
            )
            for number, (own, of_other) in enumerate(pairs, 1):
                if own != of_other:
                    histogram, owner = name
                    raise NotAsSigned(
                        f"histogram {histogram!r}, owner partition {owner}: {mine} and {theirs} have different records "
                        f"{number}, both signed: two readers were shown different histories"
                    )


def _digest_of(chain: Chain, number: int) -> bytes | None:
    """Return the hash of the record `number` of a chain, even if it waits; None: not read."""
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
