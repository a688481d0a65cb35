"""The longest content that settings and events allow, for every kind of message a worker writes."""

import itertools
import random
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from tests.events.reading import rows as tallied
from tests.kafka.bombs import varint
from tests.mechanisms.noise.tables import random_words
from workers.agents import contribute
from workers.agents.rekey import ForwardBatch
from workers.arrays.texts import Texts
from workers.commands.rejects import RECORDS_MAX, resent_listing, resent_record
from workers.kafka.records import Headers, Outgoing
from workers.kafka.store import Changelog, Store
from workers.mechanisms.accounting import Guarantee
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX, Lane
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.counters.line import line_counters
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Answers, Items, Noisy, Release, State
from workers.mechanisms.misra_gries.state import SketchState
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.one_shot.pay import PayState
from workers.mechanisms.order_statistics.config import Queries
from workers.mechanisms.order_statistics.engine import KeyState, OrderStatisticState
from workers.mechanisms.running.meta import MetaState
from workers.mechanisms.running.sliding import SlidingState
from workers.mechanisms.running.sparse_gumb import SparseState
from workers.mechanisms.running.unique import UniqueState
from workers.pipeline import ledger_blocks
from workers.pipeline.contributions import handing_over, messages
from workers.pipeline.growth.owners import GROWN_MAX, HandedOver, Owners
from workers.pipeline.histogram import HistogramProgress
from workers.pipeline.ledger_blocks import split_pages
from workers.pipeline.merge import ReleaseProgress
from workers.pipeline.rejected import read_reject, rejected
from workers.pipeline.rekey_markers import NO_TIME
from workers.pipeline.signatures import SignedTick, encode
from workers.pipeline.signing import cut_heads
from workers.pipeline.snapshots import LabelCache, Means, ReleasedTick, snapshots
from workers.pipeline.users import Batch, Users
from workers.runtime.sizes import MESSAGE_BYTES

KEY = NoiseKey(bytes(range(32)))
LARGEST = 2**63 - 1
TICK = 2**40
# Characters without a short JSON escape.
CONTROLS = [chr(code) for code in range(1, 32) if chr(code) not in "\b\t\n\f\r"]
# Every number of a lane at its longest, with ticks and times up to 2^63 - 1: more than the settings
# allow.
BOUNDS = 10_000, 1_000_000, 10_000, 2**30
LANE = Lane(31_622_400_000, 253_402_300_799_000, *BOUNDS, split=10_000)


@cache
def longest(number: int) -> str:
    """Return 1,024 control characters: six JSON bytes each, nearly incompressible by lz4."""
    return f"{number:08d}" + "".join(
        random.Random(number).choices(CONTROLS, k=LABEL_BYTES_MAX - 8)
    )


def table(labels: Iterable[str]) -> Ledger:
    """Return rows of one stream key with the widest counts, all shown at a late tick."""
    columns = Ledger()
    text = [label.encode() for label in labels]
    rows = columns.append(
        KEY.tags("k", text), np.zeros(len(text), np.int32), Texts.of(text)
    )
    columns.counts[:] = LARGEST
    columns.sums[:] = LARGEST
    columns.counts_changed.append(rows)
    columns.sums_changed.append(rows)
    columns.mark_shown(rows, TICK)
    return columns


def state(pairs: Iterable[tuple[str | bytes, bytes | None]]) -> list[Outgoing]:
    """Return state topic changes; names carry the histogram's prefix, generation and epoch."""
    prefix = b"h" * 100 + b"/2147483647/9223372036854775807/"
    named = (
        (name.encode() if isinstance(name, str) else name, value)
        for name, value in pairs
    )
    return [Outgoing("state", 0, prefix + name, value) for name, value in named]


def paged(record: object) -> list[Outgoing]:
    stored = split_pages(b"progress", msgspec.json.encode(record))
    return [Outgoing("state", 0, name, value) for name, value in stored]


Name = Callable[[int], str]


def contributions(
    keys: int,
    rows: int,
    ticks: int,
    label: Name,
    key: Name = longest,
    *,
    with_users: bool = False,
) -> list[Outgoing]:
    tally = {key(k): {label(i): LARGEST for i in range(rows)} for k in range(keys)}
    rows_of = [tallied(LANE, LARGEST - tick, tally, KEY) for tick in range(ticks)]
    if with_users:
        users = random_words(keys * rows, 1).astype("<u8")
        lane = LANE._replace(max_count=0)
        rows_of = [
            msgspec.structs.replace(one, lane=lane, users=users) for one in rows_of
        ]
    of: Any = dict.fromkeys(("offset", "watermark", "first"), LARGEST)
    grown = tuple((2**i, LARGEST - GROWN_MAX + i) for i in range(1, GROWN_MAX))
    of |= {"sources": 1_000_000, "users_from": LARGEST, "owners": Owners(1, grown)}
    made = messages(rows_of, source=2**31, sequence=2**40, key=KEY.fingerprint, **of)
    return [Outgoing("contributions", 0, None, message.encoded()) for message in made]


