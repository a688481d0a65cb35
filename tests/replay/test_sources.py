"""Every source gives the same events, refuses the same ones, and says where."""

import gzip
import hashlib
import io
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events.reading import shape
from tests.replay.site import T0, Patch, settings_of
from workers.events.columns import Events
from workers.replay import parquet, sources
from workers.replay.source import EventBatch, prefetch
from workers.replay.sources import JsonLines, open_source
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

LIST = pa.list_(pa.string())
MAP = pa.map_(pa.string(), pa.int32())
KINDS = {"key": pa.string(), "items": pa.string(), "ts": pa.int64()}
STRUCTS = pa.list_(pa.struct([("n", pa.int64()), ("label", pa.string())]))


@pytest.fixture
def base(tmp_path: Path) -> Settings:
    return settings_of(tmp_path, keys=["a", "b"])


def batches(settings: Settings, path: Path) -> list[EventBatch]:
    with open_source(settings, str(path)) as source:
        found = list(source.batches())
        assert source.total is None or found[-1].position == source.total
        return found


def read(settings: Settings, path: Path) -> tuple[list[Any], list[tuple[int, str]]]:
    """(key, label -> count, time) of every event, and the rejects."""
    events: list[Any] = []
    rejects: list[tuple[int, str]] = []
    for batch in batches(settings, path):
        events += flat(batch.events)
        rejects += batch.rejects
    return events, rejects


def flat(columns: Events) -> list[Any]:
    users: list[Any] = [""] * len(columns)
    if columns.users is not None:
        users = list(map(tuple, columns.users.tolist()))
    events = zip(shape(columns), users, strict=True)
    return [(key, counts, time, user) for (time, key, counts), user in events]


