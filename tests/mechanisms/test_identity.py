"""Different data never shares noise: any public difference changes the id and the noise."""

from typing import Any

from tests.mechanisms.small import SMALL
from workers.mechanisms.identity import describe, mechanism_id
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig

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


def test_whatever_differs_in_public_gives_another_id() -> None:
    """Two series with equal noise could be subtracted, exposing the data; see `noise.test_keyed`."""
    assert len({an_id(), *OTHERS.values()}) == 1 + len(OTHERS)
    assert an_id() == an_id()
