"""Define how each measured server starts. All listen on loopback and call the same upstream.

``bridge-*`` is this gateway with its ledger on; ``floor`` relays bytes and does nothing else;
``ccr-*`` is claude-code-router 2.0.0, ``litellm-*`` the LiteLLM proxy (both are installed by
``python -m benchmarks.gateway install``; a warning names a peer that is not installed).
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gateway import payloads

REPOSITORY = Path(__file__).parents[2]
WORK = Path(os.environ.get("BENCH_ROOT", REPOSITORY / ".bench"))
UPSTREAM_PORT = 9100
UPSTREAM = f"http://127.0.0.1:{UPSTREAM_PORT}"
KEY = "sk-bench-" + "0000" * 8
UPSTREAM_KEY = "sk-upstream-" + hashlib.sha256(b"bench").hexdigest()[:40]
"""As long as a real key: the gateway searches responses for it, which is slow for a short one."""
FIRST_ANSWER_S = 60


@dataclass
class Server:
    """One server under test."""

    name: str
    command: str
    port: int
    via: str  # the dialect in which it calls the upstream: chat | responses
    environment: dict[str, str] = field(default_factory=dict)
    model_prefix: str = ""
    api: str = "anthropic"  # the API that the client uses; the floor does not translate
    needs: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def installed(self) -> bool:
        return self.needs is None or self.needs.exists()

    def start(self) -> float:
        """Start it; return the seconds until its first valid response (S5).

        Raise RuntimeError when it does not start.
        """
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            raise RuntimeError(f"{self.name}: port {self.port} is in use by another program")
        folder = WORK / "run" / self.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        prepare(self, folder)
        environment = {**os.environ, "NO_PROXY": "*", **self.environment}
        environment = {k: v.replace("{folder}", str(folder)) for k, v in environment.items()}
        with (folder / "log").open("wb") as log:
            began = time.monotonic()
            self.process = subprocess.Popen(
                shlex.split(self.command.replace("{folder}", str(folder))),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                start_new_session=True,
            )
        self._await_answer(began + FIRST_ANSWER_S, folder / "log")
        return time.monotonic() - began

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _await_answer(self, deadline: float, log: Path) -> None:
        body = payloads.body(self.api, "small", self.model_prefix + "mock-n1-b5-g0-text", False)
        headers = {
            "content-type": "application/json",
            "anthropic-version": "2023-06-01",
            "x-api-key": KEY,
            "authorization": f"Bearer {KEY}",
        }
        path = payloads.PATHS[self.api]
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                break
            try:
                request = urllib.request.Request(self.url + path, body, headers)
                with urllib.request.urlopen(request, timeout=20) as answer:
                    answer.read()
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.02)
        raise RuntimeError(
            f"{self.name} gave no answer:\n{log.read_text(errors='replace')[-2000:]}"
        )


BRIDGE_TOML = """
[[upstreams]]
name = "mock"
dialect = "{via}"
base_url = "{upstream}/v1"
api_key = {{ env = "BENCH_UPSTREAM_KEY" }}
profile = "openai"

[[routes]]
model = "*"
targets = [{{ upstream = "mock" }}]

[[teams]]
name = "bench"
store = "full"

[[keys]]
team = "bench"
name = "bench"
secret = {{ env = "BRIDGE_KEY_BENCH" }}
"""


def prepare(server: Server, folder: Path) -> None:
    """Write the server's configuration file."""
    if server.name.startswith("bridge"):
        text = BRIDGE_TOML.format(via=server.via, upstream=UPSTREAM)
        (folder / "bridge.toml").write_text(text)
    elif server.name.startswith("ccr"):
        home = folder / ".claude-code-router"
        home.mkdir(parents=True)
        provider = {
            "name": "mock",
            "api_base_url": f"{UPSTREAM}{payloads.PATHS[server.via]}",
            "api_key": UPSTREAM_KEY,
            "models": ["mock-n1-b5-g0-text"],
        }
        if server.via == "responses":
            provider["transformer"] = {"use": ["openai-responses"]}
        settings = {
            "PORT": server.port,
            "LOG": False,
            "Providers": [provider],
            "Router": {"default": "mock,mock-n1-b5-g0-text"},
        }
        (home / "config.json").write_text(json.dumps(settings))
    elif server.name.startswith("litellm"):
        models = [litellm_model(server.via, name) for name in payloads.MODELS]
        # Newer versions require a master key; the benchmark sends one that they need not check.
        general_settings = {"dangerously_permit_weak_or_unset_master_key": True}
        settings = {"model_list": models, "general_settings": general_settings}
        (folder / "config.json").write_text(json.dumps(settings))


