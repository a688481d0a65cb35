"""`--vary` gives the combinations that a user expects, or one clear line before anything is read."""

import itertools
import json
from pathlib import Path

import pytest

from tests.replay.site import settings_of
from tests.worker.harness import Bare, unk
from workers.replay.backtest.grid import (
    COMBINATIONS_MAX,
    COUNTED,
    Grid,
    make_grid,
    settings_text,
)
from workers.runtime.errors import SettingsError


def grid_of(
    directory: Path, *varies: str, histograms: list[dict[str, object]] | None = None
) -> Grid:
    settings = settings_of(directory, histograms)
    return make_grid(settings, directory / "settings.toml", varies)


def values_of(grid: Grid, *names: str) -> list[tuple[object, ...]]:
    """Settings of every combination; None where its mechanism has no such setting."""
    configs = [one.config for one in grid.combinations]
    return [tuple(getattr(config, name, None) for name in names) for config in configs]


def test_every_value_goes_with_every_other(tmp_path: Path) -> None:
    """In the order given, the last one changing fastest; numbered from 1."""
    grid = grid_of(tmp_path, "items.epsilon=0.5,1,2", "items.max_items=1,3")
    expected = [(0.5, 1), (0.5, 3), (1.0, 1), (1.0, 3), (2.0, 1), (2.0, 3)]
    assert values_of(grid, "epsilon", "max_items") == expected
    assert [one.run for one in grid.combinations] == [1, 2, 3, 4, 5, 6]
    assert dict(grid.combinations[1].varied) == {
        "items.epsilon": "0.5",
        "items.max_items": "3",
    }
    assert not grid.left_out


def test_values_are_toml_or_bare_words(tmp_path: Path) -> None:
    grid = grid_of(
        tmp_path, "tick=1s,5m", "horizon=100,unbounded", "start=2026-01-01T00:00:00Z"
    )
    horizons = (100, "unbounded")
    expected = list(itertools.product((1_000, 300_000), horizons))
    assert values_of(grid, "tick_ms", "horizon") == expected
    grid = grid_of(tmp_path, 'mechanism="known_base"', 'domain=["a","b,c"],["d"]')
    assert values_of(grid, "domain") == [(("a", "b,c"),), (("d",),)]


def test_ticks_are_varied_within_epochs_of_the_same_length(tmp_path: Path) -> None:
    """An epsilon buys one epoch: with 15 times the length it would be another promise."""
    own = unk(tick="1m", horizon=60)
    grid = grid_of(tmp_path, "tick=1m,5m,15m", histograms=[own])
    expected = [(60_000, 60), (300_000, 12), (900_000, 4)]
    assert values_of(grid, "tick_ms", "horizon") == expected
    (note,) = grid.notes
    assert "horizon = 60 is not" in note and "1h" in note
    refusal = r'items\.tick=7m: .*horizon = "1h": no whole number of ticks of 7m'
    with pytest.raises(SettingsError, match=refusal):
        grid_of(tmp_path, "epsilon=1,2", "tick=5m,7m", histograms=[own])


@pytest.mark.parametrize("horizon", ["1h", "unbounded"])
def test_a_horizon_that_is_no_number_of_ticks_stays_as_it_is(
    tmp_path: Path, horizon: str
) -> None:
    own = unk(tick="1m", horizon=horizon, start=Bare("2026-01-01T00:00:00Z"))
    grid = grid_of(tmp_path, "tick=1m,5m", histograms=[own])
    expected = ["unbounded"] * 2 if horizon == "unbounded" else [60, 12]
    assert [
        one.config.horizon for one in grid.combinations
    ] == expected and not grid.notes


def test_a_horizon_that_is_varied_beside_the_tick_is_taken_at_its_word(
    tmp_path: Path,
) -> None:
    grid = grid_of(tmp_path, "tick=1s,3s", "horizon=9,64")
    assert [one.config.horizon for one in grid.combinations] == [
        9,
        64,
        9,
        64,
    ] and not grid.notes


