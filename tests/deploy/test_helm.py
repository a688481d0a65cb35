"""The chart renders the objects of deploy/kubernetes and exactly the rules of alerts.yml.

Its objects were decoded strictly, by hand, into the types of k8s.io/api v0.34.0 and the Prometheus
operator v0.85.0; kubeconform has checked the manifests.
"""

import copy
import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests import ROOT
from tests.deploy.helm import CHART, RELEASE, ChartError, by_helm, render, rendered
from tests.deploy.test_files import KUBERNETES, manifests

TEXT = (KUBERNETES / "settings.toml").read_text()
GIVEN: dict[str, Any] = {"settings": TEXT}
MONITORED = GIVEN | {
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}}
}
DOCS = "https://git.example.org/quietcount/docs"
OFF = {"enabled": False}
LARGE, SMALL = ({"resources": {"limits": {"memory": size}}} for size in ("3Gi", "1Gi"))
ALL = (
    GIVEN,
    MONITORED,
    GIVEN | {"dashboard": OFF, "topics": OFF, "networkPolicy": OFF},
    GIVEN | {"worker": {"replicas": 5, "storage": "1Gi"} | LARGE},
    GIVEN | {"image": {"repository": "r.example/q", "tag": "7"}, "dashboard": SMALL},
    GIVEN | {"networkPolicy": {"kafkaNamespace": "streams", "kafkaPort": 9092}},
    MONITORED
    | {"monitoring": {"enabled": True, "namespace": "watch", "interval": "1m"}},
    MONITORED | {"monitoring": {"enabled": True, "docs": DOCS}},
    GIVEN
    | {"secrets": dict.fromkeys(("key", "signing", "worker", "reader", "admin"), "s")},
)


def of_kind(kind: str, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] == kind]


def plain(found: Any) -> Any:
    """An object without what only one of both has: the release in labels, the namespace, the hash of the settings, the hooks."""
    if isinstance(found, list):
        return [plain(one) for one in found]
    if not isinstance(found, dict):
        return found
    others = found.keys() - {"app.kubernetes.io/instance", "namespace", "annotations"}
    kept = {name: plain(found[name]) for name in others}
    if kept.get("image", "").partition(":")[0] == "quietcount":
        kept["image"] = "quietcount"
    return kept


def expected() -> list[Any]:
    """What the manifests say, under the names that the chart gives."""
    found = []
    for one in manifests():
        one = copy.deepcopy(one)
        if one["kind"] in ("Namespace", "Secret"):  # made before, by hand
            continue
        if one["kind"] == "Job":
            del one["metadata"]["generateName"]
            one["metadata"]["name"] = f"{RELEASE}-topics"
        found.append(plain(one))
    return sorted(found, key=lambda one: (one["kind"], one["metadata"]["name"]))


def test_the_chart_makes_the_objects_of_the_manifests() -> None:
    made = [plain(one) for one in rendered(GIVEN) if one["kind"] != "ConfigMap"]
    wanted = expected()
    # Where a namespace is the worker's alone the manifests shut all of it; a release shuts its own pods.
    [shut] = [
        one for one in wanted if one["metadata"]["name"] == "quietcount-nothing-else"
    ]
    shut["spec"]["podSelector"] = {
        "matchLabels": {"app.kubernetes.io/name": "quietcount"}
    }
    assert (
        sorted(made, key=lambda one: (one["kind"], one["metadata"]["name"])) == wanted
    )


