"""Every mechanism's release is a function of state, tick, contributions and noise."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
import uuid
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests import ROOT
from tests.contract.stage import KEYS, Run, Shown, Tick
from tests.contract.variants import DOMAIN, OTHERS, TICKS, VARIANTS, Variant, built
from workers.mechanisms.mechanism import Items, Release

pytestmark = pytest.mark.slow


def stream_of(seed: int) -> list[Tick]:
    """Return large and small counts, ties, empty ticks and late labels."""
    rng = random.Random(seed)
    found: list[Tick] = []
    for t in range(TICKS):
        labels = [*DOMAIN, *OTHERS[: t // 4]]
        found.append(
            {
                key: {
                    label: rng.choice([1, 3, 3, 40, 300, 3000])
                    for label in rng.sample(labels, rng.choice([0, 2, 5]))
                }
                for key in KEYS
            }
        )
    return found


def exactly(run: Run, shown: Shown) -> bytes:
    if isinstance(shown, Release):
        return repr(
            (shown.rows.tobytes(), shown.counts.tobytes(), shown.sd, shown.threshold)
        ).encode()
    if isinstance(shown, Items):
        return repr(
            (
                shown.keys.tobytes(),
                list(shown.labels),
                shown.counts.tobytes(),
                shown.sd,
                shown.threshold,
            )
        ).encode()
    return repr(([(key, dict(answer)) for key, answer in shown.of_key.items()], shown.sd)).encode()


def whole(variant: Variant, seed: int) -> list[bytes]:
    run = Run(built(variant), seed)
    found = []
    for t, tick in enumerate(stream_of(seed), 1):
        found.append(exactly(run, run.step(t, tick)))
        found.append(repr(sorted(run.store().items())).encode())
    return found


def digest() -> str:
    """Return the digest of all releases and blocks of this suite's mechanisms."""
    everything = hashlib.sha256()
    for variant in VARIANTS:
        everything.update(repr((str(variant), sorted(built(variant).public().items()))).encode())
        for part in whole(variant, 3):
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
    expected = whole(variant, 1)
    places = [
        (time, "time"),
        (time, "time_ns"),
        (time, "monotonic"),
        (time, "monotonic_ns"),
        (time, "perf_counter"),
        (os, "urandom"),
        (os, "getenv"),
        (random, "random"),
        (random, "Random"),
        (random, "SystemRandom"),
        (np.random, "default_rng"),
        (np.random, "random"),
        (np.random, "normal"),
        (uuid, "uuid4"),
    ]
    stream, run, found = stream_of(1), Run(built(variant), 1), []
    patches = [patch.object(place, name, forbidden) for place, name in places]
    for one in patches:
        one.start()
    try:
        for t, tick in enumerate(stream, 1):
            found.append(exactly(run, run.step(t, tick)))
            found.append(repr(sorted(run.store().items())).encode())
    finally:
        for one in patches:
            one.stop()
    assert found == expected
    assert whole(variant, 2)[::2] != expected[::2]


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
    alone = whole(variant, 1)
    mine, others, found = Run(built(variant), 1), Run(built(variant), 9), []
    for t, (tick, foreign) in enumerate(zip(stream_of(1), stream_of(9), strict=True), 1):
        others.step(t, foreign)
        found.append(exactly(mine, mine.step(t, tick)))
        found.append(repr(sorted(mine.store().items())).encode())
    assert found == alone


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_release_stays_what_it_was_and_inputs_are_left_alone(variant: Variant) -> None:
    """Releases are written after the next tick began; several histograms read contributions."""
    run, kept = Run(built(variant), 1), []
    for t, tick in enumerate(stream_of(1), 1):
        shown = run.step(t, tick)
        kept.append((shown, exactly(run, shown)))
    assert all(exactly(run, shown) == then for shown, then in kept)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_how_contributions_are_cut_into_messages_does_not_show(variant: Variant) -> None:
    """The source partition of an item is data, and known to its sender."""
    stream = stream_of(1)
    one, three = (Run(built(variant), 1).transcript(stream, parts=parts) for parts in (1, 3))
    assert one == three


def test_another_process_releases_and_stores_the_same_bytes() -> None:
    """Set order and other process differences must not show: a successor needs equal bytes."""
    code = "from tests.contract.test_purity import digest; print(digest())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2",
            "PYTHONPATH": str(ROOT),
        },
        check=True,
    )
    assert found.stdout.strip() == digest()
