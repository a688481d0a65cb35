"""Costs charged once for a whole stream: an event meets each fresh noise once (proofs of paper
001, executed).

Remove an event of D columns and move the noise charged for it by as much: H's from the event's
interval to the end of its segment, G's at the end of that segment, and the update noise of that
interval. All output must then be the same, to the last tick. Closes of intervals and ends of
segments are given here, since AboveThreshold charges for them itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.privacy.enumeration import KEY, STREAM_KEY, Addresses, Event, parts, replaced
from workers.arrays.types import Tags
from workers.mechanisms.order_statistics.engine import (
    OrderStatisticNoise,
    OrderStatistics,
)
from workers.mechanisms.registry import MECHANISMS, build

TICKS = 12
DOMAIN = ("a", "b", "c")
FAR = 1 << 40
Counts = NDArray[np.int64]
QUERIES: dict[str, dict[str, Any]] = {
    "two_level": {"query": "max"},
    "two_level_k": {"queries": ("max", "min", "top_k_select:2")},
}


class Given(OrderStatisticNoise):
    """Noise with known values, and the moves that an event's absence requires."""

    def __init__(
        self, mechanism: OrderStatistics, closes: set[int], ends: set[int]
    ) -> None:
        super().__init__(mechanism, Addresses())
        self.closes = closes
        self.ends = ends
        self.moved: Counts = np.zeros(len(DOMAIN), dtype=np.int64)
        self.segment = self.interval = 0
        self.moved_updates: Counts | None = None
        self.watched: Counts | None = None

    def outer_tau(self, tag: Tags, segment: int) -> int:
        return 0

    def inner_tau(self, tag: Tags, segment: int, interval: int) -> int:
        return 0

    def outer_mu(self, key: int, tag: Tags, t: int) -> int:
        return FAR if t in self.ends else -FAR

    def inner_mu(self, key: int, tag: Tags, t: int) -> int:
        return FAR if t in self.closes else -FAR

    def outer_columns(self, tags: Tags, segment: int) -> Counts:
        return _made(1, segment, 0) + (self.moved if segment == self.segment else 0)

    def inner_columns(self, tags: Tags, segment: int, interval: int) -> Counts:
        here = segment == self.segment and interval >= self.interval
        return _made(2, segment, interval) + (self.moved if here else 0)

    def updates(self, tag: Tags, segment: int, interval: int, k: int) -> Counts:
        drawn = np.random.default_rng((3, segment, interval)).integers(-9, 9, size=k)
        if (segment, interval) == (
            self.segment,
            self.interval,
        ) and self.moved_updates is not None:
            return drawn + self.moved_updates
        return drawn


def _made(use: int, segment: int, interval: int) -> Counts:
    return np.random.default_rng((use, segment, interval)).integers(
        -5, 5, size=len(DOMAIN)
    )


def published(
    mechanism: OrderStatistics,
    ticks: Sequence[Event],
    noise: Given,
    watch: int | None = None,
) -> list[object]:
    """Return all answers, and the values AboveThreshold sees in runs after the event's.

    `watch` records the watched values just before the close or end at or after this tick.
    """
    state = mechanism.init()
    state.key_tags = KEY.tags(STREAM_KEY, [b"\xff"])
    mechanism.prepare_key(
        state, 0, KEY.tags(STREAM_KEY, mechanism.domain()), mechanism.domain()
    )
    answers: list[object] = []
    for t, event in enumerate(ticks, start=1):
        stops = t in noise.closes | noise.ends
        if watch is not None and t >= watch and noise.watched is None and stops:
            one: Any = state.by_key[0]  # type: ignore[attr-defined]  # of an OrderStatisticState
            added = np.array([event.get(label, 0) for label in DOMAIN])
            sums = state.ledger.counts + added + one.segment_noise + one.interval_noise
            noise.watched = mechanism.queries.values(sums)
        state, release = mechanism.step(state, t, parts(event), noise)
        answers.append(release.of_key[0])
        after: Any = state.by_key[0]  # type: ignore[attr-defined]  # of an OrderStatisticState
        run = after.segment, after.interval
        if run > (noise.segment, noise.interval) and not after.stale:
            # The values that tests compare in a run after the event's.
            answers.append(
                (after.excess, after.largest if after.segment > noise.segment else None)
            )
    return answers


