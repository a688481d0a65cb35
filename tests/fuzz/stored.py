"""Settings files, messages and blocks that a worker reads back, and snapshots as the dashboard does."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import orjson

from tests.bounds.stages import VARIANTS as SETTINGS
from tests.bounds.stages import settings_of
from tests.contract import long_messages
from tests.contract.stage import Run
from tests.contract.test_purity import stream_of
from tests.contract.variants import VARIANTS, built
from tests.dashboard.feeding import answer, message, reader_settings
from tests.events.comparison import Differs
from tests.events.reading import rows
from tests.fuzz.fuzzing import Target
from tests.worker.harness import toml
from workers.agents import contribute, progress, rekey
from workers.agents.progress import PROGRESS
from workers.agents.source_shard import SourceShard
from workers.client.changes import can_subtract, changes
from workers.client.messages import InvalidSnapshot, Pages, select_items
from workers.client.reading import typed
from workers.commands.check.examine import examine
from workers.commands.check.sample import Part, Sample
from workers.dashboard.hub import Filter, Hub, catalog, joint_guarantee
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import contributions, ledger_blocks, users
from workers.pipeline.growth import sources
from workers.pipeline.growth.sources import Place, Sources, SourceTopic
from workers.pipeline.ledger_blocks import read_paged
from workers.pipeline.rekey_markers import Origins
from workers.runtime.errors import SettingsError, StateRefused
from workers.settings.settings import load

KEY = NoiseKey(bytes(range(32)))
EXAMPLES = Path(__file__).parents[2] / "examples"
NOW_MS = 1_700_000_000_000


def settings() -> Target:
    memory = Path("/dev/shm")  # a file on a disk takes longer than its settings
    directory = TemporaryDirectory(
        prefix="quietcount-fuzz-", dir=memory if memory.is_dir() else None
    )
    path = Path(directory.name) / "settings.toml"
    seeds = [file.read_bytes() for file in sorted(EXAMPLES.rglob("*.toml"))]
    head = {
        "worker": {
            "name": "w",
            "data_dir": "d",
            "key_file": "k",
            "owner_partitions": 1,
        },
        "kafka": {
            "bootstrap": "localhost:9092",
            "client": {"security.protocol": "ssl"},
        },
    }
    for given in SETTINGS.values():
        events = {
            "topic": "t",
            "key": "key",
            "items": "items",
            **given.get("events", {}),
        }
        seeds.append(toml({**head, **given, "events": events}).encode())
    registry = b'[schema_registry]\nurl = "http://localhost:8081"\nuser = "u"\npassword = { env = "PATH" }\n'
    seeds += [seed + registry for seed in seeds[-2:]]

    def run(data: bytes) -> str:
        path.write_bytes(data)
        load(path)
        return "loaded"

    words = (
        b'"unbounded"',
        b'"public"',
        b"2026-01-01",
        b"1979-05-27T07:32:00Z",
        b"inf",
        b"true",
        b"[[histogram]]\n",
        b"[events]\n",
        b'"10s"',
        b'"1ms"',
        b'"36500d"',
        b'"$all"',
        b'"$key"',
        b"a[].b",
        b"1_000",
        b"0x10",
        b"'''",
        b'"""',
        b"[a.b.c]\n",
        b"{}",
        b"[]",
        b'""',
        b"\n",
    )
    documented = (SettingsError,)
    return Target("settings", run, seeds, words, documented, close=directory.cleanup)


def contributed() -> Target:
    lane = Lane(1_000, 0, 3, 1)
    seeds = []
    for keys, labels in ((0, 0), (1, 1), (2, 3), (3, 40)):
        tally = {
            f"k{k}": {f"item{i}": 1 << 3 * i % 60 for i in range(labels)}
            for k in range(keys)
        }
        for ticks in (1, 3):
            counted = [rows(lane, tick, tally, KEY) for tick in range(1, ticks + 1)]
            made = contributions.messages(
                counted,
                source=0,
                sequence=0,
                offset=12,
                watermark=5,
                first=1,
                key=KEY.fingerprint,
                max_bytes=1_700,
            )
            seeds += [each.encoded() for each in made]

    def run(data: bytes) -> str:
        found = contributions.decode(data)
        n = 0
        for section in found.sections:
            part = section.contributions()
            n += len(part.counts)
            names = [part.keys[key] for key in part.key_of_row.tolist()]
            if (
                not len(names)
                == len(part.tags)
                == len(list(part.labels))
                == len(part.counts)
            ):
                raise Differs("columns of different lengths")
        return f"{min(len(found.sections), 4)} sections, {min(n, 9)} rows"

    words = (
        b"\xdc\xff\xff",
        b"\xdd\x7f\xff\xff\xff",
        b"\xc6\x7f\xff\xff\xff",
        b"\xd3" + b"\xff" * 8,
        b"\xc0",
        b"\x90",
    )
    return Target("contributions", run, seeds, words, documented=(StateRefused,))


