"""Sites under load, which know what was sent, and sites whose clients log in."""

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.worker.harness import Bare, Site, known, now_ms, quietcount, sale, unk


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


class LoginSite(LoadedSite):
    """A site of two partitions whose commands log in; no secret of theirs may be shown."""

    #: Whether a command that refuses says nothing else.
    says_one_line = False

    def __init__(self, inside: str, directory: Path, *, create: bool = True) -> None:
        """`inside` is the broker's address without login."""
        super().__init__(
            inside,
            directory,
            [unk(), known()],
            partitions=2,
            owners=1,
            worker={"metrics_port": 0},
            create=create,
        )

    def log_in(self, bootstrap: str, client: Mapping[str, str], **more: object) -> None:
        """Let commands use `client` as [kafka.client]; `Bare` values are TOML."""
        pairs = (
            f'"{name}" = {value if isinstance(value, Bare) else json.dumps(value)}'
            for name, value in client.items()
        )
        table = Bare(f"{{ {', '.join(pairs)} }}")
        self.rewrite(kafka={"bootstrap": bootstrap, "client": table, **more})

    def refused_line(self, command: str) -> str:
        """Return the only line with which a command refuses to go on."""
        done = quietcount(command, "-c", str(self.config))
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Planted" not in done.stderr + done.stdout
        own = "" if self.says_one_line else "quietcount: "
        lines = done.stderr.splitlines()
        [line] = [line for line in lines if line.startswith(own)]
        assert line.startswith("quietcount: ")
        return line
