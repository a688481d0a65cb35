"""The page never presents noise as news, and its error band is visible at every zoom."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import sqrt
from statistics import pstdev
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboard.browser import Window
from tests.dashboard.feeding import embedded, message, recent

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.waits

SD = 17.25
#: Two counts of one snapshot differ by more than this only beyond two standard deviations of their difference.
APART = 2 * sqrt(2) * SD

#: Calls the page's own module, as the page has loaded it.
NOISE = """async ([call, ...given]) => {
    const noise = await import("/page/noise.js");
    if (call === "moves") {
        const [snapshot, older] = given;
        const moves = new noise.Moves(snapshot, older);
        return snapshot.items.map(([label]) => moves.of(label));
    }
    if (call === "places") {
        const [items, ...more] = given;
        return noise.places(items.map(([, value]) => ({ value, least: value })), ...more);
    }
    return noise[call](...given);
}"""
#: Every colour of the style sheets' variables, in both themes, as red, green and blue.
COLOURS = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const found = [];
    for (const sheet of document.styleSheets) for (const rule of sheet.cssRules) {
        if (!rule.selectorText?.startsWith(":root")) continue;
        for (const name of rule.style) {
            if (!name.startsWith("--")) continue;
            canvas.fillStyle = rule.style.getPropertyValue(name);
            canvas.fillRect(0, 0, 1, 1);
            found.push([name, ...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
        }
    }
    return found;
}"""


@pytest.fixture(scope="module")
def window(chrome: Browser) -> Iterator[Window]:
    found = Window(chrome)
    with embedded("products") as topics, topics.served("products") as dashboard:
        found.page.goto(dashboard.url)
        yield found


def board(
    counts: dict[str, int], tick: int = 1, sd: float = SD, **changes: Any
) -> dict[str, Any]:
    items = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return message(tick, items, sd=sd, **changes)


def test_places_are_all_that_noise_leaves_possible(window: Window) -> None:
    rng = random.Random(5)
    for total in (40, 60):
        values = sorted((rng.randrange(0, 900) for _ in range(40)), reverse=True)
        items = [(f"i{i}", value) for i, value in enumerate(values)]
        expected = []
        for value in values:
            first = 1 + sum(other > value + APART for other in values)
            last = sum(other >= value - APART for other in values)
            open_end = total > 40 and values[-1] >= value - APART
            expected.append([first, None if open_end else last])
        assert window.page.evaluate(NOISE, ["places", items, total, SD]) == expected
    assert window.page.evaluate(NOISE, ["places", [["a", 9], ["b", 8]], 2, None]) == [
        None,
        None,
    ]


def test_what_the_epoch_before_did_not_show_may_be_more_than_what_is_listed(
    window: Window,
) -> None:
    """`late` was not shown when the window began, `hidden` not when that epoch ended."""
    change: dict[str, Any] = {"tick": 5, "threshold": 100, "sd_to": 20.0}
    change |= {"new": ["late", "hidden"]}
    change["last"] = {"threshold": 120, "absent": ["hidden"]}
    counts = [["tea", 900], ["late", 400], ["hidden", 50]]
    total = {"count": 1_500, "sd": 30.0}
    board: dict[str, Any] = {"items": counts, "sd": 12.0, "change": change}

    def ends(label: str, value: int) -> Any:
        return window.page.evaluate(NOISE, ["ends", board, label, value])

    assert ends("tea", 900) == [876, 924]
    assert ends("late", 400) == [400 - 100 - 24, 400 + 40]
    assert ends("hidden", 50) == [50 - 24, 50 + 120 + 40]
    limits = [
        window.page.evaluate(NOISE, [name, change, "hidden", 50])
        for name in ("least", "most")
    ]
    assert limits == [50, 170]
    rest = window.page.evaluate(NOISE, ["others", board | {"all_items": total}])
    # Up to 100 more if `late` came before, up to 120 less if `hidden` did.
    assert rest["value"] == 150 and rest["least"] == 150 - 100 - 120
    off = sqrt(30**2 + 2 * 12**2 + 20**2)
    assert abs(rest["from"] - (150 - 120 - 2 * off)) < 1e-6
    assert abs(rest["to"] - (250 + 2 * off)) < 1e-6


