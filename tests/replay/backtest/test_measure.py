"""Every figure of a backtest is computed once more from the events and the snapshots, with dictionaries and loops."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests import ROOT
from tests.pipeline import test_sums
from tests.replay.backtest.backtests import LABELS, backtest, events, numbers
from tests.replay.backtest.measured import OF_SUM, TOP, Measured, measured
from tests.replay.site import T0, settings_of
from tests.worker.harness import known, toml, unk
from workers.arrays.types import Longs
from workers.mechanisms.counters.lifted import LiftedColumns
from workers.mechanisms.counters.line import line_counters
from workers.mechanisms.running import sliding
from workers.replay.backtest.measure import Delays
from workers.replay.backtest.truth import SIZES, Exact, kendall
from workers.settings.settings import load

BOARD = unk(keys=["a", "b"], epsilon=6.0)
WINDOWS = {"horizon": "never", "windows": ["4s", "16s"], "epsilon": 30.0}
HISTOGRAMS: dict[str, dict[str, object]] = {
    "epochs": BOARD | {"sum": OF_SUM},
    "short epochs": BOARD | {"horizon": 7},
    "shots": BOARD | {"mechanism": "positive_gauss"},
    "windows": BOARD | WINDOWS | {"sum": OF_SUM},
    "declared": known(domain=[*LABELS, "none"], keys=["a", "b"]) | WINDOWS,
}
#: Of a histogram of these: the series that it publishes.
SERIES = [
    ("epochs", "items"),
    ("short epochs", "items"),
    ("shots", "items"),
    ("windows", "items.4s"),
    ("windows", "items.16s"),
    ("declared", "known.4s"),
]
of_counts = pytest.mark.parametrize("one", SERIES, indirect=True, ids=".".join)
discovering = pytest.mark.parametrize(
    "one", [SERIES[place] for place in (0, 1, 3, 4)], indirect=True, ids=".".join
)
of_one_epoch = pytest.mark.parametrize(
    "one", [SERIES[place] for place in (0, 3, 4)], indirect=True, ids=".".join
)


def some_events() -> list[dict[str, Any]]:
    """Two seconds of every three have events; later ones have other items, so that labels leave windows."""
    found: list[dict[str, Any]] = events(5_000, seconds=60.0)
    for place, event in enumerate(found):
        event["paid"] = place % 9 - 1
        if event["ts"] - T0 > 40_000:
            event["items"] = [f"i{29 - int(item[1:]):02}" for item in event["items"]]
    return [event for event in found if (event["ts"] // 1_000) % 3]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Measured]]:
    # Rows are forgotten, so that a run's rows are not those of its truth.
    with patch.object(sliding, "LEAST_ROWS", 8):
        return {
            name: measured(tmp_path_factory.mktemp("m"), some_events(), histogram, 2)
            for name, histogram in HISTOGRAMS.items()
        }


@pytest.fixture
def one(
    made: dict[str, dict[str, Measured]], request: pytest.FixtureRequest
) -> Measured:
    histogram, series = request.param
    return made[histogram][series]


@of_counts
def test_errors_are_those_of_the_published_counts(one: Measured) -> None:
    for key, keys in (("", "ab"), ("a", "a"), ("b", "b")):
        names = ("mean", "rms", "worst", "bias")
        found = {name: one.numbers(f"error_{name}", key=key) for name in names}
        wide = one.numbers("error_unbounded_mean", key=key)
        ticks = [tick for tick in one.ticks if one.errors(tick, keys)]
        assert set(found["mean"]) - {0} == set(ticks) and len(ticks) > 30
        for tick in ticks:
            errors = np.array(one.errors(tick, keys))
            assert found["mean"][tick] == pytest.approx(np.abs(errors).mean())
            assert found["rms"][tick] == pytest.approx(math.sqrt((errors**2).mean()))
            assert found["worst"][tick] == np.abs(errors).max()
            assert found["bias"][tick] == pytest.approx(errors.mean())
            assert wide[tick] == pytest.approx(
                np.abs(one.errors(tick, keys, wide=True)).mean()
            )
        assert found["mean"][0] == pytest.approx(
            np.mean([found["mean"][tick] for tick in ticks])
        )
        assert found["worst"][0] == max(found["worst"][tick] for tick in ticks)


def test_a_truth_that_forgets_a_tick_late_is_found(tmp_path: Path) -> None:
    """The control: the exact counts of a window that is one tick longer."""
    own = Exact.__init__

    def longer(self: Exact, *of: Any, windows: Any, **more: Any) -> None:
        late = line_counters(tuple(one.window + 1 for one in windows), (1, 1), 1.0)
        own(self, *of, windows=late, **more)

    with patch.object(Exact, "__init__", longer):
        late = measured(tmp_path, some_events(), HISTOGRAMS["windows"])
    with pytest.raises(AssertionError):
        test_errors_are_those_of_the_published_counts(late["items.4s"])


def hits(one: Measured, tick: int, key: str, *, wide: bool = False) -> tuple[int, int]:
    """Return how many of the shown top are of the exact one, and how many there are."""
    snapshot = one.ticks[tick][key]
    exact = one.exact(snapshot, wide=wide)
    best = sorted(exact.values(), reverse=True)[:TOP]
    named = [label for label, _ in snapshot["items"][:TOP]]
    right = sum(0 < exact[label] >= best[-1] for label in named) if best else 0
    return min(right, len(best)), len(best)


def is_clear(counts: list[int]) -> bool:
    """Whether no two of the n + 1 largest are equal, so that none is left to chance."""
    largest = sorted(counts, reverse=True)[: TOP + 1]
    return len(set(largest)) == len(largest)


def is_shown_clearly(one: Measured, tick: int, key: str) -> bool:
    return is_clear([count for _, count in one.ticks[tick][key]["items"]])


@of_counts
def test_recall_and_precision_compare_published_with_exact_tops(one: Measured) -> None:
    ticks = [
        tick
        for tick in one.ticks
        if all(is_shown_clearly(one, tick, key) for key in "ab")
    ]
    compared = 0
    for suffix, wide in (("", False), ("_unbounded", True)):
        found = {key: one.numbers(f"recall{suffix}", key=key) for key in ("", "a", "b")}
        for tick in ticks:
            by_key = []
            for key in "ab":
                right, of = hits(one, tick, key, wide=wide)
                if of:
                    by_key.append(right / of)
                    assert found[key][tick] == pytest.approx(by_key[-1])
            if by_key:
                assert found[""][tick] == pytest.approx(np.mean(by_key))
                compared += 1
    precise = one.numbers("precision", key="a")
    for tick in ticks:
        named = len(one.ticks[tick]["a"]["items"][:TOP])
        if tick in precise:
            right, _ = hits(one, tick, "a")
            assert precise[tick] * named == pytest.approx(right)
    assert compared > 10


@of_counts
def test_rank_correlation_is_kendalls(one: Measured) -> None:
    """Over the exact top."""
    found = one.numbers("rank_correlation", key="a")
    compared = 0
    for tick, by_key in one.ticks.items():
        exact = one.exact(by_key["a"])
        clear = is_shown_clearly(one, tick, "a") and is_clear(list(exact.values()))
        if not clear or tick not in found:
            continue
        shown = dict(by_key["a"]["items"])
        best = exact.most_common(TOP)
        counts = [shown.get(label, -(10**9)) for label, _ in best]
        tau = kendalltau([count for _, count in best], counts)
        assert found[tick] == pytest.approx(float(tau.statistic))
        compared += 1
    assert compared


@of_counts
def test_coverage_bounds_and_deserving_items(one: Measured) -> None:
    metrics = ("coverage", "lost", "deserving_shown", "shown")
    covered, lost, deserving, counted = (one.numbers(name) for name in metrics)
    inside = of = 0
    for tick, by_key in one.ticks.items():
        errors = one.errors(tick, "ab")
        within = sum(abs(error) <= 1.96 * by_key["a"]["sd"] for error in errors)
        inside = inside + within
        of = of + len(errors)
        assert counted[tick] == len(errors)
        if errors:
            assert covered[tick] == pytest.approx(within / len(errors))
        total, total_wide = (
            sum(one.exact(snapshot, wide=wide).total() for snapshot in by_key.values())
            for wide in (False, True)
        )
        if total_wide:
            assert lost[tick] == pytest.approx(1 - total / total_wide)
        above = [
            label in dict(snapshot["items"])
            for snapshot in by_key.values()
            for label, count in one.exact(snapshot).items()
            if count > (snapshot["threshold"] or math.inf)
        ]
        assert deserving.get(tick) == (pytest.approx(np.mean(above)) if above else None)
    assert covered[0] == pytest.approx(inside / of)


@of_one_epoch
def test_new_items_first_appeared_in_the_last_ten_ticks(one: Measured) -> None:
    found = one.numbers("coverage_new")
    counted = one.numbers("shown_new")
    first: dict[tuple[str, str], int] = {}
    inside = of = 0
    for tick, by_key in sorted(one.ticks.items()):
        new = []
        for key, snapshot in by_key.items():
            exact = one.exact(snapshot)
            for label, count in snapshot["items"]:
                since = first.setdefault((key, label), tick)
                if since > tick - 10:
                    new.append(abs(count - exact[label]) <= 1.96 * snapshot["sd"])
        assert counted[tick] == len(new)
        assert (tick in found) == bool(new)
        if new:
            assert found[tick] == pytest.approx(sum(new) / len(new))
        inside = inside + sum(new)
        of = of + len(new)
    assert of > 20 and found[0] == pytest.approx(inside / of)
    # By keys it is counted as well, and their items add up.
    of_keys = [one.numbers("shown_new", key=key) for key in "ab"]
    assert all(sum(of[tick] for of in of_keys) == counted[tick] for tick in one.ticks)


def epoch_of(snapshot: dict[str, Any]) -> int:
    return 0 if "window" in snapshot else int(snapshot["epoch"])


@discovering
def test_delays_count_from_reaching_a_size_to_being_shown(one: Measured) -> None:
    """In each epoch; an item that was shown early has no delay, one that never was none either."""
    first: dict[tuple[int, str, str], int] = {}
    reached: dict[tuple[int, int, str, str], int] = {}
    sizes = (1, 2, 5, 10, 20)
    for tick, by_key in sorted(one.ticks.items()):
        for key, snapshot in by_key.items():
            epoch = epoch_of(snapshot)
            for label, _ in snapshot["items"]:
                first.setdefault((epoch, key, label), tick)
            for label, count in one.exact(snapshot).items():
                for size in sizes:
                    if count >= size:
                        reached.setdefault((size, epoch, key, label), tick)
    for size in sizes:
        since = {at[1:]: tick for at, tick in reached.items() if at[0] == size}
        delays = [max(first[at] - tick, 0) for at, tick in since.items() if at in first]
        passed = len(since)
        assert one.numbers("passed", size=size) == {0: passed}
        found = one.numbers("found", size=size)[0]
        assert found == pytest.approx(len(delays) / passed)
        mean = one.numbers("delay_mean", size=size)[0]
        assert mean == pytest.approx(np.mean(delays))
        # Items that are never shown come last; if they are half, none is the middle one.
        median = math.inf
        if 2 * len(delays) > passed:
            median = sorted(delays)[(passed + 1) // 2 - 1]
        assert one.numbers("delay_median", size=size).get(0, math.inf) == median


@of_counts
def test_the_board_stands_beside_the_exact_one(one: Measured) -> None:
    rows = [row for row in one.results.boards if row.seed == 0]
    ticks = {row.tick for row in rows}
    last_tick = max(one.ticks)
    assert ticks <= set(one.ticks) and max(ticks) == last_tick and 3 < len(ticks) <= 9
    for row in rows:
        snapshot = one.ticks[row.tick][row.key]
        assert row.exact == one.exact(snapshot)[row.label]
        assert row.exact_unbounded == one.exact(snapshot, wide=True)[row.label]
        assert row.released == dict(snapshot["items"]).get(row.label)
        assert row.shown == (row.released is not None)
        assert row.sd == pytest.approx(snapshot["sd"], abs=1e-4)
        assert row.threshold == pytest.approx(snapshot["threshold"], abs=1e-4)
    last = [row for row in rows if row.tick == last_tick and row.key == "a"]
    largest = sorted(one.exact(one.ticks[last_tick]["a"]).values(), reverse=True)[:TOP]
    assert [row.exact for row in last[: len(largest)]] == largest
    assert [row.rank for row in last[:TOP]] == list(range(1, TOP + 1))


@of_one_epoch
def test_sums_and_means_are_compared_with_those_of_the_bounded_numbers(
    one: Measured,
) -> None:
    """Every event's number counts for its first two items; numbers are whole steps, some clamped."""
    names = ("sum_error_mean", "sum_coverage", "mean_error_mean", "mean_coverage")
    found = {name: one.numbers(name) for name in names}
    compared = 0
    for tick, by_key in one.ticks.items():
        values: dict[str, list[float]] = {name: [] for name in names}
        for snapshot in by_key.values():
            counts, sums = one.sums(snapshot)
            for (label, _), (total, mean, low, high) in zip(
                snapshot["items"], snapshot["sums"], strict=True
            ):
                if not counts[label]:
                    continue
                off = abs(total - sums[label])
                right = sums[label] / counts[label]
                values["sum_error_mean"].append(off)
                values["sum_coverage"].append(off <= 1.96 * snapshot["sum"]["sd"])
                values["mean_coverage"].append(low <= right <= high)
                if mean is not None:
                    values["mean_error_mean"].append(abs(mean - right))
        for name, of in values.items():
            if of and tick in found[name]:
                assert found[name][tick] == pytest.approx(np.mean(of), rel=1e-3), name
                compared += 1
    assert compared > 20
    for seed in (0, 1):
        assert 0.8 < one.numbers("mean_coverage", seed=seed)[0] <= 1