def same_without(
    kind: str,
    ticks: Sequence[Event],
    at: int,
    event: Event,
    closes: set[int],
    ends: set[int],
) -> bool:
    """Return whether all output stays equal without the event, with its noise moved once."""
    settings_: dict[str, Any] = {
        "horizon": TICKS,
        "max_items": 3,
        "max_count": 3,
        "rho": 5.0,
    }
    settings_ |= {
        "delta": 0.1,
        "domain": DOMAIN,
        "name": "h",
        "tick_ms": 1,
        "keys": "public",
    }
    made = build(MECHANISMS[kind](**settings_, **QUERIES[kind]))
    assert isinstance(made, OrderStatistics)
    one = made.intervals(1)
    # Planted in a frozen object: an interval closes at every growth by two.
    steps = (type(one)(2, one.clearance, TICKS, one.error, one.spread),) * 40
    object.__setattr__(made, "_intervals", steps)
    with_event = Given(made, closes, ends)
    without = Given(made, closes, ends)
    richer: list[Event] = list(ticks)
    richer[at - 1] = {
        label: ticks[at - 1].get(label, 0) + event.get(label, 0) for label in DOMAIN
    }
    before = [t for t in sorted(closes | ends) if t < at]
    started = max((t for t in before if t in ends), default=0)
    for noise in (with_event, without):
        noise.segment = 1 + sum(t in ends for t in before)
        noise.interval = 1 + sum(t > started for t in before)
    without.moved = np.array([event.get(label, 0) for label in DOMAIN])
    expected = published(made, richer, with_event, watch=at)
    trial = Given(made, closes, ends)
    published(made, ticks, trial, watch=at)
    if with_event.watched is not None and trial.watched is not None:
        without.moved_updates = with_event.watched - trial.watched
    return expected == published(made, ticks, without)


counted = st.dictionaries(st.sampled_from(DOMAIN), st.integers(1, 6))
streams = st.lists(counted, min_size=TICKS, max_size=TICKS)
some_ticks = st.sets(st.integers(1, TICKS))
events = st.dictionaries(st.sampled_from(DOMAIN), st.integers(1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUERIES)
@settings(max_examples=60, deadline=None)
@given(
    ticks=streams,
    at=st.integers(1, TICKS),
    event=events,
    closes=some_ticks,
    ends=some_ticks,
)
def test_an_event_meets_each_noise_that_is_charged_for_it_once(
    kind: str,
    ticks: Sequence[Event],
    at: int,
    event: Event,
    closes: set[int],
    ends: set[int],
) -> None:
    """Later intervals and segments begin with sums that are already private."""
    assert same_without(kind, ticks, at, event, closes, ends)


def exact_again(
    mechanism: Any, state: Any, key: int, t: int, noise: OrderStatisticNoise
) -> None:
    """Plant: a segment's end forgets the noise the sums already have."""
    one = state.by_key[key]
    one.segment_noise = np.zeros_like(one.segment_noise)
    END(mechanism, state, key, t, noise)


def fresh_again(
    mechanism: Any, state: Any, key: int, t: int, noise: OrderStatisticNoise
) -> None:
    """Plant: a close whose interval is counted from tick 1 again at the next one."""
    CLOSE(mechanism, state, key, t, noise)
    one = state.by_key[key]
    one.interval_noise = one.interval_noise * (one.interval % 2)


END: Callable[..., None] = OrderStatistics._end_segment
CLOSE: Callable[..., None] = OrderStatistics._close_interval


@pytest.mark.parametrize(
    ("member", "flaw"),
    [("_end_segment", exact_again), ("_close_interval", fresh_again)],
)
def test_an_event_that_meets_noise_twice_is_seen(
    member: str, flaw: Callable[..., None]
) -> None:
    """Planted: a segment or interval that starts from exact sums pays for an event repeatedly."""
    ticks: list[Event] = [{"a": 2, "b": 1}] * TICKS
    with replaced(OrderStatistics, **{member: flaw}):
        assert not same_without("two_level", ticks, 2, {"a": 3}, {3, 6, 10}, {8, 11})
    assert same_without("two_level", ticks, 2, {"a": 3}, {3, 6, 10}, {8, 11})
