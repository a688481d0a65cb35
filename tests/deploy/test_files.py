"""The files of deploy/ agree with each other, the worker's ports and settings, and the guide."""

import configparser
import importlib.metadata
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from workers.cli import cli
from workers.commands.explaining import rows
from workers.kafka.topics import plan_topics
from workers.runtime.sizes import TOPIC_BYTES
from workers.settings.settings import Settings, rekey_topics, settings_of

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = ("key", "topics", "worker-1", "worker-2", "dashboard")


def manifests() -> list[dict[str, Any]]:
    files = sorted(set(KUBERNETES.glob("*.yaml")) - {KUBERNETES / "kustomization.yaml"})
    return [
        document for path in files for document in yaml.safe_load_all(path.read_text())
    ]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [item for item in manifests() if item["kind"] == kind]


def manifest(kind: str, name: str) -> dict[str, Any]:
    [found] = [
        item for item in of_kind(kind) if item["metadata"].get("name", "") == name
    ]
    return found


def pods() -> list[tuple[str, dict[str, Any]]]:
    templated = (item for item in manifests() if "template" in item.get("spec", {}))
    return [(item["kind"], item["spec"]["template"]["spec"]) for item in templated]


def settings(path: Path) -> Settings:
    """The settings of a deployment, checked as the worker does, but for secrets that are elsewhere."""
    document = tomllib.loads(path.read_text())
    document["kafka"].pop("client", None)
    return settings_of(document, path.parent)


def test_every_file_that_a_deployment_names_is_in_the_repository() -> None:
    """Comments name scripts to run and documents to read; those in containers begin with a slash."""
    folders = ("deploy", "docs", "examples", "tests")
    files = [
        *ROOT.glob("*.*"),
        *(path for folder in folders for path in (ROOT / folder).rglob("*.*")),
    ]
    tracked = {path.relative_to(ROOT) for path in files if path.is_file()}
    known = {path.name for path in tracked}
    name = r"(?<![\w./<-])[\w.-][\w./-]*\.(?:py|toml|ya?ml|json|md|lock)\b"
    references = 0
    for path in sorted(tracked):
        if path.parts[0] != "deploy" or path.suffix in (".json", ".lock"):
            continue
        for named in re.findall(name, (ROOT / path).read_text()):
            references += 1
            is_path = named.startswith(("deploy/", "docs/", "examples/"))
            assert Path(named) in tracked if is_path else Path(named).name in known, (
                path,
                named,
            )
        for folder in re.findall(
            r"(?:deploy|docs|examples)/[\w/]*\w(?![\w/.-])", (ROOT / path).read_text()
        ):
            assert (ROOT / folder).exists(), (path, folder)
    assert references > 30


# The image


def instructions() -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [" ".join(line.split()) for line in lines]


def test_the_image_is_pinned_not_root_and_watches_itself() -> None:
    lines = instructions()
    bases = [line.split()[1] for line in lines if line.startswith("FROM")]
    assert len(bases) == 2 and len(set(bases)) == 1
    assert re.fullmatch(
        r"python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", bases[0]
    )
    [user] = [line for line in lines if line.startswith("USER")]
    assert user == "USER 10001:10001"
    assert not any(
        line.startswith(("RUN", "COPY")) for line in lines[lines.index(user) :]
    )
    [health] = [line for line in lines if line.startswith("HEALTHCHECK")]
    assert "http://127.0.0.1:9108/healthz" in health
    assert "--metrics-port" in next(line for line in lines if line.startswith("CMD"))
    assert any("--require-hashes" in line for line in lines)
    assert not any("latest" in line for line in lines)


def test_only_what_the_image_takes_is_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copies = [
        line
        for line in instructions()
        if line.startswith("COPY") and "--from" not in line
    ]
    assert {name for line in copies for name in shlex.split(line)[1:-1]} == kept
    assert all((ROOT / name).exists() for name in kept)


def pins(path: Path) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for block in re.split(r"\n(?=[a-z])", path.read_text()):
        if match := re.match(r"([a-z0-9][\w.-]*)==([^\s;]+)", block):
            hashes = found.setdefault((match[1], match[2]), set())
            hashes.update(re.findall(r"sha256:[0-9a-f]{64}", block))
    return found


