"""How many different users an epoch had, in all and for each item, as docs/mechanisms.md says."""

import json
import random
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.replay.site import T0, run_replay, settings_of
from tests.worker.harness import unk

MECHANISMS = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
RECIPE = re.compile(
    r"^### Unique users of an epoch$.*?^```toml$(.*?)^```$", re.MULTILINE | re.DOTALL
)


def recipe() -> dict[str, Any]:
    """Return the settings of the histogram of all users, as the document has them."""
    found = RECIPE.search(MECHANISMS)
    assert found is not None
    return tomllib.loads(found[1])


@pytest.mark.slow
def test_different_users_of_an_epoch_are_counted_once_each(tmp_path: Path) -> None:
    """Users come several times, to several stream keys, and most of them with several items."""
    rng = random.Random(1)
    common: dict[str, Any] = {"horizon": 60, "epsilon": 20.0}
    all_users = unk("all_users", **common | recipe())
    del all_users["keys"]
    each = unk("each", **common, max_items=2, max_items_per_user=8, keys=["a", "b"])
    settings_of(tmp_path, [all_users, each], user="who")
    users = defaultdict[tuple[str, str], set[str]](set)
    events = list[dict[str, Any]]()
    for i in range(6_000):
        key = rng.choice("ab")
        who = f"u{rng.randrange(2_000)}"
        items = rng.sample(["tea", "cup", "pot", "milk"], 2)
        events.append({"key": key, "items": items, "who": who, "ts": T0 + 9 * i})
        for label in items:
            users[key, label].add(who)
    text = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "in.jsonl").write_text(text)
    out = tmp_path / "out.jsonl"
    assert run_replay(tmp_path, "--snapshots", out) == 0
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for body in map(json.loads, out.read_text().splitlines()):
        last[body["histogram"], body["key"]] = body
    everybody = len({event["who"] for event in events})
    total = last["all_users", "all"]["all_items"]
    assert abs(total["count"] - everybody) < 5 * total["sd"] < everybody / 20
    compared = 0
    for key in "ab":
        body = last["each", key]
        for label, n in body["items"]:
            assert abs(n - len(users[key, label])) < 5 * body["sd"]
            compared += 1
        assert sum(n for _, n in body["items"]) > 1.5 * everybody
    assert compared == 8
