"""Branch coverage of the translator and of the critical modules, measured in the fast lane itself.

A trace function makes code slower, and only threads that start later get it. So the files with the
measured tests come first in each process, and the trace function is removed after them. These tests
do the same in each run: a property has fixed examples in the fast lane, and tests that read
recordings beside the repository are left out. The test of the coverage combines what the processes
measured.

Run as a program, this module measures the import of the modules: ``python -m tests.lanes.measurement
FILE MODULE...``.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

from .time_limit import file_of

REPOSITORY: Final = Path(__file__).parents[2]
NAME: Final = "measurement"

MODULES: Final = {
    "proxy/gateway/admission": ("auth", "budgets", "rate_limits", "shared_rate_limits"),
    "proxy/gateway/exchange": ("ledger_records", "request_context"),
    "proxy/gateway/snapshot": ("config_snapshot",),
    "proxy/ledger": ("recorder",),
    "proxy/ledger/database": ("bulk_sql",),
    "proxy/ledger/journal": (
        "durability_future", "journal", "locks", "reader", "records", "segments",
    ),
    "proxy/ledger/maintenance": ("close_stale_rows",),
    "proxy/ledger/posting": (
        "budget_sync", "drainer", "exchange_columns", "hash_chain", "journal_posting",
        "ledger_writer", "orphans",
    ),
    "proxy/ledger/transcripts": ("storage",),
    "proxy/ledger/usage": ("pricing",),
}  # fmt: skip
CRITICAL: Final = frozenset(
    f"{folder}/{name}.py" for folder, names in MODULES.items() for name in names
)
"""The modules of authentication, limits and the ledger."""

TRANSLATOR: Final = frozenset(
    str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "translator").rglob("*.py")
)
EXCLUDED_LINES: Final = ("if TYPE_CHECKING:", "@overload", r"\.\.\.$")

TESTS: Final = (
    "tests/translator/",
    "tests/proxy/gateway/admission/",
    "tests/proxy/gateway/exchange/",
    "tests/proxy/gateway/snapshot/",
    "tests/proxy/gateway/upstream/decoding/test_text_deltas.py",  # their text goes to the translator at once
    "tests/proxy/ledger/",
    "tests/proxy/encryption/test_bodies.py",
    "tests/slow/threats/accounts/test_key_check.py",
)
LEFT_OUT: Final = (
    "test_corpus.py", "test_laws.py", "test_linear_work.py",
    "ledger/outcomes/", "ledger/maintenance/archive/", "ledger/webhooks/", "ledger/test_commands.py",
    "posting/test_drift.py", "posting/test_rollups.py",
    "journal/test_kill.py", "database/test_on_postgresql.py", "database/test_outage.py",
    "database/test_schema_check.py",
    "admission/test_hard_budgets.py", "admission/test_revocation_watcher.py",
    "admission/test_load_shedding.py", "exchange/test_rejected_bodies.py",
    "snapshot/test_config_changes.py", "snapshot/test_content_policy.py",
    "snapshot/test_upstream_policies.py",
)  # fmt: skip
"""Parts of paths: files that read recordings, find a branch only by many examples, or count calls;
and files that take long and reach no branch that a shorter file does not reach."""


def is_measured(item: pytest.Item) -> bool:
    file = file_of(item.nodeid)
    return file.startswith(TESTS) and not any(part in file for part in LEFT_OUT)


def new_measurement(file: Path) -> coverage.Coverage:
    include = [str(REPOSITORY / name) for name in (*TRANSLATOR, *CRITICAL)]
    measured = coverage.Coverage(str(file), branch=True, config_file=False, include=include)
    for line in EXCLUDED_LINES:
        measured.exclude(line)
    return measured


class Measurement:
    """A plugin that measures the tests of this process and writes its part into a folder."""

    def __init__(self, folder: Path, process: str) -> None:
        self._part = folder / f"{process}.part"
        self._number = folder / f"{process}.number"
        self._folder = folder
        self._coverage = new_measurement(self._part)
        self._runs, self._ran = False, 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        if not is_measured(item):
            return (yield)
        if not self._runs:
            self._coverage.start()
            self._runs = True
        result = yield
        self._ran += 1
        if not nextitem or not is_measured(nextitem):
            self._save()
        return result

    def _save(self) -> None:
        """Write what was measured, then the number of tests that it contains."""
        self._coverage.stop()
        self._runs = False
        self._coverage.save()
        written = self._number.with_suffix(".new")
        written.write_text(str(self._ran))
        written.rename(self._number)

    def wait_for_all(self, expected: int) -> None:
        """Wait until all processes have written what they measured; the test's timeout ends it."""
        while sum(int(each.read_text()) for each in self._folder.glob("*.number")) < expected:
            time.sleep(0.2)

    def missed(self, files: Iterable[str]) -> list[str]:
        """Return the lines and branches of these files that no test reached, a text for each file."""
        names = sorted(files)
        modules = [name.removesuffix(".py").replace("/", ".") for name in names]
        imported = self._folder / "imports.part"
        command = [sys.executable, "-m", __name__, str(imported), *modules]
        subprocess.run(command, cwd=REPOSITORY, check=True)  # noqa: S603 - our own command line
        combined = new_measurement(self._folder / f"{os.getpid()}.combined")
        combined.combine([str(part) for part in self._folder.glob("*.part")], keep=True)
        report = self._folder / f"{os.getpid()}.json"
        paths = [str(REPOSITORY / name) for name in names]
        combined.json_report(paths, outfile=str(report))
        found = json.loads(report.read_text(encoding="utf-8"))["files"]
        assert len(found) == len(names)
        return [
            f"{name}: lines {one['missing_lines']}, branches {one['missing_branches']}"
            for name, one in found.items()
            if one["missing_lines"] or one["missing_branches"]
        ]


def measure_imports(file: Path, modules: Iterable[str]) -> None:
    measured = new_measurement(file)
    measured.start()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    importlib.import_module("django").setup()
    for module in modules:
        importlib.import_module(module.removesuffix(".__init__"))
    measured.stop()
    measured.save()


if __name__ == "__main__":
    measure_imports(Path(sys.argv[1]), sys.argv[2:])
