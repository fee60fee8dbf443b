"""A minimal Debian root file system, and programs that run inside it (root only).

No container runtime is used: a program runs in a chroot and a mount namespace of its own, which end
with it. It shares the network of this machine, so servers inside must listen on loopback.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement

from tests.fakes.optional_tools import skip_loudly

USER = 10001  # the user of deploy/Dockerfile
PACKAGES = ("python3", "python3-venv", "ca-certificates")
SUITE = "bookworm"


def require_tools(*tools: str) -> None:
    """Skip the test if a tool or the right to mount is missing: many machines refuse mounts."""
    missing = [tool for tool in (*tools, "unshare") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        missing.append("root's rights")
    if missing:
        skip_loudly(f"NO {', '.join(missing)} HERE: the image was not built")
    mounts = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)  # noqa: S607 - found above
    if mounts.returncode != 0:
        skip_loudly(f"NO MOUNTS HERE: the image was not built: {mounts.stderr[:200]!r}")


def bootstrap(folder: Path) -> Path:
    """Create the root file system of a minimal Debian with Python; return it."""
    root = folder / "root"
    words = ["--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    made = subprocess.run(  # noqa: S603 - our own command line
        ["mmdebstrap", "--quiet", *words],  # noqa: S607 - see require_tools
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        skip_loudly(f"NO DEBIAN MIRROR HERE: the image was not built: {made.stderr[-300:]}")
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")  # as in the official images
    return root


def python_version(root: Path) -> str:
    """Return the version of Python inside, such as ``3.11.2``."""
    script = "import platform; print(platform.python_version())"
    return run(["chroot", root, "python3", "-c", script]).strip()


def download_wheels(requirements: Sequence[str], version: str, folder: Path) -> None:
    """Download wheels for Python ``version`` with the pip of this machine."""
    if importlib.util.find_spec("pip") is None:
        skip_loudly("NO pip HERE: the wheels of the image were not downloaded")
    if version.split(".")[:2] != [str(part) for part in sys.version_info[:2]]:
        skip_loudly(f"NO Python {version} HERE: the wheels of the image were not downloaded")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    run([*pip, "--dest", folder, *requirements])


def locked_requirements(lock: Path, version: str) -> list[str]:
    """Return the pins of a lock file that apply to CPython ``version`` on Linux."""
    environment = {
        "python_full_version": version, "python_version": version.rpartition(".")[0],
        "platform_python_implementation": "CPython", "implementation_name": "cpython",
        "sys_platform": "linux",
    }  # fmt: skip
    pins = re.findall(r"^([\w.\[\],-]+==[^\\\n]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    found = [Requirement(pin.strip()) for pin in pins]
    return [
        f"{one.name}{one.specifier}"
        for one in found
        if one.marker is None or Marker(str(one.marker)).evaluate(environment)
    ]


def start_inside(
    root: Path,
    command: Sequence[str],
    *,
    mounts: Mapping[Path, str],
    environment: Mapping[str, str],
    log: Path,
) -> "subprocess.Popen[bytes]":
    """Start a program as an unprivileged user in ``root``, which is read-only for it.

    ``mounts``: directories of this machine and their paths inside; they are writable.
    """
    lines = ["set -e", f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc"]
    lines += [f"mount --bind {path} {root}{inside}" for path, inside in mounts.items()]
    lines += [f"mount -t tmpfs tmpfs {root}/tmp", f"mount -o remount,bind,ro {root}"]
    variables = " ".join(f"{name}={value}" for name, value in environment.items())
    lines += [
        f"exec chroot --userspec={USER}:{USER} {root} /usr/bin/env -i {variables} "
        + " ".join(command)
    ]
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - our own command line
            ["unshare", "--mount", "bash", "-c", "\n".join(lines)],  # noqa: S607 - see require_tools
            stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def run(command: Sequence[Any], **options: Any) -> str:
    """Run a command and return its output; fail with its output if it fails."""
    done = subprocess.run(  # noqa: S603 - our own command lines
        [str(word) for word in command],
        capture_output=True, text=True, check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
