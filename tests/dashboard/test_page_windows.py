"""The board over any window; Back, links and files show what was seen."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.dashboard.browser import MINUS, Window, text
from tests.dashboard.feeding import RECENT_MS, Topics, embedded, reads, recent
from tests.worker.harness import until
from workers.dashboard.server import Background, Dashboard
from workers.mechanisms.config.sums import parse_sum
from workers.pipeline.snapshots import Means

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.waits

TICKS = 130
SD = 20.0
#: Of a change over an hour; of two counts with nothing in common it would be 28.3.
HOUR_SD = 15.0
THRESHOLD = 121
#: What an item of the stream key s4 costs; the sum of its prices has this error, over an hour too.
PRICES = {"tea": 2.5, "cup": 7.25, "pot": 31.0, "lid": -4.0, "samovar": 99.99}
PRICE = Means(
    parse_sum({"field": "lines[].price", "from": -20, "to": 100, "step": 0.01})
)
UNKNOWN = "\u2013"
CENTRED_SD = 20.0 * PRICE.steps
HOUR_CENTRED_SD = 15.0 * PRICE.steps
#: What is added in each tick; the samovar is shown from tick 100 on only.
RATES = {"tea": 30, "cup": 20, "pot": 11, "lid": 4, "samovar": 6}

#: Everything of the page that a reader would call the same picture.
PICTURE = """() => {
    const all = (what, of) => [...document.querySelectorAll(what)].map(of);
    const texts = ["#board-title", "#period", "#item-name", "#item-words", "#changes", "#chart-note", "#reading", "#series"];
    return JSON.stringify([
        all("tr.item", (row) => [...row.cells].map((cell) => cell.textContent)),
        texts.map((one) => document.querySelector(one).textContent),
        all("#chart path, #chart rect", (e) => [e.getAttribute("class"), e.getAttribute("d"), e.getAttribute("x")]),
        all('[aria-pressed="true"]', (e) => e.textContent), document.querySelector("#unit").value,
    ]);
}"""


def items(tick: int, key: str) -> list[tuple[str, int]]:
    times = 2 if key == "s2" else 1
    counts = {label: times * rate * tick + tick % 7 for label, rate in RATES.items()}
    shown = [one for one in counts.items() if one[0] != "samovar" or tick >= 100]
    return sorted(shown, key=lambda item: (-item[1], item[0]))


def snapshot(tick: int, key: str) -> dict[str, Any]:
    ticks = min(tick, 60)
    windows = [
        {"ms": 60 * RECENT_MS, "ticks": ticks, "sd": HOUR_SD if tick > 60 else SD}
    ]
    own = {"key": key, "sd": SD, "threshold": float(THRESHOLD), "windows": windows}
    if key == "s3":
        # At tick 129 its noise puts it below what is shown.
        count = 9_000 if tick == 129 else 100 * tick
        windows[0]["all_items_sd"] = 45.0
        own |= {"all_items": {"count": count, "sd": 60.0}}
        own |= {"threshold": None} if tick == 10 else {}
    if key == "s4":
        counts = np.array([count for _, count in items(tick, key)])
        prices = np.array([PRICES[label] for label, _ in items(tick, key)])
        centred = np.rint(counts * (prices - 40) / 0.005).astype(np.int64)
        sds = SD, CENTRED_SD
        own |= {"sums": PRICE.rows(counts, centred, *sds), "sum": PRICE.head(*sds)}
        windows[0]["sum_sd"] = round(
            PRICE.sd(HOUR_SD, HOUR_CENTRED_SD if tick > 60 else CENTRED_SD), 4
        )
    return recent(tick, items(tick, key), ticks=TICKS, **own)


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with embedded("products") as found:
        keys = ("s1", "s2", "s3", "s4")
        found.send(*(snapshot(t, key) for t in range(1, TICKS + 1) for key in keys))
        yield found


@pytest.fixture(scope="module")
def url(topics: Topics) -> Iterator[str]:
    settings = topics.settings("products")
    shown = [replace(one, sum_field="lines[].price") for one in settings.histograms]
    with Background(
        Dashboard(replace(settings, histograms=tuple(shown)), port=0)
    ) as dashboard:
        reads(dashboard)
        yield f"{dashboard.url}?histogram=products&key=s1"


def picture(page: Page) -> str:
    return str(page.evaluate(PICTURE))


def settled(page: Page) -> str:
    """The picture, once it is the same for half a second."""
    before = ""
    while (found := picture(page)) != before:
        before = found
        page.wait_for_timeout(500)
    return found


def rows_of(
    page: Page, directory: Path, box: str = "#board-foot", table: str = "items"
) -> list[dict[str, str]]:
    """Download a table as CSV; return its rows."""
    with page.expect_download() as found:
        page.click(f'{box} [data-table="{table}"][data-format="csv"]')
    path = directory / found.value.suggested_filename
    assert path.name.startswith("products_s") and path.name.endswith(".csv")
    found.value.save_as(path)
    return list(csv.DictReader(path.open()))


def two_digits(value: float, off: float) -> str:
    """A sum with an error of some thousands, to two digits of the error."""
    assert 1_000 <= off < 10_000
    return text(math.floor(value / 100 + 0.5) * 100)


def last_hour(window: Window) -> None:
    window.page.click('#windows button:has-text("Last hour")')
    window.reads("#count-head", "^Counted$")


def board(page: Page) -> list[tuple[str, ...]]:
    """Label, mark, count and error of each row."""
    cells = """() => [...document.querySelectorAll("tr.item")].map((row) =>
        [".pick", ".change", ".count", ".sd"].map((part) => row.querySelector(part).textContent))"""
    return [tuple(row) for row in page.evaluate(cells)]


def test_the_last_hour_is_a_board_with_its_own_error(window: Window, url: str) -> None:
    page = window.open(url)
    assert [row[1] for row in board(page)] == [""] * 5, (
        "the samovar came more than ten ticks ago"
    )
    last_hour(window)
    now = dict(items(TICKS, "s1"))
    then = dict(items(TICKS - 60, "s1"))
    changed = {label: count - then.get(label, 0) for label, count in now.items()}
    # By what is known: of the samovar that is the least that came in the hour.
    least = changed | {"samovar": changed["samovar"] - THRESHOLD}
    order = sorted(least, key=lambda label: -least[label])
    rows = board(page)
    assert [row[0] for row in rows] == order
    # Of the samovar up to the threshold may have come before: marked, and its bar reaches so far.
    low = max(0, now["samovar"] - THRESHOLD - 2 * HOUR_SD)
    high = now["samovar"] + 2 * SD
    samovar = f"between {low:,.0f} and {high:,.0f}"
    marked = {row[0]: row[1:] for row in rows}
    assert marked.pop("samovar") == ("newly shown", samovar, "")
    assert all(row[1] == text(changed[label]) for label, row in marked.items())
    # It has passed the lid in the total.
    assert {label for label, (mark, *_) in marked.items() if mark} == {"lid"}
    assert marked["lid"][0] == "▼1"
    assert {row[2] for row in marked.values()} == {f"{2 * HOUR_SD:.0f}"}
    assert "(1 hour)" in page.inner_text("#period")
    # One truth: the line beside the item says what its row does, and so does the hour's sum.
    row = f"{text(changed['tea'])} ± {2 * HOUR_SD:.0f}"
    window.reads("#changes", f"^Counted in the last hour: {row}$")
    assert page.locator("#changes .sure").count() == 1 and page.is_hidden("#flat")
    page.click('.pick:has-text("samovar")')
    window.reads(
        "#changes", f"^Counted in the last hour: {samovar}, as it is newly shown$"
    )
    page.click('.pick:has-text("tea")')
    page.select_option("#unit", "hour")
    window.shows('document.querySelectorAll("#chart .line").length > 0')
    assert "Not shown" not in page.inner_text("#chart")
    over = snapshot(TICKS, "s1")["end"] % (60 * RECENT_MS) == 0
    window.reads("#reading", "^From .* to " if over else "^From .*, so far until ")


def test_since_a_time_has_an_upper_bound_of_the_error_and_says_so(
    window: Window, url: str
) -> None:
    since = snapshot(TICKS - 30, "s1")["end"]
    page = window.open(f"{url}&since={since}")
    window.reads("#count-head", "^Counted$")
    rows = {row[0]: row[2:] for row in board(page)}
    assert rows["tea"] == (
        text(items(TICKS, "s1")[0][1] - items(TICKS - 30, "s1")[0][1]),
        "80",
    )
    assert "upper bound" in (page.text_content("#sd-words") or "")
    # One truth: the chart is of what the board counts, and its last point is what the board has.
    page.click("#as-table summary")
    window.counts("#numbers tbody tr", 30)
    drawn = page.locator("#numbers tbody tr td:nth-child(3)").all_inner_texts()
    begun = dict(items(TICKS - 30, "s1"))["tea"]
    counted = [dict(items(TICKS - by, "s1"))["tea"] - begun for by in range(30)]
    assert drawn == [text(count) for count in counted] and drawn[0] == rows["tea"][0]
    # Each in its own tick; so many that they would be dots upon dots are a line.
    page.select_option("#unit", "tick")
    window.counts("#chart .line", 30)
    page.click('#ranges [data-range="all"]')
    window.counts("#chart .line", 1)
    window.counts("#numbers tbody tr", TICKS)
    page.click('#windows button:has-text("All of it")')
    window.reads("#count-head", "^Count$")
    assert "since=" not in page.url


def test_the_chart_is_of_the_boards_window_and_says_what_it_does_not_draw(
    window: Window, url: str
) -> None:
    page = window.open(url)
    # A total that has long been counted: its axis does not begin at 0, which it says.
    page.click('#ranges [data-range="hour"]')
    window.reads("#chart", "the axis begins at [\\d,]+")
    page.goto(f"{url}&window=1h&range=hour")
    window.reads("#chart", "^Counted")
    page.click("#as-table summary")
    window.shows('document.querySelectorAll("#numbers tbody tr").length > 50')
    drawn = page.locator("#numbers tbody tr td:nth-child(3)").all_inner_texts()
    tea = [dict(items(tick, "s1"))["tea"] for tick in range(TICKS + 1)]
    counted = [tea[tick] - tea[tick - 60] for tick in range(TICKS, TICKS - 60, -1)]
    assert drawn == [text(count) for count in counted]
    errors = page.locator("#numbers tbody tr td:nth-child(4)").all_inner_texts()
    assert set(errors) == {f"{2 * HOUR_SD:.0f}"}
    window.reads("#chart-note", "counted in the hour before it")
    # The samovar was first shown at tick 100: of its hours up to then nothing can be drawn, and that is said.
    page.goto(f"{url}&window=1h&range=hour&item=samovar")
    most = 6 * 100 + 100 % 7 + 2 * SD
    window.reads(
        "#chart-note",
        f"the item was not shown where .* at most {most:,.0f} were counted",
    )


def test_the_last_row_is_what_is_not_listed_on_the_board_and_in_its_file(
    window: Window, url: str, tmp_path: Path
) -> None:
    cells = """() => [...document.querySelectorAll("tr.others:not([hidden]) td")].map((cell) => cell.textContent).filter((one) => one)"""
    url = url.replace("key=s1", "key=s3")
    page = window.open(url)
    listed = sum(count for _, count in items(TICKS, "s3"))
    left = 100 * TICKS - listed
    off = math.hypot(60, math.sqrt(5) * SD)
    assert page.evaluate(cells) == [
        "others",
        text(left),
        f"{2 * off:.0f}",
        "28.85\u00a0% ± 0.95\u00a0% of everything",
    ]
    assert page.locator("tr.others button").count() == 0
    page.fill("#find", "tea")
    window.counts("tr.others:not([hidden])", 0)
    page.fill("#find", "")
    last_hour(window)
    then = dict(items(TICKS - 60, "s3"))
    left = 6_000 - listed + sum(then.values())
    # What the samovar counted before the window, up to the threshold, the others counted less.
    off = 2 * math.hypot(45, math.sqrt(4) * HOUR_SD, SD)
    assert page.evaluate(cells)[:2] == [
        "others",
        f"between {left - off:,.0f} and {left + THRESHOLD + off:,.0f}",
    ]
    [tick] = rows_of(page, tmp_path, table="ticks")
    assert (tick["all_items"], tick["all_items_sd"]) == ("6000", "45.0")
    page.goto(f"{url}&at={snapshot(129, 's3')['end']}")
    window.counts("tr.others:not([hidden])", 1)
    off = 2 * math.hypot(60, math.sqrt(5) * SD)
    assert page.evaluate(cells)[1] == f"at most {off:.0f}"
    # Nobody knows how much of the samovar came before tick 10, which has no threshold: no more than all that is not listed ever had.
    page.goto(f"{url}&since={snapshot(10, 's3')['end']}")
    window.counts("tr.others:not([hidden])", 1)
    window.reads("#period", "^Counted since")
    ever = 100 * TICKS - listed
    most = ever + 2 * math.hypot(60, math.sqrt(5) * SD)
    assert page.evaluate(cells)[1].endswith(f" and {most:,.0f}")


def test_sums_and_means_are_columns_of_the_board_over_any_window_and_in_its_file(
    chrome: Browser, window: Window, url: str, tmp_path: Path
) -> None:
    cells = """() => Object.fromEntries([...document.querySelectorAll("tr.item")].map((row) => [row.label,
        [...row.querySelectorAll(".mean > *, .sum > *")].map((one) => one.textContent)]))"""
    url = url.replace("key=s1", "key=s4")
    page = window.open(url)
    heads = page.locator("thead .mean, thead .sum").all_inner_texts()
    assert [one.split() for one in heads] == [
        ["Mean", "price"],
        ["Sum", "price"],
    ]
    counts = dict(items(TICKS, "s4"))
    drawn = page.evaluate(cells)
    off = 2 * PRICE.sd(SD, CENTRED_SD)
    for label, (mean, interval, total, error) in drawn.items():
        if abs(counts[label] * PRICES[label]) <= off:
            assert " to " in mean and " to " in total and error == ""
            continue
        low, high = (float(end.replace(MINUS, "-")) for end in interval.split(" to "))
        assert low <= PRICES[label] <= high
        assert float(mean.replace(MINUS, "-")) == pytest.approx(PRICES[label], abs=0.06)
        assert total == two_digits(counts[label] * PRICES[label], off)
        assert error == f"± {math.ceil(off / 100) * 100:,}"
    window.reads(
        "#item-words",
        f"Sum of price {drawn['tea'][2]} {drawn['tea'][3]}, mean {drawn['tea'][0]} ",
    )
    for unit in ("mean", "sum"):
        page.select_option("#unit", unit)
        window.reads("#reading", ": [\\d.,]+ \\(.* to .*\\)$")
    page.select_option("#unit", "")
    last_hour(window)
    then = dict(items(TICKS - 60, "s4"))
    in_hour = page.evaluate(cells)
    assert in_hour.pop("samovar") == [UNKNOWN, f"{MINUS}20 to 100", UNKNOWN, ""]
    off = 2 * PRICE.sd(HOUR_SD, HOUR_CENTRED_SD)
    for label, (mean, interval, total, error) in in_hour.items():
        by = (counts[label] - then[label]) * PRICES[label]
        if abs(by) <= off:
            # Noise alone may make it: only its ends are said, and no mean.
            assert " to " in total and " to " in mean and (interval, error) == ("", "")
            continue
        assert total == two_digits(by, off)
        assert error == f"± {math.ceil(off / 100) * 100:,}"
        assert "to" in interval and mean != drawn[label]
    for row in rows_of(page, tmp_path):
        if row["item"] == "samovar":
            assert (row["sum"], row["mean"], row["mean_low"], row["mean_high"]) == (
                "",
                "",
                "-20.0",
                "100.0",
            )
            continue
        by = counts[row["item"]] - then[row["item"]]
        assert float(row["sum"]) == pytest.approx(by * PRICES[row["item"]])
        assert float(row["mean_low"]) < PRICES[row["item"]] < float(row["mean_high"])
        assert float(row["sum_sd"]) == pytest.approx(off / 2, abs=1e-3)
    with Window(chrome, width=390, height=844) as phone:
        narrow = phone.open(url)
        places = narrow.evaluate("""() => [...document.querySelectorAll("tr.item")].map((row) =>
            [row.querySelector(".bar"), row.querySelector(".mean"), row.querySelector(".sum"), row]
                .map((one) => one.getBoundingClientRect()).map(({ top, right, bottom }) => [top, right, bottom]))""")
        for bar, mean, total, row in places:
            assert bar[2] <= mean[0] < mean[2] <= total[0] < total[2] <= row[2]
            assert max(mean[1], total[1]) <= 390


def test_a_chart_of_counts_begins_at_0_where_only_its_band_is_below(
    window: Window, url: str
) -> None:
    page = window.open(url)
    window.shows(
        'document.querySelector("#chart .band")?.getAttribute("d")?.length > 100'
    )
    marks = page.locator('#chart text[text-anchor="end"]').all_text_contents()
    assert "0" in marks and not any(MINUS in mark for mark in marks)
    lowest = """() => [Math.max(...document.querySelector("#chart .band").getAttribute("d").match(/ [\\d.]+/g).map(Number)),
        Math.max(...[...document.querySelectorAll("#chart .grid")].map((line) => line.y1.baseVal.value))]"""
    band, bottom = page.evaluate(lowest)
    assert band == pytest.approx(bottom, abs=0.1)


def test_what_opens_closes_with_escape_and_with_a_click_beside_it(
    window: Window, url: str
) -> None:
    page = window.open(url)
    for name in ("#since-details", "#epochs", "#range-details"):
        for way in ("Escape", "a click"):
            page.click(f"{name} summary")
            assert page.locator(f"{name}[open]").count() == 1
            if way == "Escape":
                page.keyboard.press("Escape")
            else:
                page.click("#board-title")
            assert page.locator(f"{name}[open]").count() == 0, way


def test_the_legend_is_in_the_titles_for_pointer_focus_and_touch(
    window: Window, url: str
) -> None:
    page = window.open(url)
    shown = ".tip:popover-open"
    window.counts(shown, 0)
    page.hover("thead .count button")
    window.counts("#legend-count:popover-open", 1)
    page.mouse.move(5, 5)
    window.counts(shown, 0)
    titles = page.locator("thead th button")
    for title in titles.all():
        if title.is_visible():
            title.focus()
            named = title.get_attribute("aria-describedby")
            window.counts(f"#{named}:popover-open", 1)
            assert page.locator(shown).count() == 1
    page.keyboard.press("Escape")
    window.counts(shown, 0)


def test_back_forward_and_a_link_show_the_same_picture(
    chrome: Browser, window: Window, url: str
) -> None:
    page = window.open(url)
    window.shows('document.querySelectorAll("#chart .band").length > 0')
    chosen: list[tuple[Callable[[], object], str]] = [
        (lambda: page.click('#windows button:has-text("Last hour")'), "window=1h"),
        (lambda: page.click('.pick:has-text("pot")'), "item=pot"),
        (lambda: page.select_option("#key", "s2"), "key=s2"),
        (lambda: page.select_option("#unit", "hour"), "unit=hour"),
    ]
    seen = [(page.url, settled(page))]
    for choose, in_address in chosen:
        choose()
        page.wait_for_function(
            "(part) => location.search.includes(part)", arg=in_address
        )
        seen.append((page.url, settled(page)))
    assert len({one for _, one in seen}) == 5

    def same(place: int) -> bool:
        return (page.url, picture(page)) == seen[place]

    for place in (3, 2, 1, 0):
        page.go_back()
        until(partial(same, place), f"picture {place}, going back")
    for place in (1, 2, 3, 4):
        page.go_forward()
        until(partial(same, place), f"picture {place}, going forward")
    with Window(chrome) as other:
        linked = other.open(page.url)
        other.shows('document.querySelectorAll("#chart .line").length > 0')
        until(lambda: picture(linked) == seen[-1][1], "the same picture from a link")


def test_files_have_the_published_counts_of_what_is_drawn(
    window: Window, url: str, tmp_path: Path
) -> None:
    """All lines in one file; of a window its changes, and nothing where an item is new."""
    page = window.open(
        f"{url}&item=tea&with=pot&keys=s2&range=hour&unit=tick&window=1h"
    )
    window.counts("#series li", 3)
    settled(page)
    with page.expect_download() as found:
        page.click('#item-files [data-table="items"][data-format="csv"]')
    assert found.value.suggested_filename.startswith("products_2-keys_20")
    path = tmp_path / "lines.csv"
    found.value.save_as(path)
    counts = {
        (row["key"], row["item"], int(row["tick"])): int(row["count"])
        for row in csv.DictReader(path.open())
    }
    drawn = range(TICKS - 60, TICKS + 1)
    assert counts == {
        (key, item, tick): dict(items(tick, key))[item]
        for key in ("s1", "s2")
        for item in ("tea", "pot")
        for tick in drawn
    }
    of_board = rows_of(page, tmp_path)
    known = [row for row in of_board if row["item"] != "samovar"]
    assert [(row["item"], text(int(row["count"]))) for row in known] == [
        (row[0], row[2]) for row in board(page) if row[0] != "samovar"
    ]
    assert [row["item"] for row in of_board if not row["count"]] == ["samovar"]
    assert {row["window_ms"] for row in of_board} == {f"{60 * RECENT_MS}"}
