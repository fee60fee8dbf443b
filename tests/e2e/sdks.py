"""The two Anthropic SDKs that our clients use: the newest, and the last of the 0.x line.

The newest is in the test environment; the old one cannot live beside it, so it is installed once
into a cached folder and only ever imported by a process of its own.
"""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from tests.fakes.absent import absent

REPOSITORY = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("sdk_driver.py")
LAST_0X = "0.125.0"

Line = Literal["newest", "last-0.x"]


def drive(line: Line, *, base_url: str, key: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the jobs with this SDK; what came of each, by job id."""
    task = json.dumps({"base_url": base_url, "key": key, "jobs": jobs})
    # -S keeps the test environment's packages out: the old SDK brings all it needs along.
    command = [sys.executable, *(["-S"] if line == "last-0.x" else []), str(DRIVER)]
    environment = {"PATH": os.environ.get("PATH", "")}
    if line == "last-0.x":
        environment["PYTHONPATH"] = str(last_0x())
    ended = subprocess.run(  # noqa: S603 - our own driver
        command,
        input=task,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    answer = json.loads(ended.stdout)
    assert answer["version"].startswith("0." if line == "last-0.x" else "2."), answer["version"]
    done: dict[str, Any] = answer["done"]
    return done


def last_0x() -> Path:
    """The folder of the old SDK, installed on first use; whoever comes meanwhile waits for it."""
    folder = REPOSITORY / ".sdk" / f"anthropic-{LAST_0X}"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of the other core ask for it as well
        if not (folder / "anthropic" / "__init__.py").exists():
            install(folder)
    return folder


def install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    ended = subprocess.run(  # noqa: S603 - a pinned package of ours to name
        [*command, f"anthropic=={LAST_0X}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if ended.returncode:
        absent(f"anthropic {LAST_0X} cannot be installed: {ended.stderr[-500:]}")
