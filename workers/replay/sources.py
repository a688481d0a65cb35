"""Open a file as a source: JSON lines (also gzipped) or Parquet, detected by its first bytes."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import cast

from workers.mechanisms.config.views import Shape
from workers.replay.source import Source
from workers.replay.sources_lines import JsonLines
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_source(settings: Settings, name: str) -> Iterator[Source]:
    """Open a source file; "-" is standard input, one JSON event a line."""
    if name == "-":
        yield JsonLines(settings, "standard input", cast(BufferedIOBase, sys.stdin.buffer))
        return
    path, shown = Path(name), f"--input {name}"
    try:
        with path.open("rb") as file:
            if not path.is_file():  # a named pipe cannot be inspected in advance
                yield JsonLines(settings, shown, file)
                return
            magic, size = file.read(4), path.stat().st_size
            file.seek(0)
            if magic == PARQUET_MAGIC or path.suffix == ".parquet":
                with _needs_pyarrow(shown):
                    from workers.replay.parquet import open_parquet
                yield open_parquet(settings, shown, file)
            elif magic[:2] == GZIP_MAGIC:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield JsonLines(settings, shown, unpacked, total=size, raw=file)
            else:
                yield JsonLines(settings, shown, file, total=size)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == path:
            raise SettingsError(f"{shown}: {error.strerror}") from error
        raise


def first_rows(settings: Settings, name: str, number: int) -> tuple[list[object], Shape]:
    """Return the first rows of a Parquet file as objects, and the fields to read in them."""
    shown = f"--input {name}"
    with _needs_pyarrow(shown):
        from workers.replay import parquet
    return parquet.first_rows(settings, shown, Path(name), number)


@contextmanager
def _needs_pyarrow(shown: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise SettingsError(
            f"{shown}: Parquet needs pyarrow: install quietcount[replay]"
        ) from error


def is_parquet(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == PARQUET_MAGIC or path.suffix == ".parquet"
    except OSError:
        return False