def digest(user: str) -> tuple[int, ...]:
    words = hashlib.blake2b(user.encode(), digest_size=16, person=b"qc-user").digest()
    return tuple(np.frombuffer(words, dtype="<u8").tolist())


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    texts = (
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    path.write_bytes(b"".join(text + b"\n" for text in texts))
    return path


def write_rows(
    path: Path,
    kinds: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    group: int = 1 << 20,
) -> Path:
    arrays = {
        name: pa.array([row.get(name) for row in rows], kind)
        for name, kind in kinds.items()
    }
    pq.write_table(pa.table(arrays), path, row_group_size=group)
    return path


def eight(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=8, max_size=8)


LABELS = st.sampled_from("xyz")
ITEMS = st.one_of(
    st.tuples(st.just(pa.string()), eight(LABELS)),
    st.tuples(st.just(LIST), eight(st.lists(LABELS, max_size=4))),
    st.tuples(st.just(MAP), eight(st.dictionaries(LABELS, st.integers(0, 9)))),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    ITEMS, eight(st.sampled_from("ab")), st.booleans(), st.integers(1, 8), st.booleans()
)
def test_parquet_gives_the_events_that_json_gives(
    tmp_path_factory: pytest.TempPathFactory,
    items: Any,
    keys: list[str],
    dictionary: bool,
    group: int,
    alone: bool,
) -> None:
    kind, values = items
    directory = tmp_path_factory.mktemp("x")
    given_settings = settings_of(directory, keys=["a", "b"])
    pairs = enumerate(zip(keys, values, strict=True))
    rows = [{"key": key, "items": some, "ts": T0 + i} for i, (key, some) in pairs]
    lines = write_lines(directory / "a.jsonl", rows)
    arrow = [
        dict(row, items=list(row["items"].items())) if kind is MAP else row
        for row in rows
    ]
    text = pa.dictionary(pa.int8(), pa.string()) if dictionary else pa.string()
    kinds = {"key": text, "items": kind, "ts": pa.int64()}
    table = write_rows(directory / "a.parquet", kinds, arrow, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "GROUP_ROWS", 1 if alone else 100)
        assert read(given_settings, table) == read(given_settings, lines)


@pytest.fixture(params=[1, 100])
def groups(request: pytest.FixtureRequest, monkeypatch: Patch) -> None:
    """Read row groups one by one, or together."""
    monkeypatch.setattr(parquet, "GROUP_ROWS", request.param)


@pytest.mark.usefixtures("groups")
def test_both_refuse_the_same_rows_for_the_same_reasons(
    base: Settings, tmp_path: Path
) -> None:
    long = "x" * 1025
    no_time = "field 'ts' is not a time in ms"
    changes: list[tuple[dict[str, Any], str]] = [
        ({"key": None}, "field 'key' is null"),
        ({"items": None}, "field 'items' is null"),
        ({"items": ["x", None]}, "field 'items' has an item that is null"),
        ({"ts": None}, "field 'ts' is null"),
        ({"ts": -1}, no_time),
        ({"ts": 2**53 + 1}, no_time),
        ({"items": ["x", long]}, "label too long"),
        ({"key": long}, "label too long"),
        ({"key": "c"}, "key not declared"),
    ]
    good: dict[str, Any] = {"key": "a", "items": ["x", "y"], "ts": T0}
    rows = [good, *(good | change for change, _ in changes), good | {"items": []}, good]
    table = write_rows(tmp_path / "a.parquet", KINDS | {"items": LIST}, rows)
    events, rejects = read(base, table)
    assert (events, rejects) == read(base, write_lines(tmp_path / "a.jsonl", rows))
    assert rejects == [(number, why) for number, (_, why) in enumerate(changes, 2)]
    assert [event[1] for event in events] == [{"x": 1, "y": 1}, {}, {"x": 1, "y": 1}]


@pytest.mark.usefixtures("groups")
def test_counts_come_from_maps_and_from_lists_of_structures(
    base: Settings, tmp_path: Path
) -> None:
    def read_items(
        kind: Any, values: list[Any]
    ) -> tuple[list[Any], list[tuple[int, str]]]:
        rows = [{"key": "a", "ts": T0, "items": items} for items in values]
        return read(
            base, write_rows(tmp_path / "a.parquet", KINDS | {"items": kind}, rows)
        )

    several = [{"label": "x", "n": 2}, {"label": "y", "n": 1}, {"label": "x", "n": 3}]
    events, rejects = read_items(STRUCTS, [several, [{"label": "x", "n": -1}], []])
    assert [event[1] for event in events] == [{"x": 5, "y": 1}, {}]
    assert rejects == [(2, "a count in 'items' is not a non-negative integer")]
    events, rejects = read_items(
        MAP, [[("x", 2), ("x", 9)], [("x", -1)], [("y", None)]]
    )
    assert [event[1] for event in events] == [{"x": 9}]
    assert [number for number, _ in rejects] == [2, 3]


def test_text_that_is_not_utf8_is_refused(base: Settings, tmp_path: Path) -> None:
    table = pa.table(
        {"key": [b"a", b"\xff", b"a"], "items": [b"x", b"x", b"\xff"], "ts": [T0] * 3}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    events, rejects = read(base, tmp_path / "a.parquet")
    assert len(events) == 1
    kinds = "a string, whole number or boolean"
    reasons = (
        f"field 'key' is not {kinds}",
        f"field 'items' has an item that is not {kinds}",
    )
    assert rejects == [*enumerate(reasons, 2)]


def test_keys_and_users_come_from_where_the_settings_say(tmp_path: Path) -> None:
    row = {"key": "k1", "items": "x", "ts": T0}
    rows = [row | {"who": 7}, row | {"who": None}]
    table = write_rows(tmp_path / "a.parquet", KINDS | {"who": pa.int64()}, rows)
    lines = write_lines(tmp_path / "a.jsonl", rows)
    of_all = settings_of(tmp_path, key="$all", keys=["all"])
    by_key = settings_of(tmp_path, key="$key", keys=["k1"], user="who")
    for path in (table, lines):
        assert [event[0] for event in read(of_all, path)[0]] == ["all", "all"]
        events, rejects = read(by_key, path)
        assert events == [("k1", {"x": 1}, T0, digest("7"))]
        assert rejects == [(2, "field 'who' is null")]


def test_users_who_are_record_keys_are_in_the_field_key(tmp_path: Path) -> None:
    row = {"key": "u1", "shop": "a", "items": "x", "ts": T0}
    kinds = KINDS | {"shop": pa.string()}
    rows = [row, row | {"key": None}]
    table = write_rows(tmp_path / "a.parquet", kinds, rows)
    lines = write_lines(tmp_path / "a.jsonl", rows)
    for path in (table, lines):
        events, rejects = read(
            settings_of(tmp_path, key="shop", keys=["a"], user="$key"), path
        )
        assert events == [("a", {"x": 1}, T0, digest("u1"))]
        assert rejects == [(2, "field 'key' is null")]
        for key, user in (("key", "$key"), ("$key", "key")):
            message = "events.user = 'key'|events.user = \"key\""
            with pytest.raises(SettingsError, match=message) as refused:
                read(settings_of(tmp_path, key=key, keys=["a"], user=user), path)
            assert "in a file the record key is the field 'key'" in str(refused.value)


def test_rejects_stand_in_the_order_of_the_input(
    base: Settings, tmp_path: Path
) -> None:
    good = {"key": "a", "items": "x", "ts": T0}
    some = [{**good, "key": "c"}, b"broken", {**good, "key": "c"}, b"broken", good]
    lines = write_lines(tmp_path / "a.jsonl", some)
    assert [number for number, _ in read(base, lines)[1]] == [1, 2, 3, 4]


def test_lines_are_split_at_their_ends(
    base: Settings, tmp_path: Path, monkeypatch: Patch
) -> None:
    event = json.dumps({"key": "a", "items": "x", "ts": T0}).encode()
    text = b"\xef\xbb\xbf" + event + b"\r\n\r\n\nbroken\n" + event
    (tmp_path / "a.jsonl").write_bytes(text)
    for size in (1, 7, 64, 1 << 20):
        monkeypatch.setattr(sources, "CHUNK_BYTES", size)
        events, rejects = read(base, tmp_path / "a.jsonl")
        assert len(events) == 2
        assert rejects == [(4, "not JSON")]


def test_a_line_without_end_does_not_fill_the_memory(
    base: Settings, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 1 << 10)
    events = msgspec.structs.replace(base.events, max_bytes=2_000)
    small = msgspec.structs.replace(base, events=events)
    longest = 0

    class Endless(io.BytesIO):
        def readinto(self, buffer: Any, /) -> int:
            nonlocal longest
            found = super().readinto(buffer)
            frame = sys._getframe(1)
            while frame.f_code.co_name != "lines":
                frame = frame.f_back  # type: ignore[assignment]  # `lines` is among the callers
            longest = max(longest, len(frame.f_locals["rest"]))
            return found

    text = Endless(b"x" * 100_000 + b'\n{"key":"a","items":"x","ts":1795219200000}\n')
    [batch] = [
        b for b in JsonLines(small, "text", text, total=1).batches() if len(b.events)
    ]
    assert batch.rejects == [(1, "record too large")] and len(batch.events) == 1
    assert 0 < longest <= 2_001


@pytest.mark.slow
def test_gzip_and_stdin_are_read(
    base: Settings, tmp_path: Path, monkeypatch: Patch
) -> None:
    rows = [{"key": "a", "items": "x", "ts": T0 + i} for i in range(3_000)]
    lines = write_lines(tmp_path / "a.jsonl", rows)
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    wanted = read(base, lines)
    assert len(wanted[0]) == 3_000
    assert read(base, packed) == wanted
    with lines.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        with open_source(base, "-") as source:
            assert source.total is None
            found = [
                event for batch in source.batches() for event in flat(batch.events)
            ]
    assert found == wanted[0]
    packed.write_bytes(packed.read_bytes()[:-500])
    with pytest.raises(SettingsError, match="cannot be unpacked"):
        read(base, packed)


def test_unreadable_files_are_refused_in_one_line(
    base: Settings, tmp_path: Path
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    wrong = {
        "a.parquet": "not a Parquet file",
        "b.jsonl": "No such file",
        ".": "Is a directory",
    }
    for name, message in wrong.items():
        with pytest.raises(SettingsError, match=message) as refused:
            batches(base, tmp_path / name)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_file_that_runs_backwards_past_grace_is_refused(
    tmp_path: Path, suffix: str
) -> None:
    rows = [
        {"key": "a", "items": "x", "ts": T0 + at} for at in (0, 5_000, 3_000, 2_999)
    ]
    rows.insert(1, {"key": "a", "items": "x", "ts": -1})
    write_lines(tmp_path / "a.jsonl", rows)
    write_rows(tmp_path / "a.parquet", KINDS, rows)
    path = tmp_path / f"a.{suffix}"
    assert len(read(settings_of(tmp_path, grace="2001ms"), path)[0]) == 4
    with pytest.raises(SettingsError) as refused:
        read(settings_of(tmp_path, grace="2s"), path)
    moment = datetime.fromtimestamp((T0 + 2_999) / 1000, UTC).isoformat(
        timespec="milliseconds"
    )
    word = "row" if suffix == "parquet" else "line"
    assert f"{word} 5 is dated {moment}, 0:00:02 before an earlier {word}" in str(
        refused.value
    )
    assert "events.grace = '2s'" in str(refused.value)


def test_order_is_kept_across_batches(tmp_path: Path, monkeypatch: Patch) -> None:
    rows = [{"key": "a", "items": "x", "ts": T0 - i} for i in range(2)]
    lines = write_lines(tmp_path / "a.jsonl", rows)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 50)
    with pytest.raises(SettingsError, match="line 2 is dated"):
        read(settings_of(tmp_path), lines)


def test_the_next_piece_is_made_by_another_thread_while_one_is_looked_at() -> None:
    made: list[int] = []
    begun = threading.Event()
    may = threading.Event()

    def pieces() -> Iterator[threading.Thread]:
        for i in range(3):
            if i == 1:
                begun.set()
                assert may.wait(60)
            made.append(i)
            yield threading.current_thread()

    found = prefetch(pieces())
    first = next(found)
    assert begun.wait(60)  # the second is on its way, though nobody asked for it
    assert made == [0]
    may.set()
    assert [first, *found] == [first] * 3
    assert made == [0, 1, 2]
    assert first is not threading.current_thread()


def test_what_goes_wrong_is_raised_where_the_piece_would_have_come() -> None:
    def pieces() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    found = prefetch(pieces())
    assert next(found) == 1
    with pytest.raises(OSError, match="gone"):
        next(found)


def test_who_stops_early_leaves_no_thread_behind() -> None:
    threads = set(threading.enumerate())
    found = prefetch(iter(range(1, 1_000)))
    assert next(found) == 1
    found.close()
    assert set(threading.enumerate()) == threads


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 200)
