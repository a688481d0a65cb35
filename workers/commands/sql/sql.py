"""Answer a query over the tables and views of an export, read-only and within limits."""

import csv
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb

from workers.client.tables import SCHEMAS
from workers.commands.options import Sql
from workers.runtime.errors import SettingsError

VIEWS = ("latest", "changes", "totals")


def sql(chosen: Sql) -> int:
    """Print the answer as CSV; return the exit code, 1 if it has more rows than it may have."""
    with opened(chosen.export, chosen.memory) as database:
        timer = threading.Timer(chosen.seconds, database.interrupt)
        timer.start()
        try:
            _must_be_select(database, chosen.query)
            answer = database.execute(chosen.query)
            names = [column[0] for column in answer.description or ()]
            rows = answer.fetchmany(chosen.rows + 1)
        except duckdb.InterruptException:
            raise SettingsError(
                f"the query took more than {chosen.seconds:,} s; see --seconds"
            ) from None
        except duckdb.OutOfMemoryException:
            raise SettingsError(
                f"the query takes more than {chosen.memory:,} MB; see --memory"
            ) from None
        except duckdb.Error as error:
            raise SettingsError(f"the query: {str(error).splitlines()[0]}") from None
        finally:
            timer.cancel()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows[: chosen.rows])
    if len(rows) > chosen.rows:
        sys.stdout.flush()
        print(
            f"quietcount: only the first {chosen.rows:,} rows: add `limit` to the query, or see --rows",
            file=sys.stderr,
        )
        return 1
    return 0


def opened(directory: Path, memory_mb: int) -> duckdb.DuckDBPyConnection:
    """Return a database with the tables and views of an export, that reads nothing else."""
    root = directory.absolute()
    for table in SCHEMAS:
        if not list((root / table).glob("*.parquet")):
            raise SettingsError(
                f"--export {directory}: no {table}/*.parquet; make it with `quietcount export --format parquet`"
            )
    config: dict[str, Any] = {
        "memory_limit": f"{memory_mb}MB",
        # Without one, a query spills nothing to disk.
        "temp_directory": "",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    database = duckdb.connect(":memory:", config=config)
    database.execute("set TimeZone = 'UTC'")
    for table in SCHEMAS:
        # In SQL a quote in a text is doubled.
        pattern = f"{_escaped(str(root))}/{table}/*.parquet".replace("'", "''")
        database.execute(f"create view {table} as from read_parquet('{pattern}')")
    for view in VIEWS:
        database.execute(view_sql(view))
    # Other files are closed to a query, whatever functions it calls. DuckDB compares with these
    # names files, and also the patterns of the views, where the path is escaped.
    names = {str(root), _escaped(str(root))}
    allowed = ", ".join("'" + name.replace("'", "''") + "/'" for name in names)
    database.execute(f"set allowed_directories = [{allowed}]")
    database.execute("set enable_external_access = false")
    database.execute("set lock_configuration = true")
    return database


def view_sql(view: str) -> str:
    """Return the text of a view's file."""
    return files("workers.commands.sql").joinpath(f"views/{view}.sql").read_text()


def _must_be_select(database: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuse all but one `select`: it writes nothing, and changes no setting."""
    statements = database.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise SettingsError("the query: one select, and nothing else")


def _escaped(path: str) -> str:
    """Return a path in which DuckDB's patterns mean themselves."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)
