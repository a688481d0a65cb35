"""Every figure of README and docs that follows from settings, or that a command prints.

`COMPUTED` writes whole blocks and tables; `SENTENCES` are sentences with `{}` for each figure.
`python -m tests.docs --write` puts both into the documents; test_figures.py compares them.
"""

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from bench.plots import counters
from tests import ROOT
from tests.docs import scenes
from workers.mechanisms.config.durations import format_duration, parse_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.kinds import kinds_of, make_counter
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.curves import ROUNDING
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.order_statistics.mechanisms import BoundedMaxConfig
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.base import UnkBaseConfig
from workers.mechanisms.running.sparse_gumb import SparseGumb, SparseGumbConfig
from workers.pipeline.factory import mechanisms
from workers.privacy.model import HistogramPlan
from workers.privacy.phrasing import (
    EPSILON_VOID,
    EPSILON_WARNED,
    WORDS,
    guesses_right,
    up_to,
)
from workers.privacy.plan.make import plan_of
from workers.privacy.total import DAY_MS, charge_of, epsilon_at, spans_of
from workers.settings.settings import load

PRODUCTS = f"[[histogram]]{scenes.PRODUCTS}"


# ---- snapshots -----------------------------------------------------------------------------------


def readme_sample(_bootstrap: str) -> str:
    """Return the first lines of examples/orders/read_orders.py, of one shop."""
    lines = [
        f"{s['key']} tick {s['tick']}: {s['items']}, sd {s['sd']:.1f}, new items from {s['threshold'] + 1:.0f}"
        for s in scenes.of_shop(scenes.products())[:2]
    ]
    return "\n".join([*lines, "...", ""])


def snapshot(_bootstrap: str) -> str:
    first = next(one for one in scenes.products() if '"key":"s1"' in one)
    return _broken(first, '"items"', '"guarantee"', '"mechanism"')


def _broken(text: str, *before: str) -> str:
    """Return JSON on several lines, the next one from each of these names on."""
    for name in before:
        text = text.replace(f" {name}", name, 1).replace(name, f"\n {name}", 1)
    return f"{text}\n"


def _between(text: str, first: str, following: str) -> str:
    return text[text.index(first) : text.index(following)].rstrip(",")


def sums(_bootstrap: str) -> str:
    further = 'sum = { field = "lines[].price", from = 0, to = 20, step = 0.01 }\ntotal_share = 0.05\n'
    head = scenes.HEAD.replace('items = "products"', 'items = "lines[].sku"')
    first = scenes.snapshots(head + PRODUCTS + further, scenes.priced_orders())[0]
    text, _, _ = first[first.index('"items"') :].partition(',"threshold"')
    without_sd, _, _ = text.rpartition(',"sd":')
    return without_sd.replace('"sum"', '\n"sum"') + "\n"


def quantiles(_bootstrap: str) -> str:
    histogram = PRODUCTS.replace('"unk_base"', '"known_base"')
    further = "buckets = [0, 10, 50]\n"
    first = scenes.snapshots(scenes.HEAD + histogram + further, scenes.latencies())[0]
    return _between(first, '"edges"', ',"sd":') + "\n"


def part(_bootstrap: str) -> str:
    published = scenes.snapshots(scenes.EXAMPLE + "split = 4\n", scenes.orders())
    second = next(one for one in published if '"part":2' in one)
    return second[second.index('"id"') :] + "\n"


def window(_bootstrap: str) -> str:
    text = (ROOT / "examples" / "windows.toml").read_text()
    published = scenes.snapshots(text, scenes.orders())
    hour = next(one for one in published if '"products.1h"' in one)
    head, _, _ = hour.partition(',"items"')
    return head.replace(',"window"', ',\n "window"') + "\n"


@cache
def _windows() -> str:
    text = scenes.EXAMPLE + 'windows = ["5m", "1h"]\n'
    last = scenes.snapshots(text, scenes.orders())[-1]
    return _between(last, '"windows"', ',"guarantee"')


def windows(_bootstrap: str) -> str:
    return f"{_windows()}\n"


def windows_indented(_bootstrap: str) -> str:
    return f"    {_windows()}\n"


def history(_bootstrap: str) -> str:
    text = json.dumps(scenes.history())
    text = _broken(text, '"complete"', '"kept"', '"series"', '"entries"')
    text = text.replace(' "guarantee"', '\n             "guarantee"')
    return text.replace(' "end_time"', '\n              "end_time"')


