"""Kafka Streams beside the worker: builds and runs `kafka_streams/Count.java`, with Maven's jars and a Java 17 compiler.

Jars and classes are kept in ~/.cache/quietcount-streams-<version>-<digest of the two sources>.
"""

import os
import re
import resource
import shutil
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.admin import delete_topics

SOURCES = Path(__file__).with_name("kafka_streams")
#: The same as the worker's: what is committed more often is flushed more often.
COMMIT_MS = 5_000
_HEAP = "-Xmx1g"


@dataclass(frozen=True, slots=True)
class StreamsRun:
    """What a run took.

    Attributes:
        events: that were counted.
        whole_s, half_s: from the first event to the last, and the second half of them.
        cpu_s: time of the processor, of the whole process.
    """

    events: int
    whole_s: float
    half_s: float
    cpu_s: float


def version() -> str:
    """Return the version of Kafka Streams.

    Raises:
        RuntimeError: the pom names none.
    """
    found = re.search(r"<kafka\.version>([\w.-]+)<", (SOURCES / "pom.xml").read_text())
    if found is None:
        raise RuntimeError("pom.xml names no kafka.version")
    return found[1]


def built() -> Path:
    """Return the directory with the jars and the compiled program, making it the first time.

    Raises:
        RuntimeError: Maven or a Java compiler is missing, or failed.
    """
    digest = blake2b(
        b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir())), digest_size=4
    ).hexdigest()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = home / f"quietcount-streams-{version()}-{digest}"
    if cache.is_dir():
        return cache
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as directory:
        made = Path(shutil.copytree(SOURCES, Path(directory) / "made"))
        _run(
            "mvn",
            "-q",
            "-B",
            "-f",
            str(made / "pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={made}",
        )
        _run("javac", "-cp", f"{made}/*", "-d", str(made), str(made / "Count.java"))
        try:
            made.rename(cache)
        except OSError:  # another run was quicker
            if not cache.is_dir():
                raise
    return cache


def _run(program: str, *arguments: str) -> None:
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(
            f"{program} is not installed (apt install maven openjdk-17-jdk-headless); or "
            "--streams-events 0"
        )
    done = subprocess.run(
        [found, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{program} failed: {(done.stdout + done.stderr).strip()[-2000:]}"
        )


def measure(
    bootstrap: str, topic: str, number: int, threads: int, *, all_of_it: bool
) -> StreamsRun:
    """Count the first `number` events of a topic, in a process of its own.

    Args:
        bootstrap, topic: where they are.
        number: of events.
        threads: of Kafka Streams; it spreads the partitions over them.
        all_of_it: the topic holds no more than these, so the counts must be right to the last.

    Raises:
        RuntimeError: it failed, or counted wrongly.
    """
    place = built()
    name = f"streams-{uuid.uuid4().hex[:8]}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as state:
        arguments = [
            bootstrap,
            topic,
            str(number),
            str(threads),
            str(COMMIT_MS),
            state,
            name,
        ]
        command = [
            "java",
            _HEAP,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp",
            f"{place}/*:{place}",
            "Count",
        ]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=1_800,
            check=False,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _forget(bootstrap, name)
    if done.returncode != 0:
        raise RuntimeError(
            f"Kafka Streams failed:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    found = {
        name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", done.stdout)
    }
    if all_of_it and found["sum"] != 2 * number:
        raise RuntimeError(
            f"Kafka Streams counted {found['sum']:,.0f} items of {number:,} events with 2 each"
        )
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return StreamsRun(number, found["whole"], found["half"], cpu_s)


def _forget(bootstrap: str, name: str) -> None:
    """Delete the topics that Kafka Streams made for itself."""
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        delete_topics(admin, f"{name}-")