def blocks() -> Target:
    """One block of a mechanism's state replaced; the rest is whole. Then a tick is stepped."""
    after = 9
    stream = stream_of(4)
    stored: list[tuple[int, list[tuple[str, bytes]]]] = []
    seeds = []
    for place, variant in enumerate(VARIANTS):
        run_of = Run(built(variant), 4)
        run_of.transcript(stream[:after])
        kept = sorted(run_of.store().items())
        stored.append((place, kept))
        seeds += [
            bytes((place, which)) + block for which, (_, block) in enumerate(kept)
        ]

    def run(data: bytes) -> str:
        place, kept = stored[data[0] % len(stored)] if data else stored[0]
        name, _ = (
            kept[data[1] % len(kept)] if len(data) > 1 and kept else ("C00000000", b"")
        )
        variant = VARIANTS[place]
        one = Run(built(variant), 4)
        one.load({**dict(kept), name: data[2:]})
        try:
            one.step(after + 1, stream[after])
        except (ArithmeticError, LookupError, ValueError, MemoryError) as error:
            # No block has a checksum: Kafka's batches have one. The tick is not released.
            return f"{variant}: no tick with another {name[0]}: {type(error).__name__}"
        return f"{variant} goes on with another {name[0]}"

    return Target("state", run, seeds, documented=(StateRefused,), max_bytes=70_000)


class _Stored:
    """Pairs of users under one name."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def get(self, key: bytes) -> bytes | None:
        return None

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield prefix + bytes(8), self._value


def source_state() -> Target:
    """The progress of both stages, the set of topics, stream keys and users' pairs."""
    lane = long_messages.LANE
    topics = Sources(
        (SourceTopic("a", 2, "x" * 22), SourceTopic("b", 1, None)), plain=False
    )
    of_release = (
        b'{"version":1,"offset":1,"position":2,"owners":1,"key":"ab","watermarks":[1,null],"firsts":[1,null],'
        b'"sequences":[1,2],"histograms":{"products":{"generation":1,"first":1,"next":2,"epochs":1,"rho":0.1,'
        b'"epsilon":1.0,"delta":1e-9,"deltas":{"numerical":1e-9},"description":{"a":1},"unit":"event"}}}'
    )
    of_contribute = b'{"version":1,"offset":1,"watermark":null,"first":1,"sequences":[1],"sources":2,"topic_id":null}'
    of_rekey = b'{"version":1,"offset":1,"watermark":5,"sequence":1,"sources":1,"topic_id":null,"users":3,"users_id":null}'
    pairs = next(each.value for each in long_messages.users() if each.value is not None)
    short = (
        pairs[:1]
        + (3).to_bytes(users.HEAD_BYTES - 1)
        + pairs[users.HEAD_BYTES :][: 3 * users.ROW_BYTES]
    )
    keys = orjson.dumps([("s1", 1), ("s2", 7)])
    mark = b'{"origin":1,"of":2,"sequence":0,"watermark":5}'
    held = [
        topics.encoded(),
        of_release,
        of_contribute,
        of_rekey,
        short,
        mark,
        keys,
        b'{"pages":2}',
    ]
    seeds = [
        bytes((which,)) + value for which, value in enumerate(held) if value is not None
    ]

    def paged(value: bytes) -> object:
        head, *pages = value.split(b"\n")
        names = {b"progress": head} | {
            b"progress.%04x" % i: page for i, page in enumerate(pages)
        }
        return read_paged(b"progress", names.get)

    def of_shard(decoder: msgspec.json.Decoder[Any]) -> Callable[[bytes], object]:
        def read(value: bytes) -> object:
            topic = SimpleNamespace(topic="t")
            held = SimpleNamespace(get={PROGRESS: value}.get, changelog=topic)
            return SourceShard._stored(SimpleNamespace(store=held), decoder)  # type: ignore[arg-type]  # all that it looks at

        return read

    def marks(value: bytes) -> object:
        records = Records.of([None], [value])
        return Origins(2).take(records, range(1), [], "events[0]")

    def of_users(value: bytes) -> object:
        epoch = users.UserEpoch(lane, keeps=False)
        epoch.read_blocks([(bytes(8), value)])
        return epoch

    readers = (
        sources.decode_sources,
        progress.read_progress,
        of_shard(contribute._DECODER),
        of_shard(rekey._DECODER),
        of_users,
        marks,
        ledger_blocks.decode,
        paged,
    )

    def run(data: bytes) -> str:
        which = (data[0] if data else 0) % len(readers)
        readers[which](data[1:])
        return f"read {which}"

    words = (b"null", b"true", b'{"pages":', b"\n", b'"x":', b"[[1]]", b'"\\ud800"')
    return Target(
        "source_state", run, seeds, words, documented=(StateRefused,), max_bytes=8_000
    )


