"""Signed ticks: records of the public topic `<worker>.signatures`, and how they are checked.

A record states what one owner partition published at one tick of a histogram, and a hash of the
record before it. A signature over all of it makes that the only history the signer can show.

    first head     SHA-256 of commitment, owner, series and stream key
    head           by series and stream key: SHA-256 of the digits of the head one tick before, and
                   the snapshot's JSON as one page, which is its message if that has one page
    contributions  root over what was counted, salted by the noise key: says nothing without it
    commitment     keyed hash of all that decides the noise: the noise key opens it
    previous       SHA-256 of the record before, of the same histogram and owner; zeros if first
    rotations      how the key follows from older ones: each with its signature of the next
    signature      Ed25519 over the SHA-256 of the record without this field

A record has one form as JSON, so no bit of it can change unnoticed. A tick with many stream keys
has several, the pages. Why nothing exact can be learned from them: decision 45.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec
import orjson

from workers.pipeline.signing_key import Rotation, verifies
from workers.pipeline.snapshots import join_pages

#: `previous` of the first record.
NO_RECORD = "0" * 64
_TICK = b"quietcount tick\0"
_CHAIN = b"quietcount chain\0"

#: A head, in hexadecimal digits, by series and stream key.
Heads = dict[str, dict[str, str]]


class SignedTick(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A record of the topic: what an owner published of a histogram at a tick; see the module.

    `owner` is one of `owners`. `tick` is global, its `end` in ms. `number` counts the records of a
    chain, those of one histogram and owner, from 1; `page` of `pages` those of one tick.
    """

    worker: str
    histogram: str
    generation: int
    owner: int
    owners: int
    number: int
    tick: int
    end: int
    page: int
    pages: int
    heads: Heads
    contributions: str
    commitment: str
    previous: str
    key: str
    rotations: tuple[Rotation, ...] = ()
    signature: str = ""

    @property
    def chain(self) -> tuple[str, int]:
        """Return what the records of one chain share: histogram and owner."""
        return self.histogram, self.owner


_DECODER = msgspec.json.Decoder(SignedTick)
encode = msgspec.json.encode


def decode(value: bytes) -> SignedTick | None:
    """Return a record; None if these bytes are not exactly what a worker writes.

    Other JSON of the same fields would be a second form of the record, with another hash.
    """
    try:
        record = _DECODER.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return record if encode(record) == value else None


def signed(record: SignedTick, sign: Callable[[bytes], str]) -> bytes:
    """Return the bytes of a record that has no signature yet, with the one that `sign` makes."""
    unsigned = encode(record)
    signature = sign(_message(unsigned))
    # As if encoded again: the signature is the last field, and left out while it is empty.
    return b'%b,"signature":"%b"}' % (unsigned[:-1], signature.encode())


def is_signed(record: SignedTick) -> bool:
    """Return whether a record's key signed it."""
    unsigned = msgspec.structs.replace(record, signature="")
    return verifies(record.key, record.signature, _message(encode(unsigned)))


def _message(unsigned: bytes) -> bytes:
    """Return what is signed: Ed25519 reads a message twice, SHA-256 reads it once and faster."""
    return _TICK + sha256(unsigned).digest()


def record_hash(value: bytes) -> str:
    return sha256(value).hexdigest()


def one_page(pages: Sequence[bytes]) -> bytes:
    """Return a snapshot's JSON as one page, from the messages of its pages in order."""
    if len(pages) == 1:
        return pages[0]
    whole = join_pages([orjson.loads(page) for page in pages])
    return orjson.dumps({**whole, "page": 1, "pages": 1})


def first_head(commitment: str, owner: int, series: str, key: str) -> str:
    """Return the head before the first snapshot of a stream key."""
    named = encode([commitment, owner, series, key])
    return sha256(_CHAIN + named).hexdigest()


def next_head(head: str, snapshot: bytes) -> str:
    """Return the head after a snapshot's JSON as one page."""
    return sha256(head.encode() + snapshot).hexdigest()
