"""Choose a tick and a horizon that fit the event rate.

The most common item should be counted well above the noise in a tick. An epoch is a day, or longer
if events are rare.

Where events are protected, windows without epochs are offered beside the horizon: the last hour,
if it has at least 12 ticks, and the length of an epoch. Epochs stay the default. A sample does not
tell how many events one person has: over days their loss grows with the number of epochs, but
without epochs with the square of the number of events.
"""

from typing import Any, NamedTuple

from msgspec import structs

from workers.commands.init.draft import ITEMS_PER_USER, Draft
from workers.commands.init.fields import about
from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.windows import NEVER
from workers.mechanisms.mechanism import expect_type
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.mechanisms.running.sliding import Sliding
from workers.privacy.plan.windows import worst_and_rms
from workers.settings.settings import ALL_STREAM_KEY, DAY_MS

EPSILON = 1.0
DELTA = 1e-9
# (tick, epoch) in ms, from the shortest tick on.
_TICKS = (
    *((tick_ms, DAY_MS) for tick_ms in (10_000, 60_000, 300_000, 900_000, 3_600_000)),
    (6 * 3_600_000, 7 * DAY_MS),
    (DAY_MS, 28 * DAY_MS),
)
# Where the sample does not tell how many events there are.
_USUAL = _TICKS[1]
_HOUR_MS = 3_600_000
# Minimum number of ticks of a window of an hour.
_HOUR_TICKS = 12
# Maximum backlog: every tick since the oldest event is published, even if empty.
_TICKS_BEHIND = 100_000
# Standard deviations of the noise that the commonest item must count in a tick.
_ABOVE_NOISE = 3


class TickChoice(NamedTuple):
    """The chosen tick and horizon (ticks in an epoch), with comments for the settings file.

    `noise` is a sentence on the noise with these, `windows_offer` one on windows without epochs as
    an alternative; empty where they are not possible.
    """

    tick_ms: int
    horizon: int
    mechanism: str
    tick_reason: str
    horizon_reason: str
    noise: str
    windows_offer: str


def choose_tick(draft: Draft, now_ms: int) -> TickChoice:
    """Choose the shortest tick with its most common item above the noise, else the longest.

    It is also long enough that the ticks since the oldest event, up to `now_ms`, are not too many.
    """
    # Count of the commonest item in a second; 0 if the rate of events is unknown, or none counts.
    commonest_s = 0.0
    if draft.pairs:
        commonest_s = draft.rate * max(draft.pairs.values()) / draft.accepted
    enough = False
    # From the shortest tick on; leaves the chosen one in the variables, with mechanism and noise.
    for tick_ms, epoch_ms in _TICKS if commonest_s else (_USUAL,):
        horizon = epoch_ms // tick_ms
        config = config_of(draft, tick_ms, horizon)
        mechanism = build(config, "event" if draft.user is None else "user")
        sd, _rms = mechanism.curve(horizon).worst_and_rms(horizon)
        enough = commonest_s * tick_ms / 1000 >= _ABOVE_NOISE * sd
        if enough and now_ms - min(draft.times) <= _TICKS_BEHIND * tick_ms:
            break
    # The reasons, as comments for the settings file.
    if not commonest_s:
        tick_reason = "a guess, as the times of the sample do not tell how many events there are in a second"
    else:
        counted = commonest_s * tick_ms / 1000
        thing = (
            "of the commonest item"
            if draft.items.range is None
            else "in the fullest bucket"
        )
        a_tick = (
            f"{about(draft.rate * tick_ms / 1000)}, and counts {about(counted)} {thing}"
        )
        bounded = "" if draft.user is None else " (before users are bounded)"
        above = (
            "well above the noise"
            if enough
            else "hardly above the noise: there are few events"
        )
        by = (
            ""
            if draft.time
            else " by the records' own times (too many if the topic was filled at once)"
        )
        tick_reason = f"with about {_rate(draft.rate)}{by}, such a tick has {a_tick}{bounded}, {above}"
    days = epoch_ms // DAY_MS
    length = "a day, from midnight UTC" if days == 1 else f"{days} days"
    horizon_reason = f"how long an epoch is: {length}; then counts begin at zero again"
    noise = f"With these settings the noise of a count has a standard deviation of up to {about(sd)}"
    threshold = mechanism.threshold(horizon)
    if threshold is not None:
        noise += f"; an item is first shown at about {about(threshold)}"
    return TickChoice(
        tick_ms,
        horizon,
        config.mechanism,
        tick_reason,
        horizon_reason,
        noise,
        windows_offer=_windows_offer(draft, config),
    )