def test_noise_alone_moves_nothing_and_a_real_change_is_seen(window: Window) -> None:
    """Of a board of equal items at most one in twenty has a mark, however many items it has: by two standard deviations for each pair
    half of a thousand rows were marked. 200 equal items are apart by z = sqrt(ln(5 * 200^2)) = 3.49 standard deviations of a
    difference, which one of 39,800 ordered pairs passes with a chance of P(Z < -z)^2 = 6e-8, so none of 20 boards has a mark, but
    for a chance of 5 %. (Q(z) < exp(-z^2 / 2) / 2 is coarse: it is 1 in 20 in the bound, and less than 1 in 400 in truth.)
    """
    rng = random.Random(11)
    labels = [f"i{i}" for i in range(200)]

    def noisy(sd: float) -> dict[str, int]:
        return {label: round(5_000 + rng.gauss(0, sd)) for label in labels}

    def marked(sd: float) -> int:
        moves = window.page.evaluate(
            NOISE, ["moves", board(noisy(sd), 2), board(noisy(sd), 1)]
        )
        return sum(abs(one["by"]) for one in moves)

    assert sum(marked(SD) for _ in range(20)) == 0
    # Noise of twice what is said marks P(Z < -z / 2)^2 of the ordered pairs, 65 with two marks each, less what cancels.
    assert marked(2 * SD) > 50
    before = board({"a": 1_000, "b": 990, "c": 300})
    now = board({"a": 990, "b": 1_000, "c": 2_000}, 2)
    assert [
        one["by"] for one in window.page.evaluate(NOISE, ["moves", now, before])
    ] == [2, -1, -1]


def test_of_a_window_in_which_nothing_was_counted_no_row_looks_counted(
    window: Window,
) -> None:
    """The largest of 19 rows of noise was bold. The limit is sqrt(2 ln(20 * 19)) = 3.45 standard deviations, above which is a row's noise
    with a chance of 0.03 %: 0.5 of 100 boards have one, more than 5 with a chance of 2e-5. With noise of twice what is said a row is
    above it with a chance of 4.2 %, so 56 of 100 boards have one; 40 or fewer with a chance of 0.1 %.
    """
    rng = random.Random(7)
    beyond = """async ([boards, sd]) => {
        const { isCounted } = await import("/page/noise.js");
        return boards.filter((rows) => rows.some((one) => isCounted(one, sd, rows.length))).length;
    }"""

    def found(times: float, true: int = 0) -> int:
        boards = [
            [round(rng.gauss(true, times * SD)) for _ in range(19)] for _ in range(100)
        ]
        return int(window.page.evaluate(beyond, [boards, SD]))

    assert found(1) <= 5 and found(2) > 40 and found(1, 300) == 100


@pytest.mark.parametrize(
    ("changes", "value", "is_new"),
    [
        # It stays from now on: noise alone is not shown.
        ({"mechanism": "unk_base"}, 125, True),
        # It comes and goes with its noise about the threshold.
        ({"mechanism": "positive_gauss"}, 125, False),
        ({"mechanism": "positive_gauss"}, 121 + 70, True),
        # It is one of the largest by chance.
        ({"mechanism": "known_gumbel", "threshold": None}, 510, False),
        ({"mechanism": "known_gumbel", "threshold": None}, 500 + 70, True),
        ({"mechanism": "known_gumbel", "threshold": None, "sd": None}, 9_000, False),
    ],
)
def test_new_is_what_was_not_hidden_by_noise(
    window: Window, changes: dict[str, Any], value: int, is_new: bool
) -> None:
    """Without windows two standard deviations of a difference are at most those of both counts together: 69."""
    before = board({"a": 1_000, "b": 500}, **changes)
    now = message(
        2, [("a", 1_000), ("b", 500), ("new", value)], **{"sd": SD, **changes}
    )
    found = window.page.evaluate(NOISE, ["moves", now, before])
    assert [one["isNew"] for one in found] == [False, False, is_new]


def test_a_difference_has_the_published_error_where_there_is_one(
    window: Window,
) -> None:
    older = board({"a": 1})
    newer = board({"a": 2}, 31, windows=[{"ms": 300_000, "ticks": 30, "sd": 12.5}])
    for one, other, sd in (
        (newer, older, 12.5),
        (newer, board({"a": 1}, 2), 2 * SD),
        (newer, board({"a": 1}, id="f" * 32), sqrt(2) * SD),
        (newer, board({"a": 1}) | {"sd": None}, None),
    ):
        found = window.page.evaluate(NOISE, ["differenceSd", one, other])
        assert found == (None if sd is None else pytest.approx(sd))


