"""Flaws planted in mechanisms: an attack that does not find them shows nothing.

half noise          the mechanism is built for four times its rho, or twice its pure epsilon: all noise has half its standard deviation
threshold           a new label is shown one count too early
apart               the noise of all counters of a sketch together is left out
shared noise        two items of a stream key have the same noise
silent total        of ranks, the node of all buckets has no noise
forgotten budget    what was spent is forgotten after every tick
forgotten count     a shown item's running count begins again, under the same noise
not sticky          that an item was shown is forgotten; harmless: its tests were paid for at every tick, and counts shown or hidden by
                    their noise are processing of what is released with them
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec import structs

from tests.attacks.cases import TICKS, Case
from tests.attacks.runs import AT_ONCE, tags_of
from workers.arrays.types import Tags, Words
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.ranks import ranks_of
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import Answers, Mechanism, Noise, Release, State
from workers.mechanisms.noise.keyed import Cell, NoiseStream
from workers.mechanisms.one_shot.algorithms import Noisy
from workers.mechanisms.one_shot.pay import PayState, PayWhatYouGet
from workers.mechanisms.one_shot.sketches import TickMisraGries, TickMisraGriesConfig
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.base import UnkBase
from workers.runtime.frozen import read_only

# Cases of every mechanism but `two_level_k`, whose attacks are too weak for it.
HALVED = (
    *(
        "known_base lifted",
        "unk_base",
        "known_gauss",
        "positive_gauss",
        "positive_laplace",
    ),
    *(
        "unk_gauss",
        "limit_dom_laplace",
        "known_gumbel",
        "limit_dom",
        "pay_what_you_get",
    ),
    *("meta known_gauss", "sparse_gumb tight", "misra_gries pmg", "misra_gries merge"),
    *("misra_gries_tick pmg", "misra_gries_tick gshm", "misra_gries_tick pure"),
    *("misra_gries_tick pamg", "known_base ranks"),
    *("misra_gries pure", "bounded_max zcdp", "doubling zcdp", "two_level zcdp"),
)
# A label that the event does not move, and one that it moves.
SHARED = MappingProxyType(
    dict.fromkeys(("known_base lifted", "unk_base", "known_gauss"), (b"c", b"a"))
    | dict.fromkeys(("positive_gauss", "positive_laplace"), (b"g", b"a"))
    | dict.fromkeys(("unk_gauss", "limit_dom_laplace"), (b"g", b"a"))
    | dict.fromkeys(("meta known_gauss", "meta limit_dom"), (b"c", b"a"))
    | {"misra_gries pmg": (b"k01", b"k00")}
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """A planted flaw, and whether it breaks the claim."""

    name: str
    case: Case
    breaks: bool = True


def half_noise(config: HistogramConfig, unit: str) -> Mechanism:
    """Build a mechanism that spends four times its rho, or twice its pure epsilon."""
    right = build(config, unit)
    more = {"epsilon": None, "rho": 4 * right.cost().rho}
    if config.pure or config.about.needs_epsilon:
        more = {"epsilon": 2 * right.guarantee.epsilon}
    return build(structs.replace(config, **more), unit)


class EarlyUnkBase(UnkBase):
    def threshold(self, t: int) -> int | None:
        threshold = super().threshold(t)
        return None if threshold is None else threshold - 1


def early(config: HistogramConfig, unit: str) -> Mechanism:
    """Build a one-shot mechanism with a threshold one too low."""
    right = Noisy._least_threshold

    def lower(noisy: Noisy, whole: int, releases: int, delta: float) -> int:
        return right(noisy, whole, releases, delta) - 1

    with patch.object(Noisy, "_least_threshold", lower):
        return build(config, unit)


class EarlySketches(TickMisraGries):
    """Sketches with a threshold one too low."""

    def __init__(self, config: TickMisraGriesConfig, unit: str = "event") -> None:
        super().__init__(config, unit)
        self.algorithm = copy(self.algorithm)
        vars(self.algorithm)["threshold"] = (self.algorithm.threshold or 0) - 1


class SketchesApart(TickMisraGries):
    """Sketches whose counters have no noise in common."""

    def __init__(self, config: TickMisraGriesConfig, unit: str = "event") -> None:
        super().__init__(config, unit)
        law = copy(self.algorithm.law)
        vars(law)["shared"] = False
        self.algorithm = copy(self.algorithm)
        vars(self.algorithm)["law"] = law


class SilentTotal(NoiseStream):
    """A stream whose words give some rows no noise."""

    def __init__(self, stream: NoiseStream, silent: Tags) -> None:
        self._stream = stream
        self._silent = read_only(np.unique(silent[:, 0]))

    def words(self, tags: Tags, cell: Cell) -> Words:
        return self._without(self._stream.words(tags, cell), tags)

    def chunk(self, tags: Tags, cells: Words) -> Words:
        return self._without(self._stream.chunk(tags, cells), tags)

    def _without(self, words: Words, tags: Tags) -> Words:
        rows = words.copy().reshape(-1, len(tags), 2)
        rows[:, np.isin(tags[:, 0], self._silent)] = np.uint64(1) << np.uint64(63)
        return rows.reshape(-1, 2)


class SharedStream(NoiseStream):
    """A stream that gives one label the words of another one."""

    def __init__(self, stream: NoiseStream, tags: Tags, of: Tags) -> None:
        order = np.argsort(tags[:, 0])
        self._stream = stream
        self._tags = read_only(tags[order])
        self._of = read_only(of[order])

    def words(self, tags: Tags, cell: Cell) -> Words:
        return self._stream.words(self._mapped(tags), cell)

    def chunk(self, tags: Tags, cells: Words) -> Words:
        return self._stream.chunk(self._mapped(tags), cells)

    def _mapped(self, tags: Tags) -> Tags:
        place = np.searchsorted(self._tags[:, 0], tags[:, 0])
        place = np.minimum(place, len(self._tags) - 1)
        found: Tags = np.where(
            (self._tags[place] == tags).all(axis=1)[:, None], self._of[place], tags
        )
        return np.ascontiguousarray(found)


def shared_noise(case: Case, label: bytes, other: bytes) -> Case:
    """Give a label the noise of another one."""
    tags = tags_of(tuple(case.alike), min(case.runs, AT_ONCE))
    columns = [
        np.ascontiguousarray(tags[:, case.labels.index(one)]) for one in (label, other)
    ]

    def noise_of(mechanism: Mechanism, stream: NoiseStream) -> Noise:
        return mechanism.noise(SharedStream(stream, *columns))

    return replace(case, noise_of=noise_of)


def silent_total(case: Case) -> Case:
    """Leave out the noise of the node of all buckets."""
    ranks = ranks_of(len(case.config.declared))
    of_keys = tags_of(tuple(case.alike), min(case.runs, AT_ONCE))[:, -1]
    totals = ranks.tags(np.ascontiguousarray(of_keys))[:: len(ranks.nodes)]

    def noise_of(mechanism: Mechanism, stream: NoiseStream) -> Noise:
        return mechanism.noise(SilentTotal(stream, totals))

    return replace(case, noise_of=noise_of)


class ForgetfulPay(PayWhatYouGet):
    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Answers]:
        if isinstance(state, PayState):
            state.left = [[self.config.labels, self.config.queries] for _ in state.left]
        return super().step(state, t, contributions, noise)


class RestartingUnkBase(UnkBase):
    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        if t == TICKS:
            state.ledger.counts[:] = 0
        return super().step(state, t, contributions, noise)


class ForgetfulUnkBase(UnkBase):
    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        state.ledger.shown[:] = 0
        return super().step(state, t, contributions, noise)


def flaws(cases: Mapping[str, Case]) -> list[Flaw]:
    """Return every flaw in the mechanisms that it applies to."""
    found = []

    def add(flaw: str, name: str, breaks: bool = True, **changes: Any) -> None:
        found.append(Flaw(flaw, replace(cases[name], **changes), breaks))

    unnamed = [name for name in cases if name in MECHANISMS and name not in HALVED]
    for name in (*HALVED, *unnamed):
        add("half noise", name, make=half_noise)
    add("threshold", "unk_base new", make=EarlyUnkBase)
    add("threshold", "positive_gauss new", make=early)
    for name in SHARED:
        found.append(Flaw("shared noise", shared_noise(cases[name], *SHARED[name])))
    for name in ("misra_gries_tick new", "misra_gries_tick gshm, new"):
        add("threshold", name, make=EarlySketches)
    add("apart", "misra_gries_tick lowered", make=SketchesApart)
    found.append(Flaw("silent total", silent_total(cases["known_base ranks"])))
    found.append(Flaw("forgotten budget", asked_on(cases["pay_what_you_get"])))
    add("forgotten count", "unk_base", make=RestartingUnkBase)
    for name in ("unk_base", "unk_base new"):
        add("not sticky", name, breaks=False, make=ForgetfulUnkBase)
    return found


def asked_on(case: Case) -> Case:
    """Ask eight times on a budget of one answer."""
    once = structs.replace(case.config, labels=2, queries=1, horizon=8)
    stream = [case.stream[0], *({} for _ in range(7))]
    runs = min(case.runs, 2_000)
    return replace(case, make=ForgetfulPay, config=once, stream=stream, runs=runs)
