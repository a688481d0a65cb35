"""Clients that ask a cluster answer in threads of librdkafka's: none of them may take the process with it.

Each program runs by itself, for what goes wrong is its end. Both ended within their first hundred clients where nobody closed
them, or where librdkafka's own patience ended first.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Clients that only the collector can end, and it runs where they answer.
COLLECTED = """
import gc, time
from workers.kafka.clients import Connection

def ask():
    with Connection("127.0.0.1:1").asking([]) as admin:
        around = [admin, admin.describe_cluster(request_timeout=0.05)]
        around.append(around)

gc.disable()
for _ in range(3):
    ask()
    gc.set_threshold(1)
    gc.enable()
    time.sleep(0.2)
    gc.disable()
print("done")
"""
#: Nobody answers in time, at every moment that there is of a question.
SILENT = """
from confluent_kafka import KafkaError, KafkaException
from workers.kafka.embedded import EmbeddedCluster
from workers.agents import state as groups

groups._SOON = (KafkaError._UNSUPPORTED_FEATURE,)
with EmbeddedCluster() as cluster:
    for i in range(150):
        groups._ANSWER_S = 0.0005 * (i % 30)
        try:
            groups.members_of(cluster.connection, "g")
        except KafkaException as error:
            assert error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._UNSUPPORTED_FEATURE), error
print("done")
"""


@pytest.mark.parametrize("program", [COLLECTED, SILENT], ids=["collected", "silent"])
def test_a_client_that_is_let_go_takes_nothing_with_it(program: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr[-2_000:]
