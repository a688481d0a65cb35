"""An epoch begins with the labels that the last counts of the one before tell from nothing."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from tests.pipeline.fleet import KEYS, Fleet, fleet, grown_of
from tests.pipeline.pipeline import KEY, Event, Partition, contribute, histogram_of, unk
from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import State
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBase
from workers.mechanisms.running.sparse_gumb import SparseGumbConfig
from workers.pipeline.growth.owners import owner_of
from workers.pipeline.histogram import Histogram
from workers.pipeline.snapshots import Snapshot

Body = Mapping[str, Any]
Counts = Mapping[str, int]
HORIZON = 6
LABELS = [f"i{number}" for number in range(100)]
# At sd 5 to 6 and a threshold of some 30, counts below it, above it, and shown ones that stay small.
CONFIG = unk(horizon=HORIZON, max_items=1, epsilon=2.0, delta=1e-3)


def counted(counts: Counts) -> list[Contributions]:
    labels = [label.encode() for label in counts]
    numbers = np.array(list(counts.values()), dtype=np.int64)
    key_of_row = np.zeros(len(labels), dtype=np.int32)
    tags = KEY.tags("k", labels)
    return [Contributions(("k",), key_of_row, tags, Texts.of(labels), numbers)]


def stream(epochs: int) -> list[Counts]:
    """Every label has a size of its own, a quarter of it in even epochs, and none in some."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(0, 12, len(LABELS))
    ticks: list[Counts] = []
    for epoch in range(epochs):
        present = rng.random(len(LABELS)) < 0.7
        for _ in range(HORIZON):
            counts = rng.poisson(sizes * present * (0.25 if epoch % 2 else 1.0))
            ticks.append(
                {label: int(n) for label, n in zip(LABELS, counts, strict=True) if n}
            )
    return ticks


def published(
    config: HistogramConfig, ticks: Sequence[Counts], *, restarts: bool = False
) -> list[Body]:
    """Return the snapshots of a stream; with `restarts` from a state read back before each tick."""
    histogram = histogram_of(config)
    histogram.start_at(1)
    store: dict[bytes, bytes] = {}
    bodies = []
    for counts in ticks:
        [snapshot] = histogram.step(counted(counts))
        bodies.append(json.loads(snapshot.value))
        if restarts:
            for key, value in histogram.changes():
                store.pop(key, None)
                if value is not None:
                    store[key] = value
            life = msgspec.json.decode(
                msgspec.json.encode(histogram.life), type=type(histogram.life)
            )
            histogram = histogram_of(config)
            histogram.restore(life, sorted(store.items()))
    return bodies


def faults(bodies: Sequence[Body], ticks: Sequence[Counts]) -> Iterator[str]:
    """Yield what is wrong, from published numbers and exact counts alone."""
    noise = build(CONFIG)._counter  # type: ignore[attr-defined]  # unk_base has one
    running: Counter[str] = Counter()
    last: Body | None = None
    for body, counts in zip(bodies, ticks, strict=True):
        if body["tick"] == 1:
            running.clear()
        running.update(counts)
        shown = dict(body["items"])
        if body["tick"] == 1 and last is not None:
            carried = {label for label, n in last["items"] if n > 2 * last["sd"]}
            new = {label for label, n in body["items"] if n > body["threshold"]}
            if shown.keys() != carried | new:
                yield f"begins with {shown.keys() ^ (carried | new)}"
        elif last is not None and dict(last["items"]).keys() - shown.keys():
            yield "a label left within its epoch"
        tags = KEY.tags("k", [label.encode() for label in shown])
        drawn = noise.draw(KEY.stream(bytes.fromhex(body["id"])), body["tick"], tags)
        if [n - running[label] for label, n in shown.items()] != drawn.tolist():
            yield "noise of another epoch"
        last = body


def test_an_epoch_begins_with_labels_above_two_standard_deviations_and_no_others() -> (
    None
):
    ticks = stream(5)
    bodies = published(CONFIG, ticks)
    assert not list(faults(bodies, ticks))
    kept = left = late = empty = 0
    for last, first, counts in zip(
        bodies[HORIZON - 1 :: HORIZON],
        bodies[HORIZON::HORIZON],
        ticks[HORIZON::HORIZON],
        strict=False,
    ):
        carried = {label for label, n in last["items"] if n > 2 * last["sd"]}
        kept += len(carried)
        left += len(last["items"]) - len(carried)
        late += len(first["items"]) < len(last["items"])
        empty += len(carried - counts.keys())
    assert min(kept, left, late, empty) > 0, "or the stream shows nothing of the rule"


def _hidden_too(self: UnkBase, last: State, *of: Any) -> Rows:
    last.ledger.shown[:] = 1
    return CARRY(self, last, *of)


def _small_too(self: UnkBase, last: State, t: int, noise: Any, *of: Any) -> Rows:
    with patch.object(UnkBase, "sd", lambda self, t: 0.0):
        return CARRY(self, last, t, noise, *of)


def _of_exact_counts(self: UnkBase, last: State, t: int, noise: Any, *of: Any) -> Rows:
    class Silent:
        at = staticmethod(lambda t, tags: np.zeros(len(tags), dtype=np.int64))

    return CARRY(self, last, t, Silent(), *of)


def _with_counts(self: UnkBase, last: State, t: int, noise: Any, *of: Any) -> Rows:
    rows = CARRY(self, last, t, noise, *of)
    of[0].ledger.counts[rows] = 1
    return rows


