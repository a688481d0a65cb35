"""Every mechanism's release is a function of state, tick, contributions and noise."""

import hashlib
import os
import random
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests import ROOT
from tests.contract.stage import Run, Shown, Tick, random_stream
from tests.contract.variants import VARIANTS, Variant, built
from workers.mechanisms.mechanism import Answers, Release, WindowReleases

pytestmark = pytest.mark.slow


@cache
def stream_of(seed: int) -> list[Tick]:
    """Return large and small counts, ties, empty ticks and late labels."""
    return random_stream(seed, [1, 3, 3, 40, 300, 3000])


def exactly(shown: Shown) -> bytes:
    if isinstance(shown, Answers):
        parts: list[object] = [
            (key, dict(answer)) for key, answer in shown.of_key.items()
        ]
        return repr((parts, shown.sd)).encode()
    if isinstance(shown, WindowReleases):
        return b"".join(map(exactly, shown.releases)) + repr(shown.begins).encode()
    counts = shown.counts.tobytes(), shown.sd, shown.threshold
    if isinstance(shown, Release):
        return repr((shown.rows.tobytes(), *counts)).encode()
    return repr((shown.keys.tobytes(), list(shown.labels), *counts)).encode()


def stepped(run: Run, t: int, tick: Tick) -> list[bytes]:
    """Return the release of a tick, and all stored blocks after it."""
    return [exactly(run.step(t, tick)), stored(run)]


def stored(run: Run) -> bytes:
    return repr(sorted(run.store().items())).encode()


@dataclass
class Whole:
    """A run over a whole stream.

    Attributes:
        parts: of every tick its release, as it was then, and all stored blocks.
        shown: the same releases.
        named: the same, independent of row numbers.
    """

    parts: list[bytes] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    named: list[object] = field(default_factory=list)


@cache
def whole(variant: Variant) -> Whole:
    """Run a variant over the first stream, once for all tests."""
    run = Run(built(variant), 1)
    found = Whole()
    for t, tick in enumerate(stream_of(1), 1):
        shown = run.step(t, tick)
        found.parts += [exactly(shown), stored(run)]
        found.shown.append(shown)
        found.named.append(run.named(shown))
    return found


def digest() -> str:
    """Return the digest of all releases and blocks of this suite's mechanisms."""
    everything = hashlib.sha256()
    for variant in VARIANTS:
        everything.update(
            repr((str(variant), sorted(built(variant).public().items()))).encode()
        )
        for part in whole(variant).parts:
            everything.update(part)
    return everything.hexdigest()


class Forbidden(AssertionError):
    """Raised when a pure step asks for anything outside its arguments."""


def forbidden(*args: Any, **kwargs: Any) -> Any:
    raise Forbidden


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_equal_inputs_give_equal_releases_and_blocks_without_clock_chance_or_environment(
    variant: Variant,
) -> None:
    """Anything else may differ when a tick is repeated: other noise under the same data."""
    expected = whole(variant).parts
    places: dict[Any, str] = {
        time: "time time_ns monotonic monotonic_ns perf_counter",
        os: "urandom getenv",
        random: "random Random SystemRandom",
        np.random: "default_rng random normal",
        uuid: "uuid4",
    }
    stream = stream_of(1)
    run = Run(built(variant), 1)
    found = list[bytes]()
    with ExitStack() as patches:
        for place, names in places.items():
            for name in names.split():
                patches.enter_context(patch.object(place, name, forbidden))
        for t, tick in enumerate(stream, 1):
            found += stepped(run, t, tick)
    assert found == expected


def test_the_check_of_clock_and_chance_sees_them() -> None:
    variant = VARIANTS[0]
    run = Run(built(variant), 1)
    real = type(run.mechanism).step

    def late(self: Any, *args: Any) -> Any:
        time.time()
        return real(self, *args)

    with (
        patch.object(type(run.mechanism), "step", late),
        patch.object(time, "time", forbidden),
        pytest.raises(Forbidden),
    ):
        run.step(1, stream_of(1)[0])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_runs_side_by_side_do_not_disturb_each_other(variant: Variant) -> None:
    """Shared state would make one partition's release depend on another's data."""
    mine = Run(built(variant), 1)
    others = Run(built(variant), 9)
    found = list[bytes]()
    beside = list[bytes]()
    for t, (tick, foreign) in enumerate(
        zip(stream_of(1), stream_of(9), strict=True), 1
    ):
        beside.append(exactly(others.step(t, foreign)))
        found += stepped(mine, t, tick)
    assert found == whole(variant).parts
    assert beside != found[::2]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_release_stays_what_it_was_and_inputs_are_left_alone(
    variant: Variant,
) -> None:
    """Releases are written after the next tick began; several histograms read contributions."""
    of_variant = whole(variant)
    assert list(map(exactly, of_variant.shown)) == of_variant.parts[::2]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_how_contributions_are_cut_into_messages_does_not_show(
    variant: Variant,
) -> None:
    """The source partition of an item is data, and known to its sender."""
    in_three = Run(built(variant), 1).transcript(stream_of(1), parts=3)
    assert in_three == whole(variant).named


def test_another_process_releases_and_stores_the_same_bytes() -> None:
    """Set order and other process differences must not show: a successor needs equal bytes."""
    code = "from tests.contract.test_purity import digest; print(digest())"
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    assert (
        subprocess.check_output(command, text=True, cwd=ROOT, env=env).strip()
        == digest()
    )
