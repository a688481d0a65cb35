"""`quietcount` in a process whose threads are interrupted as often as a test asks.

    python -m tests.worker.switching INTERVAL TOGETHER COMMAND ...

INTERVAL is Python's switch interval in seconds, or "random:SEED": a new one every tenth of a
second, from 1e-6 to 5e-3. TOGETHER threads are held at their first pick of a scale until all have
arrived (0: none is held), so that all of them initialize that scale at once. Neither is a product
feature; everything else is the product, unchanged.
"""

import math
import random
import sys
import threading
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from workers.cli import main
from workers.mechanisms.noise import selection

LEAST_S = 1e-6
MOST_S = 5e-3
# Longer than the worker takes to hand all partitions their first tick; where one has no pick the
# others continue.
_HELD_S = 4.0


def switch_at_random(seed: int) -> None:
    rng = random.Random(seed)
    while True:
        sys.setswitchinterval(
            math.exp(rng.uniform(math.log(LEAST_S), math.log(MOST_S)))
        )
        time.sleep(0.1)


def hold_first_picks(threads: int) -> None:
    peel = selection.peel
    lock = threading.Lock()
    gates: dict[Fraction, threading.Barrier] = {}
    seen: set[tuple[int, Fraction]] = set()

    def held(
        counts: Any,
        bottom: int | None,
        scale: Fraction,
        k: int,
        words: Sequence[tuple[int, int]],
    ) -> Any:
        me = threading.get_ident(), scale
        with lock:
            first = me not in seen
            seen.add(me)
            gate = gates.setdefault(scale, threading.Barrier(threads))
        if first:
            try:
                gate.wait(_HELD_S)
            except threading.BrokenBarrierError:
                said = f"not all threads came to a pick of scale {float(scale):.3g}"
                print(said, file=sys.stderr)
        return peel(counts, bottom, scale, k, words)

    selection.peel = held


if __name__ == "__main__":
    interval, together, *command = sys.argv[1:]
    if interval.startswith("random:"):
        threading.Thread(
            target=switch_at_random, args=(int(interval[7:]),), daemon=True
        ).start()
    else:
        sys.setswitchinterval(float(interval))
    if int(together):
        hold_first_picks(int(together))
    sys.argv[1:] = command
    main()
