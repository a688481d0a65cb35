"""Sign what an owner partition publishes: one record a tick and histogram (`pipeline.signatures`).

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

#: What the stored ends of chains begin with. No histogram has such a name.
CHAINS = b"=signed/"
# Of a record without heads: names, hashes, and all rotations that have room in a key file.
_RECORD_BYTES = 100_000


class Chain(msgspec.Struct):
    """The end of a chain of records: of one histogram, in one owner partition."""

    generation: int
    number: int
    previous: str
    key: str
    heads: Heads


_DECODER = msgspec.json.Decoder(Chain)


class Commitments:
    """Commitments of one owner partition to what it counts, which the noise key opens."""

    def __init__(self, noise: NoiseKey, owner: int) -> None:
        self._noise = noise
        self._owner = owner
        # By histogram and generation.
        self._known: dict[tuple[str, int], bytes] = {}

    def to_settings(self, histogram: Histogram) -> bytes:
        """Return the commitment to the noise key and all that decides the noise."""
        named = histogram.name, histogram.life.generation
        if named not in self._known:
            description = msgspec.json.encode(
                histogram.life.description, order="sorted"
            )
            self._known[named] = self._noise.commitment(description)
        return self._known[named]

    def to_contributions(
        self, histogram: Histogram, tick: int, sections: Sequence[Section]
    ) -> bytes:
        """Return the root of a Merkle tree over the sections of a tick.

        Every leaf has a salt, and so has the root: it does not even tell how many leaves there are.
        A leaf can be opened without the key, by its salt and its siblings.
        """
        context = b"%s %d %d" % (self.to_settings(histogram), self._owner, tick)
        salts = self._noise.salts(context)
        nodes = [
            _keyed(
                salts,
                b"leaf %d" % i,
                hashlib.sha256(msgspec.msgpack.encode(one)).digest(),
            )
            for i, one in enumerate(sections)
        ]
        number = len(nodes)
        while len(nodes) > 1:
            pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
            nodes = [
                hashlib.sha256(b"node" + b"".join(pair)).digest() for pair in pairs
            ]
        return _keyed(salts, b"root %d" % number, b"".join(nodes))


def _keyed(salts: bytes, place: bytes, content: bytes) -> bytes:
    """Return a hash with the salt of a place in the tree."""
    salt = hashlib.blake2b(place, key=salts, digest_size=32).digest()
    return hashlib.blake2b(content, key=salt, digest_size=32).digest()


class Signing:
    """The chains of one owner partition's histograms."""

    def __init__(
        self, topic: str, worker: str, owner: int, noise: NoiseKey, key: SigningKey
    ) -> None:
        self._topic = topic
        self._worker = worker
        self._owner = owner
        self._key = key
        self._sign = key.signer()
        self._commitments = Commitments(noise, owner)
        self._chains: dict[str, Chain] = {}
        self._changed: set[str] = set()

    def sign(
        self,
        histogram: Histogram,
        tick: int,
        snapshots: Sequence[Snapshot],
        sections: Sequence[Section],
    ) -> Iterator[Snapshot]:
        """Yield the records of a tick that a histogram released just now."""
        name = histogram.name
        generation = histogram.life.generation
        before = self._chains.get(name)
        heads_before: Heads = {}
        if before is None:
            before = Chain(generation, 0, NO_RECORD, "", {})
        elif before.generation == generation:
            heads_before = before.heads
        commitment = self._commitments.to_settings(histogram).hex()
        contributions = self._commitments.to_contributions(histogram, tick, sections)
        end_ms = histogram.grid.end(tick)
        heads = self._heads(histogram, snapshots, commitment, heads_before)
        fits = len(snapshots) <= _FEW or len(encode(heads)) <= _ROOM
        cuts = [heads] if fits else list(cut_heads(heads))
        number = before.number
        previous = before.previous
        for page, some in enumerate(cuts, 1):
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
                pages=len(cuts),
                heads=some,
                contributions=contributions.hex(),
                commitment=commitment,
                previous=previous,
                key=self._key.public,
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
        """Return the heads after a tick, from those before it.

        With many stream keys this is most of the time that signing takes.
        """
        series_of = {topic: series for series, topic in histogram.outputs}
        heads: Heads = {}
        for topic, published in groupby(snapshots, attrgetter("topic")):
            series = series_of[topic]
            begun = before.get(series, {})
            pages_of: dict[str, list[bytes]] = {}
            for page in published:
                pages_of.setdefault(page.key, []).append(page.value)
            by_key = heads.setdefault(series, {})
            for key, pages in pages_of.items():
                head = begun.get(key)
                if head is None:
                    head = first_head(commitment, self._owner, series, key)
                shown = pages[0] if len(pages) == 1 else one_page(pages)
                by_key[key] = next_head(head, shown)
        return heads

    def restore(
        self, chains: Mapping[str, Chain], histograms: Iterable[Histogram]
    ) -> None:
        """Continue stored chains; raise StateRefused for a key that does not follow."""
        for histogram in histograms:
            chain = chains.get(histogram.name)
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
        """Return what to store since the last call."""
        changes: list[Change] = []
        for name in sorted(self._changed):
            value = msgspec.json.encode(self._chains[name])
            changes += split_pages(CHAINS + name.encode().hex().encode(), value)
        self._changed.clear()
        return changes


# Of the heads of one record.
_ROOM = VALUE_BYTES - _RECORD_BYTES
# So many heads have room, whatever stream keys are called.
_FEW = 100


def cut_heads(heads: Heads) -> Iterator[Heads]:
    """Yield the heads in parts that each have room in a record."""
    rows = [
        (series, key, head)
        for series, by_key in heads.items()
        for key, head in by_key.items()
    ]
    sizes = [len(encode(row)) + 20 for row in rows]
    for start, stop in split_by_size(sizes, _ROOM):
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
