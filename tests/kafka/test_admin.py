"""Cluster queries are answered in librdkafka threads, which must never crash the process.

Every program runs in its own process, since a failure ends it. Both failed within their first
hundred clients when clients were not closed, or when librdkafka's own timeout came first.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Clients that only the garbage collector can close, and it runs in the answering threads.
COLLECTED = """
import gc, time
from workers.kafka.clients import Connection

def ask():
    with Connection("127.0.0.1:1").quiet_admin([]) as admin:
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
# No timely answer, at every moment of a query.
SILENT = """
from confluent_kafka import KafkaError, KafkaException
from workers.agents import state as groups
from workers.kafka.clients import EmbeddedCluster

groups._TRANSIENT = (KafkaError._UNSUPPORTED_FEATURE,)
with EmbeddedCluster() as cluster:
    for i in range(150):
        groups._ANSWER_S = 0.0005 * (i % 30)
        try:
            groups.group_size(cluster.connection, "g")
        except KafkaException as error:
            assert error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._UNSUPPORTED_FEATURE), error
print("done")
"""


@pytest.mark.parametrize("program", [COLLECTED, SILENT], ids=["collected", "silent"])
def test_a_dropped_client_does_not_crash_the_process(program: str) -> None:
    command = [sys.executable, "-c", program]
    run = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=300, check=False
    )
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr[-2_000:]