def test_what_does_not_discover_items_has_no_delays(
    made: dict[str, dict[str, Measured]],
) -> None:
    assert made["short epochs"]["items"].results.runs[0].epochs > 5
    for name in ("shots", "declared"):
        [one, *_] = made[name].values()
        assert not one.numbers("delay_mean", size=10)


def test_order_statistics_are_held_against_the_exact_answers(tmp_path: Path) -> None:
    histogram = known(
        mechanism="two_level_k",
        queries=["top_k:3", "quantile:0.5"],
        keys=["a"],
        domain=LABELS[:9],
        horizon=60,
    )
    [one] = measured(tmp_path, events(3_000, keys="a"), histogram).values()
    found = one.numbers("error_mean")
    within = one.numbers("within_error")
    for tick, by_key in one.ticks.items():
        snapshot = by_key["a"]
        exact = one.exact(snapshot)
        counts = sorted((exact[label] for label in LABELS[:9]), reverse=True)
        top, median = (answer["value"] for answer in snapshot["answers"])
        shown = zip([*top, median], [*counts[:3], counts[4]], strict=True)
        errors = [abs(a - b) for a, b in shown]
        assert found[tick] == pytest.approx(np.mean(errors))
        inside = [error <= snapshot["error"] for error in errors]
        assert within[tick] == pytest.approx(np.mean(inside))


