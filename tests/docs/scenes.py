"""The inputs behind the sample outputs of the documents: fixed events, a fixed key, fixed states."""

import io
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from datetime import UTC, datetime
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import msgspec
from rich.console import Console

from tests import ROOT
from tests.dashboard.feeding import PATIENCE_S, embedded, message, on_a_broker
from tests.worker.harness import until
from workers.agents.ceiling_guard import CeilingGuard, OtherWorkers
from workers.agents.monitor import Health
from workers.cli import execute
from workers.commands.budget import show
from workers.kafka.clients import Connection
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.pipeline.histogram import Histogram, HistogramProgress
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.privacy.ceiling import Ceiling
from workers.privacy.spending import budget_of
from workers.replay.offline import replay
from workers.replay.sources import JsonLines
from workers.runtime.errors import CeilingReached
from workers.settings.settings import Settings, load

EXAMPLE = (ROOT / "examples" / "orders" / "orders.toml").read_text()
HEAD, PRODUCTS = EXAMPLE.split("[[histogram]]")
# Only these documents use it: nothing that is protected has this noise.
KEY = NoiseKey(bytes(range(32)))
START_MS = 1_795_254_826_000
DAY_MS = 86_400_000

Event = Mapping[str, object]
Lived = tuple[HistogramConfig, int, int]
"""A histogram, the first global tick that it published, and the next that it would."""


def loaded(text: str) -> Settings:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "orders.toml"
        file.write_text(text)
        return load(file)


def orders(seconds: float = 6.0, per_ms: int = 5) -> Iterator[Event]:
    """Yield orders like those of examples/orders/make_orders.py, from the middle of a tick on."""
    draw = random.Random(1)
    for i in range(int(seconds * 1_000 * per_ms)):
        names = ["tea", "cup", "pot", "spoon", "samovar"]
        yield {
            "shop": draw.choice(["s1", "s2"]),
            "products": draw.choices(names, [50, 30, 15, 5, 0.01], k=2),
            "ts": START_MS + 1_000 + i // per_ms,
        }


