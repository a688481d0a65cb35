"""`quietcount plan` against `quietcount replay` snapshots for every example, run as commands."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import msgspec
import pytest

from tests import ROOT
from tests.numbers import number_in
from tests.privacy.plan.test_command import planned as printed
from workers.cli import execute
from workers.events.reader import EARLIEST_MS
from workers.settings.settings import Settings, load

EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))
TICKS = 3


def events(settings: Settings) -> list[dict[str, object]]:
    """Return six events a tick under the configured field names, of several users at user level."""
    names = settings.events
    assert names.timestamp is not None
    found = []
    epochs = [config.tick_ms * (config.horizon_ticks or 1) for config in settings.histograms]
    for config in settings.histograms:
        # Without a start: the first time after 2000 at which every histogram begins an epoch.
        start = -(-EARLIEST_MS // math.lcm(*epochs)) * math.lcm(*epochs)
        if config.start is not None:
            start = round(config.start.timestamp() * 1000)
        for i in range(6 * TICKS):
            event: dict[str, object] = {
                names.timestamp: start + i * config.tick_ms // 6,
                str(names.items): [f"p{i % 4}", "p1"],
            }
            if config.buckets is not None:
                event[str(names.items)] = number_in(config.buckets, i % len(config.buckets.labels))
            if not names.key.startswith("$"):
                event[names.key] = config.keys[i % 2] if isinstance(config.keys, tuple) else "s1"
            if names.user is not None:
                event[names.user] = f"u{i % 5}"
            found.append(event)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_plan_of_an_example_prints_the_guarantee_that_its_snapshots_carry(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the last digit, in text and JSON; all snapshots of an example agree."""
    own = tmp_path / "settings.toml"
    shutil.copy(path, own)
    settings = load(own)
    key = tmp_path / settings.worker.key_file
    key.parent.mkdir(exist_ok=True)
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    given, out = tmp_path / "events.jsonl", tmp_path / "snapshots.jsonl"
    given.write_text("".join(json.dumps(event) + "\n" for event in events(settings)))
    text, plan = printed(own, capsys)
    planned = {one.name: msgspec.to_builtins(one.guarantee) for one in plan.histograms}
    for one in plan.histograms:
        spent = sum(share.delta for share in one.deltas)
        assert spent == pytest.approx(one.guarantee.delta, rel=1e-12)
        assert f"{one.name}: {one.mechanism}" in text
        for sentence in one.advice:
            assert sentence.split()[0] in text
    assert execute(["replay", "-c", str(own), "--input", str(given), "--snapshots", str(out)]) == 0
    snapshots = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {body["histogram"] for body in snapshots} == set(planned)
    assert {body["tick"] for body in snapshots} >= set(range(1, TICKS + 1))
    for body in snapshots:
        promise = body["guarantee"]
        assert promise == planned[body["histogram"]]
        epsilon, delta, rho = promise["epsilon"], promise["delta"], promise["rho"]
        assert f"epsilon {epsilon!r}, delta {delta!r}, rho {rho!r}" in text
