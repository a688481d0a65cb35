"""`budget` output on ceilings and on several workers together."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import ROOT
from tests.privacy.ceiling.test_ceiling import daily, with_ceiling
from tests.privacy.spending.test_spent import settings, state, text_of, words
from workers.cli import execute
from workers.mechanisms.accounting import PrivacyCost
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import build
from workers.privacy.ceiling import charges_of
from workers.privacy.spending import budget_of, budget_of_all
from workers.privacy.total import Charge, charge_of, compose, epsilon_at, total_of
from workers.settings.settings import Settings

ALL: dict[str, Any] = {"max_items_per_user": 1}


def part_of(config: HistogramConfig, unit: str, times: int = 1) -> PrivacyCost:
    [charge] = charges_of("w", state([(config, 1, 2)], unit=unit))
    return replace(charge.cost, times=times)


def test_what_is_left_is_what_the_fullest_period_lacks_and_whether_the_next_epoch_fits() -> (
    None
):
    """Three of four epochs are charged; with rho_left more the ceiling holds exactly."""
    config = daily(**ALL)
    most = epsilon_at([part_of(config, "user", 4)], 1e-4)
    assert most is not None
    given = with_ceiling(settings(config, unit="user"), most, 1e-4, period="1d")
    found = budget_of(given, [state([(config, 1, 31)], unit="user")])
    left = found.ceiling
    assert left is not None
    three = [part_of(config, "user", 3)]
    assert left.epsilon == epsilon_at(three, 1e-4)
    for factor, holds in ((1 - 1e-9, True), (1 + 1e-6, False)):
        more = PrivacyCost(rho=left.rho_left * factor, epsilon=1e9, delta=0.0)
        epsilon = epsilon_at([*three, more], 1e-4)
        assert epsilon is not None and (epsilon <= most) is holds
    [following] = left.next
    assert (following.epoch, following.begins) == (4, 300)
    assert (following.epsilon, following.fits) == (most, True)
    assert (
        "next of h: epoch 4, from 1970-01-01T00:00:00Z, which makes epsilon"
        in words(text_of(found))
    )
    # A fourth in another generation: nothing more fits, and the output names its worker.
    elsewhere = charges_of(
        "old", state([], [(daily(name="gone", **ALL), 5, 12)], unit="user")
    )
    other = budget_of(given, [state([(config, 1, 31)], unit="user")], elsewhere)
    assert other.ceiling is not None and other.ceiling.rho_left == 0
    assert [one.fits for one in other.ceiling.next] == [False]
    said = words(text_of(other))
    assert "gone generation 1 of worker old (2 epochs)" in said
    assert "does not fit: the worker ends before it" in said
    assert "counted with it, since they count the same events: old" in said
    nothing = budget_of(given, [])
    assert nothing.ceiling is not None
    assert nothing.ceiling.rho_left > 0
    assert "all of it is left" in words(text_of(nothing))
    assert budget_of(settings(config, unit="user"), []).ceiling is None


@pytest.mark.parametrize("unit", ["event", "user"])
def test_several_workers_on_the_same_events_add_up(unit: str) -> None:
    """An event is in both; a user pays for every epoch of each."""
    of_users = ALL if unit == "user" else {}
    one = daily("a", **of_users)
    other = daily("b", epsilon=2.0, **of_users)

    def named(name: str, config: HistogramConfig) -> Settings:
        found = settings(config, unit=unit)
        worker = msgspec.structs.replace(found.worker, name=name)
        return msgspec.structs.replace(found, worker=worker)

    nobody: list[Charge] = []
    of_one = (named("w1", one), [state([(one, 1, 31)], unit=unit)], nobody)
    of_other = (named("w2", other), [state([(other, 1, 11)], unit=unit), None], nobody)
    found = budget_of_all([of_one, of_other, (named("w3", other), None, nobody)])
    times = 3 if unit == "user" else 1
    expected = compose([part_of(one, unit, times), part_of(other, unit)])
    assert found.total is not None
    assert (found.total.epsilon, found.total.delta) == (
        expected.epsilon,
        expected.delta,
    )
    parts = [(part.worker, part.histogram, part.epochs) for part in found.total.parts]
    assert parts == [("w1", "a", times), ("w2", "b", 1)]
    said = words(text_of(found))
    assert f"workers w1, w2, w3, all together, for one {unit}" in said
    assert "b generation 1 of worker w2" in said
    assert "workers whose settings were not given" in said
    unlike = "user" if unit == "event" else "event"
    mixed = budget_of_all(
        [of_one, (of_other[0], [state([(other, 1, 11)], unit=unlike)], nobody)]
    )
    assert (mixed.total, mixed.not_in_total) == (None, ("w2",))
    assert "w2 protected another unit" in words(text_of(mixed))


def test_histograms_with_keys_from_different_fields_add_up_in_every_total() -> None:
    """One event has a shop and a city; counting only one made the totals too low."""
    shop = daily("shop", keys=("s1",))
    city = daily("city", keys=("berlin",), key="city")
    built = [charge_of(config, build(config)) for config in (shop, city)]
    both = compose([one.cost for one in built])
    total = total_of(built)
    assert (total.epsilon, total.histograms) == (both.epsilon, ("shop", "city"))
    # Of one field only the costlier counts.
    cheaper = daily("cheaper", keys=("s2",), epsilon=0.5)
    less = charge_of(cheaper, build(cheaper))
    assert len(total_of([built[0], less]).histograms) == 1
    total = total_of([*built, less])
    assert (total.epsilon, total.histograms) == (both.epsilon, ("shop", "city"))
    given = settings(shop, city, cheaper)
    stored = state([(shop, 1, 5), (city, 1, 5), (cheaper, 1, 5)])
    for name, key in (("shop", "shop"), ("city", "city"), ("cheaper", "shop")):
        stored.histograms[name].description["events"] = {"key": key}
    spent = budget_of(given, [stored, None])
    assert spent.total is not None and spent.total.epsilon == both.epsilon


def test_workers_that_count_other_events_are_not_added_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "examples/mechanisms/unk_base.toml").read_text()
    (tmp_path / "a.toml").write_text(text)
    for line, other in (("topic = ", 'topic = "elsewhere"'), ("name = ", 'name = "b"')):
        text = re.sub(f"^{line}.*", other, text, count=1, flags=re.MULTILINE)
    (tmp_path / "b.toml").write_text(text)
    a = str(tmp_path / "a.toml")
    b = str(tmp_path / "b.toml")
    assert execute(["budget", "-c", a, "-c", b]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "no event is in both, so nothing adds up" in line
    assert "elsewhere" in line
    assert execute(["budget", "-c", a, "-c", a]) == 2
    assert "is in two of the settings files" in capsys.readouterr().err
