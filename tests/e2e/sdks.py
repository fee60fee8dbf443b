"""The two Anthropic SDK versions that clients use: the newest and the last 0.x release.

The newest is in the test environment. The old one conflicts with it, so it is installed once into a
cached folder and imported only in a separate process.
"""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from tests.fakes.optional_tools import skip_or_fail

REPOSITORY = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("sdk_driver.py")
LAST_0X = "0.125.0"

Line = Literal["newest", "last-0.x"]


def run_jobs(line: Line, *, base_url: str, key: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the jobs with this SDK; return the result of each by job id."""
    task = json.dumps({"base_url": base_url, "key": key, "jobs": jobs})
    # -S excludes the test environment's packages; the old SDK's folder has all its dependencies.
    command = [sys.executable, *(["-S"] if line == "last-0.x" else []), str(DRIVER)]
    environment = {"PATH": os.environ.get("PATH", "")}
    if line == "last-0.x":
        environment["PYTHONPATH"] = str(last_0x())
    result = subprocess.run(  # noqa: S603 - sdk_driver.py
        command,
        input=task,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    answer = json.loads(result.stdout)
    assert answer["version"].startswith("0." if line == "last-0.x" else "2."), answer["version"]
    results: dict[str, Any] = answer["results"]
    return results


def last_0x() -> Path:
    """Return the folder of the old SDK; install it on first use under a lock."""
    folder = REPOSITORY / ".sdk" / f"anthropic-{LAST_0X}"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes use it too
        if not (folder / "anthropic" / "__init__.py").exists():
            install(folder)
    return folder


def install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    result = subprocess.run(  # noqa: S603 - a pinned package
        [*command, f"anthropic=={LAST_0X}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if result.returncode:
        skip_or_fail(f"anthropic {LAST_0X} cannot be installed: {result.stderr[-500:]}")
