"""Mistakes in edited settings get a one-line answer, verbatim in docs/operations.md."""

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.deploy.messages import GUIDE
from tests.worker.harness import Site, known, now_ms, quietcount, sale, succeed, unk
from tests.worker.test_refusals import assert_refused
from workers.commands.explaining import HOLE, rows

pytestmark = pytest.mark.slow

# Messages as in docs/operations.md; `…` replaces what varies.
LEFT = (
    "histogram … is no longer in the settings, but its state exists: put it back to continue where it was, "
    "or end it for good: quietcount retire -c FILE …"
)
USED = (
    "histogram …: generation = …, but generation … was already used: set generation = …"
)
THERE = "histogram … is in the settings: take its [[histogram]] out first, for every worker of this name"
UNKNOWN = "histogram …: the state of worker … has no such histogram running; …"
RUNNING = (
    "workers of … are running (… of them): stop all first, and start all with the new settings after it (one that "
    "was killed counts for 10 s more)"
)
MISSING_KEY = (
    "…: no such key file, and the state of worker … was made with the key of fingerprint …: restore that file; "
    "a new key cannot continue the stream (quietcount key fingerprint FILE shows the fingerprint of a file)"
)
OTHER_KEY = (
    "…: the key file holds another key (fingerprint …) than the one this state was made with (fingerprint …): "
    "restore the old key file"
)


def said(output: str, message: str) -> str:
    """Return the only line that matches; docs/operations.md must contain the message."""
    table = rows("## Messages", GUIDE.read_text())
    documented = [cell for row in table for cell in re.findall(r"`([^`]+)`", row[0])]
    assert message in documented, f"not in docs/operations.md: {message}"
    shape = re.compile(".*".join(map(re.escape, message.split(HOLE))))
    lines = [line for line in output.splitlines() if shape.search(line)]
    assert len(lines) == 1, output
    return lines[0]


def refused(done: subprocess.CompletedProcess[str], message: str) -> str:
    assert_refused(done)
    return said(done.stderr, message)


@pytest.fixture(scope="module")
def site(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Two histograms with state. The tests below change the settings in turn and restore them."""
    directory = tmp_path_factory.mktemp("slips")
    site = Site(cluster, directory, [unk(), known()], partitions=2, owners=2)
    site.run_once()
    return site


@pytest.fixture
def without(site: Site) -> Iterator[Site]:
    both = site.document["histogram"]
    site.rewrite(histogram=both[:1])
    yield site
    site.rewrite(histogram=both)


def ends(site: Site) -> dict[str, list[int]]:
    """Return the number of records of every internal topic, by partition."""
    return {
        topic: [
            len([m for m in site.read(topic) if m.partition() == p]) for p in range(2)
        ]
        for topic in site.settings.internal_topics
    }


def test_a_histogram_that_left_the_settings_is_refused_before_any_write(
    without: Site,
) -> None:
    """Stage 1 must not continue without it until stage 2 of another worker notices."""
    before = ends(without)
    without.produce(0, [sale("b", now_ms())])
    assert "'known'" in refused(without.run_to_end(), LEFT)
    assert ends(without) == before
    shown = quietcount("topics", "-c", str(without.config))
    assert shown.returncode == 0 and "retire -c FILE known" in said(shown.stderr, LEFT)


def test_put_back_it_goes_on_where_it_was(site: Site) -> None:
    """Nothing was counted without it, and no tick is missing; the audit recomputes all of it."""
    site.run_once("c")
    site.assert_clean()
    # One id for each owner.
    assert len({s["id"] for s in site.snapshots() if s["histogram"] == "known"}) <= 2
    counted = {item.label for item in site.contributed()}
    assert counted >= {"a", "b", "c"}, "the event of the time without it too"


def test_retire_ends_only_what_nobody_counts_any_more(site: Site) -> None:
    """Retiring by mistake would end a published histogram and charge it again."""
    assert_refused(quietcount("retire", "-c", str(site.config), "known"), "'known'")
    refused(quietcount("retire", "-c", str(site.config), "known"), THERE)
    unknown = refused(quietcount("retire", "-c", str(site.config), "knwon"), UNKNOWN)
    assert unknown.endswith("it has items, known")
    with site.running() as worker:
        worker.at_work()
        one = {"histogram": site.document["histogram"][:1]}
        other = site.write(site.document | one, "without.toml")
        refused(quietcount("retire", "-c", str(other), "known"), RUNNING)


def test_a_key_that_is_missing_or_another_one_is_named_by_its_fingerprint(
    site: Site,
) -> None:
    """On a new machine, the operator must know which key file to copy."""
    key = site.directory / "key"
    elsewhere = site.directory / "elsewhere"
    own = succeed("key", "fingerprint", str(key))
    assert re.fullmatch("[0-9a-f]{32}\n", own)
    key.rename(elsewhere)
    assert own.strip() in refused(site.run_to_end(), MISSING_KEY)
    succeed("key", "new", str(key))
    other = succeed("key", "fingerprint", str(key)).strip()
    line = refused(site.run_to_end(), OTHER_KEY)
    assert line.index(other) < line.index(own.strip())
    elsewhere.replace(key)


def test_retired_it_stays_charged_and_its_generation_is_over(without: Site) -> None:
    """Retiring is final: the other histograms continue, and a new one of that name starts over."""
    retired = succeed("retire", "-c", str(without.config), "known")
    assert "generation 1 is over" in retired and "generation = 2" in retired
    # There is nothing more to end.
    assert quietcount("retire", "-c", str(without.config), "known").returncode == 2
    without.run_once("d")
    without.assert_clean()
    spent = json.loads(succeed("budget", "-c", str(without.config), "--json"))
    [one] = [h for h in spent["histograms"] if h["name"] == "known"]
    assert [(g["generation"], g["status"]) for g in one["generations"]] == [
        (1, "ended")
    ]
    assert {part["histogram"] for part in spent["total"]["parts"]} == {"items", "known"}
    again = without.write(without.document | {"histogram": [unk(), known()]})
    refused(quietcount("run", "-c", str(again)), USED)
