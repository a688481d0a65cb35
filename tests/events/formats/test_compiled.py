"""What reads formats is compiled with everything else: not in the middle of a shard's first batch."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

CODE = """
import sys
from numba.core import event
from workers.commands.compiling import _compile_format
from bench.format_scanners import avro, events, protobuf
from workers.kafka.records import Records
_compile_format("AVRO")
_compile_format("PROTOBUF")
with event.install_recorder("numba:compile") as recorder:
    for make, head in ((avro, 5), (protobuf, 6)):
        reader, payloads = make(events(3))
        records = Records.of(payloads)
        [logs] = reader.scan(records.data, records.values, records.values[:, 0] >= 0)
        assert logs.ends.tolist() == [5, 10, 15]
        assert logs.decode(0)["shop"] == reader.fmt.decode(0, payloads[0][head:])["shop"] == "shop0"
late = sorted({str(e.data["dispatcher"].py_func.__qualname__) for _, e in recorder.buffer if e.is_start})
sys.exit(f"compiled late: {late}" if late else 0)
"""


@pytest.mark.slow
def test_nothing_of_formats_is_compiled_late() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