def not_ready(_bootstrap: str) -> str:
    return (
        json.dumps(scenes.not_ready()).replace(', "partitions"', ',\n "partitions"')
        + "\n"
    )


# ---- commands ------------------------------------------------------------------------------------


def spent(_bootstrap: str) -> str:
    """Return the parts of `budget`'s output that docs/budget.md shows."""
    lines = [line.rstrip() for line in scenes.spent().splitlines()]
    first = lines[
        : lines.index(next(line for line in lines if line.startswith("  generation 2")))
        + 1
    ]
    total = lines.index("all together, for one event")
    return "\n".join([*first, "  ...", *lines[total : total + 4], ""])


def outlook(_bootstrap: str) -> str:
    lines = scenes.outlook().splitlines()
    begin = next(i for i, line in enumerate(lines) if "the worker may run on" in line)
    return "\n".join([*lines[begin : begin + 2], ""])


def refused(_bootstrap: str) -> str:
    lines = list[str]()
    line = ""
    for word in scenes.refused().split():
        if len(line) + len(word) > 120:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line, ""])


def checked(_bootstrap: str) -> str:
    shown, _, _ = scenes.checked().partition("\n\nproducts")
    return "".join(f"    {line}".rstrip() + "\n" for line in shown.splitlines())


def exported(bootstrap: str) -> str:
    return f"    {scenes.exported(bootstrap).strip()}\n"


# ---- tables --------------------------------------------------------------------------------------


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def odds(_bootstrap: str) -> str:
    rows = []
    for most, words in WORDS:
        epsilon = f"above {EPSILON_VOID:g}" if math.isinf(most) else f"up to {most:g}"
        right = guesses_right(most, 0.0) or "nearly every time"
        worth = ""
        if most > EPSILON_WARNED:
            worth = ": the promise is weak"
        if most > EPSILON_VOID:
            worth = ': next to nothing is promised, "void" in tables'
        rows.append((epsilon, right, words.rstrip(",") + worth))
    return _table(
        ("epsilon", "right at most, of 100", "someone who sees all snapshots"), rows
    )


def _pair(errors: counters.Errors) -> str:
    return f"{errors.worst:.1f} / {errors.rms:.1f}"


def _endless(kind: str) -> str:
    """Return the worst noise of a counter without an end up to three ticks."""
    curve = make_counter(kind, None, counters.RHO_ITEM).curve()
    worst = [
        curve.variance(curve.noisiest(1 << level)[:1])[0] for level in (10, 16, 20)
    ]
    return " / ".join(f"{math.sqrt(variance):.1f}" for variance in worst)


def counters_here(_bootstrap: str) -> str:
    never = "not possible"
    rows = []
    for level in (10, 16, 20):
        ticks = 1 << level
        sqrt = _pair(counters.sqrt(ticks)) if level <= 16 else never
        name = f"noise, T = 2^{level}" if level == 10 else f"T = 2^{level}"
        rows.append(
            (name, _pair(counters.lifted(ticks)), _pair(counters.tree(ticks)), sqrt)
        )
    endless = '`horizon = "unbounded"`, worst up to tick 2^10 / 2^16 / 2^20'
    rows += [
        (endless, _endless("lifted"), _endless("tree"), never),
        ("memory and time of an item", "about log T", "about log T", "grows with T"),
        (
            "further setting",
            "`end_share`",
            "`radix`, 2 to 1,024; default: the best for the horizon, 5 if unbounded",
            "none",
        ),
    ]
    return _table(("", "`lifted` (default)", "`tree`", "`sqrt`"), rows)


def abilities(_bootstrap: str) -> str:
    """Return what every mechanism declares of itself."""
    rows = []
    for name, config in MECHANISMS.items():
        about = config.about
        with_setting = about.subtracts_with
        taken = {
            "end_share": about.takes_end_share,
            "sum": about.takes_sum,
            "total_share": about.takes_total_share,
            "windows": about.subtracts or with_setting,
            "quantiles": about.has_quantiles or with_setting,
            "split": about.per_item,
        }
        settings = ", ".join(f"`{setting}`" for setting, able in taken.items() if able)
        if with_setting:
            settings += f" (with `{with_setting}`)"
        kinds = ", ".join(f"`{kind}`" for kind in kinds_of(about))
        horizon = "bounded" if about.needs_end else "any"
        rows.append(
            (f"[`{name}`](#{name})", about.text_in_plan, kinds, horizon, settings)
        )
    return _table(("", "shows", "counters", "horizon", "takes"), rows)