def litellm_model(via: str, name: str) -> dict[str, object]:
    """A deployment of a model in LiteLLM's price map; the knobs are in the upstream's path."""
    model = "openai/gpt-4o" if via == "chat" else "openai/responses/gpt-4o"
    base = f"{UPSTREAM}/{name}/v1"
    return {
        "model_name": name,
        "litellm_params": {"model": model, "api_base": base, "api_key": UPSTREAM_KEY},
    }


def bridge(via: str, port: int, workers: int = 1) -> Server:
    suffix = f"-{workers}w" if workers > 1 else ""
    return Server(
        name=f"bridge-{via}{suffix}",
        command=f"{sys.executable} manage.py serve --port {port} --workers {workers}"
        " --config {folder}/bridge.toml",
        port=port,
        via=via,
        environment={
            "BRIDGE_DATA_DIR": "{folder}/data",
            "BENCH_UPSTREAM_KEY": UPSTREAM_KEY,
            "BRIDGE_KEY_BENCH": KEY,
        },
    )


def floor(via: str, port: int) -> Server:
    return Server(
        name=f"floor-{via}",
        command=f"{sys.executable} -m uvicorn benchmarks.gateway.floor:aiohttp_app --host 127.0.0.1"
        f" --port {port} --loop uvloop --http httptools --no-access-log --log-level warning"
        " --backlog 8192",
        port=port,
        via=via,
        api=via,
        environment={"UPSTREAM": UPSTREAM},
    )


def ccr(via: str, port: int) -> Server:
    program = WORK / "peers/ccr/node_modules/.bin/ccr"
    return Server(
        name=f"ccr-{via}",
        command=f"node {program} start",
        port=port,
        via=via,
        environment={"HOME": "{folder}"},
        model_prefix="mock,",
        needs=program,
    )


def litellm(via: str, port: int) -> Server:
    program = WORK / "peers/litellm/bin/litellm"
    return Server(
        name=f"litellm-{via}",
        command=f"{program} --config {{folder}}/config.json --host 127.0.0.1 --port {port}",
        port=port,
        via=via,
        environment={
            "HOME": "{folder}",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        needs=program,
    )


SERVERS = {
    server.name: server
    for server in (
        bridge("chat", 9401),
        bridge("responses", 9402),
        bridge("chat", 9403, workers=2),
        floor("chat", 9301),
        floor("responses", 9302),
        ccr("chat", 9211),
        ccr("responses", 9212),
        litellm("chat", 9201),
        litellm("responses", 9202),
    )
}


def install() -> None:
    """Install the peers from their registries into the work folder."""
    peers = WORK / "peers"
    (peers / "ccr").mkdir(parents=True, exist_ok=True)
    steps = (
        (
            [
                "npm",
                "install",
                "--prefix",
                str(peers / "ccr"),
                "@musistudio/claude-code-router@2.0.0",
            ]
        ),
        ([sys.executable, "-m", "venv", str(peers / "litellm")]),
        ([str(peers / "litellm/bin/pip"), "install", "-q", "litellm[proxy]"]),
    )
    for step in steps:
        subprocess.run(step, check=True)


def start_upstream() -> subprocess.Popen[bytes]:
    """Start the scripted upstream that every server calls."""
    command = [sys.executable, "-m", "benchmarks.gateway.upstream", "--port", str(UPSTREAM_PORT)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", UPSTREAM_PORT), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return process
    process.terminate()
    raise RuntimeError(f"the scripted upstream did not start; is port {UPSTREAM_PORT} taken?")
