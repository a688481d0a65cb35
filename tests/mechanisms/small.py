"""Small settings and noise sources shared by the tests of mechanisms."""

from __future__ import annotations

import numpy as np

from workers.arrays.types import Longs, Tags
from workers.mechanisms.mechanism import Release, State
from workers.mechanisms.noise.keyed import NoiseKey

SMALL: dict[str, object] = {"name": "h", "tick_ms": 1, "horizon": 64, "keys": "public"}
SMALL |= {"max_items": 1, "epsilon": 1.0, "delta": 1e-6}
# A key and noise that no test depends on.
KEY = NoiseKey(bytes(32))
STREAM = KEY.stream(bytes(16))


class Silent:
    """Noise source that returns zeros; what remains depends on the counts alone."""

    def at(self, t: int, tags: Tags) -> Longs:
        return np.zeros(len(tags), dtype=np.int64)


def numbered(name: str, rows: int) -> Tags:
    """Return the tags of the items "0", "1", ... of a stream key."""
    return KEY.tags(name, [b"%d" % number for number in range(rows)])


def labelled(state: State, release: object) -> dict[bytes, int]:
    """Return the shown counts by label."""
    assert isinstance(release, Release)
    rows, counts = release.rows.tolist(), release.counts.tolist()
    return {state.ledger.label(row): n for row, n in zip(rows, counts, strict=True)}


def assert_variance(found: float, stated: float, tolerance: float = 0.05) -> None:
    """Assert that a sample variance is the stated one, and neither half nor double of it."""
    for factor, accepted in ((1.0, True), (0.5, False), (2.0, False)):
        assert bool(abs(found / (stated * factor) - 1) < tolerance) is accepted
