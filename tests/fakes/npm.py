"""Packages from npm, installed once into a cached folder."""

import fcntl
import shutil
import subprocess
from pathlib import Path

from .forked_python import REPOSITORY
from .optional_tools import skip_loudly


def npm_packages(name: str, *packages: str) -> Path:
    """Return the folder ``node_modules`` with these packages; skip the test if npm cannot install them.

    ``name``: the folder of the cache; it names the versions.
    """
    folder = REPOSITORY / ".sdk" / name
    installed = folder / "node_modules" / ".package-lock.json"  # npm writes it last
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes use it too
        if not installed.exists():
            _install(folder, packages)
    return folder / "node_modules"


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        skip_loudly(f"npm is not installed, so {', '.join(packages)} cannot be used")
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
    done = subprocess.run(  # noqa: S603 - packages that the tests name
        [*command, *packages], capture_output=True, check=False, timeout=600
    )
    if done.returncode:
        reason = (done.stderr or done.stdout).decode()[-500:]
        skip_loudly(f"npm cannot install {', '.join(packages)}: {reason}")
