"""Sign what an owner partition publishes: one record a tick and histogram (`pipeline.signatures`).

A *head* is a hash over all snapshots of a series (an output topic) and stream key so far; a record
has all heads after its tick. A *chain* is the records of one histogram and owner partition, each
with the hash of the one before. A *commitment* is a hash that by itself tells nothing: only who has
the noise key can show what was hashed.

A record is a function of the tick's snapshots, its contributions, the keys and the record before
it, so a tick that is released again has the same bytes. The end of each chain is stored with the
state, in the transaction that publishes the record. A signing key that does not follow from the one
that signed before is refused, and so is going on without one: readers could not tell it from a
stranger's work.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import Section
from workers.pipeline.histogram import Histogram
from workers.pipeline.ledger_blocks import decode_stored, joined_pages, split_pages
from workers.pipeline.signatures import (
    NO_RECORD,
    Heads,
    SignedTick,
    encode,
    first_head,
    next_head,
    one_page,
    record_hash,
    signed,
)
from workers.pipeline.signing_key import SigningKey, follows
from workers.pipeline.snapshots import Snapshot
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import VALUE_BYTES, Change, split_by_size

#: Prefix of the stored ends of chains. No histogram has such a name.
CHAINS = b"=signed/"
# Of a record without heads: names, hashes, and all rotations that have room in a key file.
_RECORD_BYTES = 100_000
# Of the heads in one record.
_HEADS_BYTES_MAX = VALUE_BYTES - _RECORD_BYTES
# So many heads have room, however long their stream keys are: nothing has to be measured.
_HEADS_ALWAYS_FIT = 100
# JSON's quotes, colons, braces and comma of a head are fewer.
_PUNCTUATION_BYTES = 20


class Chain(msgspec.Struct):
    """The end of a chain: the last record's `number` and hash (`previous` of the next one).

    `key` is the public key that signed it, `heads` are those after its tick.
    """

    generation: int
    number: int
    previous: str
    key: str
    heads: Heads


_DECODER = msgspec.json.Decoder(Chain)


class Commitments:
    """Makes the commitments that an owner partition's records state."""

    def __init__(self, noise: NoiseKey, owner: int) -> None:
        """`owner` is the number of the partition."""
        self._noise = noise
        self._owner = owner
        # To settings, by histogram and generation: each is computed once.
        self._to_settings: dict[tuple[str, int], bytes] = {}

    def commit_to_settings(self, histogram: Histogram) -> bytes:
        """Return the commitment to the noise key and all settings that decide the noise."""
        generation = histogram.name, histogram.life.generation
        if generation not in self._to_settings:
            description = msgspec.json.encode(
                histogram.life.description, order="sorted"
            )
            self._to_settings[generation] = self._noise.commitment(description)
        return self._to_settings[generation]

    def commit_to_counted(
        self, histogram: Histogram, tick: int, sections: Sequence[Section]
    ) -> bytes:
        """Return the commitment to what a tick counted: the root of a Merkle tree over `sections`.

        Every leaf is hashed with a salt, and so is the root, which therefore does not even tell how
        many leaves there are. A single section can be shown without the noise key: by its salt and
        the hashes beside its way to the root.
        """
        context = b"%s %d %d" % (self.commit_to_settings(histogram), self._owner, tick)
        salts = self._noise.salts(context)
        nodes = [
            _salted(
                salts,
                b"leaf %d" % i,
                hashlib.sha256(msgspec.msgpack.encode(section)).digest(),
            )
            for i, section in enumerate(sections)
        ]
        leaves = len(nodes)
        # Level by level, two nodes become one; the last of an odd number is hashed alone.
        while len(nodes) > 1:
            pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
            nodes = [
                hashlib.sha256(b"node" + b"".join(pair)).digest() for pair in pairs
            ]
        return _salted(salts, b"root %d" % leaves, b"".join(nodes))


def _salted(salts: bytes, place: bytes, content: bytes) -> bytes:
    """Return the hash of `content` with a salt, so that nobody can find the content by guessing.

    `place`, such as b"leaf 3", names a node of the tree; `salts` is the secret from which the salts
    of all nodes of one tree follow.
    """
    salt = hashlib.blake2b(place, key=salts, digest_size=32).digest()
    return hashlib.blake2b(content, key=salt, digest_size=32).digest()


