"""Secrets in files are rotated under a running gateway without a restart or a failed request.

The files have the layout of Kubernetes: ``secret -> ..data/secret``, ``..data -> version``. A rotation
replaces ``..data``.
"""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

ROUTES = '[[routes]]\nmodel = "m"\ntargets = [{ upstream = "rotated" }]\n'
KEY_FILE = """
[[keys]]
team = "e2e"
name = "from-file"
secret = { file = "%s" }
"""


class MountedSecrets:
    """A directory of secrets with the layout of a Kubernetes volume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0

    def write(self, **secrets: str) -> None:
        version = self.folder / f"..version-{self._versions}"
        self._versions += 1
        version.mkdir(parents=True)
        for name, secret in secrets.items():
            (version / name).write_text(secret)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data") / name)
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").replace(self.folder / "..data")


def secret(letter):
    return f"sk-br-{letter * 48}"


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    volume = MountedSecrets(tmp_path_factory.mktemp("secrets"))
    volume.write(upstream="upstream-1", key=secret("a"))
    return volume


@pytest.fixture(scope="module")
def upstream():
    with ScriptedUpstream() as running:
        running.on("m", json_response(upstream_scripts.COMPLETION))
        yield running


@pytest.fixture(scope="module")
def gateway(upstream, mounted, tmp_path_factory):
    """A gateway with two workers; each must read the new secret, and their parent applies bridge.toml."""
    config = toml_for({"rotated": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
    config = config.replace(
        'api_key = { env = "E2E_UPSTREAM_KEY" }',
        f'api_key = {{ file = "{mounted.folder}/upstream" }}',
    )
    config += KEY_FILE % f"{mounted.folder}/key"
    with Gateway(tmp_path_factory.mktemp("gateway"), config, workers=2) as running:
        upstream_secrets(upstream, running)
        yield running


def post(gateway, key=None):
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    return gateway.request(
        "POST", "/v1/messages", json.dumps(body).encode(), {"x-api-key": key or gateway.key}
    ).status


def end_of_log(gateway):
    return gateway.log[-3_000:]


def upstream_secrets(upstream, gateway):
    """Send twenty requests, enough to reach both workers; return the secrets that they used."""
    for _ in range(20):
        assert post(gateway) == 200
    return {each.headers["authorization"] for each in upstream.requests[-20:]}


def degraded_texts(gateway):
    return json.loads(gateway.request("GET", "/readyz").body)["degraded"]


NOTE = "upstream rotated uses its last good secret: its file cannot be read"


def test_upstream_secret_is_reloaded_from_its_file(gateway, upstream, mounted):
    assert upstream_secrets(upstream, gateway) == {"Bearer upstream-1"}

    mounted.write(upstream="upstream-2", key=secret("a"))

    until(
        lambda: upstream_secrets(upstream, gateway) == {"Bearer upstream-2"},
        partial(end_of_log, gateway),
    )


@pytest.mark.parametrize("state", ["empty", "gone", "a directory", "too large", "a pipe"])
def test_unreadable_file_leaves_the_last_valid_secret_in_use(gateway, upstream, mounted, state):
    until(lambda: degraded_texts(gateway) == [], partial(end_of_log, gateway))
    file = (mounted.folder / "upstream").resolve()
    before = file.read_text()
    file.unlink()
    match state:
        case "empty":
            file.write_text(" \n")
        case "a directory":
            file.mkdir()
        case "too large":
            file.write_text("x" * 70_000)
        case "a pipe":
            os.mkfifo(file)  # opening it would block forever

    until(
        lambda: all(degraded_texts(gateway) == [NOTE] for _ in range(8)),
        partial(end_of_log, gateway),
    )
    assert upstream_secrets(upstream, gateway) == {f"Bearer {before}"}
    assert "its last good secret stays in use" in gateway.log
    metrics = gateway.request("GET", "/metrics").body.decode()
    assert 'bridge_secret_files_total{result="failed"}' in metrics

    mounted.write(upstream=before, key=secret("a"))
    until(
        lambda: all(degraded_texts(gateway) == [] for _ in range(8)), partial(end_of_log, gateway)
    )


def test_gateway_key_is_reloaded_from_its_file(gateway, mounted):
    assert post(gateway, secret("a")) == 200

    mounted.write(upstream="upstream-2", key=secret("b"))

    until(
        lambda: all(post(gateway, secret("b")) == 200 for _ in range(8)),
        partial(end_of_log, gateway),
    )
    until(
        lambda: all(post(gateway, secret("a")) == 401 for _ in range(8)),
        partial(end_of_log, gateway),
    )


@pytest.mark.parametrize("invalid", ["", "short"])
def test_invalid_key_file_leaves_the_old_key_valid(gateway, mounted, invalid):
    at = len(gateway.log)
    mounted.write(upstream="upstream-2", key=invalid)
    expected_text = "has fewer than 32 characters" if invalid else "unreadable or empty"
    until(lambda: expected_text in gateway.log[at:], partial(end_of_log, gateway))

    assert post(gateway, secret("b")) == 200


def test_sighup_to_the_process_group_applies_the_file_and_ends_no_worker(gateway, mounted):
    """``systemctl kill -s HUP`` and a closed terminal send SIGHUP to the whole process group."""
    workers = children(gateway.process.pid)
    mounted.write(upstream="upstream-3", key=secret("c"))
    file = gateway.folder / "bridge.toml"
    file.write_text(f'{file.read_text()}\n[[teams]]\nname = "later"\n')

    os.killpg(gateway.process.pid, signal.SIGHUP)

    until(lambda: "+ team later" in gateway.log, partial(end_of_log, gateway))
    until(
        lambda: all(post(gateway, secret("c")) == 200 for _ in range(8)),
        partial(end_of_log, gateway),
    )
    assert gateway.process.poll() is None
    assert workers <= children(gateway.process.pid)


def children(pid):
    """Return the worker processes; uvicorn starts each by multiprocessing's ``spawn_main``."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    }
