"""Alternatives at the same settings and budget, and advice: other mechanisms, counters, ends.

Mechanisms of one family are for the same or a similar question. Each row names the settings
assumed because this histogram lacks them. `error` bounds the error of every count (of an order
statistic: every answer in its first segment) with probability 1 - beta, for `items` labels.

`end_share` trades noise at other ticks for less noise at an epoch's last tick, at the same cost.
The recommended share is the largest one with at most a third more noise at the worst tick than
without any, if it takes at least a twentieth off the last tick. Only the operator knows whether the
last tick matters.

A config "with D0 in `max_items`" has there the most items of one protected event or user. A counter
adds noise to running counts; its radix is how many blocks of ticks its tree joins into one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from msgspec import structs

from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.windows import NEVER
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.kinds import KINDS, kinds_of
from workers.mechanisms.counters.tree import best_radix
from workers.mechanisms.curves import DigitCurve
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.sliding import Sliding
from workers.privacy.model import (
    Alternative,
    Change,
    CounterChoice,
    EndChoice,
    HistogramPlan,
    Noise,
    WithoutEpochs,
)
from workers.privacy.plan.noise import (
    COUNT_LAWS,
    alternatives_to,
    buckets_of,
    last_tick,
    noise_of,
    thresholds_of,
    worst_of_all,
)
from workers.privacy.plan.ranks import rank_advice
from workers.privacy.plan.windows import worst_and_rms

# Settings that a mechanism to compare with takes over; the second ones only without epochs.
_COMMON = (
    "name",
    "tick_ms",
    "horizon",
    "start",
    "max_items",
    "max_count",
    "epsilon",
    "rho",
    "delta",
    "keys",
    "generation",
)
_NEVER = ("windows", "hop", "max_items_per_user", "user_period", "unique_users")
Assumed = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Case:
    """The histogram that others are compared with.

    `domain` are its declared labels, if any. Error bounds are for `items` labels, and fail with
    probability `beta`.
    """

    config: HistogramConfig
    unit: str
    domain: tuple[str, ...]
    noise: Noise
    items: int
    beta: float


def alternatives(
    config: HistogramConfig,
    mechanism: Mechanism,
    noise: Noise,
    unit: str,
    items: int,
    beta: float,
) -> Iterator[Alternative]:
    """Yield the mechanism in use first, then others at the same budget.

    `config` has D0 in `max_items`, `noise` is that of its mechanism. Error bounds are for `items`
    labels and fail with probability `beta`.
    """
    domain = tuple(getattr(config, "domain", None) or ())
    case = _Case(config, unit, domain, noise, items, beta)
    yield _row(case, config, {}, mechanism)
    if config.without_epochs:
        yield from _beside_never(case)
        return
    # The same mechanism, with other ticks at which new items may be shown. Only one schedule has
    # `every`, the step between these ticks.
    for assumed in config.other_schedules(last_tick(config)):
        changed = structs.replace(config, **({"every": None} | assumed))
        yield _built(case, changed, assumed)
    for name in alternatives_to(config.mechanism):
        if name != config.mechanism:
            for assumed in MECHANISMS[name].compared_settings(config):
                yield _alternative(case, name, assumed)


def _beside_never(case: _Case) -> Iterator[Alternative]:
    """Yield alternatives to a histogram without epochs.

    First the same counts since an epoch began, as long as the longest window; then mechanisms that
    list their labels. Those that need epochs, one-shot ones and counters answer other questions.
    """
    config = case.config
    longest = max(config.windows)
    with_epochs = structs.replace(
        config,
        horizon=longest // config.tick_ms,
        windows=(),
        hop=None,
        user_period=None,
        unique_users=None,
    )
    yield _built(case, with_epochs, {"horizon": format_duration(longest)})
    for name, kind in MECHANISMS.items():
        if kind.about.takes_horizon_never and name != config.mechanism:
            yield _alternative(case, name, {"horizon": "never"})


def _alternative(case: _Case, name: str, assumed: Assumed) -> Alternative:
    """Return the row of mechanism `name`, with this histogram's settings and those `assumed`.

    If it needs a list of labels and there is none, state the noise that it would have with one.
    """
    kind = MECHANISMS[name]
    common = (*_COMMON, *_NEVER) if case.config.without_epochs else _COMMON
    values = {field: getattr(case.config, field) for field in common} | assumed
    if kind.about.takes_end_share:
        values["end_share"] = case.config.end_share
    needs_domain = kind.lists_labels(assumed)
    reason = ""
    if needs_domain and case.domain:
        values["domain"] = case.domain
    elif needs_domain:
        # Noise does not depend on the labels, so any list will do that is longer than the top k.
        reason = "needs a list of labels: domain, domain_file or buckets"
        count = 1 + int(assumed.get("top_k") or assumed.get("k") or 1)
        values["domain"] = tuple(f"label {i}" for i in range(count))
    try:
        config = kind(**values)
    except ValueError as error:
        return _impossible(name, assumed, error)
    if case.config.max_items_per_user is not None and not config.protects_users:
        reason = 'not with privacy.unit = "user": one user takes part in many releases'
        return _impossible(name, assumed, reason)
    return _built(case, config, assumed, reason)


def _built(
    case: _Case, config: HistogramConfig, assumed: Assumed, reason: str = ""
) -> Alternative:
    """Return the row of another configuration; if its budget cannot be met, the reason.

    `reason`: why these settings do not allow it; "": they do.
    """
    try:
        mechanism = build(config, case.unit)
    except ValueError as error:
        return _impossible(config.mechanism, assumed, error)
    return _row(case, config, assumed, mechanism, reason)


def _row(
    case: _Case,
    config: HistogramConfig,
    assumed: Assumed,
    mechanism: Mechanism,
    reason: str = "",
) -> Alternative:
    """Return a table row: the noise, threshold and error of a mechanism that could be built.

    `reason`: why it cannot be used with these settings; "": it can.
    """
    chosen = config is case.config
    publishes_counts = mechanism.law in COUNT_LAWS
    noise = case.noise if chosen else noise_of(mechanism, config)
    error = mechanism.first_error()
    if publishes_counts:
        counts = noise.ticks_looked_at * case.items
        error = worst_of_all(mechanism.law, noise.worst_sd, counts, case.beta)
    thresholds = thresholds_of(mechanism, config, noise)
    return Alternative(
        mechanism=config.mechanism,
        chosen=chosen,
        possible=not reason,
        assumed=assumed,
        answers=answers_of(config),
        reason=reason,
        worst_sd=noise.worst_sd if publishes_counts else None,
        rms_sd=noise.rms_sd if publishes_counts else None,
        threshold=None if thresholds is None else thresholds.most,
        error=error,
    )


def answers_of(config: HistogramConfig) -> str:
    """Return what snapshots show; without epochs counts are not running ones, but of windows."""
    answers = config.about.text_in_plan
    return (
        answers.replace("running counts", "counts in windows")
        if config.without_epochs
        else answers
    )


def _impossible(name: str, assumed: Assumed, reason: object) -> Alternative:
    """Return the row of a mechanism that cannot be built, with the reason."""
    # Messages of settings begin with "histogram 'NAME': ", which is left out.
    why = str(reason).partition("': ")[2] or str(reason)
    answers = MECHANISMS[name].about.text_in_plan
    return Alternative(
        mechanism=name, possible=False, assumed=assumed, answers=answers, reason=why
    )


def counter_choices(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise
) -> Iterator[CounterChoice]:
    """Yield the counters to choose from, with their noise; `config` has D0 in `max_items`."""
    # None if the mechanism does not answer queries.
    first_error = mechanism.first_error()
    if config.without_epochs:
        return  # one counter is made for it
    if blocks := mechanism.blocks():
        yield from _radixes(config, blocks, noise)
    elif not config.about.counters or config.pure:
        return
    elif first_error is not None:
        yield from _counters_of_queries(config, mechanism, first_error)
    else:
        yield from _counters(config, mechanism, noise)


def _counters(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise
) -> Iterator[CounterChoice]:
    """Yield the counters for running counts, the one in use first, whose noise is `noise`.

    Counters that these settings do not allow are included, with the reason.
    """
    ticks = config.horizon_ticks
    in_use = (config.counter, config.radix or KINDS[config.counter].radixes(ticks)[0])
    choices = [(name, radix) for name in KINDS for radix in KINDS[name].radixes(ticks)]
    for name, radix in dict.fromkeys([in_use, *choices]):
        kind = KINDS[name]
        chosen = (name, radix) == in_use
        choice = CounterChoice(counter=name, radix=radix, chosen=chosen)
        if reason := _why_not(kind, config):
            choice = structs.replace(choice, possible=False, reason=reason)
        if chosen:
            worst = noise.worst_sd
            rms = noise.rms_sd
            bytes_per_row = mechanism.row_bytes().noise
        elif kind.is_beyond(ticks):
            # It cannot be made for so many ticks, so only the reason is stated.
            yield choice
            continue
        elif other := mechanism.other_counter(name, radix):
            variance, bytes_per_row = other
            worst, rms = variance.worst_and_rms(noise.ticks_looked_at)
        else:
            continue  # this mechanism has one counter only
        times = worst / noise.worst_sd
        yield structs.replace(
            choice,
            worst_sd=worst,
            rms_sd=rms,
            times_worst=times,
            noise_per_row=bytes_per_row,
        )


def _why_not(kind: type[Counter], config: HistogramConfig) -> str:
    """Return why a histogram cannot use a counter; "": it can."""
    # A row of such a counter grows with every tick, from tick 1 on.
    if kind.grows and config.about.counters != "every":
        return "only where labels are declared: an item that comes later would be caught up from tick 1"
    if kind.is_beyond(config.horizon_ticks):
        return f"only for a horizon of at most {kind.longest:,} ticks"
    return ""


def _radixes(
    config: HistogramConfig, in_use: DigitCurve, noise: Noise
) -> Iterator[CounterChoice]:
    """Yield radixes, the one in use first, of a mechanism whose counts are sums of blocks of ticks.

    Each block decides for itself what is shown, so such a mechanism takes no other counter.
    `in_use` is the noise with the present settings, including the radix.
    """
    last = noise.ticks_looked_at
    for radix in dict.fromkeys((in_use.radix, best_radix(last), 2, 4, 16)):
        chosen = radix == in_use.radix
        if chosen:
            worst = noise.worst_sd
            rms = noise.rms_sd
        elif radix > last:
            continue
        else:
            try:
                other = build(structs.replace(config, radix=radix))
            except ValueError:  # refused by these settings
                continue
            worst, rms = other.curve(last).worst_and_rms(last)
        yield CounterChoice(
            counter=config.counter,
            radix=radix,
            chosen=chosen,
            worst_sd=worst,
            rms_sd=rms,
            times_worst=worst / noise.worst_sd,
        )


def _counters_of_queries(
    config: HistogramConfig, mechanism: Mechanism, first_error: float
) -> Iterator[CounterChoice]:
    """Yield the counters of a mechanism that answers queries, the one in use first.

    `error` bounds an answer while values are small; `first_error` is that of the counter in use.
    """
    in_use = (config.counter, config.radix)
    others = [(kind, None) for kind in kinds_of(config.about)]
    for kind, radix in dict.fromkeys([in_use, *others]):
        other = mechanism
        if (kind, radix) != in_use:
            other = build(structs.replace(config, counter=kind, radix=radix))
        error = other.first_error() or 0.0
        yield CounterChoice(
            counter=kind,
            radix=radix,
            chosen=(kind, radix) == in_use,
            error=error,
            times_worst=error / first_error,
        )


# Values of `end_share` to state.
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
# The rule of the module's docstring: the most noise at the worst tick, compared with no share.
_WORST_RATIO_MAX = Fraction(4, 3)
# Advise what leaves less than this share of the noise.
_WORTHWHILE = 0.95
_SEGMENTS_MOST = 64


def end_choices(
    config: HistogramConfig, mechanism: Mechanism, unit: str
) -> tuple[EndChoice, ...]:
    """Return the effect of every `end_share`, that of none first; empty if it cannot be set.

    `config` has D0 in `max_items`.
    """
    last = config.horizon_ticks
    if not config.can_end or last is None or last == 1:
        return ()
    in_use = () if config.end_share is None else (config.end_share,)
    shares = [None, *sorted({*SHARES, *in_use})]
    rows = list(_end_rows(config, mechanism, unit, shares, last))
    best = _best_end(rows)
    return tuple(structs.replace(row, recommended=row is best) for row in rows)


def _end_rows(
    config: HistogramConfig,
    mechanism: Mechanism,
    unit: str,
    shares: Sequence[float | None],
    last: int,
) -> Iterator[EndChoice]:
    """Yield the noise for each `end_share` that can be built; `last` is the epoch's last tick.

    None is marked as recommended yet: `_best_end` compares them.
    """
    # Over a long epoch a threshold takes long to find: build without one, and state none.
    quick = config.with_quick_thresholds()
    slow = quick is not config
    for share in shares:
        changed = structs.replace(quick, end_share=share)
        chosen = share == config.end_share
        try:
            ending = mechanism if chosen else build(changed, unit)
        except ValueError:
            continue  # it would need more noise than samplers can draw
        # An end share makes the counter begin this many places before tick 1.
        counter = ending.public()["counter"]
        offset = counter.get("offset", 0) if isinstance(counter, dict) else 0
        variance = ending.curve(last)
        worst, rms = variance.worst_and_rms(last)
        threshold = None if slow else ending.threshold(last)
        yield EndChoice(
            end_share=share,
            chosen=chosen,
            recommended=False,
            offset=offset,
            worst_sd=worst,
            rms_sd=rms,
            last_sd=ending.sd(last),
            last_threshold=None if threshold is None else float(threshold),
            curve=buckets_of(variance, last),
        )


def _best_end(rows: Sequence[EndChoice]) -> EndChoice | None:
    """Return the row to recommend, by the rule in the module's docstring; None: not worth it."""
    without = next((row for row in rows if row.end_share is None), None)
    if without is None:
        return None
    # A ratio of exactly 4/3 is allowed, and as a float it may be rounded down.
    most = without.worst_sd * math.nextafter(float(_WORST_RATIO_MAX), 2)
    near = [row for row in rows if row.end_share is not None and row.worst_sd <= most]
    # A larger share has less noise at the last tick.
    best = min(near, key=lambda row: row.last_sd, default=None)
    if best is None or best.last_sd > _WORTHWHILE * without.last_sd:
        return None
    return best


