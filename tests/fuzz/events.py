"""Records of every format: compiled scanner and general reader agree, and reading never raises.

The first byte of an input chooses settings or a schema, the rest is the record. JSON that
`json.loads` reads alike is compared with the reference reader too.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tests.bounds import encoded, shapes
from tests.bounds.stages import settings_of
from tests.events import json_corpus, json_log_corpus
from tests.events.comparison import Differs, Outcome
from tests.events.formats import avro_corpus, corpus, protobuf_corpus
from tests.events.json_corpus import TREES
from tests.events.json_log_corpus import Scanner
from tests.events.reference import is_alike
from tests.events.shapes_corpus import (
    Case,
    Maker,
    compare_with_reference,
    read_twice,
)
from tests.fuzz.fuzzing import Target
from workers.events.formats.fitting import SchemaRefused
from workers.events.formats.reader import FormatReader, FramedJson, make_format
from workers.events.json import Json, JsonDecoder
from workers.events.log import Format
from workers.events.reading import EventReader, SourceReader
from workers.events.schemas import AlwaysOpen, Schema
from workers.kafka.records import Records

MAX_BYTES = 8_000
#: Inputs of a target that are read at once, and what they may take at the same time.
BATCH = 512
BATCH_MEMORY = 256 << 20
CASES = 24
SCHEMAS = 64
SHAPES = 80
VARIANTS = ("several", "users", "lines")
WORDS = [
    b'"%b":' % name for name in (b"key", b"items", b"ts", b"user", b"lines", b"price")
]
Keyed = tuple[bytes, bytes | None]


def compared(
    case: Case, given: Sequence[Keyed], fmt: Format | None = None
) -> list[str]:
    """Return what both readers say of each record, in words; raise Differs if they disagree."""
    values = [value for value, _ in given]
    keys = [key for _, key in given]
    records = Records.of(values, keys, [shapes.NOW_MS] * len(values))
    slow, said = read_twice(case, records, fmt)
    if fmt is None:
        for row, (value, key) in enumerate(given):
            if is_alike(value):
                compare_with_reference(case, value, key, said.get(row, "skipped"))
    _encoded(case, records, fmt)
    found = ["read" if row in said else "skipped" for row in range(len(given))]
    for reject in slow.rejects:
        found[reject.index] = re.sub(r"'.*'", "...", reject.reason)
    return found


def compared_by_case(
    name: str,
    cases: Sequence[tuple[Case, Format | None]],
    keys: Sequence[bytes | None],
    seeds: Sequence[bytes],
    tokens: Sequence[bytes],
) -> Target:
    """Return a target whose first byte chooses a case and a record key."""

    def run_many(some: Sequence[bytes]) -> list[str]:
        places: dict[int, list[int]] = {}
        for place, data in enumerate(some):
            places.setdefault(_first(data) % len(cases), []).append(place)
        found = [""] * len(some)
        for which, of in places.items():
            case, fmt = cases[which]
            given = [
                (some[place][1:], keys[_first(some[place]) % len(keys)]) for place in of
            ]
            for place, outcome in zip(of, compared(case, given, fmt), strict=True):
                found[place] = outcome
        return found

    def run(data: bytes) -> str:
        return run_many([data])[0]

    return Target(
        name,
        run,
        seeds,
        tokens,
        max_bytes=MAX_BYTES,
        run_many=run_many,
        batch=BATCH,
        memory_bytes=BATCH_MEMORY,
    )


def _encoded(case: Case, records: Records, fmt: Format | None) -> None:
    """Read on as a worker would, up to columns of codes; labels come back as texts."""
    names = case.reader.layout.names
    source = SourceReader(
        case.reader, dict.fromkeys(names, None), fmt=fmt, earliest_ms=0
    )
    for reading in source.read(records):
        for view in reading.events.views.values():
            for code in view.labels.tolist():
                view.label_names.name(code)


def _agreed(outcome: Outcome, shown: str = "") -> str:
    """Return the outcome of an input in words; raise Differs if readers disagree."""
    if outcome.differs is not None:
        raise Differs(f"{shown}: {outcome.differs}")
    return f"readable {outcome.readable}, scanned {outcome.scanned}"


def _first(data: bytes) -> int:
    return data[0] if data else 0


def json_events() -> Target:
    maker = Maker(1)
    cases = [maker.case() for _ in range(CASES)]
    seeds = [
        bytes((place,)) + value
        for place, case in enumerate(cases)
        for value in maker.batch(case, 8)
        if len(value) < MAX_BYTES
    ]
    tokens = [*json_corpus.TOKENS, *WORDS]
    keys = (None, b"k1", b"\xff")
    return compared_by_case(
        "json", [(case, None) for case in cases], keys, seeds, tokens
    )


def json_log() -> Target:
    """Scanner, general reader and `json.loads` over trees of paths, as in json_log_corpus."""
    made = [(Scanner(root), JsonDecoder(root), root) for root in TREES.values()]
    maker = json_corpus.Generator(1)
    seeds = [
        bytes((place,)) + maker.object(root)
        for place, (_, _, root) in enumerate(made)
        for _ in range(8)
    ]
    hostile = random.Random(1).sample(json_corpus.corpus(), 200)
    seeds += [bytes((i % len(made),)) + value for i, value in enumerate(hostile)]

    def run(data: bytes) -> str:
        scanner, decoder, _ = made[_first(data) % len(made)]
        return _agreed(json_log_corpus.difference(scanner, decoder, [data[1:]]))

    tokens = [*json_corpus.TOKENS, *WORDS]
    return Target("json_log", run, seeds, tokens, max_bytes=MAX_BYTES)


def _case_of(variant: str) -> Case:
    settings = settings_of(variant)
    reader = EventReader(settings.shape, max_bytes=settings.events.max_bytes)
    names = [config.view for config in settings.histograms]
    return Case({"timestamp": "ts"}, [], settings.user_field, reader, names, [])


def registered(form: str) -> Target:
    """Records behind a schema id, through the reader of a worker with several histograms."""
    cases = [_case_of(variant) for variant in VARIANTS]
    formats: list[Format] = []
    for case in cases:
        tree = case.reader.layout.tree
        if form == "json_schema":
            formats.append(FramedJson(Json(tree)))
        else:
            known = encoded.OneSchema(form)
            formats.append(FormatReader(make_format(form, tree), known, AlwaysOpen()))
    some = random.Random(1).sample(shapes.begins(), SHAPES)
    values = [value for shape in some for value in shape.records(600)[1][:1]]
    made = encoded.encode_all(form, values)
    seeds = [
        bytes((i % 6,)) + value
        for i, value in enumerate(made)
        if value is not None and len(value) < MAX_BYTES
    ]

    tokens = [encoded.HEADER, encoded.HEADER + b"\0"]
    tokens += json_corpus.TOKENS if form == "json_schema" else []
    read = list(zip(cases, formats, strict=True))
    return compared_by_case(form, read, (None, b"k1"), seeds, tokens)


def avro_cases() -> Iterator[corpus.Case | int]:
    for seed in range(1_000):
        yield avro_corpus._case(seed, 6, evolving=seed % 2 == 1)


def protobuf_cases() -> Iterator[corpus.Case | int]:
    for seed in range(1_000):
        yield protobuf_corpus._case(seed, 6)


def random_schemas(name: str, cases: Any) -> Target:
    """Random schemas and paths: the scanner of bytes against fastavro or upb."""
    made = list(
        islice((case for case in cases() if not isinstance(case, int)), SCHEMAS)
    )
    seeds = [
        bytes((place,)) + payload
        for place, case in enumerate(made)
        for payload in case.payloads[:6]
    ]

    def run(data: bytes) -> str:
        case = made[_first(data) % len(made)]
        outcome = corpus.difference(case.fmt, case.number, case.tree, [data[1:]])
        return f"{_agreed(outcome, case.shown)}, of schema {_first(data) % len(made)}"

    return Target(name, run, seeds, max_bytes=MAX_BYTES)


def schema_texts(form: str) -> Target:
    """Texts of schemas, as a registry may send them."""
    tree = _case_of("several").reader.layout.tree
    kind = form.upper()
    texts = [encoded.SCHEMAS[form].text]
    if form == "avro":
        texts += [
            json.dumps(avro_corpus.Generator(seed).schema()) for seed in range(60)
        ]
    else:
        texts += [protobuf_corpus.Generator(seed).schema().text for seed in range(60)]

    def run(data: bytes) -> str:
        try:
            text = data.decode()
        except UnicodeDecodeError:  # the registry's client has refused it
            return "no text"
        make_format(form, tree).add(
            Schema(kind, text), *([b"\0"] if form == "protobuf" else [])
        )
        return "known"

    words = (
        b'"type":',
        b'"record"',
        b'"null"',
        b'"fixed"',
        b'"size":',
        b'"fields":[',
        b"message M {",
        b"repeated ",
    )
    seeds = [text.encode() for text in texts]
    return Target(
        f"{form}_texts",
        run,
        seeds,
        words,
        documented=(SchemaRefused,),
        max_bytes=MAX_BYTES,
    )