def counters_of_papers(_bootstrap: str) -> str:
    """Return the table that `make plots` prints."""
    errors_of = {
        "binary tree": counters.binary,
        "tree": counters.tree,
        "binary tree, Honaker": counters.honaker,
        "lifted": counters.lifted,
        "sqrt": counters.sqrt,
        "BLT, 5 buffers": counters.blt,
        "lower bound": counters.bound,
    }
    levels = counters.SHOWN_LEVELS
    rows = []
    for name, errors in errors_of.items():
        computed = [errors(1 << level) for level in levels]
        rows.append((name, *(f"{one.worst:.2f} / {one.rms:.2f}" for one in computed)))
    return _table(("counter", *(f"2^{level}" for level in levels)), rows)


def ends(_bootstrap: str) -> str:
    horizons = (100, 1_000, 1 << 16)
    rows = []
    for share in (None, 0.3, 0.6):
        cells = []
        for horizon in horizons:
            counter = LiftedCounter(horizon, counters.RHO_ITEM, end_share=share)
            curve = counter.curve()
            worst = math.sqrt(counter.variances(curve.noisiest(horizon)[:1])[0])
            mean = math.sqrt(curve.mean(horizon) - ROUNDING)
            last = math.sqrt(counter.variances(np.array([horizon]))[0])
            cells.append(f"{worst:.1f} / {mean:.1f} / {last:.2f}")
        rows.append(("none" if share is None else f"{share:g}", *cells))
    return _table(("`end_share`", "T = 100", "T = 1,000", "T = 2^16"), rows)


def _of_two_seconds(**own: object) -> HistogramPlan:
    common = {
        "name": "h",
        "tick_ms": 2_000,
        "max_items": 1,
        "epsilon": 1.0,
        "delta": 1e-9,
        "keys": ("s1",),
    }
    config = UnkBaseConfig(**common, **own)  # type: ignore[arg-type]  # checked by the record
    return plan_of(config, build(config), "topic", "event")


@cache
def _sliding(*windows: str) -> HistogramPlan:
    lengths = tuple(map(parse_duration, windows))
    return _of_two_seconds(horizon="never", windows=lengths)


def windows_without_epochs(_bootstrap: str) -> str:
    rows = []
    together = ("1m", "1h", "1d")
    published = [("1m",), ("5m",), ("1h",), ("1d",), together]
    for windows in published:
        plan = _sliding(*windows).without_epochs
        assert plan is not None and plan.rests is not None
        for window in plan.windows:
            named = f"the last {format_duration(window.ms)}"
            if len(windows) > 1:
                named += ", with the others"
            ticks = f"{window.ticks:,}"
            if window.hop > 1:
                ticks += f" to {window.most_ticks:,}"
            both = " / ".join(f"{sd:.2f}" for sd in window.sd_times_mu)
            sd = f"{window.worst_sd:.1f}"
            rest = f"{plan.rests:,} ticks"
            rows.append((named, ticks, both, sd, f"{window.threshold:,.0f}", rest))
    day = _of_two_seconds(horizon=43_200)
    mu = math.sqrt(2 * day.guarantee.rho)
    both = " / ".join(f"{sd * mu:.2f}" for sd in (day.noise.worst_sd, day.noise.rms_sd))
    assert day.thresholds is not None
    thresholds = f"{day.thresholds.least:,.0f} to {day.thresholds.most:,.0f}"
    sd = f"{day.noise.worst_sd:.1f}"
    rows.append(
        (
            'since midnight, `horizon = "1d"`',
            "1 to 43,200",
            both,
            sd,
            thresholds,
            "none",
        )
    )
    headings = (
        "published",
        "ticks of a window",
        "sd * mu, worst / rms",
        "sd, worst",
        "threshold",
        "rest",
    )
    return _table(headings, rows)


Written = Callable[[str], str]
"""A function of a broker's address (few use it) that returns a block or table as it stands in the document."""