def test_the_image_has_the_versions_that_are_tested() -> None:
    image = pins(DEPLOY / "requirements.lock")
    tested = pins(ROOT / "requirements.lock")
    assert image and all(image.values())
    assert {pin: hashes for pin, hashes in tested.items() if pin in image} == image
    names = {name for name, _ in image}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting: list[str] = project["dependencies"]
    other = ("extra ==", "python_version", "platform_system ==", "sys_platform ==")
    seen: set[str] = set()
    while waiting:
        requirement, _, condition = waiting.pop().partition(";")
        name = re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")
        if name not in seen and not any(word in condition for word in other):
            seen.add(name)
            waiting += importlib.metadata.requires(name) or []
    assert len(seen) > 20 and seen <= names


# Compose


def test_compose_has_two_workers_with_disks_of_their_own_and_one_key() -> None:
    services = COMPOSE["services"]
    assert {*OURS, "kafka", "prometheus", "grafana", "events"} == set(services)
    volumes: dict[str, dict[str, list[str]]] = {name: {} for name in OURS}
    for name in OURS:
        for volume in services[name].get("volumes", []):
            volumes[name][volume.split(":")[1]] = volume.split(":")
    data = [
        volumes[name]["/var/lib/quietcount"][0] for name in ("worker-1", "worker-2")
    ]
    assert len(set(data)) == 2
    keys = [volumes[name]["/run/quietcount"] for name in ("worker-1", "worker-2")]
    assert all(key[0] == "key" and key[2:] == ["ro"] for key in keys)
    assert volumes["dashboard"] == {
        "/var/lib/quietcount": ["history", "/var/lib/quietcount"]
    }
    assert "key" not in services["dashboard"]["depends_on"]
    for name in OURS:
        assert services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"]
        assert services[name]["ulimits"] == {"core": 0}, (
            "the memory of a worker holds the key"
        )
    for name in ("worker-1", "worker-2"):
        assert services[name]["stop_grace_period"] == "60s", (
            "a worker may need 45 s to end"
        )


def test_compose_shows_nothing_to_the_network() -> None:
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        assert "build" in service or re.fullmatch(
            r"[\w/]+:v?\d+\.\d+\.\d+", service["image"]
        ), name


def test_compose_names_files_ports_and_topics_that_there_are() -> None:
    for config in COMPOSE["configs"].values():
        assert (DEPLOY / config["file"]).is_file()
    orders = settings(DEPLOY / "compose" / "orders.toml")
    kafka = COMPOSE["services"]["kafka"]["environment"]
    assert f"INTERNAL://{orders.kafka.bootstrap}" in kafka["KAFKA_ADVERTISED_LISTENERS"]
    command = COMPOSE["services"]["events"]["command"]
    assert f"--topic={orders.events.topic}" in command
    assert orders.events.timestamp is None, (
        "so the record's time counts, and that is the broker's:"
    )
    assert "--config=message.timestamp.type=LogAppendTime" in command
    [made] = COMPOSE["services"]["key"]["command"]
    assert "cd /run/quietcount\n" in made
    for path, kind in (
        (orders.worker.key_file, "new"),
        (orders.worker.signing_key_file, "signing"),
    ):
        assert path is not None and path.parent == Path("/run/quietcount")
        assert f"test -e {path.name} || quietcount key {kind} {path.name}" in made
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    scraped = prometheus["scrape_configs"][0]
    assert scraped["job_name"] == "quietcount", "QuietcountDown asks for it"
    assert scraped["static_configs"][0]["targets"] == ["worker-1:9108", "worker-2:9108"]
    assert orders.worker.metrics_host == "0.0.0.0"


# Kubernetes