def snapshots() -> Target:
    """Records of a histogram topic, one a line, up to what the dashboard answers."""
    page = [
        orjson.dumps(message(3, [(f"i{i}", 9 - i)], page=i + 1, pages=3))
        for i in range(3)
    ]
    numeric = message(
        2, [("<0", 2), ("[0,1)", 1)], edges=[0.0, 1.0], mechanism="known_base"
    )
    windows = message(4, [("a", 2)], windows=[{"ms": 60_000, "ticks": 6, "sd": 3.5}])
    query = answer(5, query="max", value=3)
    several = answer(
        6, answers=[{"query": "max", "value": 3}, {"query": "top", "value": ["a"]}]
    )
    parts = [
        orjson.dumps(
            answer(6, answers=[{"query": "top", "value": [x]}], page=i, pages=2)
        )
        for i, x in ((1, "a"), (2, "b"))
    ]
    single = [
        orjson.dumps(each) for each in (message(), numeric, windows, query, several)
    ]
    seeds = [*single, b"\n".join(page), b"\n".join(parts), b"\n".join(single[:3])]
    loop = asyncio.new_event_loop()

    def run(data: bytes) -> str:
        return loop.run_until_complete(shown(data))

    async def shown(data: bytes) -> str:
        pages = Pages()
        hub = Hub()
        seen = 0
        viewers = [hub.join(Filter(top=top)) for top in (None, 10)]
        refused: InvalidSnapshot | None = None
        for line in data.split(b"\n"):
            try:
                found = pages.receive("products", line)
            except InvalidSnapshot as error:
                refused = error
                continue
            if found is None:
                continue
            seen += 1
            with suppress(InvalidSnapshot):
                typed(found)
            for cut in (
                select_items(found, top=1),
                select_items(found, items={"a"}),
                found.json,
            ):
                orjson.loads(cut)
                if b"\n" in cut or b"\r" in cut:
                    raise Differs("an event would end within its data")
            document = orjson.loads(found.json)
            if can_subtract(document):
                orjson.dumps(changes(document, document, 0))
            hub.publish([found])
        for viewer in viewers:
            while len(viewer):
                await viewer.take(1.0)
        known = reader_settings("products").histograms
        listed = {
            "histograms": catalog(hub.history, known),
            "together": joint_guarantee(hub.history, known),
        }
        orjson.dumps(listed)
        if refused is not None and not seen:
            raise refused
        return f"{min(seen, 3)} snapshots, {int(pages.first_position is not None)} wait"

    words = (
        b'"page":',
        b'"pages":',
        b'"part":',
        b'"parts":',
        b'"items":',
        b'"answers":',
        b"\n",
        b"\r",
        b"null",
        b'"edges":',
        b"[]",
        b"{}",
    )
    documented = (InvalidSnapshot,)
    return Target("snapshots", run, seeds, words, documented, close=loop.close)


def checked() -> Target:
    """`quietcount check` over the records of an input, one a line."""
    chosen = [settings_of(variant) for variant in ("several", "users", "items")]
    samples: list[Mapping[str, object]] = [
        {
            "key": "s1",
            "items": ["a", "b"],
            "ts": NOW_MS,
            "user": "ann",
            "kind": "kind1",
            "price": 5,
        },
        {
            "key": "s2",
            "items": {"a": 2},
            "ts": NOW_MS // 1000,
            "lines": [{"sku": "x", "qty": 2}],
        },
        {
            "Key": "s1",
            "item": "a",
            "time": "2026-01-01T00:00:00Z",
            "lines": [],
            "price": 1.5,
        },
    ]
    values = [msgspec.json.encode(sample) for sample in samples]
    seeds = [bytes((i,)) + b"\n".join(values[i:] + values[:i]) for i in range(3)]

    def run(data: bytes) -> str:
        configured = chosen[(data[0] if data else 0) % len(chosen)]
        lines = data[1:].split(b"\n")[:50]
        records = Records.of(lines, [b"s1"] * len(lines), [NOW_MS] * len(lines))
        part = Part(Place(0, SourceTopic("events", 1, None), 0), records)
        found = examine(
            configured, Sample("fuzzed", [part], configured.shape, live=True)
        )
        reasons = {why.reason.split("'")[0] for why in found.why}
        return f"{min(found.accepted, 3)} accepted, {', '.join(sorted(reasons))[:60]}"

    words = (b"\n", b'"key":', b'"items":', b'"ts":', b"[]", b"{}", b"null", b'"a":')
    return Target("check", run, seeds, words, max_bytes=4_000)
