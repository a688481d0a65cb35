"""Killed workers, on a real broker; the long version is `python -m tests.worker.chaos`."""

from pathlib import Path
from typing import Any

import pytest

from tests.kafka.late_end_txn import FATES, Faults
from tests.kafka.proxy import Api, Fate, proxied_broker
from tests.worker.chaos import SOURCES, chaos

pytestmark = pytest.mark.waits

# Every fifth commit is requested twice, and most duplicates arrive again in the middle of a later
# transaction.
LATE = {
    Api.END_TXN: {Fate.HOLD: 0.2, Fate.LOSE: 0.04},
    Api.PRODUCE: FATES[Api.PRODUCE],
    Api.ADD_PARTITIONS: FATES[Api.ADD_PARTITIONS],
}


def test_after_kills_at_random_moments_every_event_counts_once_and_every_tick_is_published_once(
    bootstrap: str, tmp_path: Path
) -> None:
    """Double counts break the guarantee; a republished tick with other data reveals data.

    Of two topics: mixed-up numbers would count twice, or resume at another's position.
    """
    given: dict[str, Any] = {"seed": 7, "gap_s": (3.0, 9.0), "topics": (1, SOURCES - 1)}
    figures = chaos(bootstrap, tmp_path, events=40_000, kills=3, **given)
    assert figures["kills"] == 3
    assert figures["snapshots"] > 500


def test_no_tick_is_torn_where_the_network_delivers_commits_late(tmp_path: Path) -> None:
    """A proxy breaks connections and holds requests: audit is clean, sums are exact."""
    with proxied_broker() as proxy:
        proxy.rule = faults = Faults(proxy, 3, LATE)
        bootstrap = f"127.0.0.1:{proxy.port}"
        figures = chaos(bootstrap, tmp_path, events=10_000, kills=0, seed=8, gap_s=(0, 0))
    assert figures["snapshots"] > 300
    late = {kind for kind in faults.delivered if kind.startswith("commit")}
    assert late == {"commit: INVALID_PRODUCER_EPOCH"}, faults.delivered