class Signing:
    """Signs the ticks of one owner partition, and keeps the ends of its histograms' chains."""

    def __init__(
        self, topic: str, worker: str, owner: int, noise: NoiseKey, key: SigningKey
    ) -> None:
        """`topic` gets the records; `owner` is the number of the partition; `key` signs."""
        self._topic = topic
        self._worker = worker
        self._owner = owner
        self._key = key
        self._sign = key.signer()
        self._commitments = Commitments(noise, owner)
        # By histogram; and those with a record that `changes` has not returned yet.
        self._chains: dict[str, Chain] = {}
        self._changed: set[str] = set()

    def sign(
        self,
        histogram: Histogram,
        tick: int,
        snapshots: Sequence[Snapshot],
        sections: Sequence[Section],
    ) -> Iterator[Snapshot]:
        """Yield the records, one or more pages, of a tick that a histogram released just now.

        They state the heads after its `snapshots`, and commit to the `sections` that it counted.
        """
        name = histogram.name
        generation = histogram.life.generation
        before = self._chains.get(name)
        # A new generation goes on with the chain, but with new heads.
        heads_before: Heads = {}
        if before is None:
            # Before the first record there is no older one, and no key that signed it.
            before = Chain(generation, 0, NO_RECORD, "", {})
        elif before.generation == generation:
            heads_before = before.heads
        commitment = self._commitments.commit_to_settings(histogram).hex()
        counted = self._commitments.commit_to_counted(histogram, tick, sections)
        end_ms = histogram.grid.end(tick)
        heads = self._heads(histogram, snapshots, commitment, heads_before)
        # Every head has a snapshot in this tick, so with few snapshots the heads need no measuring.
        fits = (
            len(snapshots) <= _HEADS_ALWAYS_FIT
            or len(encode(heads)) <= _HEADS_BYTES_MAX
        )
        pages = [heads] if fits else list(cut_heads(heads))
        number = before.number
        previous = before.previous
        for page, heads_of_page in enumerate(pages, 1):
            number += 1
            record = SignedTick(
                worker=self._worker,
                histogram=name,
                generation=generation,
                owner=self._owner,
                owners=histogram.owners,
                number=number,
                tick=tick,
                end=end_ms,
                page=page,
                pages=len(pages),
                heads=heads_of_page,
                contributions=counted.hex(),
                commitment=commitment,
                previous=previous,
                key=self._key.public,
                # A tick with a new key says how that follows from older ones.
                rotations=() if before.key == self._key.public else self._key.rotations,
            )
            value = signed(record, self._sign)
            previous = record_hash(value)
            yield Snapshot(self._topic, f"{name}/{self._owner}", value, end_ms)
        self._chains[name] = Chain(
            generation, number, previous, self._key.public, heads
        )
        self._changed.add(name)

    def _heads(
        self,
        histogram: Histogram,
        snapshots: Sequence[Snapshot],
        commitment: str,
        before: Heads,
    ) -> Heads:
        """Return the heads after a tick, from those before it and the tick's snapshots.

        With many stream keys this is most of the time that signing takes.
        """
        series_of = {topic: series for series, topic in histogram.outputs}
        heads: Heads = {}
        for topic, published in groupby(snapshots, attrgetter("topic")):
            series = series_of[topic]
            heads_before = before.get(series, {})
            pages_of: dict[str, list[bytes]] = {}
            for page in published:
                pages_of.setdefault(page.key, []).append(page.value)
            by_key = heads.setdefault(series, {})
            for key, pages in pages_of.items():
                head = heads_before.get(key)
                if head is None:
                    head = first_head(commitment, self._owner, series, key)
                by_key[key] = next_head(head, one_page(pages))
        return heads

    def restore(
        self, chains: Mapping[str, Chain], histograms: Iterable[Histogram]
    ) -> None:
        """Continue stored chains, by histogram, after a restart.

        Raise StateRefused if the signing key does not follow from the one that signed last.
        """
        for histogram in histograms:
            chain = chains.get(histogram.name)
            # A new generation may be signed with any key.
            if chain is None or chain.generation != histogram.life.generation:
                continue
            if not follows(self._key.public, {chain.key}, self._key.rotations):
                raise StateRefused(
                    f"histogram {histogram.name!r}: worker.signing_key_file holds the key {self._key.public}, and "
                    f"its ticks are signed with {chain.key}: restore that file, or make the new one by "
                    f"`quietcount key rotate`, or set generation = {chain.generation + 1}, which is charged again"
                )
        self._chains = dict(chains)

    def changes(self) -> list[Change]:
        """Return what to store since the last call: the ends of chains that have new records."""
        changes: list[Change] = []
        for name in sorted(self._changed):
            value = msgspec.json.encode(self._chains[name])
            # Hexadecimal digits have no dot, whatever names may hold: pages add one.
            changes += split_pages(CHAINS + name.encode().hex().encode(), value)
        self._changed.clear()
        return changes


def cut_heads(heads: Heads) -> Iterator[Heads]:
    """Yield the heads in parts that each have room in a record."""
    rows = [
        (series, key, head)
        for series, by_key in heads.items()
        for key, head in by_key.items()
    ]
    sizes = [len(encode(row)) + _PUNCTUATION_BYTES for row in rows]
    for start, stop in split_by_size(sizes, _HEADS_BYTES_MAX):
        part: Heads = {}
        for series, key, head in rows[start:stop]:
            part.setdefault(series, {})[key] = head
        yield part


def stored_chains(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, Chain]:
    """Return by histogram the chains that are stored, from all pairs under `CHAINS`."""
    return {
        bytes.fromhex(name.removeprefix(CHAINS.decode())).decode(): decode_stored(
            _DECODER, value, "the end of a chain of signatures"
        )
        for name, value in joined_pages(dict(pairs))
    }


def refuse_unsigned(
    chains: Mapping[str, Chain], histograms: Iterable[Histogram]
) -> None:
    """Raise StateRefused if a histogram was signed that is to go on without signatures."""
    for histogram in histograms:
        chain = chains.get(histogram.name)
        if chain is not None and chain.generation == histogram.life.generation:
            raise StateRefused(
                f"histogram {histogram.name!r}: its ticks are signed, and worker.signing_key_file is missing: put it back, "
                f"or set generation = {chain.generation + 1} to begin without, which is charged again"
            )
