"""A site under load that knows what was sent, so that counts can be compared."""

import time
from collections import Counter
from typing import Any

from tests.worker.harness import Site, now_ms, sale


class LoadedSite(Site):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent = Counter[str]()

    def load(self, seconds: float, per_s: int = 400) -> int:
        """Send current events to all partitions for a while; return the time of the last one.

        `per_s`: events a second and partition.
        """
        began_s = time.monotonic()
        number = 0
        at = now_ms()
        while (passed_s := time.monotonic() - began_s) < seconds:
            for partition in range(self.partitions):
                labels = [f"i{(number + i) % 7}" for i in range(per_s // 10)]
                at = now_ms()
                self.produce(partition, [sale([label], at) for label in labels])
                self.sent.update(labels)
                number += len(labels)
            time.sleep(max(0.0, number / per_s / self.partitions - passed_s))
        return at

    def assert_exact(self) -> None:
        """Assert that what was sent is counted once, and that audit agrees."""
        counted = self.counted()
        assert {label: counted[label] for label in self.sent} == dict(self.sent)
        self.assert_clean()
