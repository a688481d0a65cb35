"""Find or start a real Apache Kafka: `QUIETCOUNT_TEST_BOOTSTRAP`, testcontainers, or Maven jars.

The jars (Java 17, cached in ~/.cache/quietcount-kafka-<version>, with an archive of their classes
beside them) run one KRaft node in a temporary directory. `QUIETCOUNT_TEST_KAFKA` chooses another
version, from 3.9 on, than kafka_pom.xml.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.system import Missing, find_all, java, maven

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
POM = Path(__file__).with_name("kafka_pom.xml")
_START_S = 300.0
#: A test's broker lives for minutes: to compile its code a second time, at the level of servers, took half of the processor
#: time that it used, and one in the tests that kill it; several threads of collectors are none the quicker here.
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: What is measured, or runs for hours, is a broker as operators run it.
LASTING = ()

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions=1
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.backoff.ms=500
# Records of tests are of any year: by default the broker would remove those of more than a week ago, at its next look.
log.retention.ms=-1
# A partition has two index files, which are full of zeros at first and read whole when the first record is written: of 10 MB
# each, as by default, that took 10 ms of the processor a partition, and every test and run makes topics of its own.
log.index.size.max.bytes=262144
"""


class BrokerUnavailable(Missing):
    """No broker was given and none could be started."""


