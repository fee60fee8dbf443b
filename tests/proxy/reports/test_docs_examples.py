"""Each example of docs/reports-api.md runs as it stands, against a gateway's own reports."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import promql_parser
import pytest
import yaml

from proxy.metrics import catalogue
from proxy.models import ApiKey
from proxy.reports import export_jobs
from proxy.reports.catalogue import VIEWS
from proxy.routing import EXACT
from tests.proxy.admin import cast

from .serving import deciding

PAGE = (Path(__file__).parents[3] / "docs/reports-api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- example: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
SHELL = [text for kind, text in EXAMPLES if kind == "curl"]


def text_of(kind):
    (text,) = (text for one, text in EXAMPLES if one == kind)
    return text


@pytest.fixture
def surroundings(served_url, tmp_path, monkeypatch):
    """Environment of a reader of the page, whose gateway has answered one request."""
    monkeypatch.setattr(export_jobs, "conf", replace(export_jobs.conf, data_dir=tmp_path))
    cast.price()
    cast.record()
    secret = cast.key("finance", scopes=["admin"])[1]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with deciding():
        yield {**kept, "BRIDGE_URL": served_url, "BRIDGE_KEY": secret}
    export_jobs.runner.join()


def run(command, surroundings, folder):
    done = subprocess.run(  # noqa: S603  # the page's own words
        command,
        env=surroundings,
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
def test_the_examples_with_curl_run(surroundings, tmp_path, example):
    printed = run(["bash", "-c", example], surroundings, tmp_path)

    if saved := re.search(r"-o (\w+\.csv)", example):
        assert len((tmp_path / saved[1]).read_text().splitlines()) == 2
    elif "/rehearsal/" in example:
        assert json.loads(printed)["refused_by"] == "scope"  # a key of finance calls no model
    else:
        assert json.loads(printed)["totals"]["requests"] == 1


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed: examples did not run")
@pytest.mark.django_db(transaction=True)
def test_the_example_that_writes_makes_a_key_uses_it_and_revokes_it(surroundings, tmp_path):
    root = cast.superuser()
    root.set_password("correct horse battery")
    root.save()
    signed_in = {"BRIDGE_USER": "root", "BRIDGE_PASSWORD": "correct horse battery"}

    printed = run(["bash", "-c", text_of("session")], surroundings | signed_in, tmp_path)

    key = ApiKey.objects.get(name="ci")
    me, gone = printed.replace("}{", "}\n{").splitlines()
    assert json.loads(me)["name"] == "ci"
    assert json.loads(gone)["id"] == key.pk
    assert key.revoked


@pytest.mark.django_db(transaction=True)
def test_the_example_with_pandas_runs(surroundings, tmp_path):
    printed = run([sys.executable, "-c", text_of("pandas")], surroundings, tmp_path)

    assert re.search(r"claude-opus-5-5 +1 +50 +0\.00075", printed)


@pytest.mark.django_db(transaction=True)
def test_the_example_with_the_official_sdk_runs(surroundings, tmp_path):
    printed = run([sys.executable, "-c", text_of("sdk")], surroundings, tmp_path)

    assert "'uncached_input_tokens': 100" in printed


@pytest.mark.django_db
def test_the_query_for_grafana_is_answered_with_its_columns(client):
    cast.record()
    told = json.loads(text_of("grafana"))
    secret = cast.key("finance", scopes=["admin"])[1]
    url = told["url"].replace("${__from:date:iso}", "2026-11-19T23:00:00.000Z")
    url = url.replace("${__to:date:iso}", "2026-11-21T11:30:00.000Z")

    answer = client.get(url, headers={"x-api-key": secret}).json()

    rows = answer[told["root_selector"]]
    assert [row["requests"] for row in rows] == [1]
    assert {column["selector"] for column in told["columns"]} <= set(rows[0])


def test_prometheus_is_told_where_to_read():
    (job,) = yaml.safe_load(text_of("prometheus"))["scrape_configs"]

    assert job["metrics_path"] in EXACT
    assert set(job) == {"job_name", "metrics_path", "static_configs"}


@pytest.mark.parametrize("question", text_of("promql").splitlines())
def test_what_prometheus_is_asked_is_counted_under_that_name(question):
    promql_parser.parse(question)
    known = {metric.name: metric for metric in vars(catalogue).values() if is_metric(metric)}

    named = re.findall(r"\b(bridge_\w+?)(_bucket)?[\[{]", question)

    assert named
    for name, _ in named:
        labels = re.findall(r"by \(([^)]*)\)", question)
        asked = {label.strip() for some in labels for label in some.split(",")} - {"le"}
        assert asked <= set(known[name].labels)


def is_metric(value):
    return isinstance(value, catalogue.Metric)


@pytest.mark.parametrize("route", VIEWS)
def test_every_path_is_on_the_page(route):
    path = re.sub(r"<\w+:(\w+)>", r"{\1}", route)

    assert f"| `GET /api/v1/{path}/` |" in PAGE
