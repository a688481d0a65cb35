"""Data waiting for a slower source partition: memory, file, and memory if the disk fails."""

from pathlib import Path

import pytest

from workers.mechanisms.config.histogram import Lane
from workers.pipeline import waiting as module
from workers.pipeline.contributions import Section
from workers.pipeline.waiting import WaitingSections
from workers.runtime.errors import CopyFailed

LANE = Lane(1000, 0, 3, 1)


def part(tick: int) -> Section:
    return Section(
        LANE, tick, [f"key {tick}"], [1], b"\x01\x00", b"a", 1, bytes([tick]), b""
    )


def test_beyond_the_limit_parts_lie_in_a_file_whose_room_is_used_again(
    tmp_path: Path,
) -> None:
    """A slow partition uses only the disk that its waiting data needs."""
    held = WaitingSections(tmp_path, part(1).nbytes)
    for tick in (1, 2, 3):
        held.add(tick, part(tick))
    for tick in (1, 2, 3):
        assert held.get(LANE, tick) == [part(tick)]
    spilled = held.spilled_bytes
    assert spilled > 0 and held.first_offset(9) == 1
    held.drop_before(LANE, 4)
    assert (held.spilled_bytes, held.held_bytes, held.first_offset(9)) == (0, 0, 9)
    for tick in (4, 5, 6):
        held.add(tick, part(tick))
    assert held.spilled_bytes == spilled and held.get(LANE, 6) == [part(6)]


def test_what_a_full_disk_does_not_take_stays_in_memory_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping reads would block what completes the ticks; a restart would loop."""
    held = WaitingSections(tmp_path, 0)
    held.add(1, part(1))
    room = held._file
    with open("/dev/full", "r+b", buffering=0) as full:
        held._file = full
        held.add(2, part(2))
        held.add(3, part(3))
        assert held.held_bytes == part(2).nbytes + part(3).nbytes
    held._file = room
    for tick in (1, 2, 3):
        assert held.get(LANE, tick) == [part(tick)]
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    held.add(4, part(4))
    assert (
        held.get(LANE, 4) == [part(4)]
        and held.held_bytes == part(2).nbytes + part(3).nbytes
    )
    first, second = (record.getMessage() for record in caplog.records)
    assert "cannot be written: No space left on device. They stay in memory" in first
    assert "can be written again" in second


def test_without_a_directory_everything_stays_in_memory(tmp_path: Path) -> None:
    held = WaitingSections(tmp_path / "gone", 0)
    held.add(1, part(1))
    assert held.get(LANE, 1) == [part(1)] and held.held_bytes > 0


def test_what_was_written_and_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    """The tick would otherwise be published with less than was counted."""
    held = WaitingSections(tmp_path, 0)
    held.add(1, part(1))
    assert held._file is not None
    held._file.truncate(3)
    with pytest.raises(CopyFailed, match="gone"):
        held.get(LANE, 1)