APPLIES = {
    "error": {"error_mean", "error_worst", "error_unbounded_mean"},
    "board": {"recall", "precision", "recall_unbounded", "rank_correlation"},
    "delay": {"passed", "found", "delay_mean"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "examples" / "mechanisms").glob("*.toml")),
    ids=lambda path: path.stem,
)
def test_every_mechanism_is_measured_by_what_applies_to_it(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "settings.toml").write_text(path.read_text())
    settings = load(tmp_path / "settings.toml")
    labels = ["tea", "cup", "pot", "spoon", "kettle", "sugar", "milk", "lemon"]
    some = [
        {
            "shop": "s1" if i % 3 else "s2",
            "products": [labels[(i * i) % 7 % (1 + i % 5)], labels[i % 8]],
            "ts": T0 + 100 * i,
        }
        for i in range(2_000)
    ]
    results = backtest(settings, tmp_path, some, top=3)
    found = {one.metric for one in results.series}
    [histogram] = settings.histograms
    kind = histogram.mechanism
    known = getattr(histogram, "domain", None) is not None
    order = kind in ("bounded_max", "doubling", "two_level", "two_level_k")
    expected = {"lost", "measured"}
    expected |= set() if kind in ("pay_what_you_get", "two_level") else APPLIES["error"]
    if not order:
        expected |= APPLIES["board"]
    elif kind == "two_level":
        expected |= {"recall", "shortfall"}
    discovers = (
        kind in ("unk_base", "meta", "misra_gries", "pay_what_you_get") and not known
    )
    expected |= APPLIES["delay"] if discovers else set()
    expected |= (
        {"coverage", "sd"} if not order and kind != "pay_what_you_get" else set()
    )
    assert expected <= found
    assert bool(found & APPLIES["delay"]) == bool(expected & APPLIES["delay"])
    assert ("coverage" in found) == ("coverage" in expected)
    assert all(np.isfinite(one.values).all() for one in results.series)