def handed_over() -> list[Outgoing]:
    handed = HandedOver(
        "h" * 100, LARGEST, LARGEST, [(longest(i), LARGEST) for i in range(2_100)]
    )
    made = handing_over(handed, key=KEY.fingerprint)
    return [Outgoing("contributions", 0, None, message.encoded()) for message in made]


def signed_ticks() -> list[Outgoing]:
    heads = {f"{'h' * 100}.{LARGEST}d": {longest(i): "0" * 64 for i in range(300)}}
    rotations = ((("0" * 64), ("0" * 128)),) * 300
    texts = ("contributions", "commitment", "previous", "key")
    of: Any = dict.fromkeys(texts, "0" * 64) | {"worker": "w" * 100}
    of |= {"histogram": "h" * 100, "signature": "0" * 128, "rotations": rotations}
    numbers = (
        "generation",
        "owner",
        "owners",
        "number",
        "tick",
        "end",
        "page",
        "pages",
    )
    of |= dict.fromkeys(numbers, LARGEST)
    records = [SignedTick(heads=part, **of) for part in cut_heads(heads)]
    assert len(records) > 1
    return [Outgoing("signatures", None, b"h" * 120, encode(one)) for one in records]


def published(
    release: Release | Items | Answers,
    columns: Ledger | None = None,
    means: Means | None = None,
) -> list[Outgoing]:
    rho = 0.12345678901234567
    epsilon = 1.2345678901234567e-05
    delta = 1.2345678901234567e-45
    promise = Guarantee(unit="event", rho=rho, epsilon=epsilon, delta=delta)
    # Beside counts alone; the maximum number, each number at its longest.
    windows = {"windows": [{"ms": LARGEST, "ticks": LARGEST, "sd": 1.2345e300}] * 20}
    of: Any = dict.fromkeys(("epoch", "tick", "start_ms", "end_ms"), LARGEST)
    shown = ReleasedTick(
        **of,
        histogram="h" * 100,
        guarantee=promise,
        mechanism="m" * 30,
        id="f" * 32,
        release=release,
        means=means,
        windows={} if isinstance(release, Answers) else windows,
    )
    made = snapshots(shown, columns or Ledger(), [longest(0)], LabelCache())
    return [
        Outgoing("snapshots", None, key.encode(), value, (), LARGEST)
        for key, value in made
    ]


def snapshot_of_rows() -> list[Outgoing]:
    columns = table(longest(i) for i in range(1_500))
    counts = np.full(1_500, -LARGEST)
    return published(Release(np.arange(1_500), counts, 1.2345e300, 2**62), columns)


def snapshot_of_sums() -> list[Outgoing]:
    columns = table(longest(i) for i in range(1_500))
    numbers = np.full(1_500, -LARGEST)
    sums = Noisy(numbers, 1.2345e100)
    totals = Noisy(numbers[:1], 1.2345e300)
    release = Release(np.arange(1_500), numbers, 1.2345e100, 2**62, sums, totals)
    ends = {"from": -123_456_789.000001, "to": -123_456_788.000001, "step": 0.00001}
    return published(release, columns, Means(parse_sum({"field": "x", **ends})))


def snapshot_of_items() -> list[Outgoing]:
    labels = [longest(i).encode() for i in range(1_500)]
    counts = np.full(1_500, -LARGEST)
    return published(
        Items(np.zeros(1_500, np.int32), labels, counts, 1.2345e300, 2**62)
    )


def answers_to_all_queries() -> list[Outgoing]:
    # Settings allow 96 of them: more pages like these, whose numbers have three digits here too.
    selected = [f"top_k_select:{k}" for k in range(985, 1_001)]
    found = answered(["max", "argmax", "histogram", "top_k:1000", *selected])
    return published(
        Answers({0: {"answers": found, "since": LARGEST, "error": 1.2345e300}}, None)
    )


def answer_to_one_query() -> list[Outgoing]:
    [found] = answered(["top_k_select:1000"])
    return published(
        Answers({0: {**found, "since": LARGEST, "error": 1.2345e300}}, None)
    )


def answered(queries: list[str]) -> list[dict[str, object]]:
    labels = [longest(i) for i in range(1_000)]
    return Queries(queries, labels).answers(np.full(1_000, -LARGEST))


