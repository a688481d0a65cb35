"""`quietcount explain` finds the row of the guide for every message that has one."""

import re

import pytest

from tests.deploy.messages import GUIDE
from tests.quietcount import Quietcount
from workers.commands.explaining import HOLE, explained, explanations

GUIDE_ROWS = explained(GUIDE.read_text())


@pytest.mark.slow
def test_every_row_is_found_by_its_message_as_a_log_has_it() -> None:
    for row in GUIDE_ROWS:
        said = row.pattern.replace(HOLE, "x1.y[2]")
        for message in (
            said,
            f"2026-11-28 10:00:01 WARNING workers.kafka: {said}; and  more\n",
        ):
            found = explanations(message, GUIDE_ROWS)
            remedies = [each.remedy for each in found]
            assert row.remedy in remedies and len(found) <= 2, row.pattern


def test_a_message_is_explained_in_words_without_marks(
    quietcount: Quietcount,
) -> None:
    line = "orders.products s1: 3 ticks without all their parts left out, ended from T1 to T2"
    told = quietcount("explain", line).words
    assert "what to do: nothing" in told
    assert "why: the parts of a split (docs/settings.md#parts) histogram" in told
    words = "explain cannot listen on 127.0.0.1:80: Permission denied"
    assert "another --metrics-port" in quietcount(words).out


def test_what_no_row_explains_is_said_and_ends_with_1(
    quietcount: Quietcount,
) -> None:
    assert (
        "no row of docs/operations.md has these words"
        in quietcount("explain", "all is well", code=1).out
    )
    assert not re.search("Traceback", quietcount("explain", code=2).err)
