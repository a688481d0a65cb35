"""Every figure of a backtest is computed once more from the events and the snapshots, with dictionaries and loops."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests import ROOT
from tests.pipeline import test_sums
from tests.replay.backtest.backtests import LABELS, backtest, bounded, events, numbers
from tests.replay.site import T0, settings_of
from tests.worker.harness import known, toml, unk
from workers.arrays.types import Longs
from workers.mechanisms.counters.lifted import LiftedColumns
from workers.replay.backtest.measure import Delays
from workers.replay.backtest.results import Results
from workers.replay.backtest.truth import SIZES, kendall
from workers.settings.settings import load

TOP = 5
Counts = Mapping[str, int]


class ByHand:
    """Exact counts of each key at the end of each tick, and what the snapshots of the ticks showed."""

    def __init__(
        self,
        some: list[dict[str, Any]],
        snapshots: list[dict[str, Any]],
        tick_ms: int,
        *,
        items: int,
        per_tick: bool = False,
    ) -> None:
        self.snapshots: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for snapshot in snapshots:
            self.snapshots[snapshot["end"] // tick_ms][snapshot["key"]] = snapshot
        self.exact: dict[int, dict[str, Counter[str]]] = {}
        self.wide: dict[int, dict[str, Counter[str]]] = {}
        running: tuple[dict[str, Counter[str]], ...] = (
            defaultdict(Counter),
            defaultdict(Counter),
        )
        left = list(some)
        for tick in sorted(self.snapshots):
            if per_tick:
                running = (defaultdict(Counter), defaultdict(Counter))
            while left and left[0]["ts"] < tick * tick_ms:
                event = left.pop(0)
                running[0][event["key"]].update(dict(bounded(event, items, 1)))
                running[1][event["key"]].update(event["items"])
            self.exact[tick], self.wide[tick] = (
                {key: Counter(of) for key, of in one.items()} for one in running
            )

    def shown(self, tick: int, key: str) -> dict[str, int]:
        return dict(self.snapshots[tick][key]["items"])

    def errors(self, tick: int, keys: str, wide: bool = False) -> list[int]:
        exact = (self.wide if wide else self.exact)[tick]
        shown = [(key, *item) for key in keys for item in self.shown(tick, key).items()]
        return [count - exact[key][label] for key, label, count in shown]

    def recall(self, tick: int, key: str, wide: bool = False) -> float:
        exact = (self.wide if wide else self.exact)[tick][key]
        best = sorted(exact.values(), reverse=True)[:TOP]
        named = [label for label, _ in self.snapshots[tick][key]["items"][:TOP]]
        return min(sum(exact[label] >= best[-1] for label in named), len(best)) / len(
            best
        )

    def correlation(self, tick: int, key: str) -> float:
        """Over the exact top; ties of exact counts are left to chance, so the caller takes ticks without."""
        exact = self.exact[tick][key]
        shown = self.shown(tick, key)
        best = sorted(exact, key=lambda label: -exact[label])[:TOP]
        counts = [exact[label] for label in best]
        tau = kendalltau(counts, [shown.get(label, -(10**9)) for label in best])
        return float(tau.statistic)

    def clear(self, tick: int, key: str) -> bool:
        """Whether no two of the n + 1 largest counts, exact or published, are equal."""
        largest = [count for _, count in self.exact[tick][key].most_common(TOP + 1)]
        published = [
            count for _, count in self.snapshots[tick][key]["items"][: TOP + 1]
        ]
        return len(set(largest)) == len(largest) and len(set(published)) == len(
            published
        )


Unknown = tuple[Results, ByHand]


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Unknown:
    directory = tmp_path_factory.mktemp("unknown")
    some = events(6_000)
    snapshots: list[dict[str, Any]] = []
    settings = settings_of(directory, [unk(keys=["a", "b"], epsilon=3.0)])
    results = backtest(settings, directory, some, seeds=2, top=TOP, snapshots=snapshots)
    return results, ByHand(some, snapshots, 1_000, items=2)


def test_errors_are_those_of_the_published_counts(unknown: Unknown) -> None:
    results, hand = unknown
    for key, keys in (("", "ab"), ("a", "a"), ("b", "b")):
        names = ("mean", "rms", "worst", "bias")
        found = {name: numbers(results, f"error_{name}", key=key) for name in names}
        wide = numbers(results, "error_unbounded_mean", key=key)
        ticks = [tick for tick in hand.snapshots if hand.errors(tick, keys)]
        assert set(found["mean"]) - {0} == set(ticks)
        for tick in ticks:
            errors = np.array(hand.errors(tick, keys))
            assert found["mean"][tick] == pytest.approx(np.abs(errors).mean())
            assert found["rms"][tick] == pytest.approx(math.sqrt((errors**2).mean()))
            assert found["worst"][tick] == np.abs(errors).max()
            assert found["bias"][tick] == pytest.approx(errors.mean())
            assert wide[tick] == pytest.approx(
                np.abs(hand.errors(tick, keys, wide=True)).mean()
            )
        assert found["mean"][0] == pytest.approx(
            np.mean([found["mean"][tick] for tick in ticks])
        )
        assert found["worst"][0] == max(found["worst"][tick] for tick in ticks)


def test_recall_and_precision_compare_published_with_exact_tops(
    unknown: Unknown,
) -> None:
    results, hand = unknown
    for suffix, wide in (("", False), ("_unbounded", True)):
        found = {
            key: numbers(results, f"recall{suffix}", key=key) for key in ("", "a", "b")
        }
        for tick in hand.snapshots:
            if not (hand.clear(tick, "a") and hand.clear(tick, "b")):
                continue
            by_key = [hand.recall(tick, key, wide) for key in "ab"]
            assert [found["a"][tick], found["b"][tick]] == pytest.approx(by_key)
            assert found[""][tick] == pytest.approx(np.mean(by_key))
    precise = numbers(results, "precision", key="a")
    for tick in precise.keys() - {0}:
        named = len(hand.snapshots[tick]["a"]["items"][:TOP])
        size = min(TOP, len(hand.exact[tick]["a"]))
        if hand.clear(tick, "a"):
            assert precise[tick] * named == pytest.approx(hand.recall(tick, "a") * size)


def test_rank_correlation_is_kendalls(unknown: Unknown) -> None:
    results, hand = unknown
    found = numbers(results, "rank_correlation", key="a")
    ticks = [tick for tick in hand.snapshots if hand.clear(tick, "a")]
    assert len(ticks) > 5
    for tick in ticks:
        if tick in found:
            assert found[tick] == pytest.approx(hand.correlation(tick, "a"))


def test_coverage_bounds_and_deserving_items(unknown: Unknown) -> None:
    results, hand = unknown
    metrics = ("coverage", "lost", "deserving_shown")
    covered, lost, deserving = (numbers(results, name) for name in metrics)
    inside = of = 0
    for tick, by_key in hand.snapshots.items():
        sd = by_key["a"]["sd"]
        threshold = by_key["a"]["threshold"]
        errors = hand.errors(tick, "ab")
        within = sum(abs(error) <= 1.96 * sd for error in errors)
        inside = inside + within
        of = of + len(errors)
        if errors:
            assert covered[tick] == pytest.approx(within / len(errors))
        total, total_wide = (
            sum(of.total() for of in one[tick].values())
            for one in (hand.exact, hand.wide)
        )
        assert lost[tick] == pytest.approx(1 - total / total_wide)
        above = [
            label in hand.shown(tick, key)
            for key in "ab"
            for label, count in hand.exact[tick][key].items()
            if count > threshold
        ]
        assert deserving.get(tick) == (pytest.approx(np.mean(above)) if above else None)
    assert covered[0] == pytest.approx(inside / of)


def test_new_items_first_appeared_in_the_last_ten_ticks(unknown: Unknown) -> None:
    results, hand = unknown
    found = numbers(results, "coverage_new")
    counted = numbers(results, "shown_new")
    first: dict[tuple[str, str], int] = {}
    inside = of = 0
    for tick, by_key in sorted(hand.snapshots.items()):
        for key in "ab":
            for label in hand.shown(tick, key):
                first.setdefault((key, label), tick)
        new = [
            abs(count - hand.exact[tick][key][label]) <= 1.96 * by_key[key]["sd"]
            for key in "ab"
            for label, count in hand.shown(tick, key).items()
            if first[key, label] > tick - 10
        ]
        assert counted[tick] == len(new)
        assert (tick in found) == bool(new)
        if new:
            assert found[tick] == pytest.approx(sum(new) / len(new))
        inside = inside + sum(new)
        of = of + len(new)
    assert of > 20 and found[0] == pytest.approx(inside / of)
    # By keys it is counted as well, and their items add up.
    of_keys = [numbers(results, "shown_new", key=key) for key in "ab"]
    assert all(
        sum(one[tick] for one in of_keys) == counted[tick] for tick in hand.snapshots
    )


def test_delays_count_from_reaching_a_size_to_being_shown(unknown: Unknown) -> None:
    """At every tick, whatever is measured; an item that was shown early has no delay, one that never was none either."""
    results, hand = unknown
    for size in (2, 10, 50, 100):
        delays = []
        passed = 0
        for key in "ab":
            for label in LABELS:
                ticks = sorted(hand.exact)
                reached = [
                    tick for tick in ticks if hand.exact[tick][key][label] >= size
                ]
                first = [tick for tick in ticks if label in hand.shown(tick, key)]
                passed += bool(reached)
                if reached and first:
                    delays.append(max(first[0] - reached[0], 0))
        assert numbers(results, "passed", size=size)[0] == passed
        assert numbers(results, "found", size=size)[0] == pytest.approx(
            len(delays) / passed
        )
        assert numbers(results, "delay_mean", size=size)[0] == pytest.approx(
            np.mean(delays)
        )
        with_missing = sorted([*delays, *[math.inf] * (passed - len(delays))])
        median = with_missing[(passed + 1) // 2 - 1]
        assert numbers(results, "delay_median", size=size).get(0, math.inf) == median


def test_the_board_stands_beside_the_exact_one(unknown: Unknown) -> None:
    results, hand = unknown
    rows = [row for row in results.boards if row.seed == 0]
    ticks = {row.tick for row in rows}
    last_tick = max(hand.snapshots)
    assert ticks <= set(hand.snapshots) and max(ticks) == last_tick and len(ticks) <= 9
    for row in rows:
        assert row.exact == hand.exact[row.tick][row.key][row.label]
        assert row.exact_unbounded == hand.wide[row.tick][row.key][row.label]
        assert row.released == hand.shown(row.tick, row.key).get(row.label)
        assert row.shown == (row.released is not None)
        snapshot = hand.snapshots[row.tick][row.key]
        stated = snapshot["sd"], snapshot["threshold"]
        assert (row.sd, row.threshold) == pytest.approx(stated, abs=1e-4)
    last = [row for row in rows if row.tick == last_tick and row.key == "a"]
    largest = sorted(hand.exact[last_tick]["a"].values(), reverse=True)
    assert [row.exact for row in last[:TOP]] == largest[:TOP]
    assert [row.rank for row in last[:TOP]] == list(range(1, TOP + 1))


def test_a_one_shot_release_is_held_against_its_own_tick(tmp_path: Path) -> None:
    some = events(4_000, keys="a")
    snapshots: list[dict[str, Any]] = []
    settings = settings_of(
        tmp_path, [unk(mechanism="positive_gauss", keys=["a"], epsilon=3.0)]
    )
    results = backtest(settings, tmp_path, some, top=TOP, snapshots=snapshots)
    hand = ByHand(some, snapshots, 1_000, items=2, per_tick=True)
    found = numbers(results, "error_mean")
    assert len(found) > 20
    for tick in found.keys() - {0}:
        assert found[tick] == pytest.approx(np.abs(hand.errors(tick, "a")).mean())
    assert not numbers(results, "delay_mean", size=10)


def test_epochs_begin_at_zero_and_delays_add_up_over_them(tmp_path: Path) -> None:
    some = events(4_000, keys="a")
    snapshots: list[dict[str, Any]] = []
    settings = settings_of(tmp_path, [unk(keys=["a"], horizon=7, epsilon=3.0)])
    results = backtest(settings, tmp_path, some, top=TOP, snapshots=snapshots)
    epochs = {snapshot["epoch"] for snapshot in snapshots}
    assert results.runs[0].epochs == len(epochs) > 5
    found = numbers(results, "error_mean")
    for snapshot in snapshots:
        shown = dict(snapshot["items"])
        first = snapshot["start"] - (snapshot["tick"] - 1) * 1_000
        exact: Counter[str] = Counter()
        for event in some:
            if first <= int(str(event["ts"])) < snapshot["end"]:
                exact.update(dict(bounded(event, 2, 1)))
        if shown:
            errors = [abs(shown[name] - exact[name]) for name in shown]
            assert found[snapshot["end"] // 1_000] == pytest.approx(np.mean(errors))
    assert numbers(results, "passed", size=1)[0] > len(LABELS)


def test_order_statistics_are_held_against_the_exact_answers(tmp_path: Path) -> None:
    some = events(3_000, keys="a")
    snapshots: list[dict[str, Any]] = []
    histogram = known(
        mechanism="two_level_k",
        queries=["top_k:3", "quantile:0.5"],
        keys=["a"],
        domain=LABELS[:9],
        horizon=60,
    )
    settings = settings_of(tmp_path, [histogram])
    results = backtest(settings, tmp_path, some, top=TOP, snapshots=snapshots)
    found = numbers(results, "error_mean")
    within = numbers(results, "within_error")
    exact: Counter[str] = Counter()
    left = list(some)
    for snapshot in snapshots:
        while left and int(str(left[0]["ts"])) < snapshot["end"]:
            exact.update(dict(bounded(left.pop(0), 2, 1)))
        counts = sorted((exact[label] for label in LABELS[:9]), reverse=True)
        top, median = (answer["value"] for answer in snapshot["answers"])
        errors = [
            abs(a - b)
            for a, b in zip([*top, median], [*counts[:3], counts[4]], strict=True)
        ]
        tick = snapshot["end"] // 1_000
        if snapshot["tick"] == 60 or snapshot["epoch"] != snapshots[0]["epoch"]:
            break  # of the first epoch only: the next begins at zero
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
        for i in range(4_000)
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


def test_sums_and_means_are_compared_with_those_of_the_bounded_numbers(
    tmp_path: Path,
) -> None:
    """Every event's number counts for its first two items; numbers are whole steps, some clamped."""
    some = events(1_500, seconds=12.0)
    for place, event in enumerate(some):
        event["paid"] = place % 9 - 1
    of = {"field": "paid", "from": 0, "to": 6, "step": 1}
    snapshots: list[dict[str, Any]] = []
    histogram = unk(keys=["a", "b"], epsilon=6.0, sum=of)
    settings = settings_of(tmp_path, [histogram])
    results = backtest(settings, tmp_path, some, seeds=2, top=TOP, snapshots=snapshots)
    names = ("sum_error_mean", "sum_coverage", "mean_error_mean", "mean_coverage")
    found = {name: numbers(results, name) for name in names}
    measured = 0
    for end in sorted({snapshot["end"] for snapshot in snapshots}):
        off = []
        sums_hold = []
        means_off = []
        hold = []
        for snapshot in (one for one in snapshots if one["end"] == end):
            exact: dict[str, list[int]] = defaultdict(list)
            for event in some:
                if event["ts"] < end and event["key"] == snapshot["key"]:
                    for label, _ in bounded(event, 2, 1):
                        exact[label].append(min(max(int(event["paid"]), 0), 6))  # type: ignore[call-overload]
            labels = (label for label, _ in snapshot["items"])
            for label, (total, mean, low, high) in zip(
                labels, snapshot["sums"], strict=True
            ):
                paid = exact[label]
                if paid:
                    off.append(abs(total - sum(paid)))
                    sums_hold.append(off[-1] <= 1.96 * snapshot["sum"]["sd"])
                    hold.append(low <= sum(paid) / len(paid) <= high)
                    means_off += (
                        [] if mean is None else [abs(mean - sum(paid) / len(paid))]
                    )
        tick = end // 1_000
        wanted = dict(zip(names, (off, sums_hold, means_off, hold), strict=True))
        for name, values in wanted.items():
            if values and tick in found[name]:
                assert found[name][tick] == pytest.approx(np.mean(values), rel=1e-3), (
                    name,
                    tick,
                )
                measured += 1
    assert measured > 20
    for run in (0, 1):
        assert 0.8 < numbers(results, "mean_coverage", seed=run)[0] <= 1


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
