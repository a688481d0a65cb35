"""The newest whole progress record is found, however far back and in however many pages."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.pipeline.pipeline import Partition, unk
from workers.agents import progress
from workers.agents import progress as module
from workers.agents.progress import PROGRESS
from workers.pipeline.ledger_blocks import split_pages
from workers.runtime.errors import StateRefused

Patch = pytest.MonkeyPatch
WHERE = ("state", 0)


def record(offset: int, size: int) -> list[tuple[bytes, bytes | None]]:
    made = Partition([unk()], 1).merge.progress()
    changed = msgspec.structs.replace(made, offset=offset, key="k" * size)
    return split_pages(PROGRESS, msgspec.json.encode(changed), max_bytes=900)


def newest(monkeypatch: Patch, log: list[tuple[bytes, bytes | None] | None]) -> Any:
    """Read a log in which None is a marker, in chunks of seven records."""

    def read_spans(
        _: object, spans: dict[Any, tuple[int, int]]
    ) -> Iterator[SimpleNamespace]:
        for where, (begin, end) in spans.items():
            for at in range(begin, end, 7):
                some = [each for each in log[at : min(at + 7, end)] if each is not None]
                messages = [
                    SimpleNamespace(key=lambda k=k: k, value=lambda v=v: v)
                    for k, v in some
                ]
                yield SimpleNamespace(where=where, messages=messages)

    monkeypatch.setattr(module, "bounds_of", lambda *_: (0, len(log)))
    monkeypatch.setattr(module, "read_spans", read_spans)
    return progress._newest(SimpleNamespace(), [WHERE]).get(WHERE)  # type: ignore[arg-type]


def test_the_newest_whole_record_is_read_not_unfinished_pages(
    monkeypatch: Patch,
) -> None:
    """An older record would hide an epoch that was charged."""
    rng = random.Random(1)
    for _ in range(200):
        log: list[tuple[bytes, bytes | None] | None] = []
        last = None
        for last in range(rng.randrange(4)):
            log += [(b"h/1/C00000000", b"")] * rng.choice([0, 1, 20, 300])
            log += record(last, rng.choice([10, 2_000]))
        log += [None] * rng.choice([0, 3, 40])
        log += record(99, 2_000)[: rng.randrange(3)]
        found = newest(monkeypatch, log)
        assert (None if found is None else found.offset) == last


def test_a_record_with_a_page_missing_for_good_is_refused(monkeypatch: Patch) -> None:
    """It must not pass for a partition that has released nothing."""
    with pytest.raises(StateRefused, match="a page of progress is missing"):
        newest(monkeypatch, [*record(1, 2_000)[1:]])
