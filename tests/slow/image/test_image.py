"""Build the image of deploy/Dockerfile without a registry, and get its first answer.

The base is a minimal Debian instead of the official Python image, and wheels come from a folder, so
that nothing but a Debian mirror and a package index is needed. Buildah runs the build in a chroot,
since many machines refuse to run containers inside other containers.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import root_file_system as rootfs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).parents[3]
QUESTION = {"model": "claude-x", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}]}
REVISION = "a" * 40
SOURCES = (
    "manage.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "bridge_project",
    "proxy",
    "translator",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rootfs.require_tools("mmdebstrap", "buildah")
    return rootfs.bootstrap(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def wheels(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked dependencies, and what builds the project."""
    folder = tmp_path_factory.mktemp("wheels")
    version = rootfs.python_version(base)
    locked = rootfs.locked_requirements(REPOSITORY / "deploy/requirements.lock", version)
    rootfs.download_wheels([*locked, "setuptools>=77", "wheel"], version, folder)
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return folder


@pytest.fixture(scope="module")
def image(base: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root file system of the built image."""
    store = tmp_path_factory.mktemp("store")
    folders = ("--root", store / "images", "--runroot", store / "run")
    # vfs copies each layer and needs no mounts, which could stay behind
    buildah = ["buildah", *folders, "--storage-driver", "vfs"]
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    minor = rootfs.python_version(base).rpartition(".")[0]

    def call(*words: Any) -> str:
        return rootfs.run([*buildah, *words], env=environment, cwd=REPOSITORY).strip()

    container = call("from", "scratch")
    rootfs.run(["cp", "-a", f"{base}/.", call("mount", container)])  # keeps devices and links
    call("commit", "-q", container, f"docker.io/library/python:{minor}-slim")
    call(
        "build", "--pull=never", "--format", "docker", "--build-arg", f"PYTHON={minor}",
        "--build-arg", f"REVISION={REVISION}", "-v", f"{wheels}:/wheels:ro", "-v", f"{wheels / 'pip.conf'}:/etc/pip.conf:ro",
        "-f", "deploy/Dockerfile", "-t", "messages-bridge:test", ".",
    )  # fmt: skip
    [config] = [
        json.loads(call("inspect", "--type", "image", "messages-bridge:test"))["Docker"]["config"]
    ]
    assert (config["User"], config["Entrypoint"]) == (str(rootfs.USER), ["messages-bridge"])
    assert "Healthcheck" in config
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    expected = {"version": version, "revision": REVISION, "licenses": "MIT"}
    for name, text in expected.items():
        assert config["Labels"][f"org.opencontainers.image.{name}"] == text
    container = call("from", "--pull=never", "localhost/messages-bridge:test")
    try:
        yield Path(call("mount", container))
    finally:
        call("rm", "--all")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_answer(log: Path, process: "subprocess.Popen[bytes]", port: int) -> dict[str, Any]:
    """Wait for the gateway's first start, and send a request with the key that it printed."""
    deadline = time.monotonic() + 300
    while "listens on" not in (text := log.read_text(errors="replace")):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    [key] = set(re.findall(r"Gateway key:\s+(sk-br-\S+)", text))
    headers = {"x-api-key": key, "content-type": "application/json"}
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    ) as connection:
        connection.request("POST", "/v1/messages", json.dumps(QUESTION), headers)
        with connection.getresponse() as answer:
            assert answer.status == 200
            return json.loads(answer.read())


def test_the_image_answers_as_an_unprivileged_user_with_a_read_only_root(
    image: Path, tmp_path: Path
):
    data, port, log = tmp_path / "data", free_port(), tmp_path / "serve.log"
    data.mkdir(mode=0o700)
    os.chown(data, rootfs.USER, rootfs.USER)
    for folder in (*tmp_path.parents, tmp_path):  # the user inside must reach the directory
        if folder.owner() == "root" and folder.name.startswith(("pytest", "test")):
            folder.chmod(0o755)
    process = rootfs.start_inside(
        image,
        ["messages-bridge", "serve", "--host", "127.0.0.1", "--port", str(port)],
        mounts={data: "/data"},
        environment={"PATH": "/opt/bridge/bin:/usr/bin:/bin", "BRIDGE_DATA_DIR": "/data"},
        log=log,
    )
    try:
        answer = first_answer(log, process, port)
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.terminate()
        process.wait(60)

    assert answer["content"][0]["text"]
    assert re.search(rf"^Uid:\t{rootfs.USER}\t", status, re.MULTILINE)
    assert (data / "ledger.sqlite3").exists()
    assert not (image / "opt/bridge/bin/pip").exists()


def test_the_first_command_of_the_readme_works_in_a_minimal_system(
    base: Path, wheels: Path, tmp_path: Path
):
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^(python3 -m venv .*manage\.py serve)$", readme, re.MULTILINE)
    # ``exec``: the signal that ends the test must reach the gateway
    command = command.replace("&& .venv/bin/python", "&& exec .venv/bin/python")
    clone, port, log = tmp_path / "clone", free_port(), tmp_path / "serve.log"
    clone.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, clone / name)
    rootfs.run(["chown", "-R", f"{rootfs.USER}:{rootfs.USER}", clone])
    for inside in ("clone", "wheels"):
        (base / inside).mkdir(exist_ok=True)
    shutil.copy(wheels / "pip.conf", base / "etc/pip.conf")
    wheels.chmod(0o755)
    process = rootfs.start_inside(
        base,
        ["sh", "-c", f"'cd /clone && {command} --port {port}'"],
        mounts={clone: "/clone", wheels: "/wheels"},
        environment={"PATH": "/usr/bin:/bin", "HOME": "/clone"},
        log=log,
    )
    try:
        answer = first_answer(log, process, port)
    finally:
        process.terminate()
        process.wait(60)

    assert "sandbox" in answer["content"][0]["text"]
