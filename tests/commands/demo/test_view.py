"""What the demo says and shows: the guarantee in words, and the live view at every size of terminal."""

import io
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.commands.demo.test_demo import GRID, snapshot
from tests.costs import summed
from workers.commands.demo.exact import Boards, ExactCounts, Row
from workers.commands.demo.generator import DESTINATIONS, ORIGINS
from workers.commands.demo.session import Child, promise, settings_text
from workers.commands.demo.view import (
    DIGITS,
    Scene,
    bar,
    compact,
    ordinal,
    picture,
    render,
)
from workers.kafka.clients import Connection
from workers.mechanisms.accounting import gaussian_delta
from workers.mechanisms.registry import build
from workers.privacy.total import charge_of, total_of
from workers.settings.settings import Settings

# The promise


@pytest.fixture
def settings() -> Iterator[Settings]:
    connection = Connection("127.0.0.1:9092", {"check.crcs": "false"})
    with Child() as child:
        yield child.prepare(settings_text("demo-x", connection))


def test_the_promise_for_both_histograms_covers_their_summed_cost(
    settings: Settings,
) -> None:
    """The same flights are in both: one epsilon of 1 for all that is shown would be false."""
    total = total_of(
        [charge_of(histogram, build(histogram)) for histogram in settings.histograms]
    )
    epsilon = total.epsilon
    delta = total.delta
    costs = [build(histogram).cost() for histogram in settings.histograms]
    rho, failures = summed(costs)
    assert float(gaussian_delta(rho, epsilon)) + failures <= delta * (1 + 1e-6)
    assert 1 < epsilon < 2
    words = promise(settings)
    both = math.ceil(epsilon * 100) / 100
    for part in (
        "all windows for ever, and all counts since midnight of a day",
        "epsilon 1, delta 1e-9 for each",
        f"{both} and 2e-9 for both",
    ):
        assert part in words


# The view


def scene(settings: Settings, count: int, ticks: int = 1) -> Scene:
    """A scene in which the largest destination of each origin has about `count` flights."""
    exact = ExactCounts(GRID)
    windows, since_midnight = settings.histograms
    names = [windows.series[1].name, since_midnight.name]
    window = {"ms": 60_000, "from": GRID.start_ms}
    boards = Boards(exact, names, ORIGINS)
    exact.add(
        GRID.start_ms, [(origin, label) for origin in ORIGINS for label in DESTINATIONS]
    )
    for origin in ORIGINS if ticks else ():
        for name in names:
            items = [
                (label, count // (i + 1) - 30) for i, label in enumerate(DESTINATIONS)
            ]
            of_window = {"window": window} if name == names[0] else {}
            boards.receive(
                snapshot(
                    1,
                    items,
                    histogram=name,
                    key=origin,
                    sd=15.5,
                    threshold=113.0,
                    **of_window,
                )
            )
    return Scene(
        boards=boards.newest,
        discovered=names[0],
        declared=names[1],
        promise=promise(settings),
        simulated="2013-02-03 04:05",
        sent=12_345_678,
        speed=1_000.0,
        year=3,
        elapsed_s=125.0,
        now_ms=GRID.end(1) + 700,
        page="http://127.0.0.1:8080/",
    )


def drawn(scene: Scene, width: int, height: int, *, colour: bool = False) -> list[str]:
    system = "truecolor" if colour else None
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=colour,
        color_system=system,  # type: ignore[arg-type]  # a literal
    )
    with console.capture() as capture:
        console.print(render(scene, console))
    return capture.get().splitlines()


@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (80, 40), (100, 30), (160, 45), (240, 20)]
)
@pytest.mark.parametrize("count", [40, 1_234, 123_456_789])
def test_the_view_fits_the_terminal_and_says_what_matters(
    settings: Settings, width: int, height: int, count: int
) -> None:
    lines = drawn(scene(settings, count), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    promised = (
        "epsilon 1",
        "can guess right most of the time",
        "exact (demo only)",
        "above 113",
        "± 31",
    )
    progress = ("12,345,678 events", "1,000/s", "of the last minute", "0.7 s old")
    place = ("2013-02-03 04:05", "3rd time", "http://127.0.0.1:8080/", *ORIGINS, "ORD")
    for part in (*promised, *progress, *place, compact(count - 30)):
        assert part in text


def test_the_view_has_bars_and_the_table_at_the_size_it_was_made_for(
    settings: Settings,
) -> None:
    """At 100 x 30 nothing may be left out for want of room."""
    lines = drawn(scene(settings, 900), 100, 30)
    assert "since midnight UTC, declared destinations" in "\n".join(lines)
    assert sum("▆" in line and "┃" in line and "┥" in line for line in lines) >= 5


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_view_can_be_drawn_before_anything_is_published(
    settings: Settings, width: int
) -> None:
    text = "\n".join(drawn(scene(settings, 900, ticks=0), width, 30))
    assert "the worker starts" in text
    assert text.count("waiting") == 3


def test_a_bar_is_solid_to_2_sd_below_and_marks_the_exact_count() -> None:
    """10 columns of 10 each: 70 +- 2 * 10, exact 80."""
    assert bar(Row("x", 70, 81), 10, 99.9, 10).plain == "▆▆▆▆▆┝━┿┃┥"
    assert bar(Row("x", 70, 5), 10, 99.9, 10).plain == "┃▆▆▆▆┝━┿━┥"
    assert bar(Row("x", 50, 99), 0.1, 99.9, 10).plain == "▆▆▆▆┝┥   ┃"
    assert bar(Row("x", -90, 0), 10, 99.9, 10).plain == "┃         "


def test_counts_keep_to_their_columns() -> None:
    shown = {
        0: "0",
        -31: "-31",
        99_999: "99,999",
        100_000: "100k",
        123_456: "123.5k",
        999_949: "999.9k",
        999_950: "1M",
        9_999_600: "10M",
        1_234_567: "1.235M",
        123_456_789_000: "123.5G",
    }
    assert {count: compact(count) for count in shown} == shown
    assert max(map(len, shown.values())) <= DIGITS
    ordinals = ", ".join(map(ordinal, (1, 2, 3, 4, 11, 12, 21, 112)))
    assert ordinals == "1st, 2nd, 3rd, 4th, 11th, 12th, 21st, 112th"


def test_exact_counts_are_red_and_private_ones_are_not(settings: Settings) -> None:
    coloured = "\n".join(drawn(scene(settings, 90_000), 160, 45, colour=True))
    assert re.search(r"\x1b\[31m +1\x1b\[0m", coloured)
    assert re.search(r"\x1b\[1;36m89,970\x1b\[0m", coloured)


def test_the_picture_is_one_file_that_loads_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    """docs/demo.svg is shown on pages that block whatever it would fetch."""
    picture(scene(settings, 900), tmp_path / "demo.svg")
    text = (tmp_path / "demo.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg") and "demo&#160;only" in text
    assert not any(loading in text for loading in ("url(http", "@import", "@font-face"))