def advice(
    config: HistogramConfig, mechanism: Mechanism, plan: HistogramPlan
) -> Iterator[str]:
    """Yield a sentence for everything that other settings would do better, or cost.

    `plan` is complete but for these sentences; `config` has D0 in `max_items`.
    """
    alternatives = plan.mechanisms
    if sentence := rank_advice(plan.ranks):
        yield sentence
    if plan.without_epochs is not None:
        yield from _advise_never(config, plan.without_epochs, alternatives)
        return
    if config.windows:
        yield from _advise_windows(config, mechanism, plan.noise.windows)
    yield from _advise_counter(plan.counters)
    yield from _advise_end(plan.ends)
    family = config.about.family
    if family == "statistic":
        yield from _advise_statistic(mechanism, alternatives)
    if family == "running":
        yield from _advise_running(config, mechanism, alternatives)
    if family == "tick":
        yield from _advise_tick(mechanism, plan.noise, alternatives)
    yield from _advise_schedule(alternatives)


def _advise_never(
    config: HistogramConfig, plan: WithoutEpochs, alternatives: Sequence[Alternative]
) -> Iterator[str]:
    """Yield advice for a histogram without epochs: one window alone, epochs, or declared labels."""
    shared = [(window, window.alone) for window in plan.windows if window.alone]
    if shared:
        window, alone = min(
            shared, key=lambda pair: pair[1].worst_sd / pair[0].worst_sd
        )
        named = format_duration(window.ms)
        why = "one noise serves"
        if config.unique_users:
            why = "the budget is shared by"
        yield (
            f'If you need no window but {named}: windows = ["{named}"] alone would have {100 * alone.worst_sd / window.worst_sd:.0f} % '
            f"of its noise, as {why} all windows."
        )
    # The row after the one in use, of the same mechanism: counts since an epoch began.
    since = next(
        (row for row in alternatives[1:] if row.mechanism == config.mechanism), None
    )
    if since is not None and since.worst_sd is not None:
        horizon = since.assumed["horizon"]
        yield (
            f'For counts that begin at zero every {horizon}, take a histogram with horizon = "{horizon}" beside this one: it is '
            f"charged by itself, and at this budget its sd is up to {since.worst_sd:,.3g}."
        )
    if not config.declared:
        row = next(
            (
                row
                for row in alternatives
                if MECHANISMS[row.mechanism].about.whole_domain
            ),
            None,
        )
        if row is not None and row.worst_sd is not None:
            yield f"With a list of labels, {row.mechanism} would show them all, without a threshold; worst sd {row.worst_sd:,.3g}."


