"""Draw the pictures of docs/utility.md and docs/architecture.md: `python -m bench.plots [--to DIRECTORY] [--only NAME]`.

Seeds are fixed: a repeat gives the same files.
"""

import argparse
from pathlib import Path

from bench.plots import counters, maxima, rooms, sketches, top_k
from bench.plots.style import DOCS

PICTURES = {
    "rooms": rooms.draw,
    "counters": counters.draw,
    "top_k": top_k.draw,
    "small_maxima": maxima.draw,
    "equal_memory": sketches.draw,
}


def main() -> None:
    """Read the arguments and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=DOCS)
    parser.add_argument("--only", choices=tuple(PICTURES), default=None)
    given = parser.parse_args()
    for name, draw in PICTURES.items():
        if given.only in (None, name):
            draw(given.to)


if __name__ == "__main__":
    main()
