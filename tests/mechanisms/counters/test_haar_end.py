"""The haar counter with `end_share`: the last tick has the root's noise alone."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.counters.test_haar import sigmas
from tests.mechanisms.small import STREAM, numbered
from workers.mechanisms.accounting import rho_of
from workers.mechanisms.counters.counter import make_counter
from workers.mechanisms.counters.haar import HaarCounter


@pytest.mark.parametrize("share", [0.01, 0.6, 0.99])
@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 8, 21, 33, 64, 100])
def test_the_last_tick_has_the_noise_of_the_root_alone(horizon: int, share: float) -> None:
    """The benefit of the share: an integer of variance 1 / (2 rho e), for any horizon."""
    counter = HaarCounter(horizon, 0.1, share)
    assert counter.cells(horizon) == {(0, 0): (Fraction(1), sigmas(counter)[0])}
    assert counter.sd(horizon) == math.sqrt(counter.variance(horizon))
    tags = numbered("root", 1000)
    root = np.empty(1000, dtype=counter._tables[0].dtype)
    counter._tables[0].draw(STREAM, (0, 0), tags, root)
    assert counter.draw(STREAM, horizon, tags).tolist() == root.tolist()


def test_the_figures_are_those_of_the_design() -> None:
    """DP-SQLP: last and worst sd, with and without, to the digits of docs/mechanisms.md."""
    rho_item = rho_of(6.0, 5e-10) / 32
    for horizon, share, last, worst in (
        (100, None, 17.3, 19.5),
        (100, 0.6, 8.0, 24.9),
        (1000, None, 21.1, 26.0),
        (1000, 0.6, 8.0, 34.5),
    ):
        counter = HaarCounter(horizon, rho_item, share)
        sds = [counter.sd(t) for t in range(1, horizon + 1)]
        assert sds[-1] == pytest.approx(last, abs=0.06)
        assert max(sds) == pytest.approx(worst, abs=0.06)


def test_nothing_changes_where_no_share_is_given() -> None:
    """Existing histograms keep their ids, and so their noise: the parameters gain no name."""
    for horizon in (100, 128, None):
        names = ["kind", "horizon", "levels", "sigma_squared", "table_version"]
        assert list(make_counter("haar", horizon, 0.1).public()) == names
    assert HaarCounter(100, 0.1).offset == 0
    given = make_counter("haar", 100, 0.1, end_share=0.6).public()
    assert (given["offset"], given["end_share"]) == (28, "0.6")