def test_histograms_are_varied_each_by_itself(tmp_path: Path) -> None:
    histograms = [unk("a"), unk("b"), unk("c")]
    grid = grid_of(
        tmp_path, "a.epsilon=1,2,3", "b.max_items=1,2", histograms=histograms
    )
    assert [one.config.name for one in grid.combinations] == ["a"] * 3 + ["b"] * 2 + [
        "c"
    ]


def test_epsilon_takes_the_place_of_rho(tmp_path: Path) -> None:
    histogram = unk(rho=0.1)
    del histogram["epsilon"]
    grid = grid_of(tmp_path, "epsilon=1,2", histograms=[histogram])
    assert values_of(grid, "epsilon", "rho") == [(1.0, None), (2.0, None)]


def test_a_mechanism_takes_the_settings_that_it_has(tmp_path: Path) -> None:
    sparse = unk(
        mechanism="sparse_gumb",
        domain=["p", "q", "r"],
        top_k=1,
        switches=2,
        horizon=100,
    )
    varies = "mechanism=unk_base,sparse_gumb", "top_k=1,2", "threshold=constant"
    grid = grid_of(tmp_path, *varies, histograms=[sparse])
    expected = [("unk_base", None), ("sparse_gumb", 1), ("sparse_gumb", 2)]
    assert values_of(grid, "mechanism", "top_k") == expected
    varied = {"mechanism": "unk_base", "top_k": None, "threshold": "constant"}
    first = grid.combinations[0].varied
    assert first == {f"items.{name}": value for name, value in varied.items()}
    assert dict(grid.combinations[1].varied)["items.threshold"] is None


def test_values_that_are_the_same_are_run_once(tmp_path: Path) -> None:
    grid = grid_of(
        tmp_path, "epsilon=1,1.0,1,2", "tick=60s,1m", histograms=[unk(horizon=3_600)]
    )
    assert [dict(one.varied) for one in grid.combinations] == [
        {"items.epsilon": "1", "items.tick": "60s"},
        {"items.epsilon": "2", "items.tick": "60s"},
    ]
    assert [one.run for one in grid.combinations] == [1, 2] and not grid.left_out


def test_what_is_missing_may_be_varied_in(tmp_path: Path) -> None:
    (tmp_path / "domain.txt").write_text("x\ny\nz\n")
    with pytest.raises(
        SettingsError, match=r"--vary items\.mechanism=sparse_gumb: .*domain"
    ):
        grid_of(tmp_path, "mechanism=unk_base,sparse_gumb")
    more = "domain_file=domain.txt", "top_k=1", "switches=3"
    grid = grid_of(tmp_path, "mechanism=unk_base,sparse_gumb", *more)
    assert values_of(grid, "mechanism") == [("unk_base",), ("sparse_gumb",)]


def test_a_domain_goes_to_the_values_that_have_one(tmp_path: Path) -> None:
    """With `misra_gries` and `meta` a setting decides about it; a file with a domain must serve the other values too."""
    domain = 'domain=["x","y","z"]'
    varies = "mechanism=known_base,misra_gries", domain, "size=2", "release=pmg,pure"
    grid = grid_of(tmp_path, *varies)
    labels = ("x", "y", "z")
    expected = [("known_base", labels), ("misra_gries", None), ("misra_gries", labels)]
    assert values_of(grid, "mechanism", "domain") == expected and not grid.left_out
    assert [one.varied["items.domain"] is None for one in grid.combinations] == [
        False,
        True,
        False,
    ]
    grid = grid_of(
        tmp_path, "mechanism=meta", domain, "algorithm=positive_gauss,known_gauss"
    )
    assert values_of(grid, "domain") == [(None,), (labels,)]


def test_an_end_share_goes_to_the_mechanisms_that_can_have_one(tmp_path: Path) -> None:
    own = [unk(horizon=100, end_share=0.6)]
    grid = grid_of(tmp_path, "mechanism=unk_base,positive_gauss", histograms=own)
    expected = [("unk_base", 0.6), ("positive_gauss", None)]
    assert values_of(grid, "mechanism", "end_share") == expected and not grid.left_out
    grid = grid_of(tmp_path, "end_share=0.3,0.6", histograms=[unk(horizon=100)])
    assert values_of(grid, "end_share") == [(0.3,), (0.6,)]


