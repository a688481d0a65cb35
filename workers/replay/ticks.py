"""A mechanism without Kafka: counts of a tick in, the noisy counts of a snapshot out.

    from workers.replay.ticks import Epoch

    epoch = Epoch.of("unk_base", horizon=64, max_items=1, epsilon=1.0, delta=1e-6)
    epoch.step({"tea": 40, "cup": 2})

For research, teaching and tests: one epoch of one stream key, with what `replay` computes. A seed
is no key: whoever knows it can subtract the noise.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Answers, Items, Mechanism, WindowReleases
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, build

Counts = Mapping[str, int]
# The only stream key, "k", has index 0.
_FIRST_KEY = np.zeros(1, dtype=np.int32)


class Epoch:
    """One epoch of one stream key; `mechanism` has its public figures.

    After a tick: `t` is its number, `counts` are the noisy counts shown, `threshold` that of the
    tick, if it has one, and `answer` the fields of an answer instead of counts.
    """

    def __init__(self, mechanism: Mechanism, seed: int = 0) -> None:
        if mechanism.config.without_epochs:
            raise ValueError('horizon = "never": there are no epochs')
        self.mechanism = mechanism
        self.t = 0
        self.counts: dict[str, int] = {}
        self.threshold: int | None = None
        self.answer: dict[str, Any] = {}
        self._key = NoiseKey(seed.to_bytes(32, "big"))
        # A worker has a stream of noise for each mechanism id; here any 16 bytes will do.
        self._noise = mechanism.noise(self._key.stream(bytes(16)))
        # Labels by row of the ledger.
        self._labels: list[str] = []
        self.state = mechanism.init()
        # The tag of the stream key itself: any label that is no item's will do.
        self.state.key_tags = self._key.tags("k", [b"\0key"])
        # Declared labels get their rows before the first tick, as in a worker. The only stream key,
        # "k", has index 0.
        domain = mechanism.domain()
        tags = self._key.tags("k", domain)
        mechanism.prepare_key(self.state, 0, tags, domain)

    @classmethod
    def of(
        cls, mechanism: str, *, seed: int = 0, unit: str = "event", **settings: Any
    ) -> "Epoch":
        """Make a mechanism from its settings, named as in a settings file ("tick" in ms)."""
        settings.setdefault("name", mechanism)
        settings.setdefault("keys", "public")
        settings["tick_ms"] = settings.pop("tick", 1_000)
        return cls(build(MECHANISMS[mechanism](**settings), unit), seed)

    def step(self, counts: Counts) -> dict[str, int]:
        """Count a tick's contributions and return the noisy counts that it shows.

        Counts are taken as bounded: no event has more than `max_items` items, or counts more than
        `max_count` times for an item. The only stream key is "k", with index 0.
        """
        self.t += 1
        parts = []
        if counts:
            labels = [label.encode() for label in counts]
            contributions = Contributions(
                ("k",),
                np.zeros(len(labels), dtype=np.int32),
                self._key.tags("k", labels),
                Texts.of(labels),
                np.fromiter(counts.values(), dtype=np.int64, count=len(counts)),
            )
            parts = [(contributions, _FIRST_KEY)]
        self.state, release = self.mechanism.step(
            self.state, self.t, parts, self._noise
        )
        assert not isinstance(release, WindowReleases), "of an epoch"
        # A mechanism releases answers, or counts of labels, or of rows of its ledger.
        if isinstance(release, Answers):
            self.answer = dict(release.of_key[0])
            return {}
        self.threshold = release.threshold
        if isinstance(release, Items):
            shown = [label.decode() for label in release.labels]
        else:
            # Rows of the ledger stay, so only the labels of new ones are decoded.
            ledger = self.state.ledger
            further = range(len(self._labels), ledger.n)
            self._labels += [ledger.label(row).decode() for row in further]
            shown = [self._labels[row] for row in release.rows.tolist()]
        self.counts = dict(zip(shown, release.counts.tolist(), strict=True))
        return self.counts
