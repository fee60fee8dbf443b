"""Check that deterministic tests reach every branch of the translator and of the critical modules.

The tests run again here, on a copy, under coverage, without the recorded traffic and with few and
fixed examples for each law.
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

LAWS: Final = "tests/translator/all_dialects/test_laws.py"
"""Excluded from the measurement: property tests choose random examples."""

COPIED: Final = ("bridge_project", "proxy", "tests", "translator")

MODULES: Final = {
    "proxy/gateway/admission": (
        "auth",
        "budgets",
        "rate_limits",
        "shared_rate_limits",
    ),
    "proxy/gateway/exchange": (
        "ledger_records",
        "request_context",
    ),
    "proxy/gateway/snapshot": ("config_snapshot",),
    "proxy/ledger": ("recorder",),
    "proxy/ledger/database": ("bulk_sql",),
    "proxy/ledger/journal": (
        "durability_future",
        "journal",
        "locks",
        "reader",
        "records",
        "segments",
    ),
    "proxy/ledger/maintenance": ("close_stale_rows",),
    "proxy/ledger/posting": (
        "budget_sync",
        "drainer",
        "exchange_columns",
        "hash_chain",
        "journal_posting",
        "ledger_writer",
        "orphans",
    ),
    "proxy/ledger/transcripts": ("storage",),
    "proxy/ledger/usage": ("pricing",),
}
LEDGER_AND_ADMISSION: Final = frozenset(
    f"{folder}/{name}.py" for folder, names in MODULES.items() for name in names
)
"""The modules of authentication, limits and the ledger."""

TEST_MODULES: Final = {
    "tests/proxy/gateway/admission": (
        "budget_store_outage",
        "budgets",
        "cooldown",
        "rate_limit_values",
        "rate_limits",
        "route_selection",
        "shared_rate_limits",
    ),
    "tests/proxy/gateway/exchange": (
        "budgets_in_records",
        "ledger_records",
        "record_before_upstream",
        "request_context",
        "request_recording",
        "stored_reads",
    ),
    "tests/proxy/gateway/snapshot": ("config_cache",),
    "tests/proxy/ledger": ("recorder",),
    "tests/proxy/ledger/database": ("bulk_sql",),
    "tests/proxy/ledger/journal": (
        "durability_future",
        "journal",
        "journal_faults",
        "locks",
        "reader",
        "records",
        "sanitizing",
        "segments",
    ),
    "tests/proxy/ledger/maintenance": ("close_stale_rows",),
    "tests/proxy/ledger/posting": (
        "budget_owners",
        "budget_sync",
        "drain_pause",
        "drainer",
        "exchange_columns",
        "journal_posting",
        "ledger_writer",
        "orphans",
    ),
    "tests/proxy/ledger/transcripts": ("storage",),
    "tests/proxy/ledger/usage": ("pricing",),
}
TESTS_OF_LEDGER_AND_ADMISSION: Final = (
    "tests/slow/threats/accounts/test_key_check.py",
    *(f"{folder}/test_{name}.py" for folder, names in TEST_MODULES.items() for name in names),
    "-m", "not hypothesis and not slow",  # as above: random examples
    "-k", "not thousands_of_operations",  # eight seconds, for the same branches
)  # fmt: skip
"""Those that take seconds, not minutes."""


def measured(
    repository: Path, folder: Path, packages: Iterable[str], tests: Iterable[str]
) -> Mapping[str, Any]:
    """Run these tests under coverage; return its report by file path."""
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
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "measured")}

    run = subprocess.run(  # noqa: S603 - the command line above
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout[-5_000:] + run.stderr
    files: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))["files"]
    return files


def missed(files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines and branches that no test reached, by file."""
    return {
        name: {"lines": report["missing_lines"], "branches": report["missing_branches"]}
        for name, report in files.items()
        if report["missing_lines"] or report["missing_branches"]
    }


@pytest.mark.timeout(600)
def test_the_cases_reach_every_branch_of_the_translator(repository, tmp_path):
    tests = ("tests/translator", f"--ignore={LAWS}")

    files = measured(repository, tmp_path, ["translator"], tests)

    assert len(files) > 50
    assert missed(files) == {}


@pytest.mark.timeout(600)
def test_the_tests_reach_every_branch_of_keys_limits_and_ledger(repository, tmp_path):
    files = measured(
        repository,
        tmp_path,
        ["proxy.gateway", "proxy.ledger"],
        TESTS_OF_LEDGER_AND_ADMISSION,
    )

    assert files.keys() >= LEDGER_AND_ADMISSION
    assert missed({name: files[name] for name in LEDGER_AND_ADMISSION}) == {}
