"""A broker that is killed or late, beside workers that are ended."""

from pathlib import Path

import pytest

from tests.broker import BRIEF
from tests.chaos.rounds import BRIEFLY, cluster
from tests.chaos.schedule import Act, Round, Segment, Start
from tests.chaos.steps import BROKER
from tests.chaos.test_chaos import SESSION_S, run
from tests.chaos.worker import Workers
from tests.kafka.late_end_txn import FATES, Faults
from tests.kafka.proxy import Api, Fate, proxied_broker

pytestmark = pytest.mark.waits

# Every fifth commit is requested twice, and most duplicates arrive again in the middle of a later
# transaction.
LATE = {
    Api.END_TXN: {Fate.HOLD: 0.2, Fate.LOSE: 0.04},
    Api.PRODUCE: FATES[Api.PRODUCE],
    Api.ADD_PARTITIONS: FATES[Api.ADD_PARTITIONS],
}


@pytest.mark.usefixtures("own_kafka")
def test_no_tick_is_torn_where_the_network_delivers_commits_late(
    workers: Workers, tmp_path: Path
) -> None:
    """A proxy breaks connections and holds requests: audit is clean, sums are exact."""
    with proxied_broker() as proxy:
        proxy.rule = faults = Faults(proxy, 3, LATE)
        given = Segment(number=0, seed=8, starts=[], backlog=10_000, ahead_ms=20_000)
        [result] = run(f"127.0.0.1:{proxy.port}", workers, tmp_path, given)
    assert result.snapshots > 300
    late = {kind for kind in faults.delivered if kind.startswith("commit")}
    assert late == {"commit: INVALID_PRODUCER_EPOCH"}, faults.delivered


@pytest.mark.usefixtures("own_kafka")
def test_a_broker_killed_while_workers_start_ends_none_of_them(
    workers: Workers, tmp_path: Path
) -> None:
    """A client that its broker left in the middle of a call once ended a start with 2."""
    killed = (
        "start: end of state asked",
        "start: consumer made",
        "take-over: end of state asked",
    )
    starts = [Start([Act(BROKER, step), Act("term", after_s=8.0)]) for step in killed]
    given = Segment(
        number=0, seed=12, starts=starts, session_s=SESSION_S, patience_s=120.0
    )
    given.ahead_ms = 60_000
    with cluster(1, tmp_path, workers, living=BRIEFLY, java=BRIEF) as running:
        [result] = running.run(Round([given], away_s=[0.0, 17.0, 2.0]))
    assert not result.wrong, result.wrong
    assert {end.step for end in result.ends if end.kind == BROKER} == {*killed}
