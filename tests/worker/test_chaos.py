"""Killed workers, on a real broker; the long version is `python -m tests.worker.chaos`."""

from __future__ import annotations

from pathlib import Path

from tests.worker.chaos import chaos


def test_after_kills_at_random_moments_every_event_counts_once_and_every_tick_is_published_once(
    bootstrap: str, tmp_path: Path
) -> None:
    """An event counted twice breaks the guarantee; a tick published twice with other data gives the data away."""
    figures = chaos(bootstrap, tmp_path, events=40_000, kills=3, seed=7, gap_s=(3.0, 9.0))
    assert figures["kills"] == 3
    assert figures["snapshots"] > 500
