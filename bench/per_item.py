"""What a tick costs with every mechanism that has items: milliseconds of one `step`, beside `unk_base` in the same run.

    new       a tick in which all items occur, for the first time in the epoch
    again     ticks in which all of them occur once more
    few       ticks in which 10,000 of them occur
    heavy     as again, but items weigh 1 + 10^6 / rank (Zipf)

`python -m bench.per_item [--items N] [--ticks N] [--horizon T] [--only NAME ...]`. Time is that of the processor, on one core: others on
the machine do not count. A figure is the mean of the ticks of a kind, as a counter's ticks differ: the second of two costs three
times the first. Order statistics have columns, not items: see `columns`.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, build

KEY = "shop"
NOISE_KEY = NoiseKey(bytes(32))
KINDS = ("new", "again", "few", "heavy")
TOUCHED = 10_000
K = 100
KBAR = 1_000
CELLS: dict[str, dict[str, object]] = {
    "known_gauss": {"domain": True},
    "known_gumbel": {"domain": True, "k": K},
    "positive_gauss": {},
    "positive_laplace": {},
    "unk_gauss": {"kbar": KBAR},
    "limit_dom_laplace": {"kbar": KBAR},
    "limit_dom": {"k": K, "kbar": KBAR},
}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "unk_base": ("unk_base", {}),
    "unk_base, tree": ("unk_base", {"counter": "tree"}),
    "known_base": ("known_base", {"domain": True}),
    "sparse_gumb": ("sparse_gumb", {"domain": True, "top_k": K, "switches": 20}),
    **{
        f"meta, {name}": ("meta", {"algorithm": name, **own})
        for name, own in CELLS.items()
    },
    **{name: (name, own) for name, own in CELLS.items()},
    "limit_dom, private kbar": ("limit_dom", {"k": K, "kbar": "private"}),
    "pay_what_you_get": (
        "pay_what_you_get",
        {"k": K, "kbar": KBAR, "labels": 100_000, "queries": 1_000},
    ),
    **{
        f"misra_gries, {release}, size {size:,}": (
            "misra_gries",
            {"size": size, "release": release},
        )
        for release in ("pmg", "merge")
        for size in (100, 1_000, 10_000)
    },
}


def mechanism_of(case: str, horizon: int, labels: Sequence[bytes]) -> Mechanism:
    """The mechanism of a row of the table."""
    name, own = CASES[case]
    settings: dict[str, Any] = {**own}
    if settings.pop("domain", False):
        settings["domain"] = tuple(label.decode() for label in labels)
    config = MECHANISMS[name](
        name="bench",
        tick_ms=10_000,
        horizon=horizon,
        max_items=2,
        epsilon=1.0,
        delta=1e-9,
        keys="public",
        **settings,
    )
    return build(config)


def parts(
    tags: np.ndarray[Any, np.dtype[np.uint64]], labels: Texts, ticks: int
) -> Iterator[tuple[str, Any]]:
    """Each tick's kind and what it contributes."""
    items = len(labels)
    rng = np.random.default_rng(1)
    everything = np.arange(items)
    ones = np.ones(items, dtype=np.int64)
    yield "new", part(tags, labels, everything, ones)
    for _ in range(ticks):
        yield "again", part(tags, labels, everything, ones)
    for _ in range(ticks):
        few = np.unique((rng.random(min(TOUCHED, items)) ** 4 * items).astype(np.int64))
        yield "few", part(tags, labels, few, ones[few])
    for _ in range(ticks):
        yield (
            "heavy",
            part(
                tags, labels, everything, 1 + 1_000_000 // (1 + rng.permutation(items))
            ),
        )


def part(tags: Any, labels: Texts, chosen: Any, counts: Any) -> Contributions:
    """One message that contributes to all chosen items."""
    own = labels if len(chosen) == len(labels) else labels.take(chosen)
    return Contributions(
        (KEY,), np.zeros(len(chosen), dtype=np.int32), tags[chosen], own, counts
    )


def measure(case: str, items: int, ticks: int, horizon: int) -> dict[str, float]:
    """Milliseconds of a tick of each kind, the mean of `ticks` ticks."""
    labels = [b"%08d" % i for i in range(items)]
    tags = NOISE_KEY.tags(KEY, labels)
    mechanism = mechanism_of(case, horizon, labels)
    state = mechanism.init()
    noise = mechanism.noise(NOISE_KEY.stream(bytes(16)))
    state.key_tags = NOISE_KEY.tags(KEY, [b"\xff"])
    domain = mechanism.domain()
    mechanism.prepare_key(state, 0, tags if domain else tags[:0], domain)
    index = np.zeros(1, dtype=np.int32)
    spent = {kind: list[float]() for kind in KINDS}
    for t, (kind, contributed) in enumerate(parts(tags, Texts.of(labels), ticks), 1):
        begun = time.process_time()
        state, _ = mechanism.step(state, t, [(contributed, index)], noise)
        spent[kind].append((time.process_time() - begun) * 1e3)
        state.ledger.clean()
    return {kind: float(np.mean(of_kind)) for kind, of_kind in spent.items()}


def table(items: int, ticks: int, horizon: int, only: Sequence[str]) -> None:
    """Prints a row for each mechanism."""
    print(
        f"\none tick of {items:,} items, horizon {horizon:,}: ms, and how many times that of "
        "unk_base"
    )
    print(f"{'':32}" + "".join(f"{kind:>8} {'x':>6}" for kind in KINDS))
    base: dict[str, float] = {}
    for case in ("unk_base", "misra_gries, pmg, size 100"):
        measure(case, 1_000, 1, 16)  # compiles
    for case in CASES:
        if case != "unk_base" and only and not any(name in case for name in only):
            continue
        found = measure(case, items, ticks, horizon)
        base = base or found
        print(
            f"{case:32}"
            + "".join(
                f"{found[kind]:8.0f} {found[kind] / base[kind]:6.2f}" for kind in KINDS
            ),
            flush=True,
        )


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--ticks", type=int, default=8)
    parser.add_argument("--horizon", type=int, default=1_024)
    parser.add_argument("--only", nargs="+", default=[])
    given = parser.parse_args()
    table(given.items, given.ticks, given.horizon, given.only)


if __name__ == "__main__":
    main()
