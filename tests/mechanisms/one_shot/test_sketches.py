"""misra_gries_tick, and the sketches of meta: what is shown, what is refused, what it costs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.mechanisms.small import KEY, SMALL, STREAM, counted
from workers.arrays.types import Longs, Tags
from workers.mechanisms.mechanism import Items, Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries, MisraGriesConfig
from workers.mechanisms.misra_gries.releases import PmgLaw, SparseGaussianLaw
from workers.mechanisms.one_shot.algorithms import OneShotNoise, Place, Sketched
from workers.mechanisms.one_shot.sketches import TickMisraGries, TickMisraGriesConfig
from workers.mechanisms.registry import build
from workers.mechanisms.running.meta import Meta, MetaConfig
from workers.privacy.total import stated_cost

DOMAIN = ("a", "b", "c", "d")


class Quiet(OneShotNoise):
    """Noise of zero."""

    def items(self, address: Place, tags: Tags) -> Longs:
        return np.zeros(len(tags), dtype=np.int64)

    def shared(self, address: Place, key_tag: Tags) -> int:
        return 0


QUIET = Quiet(STREAM, None)


def show(mechanism: Mechanism, t: int, counts: Mapping[bytes, int]) -> dict[bytes, int]:
    """Step a tick of the only stream key without noise; return what it shows."""
    parts = [counted(counts)] if counts else []
    state = mechanism.init()
    state.key_tags = KEY.tags("k", [b"k"])
    _, release = mechanism.step(state, t, parts, QUIET)
    assert isinstance(release, Items)
    return dict(zip(release.labels, release.counts.tolist(), strict=True))


def config(**changes: object) -> TickMisraGriesConfig:
    settings: dict[str, Any] = SMALL | {"size": 2} | changes
    return TickMisraGriesConfig(**settings)


def meta(**changes: object) -> MetaConfig:
    settings: dict[str, Any] = SMALL | {"size": 2, "algorithm": "pmg"} | changes
    return MetaConfig(**settings)


def test_a_tick_shows_what_its_sketch_holds_above_the_threshold() -> None:
    mechanism = build(config())
    bar = mechanism.threshold(1) or 0
    # Two counters: each of the five "c" is worth one less of "a" and "b".
    counts = {b"a": 6 + bar, b"b": 5 + bar, b"c": 5}
    assert show(mechanism, 1, counts) == {b"a": 1 + bar}
    assert show(mechanism, 2, {b"b": 1 + bar, b"c": bar}) == {b"b": 1 + bar}
    assert show(mechanism, 3, {}) == {}


def test_gshm_subtracts_the_next_largest_count() -> None:
    mechanism = build(config(release="gshm", max_items=3))
    bar = mechanism.threshold(1) or 0
    counts = {b"a": 9 + bar, b"b": 4 + bar, b"c": 4}
    assert show(mechanism, 1, counts) == {b"a": 5 + bar}


def test_pure_shows_the_largest_of_the_domain_whatever_occurs() -> None:
    mechanism = build(config(release="pure", domain=DOMAIN, horizon=1))
    assert isinstance(mechanism, TickMisraGries)
    assert mechanism.most_shown() == 2 and mechanism.threshold(1) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"epsilon": None, "rho": 0.1}, "epsilon is missing"),
        ({"domain": DOMAIN}, 'domain is set: release = "pmg" has none'),
        ({"release": "pure"}, 'release = "pure" needs one of them'),
        ({"release": "gshm", "max_count": 2}, "needs max_count = 1"),
        ({"release": "merge"}, "merge"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"epsilon": None, "rho": 0.1}, 'algorithm = "pmg": needs epsilon, not rho'),
        ({"size": None}, 'size is missing: algorithm = "pmg" needs it'),
        ({"algorithm": "positive_gauss"}, 'size is set: algorithm = "positive_gauss"'),
        ({"algorithm": "pure"}, 'domain is missing: algorithm = "pure" needs it'),
        ({"algorithm": "gshm", "max_count": 2}, "needs max_count = 1"),
    ],
)
def test_meta_refuses_the_same(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        meta(**changes)


def test_epsilons_of_the_levels_of_meta_add_up() -> None:
    mechanism = build(meta(radix=2))
    assert isinstance(mechanism, Meta) and isinstance(mechanism.algorithm, Sketched)
    law = mechanism.algorithm.law
    assert isinstance(law, PmgLaw)
    levels = mechanism.levels
    assert levels > 1
    assert 0.9999 < levels / law.scale <= mechanism.guarantee.epsilon == 1.0
    assert levels * law.delta <= mechanism.guarantee.delta


def test_an_epoch_of_any_length_costs_one_release() -> None:
    short, long = (build(config(horizon=ticks)) for ticks in (1, 1 << 20))
    assert short.guarantee == long.guarantee
    assert short.threshold(1) == long.threshold(1)


def test_gshm_in_meta_is_composed_in_zcdp() -> None:
    mechanism = build(meta(algorithm="gshm", radix=2))
    assert isinstance(mechanism, Meta) and isinstance(mechanism.algorithm, Sketched)
    law = mechanism.algorithm.law
    assert isinstance(law, SparseGaussianLaw)
    spent = mechanism.levels * 2 / (2 * float(law.sigma_squared))
    assert mechanism.cost().rho == pytest.approx(spent, rel=1e-6)
    discovery = dict(mechanism.cost().failures)["discovery"]
    assert mechanism.levels * law.discovery <= discovery


@pytest.mark.parametrize("release", ["pmg", "gshm", "pure"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_a_snapshot_states_no_less_than_the_cost(release: str, epsilon: float) -> None:
    """Readers of a snapshot know epsilon, delta and rho alone, and not the release."""
    listed = {"domain": DOMAIN} if release == "pure" else {}
    mechanism = build(config(release=release, epsilon=epsilon, **listed))
    cost = mechanism.cost()
    stated = stated_cost(mechanism.kind, cost.rho, cost.epsilon, cost.delta)
    assert (stated.rho, stated.epsilon, stated.delta) == (
        cost.rho,
        epsilon,
        cost.delta,
    )
    assert stated.pure
    # All of delta is a failure, whatever part of it is one.
    assert dict(stated.failures) == {"discovery": cost.delta}


def test_epsilons_that_add_up_need_fewer_levels_and_lower_thresholds() -> None:
    """The figures of decision 0039, 5."""
    found = {}
    for release in ("pmg", "pmg_laplace"):
        settings: dict[str, Any] = SMALL | {"size": 16, "delta": 1e-9}
        mechanism = build(MisraGriesConfig(release=release, **settings))
        assert isinstance(mechanism, MisraGries)
        found[release] = mechanism.tree.levels, mechanism.threshold(1)
    assert found == {"pmg": (4, 110), "pmg_laplace": (2, 48)}
    with pytest.raises(ValueError, match='"pmg_laplace": needs epsilon, not rho'):
        MisraGriesConfig(
            release="pmg_laplace", **(settings | {"epsilon": None, "rho": 0.1})
        )
