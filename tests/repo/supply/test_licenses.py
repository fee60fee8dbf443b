"""Every package that an installation contains has a license that the project accepts."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/reference/dependencies.md"
ROWS = [
    (name, license_)
    for license_, names in re.findall(
        r"^\| (.+) \| (`.+`) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    for name in re.findall(r"`([^`]+)`", names)
]
ALLOWED = {
    "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0", "TCL", "ZPL-2.1",
    "MPL-2.0",  # applies to the files of the package, which are not changed
}  # fmt: skip
LIBRARIES = {"psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only"}
"""Packages with a license that only allows to use them as a library."""


def test_every_dependency_has_an_accepted_license() -> None:
    refused = {
        name: license_
        for name, license_ in ROWS
        if not ALLOWED.issuperset(re.split(r" (?:OR|AND) ", license_))
        and LIBRARIES.get(name) != license_
    }

    assert refused == {}, f"judge these licenses, then add them here and to {PAGE.name}"


def test_the_table_has_the_locked_packages() -> None:
    assert len(ROWS) > 80
    assert {"django", "twisted", "psycopg"} <= {name for name, _ in ROWS}
