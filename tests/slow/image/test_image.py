"""Build the image of deploy/Dockerfile without a registry, get its first answer, run compose.yaml.

The base is a minimal Debian instead of the official Python image, and wheels come from a folder, so
that nothing but a Debian mirror and a package index is needed. Buildah runs the build in a chroot,
since many machines refuse to run containers inside other containers. Where podman may run them, the
compose file is started with podman-compose; the images of PostgreSQL and Redis are Debian's packages,
in Debian's versions. Podman without systemd runs no health checks, so their order is not tested.
"""

import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.waiting import until

from . import containers
from . import root_file_system as rootfs
from .containers import SUBNET

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).parents[3]
QUESTION = {"model": "claude-x", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}]}
REVISION = "a" * 40
DEPLOY = REPOSITORY / "deploy"
IMAGE = "messages-bridge:latest"  # the name in deploy/compose.yaml
OVERRIDE = f"""# Podman 4.3 resolves no names of services; ``openai`` is the sandbox instead of OpenAI.
services:
  gateway:
    extra_hosts: ["postgres:{SUBNET}.2", "redis:{SUBNET}.3", "openai:{SUBNET}.5"]
    networks: {{default: {{ipv4_address: {SUBNET}.4}}}}
  postgres:
    networks: {{default: {{ipv4_address: {SUBNET}.2}}}}
  redis:
    networks: {{default: {{ipv4_address: {SUBNET}.3}}}}
  openai:
    image: messages-bridge
    entrypoint: [python, -m, uvicorn, "--host", "0.0.0.0", "--port", "9000", "proxy.bootstrap.sandbox.app:application"]
    networks: {{default: {{ipv4_address: {SUBNET}.5}}}}
networks:
  default:
    ipam: {{config: [{{subnet: {SUBNET}.0/24}}]}}
"""
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


class Store(NamedTuple):
    """A folder with the built image, and the command of buildah that works on it."""

    folder: Path
    buildah: containers.Buildah


@pytest.fixture(scope="module")
def store(base: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = tmp_path_factory.mktemp("store")
    folders = ("--root", store / "images", "--runroot", store / "run")
    # vfs copies each layer and needs no mounts, which could stay behind
    buildah = ["buildah", *folders, "--storage-driver", "vfs"]
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    minor = rootfs.python_version(base).rpartition(".")[0]

    def call(*words: Any) -> str:
        return rootfs.run([*buildah, *words], env=environment, cwd=REPOSITORY).strip()

    container = call("from", "scratch")
    rootfs.run(["cp", "-a", f"{base}/.", call("mount", container)])  # preserves devices and links
    call("commit", "-q", container, f"docker.io/library/python:{minor}-slim")
    call(
        "build", "--pull=never", "--format", "docker", "--build-arg", f"PYTHON={minor}",
        "--build-arg", f"REVISION={REVISION}", "-v", f"{wheels}:/wheels:ro", "-v", f"{wheels / 'pip.conf'}:/etc/pip.conf:ro",
        "-f", "deploy/Dockerfile", "-t", IMAGE, ".",
    )  # fmt: skip
    [config] = [json.loads(call("inspect", "--type", "image", IMAGE))["Docker"]["config"]]
    assert (config["User"], config["Entrypoint"]) == (str(rootfs.USER), ["messages-bridge"])
    assert "Healthcheck" in config
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    expected = {"version": version, "revision": REVISION, "licenses": "MIT"}
    for name, text in expected.items():
        assert config["Labels"][f"org.opencontainers.image.{name}"] == text
    try:
        yield Store(store, call)
    finally:
        call("rm", "--all")


@pytest.fixture(scope="module")
def image(store: Store) -> Path:
    """The root file system of the built image."""
    container = store.buildah("from", "--pull=never", f"localhost/{IMAGE}")
    return Path(store.buildah("mount", container))


@pytest.fixture
def services(store: Store, tmp_path: Path) -> Iterator[containers.Containers]:
    """The services of deploy/compose.yaml, started with the settings that deploy/env.example requires."""
    rootfs.require_tools("podman", "crun", "nsenter", "ip")
    started = containers.Containers(store.folder, tmp_path)
    try:
        started.require_start(f"localhost/{IMAGE}")
        containers.make_stand_ins(store.buildah, tmp_path)
        deploy = tmp_path / "deploy"
        deploy.mkdir()
        shutil.copy(DEPLOY / "compose.yaml", deploy)
        (deploy / "override.yaml").write_text(OVERRIDE)
        config = (DEPLOY / "bridge.example.toml").read_text()
        (deploy / "bridge.example.toml").write_text(
            config.replace("https://api.openai.com/v1", "http://openai:9000/v1")
        )
        environment = (DEPLOY / "env.example").read_text()
        for name in ("BRIDGE_SECRET_KEY", "POSTGRES_PASSWORD", "OPENAI_API_KEY"):
            environment = environment.replace(f"{name}=\n", f"{name}={secrets.token_hex(32)}\n")
        (deploy / ".env").write_text(environment)
        started.compose("up", "--detach")
        yield started
    finally:
        started.close()


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


@pytest.mark.timeout(1800)  # the machine may also run the fast lane; it builds a second image
def test_the_compose_file_answers_and_keeps_its_records_over_a_restart(
    services: containers.Containers,
):
    services.wait_until_ready()
    words = ("createkey", "--team", "platform", "--name", "first", "--json")
    scopes = ("--scope", "messages", "--scope", "reports")
    made = services.compose("exec", "-T", "gateway", "messages-bridge", *words, *scopes)
    headers = {"x-api-key": json.loads(made)["key"], "content-type": "application/json"}

    def record() -> Any:
        status, found = services.send("GET", "/api/v1/requests/", headers=headers)
        assert status == 200, found
        return [one for one in found["data"] if one["state"] == "closed"]

    status, answer = services.send("POST", "/v1/messages", QUESTION, headers)
    assert status == 200, (answer, services.compose("logs"))
    assert "sandbox" in answer["content"][0]["text"]
    before = until(record)
    services.compose("stop")
    assert services.send("GET", "/readyz")[0] == 0
    services.compose("start")
    services.wait_until_ready()

    assert record() == before
    assert services.send("POST", "/v1/messages", QUESTION, headers)[0] == 200


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
