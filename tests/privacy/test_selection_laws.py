"""Selecting mechanisms, from keyed words to snapshots, against exact enumeration.

Chi-squared over some 6,000 stream keys and ticks, false-alarm rate 1e-4; planted noise a tenth too
wide must fail. The laws come from the papers' definitions and the budget.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

from tests.contract.probe import Probe
from tests.contract.stage import Run
from workers.mechanisms.mechanism import (
    Answers,
    Items,
    Mechanism,
    Release,
    WindowReleases,
)
from workers.mechanisms.order_statistics.engine import (
    OrderStatistics,
    OrderStatisticState,
)
from workers.mechanisms.registry import MECHANISMS, build

pytestmark = pytest.mark.slow

Law = Mapping[object, float]
FALSE_ALARM = 1e-4
WIDER = Fraction(11, 10)
RHO = 1.0
DELTA = 1e-4


def made(name: str, **changes: object) -> Mechanism:
    """Return a mechanism with easily derived scales: an event has one item, counted once."""
    settings: dict[str, Any] = {
        "name": "h",
        "tick_ms": 1,
        "max_items": 1,
        "keys": "public",
    }
    settings |= {"delta": DELTA} | changes
    return build(MECHANISMS[name](**settings))


def pvalue(observed: Mapping[object, int], law: Law) -> float:
    """Return Pearson's p-value; outcomes expected fewer than twenty times are pooled."""
    from scipy.stats import chisquare

    total = sum(observed.values())
    assert observed.keys() <= law.keys() and math.fsum(law.values()) == pytest.approx(
        1, abs=1e-9
    )
    pairs = sorted((total * p, observed.get(outcome, 0)) for outcome, p in law.items())
    rare = [pair for pair in pairs if pair[0] < 20]
    pairs = [pair for pair in pairs if pair[0] >= 20]
    if rare:
        expected, seen = (math.fsum(column) for column in zip(*rare, strict=True))
        pairs[0] = (pairs[0][0] + expected, pairs[0][1] + int(seen))
    return float(
        chisquare(
            [seen for _, seen in pairs], [expected for expected, _ in pairs]
        ).pvalue
    )


def agrees(observed: Callable[[Probe], Mapping[object, int]], law: Law) -> None:
    """Check that the law holds, and is rejected for planted noise a tenth too wide."""
    assert pvalue(observed(Probe(keep_values=False)), law) > FALSE_ALARM
    assert (
        pvalue(observed(Probe(keep_values=False, factor=WIDER**2)), law) < FALSE_ALARM
    )


Order = tuple[object, ...]


def peeled(
    weights: Mapping[object, float], k: int, end: object = None
) -> dict[Order, float]:
    """Return the probability of every order of k picks; `end` stops them, inclusive."""
    law: dict[Order, float] = {}
    for order in itertools.permutations(weights, min(k, len(weights))):
        sequence = order[: order.index(end) + 1] if end in order else order
        left = math.fsum(weights.values())
        probability = 1.0
        for pick in sequence:
            probability *= weights[pick] / left
            left -= weights[pick]
        law[sequence] = probability
    return law


def together(law: Mapping[Order, float], outcome: Callable[[Order], object]) -> Law:
    found: dict[object, float] = {}
    for order, probability in law.items():
        found[outcome(order)] = found.get(outcome(order), 0.0) + probability
    return found


def weighed(scores: Mapping[Any, int], b: float) -> dict[object, float]:
    return {
        name: math.exp((score - max(scores.values())) / b)
        for name, score in scores.items()
    }


def shown(
    mechanism: Mechanism, counts: Mapping[str, int], probe: Probe, keys: int, ticks: int
) -> Counter[object]:
    """Count one tick's published outcomes: an answer's labels in order, else their set."""
    names = tuple(f"k{i}" for i in range(keys))
    observed = Counter[object]()
    with probe.watching():
        run = Run(mechanism, 11, names)
        for t in range(1, ticks + 1):
            asks = mechanism.kind != "pay_what_you_get" or t == 1
            again = asks and not isinstance(mechanism.init(), OrderStatisticState)
            release = run.step(t, dict.fromkeys(names, counts) if again else {})
            assert not isinstance(release, WindowReleases), "of an epoch"
            if isinstance(release, Answers):
                for answer in release.of_key.values():
                    observed[
                        (*cast(list[str], answer["labels"]), answer["complete"])
                    ] += 1
                continue
            of_key: list[set[str]] = [set() for _ in names]
            for key, label in labels_of(run, release):
                of_key[key].add(label)
            observed.update(frozenset(labels) for labels in of_key)
    return observed


def labels_of(run: Run, release: Release | Items) -> list[tuple[int, str]]:
    if isinstance(release, Items):
        labels = (label.decode() for label in release.labels)
        return list(zip(release.keys.tolist(), labels, strict=True))
    rows = release.rows.tolist()
    columns = run.state.ledger
    return [(int(columns.keys[row]), columns.label(row).decode()) for row in rows]


COUNTS = {"a": 606, "b": 605, "c": 603, "d": 600}


def test_the_exponential_mechanism_publishes_its_law() -> None:
    """known_gumbel (000 Alg. 5): k picks share rho / 2, each (1/b)^2/8: b = sqrt(k / (4 rho))."""
    k = 2
    rho = RHO / 8
    mechanism = made("known_gumbel", domain=tuple(COUNTS), k=k, rho=rho, horizon=20)
    law = together(peeled(weighed(COUNTS, math.sqrt(k / (4 * rho))), k), frozenset)
    agrees(lambda probe: shown(mechanism, COUNTS, probe, 300, 20), law)


