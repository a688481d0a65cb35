"""Owner partitions of one process, whose threads share the mechanisms, on a real broker; the long run is `tests.contract.soak --kafka`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.threads import OWNERS, TICKS, attack, audited_run

pytestmark = pytest.mark.waits


def test_no_partition_publishes_a_label_that_is_256_behind_whatever_the_others_do_first(
    bootstrap: str, tmp_path: Path
) -> None:
    """Two partitions that made the table of weights together made a gap of 256 weigh as much as one of 1, for the life of the process.

    The label b was then in 41 of 112 releases of known_gumbel; audit, with one thread, found other bytes.
    """
    found = attack(bootstrap, tmp_path)
    assert {name: b for name, (_, b) in found.items()} == dict.fromkeys(found, 0)
    # Or nothing would be shown at all.
    assert found["gumbel"][0] == found["limit"][0] == found["sparse"][0] == OWNERS * TICKS
    assert found["cells"][0] == OWNERS * TICKS
    assert found["pay"][0] == OWNERS * 8


def test_every_mechanism_in_eight_partitions_under_random_switch_intervals_is_what_audit_finds_with_one_thread(
    bootstrap: str, tmp_path: Path
) -> None:
    """Audit proves each snapshot byte for byte; it has no other thread that could disturb it."""
    assert audited_run(bootstrap, tmp_path, seed=11) > OWNERS * 18 * 20
