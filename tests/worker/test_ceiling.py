"""A worker with a ceiling ends before the epoch that would exceed it, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import Site, now_ms, sale, unk, until
from workers.cli import execute

pytestmark = pytest.mark.waits


def test_a_worker_ends_before_the_epoch_that_would_exceed_its_ceiling(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either histogram fits alone, both are too much. No epoch ends during the test."""
    privacy = {"unit": "user", "max_epsilon": 4.0, "max_delta": 1e-4, "period": "epoch"}
    users: dict[str, Any] = {"max_items": 1, "epsilon": 1.0, "max_items_per_user": 1}
    kinds: dict[str, Any] = {"events": {"user": "user"}, "privacy": privacy}
    site = Site(bootstrap, tmp_path, [unk(**users)], partitions=1, owners=1, **kinds)
    at = now_ms()
    site.produce(0, [sale(["a"], at, user="u") for _ in range(5)])
    site.run_until(at)
    before = site.snapshots()
    # Alone the other histogram fits; with the releases of this epoch it does not.
    site.rewrite(histogram=[unk("other", **(users | {"epsilon": 1.6}))])
    site.create_topics()
    assert execute(["retire", "-c", str(site.config), "items"]) == 0
    site.set("privacy", max_epsilon=_just_enough(site, capsys))
    with site.worker() as worker:
        site.produce(0, [sale(["a"], now_ms(), user="u")])
        assert worker.ended() == 2
        lines = worker.output().splitlines()
        said = [line for line in lines if "would bring one user to epsilon" in line]
    assert said and "No tick of it is published, and its contributions wait" in said[0]
    assert site.snapshots() == []
    capsys.readouterr()
    assert execute(["budget", "-c", str(site.config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [part["histogram"] for part in found["ceiling"]["parts"]] == ["items"]
    assert found["ceiling"]["max_epsilon"] == site.document["privacy"]["max_epsilon"]
    # With a higher ceiling the worker continues, with the events that came meanwhile.
    site.set("privacy", max_epsilon=30.0)
    with site.running() as worker:
        until(site.snapshots, "the histogram begins")
    site.assert_clean()
    assert before


def _just_enough(site: Site, capsys: pytest.CaptureFixture[str]) -> float:
    """Return the ceiling that the settings just reach, from the message about a lower one."""
    site.set("privacy", max_epsilon=0.5)
    capsys.readouterr()
    for command in ("plan", "topics", "run", "check"):
        assert execute([command, "-c", str(site.config)]) == 2
        [line] = capsys.readouterr().err.splitlines()[-1:]
        assert "these settings exceed it by themselves" in line and "would fit" in line
    return float(line.split("come to epsilon ")[1].split()[0]) * 1.0001
