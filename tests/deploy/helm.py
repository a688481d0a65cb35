"""Renders the chart: with Helm where there is one, and always with the few words of its language that the chart uses.

Helm is a Go program that takes minutes to build, and CI has none. So the templates keep to the words below, which mean here what
they mean to Helm: `QUIETCOUNT_HELM`, or a `helm` on the path, makes the tests compare both, object by object. A word that is not
here raises.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from tests import ROOT

CHART = ROOT / "deploy" / "helm" / "quietcount"
RELEASE = "quietcount"
#: Kubernetes that a render is for, where no cluster is asked.
KUBERNETES = "1.29.0"

_TAG = re.compile(r"\{\{(-?)(.*?)(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')


class ChartError(Exception):
    """What the chart refuses."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: merged(base[name], over[name])
        if isinstance(base.get(name), dict) and isinstance(over.get(name), dict)
        else over.get(name, base.get(name))
        for name in {**base, **over}
    }


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    context = {
        "Values": merged(yaml.safe_load((CHART / "values.yaml").read_text()), values),
        "Release": {"Name": RELEASE},
        "Chart": {
            "AppVersion": yaml.safe_load((CHART / "Chart.yaml").read_text())[
                "appVersion"
            ]
        },
    }
    paths = sorted((CHART / "templates").glob("*.yaml"))
    texts = (render(path.read_text(), context) for path in paths)
    return [
        document for text in texts for document in yaml.safe_load_all(text) if document
    ]


def by_helm(values: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    helm = os.environ.get("QUIETCOUNT_HELM") or shutil.which("helm")
    if helm is None:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(dict(values), file)
        file.flush()
        options = ["--kube-version", KUBERNETES, "-f", file.name]
        command = [helm, "template", RELEASE, str(CHART), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def render(template: str, context: Mapping[str, Any]) -> str:
    """A template's text, with `if`, `else` and `end` followed and all else evaluated."""
    out: list[str] = []
    holds: list[bool] = []
    for text, words in _pieces(template):
        if all(holds):
            out.append(text)
        if not words:
            continue
        if words[0] == "if":
            holds.append(bool(_evaluate(words[1:], context)))
        elif words == ["else"]:
            holds.append(not holds.pop())
        elif words == ["end"]:
            holds.pop()
        elif all(holds):
            value = _evaluate(words, context)
            out.append(value if isinstance(value, str) else json.dumps(value))
    if holds:
        raise ChartError("an if without its end")
    return "".join(out)


def _pieces(template: str) -> Iterator[tuple[str, list[str]]]:
    """The text before each tag, trimmed where the tags say so, and the tag's words; in the end the rest."""
    at = 0
    trim = False
    for tag in _TAG.finditer(template):
        text = template[at : tag.start()]
        text = text.lstrip() if trim else text
        yield text.rstrip() if tag[1] else text, _WORD.findall(tag[2])
        at = tag.end()
        trim = bool(tag[3])
    yield template[at:].lstrip() if trim else template[at:], []


def _evaluate(words: Sequence[str], context: Mapping[str, Any]) -> Any:
    """A pipeline: each part gets what is before it as its last argument."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    value: Any = None
    for place, (name, *arguments) in enumerate(parts):
        before = [] if place == 0 else [value]
        value = _call(
            name, [*(_value(one, context) for one in arguments), *before], context
        )
    return value


def _value(word: str, context: Mapping[str, Any]) -> Any:
    if word.startswith('"'):
        return json.loads(word)
    if word.isdigit():
        return int(word)
    found: Any = context
    for name in word.removeprefix(".").split("."):
        # a name that is not there would be nothing to Helm, and is a slip
        found = found[name]
    return found


def _call(name: str, arguments: list[Any], context: Mapping[str, Any]) -> Any:
    match name, arguments:
        case ".Files.Get", [path]:
            return (CHART / path).read_text()
        case "quote", [value]:
            return json.dumps(
                value if isinstance(value, str) else str(value), ensure_ascii=False
            )
        case "toYaml", [value]:
            return yaml.safe_dump(value).removesuffix("\n")
        case "nindent", [width, text]:
            return "\n" + "\n".join(" " * width + line for line in text.split("\n"))
        case "sha256sum", [text]:
            return hashlib.sha256(text.encode()).hexdigest()
        case "default", [instead, value]:
            return value or instead
        case "replace", [old, new, text]:
            return text.replace(old, new)
        case "required", [message, value]:
            if not value:
                raise ChartError(message)
            return value
        case _, [] if name.startswith("."):
            return _value(name, context)
    raise ChartError(f"{name} is not among the words that tests/deploy/helm.py knows")
