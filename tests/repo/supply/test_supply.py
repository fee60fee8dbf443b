"""Check the installed packages: minimum versions without open advisories, and startup code."""

import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

FLOORS = Path(__file__).with_name("floors.toml")
STARTERS = re.compile(
    r"^(__editable__[.\w-]*|_?virtualenv|distutils-precedence|[\w-]*coverage|[a-z]\d_coverage"
    r"|pytest-cov|messages[_-]bridge[.\w-]*|__editable___[.\w]*)\.pth$"
)
"""A ``.pth`` file may run code at every start of Python; these are the expected ones."""


def floors():
    return tomllib.loads(FLOORS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", floors())
def test_no_installed_package_has_an_open_advisory(name):
    try:
        installed = Version(version(name))
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed, so nothing of it can be attacked")

    entry = floors()[name]
    assert installed >= Version(entry["floor"]), entry["why"]


def test_each_requirement_is_at_least_its_floor(repository):
    """A lower bound below the floor would let pip choose a version with an advisory."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    required = {}
    for line in project["project"]["dependencies"]:
        requirement = Requirement(line)
        required[requirement.name.lower()] = min(
            (Version(one.version) for one in requirement.specifier if one.operator in {">=", "=="}),
            default=None,
        )

    below = {
        name: str(required[name])
        for name, entry in floors().items()
        if required.get(name) is not None and required[name] < Version(entry["floor"])
    }

    assert below == {}


def test_no_unknown_file_runs_code_at_startup():
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}

    unknown = [
        path.name
        for folder in folders
        for path in folder.glob("*.pth")
        if not STARTERS.match(path.name)
        and any(line.startswith("import") for line in path.read_text(errors="replace").splitlines())
    ]

    assert unknown == []


@pytest.mark.slow  # ruff has most of its rules, and checks them in the fast lane
@pytest.mark.timeout(300)
def test_bandit_finds_nothing_from_medium_on(repository):
    run = subprocess.run(
        [sys.executable, "-m", "bandit", "-q", "-r", "-ll", "proxy", "translator", "bridge_project"],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-1_000:]


def test_the_lock_pins_every_package_with_its_hash(repository):
    lock = next(
        iter([*repository.glob("requirements*.lock"), *repository.glob("deploy/**/*.lock")]), None
    )
    assert lock is not None, "there is no lock file"
    text = lock.read_text(encoding="utf-8")

    pinned = re.findall(r"^([a-z0-9._\[\],-]+)==\S+", text, re.MULTILINE | re.IGNORECASE)
    entries = re.split(r"\n(?=\S)", text)

    assert len(pinned) > 30
    assert [
        entry[:60]
        for entry in entries
        if "==" in entry.split("\n")[0] and "--hash=sha256:" not in entry
    ] == []