def priced_orders() -> Iterator[Event]:
    draw = random.Random(2)
    for i in range(10_000):
        tea = {"sku": "tea", "price": round(draw.uniform(1, 4), 2)}
        cup = {"sku": "cup", "price": round(draw.uniform(3, 9), 2)}
        lines = draw.choices([[tea], [cup], [tea, cup]], [30, 20, 15])[0]
        yield {"shop": "s1", "lines": lines, "ts": START_MS + i // 5}


def latencies() -> Iterator[Event]:
    draw = random.Random(3)
    for i in range(20_000):
        value = round(draw.expovariate(1 / 8), 2)
        yield {"shop": "s1", "products": value, "ts": START_MS + i // 10}


def snapshots(text: str, events: Iterable[Event]) -> list[str]:
    """Return the snapshots of a replay with the fixed key."""
    settings = loaded(text)
    published = list[str]()
    lines = io.BytesIO(b"".join(json.dumps(event).encode() + b"\n" for event in events))
    source = JsonLines(settings, "events", lines)
    replay(settings, KEY, source, lambda one: published.append(one.value.decode()))
    return published


@cache
def products() -> list[str]:
    """Return the snapshots of the README's settings, of both shops."""
    return snapshots(EXAMPLE, orders())


def of_shop(published: Iterable[str], key: str = "s1") -> list[dict[str, Any]]:
    found = map(json.loads, published)
    return [snapshot for snapshot in found if snapshot["key"] == key]


def printed(*arguments: str, files: Mapping[str, str]) -> str:
    """Return what `quietcount ARGUMENTS` prints in a directory with these files."""
    out = io.StringIO()
    with TemporaryDirectory() as directory, chdir(directory):
        for name, text in files.items():
            Path(name).write_text(text)
        with redirect_stdout(out):
            assert execute(list(arguments)) == 0
    return out.getvalue()


# ---- budgets -------------------------------------------------------------------------------------


def state_of(
    settings: Settings, running: Sequence[Lived], ended: Sequence[Lived]
) -> ReleaseProgress:
    empty = msgspec.json.encode(Merge([], key=KEY, sources=1, owners=1).progress())
    progress = msgspec.json.decode(empty, type=ReleaseProgress)
    progress.histograms = {one[0].name: _life(settings, *one) for one in running}
    progress.retired = [(one[0].name, _life(settings, *one)) for one in ended]
    return progress


def _life(
    settings: Settings, config: HistogramConfig, first: int, following: int
) -> HistogramProgress:
    histogram = Histogram(
        config,
        build(config, settings.privacy.unit),
        topic=settings.output_topic(config),
        key=KEY,
        worker=settings.worker.name,
        stream="documents",
        events={},
        owner=(0, 1),
    )
    life = msgspec.json.decode(
        msgspec.json.encode(histogram.life), type=HistogramProgress
    )
    life.first = first
    life.next = following
    return life


SHORT = """
name = "{name}"
mechanism = "unk_base"
tick = "1s"
horizon = 3
max_items = 2
epsilon = {epsilon}
delta = 1e-6
generation = {generation}
keys = ["s1", "s2"]
"""


def spent() -> str:
    """Return what `budget` prints of a worker with a replaced generation and a second histogram."""
    first = SHORT.format(name="products", epsilon=1.0, generation=1)
    second = SHORT.format(name="products", epsilon=0.5, generation=2)
    others = SHORT.format(name="known", epsilon=1.5, generation=1)
    now = loaded(f"{HEAD}[[histogram]]{second}[[histogram]]{others}")
    [old] = loaded(f"{HEAD}[[histogram]]{first}").histograms
    tick = 1_795_275_160
    lives = [
        (one, tick + 1 if one.generation == 2 else tick, tick + 7)
        for one in now.histograms
    ]
    out = io.StringIO()
    found = budget_of(now, [state_of(now, lives, [(old, tick, tick + 1)])])
    show(found, Console(file=out, width=100, highlight=False), now.release_state_topic)
    return out.getvalue()


DAILY = """
name = "products"
mechanism = "unk_base"
tick = "1d"
horizon = 1
max_items = 2
max_items_per_user = 2
epsilon = {epsilon}
delta = 1e-9
generation = {generation}
keys = ["s1", "s2"]
"""
USERS = (
    '[privacy]\nunit = "user"\nmax_epsilon = 3.0\nmax_delta = 1e-7\nperiod = "30d"\n'
)


def under_a_ceiling(new_days: int) -> tuple[Settings, ReleaseProgress, int]:
    """Return a daily histogram of users in its second generation, its state, and its next epoch."""
    head = HEAD.replace("[events]", '[events]\nuser = "customer"') + USERS
    now = loaded(head + "[[histogram]]" + DAILY.format(epsilon=0.54, generation=2))
    [old] = loaded(
        head + "[[histogram]]" + DAILY.format(epsilon=0.75, generation=1)
    ).histograms
    [config] = now.histograms
    changed = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp()) * 1_000 // DAY_MS + 1
    following = changed + new_days
    progress = state_of(
        now, [(config, changed, following)], [(old, changed - 9, changed)]
    )
    return now, progress, following


def outlook() -> str:
    """Return what `budget` prints of the time that a ceiling still leaves."""
    settings, progress, _ = under_a_ceiling(10)
    out = io.StringIO()
    found = budget_of(settings, [progress])
    show(
        found,
        Console(file=out, width=100, highlight=False),
        settings.release_state_topic,
    )
    return out.getvalue()


def refused() -> str:
    """Return why a worker ends under its ceiling."""
    for days in count(1):
        settings, progress, following = under_a_ceiling(days)
        ceiling = Ceiling.of(settings.privacy)
        assert ceiling is not None
        guard = CeilingGuard(
            ceiling, 0, 1, OtherWorkers(settings, Connection("localhost:9092"))
        )
        try:
            guard.check(progress, {"products": following})
        except CeilingReached as error:
            return str(error)
    raise AssertionError


# ---- commands that read topics -------------------------------------------------------------------


def exported(bootstrap: str) -> str:
    """Return what `export` prints of 200 ticks of two shops with two items each."""
    begin = int(datetime(2026, 11, 26, 10, tzinfo=UTC).timestamp()) * 1_000
    with on_a_broker(bootstrap, 2) as topics, TemporaryDirectory() as directory:
        for tick in range(1, 201):
            times = {"start": begin + (tick - 1) * 2_000, "end": begin + tick * 2_000}
            items = [("tea", 9 * tick), ("cup", 6 * tick)]
            topics.send(
                *(message(tick, items, key=key, **times) for key in ("s1", "s2"))
            )
        settings = Path(directory) / "orders.toml"
        settings.write_text(topics.toml("products"))
        out = io.StringIO()
        with redirect_stdout(out):
            words = ["export", "-c", str(settings), "--format", "parquet"]
            assert execute([*words, "--output", str(Path(directory) / "orders")]) == 0
    return out.getvalue()


def history() -> dict[str, Any]:
    """Return what `/api/history` answers about the first tick of the README's sample."""
    first = of_shop(products())[0]
    with embedded("products") as topics:
        topics.send(first)
        with topics.served("products") as running:
            store = running.dashboard.store
            until(lambda: store.state == {"state": "live"}, "the history is read")
            begin = first["end"] // 3_600_000 * 3_600_000
            query = f"histogram=products&key=s1&item=tea&item=spoon&from={begin}&to={begin + 3_600_000}"
            address = f"{running.url}api/history?{query}&step=10m"
            with urlopen(address, timeout=PATIENCE_S) as answer:
                found: dict[str, Any] = json.load(answer)
    return found


def not_ready() -> dict[str, Any]:
    """Return what `/readyz` answers of a partition that lags behind."""
    shard = SimpleNamespace(
        closed=False, stage="contribute", last_commit_s=time.monotonic() - 0.7
    )
    lag = SimpleNamespace(reached=True, seconds=lambda _now_s: 45.1)
    quiet = SimpleNamespace(
        outage=SimpleNamespace(is_active=False), waits=SimpleNamespace(reasons=[])
    )
    place = ("orders", 2)
    health = Health.__new__(Health)
    handover = SimpleNamespace(
        exit_status=None,
        metrics=quiet,
        assigned=True,
        shards={place: shard},
        lags={place: lag},
    )
    vars(health)["handover"] = handover
    _, body = health.readyz()
    return body


# ---- check ---------------------------------------------------------------------------------------


def checked() -> str:
    """Return what `check` prints of a file in which the shop of some orders lies elsewhere."""
    draw = random.Random(4)
    events = []
    for i in range(1_000):
        product = draw.choices(["tea", "cup", "pot"], [50, 30, 20], k=2)
        event: dict[str, object] = {
            "shop": draw.choice(["s1", "s2"]),
            "products": product,
        }
        kind = draw.choices(["as it is", "nested", "no shop"], [63, 34, 3])[0]
        if kind != "as it is":
            shop = event.pop("shop")
            event = {"order": {"shop": shop}, **event} if kind == "nested" else event
        events.append(json.dumps(event | {"ts": 1_795_333_629_000 + 80 * i}))
    files = {"orders.toml": EXAMPLE, "events.jsonl": "\n".join(events) + "\n"}
    return printed("check", "-c", "orders.toml", "--input", "events.jsonl", files=files)
