"""Random settings, streams and scripts; all of a pair follows from its seed.

A script decides what each shard reads when, by which clock, and where shards restart. It depends on
times and partitions of records, never on their content, so both worlds of a pair share it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.offline import factory_of, worker_document
from tests.contract.variants import DOMAIN, OTHERS, START, VARIANTS, Variant
from tests.neighbours.formats import FORMATS, Garbage, garbage_of, written
from workers.agents.worker import Factory
from workers.mechanisms.config.histogram import Lane, names_of
from workers.mechanisms.config.sums import Sum
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.factory import lanes
from workers.privacy.ceiling import check_ceiling
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings, settings_of

PER_ITEM = tuple(names_of(lambda about: about.per_item))

KEY = NoiseKey(b"n" * 32)
# Items of buckets are numbers, and those of these streams are not.
BY_NAME = {
    str(variant): variant for variant in VARIANTS if "buckets" not in variant.options
}
NAME = "near"
BY_USER = f"{NAME}.by-user"
#: 2026-01-01. Streams begin up to two epochs later.
START_MS = 1_767_225_600_000
TICK_MS = 1_000
KEYS = ("k1", "k2", "k3", "k4")
LABELS = (*DOMAIN, *OTHERS, "", 'q"\\\n', "\u00e9\U0001f600", "l" * 1024)
USERS = ("u1", "u2", "u3")
#: A user pair may contribute in several ticks, so its bound is over the epoch.
HORIZON = 5


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    time_ms: int
    arrived_ms: int


class Seed(NamedTuple):
    """The name of a stream: of a variant, a number of its scene, and one of its streams.

    All choices follow from it, so a variant that is added leaves the others' scenes as they are.
    """

    variant: str
    scene: int
    stream: int = 0

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> "Seed":
        variant, scene, stream = text.split("/")
        return cls(variant, int(scene), int(stream))


class Step(NamedTuple):
    """`kind`: read, end, idle, restart or raise."""

    kind: str
    stage: str
    partition: int
    most: int
    now_ms: int


@dataclass(frozen=True)
class Content:
    """What a record counts, as far as readers accept it. `items` may repeat labels."""

    key: str
    items: tuple[tuple[str, int], ...] = ()
    other: tuple[str, ...] = ()
    kind: str = "x"


@dataclass(frozen=True)
class Event:
    """A record before it is written; `garbage` replaces its content. `absent`: there is none."""

    partition: int
    time_ms: int
    arrived_ms: int
    user: str
    content: Content
    garbage: str | None = None
    absent: bool = False


@dataclass(frozen=True)
class Scene:
    """Settings with what does not change between pairs.

    `tight`: buffers hold a record or two, so that data is spilled, and batches are cut. A restart
    then reads records again that depend on content, so nothing is judged by the clock at which it
    is read (docs/guarantee.md, Time): no event is dated ahead, none is too far behind.
    """

    document: Mapping[str, Any]
    variant: Variant
    shape: str
    partitions: int
    sources: int
    owners: int
    tight: bool

    @property
    def format(self) -> str:
        return str(self.document["events"].get("format", "json"))

    @property
    def limited(self) -> bool:
        return "max_epsilon" in self.document["privacy"]

    @cached_property
    def garbage(self) -> Mapping[str, Garbage]:
        return garbage_of(self.format, self.shape)

    @property
    def rekey(self) -> bool:
        return bool(self.document["privacy"].get("rekey"))

    @property
    def record(self) -> bool:
        """Whether neighbours have one record, or a user's records, more or less."""
        return bool(self.document["privacy"].get("neighbours") == "record")

    @property
    def unit(self) -> str:
        return str(self.document["privacy"]["unit"])

    @property
    def contributions(self) -> str:
        return self.settings.contributions_topic

    @cached_property
    def records(self) -> dict[Event, Record]:
        """What `in_world` has written."""
        return {}

    @cached_property
    def settings(self) -> Settings:
        return _loaded(self.document)

    @cached_property
    def lanes(self) -> Mapping[str, Sequence[Lane]]:
        """Return the lanes of every histogram, that of counts first."""
        return {one.name: one.lanes for one in self.settings.histograms}

    @cached_property
    def all_lanes(self) -> Sequence[Lane]:
        return lanes(self.settings)

    @cached_property
    def window_ms(self) -> int:
        """Return the longest window of histograms without epochs; 0: there is none."""
        every = self.settings.histograms
        return max(
            (ms for one in every if one.without_epochs for ms in one.windows), default=0
        )

    @cached_property
    def factories(self) -> tuple[Factory, Factory]:
        """Return the worker's factory, and one with a new generation of the first histogram."""
        first, *others = self.document["histogram"]
        raised = {**self.document, "histogram": [first | {"generation": 2}, *others]}
        return self._factory(self.settings), self._factory(_loaded(raised))

    def _factory(self, settings: Settings) -> Factory:
        numbers = {"events": self.partitions, settings.contributions_topic: self.owners}
        numbers |= {
            settings.contribute_state_topic: self.sources,
            BY_USER: self.sources,
        }
        numbers |= {
            settings.release_state_topic: self.owners,
            f"{NAME}.rekey-state": 99,
        }
        return factory_of(settings, KEY, numbers)


