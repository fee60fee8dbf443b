"""A released migration never changes, since the databases of users were made with it (ADR 0014)."""

import hashlib

import pytest

from tests.e2e.upgrade.releases import MIGRATIONS, RELEASES, expectation


@pytest.mark.parametrize("version", RELEASES)
def test_the_migrations_of_a_release_are_unchanged(version: str) -> None:
    released = expectation(version)["migrations"]

    changed = [
        name
        for name, digest in released.items()
        if not (path := MIGRATIONS / name).is_file()
        or hashlib.sha256(path.read_bytes()).hexdigest() != digest
    ]

    assert "0001_initial.py" in released
    assert changed == [], (
        f"these migrations were released with {version}: restore them and add a new migration. "
        "Only before the release: python -m tests.e2e.upgrade.make_release"
    )
