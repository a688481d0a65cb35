"""`quietcount budget` matches the snapshots; a worker stops before exceeding its ceiling."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.costs import summed
from tests.worker.harness import Bare, Site, known, now_ms, sale, unk, until
from workers.cli import execute
from workers.client import budget as budget_for_readers
from workers.mechanisms.accounting import epsilon_of
from workers.mechanisms.registry import build

pytestmark = pytest.mark.slow


class Command:
    """Commands in this process, since starting Python takes longer than the work."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(
        self, config: Path, *options: str, name: str = "budget"
    ) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = execute([name, "-c", str(config), *options])
        return status, *self._capsys.readouterr()

    def json(self, site: Site) -> dict[str, Any]:
        status, out, err = self(site.config, "--json")
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def burst(site: Site) -> None:
    at = now_ms()
    site.burst(101, lambda i: sale(["a", f"secret-{i % 7}"], at, f"k{i % 4}"))
    # a busy broker may have taken longer than a tick
    site.wait_published(now_ms())


def test_budget_states_what_snapshots_carry_and_keeps_older_generations(
    cluster: str, tmp_path: Path, command: Command
) -> None:
    """What left the settings was still published: its price must not vanish."""
    histograms = [unk(horizon=3), known(epsilon=2.0), unk("gone", epsilon=1.0)]
    site = Site(cluster, tmp_path, histograms, partitions=2)
    nothing = command.json(site)
    assert (nothing["state"], nothing["histograms"], nothing["total"]) == (
        "empty",
        [],
        None,
    )
    assert nothing["not_begun"] == ["items", "known", "gone"]
    with site.running():
        burst(site)
        running = command.json(site)  # a live topic has an end for it all the same
        assert {one["name"] for one in running["histograms"]} == {
            "items",
            "known",
            "gone",
        }
    published = site.snapshots()
    status, text, _ = command(site.config)
    assert (
        status == 0
        and "generation 1: unk_base, running" in text
        and "secret-" not in text
    )
    assert max(map(len, text.splitlines())) <= 100
    assert_equal_to_snapshots(command.json(site), published)
    # One for each owner's first tick.
    assert len({s["id"] for s in published if s["histogram"] == "known"}) in (1, 2)

    site.rewrite(
        histogram=[unk(horizon=3, epsilon=5.0, generation=2), known(epsilon=2.0)]
    )
    before = command.json(site)
    states = {
        (h["name"], g["status"]) for h in before["histograms"] for g in h["generations"]
    }
    assert states == {("items", "left out"), ("known", "running"), ("gone", "left out")}
    assert before["not_begun"] == ["items"]
    assert execute(["retire", "-c", str(site.config), "gone"]) == 0
    with site.running():
        burst(site)
    found = command.json(site)
    gone = [s for s in published if s["histogram"] == "gone"]
    assert_equal_to_snapshots(found, site.snapshots() + gone)
    assert [
        (h["name"], [(g["generation"], g["status"]) for g in h["generations"]])
        for h in found["histograms"]
    ] == [
        ("items", [(1, "ended"), (2, "running")]),
        ("known", [(1, "running")]),
        ("gone", [(1, "ended")]),
    ]
    assert found["not_begun"] == []
    # Before the change one event counted in all three: the largest sum there was.
    costs = [build(config).cost() for config in site.settings.histograms]
    parts = {part["histogram"]: part["generation"] for part in found["total"]["parts"]}
    assert parts == {"items": 1, "known": 1, "gone": 1}
    assert found["total"]["delta"] == 3e-6
    assert found["total"]["epsilon"] > epsilon_of(summed(costs)[0], 1e-6)


def assert_equal_to_snapshots(
    found: dict[str, Any], snapshots: list[dict[str, Any]]
) -> None:
    stated = {
        (h["name"], mechanism_id): (g, e)
        for h in found["histograms"]
        for g in h["generations"]
        for e in g["epochs"]
        for mechanism_id in e["ids"]
    }
    seen = {(s["histogram"], s["id"]) for s in snapshots}
    # With public keys a new generation releases ticks before it has met a key: they are charged,
    # but not visible.
    assert seen <= set(stated)
    assert {name for name, _ in seen} == {name for name, _ in stated}
    for name, mechanism_id in seen:
        generation, epoch = stated[name, mechanism_id]
        own = [
            s for s in snapshots if (s["histogram"], s["id"]) == (name, mechanism_id)
        ]
        assert {s["epoch"] for s in own} == {epoch["epoch"]}
        assert epoch["first_tick"] <= min(s["tick"] for s in own)
        assert epoch["last_tick"] >= max(s["tick"] for s in own)
        promise = {key: generation[key] for key in ("unit", "rho", "epsilon", "delta")}
        assert all(s["guarantee"] == promise for s in own)
    for histogram in found["histograms"]:
        own = [s for s in snapshots if s["histogram"] == histogram["name"]]
        generations = histogram["generations"]
        assert max(s["end"] for s in own) == max(g["published_to"] for g in generations)
        assert min(s["start"] for s in own) >= min(
            g["published_from"] for g in generations
        )


