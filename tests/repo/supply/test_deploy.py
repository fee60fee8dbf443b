"""Check that deploy/ agrees with the product: names, ports, settings, times, versions."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml
from django.urls import get_resolver
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bridge_project.env import VARIABLES
from proxy.config.load import read_file
from proxy.ledger.journal.journal_metrics import GAUGES
from proxy.metrics.definitions import BY_NAME
from proxy.metrics.node_state import NODE_GAUGES
from proxy.routing import EXACT_PATHS
from tests.fakes.optional_tools import skip_or_fail

DEPLOY = Path(__file__).parents[3] / "deploy"
KUBERNETES = "1.32"
SUFFIXES = ("_bucket", "_sum", "_count")
FREE_LABELS = {"instance", "job", "le", "namespace", "pod"}  # labels of Prometheus itself
PROCESS_METRICS = (
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds",
)  # fmt: skip
GIVEN = {"POSTGRES_PASSWORD", "OPENAI_API_KEY"}  # metrics of other exporters


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text()) if each]


def manifests() -> list[dict[str, Any]]:
    skipped = {"kustomization.yaml", "prometheus-adapter.yaml", "podmonitor.yaml"}
    names = sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml"))
    return [
        each for name in names if name not in skipped for each in documents(f"kubernetes/{name}")
    ]


def of_kind(kind: str) -> dict[str, Any]:
    return next(each for each in manifests() if each["kind"] == kind)


def rules() -> list[dict[str, Any]]:
    [file] = documents("prometheus/alerts.yaml")
    return [rule for group in file["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


EXPRESSIONS = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in rules()},
    **{
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    },
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_uses_existing_metrics_and_labels(name):
    text = EXPRESSIONS[name].replace("$__rate_interval", "5m").replace("$instance", ".*")
    exported = {name: set(metric.label_names) for name, metric in BY_NAME.items()}
    gauges = (*GAUGES, *NODE_GAUGES)
    exported |= {gauge.name: set(gauge.label_names) for gauge in gauges} | {"up": set()}
    exported |= {name: {"worker"} for name in PROCESS_METRICS}

    promql_parser.parse(text)

    labels = set()
    for metric in set(re.findall(r"\b(bridge_\w+|process_\w+|up)\b(?!\")", text)):
        plain = next((metric.removesuffix(s) for s in SUFFIXES if metric.endswith(s)), metric)
        assert plain in exported, f"/metrics has no {metric}"
        labels |= exported[plain]
    used = set(re.findall(r"[{,]\s*(\w+)\s*[=!]", text))
    for group in re.findall(r"by \(([^)]*)\)", text):
        used |= {label.strip() for label in group.split(",")}
    assert used - FREE_LABELS <= labels


def test_every_metric_is_on_the_dashboard():
    shown = " ".join(text for name, text in EXPRESSIONS.items() if name.startswith("panel"))

    metrics = [*BY_NAME, *(gauge.name for gauge in (*GAUGES, *NODE_GAUGES))]
    assert {metric for metric in metrics if metric not in shown} == set()


def test_each_panel_of_the_dashboard_has_title_unit_and_queries():
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]

    assert len(ids) == len(set(ids)) > 20
    for panel in panels():
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert all(target["legendFormat"] for target in panel["targets"])


def test_a_rejected_upstream_key_raises_an_alert():
    [expr] = [r["expr"] for r in rules() if r["alert"] == "BridgeUpstreamKeyRefused"]

    assert 'bridge_upstream_attempts_total{status="401"}' in expr


def test_every_alert_has_instructions():
    assert len(rules()) > 5
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_promtool_accepts_the_rules():
    promtool = shutil.which("promtool")
    if promtool is None:
        skip_or_fail("NO promtool HERE (Debian: prometheus): the rules were only parsed")

    run = subprocess.run(  # noqa: S603 - our own command line
        [promtool, "check", "rules", DEPLOY / "prometheus/alerts.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "manifest", manifests(), ids=lambda each: each["metadata"]["name"] + "-" + each["kind"]
)
def test_a_manifest_is_valid(manifest):
    import kubernetes_validate  # imported here: it takes two seconds

    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_kustomize_renders_it():
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("NO kubectl HERE: the manifests were validated one by one, not rendered")

    run = subprocess.run(  # noqa: S603 - our own command line
        [kubectl, "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr
    rendered = {each["kind"] for each in yaml.safe_load_all(run.stdout)}
    assert rendered >= {"StatefulSet", "Service", "Ingress", "HorizontalPodAutoscaler", "ConfigMap"}


def test_kubernetes_runs_the_image_of_this_version():
    [listed] = documents("kubernetes/kustomization.yaml")
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]

    assert {image["newTag"] for image in listed["images"]} == {project["version"]}
    [adopt] = of_kind("Job")["spec"]["template"]["spec"]["containers"]
    assert adopt["image"] == f"messages-bridge:{project['version']}"
    files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    aside = {
        "kustomization.yaml", "prometheus-adapter.yaml", "secret.example.yaml",
        "podmonitor.yaml", "adopt-journal.yaml",
    }  # fmt: skip
    assert set(listed["resources"]) == files - aside


def test_the_pod_has_known_variables_paths_and_enough_time_to_drain():
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    [gateway] = pod["containers"]
    env = {each["name"]: each["value"] for each in gateway["env"]}
    secret = of_kind("Secret")["stringData"]
    pause = int(gateway["lifecycle"]["preStop"]["exec"]["command"][1])

    assert set(env) | set(secret) <= set(VARIABLES) | GIVEN
    assert {
        gateway[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    } <= set(EXACT_PATHS)
    assert pod["terminationGracePeriodSeconds"] > pause + int(env["BRIDGE_DRAIN_S"])
    assert pod["securityContext"]["runAsNonRoot"]
    assert gateway["securityContext"]["readOnlyRootFilesystem"]
    assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile()


def test_the_autoscaler_uses_an_existing_metric():
    [metric] = of_kind("HorizontalPodAutoscaler")["spec"]["metrics"]
    [adapter] = documents("kubernetes/prometheus-adapter.yaml")

    name = metric["pods"]["metric"]["name"]
    assert name in BY_NAME
    assert [rule["name"]["as"] for rule in adapter["rules"]["custom"]] == [name]


def test_the_ingress_does_not_expose_metrics():
    [rule] = of_kind("Ingress")["spec"]["rules"]
    paths = {(each["path"], each["pathType"]) for each in rule["http"]["paths"]}

    mounts = {str(each.pattern).split("/")[0] for each in get_resolver("proxy.urls").url_patterns}
    used = {*mounts, "v1", "admin", "static", "ws"}
    assert used == {path.strip("/") for path, kind in paths if kind == "Prefix"}
    assert ("/", "Prefix") not in paths
    assert not any(path.startswith(("/metrics", "/readyz")) for path, _ in paths)


def test_compose_fits_the_product():
    [compose] = documents("compose.yaml")
    gateway = compose["services"]["gateway"]
    example = re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE)

    assert set(gateway["environment"]) | set(example) <= set(VARIABLES) | GIVEN
    assert set(gateway["depends_on"]) == {"postgres", "redis"}
    assert all("healthcheck" in compose["services"][name] for name in gateway["depends_on"])
    grace = int(gateway["stop_grace_period"].removesuffix("s"))
    assert grace > int(gateway["environment"]["BRIDGE_DRAIN_S"])
    assert gateway["read_only"]
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])
    for volume in gateway["volumes"]:
        source = volume.split(":")[0]
        assert source in compose["volumes"] or (DEPLOY / source).exists()
    used = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    assert used <= set(example)


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text()


def test_the_image_is_small_and_has_no_rights():
    text = dockerfile()
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", text, re.MULTILINE)
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]

    assert [name for _, name in stages] == ["build", ""]
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["(.+)"\]$', last, re.MULTILINE)[1] in project["scripts"]
    assert f'org.opencontainers.image.version="{project["version"]}"' in last
    assert set(re.findall(r"(BRIDGE_\w+)=", last)) <= set(VARIABLES)
    assert "--require-hashes" in text
    assert "\nRUN apt" not in text


def test_every_file_that_the_image_copies_exists_and_is_not_ignored():
    allowed = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile(), re.MULTILINE)
        for name in line.split()
    ]

    assert len(copied) >= 7
    for name in copied:
        assert (DEPLOY.parent / name).exists()
        assert f"!{name}" in allowed


def test_systemd_accepts_the_units(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("NO systemd-analyze HERE: the units were not verified")
    units = []
    for source in sorted((DEPLOY / "systemd").iterdir()):
        units.append(tmp_path / source.name)
        text = source.read_text()
        units[-1].write_text(text.replace("/opt/messages-bridge/bin/messages-bridge", "/bin/true"))

    run = subprocess.run(  # noqa: S603 - our own command line
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )

    assert len(units) == 3
    assert "messages-bridge" not in run.stderr, run.stderr
    text = (DEPLOY / "systemd/messages-bridge.service").read_text()
    assert int(re.search(r"TimeoutStopSec=(\d+)", text)[1]) > int(
        re.search(r"BRIDGE_DRAIN_S=(\d+)", text)[1]
    )


@pytest.mark.parametrize("name", ["bridge.example.toml", "kubernetes/bridge.toml"])
def test_an_example_configuration_can_be_applied(name, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")

    file = read_file(DEPLOY / name)

    assert [route["model"] for route in file.routes] == ["claude-*"]


class Locked(NamedTuple):
    name: str
    version: str
    entry: str


def locked() -> list[Locked]:
    """Return the locked packages; a package may appear twice, for different Python versions."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", (DEPLOY / "requirements.lock").read_text())
    heads = [(re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)", entry), entry) for entry in entries]
    return [Locked(canonicalize_name(head[1]), head[2], entry) for head, entry in heads if head]


LOCKED_EXTRAS = ("otel", "aws", "google", "azure")
"""The extras that a deployment may need; all others are for development."""


def test_the_lock_contains_every_dependency_with_its_hash():
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    used = [*project["dependencies"]]
    for extra in LOCKED_EXTRAS:
        used += project["optional-dependencies"][extra]
    found = locked()

    missing = []
    for text in used:
        needed = Requirement(text)
        versions = [each.version for each in found if each.name == canonicalize_name(needed.name)]
        if not versions or not all(
            needed.specifier.contains(each, prereleases=True) for each in versions
        ):
            missing.append(text)
    assert missing == [], "generate it again with deploy/lock"
    assert {each.name for each in found if "--hash=sha256:" not in each.entry} == set()
    assert "://" not in (DEPLOY / "requirements.lock").read_text()


@pytest.mark.slow  # cyclonedx-py takes ten seconds
def test_the_bill_of_materials_lists_the_locked_packages():
    binaries = str(Path(sys.executable).parent)
    run = subprocess.run(  # noqa: S603 - our own command line
        [DEPLOY / "sbom"], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip

    assert run.returncode == 0, run.stderr
    bill = json.loads(run.stdout)
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "messages-bridge"
    named = {(canonicalize_name(each["name"]), each["version"]) for each in bill["components"]}
    assert named == {(each.name, each.version) for each in locked()}