@pytest.mark.parametrize(
    ("kind", "pod"), pods(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_pods_are_confined(kind: str, pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    security = pod["securityContext"]
    assert (
        security["runAsNonRoot"]
        and security["runAsUser"] == 10001 == security["fsGroup"]
    )
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        resources = container["resources"]
        assert resources["limits"]["memory"] and resources["requests"]["cpu"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        claims = {"data"} if kind == "StatefulSet" else set()
        assert {
            mount["name"] for mount in container["volumeMounts"]
        } <= volumes | claims


def test_workers_keep_their_disk_hand_over_in_time_and_are_probed() -> None:
    spec = manifest("StatefulSet", "quietcount-worker")["spec"]
    pod = spec["template"]["spec"]
    [worker] = pod["containers"]
    worker_settings = settings(KUBERNETES / "settings.toml")
    assert spec["replicas"] >= 2
    assert (
        spec["serviceName"]
        == manifest("Service", "quietcount-worker")["metadata"]["name"]
    )
    assert pod["terminationGracePeriodSeconds"] >= 60
    paths = {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    for probe, path in paths.items():
        assert worker[f"{probe}Probe"]["httpGet"]["path"] == path
    assert worker["args"][-2:] == [
        "--metrics-port",
        str(worker["ports"][0]["containerPort"]),
    ]
    mounts = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert worker_settings.worker.data_dir.is_relative_to(mounts["data"])
    assert worker_settings.worker.key_file.parent == Path(mounts["key"])
    [claim] = spec["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    budget = manifest("PodDisruptionBudget", "quietcount-worker")["spec"]
    assert budget["maxUnavailable"] == 1 and budget["selector"] == spec["selector"]


def test_every_key_in_the_secrets_is_copied_to_where_the_settings_say(
    tmp_path: Path,
) -> None:
    """Secrets are mounted as links to files that a group can read, which the worker refuses."""
    pod = manifest("StatefulSet", "quietcount-worker")["spec"]["template"]["spec"]
    [copying] = pod["initContainers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in copying["volumeMounts"]}
    [volume] = [one for one in pod["volumes"] if one["name"] == "key-secret"]
    noise, signing = (source["secret"] for source in volume["projected"]["sources"])
    assert noise == {"name": "quietcount-key"}, "the worker does not start without it"
    assert signing == {"name": "quietcount-signing", "optional": True}
    paths = {name: tmp_path / name for name in ("key", "key-secret")}
    shell, option, command = copying["command"]
    for name, path in paths.items():
        path.mkdir()
        assert mounts[name] in command
        command = re.sub(rf"{mounts[name]}(?=[/ ])", str(path), command)
    names = ["noise.key", "signing.key"]
    (paths["key-secret"] / "..data").mkdir()
    for name in names:
        content = paths["key-secret"] / "..data" / name
        content.write_text(name)
        (paths["key-secret"] / name).symlink_to(content)
    subprocess.run([shell, option, command], check=True)
    for name in names:
        copied = paths["key"] / name
        assert copied.read_text() == name
        assert copied.stat().st_mode & 0o777 == 0o400
    text = (KUBERNETES / "settings.toml").read_text()
    assert '\n# signing_key_file = "/run/quietcount/signing.key"\n' in text
    assert mounts["key"] == "/run/quietcount"
    written = [name for item in of_kind("Secret") for name in item["data"]]
    assert set(names) < set(written)


def test_only_the_worker_has_the_keys_and_no_manifest_holds_one() -> None:
    for name in ("quietcount-key", "quietcount-signing"):
        holders = [kind for kind, pod in pods() if name in str(pod["volumes"])]
        assert holders == ["StatefulSet"]
    secrets = of_kind("Secret")
    assert secrets and all(not any(item["data"].values()) for item in secrets)
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())[
        "resources"
    ]
    assert not [name for name in listed if "secret" in name]
    assert all((KUBERNETES / name).is_file() for name in listed)
    credentials = {
        pod["containers"][0]["name"]: str(pod["volumes"]) for _, pod in pods()
    }
    for name, principal in (
        ("worker", "worker"),
        ("dashboard", "reader"),
        ("topics", "admin"),
    ):
        assert f"quietcount-kafka-{principal}" in credentials[name]


def test_only_the_page_is_open_and_figures_are_for_monitoring() -> None:
    policies = {
        item["metadata"]["name"]: item["spec"] for item in of_kind("NetworkPolicy")
    }
    shut = policies.pop("quietcount-nothing-else")
    assert shut == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    open_to_all = {
        name: [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
        for name, spec in policies.items()
        if any("from" not in rule for rule in spec.get("ingress", []))
    }
    assert open_to_all == {"quietcount-page": ["page"]}
    page = manifest("Deployment", "quietcount-dashboard")["spec"]["selector"]
    assert policies["quietcount-page"]["podSelector"] == page
    [figures] = policies["quietcount-figures"]["ingress"]
    assert figures["ports"][0]["port"] == "metrics" and "monitoring" in str(
        figures["from"]
    )
    broker = settings(KUBERNETES / "settings.toml").kafka.bootstrap.rpartition(":")[2]
    assert broker in str(policies["quietcount-kafka"]["egress"])
    assert all(
        "to" in rule for spec in policies.values() for rule in spec.get("egress", [])
    )


# Topics


def test_the_topics_are_those_that_the_worker_makes() -> None:
    """Topics made by hand from this page must equal those of `quietcount topics --create`."""
    text = (DEPLOY / "topics.md").read_text()
    lines = [
        line.strip("|").split("|") for line in text.splitlines() if line[:3] == "| `"
    ]
    rows = [[cell.strip(" `") for cell in line] for line in lines]
    needs: Any = "<name>", ["<events>"], 3, 2, ["<name>.<histogram>"], {}
    signed: Any = {"signatures": "<name>.signatures"}
    plan = plan_topics(*needs, **signed)
    rekeyed = plan_topics(*needs, rekey=True, user_partitions=5, **signed)
    more = [
        topic for topic in rekeyed if topic.name not in [other.name for other in plan]
    ]
    assert {topic.name for topic in more} == set(rekey_topics("<name>"))
    by_user = {topic.name for topic in rekeyed if topic.partitions == 5}
    assert by_user == {
        f"<name>.{end}" for end in ("by-user", "contribute-state", "rejects")
    }
    assert [row[0] for row in rows] == [topic.name for topic in (*plan, *more)]
    for row, topic in zip(rows, (*plan, *more), strict=True):
        _, partitions, cleanup, retention, size, stamp = row
        numbers = {"sources": 3, "owners": 2, "users": 5, "1": 1}
        assert numbers[partitions] == topic.partitions
        assert cleanup == topic.cleanup_policy
        assert retention in (str(topic.retention_ms), "the cluster's", "yours", "")
        assert (retention == "-1") == (topic.retention_ms == -1)
        assert (size == str(TOPIC_BYTES)) == ("max.message.bytes" in topic.config())
        assert stamp.startswith(
            "LogAppendTime" if topic.name == "<events>" else "CreateTime"
        )
    commands = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert commands is not None
    options_of = {}
    for line in commands[1].replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        pairs = [
            words[i + 1].partition("=")
            for i, word in enumerate(words)
            if word == "--config"
        ]
        options_of[words[words.index("--topic") + 1]] = {
            name: value for name, _, value in pairs
        }
    for topic in plan_topics("orders", ["orders"], 12, 12, ["orders.products"], {})[1:]:
        assert options_of[topic.name].items() >= topic.config().items()
        assert (
            topic.purpose == "dead letters"
            or options_of[topic.name]["min.insync.replicas"] == "2"
        )


# systemd


UNIT = DEPLOY / "systemd" / "quietcount.service"


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    found.read_string(UNIT.read_text())
    return found


def test_the_unit_restarts_after_the_codes_that_the_guide_says() -> None:
    """On failure: after every code but 0 and those that it names."""
    service = unit()["Service"]
    codes = {
        row[0]: row[-1]
        for row in rows("## Exit codes", (ROOT / "docs/operations.md").read_text())
    }
    kept = {code for code, restart in codes.items() if restart == "no"}
    assert {"70", "75"} == {code for code, restart in codes.items() if restart == "yes"}
    assert service["Restart"] == "on-failure"
    assert {"0", *service["RestartPreventExitStatus"].split()} == kept
    assert int(service["TimeoutStopSec"]) >= 60 and service["LimitCORE"] == "0"


def test_the_unit_starts_a_worker_with_options_that_it_has_and_nothing_else_to_write() -> (
    None
):
    service = unit()["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/quietcount") and arguments[0] == "run"
    known = {name for option in cli.commands["run"].params for name in option.opts}
    assert {name for name in arguments if name.startswith("-")} <= known
    assert arguments[arguments.index("--data-dir") + 1] == "${STATE_DIRECTORY}"
    assert "StateDirectory" in service and service["ProtectSystem"] == "strict"
    assert service["UMask"] == "0077" and service["StateDirectoryMode"] == "0700"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """Where there is one; but for the program, which is installed elsewhere."""
    analyze = shutil.which("systemd-analyze")
    program = unit()["Service"]["ExecStart"].split()[0]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(program, sys.executable))
    if analyze is not None:
        done = subprocess.run(
            [analyze, "verify", copy], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
