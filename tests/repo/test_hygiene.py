"""Check that no tracked file contains secrets or paths of a developer's machine."""

import re
import shutil
import subprocess

import pytest

from tests.conftest import FIRST

# One letter is in brackets so that this file does not match. The example users may have homes.
MACHINE_PATHS = re.compile(
    r"/wor[k]/(?:main|shared)|/roo[t]/|/hom[e]/(?!ada/|ben/|mallory/)[a-z]+/|/tmp/pla[n]/"
)
REAL_SECRETS = re.compile(
    r"sk-(proj|ant|svcacct)-[A-Za-z0-9_-]{32,}|AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY"
)


@pytest.fixture(scope="module")
def tracked(repository):
    """Return name -> content of every tracked text file."""
    if not (repository / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout: nothing is tracked here")
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - whichever git made the checkout
        cwd=repository,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name]
    texts = {}
    for name in names:
        path = repository / name
        if path.is_file():
            content = path.read_bytes()
            if b"\0" not in content:
                texts[name] = content.decode(errors="replace")
    return texts


def test_no_tracked_file_contains_a_machine_path(tracked):
    places = {name: MACHINE_PATHS.findall(text) for name, text in tracked.items()}
    found = {name: named for name, named in places.items() if named}

    assert "README.md" in tracked
    assert found == {}


def test_no_tracked_file_contains_a_real_secret(tracked):
    assert {name for name, text in tracked.items() if REAL_SECRETS.search(text)} == set()


@pytest.mark.parametrize("user", ["root"])
def test_the_patterns_match_a_path_and_a_secret(user):
    assert MACHINE_PATHS.search(f"see /{user}/.cache")
    assert REAL_SECRETS.search("sk-proj-" + "a1" * 20)


def test_the_files_that_a_full_run_starts_with_exist(repository):
    assert [name for name in FIRST if not (repository / name).is_file()] == []
