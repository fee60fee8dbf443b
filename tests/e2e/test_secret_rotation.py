"""Secrets in files are rotated under a running gateway: no restart, and no request fails.

The files are laid out as Kubernetes does it: ``secret -> ..data/secret``, ``..data -> version``,
and a rotation swaps ``..data``.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

ROUTES = '[[routes]]\nmodel = "m"\ntargets = [{ upstream = "rotated" }]\n'
KEY_FILE = """
[[keys]]
team = "e2e"
name = "from-file"
secret = { file = "%s" }
"""


class Mounted:
    """A directory of secrets, as a volume of Kubernetes."""

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
    volume = Mounted(tmp_path_factory.mktemp("secrets"))
    volume.write(upstream="upstream-1", key=secret("a"))
    return volume


@pytest.fixture(scope="module")
def upstream():
    with ScriptedUpstream() as running:
        running.on("m", json_answer(scripts.COMPLETION))
        yield running


@pytest.fixture(scope="module")
def gateway(upstream, mounted, tmp_path_factory):
    """Two workers: each has to see the rotation, and the process above them applies the file."""
    config = toml_for({"rotated": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
    config = config.replace(
        'api_key = { env = "E2E_UPSTREAM_KEY" }',
        f'api_key = {{ file = "{mounted.folder}/upstream" }}',
    )
    config += KEY_FILE % f"{mounted.folder}/key"
    with Gateway(tmp_path_factory.mktemp("gateway"), config, workers=2) as running:
        yield running


def post(gateway, key=None):
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    return gateway.ask(
        "POST", "/v1/messages", json.dumps(asked).encode(), {"x-api-key": key or gateway.key}
    ).status


def until(holds, gateway, within_s=30):
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, gateway.log[-3_000:]
        time.sleep(0.05)


def sent(upstream, gateway):
    """The secrets of the last twenty requests: enough to reach both workers."""
    for _ in range(20):
        assert post(gateway) == 200
    return {each.headers["authorization"] for each in upstream.asked[-20:]}


def ready(gateway):
    return json.loads(gateway.ask("GET", "/readyz").body)["degraded"]


NOTE = "upstream rotated uses its last good secret: its file cannot be read"


def test_an_upstreams_secret_follows_its_file(gateway, upstream, mounted):
    assert sent(upstream, gateway) == {"Bearer upstream-1"}

    mounted.write(upstream="upstream-2", key=secret("a"))

    until(lambda: sent(upstream, gateway) == {"Bearer upstream-2"}, gateway)


@pytest.mark.parametrize("becomes", ["empty", "gone", "a directory", "too large", "a pipe"])
def test_a_file_that_cannot_be_read_keeps_its_last_good_secret(gateway, upstream, mounted, becomes):
    until(lambda: ready(gateway) == [], gateway)
    file = (mounted.folder / "upstream").resolve()
    before = file.read_text()
    file.unlink()
    match becomes:
        case "empty":
            file.write_text(" \n")
        case "a directory":
            file.mkdir()
        case "too large":
            file.write_text("x" * 70_000)
        case "a pipe":
            os.mkfifo(file)  # to open it would block for ever

    until(lambda: all(ready(gateway) == [NOTE] for _ in range(8)), gateway)
    assert sent(upstream, gateway) == {f"Bearer {before}"}
    assert "its last good secret stays in use" in gateway.log
    numbers = gateway.ask("GET", "/metrics").body.decode()
    assert 'bridge_secret_files_total{result="failed"}' in numbers

    mounted.write(upstream=before, key=secret("a"))
    until(lambda: all(ready(gateway) == [] for _ in range(8)), gateway)


def test_a_gateway_keys_secret_follows_its_file(gateway, mounted):
    assert post(gateway, secret("a")) == 200

    mounted.write(upstream="upstream-2", key=secret("b"))

    until(lambda: all(post(gateway, secret("b")) == 200 for _ in range(8)), gateway)
    until(lambda: all(post(gateway, secret("a")) == 401 for _ in range(8)), gateway)


@pytest.mark.parametrize("bad", ["", "short"])
def test_a_key_whose_file_holds_no_good_secret_keeps_its_own(gateway, mounted, bad):
    at = len(gateway.log)
    mounted.write(upstream="upstream-2", key=bad)
    words = "shorter than 32 characters" if bad else "unreadable or empty"
    until(lambda: words in gateway.log[at:], gateway)

    assert post(gateway, secret("b")) == 200


def test_a_hangup_of_the_whole_group_ends_no_worker_and_applies_the_file(gateway, mounted):
    """As ``systemctl kill -s HUP`` does, and a terminal that is closed."""
    workers = children(gateway.process.pid)
    mounted.write(upstream="upstream-3", key=secret("c"))
    file = gateway.folder / "bridge.toml"
    file.write_text(f'{file.read_text()}\n[[teams]]\nname = "later"\n')

    os.killpg(gateway.process.pid, signal.SIGHUP)

    until(lambda: "+ team later" in gateway.log, gateway)
    until(lambda: all(post(gateway, secret("c")) == 200 for _ in range(8)), gateway)
    assert gateway.process.poll() is None
    assert workers <= children(gateway.process.pid)


def children(pid):
    """The processes that serve: uvicorn starts each by multiprocessing's ``spawn_main``."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    }
