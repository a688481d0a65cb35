"""Which rejects `quietcount rejects --retry` finds acceptable, without a broker."""

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest

from workers.commands import rejects
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.pipeline.rejected import Rejected
from workers.settings.settings import settings_of

PARTITIONS = 3


def test_a_users_reject_is_acceptable_in_the_partition_of_its_record_key_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(
        {
            "worker": {"name": "w", "data_dir": "var", "key_file": "noise.key"},
            "kafka": {"bootstrap": "localhost:9092"},
            "events": {"topic": "t", "key": "k", "items": "i", "user": "$key"},
            "privacy": {"unit": "user"},
            "histogram": [
                {
                    "name": "h",
                    "mechanism": "unk_base",
                    "tick": "1s",
                    "horizon": 64,
                    "max_items": 1,
                    "max_items_per_user": 1,
                    "epsilon": 1.0,
                    "delta": 1e-6,
                    "keys": ["a"],
                }
            ],
        },
        Path(),
    )
    topic = SourceTopic("t", PARTITIONS, None)
    monkeypatch.setattr(rejects, "check_events", lambda *_, **__: Sources((topic,)))
    monkeypatch.setattr(rejects, "partitions_by_user", lambda *_: Sources(()))
    acceptable = rejects._AcceptanceFilter(settings, cast(Any, None))
    outcome = rejects.RetryCounts()
    found = [
        acceptable.select(
            [
                (
                    0,
                    Rejected(
                        reason="early",
                        topic="t",
                        partition=partition,
                        offset=0,
                        time_ms=time.time_ns() // 1_000_000,
                        key=b"u",
                        value=json.dumps({"k": "a", "i": "x"}).encode(),
                        headers=[],
                        truncated=False,
                    ),
                )
            ],
            outcome,
        )
        for partition in range(PARTITIONS)
    ]
    assert sorted(map(len, found)) == [0, 0, 1]
    assert outcome.refused == PARTITIONS - 1
