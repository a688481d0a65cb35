"""A plan as text for a terminal, at most 100 columns wide, with small plots of the noise.

`show` prints all of it. Each function that takes `say`, the printer, prints one section of it, and
prints nothing if the histogram has nothing to say there.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console

from workers.mechanisms.config.durations import format_duration, length_of
from workers.mechanisms.registry import MECHANISMS
from workers.privacy.model import (
    Alternative,
    Bucket,
    CounterChoice,
    EndChoice,
    HistogramPlan,
    Memory,
    Plan,
    RankChoice,
    SumPlan,
    Total,
    UserPeriods,
    WindowPlan,
    WithoutEpochs,
)
from workers.privacy.phrasing import counted, measures, verdict
from workers.privacy.plan.make import COMPARED_ITEMS
from workers.privacy.plan.noise import COUNT_LAWS
from workers.privacy.total import loss_caption, loss_table
from workers.runtime.printing import Printer, plural

_TOTAL = "total of all items of a stream key, shown or not"
ROWS = 6
_COLUMNS = 32
# By the eighths of a cell that are filled; in ASCII, half a cell or more is full.
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PLAIN = "    ####"
# Between the least and the most of a column.
_BAND = "░"
_PLAIN_BAND = ":"


def band(buckets: Sequence[Bucket], *, unicode: bool) -> list[str]:
    """Plot the noise from 0 on, a column per bucket; return the lines, with an axis of ticks.

    A column is solid up to the bucket's least sd, shaded up to its most.
    """
    top = max(bucket.most for bucket in buckets) or 1.0
    # The rows whose upper edges are at `top` and at half of it state that.
    labels = {ROWS - 1: f"{top:10.4g}", ROWS // 2 - 1: f"{top / 2:10.4g}"}
    lines = []
    for row in range(ROWS - 1, -1, -1):
        cells = "".join(
            _cell(bucket.least / top, bucket.most / top, row, unicode)
            for bucket in buckets
        )
        label = labels.get(row, " " * 10)
        lines.append(f"{label} {'┤' if unicode else '|'}{cells}")
    width = len(buckets)
    last = f"{buckets[-1].last:,}"
    first, middle = (
        f"{bucket.first:,}" for bucket in (buckets[0], buckets[width // 2])
    )
    if width < len(first) + len(middle) + len(last) + 4:
        lines.append(f"{'':10} tick {first} to {last}")
        return lines
    axis = first + " " * (width // 2 - len(first)) + middle
    lines.append(f"{'tick':>10}  {axis}{last:>{width - len(axis)}}")
    return lines


def line(buckets: Sequence[Bucket], top: float, *, unicode: bool) -> str:
    """Plot in one line the largest sd of up to 32 runs of ticks, from 0 to `top`.

    A character is a bar in eighths, or without `unicode` a digit in tenths. The last one is the sd
    at the end of the epoch.
    """
    step = -(-len(buckets) // _COLUMNS)  # rounded up
    runs = (buckets[i : i + step] for i in range(0, len(buckets) - 1, step))
    most = [max(bucket.most for bucket in run) for run in runs]
    # Of the last bucket the least sd: an `end_share` lowers that of the last tick.
    shares = [value / top for value in (*most, buckets[-1].least)]
    if unicode:
        # At least an eighth: a blank would look like no data.
        return "".join(_EIGHTHS[max(1, round(8 * share))] for share in shares)
    return "".join(f"{min(9, int(10 * share))}" for share in shares)


def _cell(least: float, most: float, row: int, unicode: bool) -> str:
    """Return the character of one cell of `band`; `least` and `most` are shares of its height.

    `row` counts from 0 at the bottom. Less than a sixteenth, half an eighth, rounds to nothing.
    """
    filled = min(max(least * ROWS - row, 0.0), 1.0)
    if filled >= 1 - 1 / 16:
        return "█" if unicode else "#"
    shaded = most * ROWS - row > 0.5 and most > least
    if filled > 1 / 16 and not shaded:
        return (_EIGHTHS if unicode else _PLAIN)[min(7, round(filled * 8))]
    if shaded:
        return _BAND if unicode else _PLAIN_BAND
    return " "


def warnings_in(plan: Plan) -> Iterator[str]:
    """Yield the warnings about every histogram, and about all of them together."""
    for histogram in plan.histograms:
        for warning in histogram.warnings:
            yield f"{histogram.name}: {warning}"
    if len(plan.histograms) > 1:
        for warning in plan.total.warnings:
            yield f"all together: {warning}"


def show(plan: Plan, console: Console) -> None:
    """Print a plan: its warnings, every histogram, and what they promise together."""
    say = _PlanPrinter(console)
    count = len(plan.histograms)
    numbers = f"{plural(count, 'histogram')}. Computed from the settings alone."
    say.line(f"worker {plan.worker}: {numbers}", 0, style="bold")
    for warning in warnings_in(plan):
        say.line(f"WARNING: {warning}", 0, style="bold red")
    for histogram in plan.histograms:
        _histogram(histogram, say)
    _total(plan.total, count, say)
    if plan.deliver_after_ms is not None:
        after = format_duration(plan.deliver_after_ms)
        say.line(
            f'- that there was a record is hidden too (neighbours = "record"): each tick is delivered {after} after its end',
            2,
        )


class _PlanPrinter(Printer):
    """Printer of a plan's lines, tables and headings, indented; ASCII where it must be."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.unicode = "utf" in (console.encoding or "").lower()

    def line(self, text: str = "", indent: int = 4, *, style: str = "") -> None:
        super().line(" " * indent + text, style=style)

    def table(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        left: Sequence[int] = (0,),
        indent: int = 4,
        unwrapped: Sequence[int] = (0,),
    ) -> None:
        """Print a table; `left` are columns aligned left, `unwrapped` those kept on one line."""
        super().table(headings, rows, left, indent, unwrapped)

    def head(self, text: str) -> None:
        """Print the heading of a section."""
        self.line()
        self.line(text, 2, style="bold")

    def rule(self, title: str) -> None:
        """Print a title with a line across the terminal, which begins a histogram."""
        self.line()
        line = "─" if self.unicode else "-"
        rest = line * max(0, self.width - len(title) - 4)
        self.line(f"{line * 2} {title} {rest}", 0, style="bold")