def _loaded(document: Mapping[str, Any]) -> Settings:
    return settings_of(dict(document), Path("/"))


def make_scene(name: str, number: int) -> Scene:
    """Return a scene of a variant."""
    rng = random.Random(f"scene {name} {number}")
    variant = BY_NAME[name]
    user = variant.unit == "user"
    rekey = user and rng.random() < 0.5
    shape = rng.choice(("list", "object", "rows"))
    events: dict[str, Any] = {"topic": "events", "timestamp": "ts"}
    events["key"] = "$key" if (rekey or not user) and rng.random() < 0.2 else "key"
    events |= (
        {"items": "lines[].sku", "count": "lines[].qty"}
        if shape == "rows"
        else {"items": "items"}
    )
    events["grace"] = rng.choice(("0s", "0s", "700ms"))
    events["max_ahead"] = rng.choice(("0s", "1500ms", "300s"))
    if rng.random() < 0.5:
        events["max_behind"] = rng.choice(("1500ms", "4s"))
    if user:
        events["user"] = "user"
    public = rng.random() < 0.3
    keys: object = "public" if public else list(KEYS[: rng.choice((1, 2, 2, 4))])
    common: dict[str, Any] = {"tick": "1s", "horizon": HORIZON, "keys": keys}
    # Where delta is small hardly anything is shown; where it is large, much comes and goes.
    common["epsilon"], common["delta"] = rng.choice(
        ((8.0, 1e-6), (50.0, 0.4), (50.0, 0.4))
    )
    common |= {"max_items": rng.choice((1, 2, 3)), "max_count": rng.choice((1, 2, 3))}
    if rng.random() < 0.5 or "start" in variant.options:
        common["start"] = START
    first = (
        common | {"name": "first", "mechanism": variant.mechanism} | _options(variant)
    )
    if variant.mechanism not in PER_ITEM:
        # what their integer samplers can promise
        first["epsilon"] = min(common["epsilon"], 20.0)
    histograms = [first]
    if rng.random() < 0.6:
        histograms.append(_second(rng, common, user))
    privacy = {"unit": "user" if user else "event"} | ({"rekey": True} if rekey else {})
    document = worker_document(
        NAME, events=events, privacy=privacy, histogram=histograms
    )
    document["worker"]["commit_interval"] = "1s"
    partitions = rng.choice((1, 2, 2, 3))
    owners = rng.choice((1, 2, 2))
    sources = rng.choice((1, 2)) if rekey else partitions
    if rng.random() < 0.5:
        for histogram in histograms:
            whole = "total_share" in histogram or "unique_users" in histogram
            if histogram["mechanism"] in PER_ITEM and not whole:
                histogram["split"] = owners
    # Drawn apart, so that a new format or limit leaves other scenes as they are.
    rng = random.Random(f"surroundings {name} {number}")
    if rng.random() < 0.4:
        events["format"] = rng.choice(FORMATS)
        if events["format"] != "json_schema":
            document["schema_registry"] = {"url": f"http://{events['format']}"}
    if rng.random() < 0.25:
        _limit(rng, document)
    tight = rng.random() < 0.25
    if tight:
        events.pop("max_behind", None)
    if (
        not rekey
        and not public
        and random.Random(f"record {name} {number}").random() < 0.3
    ):
        privacy |= {"neighbours": "record", "deliver_after": "100ms"}
        # What a restart reads again may be ahead of one clock and not of the next (0038).
        events["max_ahead"] = "300s"
        for histogram in histograms:
            histogram.setdefault("start", START)
    return Scene(document, variant, shape, partitions, sources, owners, tight)


