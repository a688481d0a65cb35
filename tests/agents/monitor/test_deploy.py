"""Dashboard, alerts and documents name metrics and labels that the worker has, in PromQL that parses."""

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import promql_parser
import pytest
import yaml

from tests import ROOT
from tests.agents.monitor.scene import NOW_MS, Scene
from workers.agents.monitor import metrics_registry

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "quietcount.json"
#: What Prometheus or its client add by themselves.
OTHERS = {
    "up": {"job", "instance"},
    "process_resident_memory_bytes": {"instance"},
    "process_cpu_seconds_total": {"instance"},
}
ALWAYS = {"worker", "instance", "job"}
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
    "gauge": ("",),
}


#: Type, help and labels of every family.
Families = dict[str, tuple[str, str, set[str]]]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Families:
    """Return our families, from a worker that shows something of everything."""
    scene = Scene(tmp_path_factory.mktemp("scene"))
    metrics = scene.handover.metrics
    metrics.rejects.labels("not JSON").inc()
    for shard in scene.contribute:
        shard._intake.watermark = NOW_MS
    scene.release.merge.histograms[0].start_at(7)
    found = {}
    partitions = {"contribute": 2, "release": 1}
    for family in metrics_registry(scene.health, partitions).collect():
        if family.name.startswith("quietcount_"):
            assert family.samples, (
                f"{family.name} shows nothing: its labels cannot be checked"
            )
            labels = set().union(*(sample.labels for sample in family.samples)) - {
                "le",
                "worker",
            }
            found[family.name] = (family.type, family.documentation, labels)
    return found


@pytest.fixture(scope="module")
def labels_of(families: Families) -> dict[str, set[str]]:
    found = dict(OTHERS)
    for name, (kind, _, labels) in families.items():
        for suffix in SUFFIXES[kind]:
            found[name + suffix] = (
                labels | ALWAYS | ({"le"} if suffix == "_bucket" else set())
            )
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            # Grafana's variables filled in.
            expression = (
                target["expr"]
                .replace("$__rate_interval", "1m")
                .replace("$worker", ".+")
            )
            yield panel["title"], expression


def nodes(expression: str) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> bool:
        found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("where", "expression"), list(queries()))
def test_queries_parse_and_name_series_and_labels_that_there_are(
    labels_of: dict[str, set[str]], where: str, expression: str
) -> None:
    found = nodes(expression)
    vectors = promql_parser.VectorSelector
    matrices = promql_parser.MatrixSelector
    selectors = [node for node in found if isinstance(node, vectors)]
    selectors += [node.vector_selector for node in found if isinstance(node, matrices)]
    assert selectors
    for selector in selectors:
        assert selector.name is not None and selector.name in labels_of, (
            f"{where}: {selector.name}"
        )
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels_of[selector.name], f"{where}: {matcher}"
    there = set().union(*(labels_of[selector.name or ""] for selector in selectors))
    for node in found:
        modifier = getattr(node, "modifier", None)
        matching = getattr(modifier, "matching", None)
        for labels in (
            getattr(modifier, "labels", None),
            getattr(matching, "labels", None),
        ):
            assert set(labels or ()) <= there, f"{where}: {labels}"


def test_the_check_refuses_what_it_is_there_for(labels_of: dict[str, set[str]]) -> None:
    for wrong in (
        "rate(quietcount_event_total[5m])",
        "sum by (shop) (quietcount_ready)",
        'quietcount_ready{stage="release"}',
    ):
        with pytest.raises(AssertionError):
            test_queries_parse_and_name_series_and_labels_that_there_are(
                labels_of, "here", wrong
            )
    with pytest.raises(ValueError, match="parenthesis"):
        nodes("sum by (worker (quietcount_ready)")


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_has_a_severity_a_meaning_and_a_runbook(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert re.fullmatch("Quietcount[A-Za-z]+", name)
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    assert alert["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
    # What a template names must have outlived the query.
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())))
    kind = promql_parser.AggregateExpr
    aggregates = [node for node in nodes(alert["expr"]) if isinstance(node, kind)]
    by = [set(node.modifier.labels) for node in aggregates if node.modifier is not None]
    everywhere = {"instance", "worker", "histogram", "topic", "partition"}
    assert not by or used <= set().union(*by) or used <= everywhere


def test_alerts_have_names_of_their_own_and_a_section_each_in_the_guide() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names)) > 10
    guide = (ROOT / "docs" / "operations.md").read_text()
    headings = {
        heading.strip().lower() for heading in re.findall(r"(?m)^#+(.*)", guide)
    }
    assert not {name.lower() for name in names} - headings


def assert_apart(panels: list[dict[str, Any]]) -> None:
    """Assert that panels have ids of their own, and do not overlap."""
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        mine = set(product(range(x, x + w), range(y, y + h)))
        assert not mine & cells and x + w <= 24, panel["title"]
        cells |= mine


def test_the_dashboard_is_whole() -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    assert {variable["name"] for variable in variables} == {"datasource", "worker"}
    assert_apart(panels())
    for panel in panels():
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"
            for target in panel["targets"]:
                shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                missing = shown - ALWAYS - {"stage"}
                assert all(label in target["expr"] for label in missing), panel["title"]


def test_every_metric_is_on_the_dashboard(families: Families) -> None:
    text = DASHBOARD.read_text() + ALERTS.read_text()
    # by name in docs/metrics.md only
    unseen = {name for name in families if name not in text}
    assert unseen == {"quietcount_records", "quietcount_recovered_records"}


def test_the_document_lists_every_metric_as_it_is(families: Families) -> None:
    row = r"(?m)^\| `(quietcount_\w+)` \| (\w+) \|([^|]*)\| (.*) \|$"
    rows = re.findall(row, (ROOT / "docs" / "metrics.md").read_text())
    listed = {
        name: (kind, text, set(filter(None, labels.strip().split(", "))))
        for name, kind, labels, text in rows
    }
    shown = {
        name + ("_total" if kind == "counter" else ""): (kind, text, labels)
        for name, (kind, text, labels) in families.items()
    }
    assert listed == shown
