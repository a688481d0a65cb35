"""Apicurio as Schema Registry (Confluent's protocol) for tests, in memory or backed by Kafka."""

import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.broker import BRIEF, CACHE
from tests.system import Missing, find_all, java, maven

VERSION = "3.0.9"  # 3.3 needs Java 21
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_START_S = 120.0


def application() -> Path:
    """Return the registry's directory, fetched once and kept in ~/.cache.

    Raises:
        Missing: it needs Java and Maven.
    """
    directory = CACHE / f"quietcount-registry-{VERSION}"
    if (directory / "complete").exists():
        return directory
    find_all(java, maven)
    program = maven()
    part = directory.with_name(f"{directory.name}.{os.getpid()}")
    part.mkdir(parents=True)
    try:
        for goal in (
            ["dependency:get", f"-Dartifact={_ARTIFACT}", "-Dtransitive=false"],
            ["dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={part}"],
        ):
            done = subprocess.run(
                [program, "-q", "-B", *goal],
                cwd=part,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise Missing(f"mvn {goal[0]}: {done.stdout[-2_000:]}")
        [archive] = part.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            # Python 3.11.2, which is Debian's, has no filters yet.
            content.extraction_filter = getattr(
                tarfile, "data_filter", lambda member, _: member
            )
            content.extractall(part)
        archive.unlink()
        (part / "complete").touch()
        with suppress(OSError):
            part.rename(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return directory


class RegistryServer:
    def __init__(self, log: Path, bootstrap: str | None = None) -> None:
        """
        Args:
            log: where it writes what it has to say.
            bootstrap: the Kafka that it keeps its schemas in; None: in memory, so it forgets them when it stops.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        self._log = log
        self._bootstrap = bootstrap
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; return once it answers. Java maps its classes from a file, made the first time.

        Finding, reading and verifying them took half of the processor time of a start.
        """
        directory = application()
        archive = directory / "classes.jsa"
        if not archive.exists():
            self._make_archive(archive)
        # ignored if absent, or of another java
        self._start(directory, f"-XX:SharedArchiveFile={archive}")

    def _make_archive(self, archive: Path) -> None:
        making = archive.with_suffix(".making")
        try:
            making.mkdir()
        except OSError:  # another process is at it, or nobody may write here
            return
        try:
            made = making / archive.name
            self._start(archive.parent, f"-XX:ArchiveClassesAtExit={made}")
            self.stop(signal.SIGTERM)
            if made.exists():
                made.rename(archive)
        finally:
            shutil.rmtree(making)

    def _start(self, directory: Path, option: str) -> None:
        [jar] = directory.rglob(f"apicurio-registry-app-{VERSION}-runner.jar")
        options = [f"-Dquarkus.http.port={self.port}", "-Dquarkus.http.host=127.0.0.1"]
        if self._bootstrap is not None:
            options += [
                "-Dapicurio.storage.kind=kafkasql",
                f"-Dapicurio.kafkasql.bootstrap.servers={self._bootstrap}",
                f"-Dapicurio.kafkasql.topic=schemas-{self.port}",
                f"-Dapicurio.kafkasql.snapshots.topic=snapshots-{self.port}",
                f"-Dapicurio.events.kafka.topic=events-{self.port}",
            ]
        command = [java(), "-Xmx192m", *BRIEF, option, *options, "-jar", str(jar)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_S
        while True:
            asked = f"{self.url}/subjects"
            with suppress(OSError), urllib.request.urlopen(asked, timeout=5) as answer:
                if answer.status == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(
                    f"the registry did not start: {self._log.read_text()[-3_000:]}"
                )
            time.sleep(0.2)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


@contextmanager
def registry_server(
    directory: Path, bootstrap: str | None = None
) -> Iterator[RegistryServer]:
    server = RegistryServer(directory / "registry.log", bootstrap)
    try:
        server.start()
        yield server
    finally:
        server.stop()
