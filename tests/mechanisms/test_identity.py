"""Different data never shares noise: any public difference changes the id and the noise."""

import math
from typing import Any

import numpy as np
import pytest

from tests.mechanisms.small import SMALL
from workers.mechanisms.counters.counter import make_counter
from workers.mechanisms.identity import describe, mechanism_id
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig

KEY = NoiseKey(b"i" * 32)
ROWS = 20_000
SAME: dict[str, object] = {
    "worker": "w",
    "histogram": "h",
    "generation": 1,
    "tick_ms": 10,
    "start_ms": 0,
    "stream": "c#1",
    "topic": "w.h",
    "events": {"items": "products"},
}
CONFIG = SMALL | {"tick_ms": 10}


def an_id(
    first: int = 1,
    epoch: int = 1,
    changed: dict[str, object] | None = None,
    **config: object,
) -> bytes:
    mechanism = build(UnkBaseConfig(**(CONFIG | config)))
    parameters: Any = SAME | (changed or {})
    return mechanism_id(
        describe(**parameters, mechanism=mechanism.public()), first, epoch
    )


CHANGED: dict[str, object] = {
    "worker": "w2",
    "histogram": "h2",
    "generation": 2,
    "tick_ms": 20,
    "start_ms": 10,
    "stream": "c#2",
    "topic": "t",
    "events": {"items": "queries"},
}
OTHERS = {
    "epoch": an_id(epoch=2),
    "first tick": an_id(first=2),
    "max_count": an_id(max_count=2),
    **{name: an_id(changed={name: value}) for name, value in CHANGED.items()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_differs_in_public_gives_other_noise(name: str) -> None:
    """Two series with equal noise could be subtracted, exposing the data."""
    assert OTHERS[name] != an_id()
    counter = make_counter("lifted", 64, 0.01)
    tags = KEY.tags("k", [b"%d" % i for i in range(ROWS)])
    mine = counter.draw(KEY.stream(an_id()), 37, tags)
    other = counter.draw(KEY.stream(OTHERS[name]), 37, tags)
    # Under independence the correlation has standard deviation 1/sqrt(ROWS); five of them: one
    # false alarm in 1.7 million.
    assert abs(np.corrcoef(mine, other)[0, 1]) < 5 / math.sqrt(ROWS)


def test_the_correlation_test_sees_shared_noise() -> None:
    """Negative control: one id gives one noise, and a shared tenth would be detected."""
    counter = make_counter("lifted", 64, 0.01)
    tags = KEY.tags("k", [b"%d" % i for i in range(ROWS)])
    mine = counter.draw(KEY.stream(an_id()), 37, tags)
    assert np.array_equal(mine, counter.draw(KEY.stream(an_id()), 37, tags))
    other = counter.draw(KEY.stream(OTHERS["epoch"]), 37, tags)
    mixed = np.where(np.arange(ROWS) % 10 == 0, mine, other)
    assert abs(np.corrcoef(mine, mixed)[0, 1]) > 5 / math.sqrt(ROWS)
