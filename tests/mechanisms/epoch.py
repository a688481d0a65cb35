"""Shared by the tests of mechanisms: a key, the least settings, contributions, a state to begin with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey

KEY = NoiseKey(b"k" * 32)
SETTINGS: dict[str, Any] = {"name": "h", "tick_ms": 1, "max_items": 1, "keys": "public"}


def part(
    of_key: Mapping[str, Mapping[bytes, int]], served: Sequence[str]
) -> tuple[Contributions, NDArray[np.int32]]:
    """Return one message with counts by stream key, and its keys' places among those served."""
    names, labels = tuple(of_key), [list(counts) for counts in of_key.values()]
    tags = [KEY.tags(name, own) for name, own in zip(names, labels, strict=True)]
    counts = np.array([n for own in of_key.values() for n in own.values()], dtype=np.int64)
    key_of_row = np.repeat(np.arange(len(names), dtype=np.int32), list(map(len, labels)))
    texts = Texts.of(label for own in labels for label in own)
    index = [served.index(name) if name in served else -1 for name in names]
    rows = Contributions(names, key_of_row, np.concatenate(tags), texts, counts)
    return rows, np.array(index, dtype=np.int32)


def start(mechanism: Mechanism, keys: Sequence[str]) -> Any:
    """Return the mechanism's state before the first tick, for these stream keys."""
    state, labels = mechanism.init(), list(mechanism.domain())
    for index, key in enumerate(keys):
        state.key_tags = np.concatenate((state.key_tags, KEY.tags(key, [b"\xff"])))
        mechanism.meet_key(state, index, KEY.tags(key, labels), labels)
    return state
