"""`python -m tests.fuzz --inputs 100000 --seed 1`: fuzz what reads bytes from outside; exit 1 at a finding."""

import argparse
import logging
import sys
import time
from pathlib import Path

from tests.fuzz import everything
from tests.fuzz.fuzzing import fuzz, repeat


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="for each target")
    parser.add_argument("--seconds", type=float, help="end each target after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", metavar="TARGET", help="targets to run")
    parser.add_argument("--hex", help="run this input alone")
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="DIR",
        help="more seeds, as `python -m tests.fuzz.guided` finds",
    )
    given = parser.parse_args(arguments)
    known = everything.TARGETS
    if unknown := [name for name in given.only or () if name not in known]:
        parser.error(f"--only {' '.join(unknown)}: some of {' '.join(known)}")
    found = 0
    for name in given.only or known:
        target = known[name]()
        if given.corpus is not None:
            files = sorted((given.corpus / name).glob("*"))
            target = target.with_seeds(file.read_bytes() for file in files)
        end = time.monotonic() + (given.seconds or 1e12)

        def late(end: float = end) -> bool:
            return time.monotonic() > end

        alone = None if given.hex is None else bytes.fromhex(given.hex)
        try:
            inputs = given.inputs
            seed = given.seed
            result = (
                fuzz(target, inputs, seed, late)
                if alone is None
                else repeat(target, alone)
            )
        finally:
            target.close()
        print("\n".join(result.lines()), flush=True)
        found += len(result.findings)
    return 1 if found else 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
