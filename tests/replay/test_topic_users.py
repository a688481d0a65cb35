"""Users protected by a real worker: a replay of its topic gives the same bytes, and `budget` charges a user for every epoch."""

from __future__ import annotations

import json
import random
import time

import pytest
from aiokafka.partitioner import murmur2

from tests.replay.test_topic import published, replayed
from tests.worker.harness import Site, known, unk
from workers.cli import execute
from workers.mechanisms.accounting import compose, epsilon_of
from workers.mechanisms.registry import build

PARTITIONS = 2
USERS = [f"user-{i}" for i in range(300)]


@pytest.fixture(scope="module")
def worked(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site whose worker has published some epochs of events; each record's key is its user, some lie in the wrong partition."""
    site = Site(
        bootstrap,
        tmp_path_factory.mktemp("site"),
        [
            unk("seen", horizon=8, max_items_per_user=3, max_items=2, epsilon=30.0),
            known(
                "known",
                tick="3s",
                horizon=4,
                max_items_per_user=1,
                keys=["a", "b"],
                domain=["i1", "i2"],
            ),
        ],
        partitions=PARTITIONS,
        owners=2,
        events={"user": "$key", "grace": "1s"},
        privacy={"unit": "user"},
    )
    rng, last_ms = random.Random(7), time.time_ns() // 1_000_000 - 15_000
    for i in range(3_000):
        user = rng.choice(USERS)
        place = (murmur2(user.encode()) & 0x7FFFFFFF) % PARTITIONS
        items = rng.sample([f"i{n}" for n in range(12)], k=rng.randrange(4))
        at = last_ms - 30_000 + 10 * i - rng.choice((0, 0, 4_000))
        wrong = i % 100 == 0
        site.produce(
            (place + wrong) % PARTITIONS,
            [{"key": rng.choice("abc"), "items": items, "ts": at}],
            key=user.encode(),
            flush=i == 2_999,
        )
    with site.worker() as worker:
        site.wait_published(last_ms)
        assert worker.stop() == 0
    return site


def test_a_replay_bounds_users_as_the_worker_did(worked: Site) -> None:
    """What a user may still add goes on from batch to batch and from tick to tick, and begins anew with each epoch."""
    found, summary = replayed(worked)
    wanted = published(worked)
    assert (
        summary.late > 100 and summary.rejects["user's records belong in another partition"] == 30
    )
    assert (
        len({json.loads(value)["id"] for value in found.values() if json.loads(value)["items"]}) > 6
    )
    assert [at for at, value in found.items() if wanted.get(at) != value] == []
    last = {
        histogram: max(end for name, _, end, _ in found if name == histogram)
        for histogram, *_ in found
    }
    assert {at for at in wanted if at[2] <= last[at[0]]} == set(
        found
    )  # later ones were closed by the clock


def test_budget_charges_a_user_for_every_epoch(
    worked: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user may have come in all of them; a total for one epoch would be a promise about somebody who came once."""
    capsys.readouterr()
    assert execute(["budget", "-c", str(worked.config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    epochs = {
        name: {s["epoch"] for s in worked.snapshots() if s["histogram"] == name}
        for name in ("seen", "known")
    }
    assert all(len(own) > 2 for own in epochs.values())
    stated = {
        h["name"]: {e["epoch"] for e in h["generations"][0]["epochs"]} for h in found["histograms"]
    }
    assert stated == epochs
    costs = [build(c, "user").cost() for c in worked.settings.histograms for _ in epochs[c.name]]
    total, delta = (
        compose(costs),
        sum(c.delta * len(epochs[c.name]) for c in worked.settings.histograms),
    )
    assert found["total"]["unit"] == "user" and found["total"]["key"] is None
    assert found["total"]["delta"] == pytest.approx(delta, rel=1e-12)
    assert found["total"]["rho"] == pytest.approx(total.rho, rel=1e-12)
    summed = found["total"]["epsilon_of_the_sum"]
    assert found["total"]["epsilon"] == pytest.approx(
        min(summed, epsilon_of(total.rho, delta - total.delta)), rel=1e-6
    )
