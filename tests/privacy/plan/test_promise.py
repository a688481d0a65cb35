"""The page that is signed: a fingerprint of what the promise depends on, and what changes alter."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests import ROOT
from tests.settings.test_settings import GOOD, changed, loaded
from workers.cli import execute
from workers.kafka.topics import plan_topics
from workers.privacy.ceiling import check_ceiling
from workers.privacy.plan.make import make_plan
from workers.privacy.promise import changes, fingerprint, promise_settings
from workers.replay.report.promise import PAGE, kept, seen_by, write_promise
from workers.settings.settings import load

# Changing this value changes what people have signed: do it only on purpose, with a line in CHANGELOG.md.
ORDERS = "e0d354b68b25a6b2575f7f025eca75221b7a8e7d8c8cc9218868c4cc85127dbd"

SAME = {
    "where it runs": changed("localhost:9092", "elsewhere:9093"),
    "a comment and a default": "# mine\n" + GOOD + "max_count = 1\n",
    "a window": GOOD + 'windows = ["1m"]\n',
    "the order of stream keys": changed('["s1", "s2"]', '["s2", "s1"]'),
}
OTHER = {
    "epsilon": changed("epsilon = 1.0", "epsilon = 1.1"),
    "delta": changed("1e-9", "2e-9"),
    "items": changed('items = "products"', 'items = "goods"'),
    "bound": changed("max_items = 3", "max_items = 2"),
    "keys": changed('["s1", "s2"]', '["s1", "s2", "s3"]'),
    "tick": changed('tick = "10s"', 'tick = "20s"'),
    "condition": GOOD + 'where = [{ field = "type", in = ["buy"] }]\n',
    "ceiling": GOOD + "[privacy]\nmax_epsilon = 3.0\nmax_delta = 1e-6\n",
    "generation": GOOD + "generation = 2\n",
}


def test_a_fingerprint_is_that_of_what_is_promised_and_of_nothing_else(
    tmp_path: Path,
) -> None:
    own = fingerprint(loaded(tmp_path, GOOD))
    for text in SAME.values():
        assert fingerprint(loaded(tmp_path, text)) == own
    others = [fingerprint(loaded(tmp_path, text)) for text in OTHER.values()]
    assert len({own, *others}) == 1 + len(OTHER)


def test_windows_without_epochs_are_what_is_promised(tmp_path: Path) -> None:
    """With epochs they only describe changes of what is published anyway."""
    never = changed("horizon = 8640", 'horizon = "never"')
    own = loaded(tmp_path, never + 'windows = ["1m"]\n')
    other = loaded(tmp_path, never + 'windows = ["1m", "1h"]\n')
    hops = loaded(tmp_path, never + 'windows = ["1m"]\nhop = 2\n')
    assert len(set(map(fingerprint, (own, other, hops)))) == 3
    [change] = changes(own, other)
    assert change.setting == "histogram products: windows"
    assert change.alters == "refused under the same generation"


def test_a_fingerprint_is_the_same_on_every_machine() -> None:
    assert fingerprint(load(ROOT / "examples" / "orders" / "orders.toml")) == ORDERS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            OTHER["epsilon"],
            {"histogram products: epsilon": "refused under the same generation"},
        ),
        (OTHER["keys"], {"histogram products: keys": "the added names are counted"}),
        (
            changed("epsilon = 1.0", "epsilon = 2.0\ngeneration = 2"),
            {
                "histogram products: epsilon": "holds from the new generation on",
                "histogram products: generation": "begins again from zero, and is charged beside",
            },
        ),
        (
            changed('"products"\nmechanism', '"goods"\nmechanism'),
            {
                "histogram products": "quietcount retire",
                "histogram goods": "adds its price",
            },
        ),
        (OTHER["items"], {"events: items": "the worker asks for new generations"}),
        (
            OTHER["ceiling"],
            {
                "privacy: max_epsilon": "limits what is published",
                "privacy: max_delta": "limits what is published",
            },
        ),
        (SAME["a window"], {}),
    ],
)
def test_what_a_change_alters_is_said(
    tmp_path: Path, text: str, found: dict[str, str]
) -> None:
    old = loaded(tmp_path, GOOD)
    new = loaded(tmp_path, text)
    altered = {one.setting: one.alters for one in changes(old, new)}
    assert altered.keys() == found.keys()
    assert all(part in altered[setting] for setting, part in found.items())


def test_every_setting_of_a_section_is_covered_or_left_out_on_purpose(
    tmp_path: Path,
) -> None:
    """A new setting counts unless somebody decides that the promise does not depend on it."""
    settings = loaded(tmp_path, GOOD)
    covered = promise_settings(settings)
    left_out = set(settings.events.__struct_fields__) - {"where_", *covered["events"]}
    times = {"grace_ms", "max_ahead_ms", "max_behind_ms", "max_bytes", "format"}
    assert left_out == times | {"user", "partitioner"}
    assert covered["privacy"].keys() == set(settings.privacy.__struct_encode_fields__)


def test_every_topic_of_the_worker_is_for_anyone_or_for_the_operator(
    tmp_path: Path,
) -> None:
    """The budget, which is for everybody, was once on the page as exact."""
    signed = changed('name = "orders"', 'name = "orders"\nsigning_key_file = "s.key"')
    settings = loaded(tmp_path, signed)
    (_, anyone), (_, operator), _ = seen_by(settings)
    public = {*settings.output_topics, "orders.budget", "orders.signatures"}
    inner = {*settings.internal_topics, "orders"}
    words = {who: set(re.findall(r"orders[.\w-]*", who)) for who in (anyone, operator)}
    assert words == {anyone: public, operator: inner}
    plan = plan_topics(
        "orders",
        ("orders",),
        None,
        None,
        settings.output_topics,
        {},
        signatures="orders.signatures",
    )
    assert {topic.name for topic in plan} == public | inner


def test_the_page_says_how_long_things_are_kept_and_whether_they_are_signed(
    tmp_path: Path,
) -> None:
    plain = dict(kept(loaded(tmp_path, GOOD)))
    assert "not signed" in plain["the snapshots"]
    assert plain["exact sums"] == "for ever; by label and tick, without users"
    assert "digests of users" not in plain
    of_worker = 'signing_key_file = "s.key"\nkeep_contributions = "30d"'
    text = changed('name = "orders"', f'name = "orders"\n{of_worker}').replace(
        "max_items = 3", "max_items = 3\nmax_items_per_user = 3"
    )
    of_users = text.replace(
        "[events]", '[privacy]\nunit = "user"\nrekey = true\n\n[events]\nuser = "id"'
    )
    settings = loaded(tmp_path, of_users)
    found = dict(kept(settings))
    assert "; signed" in found["the snapshots"]
    assert found["exact sums"].startswith("gone at most ____")
    assert found["digests of users"].startswith("gone at most ____")
    assert "by user is made for 7 days" in found["events, rejects"]
    assert "older than 30d" in found["audited"]
    start = 'horizon = "unbounded"\nstart = 2026-11-21T00:00:00Z'
    endless = loaded(tmp_path, of_users.replace("horizon = 8640", start))
    assert dict(kept(endless))["digests of users"].startswith("for ever")


@pytest.mark.waits
def test_the_page_is_one_sheet_without_scripts(chrome: Browser, tmp_path: Path) -> None:
    small = GOOD.replace("8640", "16")
    one = small[small.index("[[histogram]]") :]
    three = small + "".join(one.replace('"products"', f'"more-{i}"') for i in range(2))
    old = loaded(tmp_path, small)
    new = loaded(tmp_path, three + "[privacy]\nmax_epsilon = 9.0\nmax_delta = 1e-6\n")
    plan = make_plan(new)
    file = tmp_path / PAGE
    write_promise(tmp_path, new, plan, check_ceiling(new), old)
    text = file.read_text(encoding="utf-8")
    assert "<script" not in text and str(tmp_path) not in text
    page = chrome.new_page()
    page.goto(file.as_uri())
    printed = page.pdf(prefer_css_page_size=True)
    shown = page.inner_text("body")
    page.close()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    for words in (
        "What is not promised",
        "Who may see what",
        "adds its price to the total",
    ):
        assert words in shown
    assert fingerprint(new) in shown and fingerprint(old) in shown
    write_promise(tmp_path, new, plan, check_ceiling(new), None)
    assert "nothing is compared" in file.read_text(encoding="utf-8")


def test_the_page_of_a_histogram_without_epochs_says_that_it_is_charged_once(
    tmp_path: Path,
) -> None:
    own = loaded(
        tmp_path, changed("horizon = 8640", 'horizon = "never"\nwindows = ["1m", "1h"]')
    )
    write_promise(tmp_path, own, make_plan(own), None, None)
    page = " ".join((tmp_path / PAGE).read_text(encoding="utf-8").split())
    for words in (
        "Charged once, ever.",
        "event, ever, in all histograms together",
        "Whoever keeps all snapshots of all windows for ever and knows all else",
        "none: the last 1m, 1h; ticks of 10s",
        "orders.products.1m, orders.products.1h (each stream key, each tick of 10s)",
        "without epochs their events add up over all time",
        "chooses events by which labels appear and leave",
        "events in all, ever",
    ):
        assert words in page, words
    assert "snapshots of an epoch" not in page and "running counts" not in page


def test_earlier_settings_go_with_a_report() -> None:
    assert execute(["plan", "-c", "new.toml", "--since", "old.toml"]) == 2
