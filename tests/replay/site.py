"""What tests of replay share: settings in a directory of their own, and what was published and replayed."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import Site, toml, unk
from workers.agents.topics import connection_of, inspect_topics
from workers.cli import execute
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.snapshots import Snapshot
from workers.replay.offline import Summary, fresh_histograms, replay
from workers.replay.sources_topic import open_topic
from workers.settings.settings import Settings, load

Patch = pytest.MonkeyPatch
Printed = pytest.CaptureFixture[str]
T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
#: Of a snapshot: histogram, stream key, end and page.
Place = tuple[str, str, int, int]


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


def place(value: bytes) -> Place:
    s = json.loads(value)
    return s["histogram"], s["key"], s["end"], s["page"]


def replayed(
    site: Site, *, since_ms: int | None = None, until_ms: int | None = None
) -> tuple[dict[Place, bytes], Summary]:
    """Every snapshot of a replay with production's mechanism ids: what the command line does not offer."""
    settings = site.settings
    topics = inspect_topics(settings, connection_of(settings))
    names = (settings.contributions_topic, settings.release_state_topic)
    found: dict[Place, bytes] = {}

    def write(snapshot: Snapshot) -> None:
        at = place(snapshot.value)
        assert at not in found
        found[at] = snapshot.value

    key = NoiseKey((site.directory / "key").read_bytes())
    stream = topics.stream(*names)
    with open_topic(settings, since_ms, until_ms) as source:
        histograms = fresh_histograms(settings, key, stream)
        summary = replay(settings, key, source, write, histograms=histograms)
    return found, summary


def published(site: Site) -> dict[Place, bytes]:
    settings = site.settings
    values = [
        message.value() or b""
        for topic in settings.output_topics
        for message in site.read(topic)
    ]
    return {place(value): value for value in values}


def assert_equal_so_far(found: dict[Place, bytes], wanted: dict[Place, bytes]) -> None:
    """Check snapshots up to the last replayed tick; later ones were closed by the clock."""
    assert [at for at, value in found.items() if wanted.get(at) != value] == []
    last: dict[str, int] = {}
    for name, _, end, _ in found:
        last[name] = max(end, last.get(name, end))
    assert {at for at in wanted if at[2] <= last[at[0]]} == set(found)


def assert_as_replayed(site: Site, series: Collection[str]) -> None:
    """What was published of these series, and of no others, is what a replay of the events gives."""
    found = published(site)
    wanted, _ = replayed(site)
    assert {name for name, *_ in found} == set(series)
    assert_equal_so_far(wanted, found)
