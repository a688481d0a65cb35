"""What reads formats is compiled with everything else: not in the middle of a shard's first batch."""

import os
import subprocess
import sys

import pytest

from tests.worker.harness import ROOT

CODE = """
import sys
import numpy as np
from numba.core import event
from workers.compiling import _of_formats
from bench.format_scanners import avro, events, protobuf
from workers.kafka.records import Records
from workers.kernels.wire import avro_log, protobuf_log
_of_formats()
with event.install_recorder("numba:compile") as recorder:
    for make, head in ((avro, 5), (protobuf, 6)):
        reader, payloads = make(events(3))
        records = Records.of(payloads)
        ready = reader.prepare(records.data, records.values)
        assert reader.decode(0, payloads[0][head:])["shop"] == "shop0"
        (start, stop), log, form = ready.payloads[0].tolist(), np.empty((100, 4), dtype=np.int64), reader.form
        place, a = (ready.data, start, stop, int(ready.roots[0]), ready.base), form.arrays
        if make is avro:
            used = avro_log.event(*place, a.program, a.parts, a.names, a.constants, log, form.stack())
        else:
            used = protobuf_log.event(*place, a.messages, a.fields, a.missing, a.names, log, form.stack(), form.lists())
        assert used == 5, used
late = sorted({str(e.data["dispatcher"].py_func.__qualname__) for _, e in recorder.buffer if e.is_start})
sys.exit(f"compiled late: {late}" if late else 0)
"""


@pytest.mark.slow
def test_nothing_of_formats_is_compiled_late() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
