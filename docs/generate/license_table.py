"""The table of dependencies.md: the packages of the lock file with their licenses.

Names are those of deploy/requirements.lock; the license is that of the installed
package. The lock file is for all platforms; packages that Linux does not need are left out.
"""

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageMetadata, distribution
from pathlib import Path
from typing import Final, NamedTuple

from packaging.markers import Marker

LOCK: Final = Path(__file__).parents[2] / "deploy/requirements.lock"
PYTHON: Final = "3.11"
"""Needs the most packages. On others, some are not installed, and the table is not compared."""
ENTRY: Final = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==[^\s;]+(?: ; ([^\\\n]+))?", re.MULTILINE)

IDENTIFIER: Final = re.compile(r"[A-Z][\w.]*-[\w.-]+|MIT")
SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause OR Apache-2.0": "BSD-3-Clause OR Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Texts of older metadata as SPDX identifiers; the classifier of BSD names no version."""


class Package(NamedTuple):
    """A locked package with its license."""

    name: str
    license: str


def packages() -> Iterator[Package]:
    """Yield the locked packages. Raises PackageNotFoundError if one is not installed."""
    for name, marker in ENTRY.findall(LOCK.read_text(encoding="utf-8")):
        if marker and not Marker(marker).evaluate({"python_full_version": f"{PYTHON}.15"}):
            continue
        yield Package(name, license_of(distribution(name).metadata))


def license_of(metadata: PackageMetadata) -> str:
    """Return the license as an SPDX expression, or the text of the metadata; "" without any."""
    if expression := metadata.get("License-Expression"):
        return expression
    text = (metadata.get("License") or "").strip()
    if IDENTIFIER.fullmatch(text):
        return text
    classifiers = [
        one for one in metadata.get_all("Classifier", []) if one.startswith("License ::")
    ]
    names = [one.rpartition(" :: ")[2] for one in classifiers] or [text.partition("\n")[0]]
    return " OR ".join(SPDX.get(name, name) for name in names)


def table() -> str | None:
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        return None
    names: dict[str, list[str]] = {}
    for one in packages():
        names.setdefault(one.license, []).append(f"`{one.name}`")
    rows = ["| license | packages |", "|---|---|"]
    rows += [f"| {license_} | {', '.join(names[license_])} |" for license_ in sorted(names)]
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str | None]] = {"dependencies": table}
