"""What must be right in every case has tests that reach every branch of it, without luck.

They run once more here, on a copy, in an interpreter that measures itself, without the recorded
traffic and with few and fixed examples for each law. What runs in a process of its own (the writer
of a spool) is played in this one by some test.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

LAWS: Final = "tests/translator/test_laws.py"
"""Not counted on: laws find what they find."""

COPIED: Final = ("bridge_project", "proxy", "tests", "translator")

GATEWAY: Final = (
    "auth", "budgets", "directory", "entries", "ledger", "limits", "shared_limits",
)  # fmt: skip
RECORD: Final = (
    "drainer", "landing", "posting", "pricing", "recorder", "records", "recovery", "rows", "seals",
    "settlement", "slots", "spending", "spool", "spool_file", "spool_writer", "statements",
    "transcripts",
)  # fmt: skip
BOOKS: Final = frozenset({
    *(f"proxy/gateway/{name}.py" for name in GATEWAY),
    *(f"proxy/record/{name}.py" for name in RECORD),
})  # fmt: skip
"""Who may ask, how much, and what is written of it."""

TESTS_OF_GATEWAY: Final = (
    "before_the_dial", "budgets", "configuration", "cooldown", "counting", "entries", "exchanges",
    "exchange_budgets", "keeping", "limit_figures", "limits", "routes", "shared_limits",
)  # fmt: skip
TESTS_OF_RECORD: Final = (
    "beginnings", "draining", "endings", "fitting", "landing", "pace", "posting", "pricing",
    "recorder", "rows", "slots", "spending", "spool", "spool_file", "statements", "transcripts",
    "writer",
)  # fmt: skip
TESTS_OF_BOOKS: Final = (
    "tests/threats/test_key_check.py",
    *(f"tests/proxy/gateway/test_{name}.py" for name in TESTS_OF_GATEWAY),
    *(f"tests/proxy/record/test_{name}.py" for name in TESTS_OF_RECORD),
    "-m", "not hypothesis",  # laws find what they find here as well
    "-k", "not ten_thousand_operations",  # eight seconds, for the same branches
)  # fmt: skip
"""Those that take seconds, not minutes."""


def measured(
    repository: Path, folder: Path, packages: Iterable[str], tests: Iterable[str]
) -> Mapping[str, Any]:
    """What coverage tells of each file of the packages, by its path, when these tests run."""
    copy = folder / "bare" / "repository"  # nothing recorded lies beside it
    for name in COPIED:
        shutil.copytree(
            repository / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(repository / "pyproject.toml", copy)
    report = folder / "coverage.json"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"), *tests,
        *(f"--cov={name}" for name in packages), "--cov-branch", f"--cov-report=json:{report}",
    ]  # fmt: skip
    environment = {**os.environ, "LAWS": "few", "COVERAGE_FILE": str(folder / "measured")}

    run = subprocess.run(  # noqa: S603 - the command line above
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout[-5_000:] + run.stderr
    files: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))["files"]
    return files


def missed(files: Mapping[str, Any]) -> dict[str, Any]:
    """The lines and branches that no test reached, by file."""
    return {
        name: {"lines": told["missing_lines"], "branches": told["missing_branches"]}
        for name, told in files.items()
        if told["missing_lines"] or told["missing_branches"]
    }


@pytest.mark.timeout(600)
def test_the_cases_reach_every_branch_of_the_translator(repository, tmp_path):
    tests = ("tests/translator", f"--ignore={LAWS}")

    files = measured(repository, tmp_path, ["translator"], tests)

    assert len(files) > 50
    assert missed(files) == {}


@pytest.mark.timeout(600)
def test_tests_reach_every_branch_of_keys_limits_and_ledger(repository, tmp_path):
    files = measured(repository, tmp_path, ["proxy.gateway", "proxy.record"], TESTS_OF_BOOKS)

    assert files.keys() >= BOOKS
    assert missed({name: files[name] for name in BOOKS}) == {}
