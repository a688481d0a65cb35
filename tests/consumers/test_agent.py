"""The Faust agent, run as Faust runs it, names leaders that are leaders."""

import json
from pathlib import Path

import pytest

from tests.consumers.scene import PLANTED, Scene

pytestmark = pytest.mark.waits


def expected(scene: Scene) -> dict[str, list[str]]:
    """For each stream key the lines that its snapshots call for, from the topic alone."""
    lines: dict[str, list[str]] = {"s1": [], "s2": []}
    series: dict[str, tuple[str, str | None]] = {}
    for snapshot in scene.whole("items").values():
        key = snapshot["key"]
        begun = series.get(key, (snapshot["id"], None))
        if begun[0] != snapshot["id"]:
            lines[key].append(f"items / {key}: series {snapshot['id']} begins")
            begun = (snapshot["id"], None)
        counts = snapshot["items"]
        ahead = begun[1]
        if (
            len(counts) > 1
            and (counts[0][1] - counts[1][1]) ** 2 > 8 * snapshot["sd"] ** 2
        ):
            ahead = counts[0][0]
        if ahead != begun[1]:
            lines[key].append(
                f"items / {key}: {ahead} leads at tick {snapshot['tick']}"
            )
        series[key] = (snapshot["id"], ahead)
    return lines


def test_leaders_are_told_by_series_from_committed_records(
    scene: Scene, tmp_path: Path
) -> None:
    lines = expected(scene)
    for of_key in lines.values():
        assert "tea leads" in str(of_key) and "begins" in str(of_key)
    copy = scene.new_topic(partitions=2)
    records = scene.records["items"]
    copy.send(records[:20])
    changes = {"items": [["Forged", 10**6], ["tea", 1]], "id": "f" * 32}
    copy.forge(json.loads(records[0].value() or b"") | changes, commit=False)
    copy.send([*records[20:], *records[-2:]])
    with scene.agent(tmp_path, copy.name, "error") as program:
        for of_key in lines.values():
            program.wait_for(of_key[-1], of_key.count(of_key[-1]))
        program.stop()
        printed = program.output().splitlines()
    for key, of_key in lines.items():
        assert [
            line for line in printed if line.startswith(f"items / {key}:")
        ] == of_key
    assert PLANTED not in program.output() and "Forged" not in program.output()