def _windows_offer(draft: Draft, config: HistogramConfig) -> str:
    """Return a comment that offers windows without epochs; "" where none are useful.

    Where users are protected it offers to count them. `config` is the draft's histogram.
    """
    # The length of an epoch, in ms, and perhaps an hour.
    windows = [config.ticks * config.tick_ms]
    if _HOUR_TICKS * config.tick_ms <= _HOUR_MS:
        windows.insert(0, _HOUR_MS)
    # The settings that would differ.
    changes: dict[str, Any] = {"horizon": NEVER, "windows": tuple(windows)}
    named = ", ".join(f'"{format_duration(window)}"' for window in windows)
    last = " and ".join(format_duration(window) for window in windows)
    if draft.user is None:
        sliding = expect_type(Sliding, build(structs.replace(config, **changes)))
        offer = (
            f'or, for a board of now that never begins at zero: horizon = "{NEVER}" and windows = [{named}], what was counted in '
            f"the last {last}, sliding; one charge, ever, in which all events of a person add up"
        )
    elif draft.items.range is None:
        ticks = windows[0] // config.tick_ms
        changes |= {"unique_users": True, "user_period": ticks, "max_count": 1}
        unique = build(structs.replace(config, **changes), "user")
        sliding = expect_type(Sliding, unique)
        counts = " and no max_count" if draft.max_count > 1 else ""
        offer = (
            f'or, for how many different users each item had in the last {last}, sliding: horizon = "{NEVER}", windows = [{named}], '
            f'user_period = "{format_duration(windows[0])}" and unique_users = true{counts}; what a user does in one such '
            "period is protected together, and periods add up"
        )
    else:
        return ""
    # The longest window has the most noise.
    sd, _rms = worst_and_rms(sliding.windows[-1])
    offer += f"; a noise of up to {about(sd)}"
    threshold = sliding.threshold_of(len(windows) - 1)
    if threshold is not None:
        offer += f", and an item is shown at about {about(threshold)}"
    return offer


def config_of(draft: Draft, tick_ms: int, horizon: int) -> HistogramConfig:
    """Return the draft's histogram, as far as its noise depends on it; names are made up."""
    common = {
        "name": "items",
        "tick_ms": tick_ms,
        "horizon": horizon,
        "max_items": draft.max_items,
        "max_count": draft.max_count,
        "epsilon": EPSILON,
        "delta": DELTA,
        "keys": (ALL_STREAM_KEY,),
        "max_items_per_user": None if draft.user is None else ITEMS_PER_USER,
    }
    if draft.items.range is None:
        return UnkBaseConfig(**common)  # type: ignore[arg-type]
    # The intervals between edges, and one below and one above all of them.
    buckets = len(draft.items.range.edges) + 1
    labels = tuple(str(bucket) for bucket in range(buckets))
    return KnownBaseConfig(**common, domain=labels)  # type: ignore[arg-type]


def _rate(rate: float) -> str:
    """Return a rate, in events per second, in the shortest unit of time with at least one."""
    for seconds, unit in (
        (1, "second"),
        (60, "minute"),
        (3_600, "hour"),
        (86_400, "day"),
    ):
        number = rate * seconds
        # Below, `about` would write 1.
        if number >= 1.05:
            return f"{about(number)} events a {unit}"
        if number >= 1 or unit == "day":
            break
    return f"one event a {unit}"
