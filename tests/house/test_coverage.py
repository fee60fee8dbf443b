"""The translator's own tests reach every branch of it, without the recorded traffic and without luck.

They run once more here, on a copy, in an interpreter that measures itself, with few and fixed
examples for each law.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

LAWS = "tests/translator/test_laws.py"
"""Not counted on: laws find what they find."""

COPIED = ("bridge_project", "proxy", "tests", "translator")


@pytest.mark.timeout(600)
def test_the_cases_reach_every_branch_of_the_translator(repository, tmp_path):
    copy = tmp_path / "bare" / "repository"  # nothing recorded lies beside it
    for name in COPIED:
        shutil.copytree(
            repository / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(repository / "pyproject.toml", copy)
    report = tmp_path / "coverage.json"
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "tests/translator", f"--ignore={LAWS}",
        "--cov=translator", "--cov-branch", f"--cov-report=json:{report}",
    ]  # fmt: skip
    environment = {**os.environ, "LAWS": "few", "COVERAGE_FILE": str(tmp_path / "measured")}

    run = subprocess.run(  # noqa: S603 - the command line above
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout[-5_000:] + run.stderr
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    missed = {
        name: {"lines": told["missing_lines"], "branches": told["missing_branches"]}
        for name, told in files.items()
        if told["missing_lines"] or told["missing_branches"]
    }
    assert len(files) > 50
    assert missed == {}
