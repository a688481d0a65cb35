"""`quietcount sql` and its views over an export, which plain DuckDB and dbt run too."""

import csv
import io
import math
import re
from pathlib import Path

import duckdb
import pytest

from tests import ROOT
from tests.dashboard.feeding import Document, message, seen, sliding
from tests.dashboard.store.making import at
from tests.quietcount import Quietcount
from workers.client import Tables
from workers.client.changes import changes
from workers.client.reading import typed
from workers.commands.export.files import Files
from workers.commands.export.output import Selection, State
from workers.commands.sql.sql import VIEWS, view_sql

MODELS = ROOT / "examples" / "dbt" / "models"
SOURCE = re.compile(r"\{\{ source\('quietcount', '(\w+)'\) \}\}( \1)?")


def documents() -> list[Document]:
    """Two epochs of eight ticks with changes over six of them, and a window without epochs."""
    found = []
    for tick in range(1, 17):
        epoch, own = (1, tick) if tick <= 8 else (2, tick - 8)
        ticks = 6 if own >= 6 or epoch == 2 else own
        windows = [{"ms": 60_000, "ticks": ticks, "sd": 4.5, "sum_sd": 9.0}]
        items = [("tea", 10 * own + epoch), ("cup", 3 * own)]
        fields = at(tick) | {"epoch": epoch, "id": "ab"[epoch - 1] * 32}
        fields |= {"windows": windows, "sd": 3.0}
        fields["sums"] = [[count * 1.5, 1.5, 1.0, 2.0] for _, count in items]
        fields["sum"] = {"from": 0, "to": 9, "step": 0.5, "sd": 2.0}
        fields["all_items"] = {"count": 14 * own, "sd": 5.0}
        if epoch == 2:
            fields["previous_id"] = "a" * 32
        found.append(message(own, items, **fields))
    return [*found, sliding("1h", at(16)["end"], [("tea", 7)])]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export in two commits, in a directory whose name needs quoting."""
    directory = tmp_path_factory.mktemp("sql") / "it's [an] export"
    sent = [typed(seen(document)) for document in documents()]
    selection = Selection(
        worker="w", format="parquet", histograms=(), since_ms=None, until_ms=None
    )
    with Files.open(directory, "parquet") as output:
        for part in (sent[:9], sent[9:]):
            output.commit(Tables.of(part), State(selection, {}))
    return directory


def answered(quietcount: Quietcount, export: Path, query: str) -> list[dict[str, str]]:
    printed = quietcount("sql --export", export, query)
    return list(csv.DictReader(io.StringIO(printed.out)))


def test_the_newest_tick_of_each_stream(quietcount: Quietcount, export: Path) -> None:
    query = "select histogram, item, count, mean from latest order by all"
    assert answered(quietcount, export, query) == [
        {"histogram": "products", "item": "cup", "count": "24", "mean": "1.5"},
        {"histogram": "products", "item": "tea", "count": "82", "mean": "1.5"},
        {"histogram": "products.1h", "item": "tea", "count": "7", "mean": ""},
    ]


def test_changes_are_those_of_the_dashboard(
    quietcount: Quietcount, export: Path
) -> None:
    """Also over the end of an epoch, and from its beginning; no row where a tick is missing."""
    rows = answered(quietcount, export, "select * from changes")
    sent = documents()[:16]
    wanted = set()
    for place, document in enumerate(sent):
        ticks = document["windows"][0]["ticks"]
        last = sent[7] if ticks > document["tick"] else None
        older = sent[place - ticks] if place >= ticks else None
        if ticks == document["tick"]:
            older = None
        found = changes(document, older, 0, last=last)
        for (label, change), sums in zip(found["items"], found["sums"], strict=True):
            tick = document["id"], str(document["tick"])
            wanted.add((*tick, label, str(change), sums[0]))
    assert {
        (row["id"], row["tick"], row["item"], row["change"], float(row["sum_change"]))
        for row in rows
    } == wanted
    assert {(r["over_ms"], r["change_sd"], r["sum_change_sd"]) for r in rows} == {
        ("60000", "4.5", "9.0")
    }
    assert len(rows) == len(wanted)


def test_totals_say_what_is_not_shown(quietcount: Quietcount, export: Path) -> None:
    rows = answered(quietcount, export, "from totals order by histogram, id, tick")
    assert len(rows) == 17
    first = rows[0]
    assert (first["shown_count"], first["all_items"], first["others"]) == (
        "14",
        "14",
        "0",
    )
    assert float(first["others_sd"]) == pytest.approx(math.sqrt(25 + 2 * 9))
    assert float(first["shown_sd"]) == pytest.approx(3 * math.sqrt(2))
    assert rows[-1]["others"] == "" and rows[-1]["window_ms"] == "3600000"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("drop view items", "one select, and nothing else"),
        ("select 1; select 2", "one select, and nothing else"),
        ("copy items to 'x.csv'", "one select, and nothing else"),
        ("set memory_limit = '9GB'", "one select, and nothing else"),
        ("selekt 1", "the query: "),
        ("select nothing from items", "the query: Binder Error"),
        ("from read_csv('/etc/passwd')", "the query: "),
        ("from glob('/etc/*')", "the query: "),
    ],
)
def test_a_query_reads_the_export_and_does_nothing_else(
    quietcount: Quietcount, export: Path, query: str, said: str
) -> None:
    printed = quietcount("sql --export", export, query, code=2)
    assert said in printed.err and not printed.out
    assert len(printed.err.splitlines()) == 1


@pytest.mark.slow
def test_a_query_ends_at_its_limits(quietcount: Quietcount, export: Path) -> None:
    printed = quietcount("sql --rows 3 --export", export, "from items", code=1)
    assert len(printed.out.splitlines()) == 4
    assert "only the first 3 rows" in printed.err
    long = "select sum(a.range * b.range) from range(10000000) a, range(1000000) b"
    printed = quietcount("sql --seconds 1 --export", export, long, code=2)
    assert "took more than 1 s" in printed.err
    large = "select list(range order by range % 7) from range(100000000)"
    printed = quietcount("sql --memory 64 --export", export, large, code=2)
    assert "takes more than 64 MB" in printed.err
    printed = quietcount("sql --export", export / "no", "select 1", code=2)
    assert "no items/*.parquet" in printed.err


def test_the_views_run_in_any_duckdb_and_are_the_models_of_dbt(export: Path) -> None:
    with duckdb.connect() as database:
        quoted = re.sub(r"([][*?])", r"[\1]", str(export)).replace("'", "''")
        for table in ("items", "ticks"):
            files = f"{quoted}/{table}/*.parquet"
            database.execute(f"create view {table} as from '{files}'")
        for view in VIEWS:
            database.execute(view_sql(view))
            assert database.execute(f"select count(*) from {view}").fetchall() != [(0,)]
            model = SOURCE.sub(r"\1", (MODELS / f"{view}.sql").read_text())
            created = view_sql(view).replace(f"create or replace view {view} as\n", "")
            assert model.rstrip() == created.rstrip().removesuffix(";")
    assert {path.stem for path in MODELS.glob("*.sql")} == set(VIEWS)