def _advise_windows(
    config: HistogramConfig, mechanism: Mechanism, changes: Sequence[Change]
) -> Iterator[str]:
    """Compare changes over windows with windows without epochs, where these settings allow them.

    `changes` is the noise of a running count's change, by window.
    """
    unit = mechanism.guarantee.unit
    try:
        sliding = build(structs.replace(config, horizon=NEVER), unit)
    except ValueError:
        return
    if not isinstance(sliding, Sliding):
        return
    change, counter = max(
        zip(changes, sliding.windows, strict=True), key=lambda pair: pair[0].ms
    )
    noise, _ = worst_and_rms(counter)
    if noise < change.most_sd:
        yield (
            f'horizon = "never" with these windows would publish their counts for ever, also over midnight, for one charge: '
            f"sd {noise:,.3g} for the last {format_duration(change.ms)}, where the change of a count has up to {change.most_sd:,.3g}."
        )


def _advise_counter(counters: Sequence[CounterChoice]) -> Iterator[str]:
    """Yield a sentence on the counter with least noise, if clearly better than that in use.

    The first counter is the one in use. If the best takes more bytes with every tick (`grows`), the
    sentence says how many.
    """
    usable = [c for c in counters[1:] if c.possible and c.times_worst is not None]
    best = min(usable, key=lambda c: c.times_worst or 1.0, default=None)
    if best is not None and (times := best.times_worst or 1.0) < _WORTHWHILE:
        name = f'counter = "{best.counter}"' + (
            f", radix = {best.radix}" if best.radix else ""
        )
        what = "the error promised" if best.error is not None else "the worst noise"
        held = ""
        if KINDS[best.counter].grows and best.noise_per_row:
            held = f", at {best.noise_per_row:,} bytes an item"
        yield f"{name} would give {100 * times:.0f} % of {what}{held}."


