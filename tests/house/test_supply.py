"""What is installed beside us: floors below which an advisory is open, and code that runs unasked."""

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
"""A ``.pth`` file may run code at every start of Python; these are the ones that we know."""


def floors():
    return tomllib.loads(FLOORS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", floors())
def test_nothing_is_installed_that_an_advisory_is_open_for(name):
    try:
        installed = Version(version(name))
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed, so nothing of it can be attacked")

    told = floors()[name]
    assert installed >= Version(told["floor"]), told["why"]


def test_what_we_ask_for_is_asked_for_at_its_floor_or_above(repository):
    """pip must not be free to choose what the floor forbids."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    asked = {}
    for line in project["project"]["dependencies"]:
        requirement = Requirement(line)
        asked[requirement.name.lower()] = min(
            (Version(one.version) for one in requirement.specifier if one.operator in {">=", "=="}),
            default=None,
        )

    below = {
        name: str(asked[name])
        for name, told in floors().items()
        if asked.get(name) is not None and asked[name] < Version(told["floor"])
    }

    assert below == {}


def test_no_file_runs_code_at_every_start_that_nobody_knows():
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}

    unknown = [
        path.name
        for folder in folders
        for path in folder.glob("*.pth")
        if not STARTERS.match(path.name)
        and any(line.startswith("import") for line in path.read_text(errors="replace").splitlines())
    ]

    assert unknown == []


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