COMPUTED: dict[str, Written] = {
    "the README's sample": readme_sample,
    "a snapshot": snapshot,
    "sums of a snapshot": sums,
    "quantiles of a snapshot": quantiles,
    "a part of a snapshot": part,
    "a window of a snapshot": window,
    "windows of a snapshot": windows,
    "windows of a snapshot, indented": windows_indented,
    "an answer of /api/history": history,
    "an answer of /readyz": not_ready,
    "quietcount budget": spent,
    "quietcount budget, under a ceiling": outlook,
    "a ceiling that is reached": refused,
    "quietcount check": checked,
    "quietcount export": exported,
    "odds": odds,
    "abilities": abilities,
    "counters": counters_here,
    "counters of other papers": counters_of_papers,
    "end_share": ends,
    "windows without epochs": windows_without_epochs,
}


# ---- sentences -----------------------------------------------------------------------------------


@cache
def _orders() -> tuple[HistogramConfig, Mechanism]:
    [config] = scenes.loaded(scenes.EXAMPLE).histograms
    return config, build(config)


def a_year_of_daily_orders() -> list[str]:
    config, mechanism = _orders()
    year = spans_of([charge_of(config, mechanism)])[-1]
    assert year.losses[0].epsilon is not None
    return [f"{year.epochs}", up_to(year.losses[0].epsilon)]


def epsilon_of_the_readme() -> list[str]:
    config, _ = _orders()
    return [f"{config.epsilon:g}"]


def odds_of_the_readme() -> list[str]:
    config, _ = _orders()
    return [guesses_right(config.epsilon or 0, config.delta) or ""]


def ten_events() -> list[str]:
    config, mechanism = _orders()
    [ten] = [
        one
        for one in spans_of([charge_of(config, mechanism)])[0].losses
        if one.events == 10
    ]
    assert ten.epsilon is not None
    return [up_to(ten.epsilon), up_to(ten.delta, 2).replace("e-0", "e-")]


def two_histograms() -> list[str]:
    costs = [
        mechanism.cost() for mechanism in mechanisms(scenes.loaded(scenes.EXAMPLE)) * 2
    ]
    epsilon = epsilon_at(costs, 2e-9)
    return [f"{epsilon:.2f}"]


def thresholds() -> list[str]:
    _, mechanism = _orders()
    noisiest = max(range(1, 43_201), key=mechanism.sd)
    both = [mechanism.threshold(t) or 0 for t in (1, noisiest)]
    return [f"{min(both):.0f}", f"{max(both):.0f}"]


def days_apart() -> list[str]:
    plan = _sliding("1m", "1h", "1d").without_epochs
    assert plan is not None
    return [f"{plan.fresh_after * 2_000 / DAY_MS:.1f}"]


def lower_ends() -> list[str]:
    return [
        f"{math.sqrt(2 * math.log(40 * ticks)):.1f}" for ticks in (64, 1_024, 43_200)
    ]


def change_in_an_hour() -> list[str]:
    [_, hour] = json.loads("{" + _windows() + "}")["windows"]
    return [f"{2 * hour['sd']:.0f}"]


@cache
def _example(name: str) -> Mechanism:
    [config] = load(ROOT / "examples" / "mechanisms" / f"{name}.toml").histograms
    return build(config)


def _threshold(name: str) -> str:
    mechanism = _example(name)
    ticks = mechanism.config.horizon_ticks or 1
    return f"{max(mechanism.threshold(t) or 0 for t in range(1, ticks + 1)):.0f}"


def _sd(name: str, tick: int = 64) -> str:
    return f"{_example(name).sd(tick):.1f}"


def thresholds_of(*names: str) -> Callable[[], list[str]]:
    return lambda: [_threshold(name) for name in names]


def deviations_of(*names: str) -> Callable[[], list[str]]:
    return lambda: [_sd(name) for name in names]


def against_gauss() -> list[str]:
    pair = ("limit_dom_laplace", "unk_gauss")
    return [*map(_sd, pair), *map(_threshold, pair)]


def of_known_base() -> list[str]:
    mechanism = _example("known_base")
    deviations = [mechanism.sd(t) for t in range(1, 65)]
    return [f"{min(deviations):.1f}", f"{max(deviations):.1f}"]


@cache
def _plan(name: str) -> HistogramPlan:
    mechanism = _example(name)
    return plan_of(mechanism.config, mechanism, "topic", "event")


def first_error_of(name: str) -> Callable[[], list[str]]:
    return lambda: [f"{_plan(name).error.segments[0].error:.0f}"]


def switches_of_sparse_gumb() -> list[str]:
    config = _example("sparse_gumb").config
    assert isinstance(config, SparseGumbConfig)
    return [f"{2 * (config.switches + 1) * (config.top_k + 1 / 8):.0f}"]