def _advise_end(ends: Sequence[EndChoice]) -> Iterator[str]:
    """Yield a sentence on the recommended `end_share`, if none is set."""
    unset = next((row for row in ends if row.chosen and row.end_share is None), None)
    best = next((row for row in ends if row.recommended), None)
    if unset is not None and best is not None:
        yield (
            f"If you keep only the last counts of an epoch: end_share = {best.end_share} would give the last tick "
            f"{100 * best.last_sd / unset.last_sd:.0f} % of its noise, and the worst tick {100 * best.worst_sd / unset.worst_sd:.0f} %."
        )


def _plain(
    others: Sequence[Alternative], *, listed: bool | None = None
) -> list[Alternative]:
    """Return the alternatives that are plain counters: no selection of items, no queries.

    `listed`: only those that need a list of labels (True), or need none (False); None: both.
    """
    return [
        row
        for row in others
        if (kind := MECHANISMS[row.mechanism]).about.plain
        and listed in (None, kind.lists_labels(row.assumed))
    ]


def _advise_statistic(
    mechanism: Mechanism, others: Sequence[Alternative]
) -> Iterator[str]:
    """Yield whether an order statistic's own mechanism beats reading it off noisy counts.

    The error of counts is the same for all values. That of the mechanism grows with the value, from
    one segment of values to the next.
    """
    rows = [row for row in _plain(others, listed=True) if row.error is not None]
    if not rows:
        return
    counts = rows[0].error or 0.0  # never None: `rows` have one
    name = rows[0].mechanism
    first_error = mechanism.first_error() or 0.0  # in the first segment, so the least
    if first_error >= counts:
        yield (
            f"Not worth it here: {name} is off by at most {counts:,.0f} in any count, so also in its maximum, where this "
            f"promises {first_error:,.0f} at best. Order statistics pay only where values stay tiny against the horizon."
        )
        return
    below = [
        value
        for _, value, error in mechanism.segments_up_to(_SEGMENTS_MOST)
        if error < counts
    ]
    if not below:
        yield f"Worth it up to c_max: {name} is off by up to {counts:,.0f} in a count, this by {first_error:,.0f}."
        return
    yield (
        f"Worth it while the value stays below about {below[-1]:,}: {name} is "
        f"off by up to {counts:,.0f} in a count, and from there on less than this."
    )