def _limit(rng: random.Random, document: dict[str, Any]) -> None:
    """Set a ceiling that these settings fit, and further epochs or generations may exceed."""
    privacy = document["privacy"]
    privacy["period"] = rng.choice(("epoch", "8s", "1d"))
    for histogram in document["histogram"]:
        histogram["delta"] = min(histogram["delta"], 0.05)
    privacy |= {"max_epsilon": 1_000, "max_delta": 0.5}
    try:
        epsilon = check_ceiling(_loaded(document)) or 0.0
    except SettingsError:
        for name in ("period", "max_epsilon", "max_delta"):
            del privacy[name]
    else:
        privacy["max_epsilon"] = min(epsilon * rng.choice((1.05, 1.3, 3.0)), 1_000.0)


def _options(variant: Variant) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in variant.options.items()
    }
    found.pop("start", None)
    if "windows" in found:
        # As many ticks of a second, not of a millisecond.
        found["windows"] = [f"{ticks}s" for ticks in found["windows"]]
    if isinstance(of := found.get("sum"), Sum):
        ends = {"from": float(of.from_), "to": float(of.to), "step": float(of.step)}
        found["sum"] = {"field": "paid", **ends, "share": of.share}
    return found


def _second(
    rng: random.Random, common: Mapping[str, Any], user: bool
) -> dict[str, Any]:
    """Return a histogram of another mechanism, tick, lane or view."""
    found = dict(common) | {
        "name": "second",
        "mechanism": rng.choice(("unk_base", "positive_gauss")),
    }
    if user:
        found |= {"max_items": 2, "max_items_per_user": rng.choice((1, 2, 4))}
    if rng.random() < 0.4:
        found["tick"] = rng.choice(("500ms", "2s"))
    if rng.random() < 0.5:
        found["items"] = "other"
    if rng.random() < 0.5:
        found["where"] = [{"field": "kind", "in": ["x"]}]
    return found


def in_world(scene: Scene, event: Event) -> Record:
    """Return the record of an event."""
    found = scene.records.get(event)
    if found is None:
        found = scene.records[event] = _written(scene, event)
    return found


def _written(scene: Scene, event: Event) -> Record:
    events = scene.document["events"]
    by_record = events["key"] == "$key"
    key = event.content.key if by_record else event.user if "user" in events else None
    value = fields(scene, event)
    garbage = scene.garbage.get(event.garbage or "")
    if garbage is None:
        text: bytes | None = written(scene.format, scene.shape, value)
    else:
        text = garbage.write(scene.shape, value)
    raw = None if key is None else key.encode()
    if event.garbage == "undeclared key" and by_record:
        raw = b"nobody"
    return Record(raw, text, event.time_ms, event.arrived_ms)


def fields(scene: Scene, event: Event) -> dict[str, Any]:
    content = event.content
    found: dict[str, Any] = {"user": event.user, "ts": event.time_ms}
    found |= {"key": content.key, "kind": content.kind, "other": list(content.other)}
    found["paid"] = (
        3 * len(content.items) + sum(n for _, n in content.items)
    ) % 9 - 2.5
    if scene.shape == "list":
        found["items"] = [label for label, n in content.items for _ in range(n)]
    elif scene.shape == "object":
        found["items"] = dict(content.items)
    else:
        found["lines"] = [{"sku": label, "qty": n} for label, n in content.items]
    return found
