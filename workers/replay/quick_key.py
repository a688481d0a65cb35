"""A root key that remembers the tags it made: a replay asks for those of the same items at every tick.

A tag costs about a microsecond, to look one up a twentieth of that; at some thousand items a tick it is what a release costs most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.noise.keyed import NoiseKey

# About 200 bytes each.
TAGS_MAX = 500_000


class QuickKey(NoiseKey, shared=False):
    """The same tags as `NoiseKey`, made once each as long as they are no more than TAGS_MAX; it belongs to one thread."""

    def __init__(self, root: bytes, tags_max: int = TAGS_MAX) -> None:
        super().__init__(root)
        self._max, self._held = tags_max, 0
        self._tags: dict[str, dict[bytes, bytes]] = {}

    def tags(self, stream_key: str, labels: Sequence[bytes]) -> NDArray[np.uint64]:
        """See `NoiseKey.tags`."""
        known = self._tags.get(stream_key)
        if known is None:
            known = self._tags[stream_key] = {}
        found = list(map(known.get, labels))
        if None in found:
            new = [label for label, tag in zip(labels, found, strict=True) if tag is None]
            made = super().tags(stream_key, new).astype("<u8", copy=False).tobytes()
            if self._held + len(new) > self._max:
                self._tags, self._held = {}, 0
                return super().tags(stream_key, labels)
            known.update(zip(new, (made[i : i + 16] for i in range(0, len(made), 16)), strict=True))
            self._held += len(new)
            found = list(map(known.get, labels))
        text = bytearray().join(found)  # type: ignore[arg-type]  # none of them is None now
        return np.frombuffer(text, dtype="<u8").reshape(-1, 2).astype(np.uint64, copy=False)
