"""Each example of docs/reference/reports-api.md runs unchanged against a running server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from proxy.metrics.definitions import BY_NAME
from proxy.models import ApiKey
from proxy.reports.exports import jobs
from proxy.reports.urls import VIEWS, VIEWSETS
from proxy.routing import EXACT_PATHS
from tests.proxy.admin import factories

from .live_server import gateway_snapshot

PAGE = (Path(__file__).parents[3] / "docs/reference/reports-api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- example: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
SHELL = [text for kind, text in EXAMPLES if kind == "curl"]


def text_of(kind):
    (text,) = (text for one, text in EXAMPLES if one == kind)
    return text


@pytest.fixture
def environment(served_url, tmp_path, settings):
    """Return the environment variables of the examples; the ledger has one request."""
    settings.DATA_DIR = tmp_path
    factories.price()
    factories.record()
    secret = factories.key("finance", scopes=["admin"])[1]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with gateway_snapshot():
        yield {**inherited, "BRIDGE_URL": served_url, "BRIDGE_KEY": secret}
    jobs.runner.join()


def run(command, environment, folder):
    done = subprocess.run(  # noqa: S603  # the text of the page
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed: examples did not run")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("example", SHELL, ids=range(len(SHELL)))
def test_each_curl_example_runs(environment, tmp_path, example):
    printed = run(["bash", "-c", example], environment, tmp_path)

    if saved := re.search(r"-o (\w+\.csv)", example):
        assert len((tmp_path / saved[1]).read_text().splitlines()) == 2
    elif "/dry-run/" in example:
        assert json.loads(printed)["refused_by"] == "scope"  # the key has only the scope admin
    elif "idempotency-key" in example:
        assert json.loads(printed)["name"] == "mobile"
    else:
        assert json.loads(printed)["totals"]["requests"] == 1


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed: examples did not run")
@pytest.mark.django_db(transaction=True)
def test_the_session_example_creates_uses_and_revokes_a_key(environment, tmp_path):
    superuser = factories.superuser()
    superuser.set_password("correct horse battery")
    superuser.save()
    signed_in = {"BRIDGE_USER": "root", "BRIDGE_PASSWORD": "correct horse battery"}

    printed = run(["bash", "-c", text_of("session")], environment | signed_in, tmp_path)

    key = ApiKey.objects.get(name="ci")
    me, deleted = printed.replace("}{", "}\n{").splitlines()
    assert json.loads(me)["name"] == "ci"
    assert json.loads(deleted)["id"] == f"apikey_{key.pk}"
    assert key.revoked


@pytest.mark.django_db(transaction=True)
def test_the_pandas_example_runs(environment, tmp_path):
    printed = run([sys.executable, "-c", text_of("pandas")], environment, tmp_path)

    assert re.search(r"claude-opus-5-5 +1 +50 +0\.00075", printed)


@pytest.mark.django_db(transaction=True)
def test_the_sdk_example_runs(environment, tmp_path):
    printed = run([sys.executable, "-c", text_of("sdk")], environment, tmp_path)

    assert "'uncached_input_tokens': 100" in printed


@pytest.mark.django_db
def test_the_grafana_query_returns_its_columns(client):
    factories.record()
    example = json.loads(text_of("grafana"))
    secret = factories.key("finance", scopes=["admin"])[1]
    url = example["url"].replace("${__from:date:iso}", "2026-11-19T23:00:00.000Z")
    url = url.replace("${__to:date:iso}", "2026-11-21T11:30:00.000Z")

    answer = client.get(url, headers={"x-api-key": secret}).json()

    rows = answer[example["root_selector"]]
    assert [row["requests"] for row in rows] == [1]
    assert {column["selector"] for column in example["columns"]} <= set(rows[0])


def test_the_prometheus_example_names_the_metrics_path():
    (job,) = yaml.safe_load(text_of("prometheus"))["scrape_configs"]

    assert job["metrics_path"] in EXACT_PATHS
    assert set(job) == {"job_name", "metrics_path", "static_configs"}


@pytest.mark.parametrize("query", text_of("promql").splitlines())
def test_each_promql_query_names_existing_metrics_and_labels(query):
    promql_parser.parse(query)

    named = re.findall(r"\b(bridge_\w+?)(_bucket)?[\[{]", query)

    assert named
    for name, _ in named:
        labels = re.findall(r"by \(([^)]*)\)", query)
        used_labels = {label.strip() for some in labels for label in some.split(",")} - {"le"}
        assert used_labels <= set(BY_NAME[name].label_names)


READ = [route for route, view in VIEWS.items() if "get" in view.http_method_names]
ROUTES = [*READ, *(one.resource for one in VIEWSETS)]
ROUTES += [f"{one.resource}/<str:{one.lookup_url_kwarg}>" for one in VIEWSETS]


@pytest.mark.parametrize("route", ROUTES)
def test_every_path_is_in_the_docs(route):
    path = re.sub(r"<\w+:(\w+)>", r"{\1}", route)
    method = "GET" if route not in VIEWS or hasattr(VIEWS[route], "get") else "POST"

    assert f"`{method} /api/v1/{path}/`" in PAGE
