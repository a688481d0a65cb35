"""Trends as the readers say them: right, and only where noise does not explain them."""

import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.consumers.scene import EXAMPLES
from tests.dashboard.feeding import START_MS, TICK_MS, message, sliding

pytestmark = pytest.mark.waits

Readers = tuple[ModuleType, ModuleType]
WINDOW = {"ms": 20_000, "ticks": 2, "sd": 10.0}


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    """The modules as a reader has them: side by side in one directory."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import board
        import snapshots

        yield snapshots, board
    finally:
        sys.path.remove(str(EXAMPLES))


def snapshot(
    module: ModuleType, tick: int, items: dict[str, int], **changes: Any
) -> Any:
    document = message(
        tick,
        sorted(items.items(), key=lambda item: (-item[1], item[0])),
        **{
            "sd": 12.0,
            "threshold": None,
            "windows": [WINDOW | {"ticks": min(2, tick)}],
            **changes,
        },
    )
    return module.Pages().receive(json.dumps(document).encode())


def test_a_change_is_that_since_the_snapshot_that_the_window_names(
    readers: Readers,
) -> None:
    module, _ = readers
    changes = module.Changes()
    [first] = changes.receive(snapshot(module, 1, {"tea": 30}))
    assert (first.of, first.clear("tea")) == ({"tea": 30}, 30)
    [second] = changes.receive(snapshot(module, 2, {"tea": 60}))
    assert second.of == {"tea": 60}
    [third] = changes.receive(snapshot(module, 3, {"tea": 51, "cup": 900}))
    assert third.of == {"tea": 21}  # nothing is known of a count that was not shown
    assert (third.clear("tea"), third.clear("cup"), third.clear("pot")) == (
        21,
        None,
        None,
    )
    [fourth] = changes.receive(snapshot(module, 4, {"tea": 80, "cup": 900}))
    assert (fourth.of, fourth.clear("tea")) == ({"tea": 20}, None)
    # tick 5 was not seen
    assert changes.receive(snapshot(module, 7, {"tea": 300})) == []


def test_nothing_is_subtracted_across_series_or_without_windows(
    readers: Readers,
) -> None:
    module, _ = readers
    changes = module.Changes()
    for tick in (4, 5):
        changes.receive(snapshot(module, tick, {"tea": 900}))
    assert changes.receive(snapshot(module, 6, {"tea": 30}, id="1" * 32)) == []
    assert module.Changes().receive(snapshot(module, 1, {"tea": 30}, windows=[])) == []


def test_a_window_that_begins_in_the_epoch_before_adds_what_was_counted_there(
    readers: Readers,
) -> None:
    module, board = readers
    wide = {"ms": 40_000, "sd": 10.0}
    second: dict[str, Any] = {"id": "1" * 32, "previous_id": message(1, [])["id"]}

    def at(tick: int, items: dict[str, int], ticks: int, **changes: Any) -> Any:
        windows = [wide | {"ticks": ticks}]
        return snapshot(module, tick, items, windows=windows, **changes)

    def in_second(tick: int, items: dict[str, int], ticks: int) -> Any:
        width = at(1, {}, 1).end - at(1, {}, 1).start
        end = at(6, {}, 4).end + tick * width
        return at(tick, items, ticks, start=end - width, end=end, **second)

    changes = module.Changes()
    counts = (10, 20, 30, 40, 50, 60)
    for tick, tea in enumerate(counts, 1):
        items = {"tea": tea} | ({"cup": 500} if tick == 6 else {})
        changes.receive(at(tick, items, min(tick, 4)))
    first = in_second(1, {"tea": 7, "cup": 9, "pot": 90}, 4)
    [found] = changes.receive(first)
    assert found.of == {"tea": 60 - 30 + 7}, "the others were not shown at tick 3"
    assert "tea   [+37 ± 20 in 40s]" in board.board(first, 10, [found])
    for tick, tea, change in ((2, 15, 60 - 40 + 15), (3, 30, 60 - 50 + 30)):
        [found] = changes.receive(in_second(tick, {"tea": tea}, 4))
        assert found.of == {"tea": change}
    [found] = changes.receive(in_second(4, {"tea": 44}, 4))
    assert found.of == {"tea": 44}
    [found] = changes.receive(in_second(5, {"tea": 50}, 4))
    assert found.of == {"tea": 43}

    changes = module.Changes()
    for tick, tea in enumerate(counts[:5], 1):
        changes.receive(at(tick, {"tea": tea}, min(tick, 4)))
    assert changes.receive(in_second(1, {"tea": 7}, 4)) == [], (
        "the last tick is missing"
    )


def test_the_board_says_only_changes_and_ranks_that_exceed_the_noise(
    readers: Readers,
) -> None:
    module, board = readers
    changes = module.Changes()
    changes.receive(
        snapshot(module, 3, {"tea": 1_000, "cup": 900, "jar": 500, "pot": 490})
    )
    changes.receive(
        snapshot(module, 4, {"tea": 1_000, "cup": 950, "jar": 500, "pot": 490})
    )
    last = snapshot(module, 5, {"tea": 1_010, "cup": 1_130, "jar": 505, "pot": 515})
    lines = board.board(last, 10, changes.receive(last)).splitlines()[1:]
    shown = [line.split(maxsplit=3)[3] for line in lines]
    assert shown == [
        "cup   [+230 ± 20 in 20s, up 1]",
        "tea",
        "pot   [+25 ± 20 in 20s]",
        "jar",
    ]
    first = snapshot(module, 2, {"tea": 400})
    text = board.board(first, 10, module.Changes().receive(first))
    assert "tea   [+400 ± 20 since the epoch began]" in text


def test_of_items_that_do_not_change_hardly_any_is_said_to(readers: Readers) -> None:
    """Of 5,000 with noise alone 4.55 % pass two standard deviations, give or take 5 sqrt(0.0455 * 0.9545 / 5,000) = 1.5 % (6e-7)."""
    module, _ = readers
    noise = (
        np.random.default_rng(5)
        .normal(0, WINDOW["sd"], 5_000)
        .round()
        .astype(int)
        .tolist()
    )
    changes = module.Changes()
    for tick in (1, 2):
        changes.receive(snapshot(module, tick, {str(i): 100_000 for i in range(5_000)}))
    noisy = {str(i): 100_000 + found for i, found in enumerate(noise)}
    [change] = changes.receive(snapshot(module, 3, noisy))
    said = sum(change.clear(str(i)) is not None for i in range(5_000))
    assert 0.030 < said / 5_000 < 0.061


def test_a_window_without_epochs_has_no_changes_and_says_which_it_is(
    readers: Readers,
) -> None:
    module, board = readers
    document = sliding("1h", START_MS, [("tea", 900)])
    found = module.Pages().receive(json.dumps(document).encode())
    assert found.window == document["window"] and found.answer == {}
    changes = module.Changes()
    assert not changes.receive(found)
    later = sliding("1h", START_MS + TICK_MS, [("tea", 1_900)])
    assert not changes.receive(module.Pages().receive(json.dumps(later).encode()))
    head, row = board.board(found, 10).splitlines()
    assert head.startswith("products.1h / s1   the last 1h, until 2023-11-14 22:13:20")
    assert "900 ± 34" in row