@pytest.mark.slow
def test_error_bars_cover_what_they_say_where_a_mechanism_is_unbiased(
    tmp_path: Path,
) -> None:
    """known_base over 200 seeds: the share within 1.96 sd.

    8 items at 20 ticks share noise; taking the ticks of one item as one, 1,600 independent ones give a standard error of at most 0.0055, so
    0.95 +- 0.022 is left by chance once in 15,000. An sd that is 20 % off would give 0.88 or 0.98.
    """
    of = known(keys=["a"], domain=LABELS[:8], epsilon=0.5, tick="2s", horizon=64)
    settings = settings_of(tmp_path, [of])
    results = backtest(settings, tmp_path, events(2_000, keys="a"), seeds=200, top=TOP)
    covered = [numbers(results, "coverage", seed=seed)[0] for seed in range(200)]
    assert abs(np.mean(covered) - 0.95) < 0.022


def test_kendall_takes_the_smallest_number_for_what_is_not_shown() -> None:
    """A difference of it and a count overflows 64 bits; the order does not."""
    missing = int(np.iinfo(np.int64).min)
    assert kendall(np.array([9, 7, 5]), np.array([8, 6, missing])) == 1.0
    assert kendall(np.array([9, 7, 5]), np.array([missing, 6, 8])) == -1.0
    assert math.isnan(kendall(np.array([9, 7, 5]), np.array([missing] * 3)))