def test_a_combination_that_cannot_be_is_left_out_and_named(tmp_path: Path) -> None:
    more = "counter=lifted,sqrt", 'domain=["a"]', "horizon=100"
    grid = grid_of(tmp_path, "mechanism=unk_base,known_base", *more)
    expected = [
        ("unk_base", "lifted"),
        ("known_base", "lifted"),
        ("known_base", "sqrt"),
    ]
    assert values_of(grid, "mechanism", "counter") == expected
    (reason,) = grid.left_out
    assert "items.mechanism=unk_base, items.counter=sqrt" in reason
    assert "only with a declared domain" in reason


TOO_MANY = ",".join(map(str, range(1, COMBINATIONS_MAX + 2)))


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("items.epsilom=1", r"items\.epsilom: unknown setting; did you mean 'epsilon'"),
        ("item.epsilon=1", r"no histogram 'item': did you mean 'items'"),
        ("items.epsilon=1,100", r"items\.epsilon=100: .*at most 50"),
        ("items.epsilon=1,,2", "a value is missing"),
        ("items.epsilon", r"such as items\.epsilon=0\.5,1,2"),
        ("=1", "HISTOGRAM.SETTING=VALUE"),
        ("items.epsilon=lots", r"items\.epsilon=lots: .*a number above 0"),
        (
            "items.mechanism=unk_bass",
            r'items\.mechanism=unk_bass: .*"unk_bass": did you mean "unk_base"',
        ),
        ("items.top_k=3", "top_k: unknown name"),
        ("items.name=x", "name cannot be varied"),
        *(
            (f"items.{name}=x", f"{name} cannot be varied: it decides what is")
            for name in COUNTED
        ),
        ("items.tick=5x", r"items\.tick=5x: .*a duration"),
        ("items.delta=1e-9\nepsilon = 3", r"items\.delta="),
        (f"items.max_items={TOO_MANY}", "1,001 combinations: at most 1,000"),
    ],
)
def test_invalid_choices_are_refused_in_one_line(
    tmp_path: Path, vary: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        grid_of(tmp_path, vary)
    assert "\n" not in str(refused.value) and str(refused.value).startswith("--vary")


def test_a_name_without_histogram_needs_a_single_one(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"of which histogram\? One of a\.epsilon, b\.epsilon"
    ):
        grid_of(tmp_path, "epsilon=1", histograms=[unk("a"), unk("b")])
    with pytest.raises(SettingsError, match="given twice"):
        grid_of(tmp_path, "epsilon=1", "items.epsilon=2")


def test_settings_are_told_as_they_stand_in_a_file(tmp_path: Path) -> None:
    histogram = unk(
        mechanism="known_base", tick="90s", domain=[f"l{i}" for i in range(50)]
    )
    (config,) = settings_of(tmp_path, [histogram]).histograms
    found = json.loads(settings_text(config))
    assert (found["tick"], found["mechanism"]) == ("90s", "known_base")
    assert found["domain_labels"] == 50
    assert "domain" not in found and "rho" not in found


def test_buckets_are_told_by_their_edges_and_can_be_varied(tmp_path: Path) -> None:
    histogram = unk(mechanism="known_base", buckets=[0, 10], quantiles=[0.5, 0.9])
    (config,) = settings_of(tmp_path, [histogram]).histograms
    found = json.loads(settings_text(config))
    assert (found["buckets"], found["quantiles"]) == ([0, 10], [0.5, 0.9])
    assert "domain" not in found
    grid = grid_of(tmp_path, "buckets=[0,5],[0,5,10]", histograms=[histogram])
    told = [json.loads(settings_text(one.config)) for one in grid.combinations]
    assert [one["buckets"] for one in told] == [[0, 5], [0, 5, 10]]
    grid = grid_of(tmp_path, "mechanism=known_base,unk_base", histograms=[histogram])
    assert values_of(grid, "mechanism") == [("known_base",), ("unk_base",)]
    assert grid.left_out == []
