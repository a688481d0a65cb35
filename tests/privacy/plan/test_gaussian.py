"""Gaussian costs: budgets, sums, people and ceilings convert them exactly, and nothing else."""

import math
from dataclasses import replace
from functools import cache

import pytest
from msgspec import structs

from tests.privacy.plan.test_noise import LABELS, config
from tests.privacy.spending.test_spent import state
from workers.mechanisms.accounting import (
    PrivacyCost,
    delta_of,
    epsilon_of,
    gaussian_epsilon,
    gaussian_rho,
    rho_of,
)
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.base import (
    KnownBase,
    KnownBaseConfig,
    UnkBase,
    UnkBaseConfig,
)
from workers.privacy import ceiling
from workers.privacy.model import Span
from workers.privacy.total import (
    DAY_MS,
    EVENTS,
    Charge,
    compose,
    epsilon_at,
    group_failure,
    group_loss,
    spans_of,
)

pytestmark = pytest.mark.slow


KNOWN = config(KnownBaseConfig, domain=LABELS, epsilon=1.0, delta=1e-9)
UNK = config(UnkBaseConfig, epsilon=1.0, delta=1e-9)


class PlainKnown(KnownBase):
    about = replace(KnownBaseConfig.about, gaussian=False)


class PlainUnk(UnkBase):
    about = replace(UnkBaseConfig.about, gaussian=False)


@cache
def built(own: HistogramConfig, *, gaussian: bool = True) -> Mechanism:
    if isinstance(own, UnkBaseConfig):
        return UnkBase(own) if gaussian else PlainUnk(own)
    assert isinstance(own, KnownBaseConfig)
    return KnownBase(own) if gaussian else PlainKnown(own)


def conversion(cost: PrivacyCost) -> float:
    """Return the part of delta that converts rho."""
    return cost.delta - math.fsum(part for _, part in cost.failures)


def gaussian(rho: float, delta: float = 1e-9, times: int = 1) -> PrivacyCost:
    epsilon = gaussian_epsilon(rho, delta)
    return PrivacyCost(rho, epsilon, delta, gaussian=True, times=times)


# ---- a mechanism's budget ------------------------------------------------------------------------


@pytest.mark.parametrize("own", [KNOWN, UNK], ids=lambda own: own.mechanism)
def test_a_gaussian_mechanism_has_more_rho_for_the_same_epsilon(
    own: HistogramConfig,
) -> None:
    cost = built(own).cost()
    plain = built(own, gaussian=False).cost()
    assert (cost.gaussian, plain.gaussian) == (True, False)
    assert (cost.epsilon, cost.delta) == (1.0, 1e-9)
    parts = tuple(part for part in plain.failures if part[0] != "numerical")
    assert cost.failures == parts
    assert cost.rho <= gaussian_rho(1.0, conversion(cost)) * (1 + 1e-8)
    assert cost.rho > 1.09 * plain.rho
    assert built(own).sd(64) < 0.96 * built(own, gaussian=False).sd(64)
    assert (
        gaussian_epsilon(cost.rho, conversion(cost))
        <= 1.0
        < epsilon_of(cost.rho, cost.delta)
    )


@pytest.mark.parametrize("own", [KNOWN, UNK], ids=lambda own: own.mechanism)
def test_a_gaussian_mechanism_has_a_smaller_epsilon_for_the_same_rho(
    own: HistogramConfig,
) -> None:
    given = structs.replace(own, epsilon=None, rho=0.02)
    cost = built(given).cost()
    plain = built(given, gaussian=False).cost()
    assert cost.epsilon == pytest.approx(
        gaussian_epsilon(0.02, conversion(cost)), rel=1e-8
    )
    assert cost.epsilon < 0.96 * plain.epsilon


def test_the_description_says_it_and_that_of_others_is_as_before() -> None:
    """The mechanism id covers the description, so older epochs keep their ids."""
    assert built(KNOWN).public()["accounting"] == "gaussian"
    assert "accounting" not in built(KNOWN, gaussian=False).public()


# ---- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 7])
def test_gaussian_costs_add_up_to_one_gaussian_cost(times: int) -> None:
    costs = [gaussian(rho, 1e-10, times) for rho in (0.004, 0.02, 0.1)]
    found = compose(costs, 1e-8)
    assert found.epsilon == pytest.approx(
        gaussian_epsilon(0.124 * times, 1e-8), rel=2e-9
    )
    assert found.epsilon == epsilon_at(costs, 1e-8)
    assert found.rho == pytest.approx(0.124 * times)


