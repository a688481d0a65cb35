"""Which rejects `quietcount rejects --retry` finds acceptable, without a broker."""

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.replay.site import settings_of
from workers.commands import rejects
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.pipeline.rejected import Rejected

PARTITIONS = 3


def test_a_users_reject_is_acceptable_in_the_partition_of_its_record_key_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, user="$key")
    topic = SourceTopic("t", PARTITIONS, None)
    monkeypatch.setattr(rejects, "check_events", lambda *_, **__: Sources((topic,)))
    monkeypatch.setattr(rejects, "partitions_by_user", lambda *_: Sources(()))
    acceptable = rejects._AcceptanceFilter(settings, cast(Any, None))
    outcome = rejects.RetryCounts()
    value = json.dumps({"key": "a", "items": "x"}).encode()
    now_ms = time.time_ns() // 1_000_000
    found = []
    for partition in range(PARTITIONS):
        place = "early", "t", partition, 0
        reject = Rejected(*place, now_ms, b"u", value, headers=[], truncated=False)
        found.append(acceptable.select([(0, reject)], outcome))
    assert sorted(map(len, found)) == [0, 0, 1]
    assert outcome.refused == PARTITIONS - 1