def labels_for_a_budget() -> list[Outgoing]:
    fields = {
        "query": "top",
        "labels": [longest(i) for i in range(1_000)],
        "complete": True,
    }
    left = {"labels_left": LARGEST, "queries_left": LARGEST}
    return published(Answers({0: fields | left}, None))


def max_state() -> OrderStatisticState:
    made = OrderStatisticState()
    d = 40_000
    columns = np.full(d, -LARGEST)
    made.by_key[2**20] = KeyState(
        64, LARGEST, LARGEST, columns, columns, columns, columns
    )
    return made


def pay_state() -> PayState:
    made = PayState()
    for _ in range(120_000):
        made.add_key(2**31 - 1, 2**31 - 1)
    return made


def sparse_state() -> SparseState:
    made = SparseState()
    made.choose(2**20, range(10_000), 10_000)
    return made


def meta_state() -> MetaState:
    made = MetaState(3)
    made.ledger = table(str(i) for i in range(9_000))
    made.grow()
    made.add_open(1, np.full(9_000, LARGEST))
    made.add_noisy(2, np.arange(9_000), np.full(9_000, -LARGEST))
    return made


def sketch_state() -> SketchState:
    made = SketchState(3_000)
    labels = [longest(i).encode() for i in range(3_000)]
    made.show(2**20, 3, ((label, -LARGEST) for label in labels))
    [sketch] = made.open_sketches(2**20, [3])
    sketch.tags = KEY.tags("k", labels)
    sketch.labels = Texts.of(labels)
    sketch.counts = np.full(3_000, LARGEST)
    sketch.total = LARGEST
    made.declare(2**20, KEY.tags("k", [b"%d" % i for i in range(70_000)]))
    return made


def sliding_state() -> SlidingState:
    made = SlidingState(
        line_counters((30,), (1,), 0.01), has_sums=False, discovers=True
    )
    rows = 120_000
    made.ledger = table(str(i) for i in range(rows))
    made.ledger.counts[:] = LARGEST
    made.ledger.counts_changed = [np.arange(rows)]
    made.count(2**20)
    return made


def unique_state() -> UniqueState:
    """Many pairs of users and items in one tick."""
    made = UniqueState(line_counters((30,), (1,), 0.01), discovers=True)
    rows = 120_000
    made.ledger = table(str(i) for i in range(rows))
    tags = np.random.default_rng(7).integers(0, 2**64, (rows, 2), dtype=np.uint64)
    made._merged = [made.pairs.append(tags, np.arange(rows))]
    made.count(2**20)
    return made


def users() -> list[Outgoing]:
    """Return ten users with maximal pairs and counts, in one commit."""
    held = Users([LANE], Store(None, Changelog("state", 0)).open())
    rng = np.random.default_rng(7)
    rows = 10_000
    batch = Batch(
        rng.integers(0, 2**64, (10, 2), dtype=np.uint64),
        np.arange(10) * rows,
        np.full(10, rows),
        rng.integers(0, 2**64, 10 * rows, dtype=np.uint64),
        np.full(10 * rows, LARGEST),
    )
    held.charge(LANE, np.full(10, LANE.epoch(TICK)), batch)
    return [Outgoing("state", 0, name, value) for name, value in held.changes()]


def progress_of_release() -> list[Outgoing]:
    of: Any = dict.fromkeys(("first", "next", "epochs"), LARGEST)
    of |= dict.fromkeys(("rho", "epsilon", "delta"), 0.1) | {
        "deltas": {"numerical": 0.1}
    }
    described: dict[str, object] = {f"{i}": "x" * 100 for i in range(30)}
    life = HistogramProgress(
        generation=2**31 - 1, description=described, unit="event", **of
    )
    numbers: Any = dict.fromkeys(
        ("watermarks", "firsts", "sequences"), [LARGEST] * 10_000
    )
    numbers |= {"offset": LARGEST, "position": LARGEST, "owners": 10_000}
    record = ReleaseProgress(
        **numbers,
        version=1,
        key="f" * 64,
        histograms={f"{i:0100d}": life for i in range(200)},
        retired=[(f"{i:0100d}", life) for i in range(200)],
    )
    return paged(record)


def progress_of_contribute() -> list[Outgoing]:
    of: Any = dict.fromkeys(("offset", "watermark", "first"), LARGEST)
    of |= {"sequences": [LARGEST] * 100_000, "sources": 10_000, "topic_id": "x" * 36}
    return paged(contribute.ContributeProgress(version=1, **of))