def test_an_hour_that_is_not_over_counts_from_its_beginning(window: Window) -> None:
    """The newest tick when the page was opened once began an interval of its own."""
    ten = 600_000
    one = {"id": "a", "start": 0, "sd": SD, "windows": []}
    points = [
        one | {"tick": t, "end": t * ten, "start": (t - 1) * ten, "value": t}
        for t in range(9)
    ]
    ask = """async ([points, finals, at]) => {
        const { rates } = await import("/page/ranges.js");
        return rates(points, finals, 3600e3, { id: "a", at }).map(({ from, end, value }) => [from, end, value]);
    }"""
    for final, expected in ((False, [[6, 8, 2]]), (True, [[6, 7, 1], [7, 8, 1]])):
        given = [
            [points[6], points[8]],
            [points[7] | {"final": final}],
            -7 * 86_400_000,
        ]
        found = [
            [a / ten, b / ten, value]
            for a, b, value in window.page.evaluate(ask, given)
        ]
        assert found == expected


def test_the_error_of_a_share_is_that_of_simulated_shares(window: Window) -> None:
    """2,000 runs: the standard deviation of an estimate of sd is 1.6 %; 6 of them are 10 %, so half and double are rejected."""
    true = [3_000, 2_000, 1_000, 500]
    total_sd = 3 * SD
    rng = random.Random(3)
    shares = []
    of_all = []
    for _ in range(2_000):
        noisy = [value + rng.gauss(0, SD) for value in true]
        shares.append(noisy[0] / sum(noisy))
        of_all.append(noisy[0] / (8_000 + rng.gauss(0, total_sd)))
    measured = pstdev(shares)
    measured_of_all = pstdev(of_all)
    items = [[f"i{i}", value] for i, value in enumerate(true)]
    found = window.page.evaluate(NOISE, ["share", true[0], items, SD])
    assert found["part"] == pytest.approx(3_000 / 6_500)
    assert found["half"] / 2 == pytest.approx(measured, rel=0.1)
    assert (
        window.page.evaluate(NOISE, ["share", 10, [["a", 10], ["b", -3]], SD]) is None
    )
    every = {"count": 8_000, "sd": total_sd}
    found = window.page.evaluate(NOISE, ["shareOfAll", true[0], SD, every])
    assert found["part"] == 3_000 / 8_000
    assert found["half"] / 2 == pytest.approx(measured_of_all, rel=0.1)


def test_equal_within_noise_looks_equal_and_the_band_is_seen_at_every_zoom(
    window: Window,
) -> None:
    with embedded("products") as topics:
        for tick in (1, 2, 3):
            first = 1_000_000 + 300_000 * tick
            tea = 5_010 + tick % 2
            items = [("first", first), ("tea", tea), ("cup", 5_000), ("last", 900)]
            topics.send(recent(tick, items, ticks=3, sd=4.0))
        with topics.served("products") as dashboard:
            page = window.open(f"{dashboard.url}?histogram=products&key=s1")
            window.counts("#chart .band", 1)
            ranks = page.evaluate(
                """[...document.querySelectorAll("tr.item .rank")].map((e) =>
                    e.classList.contains("tied") ? getComputedStyle(e, "::after").content : e.textContent)"""
            )
            assert ranks == ["1", '"2\u20133"', '"2\u20133"', "4"]
            second = page.locator("tr.item .rank").nth(1)
            assert "rank 2 to 3" in (second.get_attribute("aria-label") or "")
            assert page.locator("tr.item .change").all_inner_texts() == [""] * 4
            error = page.locator("tr.item .error").first.bounding_box()
            assert error is not None and error["width"] >= 6
            band, line = page.evaluate(
                """["band", "line"].map((name) => document.querySelector(`#chart .${name}`).getBBox()).map((b) => b.height)"""
            )
            assert band >= line + 7.5
            # Sixteen of nearly two millions: without help it would be far thinner than a pixel.
            assert page.inner_text("#reading").endswith(": 1,900,000 \u00b1 8")


def test_red_means_exact_data_and_nothing_else(window: Window) -> None:
    found = window.page.evaluate(COLOURS)
    assert len(found) > 20
    red = set()
    for name, *parts in found:
        r, g, b = (part / 255 for part in parts)
        most = max(r, g, b)
        least = min(r, g, b)
        if most - least < 0.25 or most != r:
            continue
        hue = 60 * ((g - b) / (most - least)) % 360
        if hue < 22 or hue > 330:
            red.add(name)
    assert red == {"--exact"}