def test_half_that_are_never_shown_leave_no_median_delay() -> None:
    delays = Delays()
    reached = np.zeros((4, len(SIZES)), dtype=np.int32)
    reached[:, 0] = [1, 1, 2, 2]
    delays.add(reached, np.array([4, 0, 0], dtype=np.int32))
    found = {(metric, size): value for metric, size, value in delays.metrics()}
    assert found == {("passed", 1): 4, ("found", 1): 0.25, ("delay_mean", 1): 3}


@pytest.mark.slow
def test_sums_and_means_of_2000_items_of_users_are_judged(tmp_path: Path) -> None:
    """A user's items count up to three times in an epoch, with `count`: against plain Python.

    Snapshots come in two parts, with the sums of their own items. With n = 2,000 and p = 0.95 a share below 0.93 has probability 3e-5.
    """
    of: Any = {
        "mechanism": "known_base",
        "domain": [f"i{n}" for n in range(1_000)],
        "count": "lines[].qty",
        "max_count": 3,
        "max_items_per_user": 5,
        "epsilon": 40.0,
    }
    document = test_sums.document(user=True, **of, split=2)
    document["worker"]["owner_partitions"] = 2
    (tmp_path / "settings.toml").write_text(toml(document))
    settings = load(tmp_path / "settings.toml")
    some = test_sums.some(20_000, 1_000, 2, ticks=8)
    snapshots: list[dict[str, Any]] = []
    results = backtest(settings, tmp_path, some, snapshots=snapshots)
    exact = test_sums.by_hand(some, test_sums.EPOCH, 3, count=True, user=True)
    last = max(snapshot["end"] for snapshot in snapshots)
    of_sums = []
    of_means = []
    off = []
    for snapshot in (one for one in snapshots if one["end"] == last):
        rows = zip(snapshot["items"], snapshot["sums"], strict=True)
        for (label, _), (total, _, low, high) in rows:
            if (snapshot["key"], label) not in exact:
                continue
            times, thousandths = exact[snapshot["key"], label]
            right = thousandths / 1_000
            off.append(abs(total - right))
            of_sums.append(off[-1] <= 1.96 * snapshot["sum"]["sd"])
            of_means.append(low <= right / times <= high)
    assert len(off) > 1_900
    found = {"sum_coverage": of_sums, "mean_coverage": of_means}
    for name, held in found.items():
        share = numbers(results, name)[last // test_sums.TICK_MS]
        assert share == pytest.approx(np.mean(held)) and 0.93 < share < 0.975, (
            name,
            share,
        )
    error = numbers(results, "sum_error_mean")[last // test_sums.TICK_MS]
    assert error == pytest.approx(np.mean(off), rel=1e-6)
    # Controls: half the stated noise, and twice.
    own = LiftedColumns.at
    for factor, low, high in ((0.5, 0.99, 1.0), (2.0, 0.5, 0.85)):

        def drawn(*of: Any, factor: float = factor) -> Longs:
            found: Longs = np.rint(factor * own(*of)).astype(np.int64)
            return found

        with patch.object(LiftedColumns, "at", drawn):
            other = backtest(settings, tmp_path, some)
        for name in ("sum_coverage", "mean_coverage"):
            share = numbers(other, name)[last // test_sums.TICK_MS]
            assert low < share <= high, (name, factor)
