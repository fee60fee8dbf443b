"""What must never be committed."""

import re
import shutil
import subprocess

import pytest

from tests.conftest import FIRST

# A letter in brackets, so that this file does not find itself. The cast may have homes.
MACHINE_PATHS = re.compile(
    r"/wor[k]/(?:main|shared)|/roo[t]/|/hom[e]/(?!ada/|ben/|mallory/)[a-z]+/|/tmp/pla[n]/"
)
REAL_SECRETS = re.compile(
    r"sk-(proj|ant|svcacct)-[A-Za-z0-9_-]{32,}|AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY"
)


@pytest.fixture(scope="module")
def tracked(repository):
    """Every tracked text file with its content."""
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


def test_no_tracked_file_names_a_place_on_somebodys_machine(tracked):
    places = {name: MACHINE_PATHS.findall(text) for name, text in tracked.items()}
    found = {name: named for name, named in places.items() if named}

    assert "README.md" in tracked
    assert found == {}


def test_no_tracked_file_holds_a_providers_key(tracked):
    assert {name for name, text in tracked.items() if REAL_SECRETS.search(text)} == set()


@pytest.mark.parametrize("user", ["root"])
def test_the_check_itself_would_notice(user):
    assert MACHINE_PATHS.search(f"see /{user}/.cache")
    assert REAL_SECRETS.search("sk-proj-" + "a1" * 20)


def test_what_a_whole_run_begins_with_is_there(repository):
    assert [name for name in FIRST if not (repository / name).is_file()] == []