def height(scale: float, delta: float, largest: int = 1) -> int:
    """Return BOTTOM's margin above h_(kbar+1): Dinf plus the logistic's 1 - delta quantile."""
    return largest + math.ceil(scale * math.log(1 / delta - 1))


def test_limit_dom_publishes_labels_until_bottom_as_enumerated() -> None:
    """002 Alg. 1, kbar = 3 largest of 4: fewer than two labels exactly where BOTTOM came."""
    k = 2
    kbar = 3
    rho = RHO / 8
    b = math.sqrt(k / (4 * rho))
    above = height(b, DELTA / 2)  # half of delta is for discovery
    counts = {"a": 20 + above + 2, "b": 20 + above, "c": 20 + above - 2, "d": 20}
    mechanism = made("limit_dom", k=k, kbar=kbar, rho=rho, horizon=20)
    scores: dict[object, int] = {label: counts[label] for label in "abc"}
    law = together(
        peeled(weighed(scores | {None: 20 + above}, b), k, end=None),
        lambda order: frozenset(order) - {None},
    )
    agrees(lambda probe: shown(mechanism, counts, probe, 300, 20), law)


def test_pay_what_you_get_publishes_its_labels_in_the_order_of_the_law() -> None:
    """002 Alg. 2: k* picks paid, b = sqrt(k* / (8 rho)); each of four answers has delta's half."""
    k = 2
    kbar = 3
    answers = 4
    rho = 0.5
    b = math.sqrt(8 / (8 * rho))
    above = height(b, DELTA / 2 / answers)
    counts = {"a": 9 + above + 2, "b": 9 + above, "c": 9 + above - 1, "d": 9}
    mechanism = made(
        "pay_what_you_get",
        k=k,
        kbar=kbar,
        labels=8,
        rho=rho,
        queries=answers,
        every=1,
        horizon=answers,
    )
    scores: dict[object, int] = {label: counts[label] for label in "abc"}
    law = together(
        peeled(weighed(scores | {None: 9 + above}, b), k, end=None),
        lambda order: (
            *(label for label in order if label is not None),
            None not in order,
        ),
    )
    agrees(lambda probe: shown(mechanism, counts, probe, 1_500, answers), law)


def stopping(
    values: list[int], threshold: int, b_tau: float, b_mu: float, one_sided: bool
) -> Law:
    """Return the law of AboveThreshold's stopping tick (None: never), summed over tau and mu_t."""

    def noise(b: float) -> tuple[np.ndarray, np.ndarray]:
        reach = math.ceil(45 * b)
        x = np.arange(0 if one_sided else -reach, reach + 1)
        weights = np.exp(-np.abs(x) / b)
        return x, weights / weights.sum()

    (tau, chances) = noise(b_tau)
    (mu, masses) = noise(b_mu)
    law: dict[object, float] = {}
    going = chances
    for t, value in enumerate(values, 1):
        above = np.array([masses[mu > bar - value].sum() for bar in threshold + tau])
        law[t] = float((going * above).sum())
        going = going * (1 - above)
    return law | {None: float(going.sum())}


@pytest.mark.parametrize("name", ["bounded_max", "doubling"])
@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
def test_above_threshold_stops_at_the_ticks_of_its_law(
    name: str, accounting: str
) -> None:
    """Algorithm 2's first interval, Algorithm 5's first segment: Lap(4/eps), Lap(8/eps) as
    printed; zCDP by its own scales.
    """
    epsilon = 4.0
    ticks = 6
    keys = 2_500
    inner = name == "bounded_max"
    # Of a segment's ticks, a tenth more shows less.
    seeds = 1 if inner else 2
    own: dict[str, Any] = {"accounting": accounting, "horizon": ticks, "query": "max"}
    own |= {"c_max": 2_000} if inner else {}
    mechanism = made(name, domain=("a", "b"), epsilon=epsilon, **own)
    assert isinstance(mechanism, OrderStatistics)
    b_tau = 4 / epsilon
    b_mu = 8 / epsilon
    if accounting == "zcdp":
        test = (mechanism.inner_in_use if inner else mechanism.segments_in_use).test
        b_tau = float(test.tau_scale)
        b_mu = float(test.mu_scale)
        assert (1 / b_tau + 2 / b_mu) ** 2 / 8 <= mechanism.cost().rho
    threshold = (
        mechanism.intervals(1).step if inner else mechanism.segments_in_use.threshold(1)
    )
    # It may stop at the first ticks by noise alone, and has all but passed by the last.
    start = max(1, threshold - round(5 * b_mu))
    values = [start + round(1.5 * b_mu) * t for t in range(ticks)]
    law = stopping(values, threshold, b_tau, b_mu, accounting == "zcdp")

    def observed(probe: Probe) -> Counter[object]:
        names = tuple(f"k{i}" for i in range(keys))
        found = Counter[object]()
        with probe.watching():
            for seed in range(seeds):
                run = Run(mechanism, seed, names)
                stopped: dict[int, int] = {}
                for t in range(1, ticks + 1):
                    added = values[t - 1] - (values[t - 2] if t > 1 else 0)
                    run.step(t, {name: {"a": added} for name in names})
                    assert isinstance(run.state, OrderStatisticState)
                    for key, one in run.state.by_key.items():
                        if (one.interval if inner else one.segment) > 1:
                            stopped.setdefault(key, t)
                found.update(stopped.get(key) for key in range(keys))
        return found

    agrees(observed, law)
