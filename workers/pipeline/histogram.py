"""One histogram in one owner partition: epochs, stream keys, ledger, snapshots. No clock.

Under `<name>/<generation>/` it stores the stream keys in the order met (`ledger_blocks`), and under
`<epoch>/<block>` there the blocks of ledger and mechanism. A finished epoch leaves nothing behind.

An owner partition is a share of the stream keys; when there are more owners, some keys are handed
over to new ones (`growth.owners`). With `split` = n a stream key's items are spread over n owners,
each of which has a part. The ledger has a row of exact counts per item; a tag is a keyed hash of
key and label. A global tick counts from the start of the grid, "t" from that of its epoch. A series
is what one output topic gets: without epochs a window, else the counts since the epoch began. A
"life" is the stored record of one generation (one set of settings), a description what its
mechanism ids hash.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import msgspec
import numpy as np

from workers.arrays.tag_index import Rows
from workers.arrays.types import Codes, Longs
from workers.kafka.topics import lacks_ids, refuse_without_ids
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.identity import describe, mechanism_id, series_id
from workers.mechanisms.ledger import Contributions, Ledger
from workers.mechanisms.mechanism import (
    Answers,
    Items,
    Mechanism,
    Noise,
    Release,
    WindowReleases,
)
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import ledger_blocks
from workers.pipeline.growth.owners import HandedOver, owner_of, part_owner, parts_of
from workers.pipeline.snapshots import (
    LabelCache,
    Means,
    Numeric,
    ReleasedTick,
    Snapshot,
    Windows,
)
from workers.pipeline.snapshots import snapshots as snapshots_of
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import Change

# Values of a description that follow from settings: a refusal names the settings instead.
_SCALES = frozenset(
    ("mu_scale", "noise", "scale", "scales", "sigma_squared", "tau_scale")
)
_SIZES = frozenset(
    ("above", "column", "first", "intervals", "levels", "sums", "threshold")
)
# Counters that have the same settings as the first one.
_FURTHER_COUNTERS = ("sum.counter.", "total_counter.")
DERIVED = _SCALES | _SIZES | {"update"}
# Setting names that differ from those in a description.
SETTING_NAMES = MappingProxyType(
    {
        "counter.horizon": "horizon",
        "counter.kind": "counter",
        "counter.radix": "radix",
        "hops": "hop",
    }
)

_NUMBER = re.compile(r"[0-9.]+(e-?[0-9]+)?", re.ASCII)


class HistogramProgress(msgspec.Struct, kw_only=True):
    """Stored identity, position and cost of one (histogram, generation): its "life".

    `description` is what decides the noise. `first` and `next` are global ticks: the first one
    published, and the one to publish next (None: not known before an event). `epochs` is how many
    have begun. Each costs a `unit` (event or user) `rho`, which is `epsilon` at `delta`. `deltas`
    are the parts of `delta`, by name, beside the conversion's. `reserved` is the last epoch that
    was charged before its first tick (under a ceiling each is, else the first one). `until` is the
    time, ms, up to which an ended generation may have published. An owner that waits for keys
    handed over begins no earlier than at tick `begin`. These three are UNSET if they do not apply.
    """

    generation: int
    description: dict[str, object]
    first: int | None = None
    next: int | None = None
    epochs: int = 0
    rho: float
    epsilon: float
    delta: float
    unit: str
    deltas: dict[str, float]
    reserved: int | msgspec.UnsetType = msgspec.UNSET
    until: int | msgspec.UnsetType = msgspec.UNSET
    begin: int | msgspec.UnsetType = msgspec.UNSET


def removal_refusals(
    stored: Mapping[str, HistogramProgress], names: Collection[str]
) -> Iterator[str]:
    """Yield a refusal for every stored histogram that has published and is not among `names`.

    If one left and one has come, the refusal says that this may be a new name for it.
    """
    left = [
        name
        for name, life in stored.items()
        if name not in names and life.next is not None
    ]
    come = [name for name in names if name not in stored]
    renamed = (
        f". If {come[0]!r} is a new name for it: noise, topic and charges go by the name, so it would begin again, "
        "and be charged again"
        if len(left) == len(come) == 1
        else ""
    )
    for name in left:
        yield (
            f"histogram {name!r} is no longer in the settings, but its state exists: put it back to continue where it was, "
            f"or end it for good: quietcount retire -c FILE {name}{renamed}"
        )


def flatten(
    value: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    """Yield the entries of nested dictionaries, with names such as "counter.horizon"."""
    for name, entry in value.items():
        if isinstance(entry, dict):
            yield from flatten(entry, f"{prefix}{name}.")
        else:
            yield prefix + name, entry


def abbreviate(value: object) -> str:
    """Return a value of a description as short JSON, for a message."""
    text = msgspec.json.encode(value).decode()
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        text = value  # a number stored as text, so that no digit is lost
    return text if len(text) <= 60 else text[:57] + "..."


# Replaces a label in the tag of a whole stream key: not UTF-8, so no label equals it.
KEY_LABEL = b"\xff"
# With a stated start, at most this many ticks of the epoch are published before the first event.
LEADING_TICKS_MAX = 100_000


class Histogram:
    """A running histogram of one owner: `step` takes a tick's contributions and publishes it.

    Sensitive except for its configuration.
    """

    def __init__(
        self,
        config: HistogramConfig,
        mechanism: Mechanism,
        *,
        worker: str,
        topic: str,
        stream: str,
        events: Mapping[str, object],
        key: NoiseKey,
        owner: tuple[int, int],
    ) -> None:
        """`topic` begins the output topics' names; `owner` is (this owner, how many at first).

        `stream` (the internal topics with their ids) and `events` (topic and fields counted) enter
        the mechanism id, from which all noise is derived.
        """
        self.config = config
        self.mechanism = mechanism
        #: The name and the topic of each series.
        self.outputs = config.outputs(topic)
        self.name = config.name
        self.lane = config.lane
        self.sum_lane = config.sum_lane
        self.prefix = f"{config.name}/{config.generation}/"
        self.grid = config.grid
        # Like `grid`, but with the epochs that are charged: without epochs, periods of a user's
        # budget.
        self._charge_grid = config.charge_grid
        self._key = key
        # This owner's number; how many there are in the next tick; (tick from which on, how many)
        # of growth to come.
        (self._owner, self._owners) = owner
        self._growing: list[tuple[int, int]] = []
        #: Whether it begins only with what another owner hands over.
        self.takes_over = self._owner >= self._owners
        #: What this owner hands over to others, in the transaction of the next tick.
        self.handed: list[tuple[int, HandedOver]] = []
        promise = mechanism.guarantee
        description = describe(
            worker=worker,
            histogram=config.name,
            generation=config.generation,
            stream=stream,
            topic=topic,
            events=events,
            mechanism=mechanism.public(),
            tick_ms=config.tick_ms,
            start_ms=config.start_ms,
        )
        self.life = HistogramProgress(
            generation=config.generation,
            description=description,
            rho=promise.rho,
            epsilon=promise.epsilon,
            delta=promise.delta,
            unit=promise.unit,
            deltas=dict(mechanism.cost().failures),
        )
        # Stream keys that are served, in the order met; the global tick from which each is; and
        # their numbers.
        self._keys: list[str] = []
        self._since: list[int] = []
        self._index: dict[str, int] = {}
        self._public = config.keys == "public"
        # Declared keys that are not served yet, with the tick from which they are to be: 0, at
        # once, or in an audit the tick from which they were.
        self._declared = dict.fromkeys(() if self._public else config.keys, 0)
        self._keep_own()
        # How many of `_keys` are stored; and the running epoch, None before the first tick.
        self._stored_keys = 0
        self._epoch: int | None = None
        # Names of the epoch's stored blocks; and whole names of what to delete in the next commit.
        self._blocks: set[str] = set()
        self._deletions: list[bytes] = []
        self._state = mechanism.init()
        self._labels = LabelCache()
        buckets = config.buckets
        self._numeric = (
            None
            if buckets is None
            else Numeric(buckets, config.shown_quantiles, ranks=config.ranks)
        )
        self._windows = Windows(config, mechanism)
        self._means = None if config.sum is None else Means(config.sum)

    def __repr__(self) -> str:
        return f"Histogram({self.name!r}, next={self.life.next})"

    def _refused(self, why: str) -> StateRefused:
        return StateRefused(f"histogram {self.name!r}: {why}")

    @property
    def columns(self) -> Ledger:
        """Exact rows of the running epoch: for the operator only."""
        return self._state.ledger

    @property
    def owners(self) -> int:
        """How many owner partitions there are in the tick that was released last."""
        return self._owners

    @property
    def next(self) -> int | None:
        """Global tick to release next; None before the first event."""
        return self.life.next

    @property
    def next_epoch(self) -> int | None:
        """The charged epoch that contains the next tick; None before any event."""
        tick = self.life.next
        return None if tick is None else self._charge_grid.epoch_of(tick)

    @property
    def published_epoch(self) -> int | None:
        """The epoch of the newest tick; None before the first one."""
        life = self.life
        if life.first is None or life.next is None or life.next == life.first:
            return None
        return self.grid.epoch_of(life.next - 1)

    @property
    def reserved(self) -> bool:
        """Whether the epoch of the next tick is charged already, by a commit before that tick.

        Under a ceiling every epoch must be, else only the first. False before any event.
        """
        epoch = self.next_epoch
        # The last epoch charged in this way; UNSET if there is none yet.
        reserved = self.life.reserved
        return epoch is not None and isinstance(reserved, int) and reserved >= epoch

    def part_of(self, name: str) -> int:
        """Return which part, from 0, of a stream key's items this owner would have.

        The inverse of `part_owner`. A part from `split` on does not exist: the owner has no items.
        """
        return (self._owner - owner_of(name, self._owners)) % self._owners

    def _is_own(self, name: str) -> bool:
        """Return whether this owner has the stream key, or a part of it."""
        # In a histogram that takes over, nothing is known before the growth that made its owner.
        return self._owner >= self._owners or self.part_of(name) < self.config.split

    def _keep_own(self) -> None:
        """Forget the declared stream keys of which this owner has no part: others serve them."""
        self._declared = {
            k: since for k, since in self._declared.items() if self._is_own(k)
        }

    def grow(self, owners: int, at_ms: int) -> None:
        """Learn that there are `owners` owner partitions in ticks that end after `at_ms`."""
        # This owner has no ticks before the growth that creates it: the number holds at once.
        if self._owner >= self._owners:
            self._owners = owners
            self._keep_own()
        else:
            # The tick that begins there is the first that ends after it.
            self._growing.append((self.grid.tick_at(at_ms), owners))

    def take_over(self, handed: HandedOver) -> None:
        """Begin with the stream keys that another owner handed over, at the tick that it names.

        A new generation begins later, if the one before may have published that tick.
        """
        # UNSET: it may begin at any tick.
        begin = self.life.begin
        self.start_at(max(handed.tick, begin if isinstance(begin, int) else 1))
        for name, since in handed.keys:
            if not self._public and self._declared.pop(name, None) is None:
                raise self._refused(
                    f"keys: {abbreviate(name)} is served and no longer declared: declare it again"
                )
            self._append_key(name, since)

    def served(self) -> dict[str, int]:
        """Return the stream keys, with the global tick from which each is served."""
        return dict(zip(self._keys, self._since, strict=True))

    def first_tick(self, time_ms: int) -> int:
        """Return the first tick to publish when the stream's first event is dated `time_ms`.

        That is the event's own tick, or 1 if that is before the grid. With `start` in the settings
        it is tick 1 of the epoch, so that it does not depend on the event, unless more than
        LEADING_TICKS_MAX ticks would be published empty.
        """
        tick = max(1, self.grid.tick_at(time_ms))
        t = self.grid.split(tick)[1]
        return (
            tick - t + 1 if self.config.start_given and t <= LEADING_TICKS_MAX else tick
        )

    def reserve(self) -> None:
        """Charge the epoch of the next tick; it counts once that is stored."""
        epoch = self.next_epoch
        if epoch is None:
            raise self._refused("an epoch is charged before its first tick is known")
        self.life.reserved = epoch

    def start_at(self, tick: int) -> None:
        """Make a global tick the first one to publish."""
        self.life.first = self.life.next = tick

    def step(self, parts: Sequence[Contributions]) -> Iterator[Snapshot]:
        """Release the next tick now; yield its snapshots, series by series."""
        return chain.from_iterable(map(self.snapshots, self.advance(parts)))

    def snapshots(self, tick: ReleasedTick) -> Iterator[Snapshot]:
        """Yield a released tick as messages, one or more pages for every stream key."""
        return self._snapshots(tick, self.part_of)

    def _snapshots(
        self, tick: ReleasedTick, part_of: Callable[[str], int]
    ) -> Iterator[Snapshot]:
        """Yield a released tick as messages; `part_of` returns which part of a stream key is here.

        A method of its own for replay, where one process publishes every part of a key in turn.
        """
        ledger = self._state.ledger
        topic = self.outputs[tick.series][1]
        for name, value in snapshots_of(
            tick, ledger, self._keys, self._labels, part_of=part_of
        ):
            yield Snapshot(topic, name, value, tick.end_ms)

    def advance(self, parts: Sequence[Contributions]) -> list[ReleasedTick]:
        """Count the contributions to the next tick and add noise; return the tick for each series.

        `parts` are the contributions of all sources. If there are more owners from this tick on,
        first hand stream keys over to them; if it is the first of an epoch, begin that epoch.
        """
        if self.life.next is None:
            raise self._refused("asked for a tick before its first one is known")
        tick = self.life.next
        epoch, t = self.grid.split(tick)
        keys_before = self._keys
        # Growth that has taken effect: (first tick, how many owners).
        while self._growing and self._growing[0][0] <= tick:
            self._hand_over(tick, self._growing.pop(0)[1])
        if epoch != self._epoch:
            self._open(epoch, keys_before)
        # A step publishes all keys that the mechanism has by then: declared ones from the start,
        # with or without events, public ones from their first event.
        for name in [name for name, since in self._declared.items() if since <= tick]:
            del self._declared[name]
            self._add_key(name, tick)
        # Contributions with the number of each of their stream keys, -1 for one that is not served.
        indexed: list[tuple[Contributions, Codes]] = []
        for part in parts:
            for name in part.keys if self._public else ():
                if name not in self._index:
                    self._add_key(name, tick)
            index = [self._index.get(name, -1) for name in part.keys]
            indexed.append((part, np.array(index, dtype=np.int32)))
        ledger = self._state.ledger
        self._state, release = self.mechanism.step(self._state, t, indexed, self._noise)
        # Another ledger has other row numbers (windows without epochs forget rows).
        if self._state.ledger is not ledger:
            self._begin_rows_anew()
        self.life.next = tick + 1
        # By series: one release or, without epochs, one for every window, with its begin.
        releases: Sequence[Release | Items | Answers]
        begins: Sequence[int | None] = (None,)
        if isinstance(release, WindowReleases):
            releases = release.releases
            begins = [self.grid.end(begin) for begin in release.begins]
        else:
            releases = (release,)
        windows = self._windows.at(t, self._ticks_before)
        return [
            ReleasedTick(
                histogram=name,
                series=number,
                epoch=epoch,
                tick=t,
                start_ms=self.grid.start(tick),
                end_ms=self.grid.end(tick),
                guarantee=self.mechanism.guarantee,
                mechanism=self.mechanism.kind,
                id=self.ids[number],
                release=releases[number],
                parts=self.config.split,
                numeric=self._numeric,
                means=self._means,
                windows=windows,
                window_ms=self.config.series[number].window_ms,
                begin_ms=begins[number],
                of_users=bool(self.config.unique_users),
                previous_id=self._previous_id,
            )
            for number, (name, _topic) in enumerate(self.outputs)
        ]

    def exact(self, name: str, number: int = 0) -> dict[str, int]:
        """Return the exact count of every label of a stream key in series `number`.

        For the operator only.
        """
        return self._by_label(name, self._state.counts(number))

    def exact_sums(
        self, name: str, labels: Iterable[str], number: int = 0
    ) -> list[tuple[float, float | None]]:
        """Return the exact sums and means of labels of a stream key in series `number`.

        A mean is None where nothing was counted. For the operator only. The state has sums in steps
        of the setting `sum`.
        """
        if self._means is None:
            raise TypeError("of a histogram with sums only")
        counts = self.exact(name, number)
        steps = self._by_label(name, self._state.sums(number))
        return [self._means.exact(counts[label], steps[label]) for label in labels]

    def _by_label(self, name: str, numbers: Longs) -> dict[str, int]:
        """Return the numbers of a stream key's rows by label; `numbers` has one for every row."""
        ledger = self._state.ledger
        rows = np.flatnonzero(ledger.keys == self._index[name])
        pairs = zip(rows.tolist(), numbers[rows].tolist(), strict=True)
        return {ledger.label(row).decode(): number for row, number in pairs}

    def changes(self) -> list[Change]:
        """Return store changes since the last call: new keys, changed blocks, deletions."""
        changes: list[Change] = [(key, None) for key in self._deletions]
        changes += self._key_blocks(self._stored_keys)
        self._deletions = []
        self._stored_keys = len(self._keys)
        if self._epoch is not None:
            of_epoch = f"{self.prefix}{self._epoch}/".encode()
            blocks: list[Change] = [
                (name.encode(), value)
                for name, value in ledger_blocks.changes(self._state.ledger)
            ]
            # None: the mechanism needs this value no more.
            for name, value in self._state.changed():
                if value is None:
                    blocks += ledger_blocks.deleted_pages(name, self._blocks)
                else:
                    blocks += ledger_blocks.split_pages(name.encode(), value)
            for key, value in blocks:
                if value is None:
                    self._blocks.discard(key.decode())
                else:
                    self._blocks.add(key.decode())
            changes += [(of_epoch + name, value) for name, value in blocks]
            self._state.ledger.clean()
        return changes

    def restore(
        self, life: HistogramProgress, stored: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Resume from a stored life and all pairs under `prefix`, in key order.

        Raise StateRefused if another mechanism wrote it or keys that it served are not declared.
        """
        self.check(life)
        self.life.first = life.first
        self.life.next = life.next
        self.life.epochs = life.epochs
        self.life.reserved = life.reserved
        self.life.begin = life.begin
        if life.next is None:
            return
        if life.first != life.next:
            # Growth that took effect in published ticks: its keys were handed over then.
            while self._growing and self._growing[0][0] < life.next:
                self._owners = self._growing.pop(0)[1]
                self._keep_own()
        # The stored blocks are of the epoch of the last published tick, the one before `next`. At
        # tick 1 none is published.
        epoch = self.grid.epoch_of(max(1, life.next - 1))
        of_epoch = f"{epoch}/"
        loading = ledger_blocks.Loading()
        names = set[str]()
        further = dict[bytes, bytes]()
        for key, value in stored:
            name = key.decode()[len(self.prefix) :]
            if name.startswith(ledger_blocks.PREFIX):
                for known, since in ledger_blocks.decode(value):
                    self._append_key(known, since)
            elif name.startswith(of_epoch):
                name = name[len(of_epoch) :]
                names.add(name)
                if name[0] in ledger_blocks.KINDS:
                    loading.take(name, value)
                else:
                    further[name.encode()] = value
            else:
                # Of an epoch that has ended.
                self._deletions.append(key)
        self._stored_keys = len(self._keys)
        if not self._public:
            if removed := self._index.keys() - self._declared.keys():
                raise self._refused(
                    f"keys: {len(removed)} stream keys that it served are no longer declared: declare them again, "
                    f"or set generation = {life.generation + 1} to start over, which is charged again"
                )
            for name in self._keys:
                del self._declared[name]
        # No tick is published, so nothing of an epoch is stored: `advance` begins it.
        if life.next == life.first:
            return
        self._epoch = epoch
        self._bind(epoch)
        self._blocks = names
        self._state.ledger = loading.ledger(len(self._keys))
        # Not stored: they follow from the noise key.
        tags = [self._key.tags(name, [KEY_LABEL]) for name in self._keys]
        self._state.key_tags = np.concatenate((self._state.key_tags, *tags))
        for name, value in ledger_blocks.joined_pages(further):
            self._state.restore(name, value)
        self._state.restored()

    def check(self, stored_life: HistogramProgress) -> None:
        """Raise StateRefused, naming the changed settings, if another mechanism wrote the state."""
        # Through JSON, as the stored one was: tuples are lists there.
        current = msgspec.json.decode(msgspec.json.encode(self.life.description))
        stored = stored_life.description
        if current == stored:
            return
        after = dict(flatten(current))
        before = dict(flatten(stored))
        changed = {
            name: (before.get(name), after.get(name))
            for name in sorted(after.keys() | before.keys())
            if before.get(name) != after.get(name)
        }
        # The stream is the names and ids of the internal topics.
        if "stream" in changed:
            if lacks_ids(str(stored.get("stream", ""))):
                refuse_without_ids(f"histogram {self.name!r}")
            raise self._refused(
                f"the internal topics are not those its state was made with "
                f"(deleted and created again?): set generation = {stored_life.generation + 1} to start over, which is charged again"
            )
        detail = ", ".join(self._changes(stored_life, changed))
        raise self._refused(
            f"its state belongs to another mechanism ({detail}): change the settings back, "
            f"or set generation = {stored_life.generation + 1} to begin a new one, which is charged again"
        )

    def _changes(
        self, life: HistogramProgress, changed: Mapping[str, tuple[object, object]]
    ) -> Iterator[str]:
        """Yield the settings that differ from those stored, as "name = old became new".

        `changed` has the (stored, current) values of a description that differ, by name. Those that
        only follow from other settings are left out, unless nothing else differs: `DERIVED` ones, a
        counter's part of delta, and all those of further counters, which share the first one's
        settings.
        """
        differing = dict(changed)
        # The settings have epsilon, from which the description's rho follows.
        if self.config.rho is None:
            differing.pop("rho", None)
            if life.epsilon != self.life.epsilon:
                differing = {"epsilon": (life.epsilon, self.life.epsilon), **differing}
        last = {name: name.rpartition(".")[2] for name in differing}
        settings = [
            name
            for name in differing
            if not (
                last[name] in DERIVED
                or name.endswith(".delta")
                or name.startswith(_FURTHER_COUNTERS)
            )
        ]
        # Unless the settings have a radix, it follows from the horizon.
        if getattr(self.config, "radix", None) is None and len(settings) > 1:
            settings = [name for name in settings if last[name] != "radix"]
        for name in settings or changed:
            stored, current = (changed if name in changed else differing)[name]
            yield f"{SETTING_NAMES.get(name, name)} = {abbreviate(stored)} became {abbreviate(current)}"

    def _open(self, epoch: int, keys_before: Sequence[str]) -> None:
        """Begin an epoch with empty counts, and what the mechanism carries over into it.

        `keys_before` are the stream keys of the epoch before, in the order that its rows refer to:
        `_hand_over` may have changed them since.
        """
        if self._growing and self.config.split > self._owners:
            raise self._refused(
                f"split = {self.config.split}: more than the {self._owners} owner partitions in "
                "this epoch: begin it after they have grown"
            )
        epoch_before = self._epoch
        last_state = self._state
        self._begin_rows_anew()
        self._epoch = epoch
        self._state = self.mechanism.init()
        self.life.epochs += 1
        self._bind(epoch)
        for i in range(len(self._keys)):
            self._register_key(i)
        if epoch_before is not None and self.life.next is not None:
            # The epoch before ended with its tick t.
            t = self.grid.split(self.life.next - 1)[1]
            # Stream keys that lie with another owner now begin with nothing.
            index = [self._index.get(name, -1) for name in keys_before]
            keys = np.array(index, dtype=np.int32)
            noise = self._noise_of(epoch_before)
            carried = self.mechanism.carry(last_state, t, noise, self._state, keys)
            self._note_carried(carried)

    def _note_carried(self, rows: Rows) -> None:
        """Learn which rows are shown because the epoch before showed them; a hook for backtests."""

    def _begin_rows_anew(self) -> None:
        """Forget what goes by row numbers, which mean other items from now on.

        That is the stored blocks of the epoch, which the next commit deletes, and labels.
        """
        self._deletions += [
            f"{self.prefix}{self._epoch}/{name}".encode()
            for name in sorted(self._blocks)
        ]
        self._blocks = set()
        self._labels = LabelCache()

    def _bind(self, epoch: int) -> None:
        """Set what depends on the epoch: its noise, and what snapshots state of epochs.

        That is an id for each series. Of the epoch before, it is how many ticks were published and,
        if readers may subtract its counts, its id.
        """
        self._noise = self._noise_of(epoch)
        of_epoch = self.life.description, self._first, epoch
        self.ids = [series_id(*of_epoch, one.window_ms) for one in self.config.series]
        # The ticks of the epoch before, from `_first` on: none if it ended before that, or if
        # epochs never end.
        horizon = self.grid.horizon or 0
        last_before = (epoch - 1) * horizon
        self._ticks_before = max(0, min(last_before - self._first + 1, horizon))
        self._previous_id = None
        if self._ticks_before and self.config.subtracts:
            # Only with epochs, so there is one series, without a window.
            self._previous_id = series_id(self.life.description, self._first, epoch - 1)

    @property
    def _first(self) -> int:
        """The first published global tick, which enters the mechanism ids."""
        if self.life.first is None:
            raise self._refused("an epoch begins before its first tick is known")
        return self.life.first

    def _noise_of(self, epoch: int) -> Noise:
        """Return the noise of an epoch, which depends on the key and the mechanism id alone."""
        identity = mechanism_id(self.life.description, self._first, epoch)
        return self.mechanism.noise(self._key.stream(identity))

    def _hand_over(self, tick: int, owners: int) -> None:
        """Drop the stream keys that belong to new owners from this global tick on.

        Put them into `handed`, from which they are sent with the tick. `owners` is how many there
        are from then on.
        """
        if self._epoch == self.grid.epoch_of(tick):
            raise self._refused(
                f"there are {owners} owner partitions from tick {tick} on, in the middle of an epoch"
            )
        owners_before = self._owners
        served = self.served()
        blocks_before = dict(self._key_blocks(0))
        # By new owner: all that take over keys from this one. A key's owner is its hash modulo the
        # number of owners, now a multiple of the former one. An owner that gets no keys is told so.
        moved: dict[int, list[tuple[str, int]]] = {
            owner: []
            for owner in range(self._owner + owners_before, owners, owners_before)
        }
        self._keys = []
        self._since = []
        self._index = {}
        for name, since in served.items():
            part = self.part_of(name)
            owner = part_owner(owner_of(name, owners), part, owners)
            if owner == self._owner:
                self._append_key(name, since)
            else:
                moved[owner].append((name, since))
        self._owners = owners
        # Keys that stay get new numbers: the next commit stores all of them again, and deletes the
        # blocks that are left over.
        self._stored_keys = 0
        self._keep_own()
        blocks = dict(self._key_blocks(0))
        self._deletions += sorted(blocks_before.keys() - blocks.keys())
        generation = self.life.generation
        self.handed += [
            (owner, HandedOver(self.name, generation, tick, keys))
            for owner, keys in moved.items()
        ]

    def _key_blocks(self, stored: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the blocks to store for stream keys beyond the first `stored`, as (name, value)."""
        for name, value in ledger_blocks.key_changes(self._keys, self._since, stored):
            yield (self.prefix + name).encode(), value

    def _append_key(self, name: str, since: int) -> None:
        """Give the next number to a stream key that is served since a global tick."""
        self._index[name] = len(self._keys)
        self._keys.append(name)
        self._since.append(since)

    def _add_key(self, name: str, tick: int) -> None:
        """Begin to serve a stream key at a global tick."""
        self._append_key(name, tick)
        self._register_key(self._index[name])

    def _register_key(self, i: int) -> None:
        """Tell the mechanism of stream key number `i`: declared labels get their rows at once.

        If the key is split, only the labels whose part lies here do.
        """
        state = self._state
        name = self._keys[i]
        labels = self.mechanism.domain()
        # A tag for the noise of values that belong to the key as a whole, such as its total.
        state.key_tags = np.concatenate(
            (state.key_tags, self._key.tags(name, [KEY_LABEL]))
        )
        tags = self._key.tags(name, labels)
        split = self.config.split
        if split > 1 and labels:
            owners = self._owners
            first = owner_of(name, owners)
            # One part, or all of them in replay, where a single owner has everything.
            own_parts = [
                p for p in range(split) if part_owner(first, p, owners) == self._owner
            ]
            rows = np.flatnonzero(np.isin(parts_of(tags, split), own_parts))
            labels = [labels[row] for row in rows.tolist()]
            tags = tags.take(rows, axis=0)
        self.mechanism.prepare_key(state, i, tags, labels)
