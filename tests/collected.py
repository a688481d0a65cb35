"""Fork the processes of pytest-xdist from one that has collected the tests and loaded the kernels.

Each would import, collect and load the same: minutes of the processor where no bytecode is cached yet.

pytest-xdist starts `FORK` with the arguments of `python`.
"""

import gc
import json
import os
import shlex
import socket
import sys

import pytest

from tests.forked import RUN, Starter, load_kernels, serve

#: In the environment: arguments of pytest that say what is collected.
ASKED = "QUIETCOUNT_TESTS_COLLECTED"
FORK = f"{shlex.quote(sys.executable)} -c 'from tests.collected import fork; fork()'"


def fork() -> None:
    """Run a test process as a child of the one that has collected, and wait for its end."""
    # execnet is the parent of all test processes
    os.environ[RUN] = str(os.getppid())
    starter = Starter(0, "tests.collected")
    process = starter.start(sys.argv[1:], 1, 2, 0)
    for descriptor in (0, 1):
        os.close(descriptor)
    sys.exit(process.wait())


def main() -> None:
    asked = json.loads(os.environ[ASKED])
    # a thread of pyarrow, which a fork would lose
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    pytest.main(["--collect-only", *asked])
    load_kernels()
    gc.collect()
    gc.freeze()
    first, listener = (socket.socket(fileno=int(one)) for one in sys.argv[1:])
    code = serve(first, listener)[-1]
    sys.argv[:] = ["-c"]
    del os.environ[RUN]
    exec(code, {"__name__": "__main__"})  # noqa: S102  (as `python -c` does)


if __name__ == "__main__":
    main()