CARRY = UnkBase.carry


@pytest.mark.parametrize(
    "carry", [_hidden_too, _small_too, _of_exact_counts, _with_counts]
)
def test_planted_faults_of_what_is_carried_are_found(carry: Any) -> None:
    """A hidden label, one that cannot be told from nothing, one kept for its exact count."""
    ticks = stream(5)
    with patch.object(UnkBase, "carry", carry):
        assert list(faults(published(CONFIG, ticks), ticks))


def test_noise_of_the_epoch_before_is_found() -> None:
    ticks = stream(2)
    noise_of = Histogram._noise_of
    with patch.object(
        Histogram, "_noise_of", lambda self, epoch: noise_of(self, min(epoch, 1))
    ):
        assert "noise of another epoch" in faults(published(CONFIG, ticks), ticks)


SUMMED = parse_sum({"field": "price", "from": 0, "to": 10, "step": 1})


@pytest.mark.parametrize(
    "changes",
    [{}, {"counter": "tree"}, {"total_share": 0.1}, {"sum": SUMMED}],
    ids=["lifted", "tree", "total", "sum"],
)
def test_a_restart_before_every_tick_changes_nothing(changes: dict[str, Any]) -> None:
    """Also between two epochs, where what is carried follows from the stored rows."""
    config = unk(horizon=HORIZON, max_items=1, epsilon=4.0, delta=1e-3, **changes)
    ticks = stream(4)
    assert published(config, ticks, restarts=True) == published(config, ticks)


def test_an_epoch_that_begins_after_a_gap_of_empty_ones_has_lost_the_labels() -> None:
    """Of 100 labels without events, each stays for an epoch with probability 0.023."""
    often = dict.fromkeys(LABELS, 100)
    ticks: list[Counts] = [often, *({} for _ in range(4 * HORIZON - 1))]
    bodies = published(CONFIG, ticks)
    sizes = [len(body["items"]) for body in bodies[::HORIZON]]
    assert sizes[0] == sizes[1] == len(LABELS)
    # 2.3 are expected; 15 or more have probability 1e-8.
    assert sizes[2] < 15
    assert sizes[3] <= sizes[2]


@pytest.mark.slow
def test_a_new_generation_begins_with_nothing() -> None:
    ticks = stream(2)
    old = Partition([CONFIG], 1)
    events: list[Event] = [
        ("k", [label], 10 * at)
        for at, counts in enumerate(ticks)
        for label, n in counts.items()
        for _ in range(n)
    ]
    [topic] = contribute([events], [CONFIG], owners=1)
    old.receive(topic, 0)
    before: list[Snapshot] = []
    while len(before) < HORIZON:
        before += old.commit(1) or []
    assert json.loads(before[-1].value)["items"]
    old.configs = [
        unk(horizon=HORIZON, max_items=1, epsilon=2.0, delta=1e-3, generation=2)
    ]
    old.receive(topic[old.restart() :], 0)
    after = [json.loads(one.value) for one in old.release_all()]
    assert all(
        n > body["threshold"]
        for body in after
        if body["tick"] == 1
        for _, n in body["items"]
    )


def test_stream_keys_that_move_begin_with_nothing_and_others_with_their_labels() -> (
    None
):
    """The new owner has no rows of the old one's epoch, and another noise."""
    # None in the first half of an epoch of 40 ms.
    times = [at for at in range(1, 400) if at % 40 >= 20]
    events: list[Event] = [(key, ["a"], at) for at in times for key in KEYS]
    config = unk(horizon=4, max_items=1, epsilon=4.0)
    found: Fleet = fleet([events], [config], step=60).finish()
    owners = grown_of(found.topics, 2)
    moved = stayed = 0
    last: dict[str, Body] = {}
    for _, snapshot in sorted(found.published, key=lambda one: one[1].end_ms):
        body = json.loads(snapshot.value)
        before = last.get(snapshot.key)
        last[snapshot.key] = body
        if before is None or body["tick"] > 1:
            continue
        numbers = [owners.at(each["end"]) for each in (before, body)]
        is_moved = len({owner_of(snapshot.key, number) for number in numbers}) == 2
        carried = {label for label, n in before["items"] if n > 2 * before["sd"]}
        new = {label for label, n in body["items"] if n > body["threshold"]}
        expected = new if is_moved else carried | new
        assert {label for label, _ in body["items"]} == expected
        moved += is_moved and bool(carried - new)
        stayed += not is_moved and bool(carried - new)
    assert moved and stayed


def test_the_items_chosen_last_take_the_place_of_the_first_choice() -> None:
    """sparse_gumb: nothing is chosen at the first tick, and no switch is spent."""
    domain = tuple(f"d{number}" for number in range(30))
    config = SparseGumbConfig(
        name="h",
        tick_ms=10,
        horizon=HORIZON,
        keys="public",
        max_items=1,
        epsilon=20.0,
        delta=1e-6,
        domain=domain,
        top_k=3,
        switches=4,
    )
    ticks: list[Counts] = [{"d7": 90, "d8": 80, "d9": 70}] * (3 * HORIZON)
    bodies = published(config, ticks)
    boards = [{label for label, _ in body["items"]} for body in bodies]
    assert boards[HORIZON - 1] == {"d7", "d8", "d9"}
    assert all(board == boards[HORIZON - 1] for board in boards[HORIZON:])
    assert published(config, ticks, restarts=True) == bodies