def _histogram(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print all sections of one histogram."""
    named = f"{plan.name}: {plan.mechanism}" + (
        f", counter {plan.counter}" if plan.counter else ""
    )
    say.rule(named)
    keys = "any stream key" if plan.keys is None else plural(plan.keys, "stream key")
    labels = (
        "labels as they occur"
        if plan.domain is None
        else f"{plan.domain:,} declared labels"
    )
    epoch = f"ticks of {format_duration(plan.tick_ms)}"
    topic = f"topic {plan.topic}"
    if plan.without_epochs is not None:
        topics = [window.topic for window in plan.without_epochs.windows]
        topic = f"topic{'s' if len(topics) > 1 else ''} {', '.join(topics)}"
        epoch += " without epochs"
    elif plan.horizon is None:
        epoch += (
            f" without an end (looked at up to tick {plan.noise.ticks_looked_at:,})"
        )
    else:
        epoch = f"{plan.horizon:,} {epoch} = {length_of(plan.horizon * plan.tick_ms)} an epoch"
    say.line(f"{topic}; {epoch}; {keys}, {labels}", 2)
    _guarantee(plan, say)
    if plan.without_epochs is not None:
        _windows(plan, plan.without_epochs, say)
    else:
        _noise(plan, say)
        _sum(plan, say)
    _ranks(plan.ranks, say)
    _error(plan, say)
    _memory(plan.memory, say)
    _counters(plan, say)
    _ends(plan, say)
    _mechanisms(plan, say)
    if plan.advice:
        say.head("in words")
        for sentence in plan.advice:
            say.line(f"- {sentence}")


def _guarantee(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print what is promised to one event or user, in figures and in words."""
    promise = plan.guarantee
    sees = seen_of([plan])
    say.head(f"guarantee, in every snapshot: for one {promise.unit}, over {sees}")
    say.line(
        f"epsilon {promise.epsilon!r}, delta {promise.delta!r}, rho {promise.rho!r}"
    )
    words = verdict(promise.epsilon, promise.delta, counted(promise.unit))
    say.line(f"In words: whoever sees {sees} {words}")
    say.line(" ".join(measures(promise.epsilon, promise.delta)))
    spent = ", ".join(f"{share.delta:.3g} {share.name}" for share in plan.deltas)
    touched = f"{plural(plan.max_items, 'item')} by at most {plan.max_count:,}"
    say.line(
        f"one {promise.unit} changes at most {touched}; delta is spent on: {spent}"
    )
    if "bounds_rho" in plan.parameters:
        say.line(
            f"of rho, {plan.parameters['bounds_rho']} was spent on choosing bounds from a sample (init --private)"
        )
    without = plan.without_epochs
    if without is not None and without.users is not None:
        _periods(without.users, say)
    elif without is not None:
        say.line(
            f"This is charged once, ever: one {promise.unit} is in every window that covers its tick, and all windows, for "
            "ever, cost it this together."
        )


def _periods(users: UserPeriods, say: _PlanPrinter) -> None:
    """Print what is promised of a user's periods, in a histogram without epochs."""
    period = length_of(users.ms)
    say.line(
        f"This is for everything that one user does in one period of {period}, in all windows for ever. Periods "
        f"share noise: what a user does in n of them costs at most {users.overlap:.3g} n times the rho of one, and "
        "n^2 times for few; no charge covers a user who stays for life."
    )
    say.table(
        ("periods", "rho", "epsilon", "delta"),
        [
            (
                f"{cost.periods:,}",
                f"{cost.rho:.4g}",
                "none" if cost.epsilon is None else f"{cost.epsilon:.4g}",
                f"{cost.delta:.3g}",
            )
            for cost in users.costs
        ],
        left=(),
    )


def _windows(plan: HistogramPlan, without: WithoutEpochs, say: _PlanPrinter) -> None:
    """Print the noise of every window of a histogram without epochs."""
    windows = without.windows
    users = without.users
    unique = users is not None and users.unique
    counted = "number of users" if unique else "count"
    say.head(f"noise of a {counted} in each window, published at every tick")
    # Without thresholds the column is empty, and has no heading.
    threshold = "" if plan.thresholds is None else "threshold"
    say.table(
        ("window", "ticks", "sd worst", "rms", "sd * mu", "95 % within", threshold),
        [_window_row(window) for window in windows],
    )
    tick = format_duration(plan.tick_ms)
    say.line(
        f"ticks of {tick}: a window begins at a multiple of its hop, and covers what each snapshot says; mu is the root of 2 rho "
        "of an item, so sd * mu is the same at any budget"
    )
    if any(window.alone is not None for window in windows):
        say.line(
            "Each window has a noise and a part of rho of its own. A window that"
            if unique
            else "One noise serves all windows. A window that is published alone, at this budget:"
        )
        alone = [
            (
                format_duration(window.ms),
                _number(window.alone.worst_sd),
                _number(window.alone.rms_sd),
                _whole(window.alone.threshold),
            )
            for window in windows
            if window.alone is not None
        ]
        say.table(("window", "sd worst", "rms", threshold), alone)
    span = length_of(without.fresh_after * plan.tick_ms, up=True)
    if users is None:
        say.line(
            f"events of one person that are {span} or more apart share no noise: n of them cost n rho, not n^2 rho"
        )
    _labels(plan, without, say)
    _sums_of_windows(windows, say)


def _window_row(window: WindowPlan) -> Sequence[str]:
    """Return a window's row of the table of windows without epochs."""
    ticks = f"{window.ticks:,}"
    if window.hop > 1:
        ticks += f" to {window.most_ticks:,}, hop {window.hop:,}"
    worst, _ = window.sd_times_mu
    return (
        format_duration(window.ms),
        ticks,
        _number(window.worst_sd),
        _number(window.rms_sd),
        f"{worst:.2f}",
        _number(window.half_width_95),
        _whole(window.threshold),
    )


def _labels(plan: HistogramPlan, without: WithoutEpochs, say: _PlanPrinter) -> None:
    """Print when a label is shown and when it leaves, in a histogram without epochs."""
    if without.rests is None or without.leaves_at is None:
        return
    say.head("how labels come and leave")
    likely = (
        f"{window.likely_from:,} in the last {format_duration(window.ms)}"
        for window in without.windows
    )
    passes = "in all windows once its noisy count in one of them is above that window's"
    if len(without.windows) == 1:
        passes = "once its noisy count is above the"
    say.line(
        f"- A label is shown {passes} threshold. "
        f"In 95 % of cases it passes at a given tick from a true count of {', or '.join(likely)}."
    )
    longest = format_duration(max(window.ms for window in without.windows))
    leaves = (
        f"{without.leaves_at:,} ticks ({length_of(without.leaves_at * plan.tick_ms)})"
    )
    watched = length_of((without.watched or 0) * plan.tick_ms)
    rests = f"{without.rests:,} ticks ({length_of(without.rests * plan.tick_ms)})"
    say.line(
        f"- Once every {leaves}, labels leave whose noisy count in the last {longest} is 0 or less. "
        f"A label that left is shown again as soon as its noisy count passes a lower bar, for {watched}. "
        f"Then it rests for {rests}: it is neither shown nor tested, whatever happens, and may be shown again after that."
    )
    remembered = without.remembered or 0
    span = length_of(remembered * plan.tick_ms, up=True)
    say.line(
        f"- A label that is not shown is tested at every tick, for up to {remembered:,} ticks ({span}) from its last event on; "
        "then it is forgotten."
    )


def _sums_of_windows(windows: Sequence[WindowPlan], say: _PlanPrinter) -> None:
    """Print the noise of sums and of the count of all items, by window."""
    sums = [(window, window.sum) for window in windows if window.sum is not None]
    if sums:
        first = sums[0][1]  # name and cost are those of all windows together
        say.head(_sums_named(first))
        say.line(
            f"they cost rho {first.rho:.6g}, {first.share:.0%} of the budget, which counts lack; sd of a sum, and half the 95 % interval "
            "of a mean in the middle of the range at the worst tick, by the item's count:"
        )
        counts = [f"count {row.count:,}" for row in first.means]
        rows = [
            (
                format_duration(window.ms),
                _number(noise.worst_sd),
                _number(noise.rms_sd),
                *(_number(row.middle) for row in noise.means),
            )
            for window, noise in sums
        ]
        say.table(("window", "sd worst", "rms", *counts), rows)
    totals = [
        (window, window.all_items) for window in windows if window.all_items is not None
    ]
    if totals:
        total = totals[0][1]  # the cost is that of all windows together
        say.head(_TOTAL)
        say.line(
            f"it costs rho {total.rho:.6g}, {total.share:.0%} of the budget, which counts lack"
        )
        rows = [
            (format_duration(window.ms), _number(noise.worst_sd), _number(noise.rms_sd))
            for window, noise in totals
        ]
        say.table(("window", "sd worst", "rms"), rows)


def _sums_named(sums: SumPlan) -> str:
    steps = plural(sums.steps, "step")
    return f"sums of {sums.field} from {sums.low:g} to {sums.high:g}, in {steps}"


def _noise(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print the noise and the thresholds over the ticks of an epoch, with a plot."""
    noise = plan.noise
    say.head(f"noise: standard deviation on {noise.on}")
    constant = noise.worst_sd == noise.rms_sd
    if constant:
        say.line(f"{_number(noise.worst_sd)} at every tick")
    else:
        worst = f"worst {_number(noise.worst_sd)} (tick {noise.worst_tick:,})"
        say.line(f"{worst}, root mean square {_number(noise.rms_sd)}")
        for line in band(noise.curve, unicode=say.unicode):
            say.one_line(line, 2)
    rows = []
    for tick in noise.ticks:
        figures = map(_number, (tick.sd, tick.mean_absolute_error, tick.half_width_95))
        rows.append((f"{tick.tick:,}", *figures, _whole(tick.threshold)))
    if noise.law in COUNT_LAWS:
        if constant and len({row[1:] for row in rows}) == 1:
            rows = [("every", *rows[0][1:])]
        say.table(
            ("tick", "sd", "mean |error|", "95 % within", "threshold"), rows, left=()
        )
    if noise.windows:
        looked = max(row.ticks_computed for row in noise.windows)
        say.line(
            f'sd of the change of a count over a window (at {looked:,} ticks; "apart" is what two counts of '
            "independent noise would leave):"
        )
        columns = ("window", "ticks", "least", "most", "rms", "last tick", "apart")
        rows = []
        for row in noise.windows:
            sds = row.least_sd, row.most_sd, row.rms_sd, row.last_sd, row.apart_sd
            rows.append((format_duration(row.ms), f"{row.ticks:,}", *map(_number, sds)))
        say.table(columns, rows, left=())
    thresholds = plan.thresholds
    if thresholds is not None:
        # With a "bar" a threshold is how far an item must lie above another, not its count.
        distance = MECHANISMS[plan.mechanism].about.threshold_rule == "bar"
        spread = " to ".join(
            dict.fromkeys(map(_whole, (thresholds.least, thresholds.most)))
        )
        all_ticks = f"of {thresholds.ticks_computed:,} ticks"
        say.line(
            f"threshold {spread} (most at tick {thresholds.most_tick:,}, {all_ticks}): {thresholds.meaning}; "
            f"from a true {'distance' if distance else 'count'} of "
            f"{thresholds.likely_from:,} on that happens in 95 % of cases at any one of these ticks"
        )


def _sum(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print the noise of sums and of the count of all items, over an epoch."""
    if plan.sum is not None:
        sums = plan.sum
        say.head(_sums_named(sums))
        say.line(
            f"they cost rho {sums.rho:.6g}, {sums.share:.0%} of the budget, which counts lack; sd of a sum: worst "
            f"{_number(sums.worst_sd)}, root mean square {_number(sums.rms_sd)}"
        )
        say.line(
            "95 % interval of a mean at the worst tick, half its length by the item's count:"
        )
        rows = [
            (f"{row.count:,}", _number(row.middle), _number(row.end))
            for row in sums.means
        ]
        say.table(("count", "mean in the middle", "mean at an end"), rows, left=())
    if plan.all_items is not None:
        total = plan.all_items
        say.head(_TOTAL)
        say.line(
            f"it costs rho {total.rho:.6g}, {total.share:.0%} of the budget, which counts lack; sd: worst "
            f"{_number(total.worst_sd)}, root mean square {_number(total.rms_sd)}"
        )


def _ranks(choices: Sequence[RankChoice], say: _PlanPrinter) -> None:
    """Print the errors of a histogram of numbers for each value of the setting `for`."""
    if not choices:
        return
    say.head("what it is exact in, by the setting for, at this budget (* in use)")
    rows = [
        (
            ("* " if row.chosen else "  ") + f'for = "{row.purpose}"',
            *map(_number, (row.bucket_sd, row.median_rank_sd, row.range_sd)),
        )
        for row in choices
    ]
    most = choices[0].range_buckets
    columns = (
        "sd at the worst tick",
        "a bucket",
        "rank of the median",
        f"{most:,} buckets",
    )
    say.table(columns, rows)


def _error(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print the expected error of counts, and what theorems bound."""
    error = plan.error
    say.head(
        f"expected error (what holds for all at once: with probability {1 - error.beta:.6g})"
    )
    if plan.without_epochs is not None:
        say.line(f"of {plan.noise.on}, the longest window:")
    if error.mean_absolute_error is not None:
        mean = _number(error.mean_absolute_error)
        say.line(f"mean absolute error of a count, over all ticks: {mean}")
    if error.worst:
        bounds = (
            f"{_number(row.error)} for {plural(row.items, 'item')}"
            for row in error.worst
        )
        at = f"at any of {plan.noise.ticks_looked_at:,} ticks, of one stream key, at most"
        say.line(f"noise on any count {at}: {'; '.join(bounds)}")
    for figure in error.figures:
        say.line(f"{figure.name} {_number(figure.value)}: {figure.meaning}")
    if error.segments:
        rows = [(f"{row.up_to:,}", f"{row.error:,.0f}") for row in error.segments]
        say.line("no answer is off by more than this, while the value is not above:")
        say.table(("value up to about", "error"), rows[:8], left=())
    for row in error.theorems:
        assumes = f", if {row.assumes}" if row.assumes else ""
        say.line(f"theorem ({row.source}): {row.bounds}{assumes}: {_number(row.ours)}")


def _memory(memory: Memory, say: _PlanPrinter) -> None:
    """Print what the rows of a histogram take in memory and on disk."""
    say.head("memory and disk of an owner partition")
    parts = [
        f"columns {memory.columns_per_row:,} (labels of {memory.label_bytes} bytes)"
    ]
    index = memory.index_per_row
    noise = memory.noise_per_row
    state = memory.state_per_row
    further = {"index": index, "noise": noise, "state": state}
    parts += [f"{name} {size:,}" for name, size in further.items() if size]
    say.line(
        f"bytes for {memory.row}: {', '.join(parts)}; on disk {memory.disk_per_row:,}"
    )
    if memory.note:
        say.line(memory.note)
    rows = []
    for size in memory.sizes:
        least = _bytes(size.memory_least)
        most = _bytes(size.memory_most)
        held = most if least == most else f"{least} to {most}"
        if not size.memory_least:
            held = f"up to {most}"
        rows.append((f"{size.rows:,}", held, _bytes(size.disk)))
    say.table(("rows", "memory", "disk"), rows, left=())


def _counters(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print what other counters would give; nothing if there are none."""
    if len(plan.counters) < 2:
        return
    say.head("counters at this budget (* in use, - not with these settings)")
    errors = any(row.error is not None for row in plan.counters)
    rows: list[tuple[str, ...]] = []
    for row in plan.counters:
        name = _mark(row) + row.counter + (f", radix {row.radix}" if row.radix else "")
        times = "" if row.times_worst is None else f"{row.times_worst:.2f}"
        if errors:
            rows.append((name, _number(row.error), times, "", row.reason))
        else:
            sds = _number(row.worst_sd), _number(row.rms_sd)
            rows.append((name, *sds, times, _whole(row.noise_per_row), row.reason))
    if errors:
        say.table(("", "error, segment 1", "ratio", "", ""), rows, left=(0, 4))
    else:
        held = (
            "bytes an item"
            if any(row.noise_per_row is not None for row in plan.counters)
            else ""
        )
        say.table(("", "worst sd", "rms sd", "ratio", held, ""), rows, left=(0, 5))


def _ends(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print how much noise each `end_share` takes off the last tick, with small plots."""
    if not plan.ends:
        return
    say.head("the end of an epoch, by end_share, at this budget (* in use)")
    top = max(row.worst_sd for row in plan.ends)
    rows = []
    for row in plan.ends:
        share = "none" if row.end_share is None else f"{row.end_share:g}"
        sds = map(_number, (row.worst_sd, row.rms_sd, row.last_sd))
        plot = line(row.curve, top, unicode=say.unicode)
        rows.append((_mark(row) + share, *sds, _whole(row.last_threshold), plot))
    at_end = (
        "threshold" if any(row.last_threshold is not None for row in plan.ends) else ""
    )
    columns = ("", "worst sd", "rms sd", "sd at the end", at_end, "sd over the epoch")
    say.table(columns, rows, left=(0, 5))


def _mechanisms(plan: HistogramPlan, say: _PlanPrinter) -> None:
    """Print what other mechanisms would give; nothing if there are none."""
    if len(plan.mechanisms) < 2:
        return
    say.head("mechanisms at this budget (* in use, - not with these settings)")
    rows = []
    for row in plan.mechanisms:
        assumed = ", ".join(
            f"{name} = {_setting(value)}" for name, value in row.assumed.items()
        )
        words = (row.reason, f"with {assumed}" if assumed else "", row.answers)
        sds = _number(row.worst_sd), _number(row.rms_sd)
        figures = *sds, _whole(row.threshold), _number(row.error)
        rows.append(
            (_mark(row) + row.mechanism, *figures, "; ".join(filter(None, words)))
        )
    say.table(
        ("", "worst sd", "rms sd", "threshold", "error", "answers"), rows, left=(0, 5)
    )
    items = plan.domain or COMPARED_ITEMS
    every = f"of every count of {items:,} items at every tick"
    if plan.without_epochs is not None:
        say.line(f"of {plan.noise.on}; error: at most, {every} of a year")
        return
    say.line(f"error: at most, {every}; of an order statistic, in its first segment")


def _mark(row: CounterChoice | Alternative | EndChoice) -> str:
    """Return the mark before a row: "*" in use, "-" not possible."""
    if row.chosen:
        return "* "
    return "  " if isinstance(row, EndChoice) or row.possible else "- "


def _total(total: Total, histograms: int, say: _PlanPrinter) -> None:
    """Print what all histograms promise together, and what one person loses."""
    say.rule("all together")
    if histograms == 1:
        only = "one histogram: its own guarantee is that of the worker"
        say.line(f"{only}, for one {total.unit}{_and_epoch(total)}", 2)
    else:
        who = "whatever its stream key"
        if total.key is not None:
            who = f"stream key {total.key!r}, which pays most"
        named = ", ".join(total.histograms)
        say.line(f"{named}: one {total.unit} counts in all of them ({who})", 2)
        nothing = ": nothing is promised" if total.delta >= 1 else ""
        joint = f"epsilon {total.epsilon!r} at delta {total.delta:.9g} (rho {total.rho:.6g})"
        say.line(f"together: {joint}{nothing}", 2)
        summed = _number(total.epsilon_of_the_sum)
        say.line(f"for comparison: the sum of the epsilons is {summed}", 2)
    for sentence in adding_up(total):
        say.line(f"- {sentence}", 2)
    if total.person:
        headings, rows = loss_table(total.person, total.unit)
        say.head("what one person loses")
        say.table(headings, rows, left=())
        say.line(loss_caption(total.person, total.unit))


def seen_of(histograms: Sequence[HistogramPlan]) -> str:
    """Return what an observer is taken to see, in sentences on a guarantee."""
    without = [one.without_epochs is not None for one in histograms]
    if all(without):
        return "all snapshots of all windows for ever"
    if any(without):
        return "all snapshots of an epoch, and without epochs those of all windows for ever"
    return "all snapshots of an epoch"


def _and_epoch(total: Total) -> str:
    """Return the end of "for one event ...": "and epoch", or "ever" without epochs."""
    return ", ever" if _without(total) == "all" else " and epoch"


def _without(total: Total) -> str:
    """Return which of the histograms have no epochs: "none", "some" or "all"."""
    return total.person[0].without_epochs if total.person else "none"


def adding_up(total: Total) -> Iterator[str]:
    """Yield what adds up to the total loss of one event or user, and what does not."""
    unit = total.unit
    without = _without(total)
    if unit == "event":
        yield "stream keys do not add up: an event has one"
        if without != "all":
            yield "epochs do not add up for one event: it lies in one of them; for a person who comes in many they do"
        if without != "none":
            yield (
                "windows do not add up, nor does time: a histogram without epochs is charged to one event once, ever; a "
                "person's events in it add up over all time"
            )
    else:
        yield f"stream keys do not add up within a histogram: what a {unit} may change is bounded over all of them"
        yield f"epochs, and periods without epochs, add up: a {unit} is charged in each"
    yield "generations, a new worker name and other workers on the same events add up"


def _number(value: float | None) -> str:
    """Return a number to four significant digits, or whole from 10,000 on; "" for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _bytes(value: int) -> str:
    """Return a number of bytes to three digits, such as "1.25 MB"."""
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value >= width:
            return f"{value / width:.3g} {unit}"
    return f"{value} B"


def _setting(value: object) -> str:
    """Return the value of a setting as a settings file has it."""
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_setting, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)