def _advise_running(
    config: HistogramConfig, mechanism: Mechanism, rows: Sequence[Alternative]
) -> Iterator[str]:
    """Yield advice for running counts: a mechanism with less noise, or declared labels.

    The first of `rows` is the mechanism in use. `config.pays` says when it is better than plain
    counters, as in "pays where ...".
    """
    error = rows[0].error
    listed = bool(mechanism.domain())
    possible = (row for row in _plain(rows, listed=listed) if row.possible)
    plain = next((row for row in possible if row.error), None)
    if config.pays and error and plain and plain.error and plain.error < error:
        yield (
            f"{plain.mechanism} has {100 * plain.error / error:.0f} % of this noise at the same budget; "
            f"{config.mechanism} {config.pays}."
        )
    yield from mechanism.hints()
    if config.about.plain and not listed:
        for row in _plain(rows, listed=True):
            if row.worst_sd is not None:
                yield f"With a list of labels, {row.mechanism} would show them all, without a threshold; worst sd {row.worst_sd:,.3g}."
    if config.horizon_ticks is None:
        yield "An epoch without an end has more noise at every length than one of that length; counts never restart."


def _advise_tick(
    mechanism: Mechanism, noise: Noise, alternatives: Sequence[Alternative]
) -> Iterator[str]:
    """Yield advice for counts of each tick by itself: when running counts have less noise.

    Also when the mechanism that answers the same with Gaussian noise has less (`gaussian_like`).
    """
    running = [row for row in _plain(alternatives) if row.possible and row.worst_sd]
    yield "Each tick by itself: horizon does not change the noise. Adding up n snapshots has noise of sqrt(n) times the sd."
    if running and running[0].worst_sd:
        # The noise of n ticks added up grows with sqrt(n).
        ticks = (running[0].worst_sd / noise.worst_sd) ** 2
        if ticks < noise.ticks_looked_at:
            yield f"For sums over more than {ticks:,.0f} ticks the running counts of {running[0].mechanism} have less noise."
    gauss = mechanism.about.gaussian_like
    row = next((row for row in alternatives if row.mechanism == gauss), None)
    if row is None or not row.worst_sd:
        return
    less = row.worst_sd / noise.worst_sd
    if mechanism.law == "laplace" and less < 1:
        yield f"{gauss} does the same with {100 * less:.0f} % of the noise, and a lower threshold."
    # A top k has Gaussian noise itself, and pays for k items only.
    elif row.possible and less < 1:
        yield f"{gauss} has {100 * less:.0f} % of this noise; a top k pays where max_items is above 2 k."


def _advise_schedule(others: Sequence[Alternative]) -> Iterator[str]:
    """Yield a sentence if testing for new items at other ticks lowers the highest threshold.

    The first of `others` is the mechanism in use; rows of the same mechanism differ from it only in
    these ticks.
    """
    chosen = others[0]
    thresholds = [
        (row.threshold, row.assumed)
        for row in others[1:]
        if row.mechanism == chosen.mechanism and row.threshold is not None
    ]
    if chosen.threshold is None or not thresholds:
        return
    best, assumed = min(thresholds, key=lambda pair: pair[0])
    if best < chosen.threshold:
        named = ", ".join(f"{name} = {value}" for name, value in assumed.items())
        yield f"{named} would bring the highest threshold from {chosen.threshold:,.0f} down to {best:,.0f}."
