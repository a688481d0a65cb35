"""Statistics that mechanisms add noise to, as the papers define them."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any, cast

import numpy as np

from tests.contract.coupling import Adapter, Events, Moves, Test, World
from tests.contract.probe import Block, Half
from tests.contract.stage import (
    KEY,
    NAME,
    PROTECTED,
    Histogram,
    Run,
    Tick,
    steps_of,
)
from tests.contract.variants import MAXIMA, PER_TICK, Variant, built
from tests.mechanisms.counters import line
from tests.mechanisms.counters.active import nodes_of_path
from tests.mechanisms.counters.lifted import nodes_of
from workers.arrays.types import Longs
from workers.mechanisms.counters.ranks import ranks_of
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import USE, MisraGries
from workers.mechanisms.misra_gries.sketch import Sketch
from workers.mechanisms.misra_gries.state import SketchState
from workers.mechanisms.one_shot import algorithms
from workers.mechanisms.one_shot.algorithms import (
    USE_ITEMS,
    USE_SHARED,
    USE_THRESHOLD,
    Sketched,
)
from workers.mechanisms.order_statistics import engine
from workers.mechanisms.order_statistics.engine import (
    KeyState,
    OrderStatistics,
    OrderStatisticState,
)
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import (
    TEST,
    THRESHOLD,
    SparseGumb,
    SparseState,
)
from workers.pipeline.histogram import KEY_LABEL

Cell = tuple[int, int]
NO_TAG = np.zeros((1, 2), dtype=np.uint64)
LIMITED = ("unk_gauss", "limit_dom_laplace")


def block(label: str | None, cell: Cell) -> Block:
    """Return the noise block of an item (None: the stream key itself) of the first key."""
    high, low = KEY.tags(NAME, [KEY_LABEL if label is None else label.encode()])[
        0
    ].tolist()
    return high ^ cell[0], low ^ cell[1]


def number(label: str | None, node: Cell, place: int = 0) -> Half:
    """Return block and half of an item's normal number, in the counter of a place."""
    level, k = node
    return (*block(label, (place ^ level, k >> 1)), k & 1)


