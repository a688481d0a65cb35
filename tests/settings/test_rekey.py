"""Settings of the stage that brings users together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.settings.test_settings import GOOD, assert_refused, loaded, with_users


def rekeyed() -> str:
    """The same, with users brought together first."""
    return with_users("max_items_per_user = 5\n") + "rekey = true\n"


def test_users_may_come_from_several_topics_where_they_are_brought_together(tmp_path: Path) -> None:
    """That is what the stage is for; its two topics are the worker's own then, and only then."""
    found = loaded(tmp_path, rekeyed().replace('topic = "orders"', 'topic = ["a", "b"]'))
    assert found.privacy.rekey and found.worker.user_partitions is None
    assert found.internal_topics[4:] == ("orders.by-user", "orders.rekey-state")
    assert len(loaded(tmp_path, with_users("max_items_per_user = 5\n")).internal_topics) == 4
    assert not loaded(tmp_path, GOOD).privacy.rekey
    ahead = rekeyed().replace(
        'user = "customer"', 'user = "customer"\ntimestamp = "at"\nmax_ahead = "2h"'
    )
    assert loaded(tmp_path, ahead).events.max_ahead_ms == 7_200_000  # not by the record's time


BAD = [
    (GOOD + "[privacy]\nrekey = true\n", 'privacy.rekey = true: only with privacy.unit = "user"'),
    (GOOD + '[privacy]\nrekey = "yes"\n', 'privacy.rekey = "yes" ... true or false'),
    (
        rekeyed().replace('user = "customer"', 'user = "customer"\npartitioner = "crc32"'),
        'events.partitioner = "crc32": only without privacy.rekey',
    ),
    (
        rekeyed().replace('user = "customer"', 'user = "customer"\nmax_ahead = "51m"'),
        'events.max_ahead = "51m": at most 50m with privacy.rekey and without events.timestamp',
    ),
    (
        with_users("max_items_per_user = 5\n").replace("[kafka]", "user_partitions = 3\n[kafka]"),
        "worker.user_partitions = 3: only with privacy.rekey = true",
    ),
    (
        rekeyed().replace("[kafka]", "user_partitions = 0\n[kafka]"),
        "worker.user_partitions = 0 ... from 1 to 10,000",
    ),
    (
        rekeyed().replace('name = "products"', 'name = "by-user"'),
        'topic = "orders.by-user" ... the worker\'s',
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_what_does_not_fit_is_refused_with_what_does(tmp_path: Path, text: str, said: str) -> None:
    """A setting that does nothing, or not what it says, would be found out much later."""
    assert_refused(tmp_path, text, said)
