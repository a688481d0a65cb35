"""What readers are told of the budget: the record of `<name>.budget`, and one sentence of it.

It has what `budget` computes of settings, published ticks and charged epochs, so it depends on no
event's content; of other workers it has the sum only. Times are ms since 1970, of events: those of
ticks. Fields may be added but not changed (docs/consumers.md).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from workers.mechanisms.config.durations import parse_duration
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling import Ceiling, all_charges, fullest_of
from workers.privacy.model import Record
from workers.privacy.outlook import outlook_of
from workers.privacy.phrasing import up_to
from workers.privacy.promise import fingerprint
from workers.privacy.spending import Status, entries_of, owners_of, total_of
from workers.privacy.total import DAY_MS, Charge
from workers.runtime.errors import QuietcountError
from workers.runtime.printing import plural
from workers.settings.settings import Settings

#: The only record's key: compaction keeps the newest.
KEY = b"budget"
_HOUR_MS = DAY_MS // 24
_MINUTE_MS = _HOUR_MS // 60
# To the end of the year 9999.
_LAST_MS = 253_402_300_799_999
_Time = Annotated[int, msgspec.Meta(ge=-_LAST_MS, le=_LAST_MS)]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class PublicGeneration(Record, frozen=True):
    """A generation that has published: the price of an epoch, and how many have begun.

    `endless`: its only epoch has no end, so it is charged once.
    """

    histogram: str
    generation: int
    status: Status
    epsilon: float
    delta: float
    epochs: int
    endless: bool


class PublicTotal(Record, frozen=True):
    """What one event or user was charged by all that was published; no epsilon: all is lost."""

    epsilon: float | None
    delta: float


class PublicCeiling(Record, frozen=True):
    """The ceiling, and what it still allows.

    epsilon     that of the period in which most was spent, of those that touch the newest epochs;
                None: no promise
    until       the worker may run until then, and with `at_least` longer; None: without end
    """

    max_epsilon: float
    max_delta: float
    period: str
    epsilon: float | None
    until: _Time | None
    at_least: bool = False

    @property
    def in_words(self) -> str:
        """Return the ceiling in words, such as "ε = 3 in any 30 days", or "... in any day"."""
        period = "an epoch"
        if self.period != "epoch":
            period = f"any {_length(parse_duration(self.period)).removeprefix('1 ')}"
        return f"ε = {self.max_epsilon:g} in {period}"


class PublicBudget(Record, frozen=True):
    """What was promised and spent up to `newest`, the end of the newest tick at that time.

    `neighbours` says what is hidden: an event's content, or with "record" also its existence.
    `fingerprint` is that of the settings that the worker runs with, as on the page to be signed.
    `total` is None if it cannot be stated: generations protected different units.
    """

    worker: str
    unit: Literal["event", "user"]
    neighbours: Literal["content", "record"]
    fingerprint: _Sha256
    newest: _Time
    histograms: tuple[PublicGeneration, ...]
    total: PublicTotal | None
    ceiling: PublicCeiling | None

    def sentence(self, newest_ms: int | None = None) -> str:
        """Say how long the worker may run on after the newest tick that the reader knows of."""
        now_ms = max(self.newest, newest_ms or self.newest)
        ceiling = self.ceiling
        if ceiling is None:
            return f"This board may run without end, as no limit is set: {self._charged()}."
        about = f"about one {self.unit}"
        allowed = f"as its limit allows, {ceiling.in_words}"
        if ceiling.until is None:
            return f"This board may run without end: it never tells more {about} than its limit allows, {ceiling.in_words}."
        left_ms = ceiling.until - now_ms
        if left_ms <= 0 and not ceiling.at_least:
            return f"This board has ended: it has told as much {about} {allowed}."
        until = _date(ceiling.until, with_hour=left_ms < 2 * DAY_MS)
        if ceiling.at_least:
            return f"This board may run until {until} at least: then it may have told as much {about} {allowed}."
        length = _length(left_ms)
        return f"This board may run another {length}, until {until}: then it has told as much {about} {allowed}."

    def _charged(self) -> str:
        """Return what an event or user pays while the worker runs on."""
        if self.total is None:
            return "what it costs in all cannot be stated, as it once protected something else"
        cost = "which promises nothing"
        if self.total.epsilon is not None:
            cost = f"ε = {up_to(self.total.epsilon)} in all"
        running = [one for one in self.histograms if one.status == "running"]
        if running and all(one.endless for one in running):
            return f"one {self.unit} is charged once, ever, {cost}"
        if self.unit == "event":
            return f"one event counts in one epoch only and is charged once, {cost}"
        begun = sum(one.epochs for one in self.histograms)
        return (
            f"every epoch charges a user again, {cost} after {plural(begun, 'epoch')}"
        )


class UnreadableBudget(QuietcountError):
    """A record in `<name>.budget` that no worker wrote."""


_DECODER = msgspec.json.Decoder(PublicBudget)


def decode_budget(value: bytes) -> PublicBudget:
    """Decode a record of `<name>.budget`, which anyone may have written."""
    try:
        budget = _DECODER.decode(value)
        # Refuse here, not where it is shown, a time or a period that no sentence can state.
        budget.sentence()
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise UnreadableBudget(
            f"a record that says nothing of a budget: {error}"
        ) from None
    return budget


def public_budget(
    settings: Settings, progress: ReleaseProgress, other_charges: Sequence[Charge]
) -> PublicBudget | None:
    """Return what readers are told; None before the first tick.

    `progress` is that of one owner, who publishes a share of the stream keys; all owners publish
    the same ticks, so it stands for all. `other_charges` are those of other workers, and of other
    owners, that count toward the ceiling.
    """
    states = [progress] * owners_of([progress]).number
    entries = [entry for entry in entries_of(states, settings) if entry.pieces]
    if not entries:
        return None
    total = total_of(settings.privacy.unit, [(entries, owners_of(states))])
    return PublicBudget(
        worker=settings.worker.name,
        unit=settings.privacy.unit,
        neighbours=settings.privacy.neighbours,
        fingerprint=fingerprint(settings),
        newest=max(entry.grid.end(entry.last) for entry in entries),
        histograms=tuple(
            PublicGeneration(
                histogram=entry.name,
                generation=entry.life.generation,
                status=entry.status,
                epsilon=entry.life.epsilon,
                delta=entry.life.delta,
                epochs=len(entry.epochs),
                endless=entry.grid.horizon is None,
            )
            for entry in entries
        ),
        total=None if total is None else PublicTotal(total.epsilon, total.delta),
        # One state is enough: the charges of equal ones are the same.
        ceiling=_ceiling(settings, states[:1], other_charges),
    )


def _ceiling(
    settings: Settings,
    states: Sequence[ReleaseProgress],
    other_charges: Sequence[Charge],
) -> PublicCeiling | None:
    """Return the ceiling of the settings, if any, and what it still allows.

    `states` and `other_charges` are those of `public_budget`.
    """
    ceiling = Ceiling.of(settings.privacy)
    if ceiling is None:
        return None
    charges = all_charges(settings, states, other_charges)
    # Exact (`locate`), among the periods that touch the newest epoch of any histogram.
    fullest = fullest_of(
        ceiling.fullest(charges, *charge.span(charge.last), locate=True)
        for charge in charges
    )
    outlook = outlook_of(ceiling, settings, states, other_charges, seconds=False)
    until = None
    at_least = False
    if outlook is not None and outlook.until is not None:
        until = min(outlook.until, _LAST_MS)
        # The search ended before it found an epoch that does not fit.
        at_least = outlook.epoch is None
    return PublicCeiling(
        max_epsilon=ceiling.epsilon,
        max_delta=ceiling.delta,
        period=settings.privacy.period,
        epsilon=fullest.epsilon,
        until=until,
        at_least=at_least,
    )


def _length(milliseconds: int) -> str:
    """Return a length of time, rounded down: in days, or if it is short in hours or minutes.

    A unit is taken from two of it on, or for exactly one: "25 hours", but "1 day".
    """
    for size_ms, thing in ((DAY_MS, "day"), (_HOUR_MS, "hour"), (_MINUTE_MS, "minute")):
        if milliseconds >= 2 * size_ms or milliseconds == size_ms:
            return plural(milliseconds // size_ms, thing)
    return plural(milliseconds // 1000, "second")


def _date(milliseconds: int, *, with_hour: bool) -> str:
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    date = f"{at.day} {at:%B} {at.year}"
    return f"{at:%H:%M} UTC on {date}" if with_hour else date