def rejects() -> list[Outgoing]:
    reason = f"field {chr(0x10FFFE) * 1_000!r} has an item that is not a string"
    source = ("t" * 249, 2**31 - 1, LARGEST)
    further = ((), [("h", b"x" * 16_370)], [("h", b"x" * 16_380)])
    sizes = (0, 90_000, 90_001, 10**6), (0, 899_999, 900_001, 10**7)
    made = []
    for key, value, own in itertools.product(*sizes, further):
        record = "rejects", b"\xff" * key, b"\xff" * value
        made.append(
            rejected(
                *record, reason=reason, source=source, time_ms=LARGEST, further=own
            )
        )
    return made


def retries() -> list[Outgoing]:
    read = [
        read_reject(message.headers, message.key, message.value)
        for message in rejects()
    ]
    return [
        *(resent_record(reject) for reject in read if reject is not None),
        resent_listing("rejects", 0, [LARGEST] * RECORDS_MAX),
    ]


def sent_on() -> list[Outgoing]:
    """Return the largest re-keyed records: with and without a key, own headers, and late."""
    own: Headers = [("h" * 500, b"x" * 100_000), ("n", None)]
    cases = itertools.product((-1, 0, 200_000), ((), own), (NO_TIME, LARGEST))
    made = []
    for key_bytes, headers, late in cases:
        most = MESSAGE_BYTES - int(_one_sent(0, key_bytes, headers, late).sizes()[0])
        sent = _one_sent(most, key_bytes, headers, late)
        assert sent.sizes().tolist() == [MESSAGE_BYTES]
        for value, user, partition, time_ms, said in sent.messages():
            made.append(
                Outgoing("by-user", partition, user, value, list(said or ()), time_ms)
            )
    return made


def _one_sent(
    value_bytes: int, key_bytes: int, headers: Headers, late: int
) -> ForwardBatch:
    user = LABEL_BYTES_MAX
    key = max(key_bytes, 0)
    stops = np.cumsum([user, key, value_bytes])
    places = np.stack((stops - [user, key, value_bytes], stops), axis=1)
    keys = np.full((1, 2), -1, dtype=np.int64) if key_bytes < 0 else places[1:2]
    zero = np.zeros(1, dtype=np.int64)
    times = np.array([LARGEST])
    texts = [text for name, value in headers for text in (name.encode(), value)]
    framed = bytes([2 * len(headers)]) + b"".join(
        b"\1" if text is None else varint(len(text)) + text for text in texts
    )
    own = np.array([Outgoing("", None, None, None, headers).nbytes])
    data = b"\xff" * int(stops[-1]) + framed
    columns = places[:1], places[2:], keys, np.array([late]), zero, times, own
    return ForwardBatch("by-user", data, *columns)


def of_state(make: Callable[[], State]) -> list[Outgoing]:
    blocks = make().changed()
    return state(
        page
        for name, block in blocks
        if block is not None
        for page in split_pages(name.encode(), block)
    )


# Unchanged values may be longer than those the worker makes itself.
SENT_ON = "records sent on by user"

# State subclasses that write their own blocks.
STATES: dict[str, Callable[[], State]] = {
    "OrderStatisticState": max_state,
    "PayState": pay_state,
    "SparseState": sparse_state,
    "MetaState": meta_state,
    "SketchState": sketch_state,
    "SlidingState": sliding_state,
    "UniqueState": unique_state,
}

MESSAGES: dict[str, Callable[[], list[Outgoing]]] = {
    "contributions: longest labels": lambda: contributions(1, 3_000, 1, longest),
    "contributions: longest stream keys": lambda: contributions(1_500, 1, 1, str),
    "contributions: shortest rows": lambda: contributions(2, 60_000, 1, str),
    "contributions: users": lambda: contributions(2, 60_000, 1, str, with_users=True),
    "contributions: most sections": lambda: contributions(1, 1, 13_000, str, str),
    "contributions: stream keys without rows": lambda: contributions(2_000, 0, 1, str),
    "stream keys handed over": handed_over,
    "ledger: longest labels": lambda: state(
        ledger_blocks.changes(table(map(longest, range(3_000))))
    ),
    "stream keys": lambda: state(
        ledger_blocks.key_changes([longest(i) for i in range(2_100)], [TICK] * 2_100, 0)
    ),
    "snapshots of rows": snapshot_of_rows,
    "snapshots of sums": snapshot_of_sums,
    "snapshots of items": snapshot_of_items,
    "answers to all queries": answers_to_all_queries,
    "answer to one query": answer_to_one_query,
    "signed ticks": signed_ticks,
    "labels for a budget": labels_for_a_budget,
    **{f"state: {name}": partial(of_state, make) for name, make in STATES.items()},
    "users' pairs": users,
    "progress of stage 1": progress_of_contribute,
    "progress of stage 2": progress_of_release,
    SENT_ON: sent_on,
    "rejects": rejects,
    "rejects sent back": retries,
}
