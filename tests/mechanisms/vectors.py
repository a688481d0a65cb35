"""Golden vectors of all release noise; a change needs a new table version and a changelog line.

`python -m tests.mechanisms.vectors` regenerates them.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np

from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.counters.laplace_tree import laplace_tree
from workers.mechanisms.counters.line import line_counters
from workers.mechanisms.noise.discrete_laplace import discrete_laplace, geometric
from workers.mechanisms.noise.gaussian import integer_gaussian
from workers.mechanisms.noise.inversion import InversionTable
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.noise.selection import gumbel_top_k, peel

VECTORS = Path(__file__).parent.parent / "vectors" / "noise.json"
ROOT = bytes(range(32))
MECHANISM_ID = bytes(range(100, 116))
LABELS = [b"", b"p1", b"p2", "épicerie".encode(), b"x" * 1024]
CELLS = [(0, 0), (1, 5), (2**63, 2**64 - 1)]
SIGMAS_SQUARED = ["1/100", "1", "5/2", "2500", "100000000"]
# Also under 1, and so wide that most values take the 32-bit table.
SCALES = ["1/100", "1/3", "1", "5/2", "50", "10000"]
PICK_SCALES = ["1/3", "1", "40", "100000"]
# Ties, a gap that no weight reaches across at the smaller scales, and the largest possible gap.
PICK_COUNTS = [7, 7, 7, 6, 3, 3, 0, -4, 250, 251, 100_000, 2**62]
COUNTERS: list[tuple[str, int | None, float, float | None]] = [
    ("lifted", 1000, 0.004, None),
    ("lifted", None, 0.004, None),
    ("lifted", 2**40, 1e-6, None),
    ("tree", 1000, 0.004, None),
    ("tree", None, 0.004, None),
    ("sqrt", 1000, 0.004, None),
    ("lifted", 1000, 0.004, 0.6),
]
# Windows and hops of one path.
WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], float]] = [
    ((30,), (1,), 0.004),
    ((30, 150, 1_800), (1, 4, 16), 0.004),
    ((2, 1 << 22), (2, 1 << 16), 1e-6),
]
# Epsilon, reach and base: the trees of known_laplace and of pure order statistics.
LAPLACE_TREES = [("1", 2, 2), ("7/2", 6, 10), ("50", 1, 32)]
TICKS = [1, 2, 341, 512, 999, 1000]


def compute_vectors() -> dict[str, object]:
    """Return every kind of noise from a fixed key, as JSON-able data."""
    key = NoiseKey(ROOT)
    stream = key.stream(MECHANISM_ID)
    tags = key.tags("shop 1", LABELS)

    def drawn(table: InversionTable) -> list[int]:
        out = np.empty(len(LABELS), dtype=table.dtype)
        table.draw(stream, (3, 4), tags, out)
        return [int(value) for value in out]

    def words(n: int) -> list[tuple[int, int]]:
        drawn = (stream.words(tags[:1], (5, i))[0].tolist() for i in range(n))
        return [(high, low) for high, low in drawn]

    noise = {}
    public = []
    for kind, horizon, rho_item, end_share in COUNTERS:
        counter = make_counter(kind, horizon, rho_item, end_share=end_share)
        name = f"{kind} {horizon} {rho_item}" + (f" {end_share}" if end_share else "")
        noise[name] = [counter.draw(stream, t, tags).tolist() for t in TICKS]
        public.append(counter.public())
    for windows, hops, rho_item in WINDOWS:
        for window in line_counters(windows, hops, rho_item):
            name = f"line {window.window} {window.hop} of {windows} {rho_item}"
            noise[name] = [window.draw(stream, t, tags).tolist() for t in TICKS]
            public.append(window.public())
    for epsilon, reach, radix in LAPLACE_TREES:
        tree = laplace_tree(1000, Fraction(epsilon), reach, radix)
        name = f"{tree.kind} 1000 {epsilon} {reach} {radix}"
        noise[name] = [tree.draw(stream, t, tags).tolist() for t in TICKS]
        public.append(tree.public())
    return {
        "fingerprint": key.fingerprint.hex(),
        "tags": tags.tolist(),
        "words": [stream.words(tags, cell).tolist() for cell in CELLS],
        "gaussian": {
            text: drawn(integer_gaussian(Fraction(text))) for text in SIGMAS_SQUARED
        },
        "discrete laplace": {
            text: drawn(discrete_laplace(Fraction(text))) for text in SCALES
        },
        "geometric": {text: drawn(geometric(Fraction(text))) for text in SCALES},
        "picks": {
            text: picks(Fraction(text), words(len(PICK_COUNTS))) for text in PICK_SCALES
        },
        "ticks": TICKS,
        "counters": noise,
        "public": public,
    }


def picks(scale: Fraction, words: list[tuple[int, int]]) -> dict[str, object]:
    """Return all candidates in pick order, and the first four to BOTTOM without the two highest."""
    counts = np.array(PICK_COUNTS, dtype=np.int64)
    above, ended = peel(counts[:8], 5, scale, 4, words)
    return {
        "top": gumbel_top_k(counts, scale, len(counts), words).tolist(),
        "or bottom": [above.tolist(), ended],
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(compute_vectors(), indent=1) + "\n")
