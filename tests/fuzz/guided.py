"""`python -m tests.fuzz.guided TARGET --corpus DIR`: have atheris look for inputs that reach new code.

All kernels run as plain Python, so that it sees branches within them; that takes ten to a hundred
times as long. What it finds are seeds for the compiled run, `python -m tests.fuzz --corpus DIR`.
Needs atheris, which the project does not: `pip install atheris`.
"""

import argparse
import logging
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=600)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # of numbers that wrap
    atheris: Any = import_module("atheris")
    # Compiled: plain Python has no wrapping numbers.
    compiled = import_module("workers.arrays.compiled")
    _ = import_module("workers.arrays.words")
    for name in vars(compiled):
        if name.startswith(("kernel", "checked_")):
            setattr(compiled, name, lambda function: function)
    with atheris.instrument_imports(include=["workers"]):
        target = import_module("tests.fuzz.everything").TARGETS[given.target]()
    found = given.corpus / given.target
    found.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (found / f"seed{number}").write_bytes(seed)

    def run(data: bytes) -> None:
        with suppress(*target.documented):
            target.run(data)

    limits = [
        f"-max_total_time={given.seconds}",
        f"-max_len={target.max_bytes}",
        "-timeout=60",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={found}/",
    ]
    atheris.Setup([sys.argv[0], str(found), *limits], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
