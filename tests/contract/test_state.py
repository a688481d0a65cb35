"""State through its blocks: restored state continues identically; unreadable state is refused."""

import random
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from unittest.mock import patch

import pytest

from tests.contract.stage import KEY, Run
from tests.contract.test_purity import stream_of
from tests.contract.variants import PER_TICK, TICKS, VARIANTS, Variant, built
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.errors import StateRefused

pytestmark = pytest.mark.slow

AFTER = 9


@cache
def uninterrupted(variant: Variant, seed: int) -> list[object]:
    return Run(built(variant), seed).transcript(stream_of(seed))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_state_that_went_through_its_blocks_gives_the_same_releases(
    variant: Variant,
) -> None:
    """After every tick, and after two of them: blocks hold all that later releases need."""
    stream = stream_of(4)
    expected = uninterrupted(variant, 4)
    later = random.Random(str(variant)).randrange(2, TICKS)
    for restarts in (range(1, TICKS), [1, later]):
        assert Run(built(variant), 4).transcript(stream, restarts=restarts) == expected


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_noise_that_is_not_the_same_after_a_restart_is_seen(variant: Variant) -> None:
    """Planted: other noise after a restart. The mean of a tick's two noises would reveal counts."""
    load = Run.load

    def forgetful(self: Run, blocks: Mapping[str, bytes]) -> None:
        load(self, blocks)
        self.noise = self.mechanism.noise(KEY.stream(b"another stream  "))

    def seen(seed: int) -> bool:
        stream = stream_of(seed)
        with patch.object(Run, "load", forgetful):
            found = Run(built(variant), seed).transcript(stream, restarts=[1])
        return found != uninterrupted(variant, seed)

    # A label that wins by far may do so with either noise.
    assert any(seen(seed) for seed in range(4, 8))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_restored_state_has_nothing_to_write(variant: Variant) -> None:
    """Rewriting a block at every start would grow the changelog and hide a necessary write."""
    run = Run(built(variant), 4)
    before = stored(variant)
    run.load(before)
    run.stored = dict(before)
    assert run.store() == before
    assert list(run.state.changed()) == []


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_block_lost_or_old_would_be_seen_by_the_test_above(variant: Variant) -> None:
    """Negative control: blocks of an earlier tick give other releases, or are refused."""
    stream = stream_of(4)
    run = Run(built(variant), 4)
    run.transcript(stream[:2])
    old = dict(run.store())
    for t in range(3, AFTER + 1):
        run.step(t, stream[t - 1])
    run.load(old)
    found = []
    try:
        for t in range(AFTER + 1, TICKS + 1):
            found.append(run.named(run.step(t, stream[t - 1])))
    except StateRefused:
        return
    carries_nothing = variant.mechanism in PER_TICK
    assert (found == uninterrupted(variant, 4)[AFTER:]) is carries_nothing


def refused(variant: Variant, blocks: Mapping[str, bytes]) -> bool:
    """Return whether these blocks are refused by the next tick; other errors do not count."""
    run = Run(built(variant), 4)
    try:
        run.load(blocks)
        run.step(AFTER + 1, stream_of(4)[AFTER])
    except StateRefused:
        return True
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error):
        return False
    return False


@cache
def stored(variant: Variant) -> Mapping[str, bytes]:
    run = Run(built(variant), 4)
    run.transcript(stream_of(4)[:AFTER])
    return MappingProxyType(run.store())


def damaged(block: bytes) -> Iterator[tuple[str, bytes]]:
    """Return the block with another version, and truncated in several ways."""
    yield "version", bytes([block[0] ^ 0x80]) + block[1:]
    whole = len(block)
    for length in sorted({0, 1, 2, 3, whole // 2, whole - 8, whole - 4, whole - 1}):
        if 0 <= length < whole:
            yield f"{length} of {whole} bytes", block[:length]


def accepted(variant: Variant) -> list[tuple[str, str]]:
    blocks = stored(variant)
    assert not refused(variant, blocks)
    return [
        (name, how)
        for name, block in blocks.items()
        for how, bad in damaged(block)
        if not refused(variant, {**blocks, name: bad})
    ]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_block_of_another_version_or_cut_short_is_refused(variant: Variant) -> None:
    """Continuing from partial state miscounts, or draws noise again under other data."""
    assert not accepted(variant)


@pytest.mark.parametrize("name", MECHANISMS)
def test_blocks_whose_version_nobody_looks_at_are_seen(name: str) -> None:
    """Planted, per name: every stated version is accepted; the check must blame every block."""
    variant = next(variant for variant in VARIANTS if variant.mechanism == name)
    blocks = stored(variant)
    load = Run.load

    def careless(self: Run, given: Mapping[str, bytes]) -> None:
        right = {block: blocks[block][:1] for block, value in given.items() if value}
        load(
            self,
            {
                block: right.get(block, b"") + value[1:]
                for block, value in given.items()
            },
        )

    with patch.object(Run, "load", careless):
        assert {block for block, how in accepted(variant) if how == "version"} == set(
            blocks
        )


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_blocks_with_unknown_names_are_refused(variant: Variant) -> None:
    """Skipping a newer version's block would lose state."""
    blocks = stored(variant)
    for name in ("m", "mx00000000", "mzzzzzzzz", "q00000000"):
        assert refused(variant, {**blocks, name: b"\x01\x00\x00\x00\x00"})
