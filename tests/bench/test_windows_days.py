"""The benchmark of boards without epochs, with few labels: flat as they are, and what grows is found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.windows_days import Load, Run, grown, table
from workers.kafka.store import Disk
from workers.mechanisms.running.sliding import Sliding
from workers.pipeline.histogram import Histogram
from workers.runtime.sizes import Change

pytestmark = pytest.mark.slow

#: More rows than are never forgotten, and two compactions.
LOAD = Load(labels=1_200, stable=50, days=20)


def test_days_after_the_first_cycle_are_flat_and_a_restart_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert table(LOAD)
    printed = capsys.readouterr().out
    assert "flat after day 13" in printed
    assert printed.endswith("the same next tick\n")
    compactions = [row.rpartition(" | ")[2] for row in printed.splitlines()]
    assert compactions.count("1") == 2


def test_rows_that_are_never_forgotten_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Sliding, "_without_forgotten", lambda self, state: state)
    run = Run(LOAD, tmp_path)
    found = [text.partition(":")[0] for text in grown(list(run.days()), run)]
    run.close()
    assert found[0] == "rows"
    assert {"rows", "state", "stored bytes"} <= set(found[1:])


def test_hops_that_stay_stored_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changes = Histogram.changes

    def without_deletions(self: Histogram) -> list[Change]:
        return [change for change in changes(self) if change[1] is not None]

    monkeypatch.setattr(Histogram, "changes", without_deletions)
    run = Run(LOAD, tmp_path)
    [found] = grown(list(run.days()), run)
    run.close()
    assert found.startswith("stored blocks: at most ")


def test_a_restart_without_some_of_what_was_stored_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(LOAD, tmp_path)
    days = run.days()
    for _ in range(2):
        next(days)
    items = Disk.items

    def without_shown(self: Disk, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value) for key, value in items(self, prefix) if b"/S" not in key)

    monkeypatch.setattr(Disk, "items", without_shown)
    same, _ = run.restarted()
    run.close()
    assert not same