def margins_of_sparse_gumb() -> list[str]:
    mechanism = _example("sparse_gumb")
    assert isinstance(mechanism, SparseGumb)
    return [f"{mechanism.eta(tick)}" for tick in (1, 64)]


def bar_of(name: str, *path: str) -> Callable[[], list[str]]:
    """Return what a mechanism's description has at a path, such as how high its bar lies."""

    def figure() -> list[str]:
        entry: Any = _example(name).public()
        for part in path:
            entry = entry[part]
        return [f"{entry}"]

    return figure


def errors_of_bounded_max() -> list[str]:
    config = _example("bounded_max").config
    assert isinstance(config, BoundedMaxConfig)
    errors = []
    for c_max in (config.c_max, 100_000):
        mechanism = build(msgspec.structs.replace(config, c_max=c_max))
        plan = plan_of(mechanism.config, mechanism, "topic", "event")
        errors.append(f"{plan.error.figures[0].value:,.0f}")
    return [errors[0], f"{config.c_max:,}", errors[1]]


Sentence = tuple[str, str, Callable[[], list[str]]]

SENTENCES: Sequence[Sentence] = (
    (
        "README.md",
        "is in {} daily epochs a year, which add up to epsilon {}: void",
        a_year_of_daily_orders,
    ),
    ("README.md", "At epsilon = {}, as below,", epsilon_of_the_readme),
    (
        "README.md",
        "at even odds, right at most {} times in 100 instead of 50",
        odds_of_the_readme,
    ),
    ("docs/guarantee.md", "ten events have epsilon {} and delta {} (", ten_events),
    ("docs/guarantee.md", "this gives epsilon = {} at delta = 2e-9", two_histograms),
    ("docs/guarantee.md", "{} `sd` at T = 64, {} at 1,024, {} at 43,200", lower_ends),
    ("docs/guarantee.md", "that is from {} days on", days_apart),
    ("docs/limits.md", "the threshold lies between {} and {}.", thresholds),
    ("docs/consumers.md", '"in the last hour +120 ± {}"', change_in_an_hour),
    (
        "docs/mechanisms.md",
        "those with a noisy count up to {}.",
        thresholds_of("unk_base"),
    ),
    (
        "docs/mechanisms.md",
        "(`sd` at tick 64 of the examples: {} here, {} there)",
        deviations_of("meta", "unk_base"),
    ),
    (
        "docs/mechanisms.md",
        "is above `threshold` ({} in the example)",
        thresholds_of("positive_gauss"),
    ),
    (
        "docs/mechanisms.md",
        "the threshold higher ({} against {} in the example)",
        thresholds_of("positive_laplace", "positive_gauss"),
    ),
    (
        "docs/mechanisms.md",
        "the higher the bar ({} in the example; `positive_gauss`: {})",
        thresholds_of("unk_gauss", "positive_gauss"),
    ),
    (
        "docs/mechanisms.md",
        "In the example `sd` is {} against {} and `threshold` {} against {}",
        against_gauss,
    ),
    ("docs/mechanisms.md", "(`sd` {} to {}) is the better answer", of_known_base),
    (
        "docs/mechanisms.md",
        "in the example (`argmax`) `error` is {} in the first segment",
        first_error_of("two_level"),
    ),
    (
        "docs/mechanisms.md",
        "({} in the first segment of the example)",
        first_error_of("two_level_k"),
    ),
    (
        "docs/mechanisms.md",
        "2 (switches + 1) (top_k + 1/8), {} in the example",
        switches_of_sparse_gumb,
    ),
    (
        "docs/mechanisms.md",
        "({} at tick 1 and {} at tick 64 in the example)",
        margins_of_sparse_gumb,
    ),
    (
        "docs/mechanisms.md",
        "that of BOTTOM, {} above the (kbar + 1)-th largest in the example",
        bar_of("pay_what_you_get", "bottom", "above"),
    ),
    (
        "docs/mechanisms.md",
        "above the (kbar + 1)-th largest (by {} in the example)",
        bar_of("limit_dom", "algorithm", "bottom", "above"),
    ),
    (
        "docs/mechanisms.md",
        "about c_max / T: {} in the example with `c_max` = {} and 64 ticks, {} with 100,000",
        errors_of_bounded_max,
    ),
    (
        "docs/mechanisms.md",
        "below the first threshold ({} in the example)",
        bar_of("doubling", "segments", "first"),
    ),
)
