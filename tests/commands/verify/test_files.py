"""`quietcount verify` on files: what was published is clean, and every change of it is found."""

from pathlib import Path

import pytest

from tests.client.signed import Copy
from tests.client.test_verifying import EVENTS, OLD, copied
from tests.pipeline.fleet import FINE, WIDE, cut, fleet
from workers.cli import execute
from workers.client.messages import Pages
from workers.client.reading import typed
from workers.client.tables import SCHEMAS, Tables, copy_statement

FORMATS = ("csv", "csv.gz", "parquet")


@pytest.fixture(scope="module")
def clean() -> Copy:
    made = fleet([EVENTS], [FINE, WIDE], grows={1: 4}, signing_key=OLD)
    cut(made, 80)
    return copied(made.finish())


def rows(copy: Copy) -> Tables:
    """Return the tables of a copy's snapshots."""
    pages = Pages()
    seen = [pages.receive(series, record.value) for series, record in copy.snapshots]
    return Tables.of([typed(one) for one in seen if one is not None])


def write(tables: Tables, directory: Path, ending: str) -> list[str]:
    """Write both tables as the page and exports do; return the names of the files."""
    paths = [directory / f"{name}.{ending}" for name in SCHEMAS]
    for path, (name, schema) in zip(paths, SCHEMAS.items(), strict=True):
        kind, _, compressed = ending.partition(".")
        sql = copy_statement(
            f"from {name}", schema, path, kind, compressed=bool(compressed)
        )
        tables.database.execute(sql)
    return [str(path) for path in paths]


def signatures(copy: Copy, path: Path) -> str:
    path.write_bytes(b"".join(one.value + b"\n" for one in copy.signatures))
    return str(path)


def verify(copy: Copy, directory: Path, *arguments: str) -> int:
    """Run the command with the signatures of a copy, without Kafka."""
    saved = signatures(copy, directory / "signatures.jsonl")
    return execute(["verify", "--key", OLD.public, "--signatures", saved, *arguments])


@pytest.mark.parametrize("ending", FORMATS)
def test_tables_are_verified_without_kafka(
    clean: Copy, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(clean, tmp_path, *write(rows(clean), tmp_path, ending)) == 0
    assert "clean" in capsys.readouterr().out


def test_json_lines_are_verified_and_a_changed_one_is_found(
    clean: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "snapshots.jsonl"
    values = [record.value + b"\n" for _, record in clean.snapshots]
    lines.write_bytes(b"".join(values))
    assert verify(clean, tmp_path, str(lines)) == 0
    at = next(at for at, value in enumerate(values) if b'"items":[["' in value)
    values[at] = values[at].replace(b'"items":[["', b'"items":[["x')
    lines.write_bytes(b"".join(values))
    assert verify(clean, tmp_path, str(lines)) == 1
    assert f"fault: {lines}:{at + 1}: histogram" in capsys.readouterr().out


# One tick or item in the middle, since a copy may end sooner or begin later.
_TICK = (
    'rowid = (select rowid from ticks order by "end", histogram, key limit 1 offset 20)'
)
_ITEM = "rowid = (select min(rowid) from items)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        *(f"update ticks set {column} = {value} where {_TICK}" for column, value in (
            ("sd", "sd + 1"), ("threshold", "null"), ("window_ms", "10"), ("all_items", "1"),
            ("sum_from", "-20"), ("period", "1"), ("overlap", "2"), ("rest", "'5'"),
            ("rest", "'{'"), ("edges", "[1]"), ("mechanism", "null"), ("shown", "shown + 1"),
            ("end_time", "end_time + interval 1 microsecond"), ("previous_id", "'a'"),
        )),
        *(f"update items set {column} = {value} where {_ITEM}" for column, value in (
            ("item", "'other'"), ("count", "count + 1"), ("count", "null"), ("sd", "sd + 1"),
            ("sum", "1.5"), ("mean_low", "0"), ("window_ms", "10"), ("tick", "tick + 100"),
        )),
        f"delete from ticks where {_TICK}",
        f"delete from items where {_ITEM}",
        f"insert into ticks from ticks where {_TICK}",
        f"insert into items from items where {_ITEM}",
    ],
)  # fmt: skip
def test_every_change_of_a_table_is_found(
    clean: Copy, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = rows(clean)
    tables.database.execute(change)
    assert verify(clean, tmp_path, *write(tables, tmp_path, "parquet")) == 1
    assert capsys.readouterr().out.startswith("verify: fault: ")


def test_readers_compare_what_they_were_shown(
    clean: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = signatures(clean, tmp_path / "same.jsonl")
    assert verify(clean, tmp_path, "--compare", same) == 0
    events = [*EVENTS[:40], ("k0", ["other"], EVENTS[40][2]), *EVENTS[40:]]
    forked = fleet([events], [FINE, WIDE], grows={1: 4}, signing_key=OLD)
    other = signatures(copied(forked.finish()), tmp_path / "other.jsonl")
    assert verify(clean, tmp_path, "--compare", other) == 1
    assert "two readers were shown different histories" in capsys.readouterr().out