def test_a_sum_is_that_of_an_independent_accountant() -> None:
    """dp_accounting convolves the three losses numerically."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    rhos = (0.004, 0.02, 0.1)
    step = 1e-4
    first, *others = (
        from_gaussian_mechanism(
            1 / math.sqrt(2 * rho), value_discretization_interval=step
        )
        for rho in rhos
    )
    for other in others:
        first = first.compose(other)
    expected = first.get_epsilon_for_delta(1e-8)
    found = epsilon_at([gaussian(rho, 1e-10) for rho in rhos], 1e-8)
    assert found is not None and found <= expected * (1 + 1e-6)
    assert expected <= found + 2 * step * len(rhos)


def test_with_one_cost_that_is_not_gaussian_a_sum_is_zcdp() -> None:
    for other in (PrivacyCost(0.1, 9.0, 1e-9), replace(gaussian(0.1), gaussian=False)):
        costs = [gaussian(0.004), gaussian(0.02), other]
        expected = epsilon_of(0.124, 4e-9)
        assert compose(costs, 4e-9).epsilon == pytest.approx(expected, rel=2e-9)
        assert expected > 1.05 * gaussian_epsilon(0.124, 4e-9)


def test_beside_a_pure_epsilon_the_others_are_converted_exactly() -> None:
    pure = PrivacyCost(0.5, 0.1, 1e-12, failures=(("numerical", 1e-12),), pure=True)
    costs = [gaussian(0.02), gaussian(0.1), pure]
    found = compose(costs, 3e-9)
    left = 3e-9 - 1e-12
    assert found.epsilon == pytest.approx(0.1 + gaussian_epsilon(0.12, left), rel=1e-8)


def test_a_sum_with_a_gaussian_cost_is_never_below_a_part_of_it() -> None:
    """The ceiling skips windows that hold a part of another."""
    costs = [gaussian(0.02), gaussian(1e-9), PrivacyCost(1e-15, 1.0, 0.0)]
    sums = [epsilon_at(costs[:n], 3e-9) for n in (1, 2, 3)]
    found = [one for one in sums if one is not None]
    assert found == sorted(found) and len(found) == 3


# ---- people --------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("epochs", [1, 30])
def test_a_person_shifts_gaussian_noise_by_as_much_as_all_events(
    events: int, epochs: int
) -> None:
    cost = built(UNK).cost()
    found, delta = group_loss([replace(cost, times=epochs)], events)
    expected = gaussian_epsilon(epochs * events**2 * cost.rho, conversion(cost))
    if found is None:
        assert delta == 1
    else:
        assert found == pytest.approx(expected, rel=2e-8)
        assert delta >= epochs * group_failure(UNK.delta / 2, cost.rho, events)


def test_people_with_gaussian_and_other_keys_lose_no_more_than_the_table_says() -> None:
    """Such a mixture is zCDP only: close to one key's events it can exceed that key's figure."""
    exact = gaussian(gaussian_rho(1.0, 1e-9))
    other = PrivacyCost(rho_of(0.99, 1e-9), 0.99, 1e-9)
    groups = [[Charge(exact, DAY_MS)], [Charge(other, DAY_MS)]]

    def excess(*tables: tuple[Span, ...]) -> float:
        """Return the largest delta of a mixture at the largest epsilon of the tables."""
        worst = 0.0
        for spans in zip(*tables, strict=True):
            for losses in zip(*(span.losses for span in spans), strict=True):
                k = losses[0].events
                e = spans[0].epochs
                found = [loss.epsilon for loss in losses if loss.epsilon is not None]
                if len(found) < len(losses) or k * e == 1:
                    continue
                # In one epoch all events have the other key; or in every epoch one of them has.
                rhos = [exact.rho * k**2 * (e - 1) + other.rho * k**2] if e > 1 else []
                rhos += [e * (exact.rho * (k - 1) ** 2 + other.rho)]
                worst = max(worst, *(delta_of(rho, max(found)) / 1e-9 for rho in rhos))
        return worst

    table = spans_of(*groups)
    assert excess(table) <= 1 + 1e-6
    # One event in one epoch has one key.
    assert table[0].losses[0].epsilon == exact.epsilon
    # The largest of each key's own figures would understate the mixtures.
    assert excess(*map(spans_of, groups)) > 2


def test_mechanisms_named_as_gaussian_are_those_that_are() -> None:
    """A snapshot names only its mechanism; a wrong name would understate its failures."""
    for name, kind in MECHANISMS.items():
        assert kind.about.gaussian is (name in ("known_base", "unk_base"))
    for own in (KNOWN, UNK):
        assert build(own).cost().gaussian is own.about.gaussian


# ---- ceilings ------------------------------------------------------------------------------------


def test_a_ceiling_reads_from_the_state_what_is_gaussian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Generations of before have no mark, and stay zCDP."""
    from tests.privacy.spending import test_spent

    def charge(*, gaussian: bool) -> Charge:
        monkeypatch.setattr(
            test_spent, "build", lambda own, _: built(own, gaussian=gaussian)
        )
        test_spent._fresh.cache_clear()
        [found] = ceiling.charges_of("w", state([(UNK, 1, 2)]))
        test_spent._fresh.cache_clear()
        assert found.cost == built(UNK, gaussian=gaussian).cost()
        assert found.cost.gaussian is gaussian
        return found

    before = charge(gaussian=False)
    after = charge(gaussian=True)
    limit = ceiling.Ceiling("event", 9.0, 4e-9, None)
    pair = [replace(after, key_field=key) for key in ("a", "b")]
    exact = gaussian_epsilon(2 * after.cost.rho, 4e-9 - 1e-9)
    assert limit.epsilon_of(pair, [1, 1]) == pytest.approx(exact, rel=1e-8)
    mixed = [pair[0], replace(before, key_field="b")]
    rho = after.cost.rho + before.cost.rho
    expected = epsilon_of(rho, 4e-9 - 1e-9 - 1e-15)
    assert limit.epsilon_of(mixed, [1, 1]) == pytest.approx(expected, rel=1e-8)


def test_a_suggested_epsilon_is_converted_as_the_mechanism_would() -> None:
    cost = built(UNK).cost()
    assert ceiling._scaled(cost, 0.5).epsilon == pytest.approx(
        gaussian_epsilon(cost.rho / 2, conversion(cost)), rel=1e-8
    )