def test_the_settings_are_in_one_place_and_a_change_restarts() -> None:
    objects = rendered(GIVEN)
    maps = of_kind("ConfigMap", objects)
    assert {one["data"]["settings.toml"].strip() for one in maps} == {TEXT.strip()}
    volumes = [volume for one in objects for volume in pod(one).get("volumes", [])]
    mounted = {str(one["configMap"]["name"]) for one in volumes if "configMap" in one}
    assert mounted == {one["metadata"]["name"] for one in maps}

    def stamps(text: str) -> list[str]:
        made = rendered({"settings": text})
        running = of_kind("StatefulSet", made) + of_kind("Deployment", made)
        of_pods = (
            one["spec"]["template"]["metadata"]["annotations"] for one in running
        )
        return [annotations["checksum/settings"] for annotations in of_pods]

    assert len(stamps(TEXT)) == 2 and len(set(stamps(TEXT) + stamps(TEXT + "#"))) == 2
    with pytest.raises(ChartError, match="settings is empty"):
        rendered({})


def pod(one: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = one.get("spec", {}).get("template", {}).get("spec", {})
    return found


def test_the_rules_are_the_alerts_and_the_figures_are_found() -> None:
    source = ROOT / "deploy" / "prometheus" / "alerts.yml"
    assert (CHART / "files" / "alerts.yml").resolve() == source
    objects = rendered(MONITORED)
    [rule] = of_kind("PrometheusRule", objects)
    [monitor] = of_kind("ServiceMonitor", objects)
    assert rule["spec"] == yaml.safe_load(source.read_text())
    assert all(
        one["metadata"]["labels"]["release"] == "prometheus" for one in (rule, monitor)
    )
    services = {one["metadata"]["name"]: one for one in of_kind("Service", objects)}
    service = services[f"{RELEASE}-worker"]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "quietcount"
    assert 'up{job="quietcount"}' in source.read_text()
    ports = [port["name"] for port in service["spec"]["ports"]]
    assert [end["port"] for end in monitor["spec"]["endpoints"]] == ports
    # Without the operator its kinds are not known.
    assert not of_kind("PrometheusRule", rendered(GIVEN))


def test_runbooks_are_links_where_the_documents_are_served() -> None:
    """A path alone is no address: it is one only behind the operator's own."""
    [rule] = of_kind(
        "PrometheusRule",
        rendered(MONITORED | {"monitoring": {"enabled": True, "docs": DOCS}}),
    )
    text = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    [command] = re.findall(r"sed 's\|(.*)\|(.*)\|' deploy/prometheus/alerts.yml", text)
    assert rule["spec"] == yaml.safe_load(text.replace(*command))
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    for alert in alerts:
        link = alert["annotations"]["runbook_url"]
        assert link == f"{DOCS}/operations.md#{alert['alert'].lower()}"
        assert "runbook" not in alert["annotations"]
    schema = json.loads((CHART / "values.schema.json").read_text())
    for wrong in ("docs", f"{DOCS}/", f"{DOCS}/operations.md#x", "https://"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(GIVEN | {"monitoring": {"docs": wrong}}, schema)


@pytest.mark.parametrize("values", ALL)
def test_every_value_has_an_effect_and_no_others_are_taken(
    values: dict[str, Any],
) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(defaults, schema)
    secrets = defaults["secrets"] | values.get("secrets", {})
    jsonschema.validate(values | {"secrets": secrets}, schema)
    slips: list[dict[str, Any]] = [
        {"replicas": 3},
        {"monitoring": {"interval": "soon"}},
        {"worker": {"replcas": 3}},
        {"worker": {"replicas": 0}},
    ]
    for wrong in slips:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(GIVEN | wrong, schema)
    if values != GIVEN:
        assert rendered(values) != rendered(GIVEN)


def test_a_word_that_the_renderer_does_not_know_raises() -> None:
    with pytest.raises(ChartError, match="is not among the words"):
        render("{{ lookup }}", {})


@pytest.mark.parametrize("values", ALL)
def test_helm_makes_the_same(values: dict[str, Any]) -> None:
    """Our renderer knows few words; where Helm is installed (`QUIETCOUNT_HELM`, or on the path) it has the last one."""

    def name(one: dict[str, Any]) -> tuple[str, str]:
        return one["kind"], one["metadata"]["name"]

    made = by_helm(values)
    if made is not None:
        assert sorted(made, key=name) == sorted(rendered(values), key=name)
