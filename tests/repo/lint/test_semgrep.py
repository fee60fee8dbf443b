"""Check that the project's semgrep rules find nothing and exclude only files with a reason.

semgrep runs in the slow lane, because test_rules.py checks the same rules. It has an environment of
its own, because it needs older libraries than the other tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .test_rules import ALLOWED, PACKAGES, REPOSITORY

SEMGREP = "semgrep==1.182.0"
RULES = REPOSITORY / "tests/repo/lint/semgrep/rules.yaml"
OPTIONS = (
    "--metrics=off", "--disable-version-check", "--oss-only", "--no-git-ignore",
    "--exclude", "migrations", "--json", "--quiet",
)  # fmt: skip


def test_only_files_with_a_reason_are_excluded():
    for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["rules"]:
        for path in rule.get("paths", {}).get("exclude", ()):
            assert (rule["id"].replace("-", " "), path) in ALLOWED


@pytest.fixture(scope="module")
def semgrep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("semgrep")
    run(sys.executable, "-m", "venv", str(folder))
    run(str(folder / "bin/pip"), "install", "--quiet", SEMGREP)
    return folder / "bin"


def run(*command: str, path: str = "") -> str:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(  # noqa: S603 - our own command lines
        command, capture_output=True, text=True, check=False, env=environment, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found_in(semgrep: Path, *places: str) -> list[str]:
    command = [str(semgrep / "semgrep"), "scan", *OPTIONS, "--config", str(RULES), *places]
    report = json.loads(run(*command, path=str(semgrep)))
    assert report["errors"] == []
    return [f"{one['check_id']} {one['path']}:{one['start']['line']}" for one in report["results"]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_semgrep_finds_nothing(semgrep: Path):
    assert found_in(semgrep, *PACKAGES) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_semgrep_finds_a_violation(semgrep: Path, tmp_path: Path):
    (tmp_path / "bad.py").write_text("link.execute(f'SELECT {name}')\neval(name)\n")

    assert len(found_in(semgrep, str(tmp_path))) == 2
