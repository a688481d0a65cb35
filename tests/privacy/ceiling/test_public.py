"""The record for readers says what `budget` says, and one sentence says how long a board may run."""

from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from tests.privacy.ceiling.test_ceiling import daily
from tests.privacy.ceiling.test_outlook import DAY, NOW, Case, days, older
from tests.privacy.spending.test_spent import settings, state
from workers.mechanisms.config.histogram import HistogramConfig
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling import charges_of
from workers.privacy.promise import fingerprint
from workers.privacy.public import (
    PublicBudget,
    UnreadableBudget,
    decode_budget,
    public_budget,
)
from workers.privacy.spending import budget_of

AT = NOW * DAY


def told(case: Case) -> PublicBudget:
    found = public_budget(case.settings, case.state, [])
    assert found is not None
    return found


def without_ceiling(unit: str, *configs: HistogramConfig) -> PublicBudget:
    bound = 1 if unit == "user" else None
    configs = tuple(structs.replace(one, max_items_per_user=bound) for one in configs)
    lived = [(one, 1, 25) for one in configs]
    found = public_budget(settings(*configs, unit=unit), state(lived, unit=unit), [])
    assert found is not None
    return found


@pytest.mark.parametrize("unit", ["event", "user"])
@pytest.mark.parametrize("period", ["30d", "5d", "epoch"])
@pytest.mark.parametrize("epsilon", [0.6, 0.9, 3.0])
def test_it_has_the_figures_of_the_budget(
    unit: str, period: str, epsilon: float
) -> None:
    case = Case(unit, period, epsilon, days(), days("k", horizon=7))
    budget = case.budget()
    found = told(case)
    assert budget.ceiling is not None and budget.total is not None
    assert found.total is not None and found.ceiling is not None
    assert found.total.epsilon == budget.total.epsilon
    assert found.ceiling.epsilon == budget.ceiling.epsilon
    outlook = budget.ceiling.outlook
    assert outlook is not None
    assert (found.newest, found.ceiling.until) == (outlook.newest, outlook.until)
    spent = [
        (name.name, one.generation, one.epochs_begun, one.epsilon)
        for name in budget.histograms
        for one in name.generations
    ]
    assert spent == [
        (one.histogram, one.generation, one.epochs, one.epsilon)
        for one in found.histograms
    ]
    assert found.fingerprint == fingerprint(case.settings)
    assert decode_budget(msgspec.json.encode(found)) == found


def test_the_days_that_are_left_are_counted_from_the_newest_tick_the_reader_knows() -> (
    None
):
    found = told(Case("user", "30d", 1.0, days()))
    assert found.ceiling is not None and found.ceiling.until is not None
    ends = found.ceiling.until
    left = (ends - found.newest) // DAY
    assert left > 2
    most = (
        "it has told as much about one user as its limit allows, ε = 1 in any 30 days."
    )
    begins = f"This board may run another {left} days, until "
    assert found.sentence().startswith(begins)
    assert found.sentence().endswith(f": then {most}")
    later = found.sentence(found.newest + DAY)
    assert later.startswith(f"This board may run another {left - 1} days, until ")
    assert found.sentence(0) == found.sentence()
    hour = found.sentence(ends - 5_400_000)
    assert "another 90 minutes, until 00:00 UTC on " in hour
    ended = f"This board has ended: {most}"
    assert found.sentence(ends) == found.sentence(ends + DAY) == ended


def test_what_has_no_end_says_why() -> None:
    held = told(Case("user", "1d", 3.0, days()))
    assert held.sentence() == (
        "This board may run without end: "
        "it never tells more about one user than its limit allows, ε = 3 in any day."
    )
    assert held.ceiling is not None
    far = structs.replace(held.ceiling, until=held.newest + 40_000 * DAY, at_least=True)
    assert " at least: " in structs.replace(held, ceiling=far).sentence()
    free = "This board may run without end, as no limit is set: "
    assert without_ceiling("event", daily()).sentence() == (
        f"{free}one event counts in one epoch only and is charged once, ε = 1 in all."
    )
    endless = daily(horizon="unbounded", start="2020-01-01T00:00:00Z")
    assert without_ceiling("event", endless).sentence() == (
        f"{free}one event is charged once, ever, ε = 1 in all."
    )
    of_users = without_ceiling("user", daily()).sentence()
    assert of_users.startswith(f"{free}every epoch charges a user again, ε = ")
    assert of_users.endswith(" in all after 3 epochs.")


def test_units_that_differ_have_no_total() -> None:
    config = daily()
    mixed = state([(config, 1, 5)])
    mixed.retired = state([], [(older(0.5), 1, 5)], unit="user").retired
    found = public_budget(settings(config), mixed, [])
    assert found is not None and found.total is None
    assert "cannot be stated" in found.sentence()


def test_before_the_first_tick_there_is_nothing_to_tell() -> None:
    config = daily()
    assert public_budget(settings(config), state([]), []) is None
    assert public_budget(settings(config), state([(config, 1, 1)]), []) is None


def test_of_other_workers_it_has_the_sum_only() -> None:
    """Their names are the operator's; that they count is in the fullest period, and in the end."""
    case = Case("user", "30d", 3.0, days())
    secret = charges_of(
        "secret-worker", state([], [(older(2.0), NOW - 3, NOW)], unit="user")
    )
    secret = [replace(one, histogram="secret-histogram") for one in secret]
    found = public_budget(case.settings, case.state, secret)
    assert found is not None
    assert b"secret" not in msgspec.json.encode(found)
    alone = told(case)
    assert found.ceiling is not None and alone.ceiling is not None
    assert found.ceiling.epsilon is None or (
        found.ceiling.epsilon > (alone.ceiling.epsilon or 0)
    )
    assert found.total == alone.total


def test_one_owners_progress_stands_for_all() -> None:
    """With histograms of other keys, which other owners serve, nothing is left out."""
    configs = (daily("a", keys=("s1",)), daily("b", keys=("s2",), epsilon=2.0))
    given = settings(*configs)

    def of_owners(number: int) -> ReleaseProgress:
        return structs.replace(state([(one, 1, 5) for one in configs]), owners=number)

    for number in (1, 2, 7):
        progress = of_owners(number)
        every = budget_of(given, [progress] * number)
        found = public_budget(given, progress, [])
        assert found is not None and found.total is not None and every.total is not None
        assert found.total.epsilon == every.total.epsilon == 2.0


@pytest.mark.parametrize(
    "change",
    [
        b"",
        b"{}",
        b"\xff",
        b'"unit":"event"|"unit":"shop"',
        b'"newest":|"newest":9e99',
        b'"until":null|"until":99999999999999999',
        b'"period":"30d"|"period":"soon"',
        b'"max_epsilon":3.0|"max_epsilon":null',
        b'"fingerprint":"|"fingerprint":"x',
    ],
)
def test_what_no_worker_wrote_is_refused(change: bytes) -> None:
    """Anyone who may write to the topic could have written it."""
    value = msgspec.json.encode(told(Case("event", "30d", 3.0, days())))
    before, _, after = change.partition(b"|")
    with pytest.raises(UnreadableBudget):
        decode_budget(value.replace(before, after) if after else change)
