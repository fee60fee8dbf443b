"""Render the Helm chart with Go's text/template and compare it with deploy/kubernetes.

The chart uses the functions of Go's templates only, so Helm's own are not needed to render it.
"""

import copy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.load import read_file
from tests.fakes.optional_tools import skip_or_fail

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm"
KUBERNETES = "1.32"
RENDER = "import sys; from go_template import render_template; render_template(*sys.argv[1:])"


def values() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def render(chosen: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the manifests of all templates. The engine runs in a process of its own."""
    data = folder / "values.yaml"
    data.write_text(yaml.safe_dump({"Values": chosen}), encoding="utf-8")
    found = []
    for template in sorted((CHART / "templates").glob("*.yaml")):
        output = folder / f"rendered-{template.name}"
        run = subprocess.run(  # noqa: S603 - our own command line
            [sys.executable, "-c", RENDER, template, data, output],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode != 0:
            skip_or_fail(
                f"NO Go templates HERE: the Helm chart was not rendered: {run.stderr[-200:]}"
            )
        text = output.read_text(encoding="utf-8")
        assert "<no value>" not in text, f"{template.name} uses a value that values.yaml lacks"
        found += [each for each in yaml.safe_load_all(text) if each]
    return found


def by_name(manifests: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def test_the_chart_has_the_version_of_the_project():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]

    assert {chart["version"], chart["appVersion"], values()["image"]["tag"]} == {project["version"]}


def kustomized() -> dict[tuple[str, str], dict[str, Any]]:
    [listed] = yaml.safe_load_all((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    files = [name for name in listed["resources"] if name != "namespace.yaml"]
    [image] = listed["images"]
    found = by_name(
        [
            each
            for name in files
            for each in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
        ]
    )
    [gateway] = found["StatefulSet", "messages-bridge"]["spec"]["template"]["spec"]["containers"]
    gateway["image"] = f"{image['name']}:{image['newTag']}"
    return found


def test_the_chart_with_its_own_values_equals_the_kustomization(tmp_path: Path):
    rendered = by_name(render(values(), tmp_path))

    configuration = rendered.pop(("ConfigMap", "bridge-config"))
    assert rendered == kustomized()
    (tmp_path / "bridge.toml").write_text(configuration["data"]["bridge.toml"], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-of-the-test")
        (route,) = read_file(tmp_path / "bridge.toml").routes
        assert route["model"] == "claude-*"


def test_other_values_reach_their_places_and_the_manifests_are_valid(tmp_path: Path):
    import kubernetes_validate  # imported here: it takes two seconds

    chosen = copy.deepcopy(values())
    chosen |= {"host": "llm.example.org", "replicas": 5, "drainSeconds": 60}
    chosen["podMonitor"]["enabled"] = True
    chosen["autoscaler"]["enabled"] = False
    chosen["networkPolicy"]["egressPorts"] = [443, 8080]

    rendered = render(chosen, tmp_path)

    for manifest in rendered:
        if manifest["kind"] != "PodMonitor":  # a custom resource has no schema of Kubernetes
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    kinds = by_name(rendered)
    assert ("HorizontalPodAutoscaler", "messages-bridge") not in kinds
    assert (
        kinds["PodMonitor", "messages-bridge"]["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    )
    stateful = kinds["StatefulSet", "messages-bridge"]["spec"]
    assert stateful["replicas"] == 5
    environment = {
        each["name"]: each["value"] for each in stateful["template"]["spec"]["containers"][0]["env"]
    }
    assert environment["BRIDGE_ALLOWED_HOSTS"] == "llm.example.org"
    assert environment["BRIDGE_DRAIN_S"] == "60"
    [rule] = kinds["Ingress", "messages-bridge"]["spec"]["rules"]
    assert rule["host"] == "llm.example.org"
    egress = kinds["NetworkPolicy", "messages-bridge"]["spec"]["egress"][-1]["ports"]
    assert [each["port"] for each in egress] == [443, 8080]