def counter_moves(
    public: Mapping[str, Any], tick: int, amount: int
) -> Iterator[tuple[Cell, Fraction]]:
    """Return how an event of `amount` in `tick` changes the statistics of one item's counter.

    lifted, line: the nodes of the records, where blocks begin `offset` ticks before tick 1.
    tree, laplace tree: the block of r^j ticks of each level. sqrt: column `tick` of C, C_ts = binom(2k, k) / 4^k,
    k = t - s.
    """
    kind = public["kind"]
    last = tick - 1
    if kind == "lifted":
        counts = {last + public["offset"]: amount}
        yield from nodes_of(counts, public["levels"]).items()
    elif kind == "line":
        levels = public["levels"]
        nodes = line.analyze({last + public["offset"]: amount}, levels)
        for node, change in nodes.items():
            yield node, Fraction(change, 8**levels)
    elif kind in ("tree", "laplace tree"):
        for level in range(public["levels"]):
            yield (level, last // public["radix"] ** level), Fraction(amount)
    elif kind == "sqrt":
        for t in range(tick, public["horizon"] + 1):
            k = t - tick
            yield (256, t), amount * Fraction(comb(2 * k, k), 4**k)
    else:
        raise ValueError(f"counter = {kind!r}: this suite does not know its statistics")


def move_counter(
    found: Moves,
    public: Mapping[str, Any],
    label: str | None,
    tick: int,
    amount: int,
    place: int = 0,
) -> None:
    """Move the noise of one item's counter by what `amount` in a tick changes."""
    for (level, k), change in counter_moves(public, tick, amount):
        if public["kind"] == "laplace tree":
            found.add(block(label, (place ^ level, k)), int(change))
        else:
            found.add_number(number(label, (level, k), place), change)


class Counting(Adapter):
    """Running counts; twice the sum of numbers less R times the count; all counts of a key."""

    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves:
        found = Moves()
        public = cast(Any, self.mechanism.public())
        of = self.mechanism.config.sum
        for tick, items in events:
            for label, amount in items.items():
                if "ranks" in self.counter:
                    self._move_ranks(found, tick, label, -sign * amount)
                    continue
                move_counter(found, self.counter, label, tick, -sign * amount)
                if of is not None:
                    centred = amount * (2 * steps_of(label, of.steps) - of.steps)
                    counter = public["sum"]["counter"]
                    move_counter(found, counter, label, tick, -sign * centred, 1 << 56)
            if "total_counter" in public:
                total = -sign * sum(items.values())
                move_counter(found, public["total_counter"], None, tick, total)
        return found

    def _move_ranks(self, found: Moves, tick: int, label: str, amount: int) -> None:
        """Move the rows of the value nodes that a count in one bucket changes."""
        declared = self.mechanism.config.declared
        if label not in declared:
            return
        ranks = ranks_of(len(declared))
        bucket = declared.index(label)
        values = {"kind": "lifted", "levels": ranks.levels, "offset": 0}
        numbers = dict(zip(ranks.nodes, ranks.tags(NO_TAG)[:, 0].tolist(), strict=True))
        for value_node, factor in counter_moves(values, bucket + 1, amount):
            for (level, k), change in counter_moves(self.counter, tick, 1):
                place = numbers[value_node]
                found.add_number(number(None, (level, k), place), change * factor)


class Actives(Adapter):
    """Unique users: the path of how many users of an item are in each window, for ever."""

    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves:
        found = Moves()
        windows: Any = self.mechanism.public()["counters"]
        labels = {
            label.removesuffix(PROTECTED) for _, items in events for label in items
        }
        for i, window in enumerate(windows):
            for label in labels:
                path = dict[int, int]()
                for t in range(1, len(other) + window["window"] + window["hop"]):
                    before = self._users(first.stream, label, t, window)
                    after = self._users(other, label, t, window)
                    if after != before:
                        path[t + window["offset"]] = after - before
                levels = window["levels"]
                for (level, k), change in nodes_of_path(path, levels).items():
                    # The record's end K is the counter's K - 1.
                    node = level, k - (level > levels)
                    change_of_node = Fraction(-change, 8**levels)
                    found.add_number(number(label, node, i << 40), change_of_node)
        return found

    def _users(
        self, stream: Sequence[Tick], label: str, t: int, window: Mapping[str, int]
    ) -> int:
        """Return how many users had an event in the window at tick t: the first ones of a tick."""
        begin = (t - window["window"]) // window["hop"] * window["hop"]
        ticks = stream[max(begin, 0) : t]
        kinds = (label, f"{label}{PROTECTED}")
        return sum(
            max((tick.get(NAME, {}).get(kind, 0) for tick in ticks), default=0)
            for kind in kinds
        )


class OneShots(Adapter):
    """One-shot mechanisms and meta: the histograms of the event's cells."""

    def places(self, tick: int) -> Iterator[tuple[tuple[int, int], range]]:
        """Return (place in the noise, ticks) of every cell that holds the tick."""
        if not isinstance(self.mechanism, Meta):
            yield (0, tick), range(tick, tick + 1)
            return
        for level in range(self.mechanism.levels):
            width = self.mechanism.radix**level
            index = (tick - 1) // width
            yield (level, index), range(index * width + 1, (index + 1) * width + 1)

    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves:
        found = Moves()
        for place, ticks in dict(
            cell for tick, _ in events for cell in self.places(tick)
        ).items():
            one, two = (_total(stream, ticks) for stream in (first.stream, other))
            algorithm = getattr(self.mechanism, "algorithm", None)
            if isinstance(algorithm, Sketched):
                self._add_sketches(found, algorithm, place, one, two)
                continue
            for label in one.keys() | two.keys():
                cell = USE_ITEMS << 56 | place[0] << 40, place[1]
                found.add(block(label, cell), one[label] - two[label])
            if self.algorithm in LIMITED:
                kbar: Any = self.variant.options["kbar"]
                bars = [
                    [*sorted(n.values(), reverse=True)[kbar:], 0][0] for n in (one, two)
                ]
                cell = USE_THRESHOLD << 56 | place[0] << 40, place[1]
                found.add(block(None, cell), bars[0] - bars[1])
        return found

    def _add_sketches(
        self,
        found: Moves,
        algorithm: Sketched,
        place: tuple[int, int],
        one: Mapping[str, int],
        two: Mapping[str, int],
    ) -> None:
        cell = USE_ITEMS << 56 | place[0] << 40, place[1]
        if self.algorithm == "pure":
            domain = {label.decode() for label in self.mechanism.domain()}
            one, two = (
                {label: n for label, n in counts.items() if label in domain}
                for counts in (one, two)
            )
        old, new = (counters_of(algorithm, counts) for counts in (one, two))
        if self.algorithm == "pure":
            old = lowered(old, algorithm.size)
            new = lowered(new, algorithm.size)
            for label in old.keys() | new.keys():
                found.add(block(label, cell), old.get(label, 0) - new.get(label, 0))
            return
        moved = {label: new[label] - old[label] for label in old.keys() & new.keys()}
        together = 0
        if self.algorithm == "pmg":
            together = shared_move(moved.values())
            shared = USE_SHARED << 56 | place[0] << 40, place[1]
            found.add(block(None, shared), -together)
        for label, change in moved.items():
            found.add(block(label, cell), together - change)

    @property
    def algorithm(self) -> str:
        if "release" in self.variant.options:
            return str(self.variant.options["release"])
        return str(self.variant.options.get("algorithm", self.variant.mechanism))


class Paying(Adapter):
    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves:
        return Moves()


class Sparse(Adapter):
    """sparse_gumb: counters of all shown items, picks, and one run of AboveThreshold per switch."""

    def note(self, run: Run) -> object:
        assert isinstance(run.state, SparseState)
        return run.state.used.get(0, -1), run.state.chosen.get(0, ())

    def private(self, run: Run) -> object:
        return self.note(run)

    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves:
        found = Moves()
        domain = self.mechanism.domain()
        assert isinstance(self.mechanism, SparseGumb)
        [(tick, items)] = events
        ever = {domain[place].decode() for note in first.notes for place in note[1]}
        for label, amount in items.items():
            if label in ever:
                move_counter(found, self.counter, label, tick, -sign * amount)
        for used in range(self.mechanism.config.switches):
            # The choice is made at the end of the first of these ticks; only the last can stop it.
            ticks = [t for t, note in enumerate(first.notes[:-1], 1) if note[0] == used]
            if not ticks or ticks[-1] < tick:
                continue
            reach = max(items.values(), default=0)
            stop = None
            if first.notes[ticks[-1]][0] > used:
                stop = self._stop(first, ticks[-1], items, sign)
            threshold = block(None, (THRESHOLD, used)), reach if sign > 0 else 0
            found.tests.append(Test(threshold, stop, reach))
        return found

    def _stop(
        self, first: World, t: int, items: Histogram, sign: int
    ) -> tuple[Block, int]:
        chosen = {
            self.mechanism.domain()[place].decode() for place in first.notes[t - 1][1]
        }
        counts = _total(first.stream, range(1, t + 1))
        drawn = first.probe.drawn
        tested = {}
        for label in (label.decode() for label in self.mechanism.domain()):
            if label not in chosen:
                tested[label] = counts[label] + drawn[block(label, (TEST, t))][1]
        highest = max(tested, key=lambda label: tested[label])
        moved = items.get(highest, 0)
        reach = max(items.values(), default=0)
        return block(highest, (TEST, t)), reach - moved if sign > 0 else moved


class Sketches(Adapter):
    """misra_gries: sketch counters of the event's cells; "pmg" adds one common noise to all.

    "pure": (k + 1) c less the sum of all c, at least 0, for every label of the domain.
    """

    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves:
        assert isinstance(self.mechanism, MisraGries)
        found = Moves()
        before, after = (self.cells(stream) for stream in (first.stream, other))
        if self.mechanism.config.release == "pure":
            domain = [label.decode() for label in self.mechanism.domain()]
            for place in before.keys() | after.keys():
                size = self.mechanism.config.size
                old, new = (
                    lowered(cells.get(place, {}), size) for cells in (before, after)
                )
                assert old.keys() | new.keys() <= set(domain)
                for label in domain:
                    change = new.get(label, 0) - old.get(label, 0)
                    found.add(block(label, (USE << 56 | place[0], place[1])), -change)
            return found
        for place in before.keys() & after.keys():
            one = before[place]
            two = after[place]
            cell = USE << 56 | place[0], place[1]
            lone = [{**one, **two}[label] for label in one.keys() ^ two.keys()]
            exposed, largest = exposed_counters(self.variant, self.mechanism)
            assert (
                len([n for n in lone if n]) <= exposed
                and max(lone, default=0) <= largest
            )
            moved = {
                label: two[label] - one[label] for label in one.keys() & two.keys()
            }
            together = 0
            if self.mechanism.config.release.startswith("pmg"):
                together = shared_move(moved.values())
                found.add(block(None, cell), -together)
            for label, change in moved.items():
                found.add(block(label, cell), together - change)
        return found

    def cells(self, stream: Sequence[Tick]) -> dict[tuple[int, int], dict[str, int]]:
        """Return (level, block) -> the released counters, a function of the counts alone."""
        assert isinstance(self.mechanism, MisraGries)
        run = Run(self.mechanism)
        found = {}
        radix = self.mechanism.tree.radix
        for t, tick in enumerate(stream, 1):
            held = _watched(run)
            run.step(t, tick)
            for (key, level), sketch in held.items():
                if key == 0 and sketch is not None:
                    labels = (label.decode() for label in sketch.labels)
                    counters = dict(zip(labels, sketch.counts.tolist(), strict=True))
                    found[level, t // radix**level - 1] = counters
        return found


def shared_move(changes: Collection[int]) -> int:
    """Return the move of the noise of all counters with the least squares left."""
    return min({0, *changes}, key=lambda a: a * a + sum((d - a) ** 2 for d in changes))


def counters_of(algorithm: Sketched, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of a stream key's sketch of exact counts."""
    held = [label for label, n in counts.items() if n]
    labels = [label.encode() for label in held]
    numbers = np.array([counts[label] for label in held], dtype=np.int64)
    keys = np.zeros(len(held), dtype=np.int32)
    cell = algorithms.Cell(
        KEY.tags(NAME, labels), keys, numbers, KEY.tags(NAME, [KEY_LABEL])
    )
    sketch = algorithm.sketch(cell, np.arange(len(held)))[0]
    by_tag = dict(zip(map(tuple, cell.tags.tolist()), held, strict=True))
    names = (by_tag[tag] for tag in map(tuple, sketch.tags.tolist()))
    return dict(zip(names, sketch.counts.tolist(), strict=True))


def lowered(counters: Mapping[str, int], size: int) -> dict[str, int]:
    gamma = sum(counters.values())
    return {label: max(0, (size + 1) * n - gamma) for label, n in counters.items()}


def exposed_counters(variant: Variant, mechanism: MisraGries) -> tuple[int, int]:
    """Return the number and largest count of counters that only one neighbour may show.

    Source: 003 Lemmas 2 and 6, section 7.
    """
    together = variant.max_items * variant.max_count
    if mechanism.config.release.startswith("pmg"):
        return 4 * together, together
    return mechanism.config.size * (
        1 if variant.max_count == 1 else 2
    ), variant.max_count


def _watched(run: Run) -> dict[tuple[int, int], Sketch | None]:
    state = run.state
    held = {}
    assert isinstance(state, SketchState)
    close_cells = SketchState.close_cells

    def watch(key: int, level: int) -> Sketch | None:
        held[key, level] = close_cells(state, key, level)
        return held[key, level]

    cast(Any, state).close_cells = watch  # to look at what is released
    return held


def _total(stream: Sequence[Tick], ticks: range) -> Counter[str]:
    total: Counter[str] = Counter()
    for tick in stream[ticks.start - 1 : ticks.stop - 1]:
        total.update(tick.get(NAME, {}))
    return total


@dataclass(frozen=True)
class Stand:
    segment: int
    interval: int
    thresholds: Longs
    start: Longs
    noise: Longs


class Maxima(Adapter):
    """bounded_max, doubling, two_level, two_level_k.

    The event lies in one segment J and one interval I of it. Its part in the sums ends with the
    columns' fresh noise at the end of J, and with the counter's noise at the close of I; until then
    it affects the comparisons of J, and of I.
    """

    def note(self, run: Run) -> object:
        one = _key_state(run)
        columns = (one.thresholds, one.segment_noise, one.interval_noise)
        return Stand(one.segment, one.interval, *(column.copy() for column in columns))

    def private(self, run: Run) -> object:
        """Return all noisy sums (a query shows one, or a label) and the thresholds from them."""
        one = _key_state(run)
        return one.segment, one.interval, one.thresholds.tolist(), one.shown.tolist()

    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves:
        mechanism = self.mechanism
        found = Moves()
        assert isinstance(mechanism, OrderStatistics)
        [(tick, items)] = events
        notes = [note for note in first.notes if isinstance(note, Stand)]
        ticks = range(tick, len(first.stream) + 1)
        j = notes[tick - 1].segment
        i = notes[tick - 1].interval
        ended = next((t for t in ticks if notes[t].segment > j), None)
        closed = next(
            (t for t in ticks if notes[t].segment == j and notes[t].interval > i), None
        )
        streams = (first.stream, other) if sign > 0 else (other, first.stream)
        if mechanism.segments is not None and j < mechanism.segments.most:
            last = ended or len(first.stream)
            moved = [
                self._outer(streams, notes[t - 1], t) for t in range(tick, last + 1)
            ]
            threshold = engine.OUTER_TAU << 56, j
            found.tests.append(_test(threshold, engine.OUTER_MU, ended, moved, sign))
            if ended:
                for label, amount in items.items():
                    found.add(
                        block(label, (engine.OUTER_COLUMNS << 56, j)), -sign * amount
                    )
        if (
            mechanism.inner is not None
            and i <= mechanism.intervals(j).capacity
            and ended != tick
        ):
            last = closed or (ended - 1 if ended else len(first.stream))
            moved = [
                self._inner(streams, notes[t - 1], t) for t in range(tick, last + 1)
            ]
            threshold = engine.INNER_TAU << 56 | j, i
            found.tests.append(_test(threshold, engine.INNER_MU, closed, moved, sign))
        if closed:
            # The event is in one of the counter's intervals.
            counter = mechanism.sum_noise(j).public()
            place = engine.INNER_COLUMNS << 56 | j << 8
            for label, amount in items.items():
                move_counter(found, counter, label, i, -sign * amount, place)
            if mechanism.queries.k > 1:
                stand = notes[closed - 1]
                begun = stand.start + stand.noise
                sums = (
                    self._exact(stream, closed) + begun
                    for stream in (first.stream, other)
                )
                one, two = map(mechanism.queries.values, sums)
                for index, change in enumerate((two - one).tolist()):
                    found.add(
                        block(None, (engine.UPDATES << 56 | j, i << 32 ^ index)),
                        -change,
                    )
        return found

    def _outer(self, streams: Sequence[Sequence[Tick]], stand: Stand, t: int) -> int:
        assert isinstance(self.mechanism, OrderStatistics)
        sums = (self._exact(one, t) + stand.start for one in streams)
        without, more = (self.mechanism.queries.values(one).max() for one in sums)
        return int(more - without)

    def _inner(self, streams: Sequence[Sequence[Tick]], stand: Stand, t: int) -> int:
        assert isinstance(self.mechanism, OrderStatistics)
        sums = (self._exact(one, t) + stand.start + stand.noise for one in streams)
        values = map(self.mechanism.queries.values, sums)
        without, more = ((one - stand.thresholds).max() for one in values)
        return int(more - without)

    def _exact(self, stream: Sequence[Tick], t: int) -> Longs:
        labels = [label.decode() for label in self.mechanism.domain()]
        ticks = [tick.get(NAME, {}) for tick in stream[:t]]
        return np.array([sum(tick.get(label, 0) for tick in ticks) for label in labels])


def _key_state(run: Run) -> KeyState:
    assert isinstance(run.state, OrderStatisticState)
    [one, *_] = run.state.by_key.values()
    assert one is not None
    return one


def _test(
    threshold: tuple[int, int],
    use: int,
    stop: int | None,
    moved: Sequence[int],
    sign: int,
) -> Test:
    """Return a run's moves: the threshold by the largest change, the last test by the rest."""
    reach = max(moved)
    last = None
    if stop is not None:
        last = (
            block(None, (use << 56, stop)),
            reach - moved[-1] if sign > 0 else moved[-1],
        )
    return Test((block(None, threshold), reach if sign > 0 else 0), last, reach)


# Of mechanisms whose statistics are others than those of a counter for every item.
ADAPTERS: dict[str, type[Adapter]] = {
    **dict.fromkeys(("meta", *PER_TICK), OneShots),
    **dict.fromkeys(MAXIMA, Maxima),
    "sparse_gumb": Sparse,
    "misra_gries": Sketches,
    "pay_what_you_get": Paying,
}


def adapter_of(variant: Variant, mechanism: Mechanism | None = None) -> Adapter:
    """The adapter of a variant, around its mechanism or another one of the same kind."""
    kind = ADAPTERS.get(variant.mechanism, Counting)
    if variant.unique_users:
        kind = Actives
    return kind(variant, mechanism or built(variant))
