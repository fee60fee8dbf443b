"""No secret has a default, and a bad one refuses to start."""

import importlib.util
import os
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from bridge_project.env import TABLE

SECRETS = [variable.name for variable in TABLE if variable.secret]


def manage(repository, tmp_path, *arguments, **environment):
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "manage.py", *arguments],
        cwd=repository,
        env={**inherited, "BRIDGE_DATA_DIR": str(tmp_path / "data"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("variable", TABLE, ids=lambda variable: variable.name)
def test_a_secret_has_no_default(variable):
    assert not variable.secret or variable.default == ""


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("value", ["", "   "])
def test_a_secret_that_is_set_but_empty_is_refused_by_name(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("BRIDGE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv(name, value)
    spec = importlib.util.find_spec("bridge_project.settings")

    with pytest.raises(ImproperlyConfigured, match=name):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

    assert not (tmp_path / "data").exists()


def test_serve_names_an_empty_secret_in_one_line(repository, tmp_path):
    run = manage(repository, tmp_path, "serve", "--port", "0", BRIDGE_SECRET_KEY=" ")

    assert run.returncode == 2
    assert "BRIDGE_SECRET_KEY" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "data").exists()


def test_a_short_secret_key_is_refused(repository, tmp_path):
    run = manage(repository, tmp_path, "serve", "--port", "0", BRIDGE_SECRET_KEY="changeme")

    assert run.returncode != 0
    assert "BRIDGE_SECRET_KEY is too weak" in run.stderr
    assert "changeme" not in run.stderr


def test_the_deployment_checklist_of_django_has_no_complaint(repository, tmp_path):
    run = manage(
        repository,
        tmp_path,
        "check",
        "--deploy",
        "--tag",
        "security",
        "--fail-level",
        "WARNING",
        BRIDGE_HTTPS="1",
        BRIDGE_SECRET_KEY="".join(chr(97 + i * 7 % 26) + str(i) for i in range(40)),
    )

    assert run.returncode == 0, run.stderr
