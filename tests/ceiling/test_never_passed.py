"""Whatever is done to a worker, what is on its topics never costs more than the ceiling in any period: on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ceiling.stages import Stages, daily, day, order
from tests.worker.harness import Site
from workers.errors import CeilingReached

USER = {"unit": "user", "max_epsilon": 3.0, "max_delta": 1e-4, "period": "7d"}


def test_x(bootstrap: str, tmp_path: Path) -> None:
    import time
    t=time.time()
    site = Site(bootstrap, tmp_path, [daily(max_items_per_user=1, epsilon=0.5)], partitions=1, owners=2, events={"user": "user"}, privacy=USER)
    print("site", time.time()-t)
    stages = Stages(site)
    for n in range(1, 4):
        t=time.time()
        stages.go(day(n + 1), [order(day(n + 0.3), i) for i in range(8)])
        print(n, stages.epochs(f"{site.name}.items"), time.time()-t)
    site.document["histogram"] = [daily("other", max_items_per_user=1, epsilon=0.5)]
    site.config = site.write(site.document)
    site.create_topics()
    for n in range(4, 12):
        print(n, [stages.epochs(f"{site.name}.{x}") for x in ("items", "other")])
        stages.go(day(n + 1), [order(day(n + 0.3), i) for i in range(8)])