def test_budget_of_a_worker_that_never_ran_and_of_a_broker_that_is_away_is_one_clear_line(
    cluster: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero because nothing was spent must not look like a missing answer."""
    site = Site(cluster, tmp_path, [unk()], create=False)
    status, out, _ = command(site.config)
    assert (
        status == 0
        and "never run here" in out
        and site.settings.release_state_topic in out
    )
    assert command.json(site)["state"] == "missing"
    monkeypatch.setattr("workers.kafka.topics._ANSWER_S", 1.0)
    site.document["kafka"]["bootstrap"] = "127.0.0.1:1"
    status, out, err = command(site.write(site.document))
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert "127.0.0.1:1" in line


NEVER: dict[str, Any] = {
    "horizon": "never",
    "windows": ["20h", "24h"],
    "user_period": "20h",
    "unique_users": True,
}


@pytest.mark.parametrize("further", [{}, NEVER], ids=["epochs", "unique users"])
def test_a_worker_ends_before_the_epoch_that_would_exceed_its_ceiling(
    cluster: str, tmp_path: Path, command: Command, further: dict[str, Any]
) -> None:
    """Either histogram fits alone, both are too much. No epoch ends during the test."""
    privacy = {"unit": "user", "max_epsilon": 4.0, "max_delta": 1e-4, "period": "epoch"}
    users: dict[str, Any] = {"max_items": 1, "epsilon": 1.0, "max_items_per_user": 1}
    users |= further
    if further:
        started = datetime.fromtimestamp(now_ms() // 1_000 - 3_600, UTC)
        users["start"] = Bare(started.isoformat())
    site = Site(
        cluster,
        tmp_path,
        [unk(**users)],
        partitions=1,
        owners=1,
        events={"user": "user"},
        privacy=privacy,
    )
    at = now_ms()
    site.produce(0, [sale(["a"], at, user="u") for _ in range(5)])
    site.run_until(at)
    before = site.snapshots()
    told = budget_for_readers(site.config)
    assert told is not None and told.ceiling is not None
    assert told.sentence().startswith("This board may run without end: it never ")
    assert [(one.histogram, one.epochs) for one in told.histograms] == [("items", 1)]
    # Alone the other histogram fits; with the releases of this epoch it does not.
    site.rewrite(histogram=[unk("other", **(users | {"epsilon": 1.6}))])
    site.create_topics()
    assert execute(["retire", "-c", str(site.config), "items"]) == 0
    site.set("privacy", max_epsilon=just_enough(site, command))
    with site.worker() as worker:
        site.produce(0, [sale(["a"], now_ms(), user="u")])
        assert worker.ended() == 2
        lines = worker.output().splitlines()
        said = [line for line in lines if "would bring one user to epsilon" in line]
    assert said and "No tick of it is published, and its contributions wait" in said[0]
    assert site.snapshots() == []
    found = command.json(site)
    assert [part["histogram"] for part in found["ceiling"]["parts"]] == ["items"]
    assert found["ceiling"]["max_epsilon"] == site.document["privacy"]["max_epsilon"]
    # Readers were told before it ended, though nothing more was published.
    told = budget_for_readers(site.config)
    assert told is not None and told.total is not None and told.ceiling is not None
    assert told.total.epsilon == found["total"]["epsilon"]
    assert told.ceiling.epsilon == found["ceiling"]["epsilon"]
    assert told.ceiling.until == found["ceiling"]["outlook"]["until"]
    assert told.sentence().startswith(
        "This board has ended: it has told as much about one user"
    )
    # With a higher ceiling the worker continues, with the events that came meanwhile.
    site.set("privacy", max_epsilon=30.0)
    with site.running() as worker:
        until(site.snapshots, "the histogram begins")
    site.assert_clean()
    assert before


def just_enough(site: Site, command: Command) -> float:
    """Return the ceiling that the settings just reach, from the message about a lower one."""
    site.set("privacy", max_epsilon=0.5)
    for name in ("plan", "topics", "run", "check"):
        status, _, err = command(site.config, name=name)
        [line] = err.splitlines()[-1:]
        assert status == 2
        assert "these settings exceed it by themselves" in line and "would fit" in line
    return float(line.split("come to epsilon ")[1].split()[0]) * 1.0001
