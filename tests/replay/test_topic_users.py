"""Users protected by a real worker: a replay of its topic gives the same bytes, and `budget` charges a user for every epoch."""

import json
import random
import time
from collections import defaultdict

import pytest
from aiokafka.partitioner import murmur2

from tests.costs import summed
from tests.replay.site import Printed, assert_equal_so_far, published, replayed
from tests.worker.harness import Site, known, unk
from workers.cli import execute
from workers.mechanisms.accounting import epsilon_of
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
                max_items_per_user=1,
                tick="3s",
                horizon=4,
                keys=["a", "b"],
                domain=["i1", "i2"],
            ),
        ],
        partitions=PARTITIONS,
        owners=2,
        events={"user": "$key", "grace": "1s"},
        privacy={"unit": "user"},
    )
    rng = random.Random(7)
    last_ms = time.time_ns() // 1_000_000 - 15_000
    for i in range(3_000):
        user = rng.choice(USERS)
        place = (murmur2(user.encode()) & 0x7FFFFFFF) % PARTITIONS
        items = rng.sample([f"i{n}" for n in range(12)], k=rng.randrange(4))
        at = last_ms - 30_000 + 10 * i - rng.choice((0, 0, 4_000))
        wrong = i % 100 == 0
        event = {"key": rng.choice("abc"), "items": items, "ts": at}
        partition = (place + wrong) % PARTITIONS
        last = i == 2_999
        site.produce(partition, [event], key=user.encode(), flush=last)
    with site.worker() as worker:
        site.wait_published(last_ms)
        assert worker.stop() == 0
    return site


def test_a_replay_bounds_users_as_the_worker_did(worked: Site) -> None:
    found, summary = replayed(worked)
    wanted = published(worked)
    assert summary.late > 100
    assert summary.rejects["user's records belong in another partition"] == 30
    snapshots = map(json.loads, found.values())
    assert len({snapshot["id"] for snapshot in snapshots if snapshot["items"]}) > 6
    assert_equal_so_far(found, wanted)


def test_budget_charges_a_user_for_every_epoch(worked: Site, capsys: Printed) -> None:
    capsys.readouterr()
    assert execute(["budget", "-c", str(worked.config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    epochs: dict[str, set[int]] = defaultdict(set)
    for snapshot in worked.snapshots():
        epochs[snapshot["histogram"]].add(snapshot["epoch"])
    assert all(len(own) > 2 for own in epochs.values())
    stated = {
        one["name"]: one["generations"][0]["epochs"] for one in found["histograms"]
    }
    assert {name: {e["epoch"] for e in own} for name, own in stated.items()} == epochs
    configs = worked.settings.histograms
    total = found["total"]
    costs = [build(c, "user").cost() for c in configs for _ in epochs[c.name]]
    rho, failures = summed(costs)
    delta = sum(c.delta * len(epochs[c.name]) for c in configs)
    assert total["unit"] == "user" and total["key"] is None
    assert total["delta"] == pytest.approx(delta, rel=1e-12)
    assert total["rho"] == pytest.approx(rho, rel=1e-12)
    assert all(cost.gaussian for cost in costs)
    exact = epsilon_of(rho, delta - failures, gaussian=True)
    least = min(total["epsilon_of_the_sum"], exact)
    assert total["epsilon"] == pytest.approx(least, rel=1e-6)
