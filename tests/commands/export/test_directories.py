"""An output is in the directory that was named, whatever characters its name has."""

import os
import re
from pathlib import Path

import pytest

from tests.commands.export.outputs import KINDS, expected, exported
from tests.dashboard.feeding import message, seen
from workers.client import Tables
from workers.client.reading import typed
from workers.commands.export.files import Files
from workers.commands.export.iceberg import Catalog
from workers.commands.export.output import Selection, State
from workers.runtime.errors import SettingsError

#: An output takes a tenth of a second: names that can be wrong in the middle are put together.
NAMES = [
    "a b%20b%41100%",
    "é😀a:b'b",
    'a"b+b&c*[b]',
    "a;b{a}$HOME",
    *("a?b=c", "a#b", "~", "s3:", "file:", "sqlite:", "new\nline", "tab\t", " ends "),
]
REFUSED_BY_ICEBERG = re.compile(r"[?#\n\t]")


def export_to(directory: Path, kind: str) -> None:
    selection = Selection(
        worker="w", format=kind, histograms=(), since_ms=None, until_ms=None
    )
    state = State(selection, {})
    opener = Catalog.open if kind == "iceberg" else Files.open
    for load in (None, state):
        with opener(directory, kind) as output:
            assert output.load() == load
            if load is None:
                output.commit(Tables.of([typed(seen(message()))]), state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_output_is_in_its_directory_or_the_name_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a directory of such a name, and every other one as a relative path."""
    monkeypatch.chdir(tmp_path)
    expected_there = []
    for place, name in enumerate(NAMES):
        if kind == "iceberg" and REFUSED_BY_ICEBERG.search(name):
            with pytest.raises(
                SettingsError, match=r"cannot have \?, # or control characters"
            ):
                export_to(Path(name), kind)
            continue
        expected_there.append(name)
        below = Path(name, name, "out")
        export_to(below if place % 2 else tmp_path / below, kind)
        assert exported(tmp_path / below, kind) == expected([message()])
    assert sorted(os.listdir(tmp_path)) == sorted(expected_there)


@pytest.mark.slow
def test_a_path_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    for kind in KINDS:
        with pytest.raises(SettingsError, match=r"udcff: the path is not UTF-8"):
            export_to(directory, kind)
    assert not os.listdir(tmp_path)
