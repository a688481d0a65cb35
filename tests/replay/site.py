"""Settings for the tests of replay, in a directory of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import toml, unk
from workers.cli import execute
from workers.settings.settings import Settings, load

Patch = pytest.MonkeyPatch
Printed = pytest.CaptureFixture[str]
T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def settings_of(
    directory: Path,
    histograms: Sequence[Mapping[str, object]] | None = None,
    *,
    key: str = "key",
    keys: object = "public",
    user: str | None = None,
    grace: str = "0s",
) -> Settings:
    """Loaded settings with a key file beside them; `user` protects users."""
    of_user: dict[str, Any] = {} if user is None else {"max_items_per_user": 2}
    chosen = [unk(keys=keys, **of_user)] if histograms is None else histograms
    path = directory / "settings.toml"
    document: dict[str, Any] = {
        "worker": {"name": "w", "data_dir": "data", "key_file": "noise.key"},
        "kafka": {"bootstrap": "localhost:9092"},
        "events": {"topic": "t", "key": key, "items": "items", "grace": grace},
        "privacy": {"unit": "event" if user is None else "user"},
        "histogram": list(chosen),
    }
    if user is not None:
        document["events"]["user"] = user
    path.write_text(toml(document))
    noise = directory / "noise.key"
    if not noise.exists():
        noise.write_bytes(bytes(range(32)))
        noise.chmod(0o600)
    return load(path)


def run_replay(directory: Path, *options: object, source: Path | None = None) -> int:
    """Run `quietcount replay` on `directory`/in.jsonl, or another source; return the exit code."""
    config = directory / "settings.toml"
    path = source or directory / "in.jsonl"
    return execute(
        ["replay", "-c", str(config), "--input", str(path), *map(str, options)]
    )
