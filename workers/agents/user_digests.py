"""Digests of users and of their (stream key, label) pairs, as they are compared and stored.

    user    BLAKE2b-128 of the name
    pair    BLAKE2b-64 of the stream key's length (4 bytes, big endian), stream key and label

They have no key: what is stored with them is the operator's, like the events themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.kernels.blake2b import State, digests, start

USER = start(b"", person=b"qc-user", digest_size=16)
_PAIR = start(b"", person=b"qc-pair", digest_size=8)


def pair_state(stream_key: str) -> State:
    """Return the digest of one stream key's pairs before the label: `blake2b.digests`, column 0."""
    return start(_prefix(stream_key), person=b"qc-pair", digest_size=8)


def digests_of_users(users: Sequence[str]) -> NDArray[np.uint64]:
    """Return the digests (n, 2) of n users."""
    return _digests(USER, [user.encode() for user in users])


def digests_of_pairs(pairs: Sequence[tuple[str, str]]) -> NDArray[np.uint64]:
    """Return the digests (n,) of n (stream key, label) pairs."""
    return np.ascontiguousarray(_digests(_PAIR, [_prefix(key) + label.encode() for key, label in pairs])[:, 0])


def _prefix(stream_key: str) -> bytes:
    name = stream_key.encode()
    return len(name).to_bytes(4) + name


def _digests(state: State, texts: Sequence[bytes]) -> NDArray[np.uint64]:
    stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = stops - np.array([len(text) for text in texts], dtype=np.int64)
    out = np.empty((len(texts), 2), dtype=np.uint64)
    digests(*state, np.frombuffer(b"".join(texts), dtype=np.uint8), starts, stops, out)
    return out
