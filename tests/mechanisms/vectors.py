"""Golden vectors of all release noise: what must never change without a new table version and a line in the changelog.

`python -m tests.mechanisms.vectors` writes them anew.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np

from workers.mechanisms.counters import make_counter
from workers.mechanisms.gaussian import integer_gaussian
from workers.mechanisms.noise import NoiseKey

VECTORS = Path(__file__).parent.parent / "vectors" / "noise.json"
ROOT = bytes(range(32))
MECHANISM_ID = bytes(range(100, 116))
LABELS = [b"", b"p1", b"p2", "épicerie".encode(), b"x" * 1024]
CELLS = [(0, 0), (1, 5), (2**63, 2**64 - 1)]
SIGMAS_SQUARED = ["1/100", "1", "5/2", "2500", "100000000"]
COUNTERS: list[tuple[str, int | None, float]] = [
    ("haar", 1000, 0.004),
    ("haar", None, 0.004),
    ("haar", 2**40, 1e-6),
    ("tree", 1000, 0.004),
    ("tree", None, 0.004),
    ("sqrt", 1000, 0.004),
]
TICKS = [1, 2, 341, 512, 999, 1000]


def compute_vectors() -> dict[str, object]:
    """Every kind of noise from a fixed key, as JSON-able data."""
    key = NoiseKey(ROOT)
    stream = key.stream(MECHANISM_ID)
    tags = key.tags("shop 1", LABELS)
    samples: dict[str, list[int]] = {}
    for text in SIGMAS_SQUARED:
        gaussian = integer_gaussian(Fraction(text))
        out = np.empty(len(LABELS), dtype=gaussian.dtype)
        gaussian.draw(stream, (3, 4), tags, out)
        samples[text] = out.tolist()
    noise = {
        f"{kind} {horizon} {rho_item}": [
            make_counter(kind, horizon, rho_item).draw(stream, t, tags).tolist() for t in TICKS
        ]
        for kind, horizon, rho_item in COUNTERS
    }
    return {
        "fingerprint": key.fingerprint.hex(),
        "tags": tags.tolist(),
        "words": [stream.words(tags, cell).tolist() for cell in CELLS],
        "gaussian": samples,
        "ticks": TICKS,
        "counters": noise,
        "public": [make_counter(*parameters).public() for parameters in COUNTERS],
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(compute_vectors(), indent=1) + "\n")