@contextmanager
def broker(java: tuple[str, ...] = BRIEF) -> Iterator[str]:
    """Yield the bootstrap address of a real broker; one that was started here is stopped and wiped at the end.

    `java`: `BRIEF` or `LASTING`, for one that is started from its jars.
    """
    given = os.environ.get("QUIETCOUNT_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    reasons = ["QUIETCOUNT_TEST_BOOTSTRAP is not set"]
    packages: tuple[str, ...] = ()
    for way in (_container, partial(_local, java=java)):
        try:
            running = way()
            bootstrap = next(running)
        except Missing as exc:
            reasons.append(str(exc))
            packages += exc.packages
            continue
        try:
            yield bootstrap
        finally:
            running.close()
        return
    raise BrokerUnavailable("; ".join(reasons), *packages)


@contextmanager
def local_broker(further: str) -> Iterator[str]:
    """Yield the address of a broker of its own that runs here with `further` properties ({port}, {controller} stand for ports).

    Raises:
        Missing: Maven or Java is missing, wherever the other tests find their broker.
    """
    running = _local(further)
    try:
        yield next(running)
    finally:
        running.close()


def _docker() -> None:
    import docker

    try:
        docker.from_env(timeout=30).ping()
    except Exception as exc:  # whatever the client raises, Docker does not answer
        raise BrokerUnavailable("Docker does not answer") from exc


def _container() -> Generator[str, None, None]:
    _docker()
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer().with_kraft()
    for name in (
        "TRANSACTION_STATE_LOG_REPLICATION_FACTOR",
        "TRANSACTION_STATE_LOG_MIN_ISR",
    ):
        container.with_env(f"KAFKA_{name}", "1")
    container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
    container.with_env("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0")
    container.with_env("KAFKA_LOG_CLEANER_BACKOFF_MS", "500")
    container.with_env("KAFKA_LOG_RETENTION_MS", "-1")
    try:
        container.start()
    except Exception as exc:  # an image that cannot be pulled, for one
        raise BrokerUnavailable(f"Docker could not start Kafka: {exc}") from exc
    try:
        yield container.get_bootstrap_server()
    finally:
        container.stop()


def _local(
    further: str = "", java: tuple[str, ...] = BRIEF
) -> Generator[str, None, None]:
    with own_broker(further, java=java) as running:
        yield running.bootstrap


@contextmanager
def own_broker(
    further: str = "", *, port: int | None = None, java: tuple[str, ...] = BRIEF
) -> Iterator[OwnBroker]:
    """Yield a broker from Kafka's jars that can be killed, started again and frozen; `port` is any free one if left out."""
    kafka_programs()
    program = _java()
    jars = _jars()
    ways = (*program, *java), jars
    with tempfile.TemporaryDirectory(prefix="quietcount-kafka-") as directory:
        running = OwnBroker(*ways, Path(directory), further, port)
        try:
            running.start()
            yield running
        finally:
            running.stop()


def kafka_programs() -> None:
    """Find what starts brokers here: Java, and Kafka's jars, which Maven fetches the first time.

    Raises:
        Missing: there is no Java or Maven, or Maven could not fetch the jars.
    """
    find_all(java, _jars)


def a_broker_or_its_programs() -> None:
    """Find a broker that is given, or Docker, or what starts one here.

    Raises:
        Missing: there is none of them.
    """
    if os.environ.get("QUIETCOUNT_TEST_BOOTSTRAP"):
        return
    try:
        _docker()
    except BrokerUnavailable:
        kafka_programs()


def _java() -> tuple[str, str]:
    """Return java with an option that maps Kafka's classes from a file, once there is one.

    To find, read and verify them took half of the processor time of a broker's start.
    """
    program = java()
    jars = _jars()
    archive = jars.with_name(f"{jars.name}.jsa")
    if not archive.exists():
        _make_archive(archive, program, jars)
    # ignored if absent, or of another java
    return (
        program,
        f"-XX:SharedArchiveFile={archive}",
    )


def _make_archive(archive: Path, program: str, jars: Path) -> None:
    directory = archive.with_suffix(".making")
    try:
        directory.mkdir()
    except OSError:  # another process is at it, or nobody may write here
        return
    try:
        one = OwnBroker((program, *BRIEF), jars, directory)
        made = directory / archive.name
        one.start(f"-XX:ArchiveClassesAtExit={made}")
        one.stop()
        if made.exists():
            made.rename(archive)
    finally:
        shutil.rmtree(directory)


def kafka_version() -> str:
    if given := os.environ.get("QUIETCOUNT_TEST_KAFKA"):
        return given
    found = re.search(r"<kafka\.version>([\w.-]+)<", POM.read_text())
    if found is None:
        raise BrokerUnavailable(f"{POM.name} names no kafka.version")
    return found[1]


def _jars() -> Path:
    """Return the directory with Kafka's jars, fetching them through Maven the first time."""
    version = kafka_version()
    cache = CACHE / f"quietcount-kafka-{version}"
    if cache.is_dir():
        return cache
    program = maven()
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as directory:
        fetched = Path(directory) / "jars"
        # target/ would be made beside the pom: copy it away from the sources.
        pom = Path(shutil.copy(POM, directory))
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={fetched}")
        command = [
            program,
            "-q",
            "-B",
            "-f",
            str(pom),
            f"-Dkafka.version={version}",
            *goal,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()[-800:]
            raise BrokerUnavailable(f"Maven could not fetch Kafka: {said}")
        try:
            fetched.rename(cache)
        except OSError:  # another run was quicker
            if not cache.is_dir():
                raise
    return cache


class OwnBroker:
    """A broker of one node on a fixed port, its data in a directory."""

    def __init__(
        self,
        java: tuple[str, ...],
        jars: Path,
        directory: Path,
        further: str = "",
        port: int | None = None,
        controller: int | None = None,
        cluster: str | None = None,
    ) -> None:
        """Format the directory; `java` is the program with its options, `further` are properties.

        `cluster` is the id of one with other nodes; without it, this is the only node.
        """
        # It is away at times: a client may have a port of those that systems give to clients by then.
        controller = fixed_port() if controller is None else controller
        self.port = free_ports(1)[0] if port is None else port
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._directory = directory
        self.data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        properties = directory / "server.properties"
        # of a property that is there twice the last one counts
        settings = _PROPERTIES + further
        properties.write_text(
            settings.format(port=self.port, controller=controller, data=self.data)
        )
        classpath = f"{jars}/*"
        self._format(
            [*java, "-cp", classpath], jars, properties, cluster or cluster_id()
        )
        self._java = [*java, "-Xmx1g"]
        self._program = ["-cp", classpath, "kafka.Kafka", str(properties)]

    def _format(
        self, program: list[str], jars: Path, properties: Path, cluster: str
    ) -> None:
        """Make the directory of its data: by Kafka's tool, or as the tool made the first one.

        Its two files are a page of properties, and the levels of Kafka's features, which are the
        same for every broker of a version. The tool takes a second of the processor.
        """
        levels = self.data / "bootstrap.checkpoint"
        known = jars.with_name(f"{jars.name}.checkpoint")
        if known.exists():
            self.data.mkdir()
            shutil.copy(known, levels)
            [node] = re.findall(
                r"^node\.id=(.*)$", properties.read_text(), re.MULTILINE
            )[-1:]
            lines = f"version=1\ncluster.id={cluster}\nnode.id={node}\n"
            (self.data / "meta.properties").write_text(lines)
            return
        tool = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster,
            "-c",
            str(properties),
        ]
        formatted = subprocess.run(
            [*program, *tool], check=False, capture_output=True, text=True
        )
        if formatted.returncode != 0:
            said = (formatted.stdout + formatted.stderr)[-2000:]
            raise RuntimeError(f"Kafka's directory could not be formatted: {said}")
        with suppress(
            OSError
        ):  # nobody may write there, or another process was quicker
            made = shutil.copy(levels, known.with_suffix(f".{os.getpid()}"))
            os.rename(made, known)

    def start(self, *options: str) -> None:
        """Start it, on the data that it had; return once it answers without TLS."""
        log = self._directory / "broker.log"
        deadline = time.monotonic() + _START_S
        ended: list[int | None] = []
        while time.monotonic() < deadline and len(ended) < 5:
            with log.open("ab") as output:
                self._process = process = subprocess.Popen(
                    [*self._java, *options, *self._program],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory,
                    start_new_session=True,  # Ctrl-C goes to the tests, which then stop it
                )
            while time.monotonic() < deadline and process.poll() is None:
                if _answers(self.bootstrap):
                    return
                time.sleep(0.2)
            # It ends by itself where one of its ports is still in use.
            ended.append(process.poll())
            time.sleep(1)
        self.kill()
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"Kafka did not start, exit codes {ended}: {said}")

    @property
    def pid(self) -> int | None:
        """Return the number of its process; None while it is down."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was never started"
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()


def cluster_id() -> str:
    # Its first character must not be "-", which one in 64 would have: the tool would take it for an option.
    return urlsafe_b64encode(b"Q" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


_CLUSTER = """\
node.id={node}
broker.rack=rack-{node}
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
controller.quorum.voters={voters}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
# By default a minute and more pass until a new leader, or the lack of one, shows.
broker.session.timeout.ms=6000
replica.lag.time.max.ms=6000
"""


class Brokers(list[OwnBroker]):
    """Three nodes, each of them broker and controller; every topic has three replicas, two of them in sync."""

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self)

    def each(self, act: Callable[[OwnBroker], object]) -> None:
        with ThreadPoolExecutor(len(self)) as at_once:
            list(at_once.map(act, self))


@contextmanager
def three_brokers(further: str = "") -> Iterator[Brokers]:
    program = _java()
    jars = _jars()
    identity = cluster_id()
    ports = [fixed_port() for _ in range(6)]
    voters = ",".join(f"{i + 1}@127.0.0.1:{port}" for i, port in enumerate(ports[:3]))
    with tempfile.TemporaryDirectory(prefix="quietcount-kafka-") as directory:
        brokers = Brokers()
        for i in range(3):
            own = Path(directory) / str(i)
            own.mkdir()
            properties = _CLUSTER.format(node=i + 1, voters=voters) + further
            ways = (
                (*program, *BRIEF),
                jars,
                own,
                properties,
                ports[3 + i],
                ports[i],
                identity,
            )
            brokers.append(OwnBroker(*ways))
        try:
            brokers.each(OwnBroker.start)
            yield brokers
        finally:
            brokers.each(OwnBroker.stop)


def _answers(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    try:
        socket.create_connection((host, int(port)), 0.5).close()
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(
            timeout=2
        )
    except (OSError, KafkaException):
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on (found together, so that they differ)."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def fixed_port() -> int:
    """Return a free port below those that systems give to clients: a client that keeps asking for a broker that is away
    would one day get the broker's own port, and be connected to itself.
    """
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as each, suppress(OSError):
            each.bind(("127.0.0.1", port))
            return port
    raise BrokerUnavailable("no port from 20000 to 29999 is free")
