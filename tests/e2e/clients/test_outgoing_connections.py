"""The gateway opens no connection but to what is configured: no telemetry, no check for updates.

An audit hook of Python records each connection, each look-up of a host name and each program that
the gateway's processes start. The gateway runs without uvloop here, which connects in C.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.prepared import ADMIN_PASSWORD
from tests.fakes.servers.web_session import WebSession
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.upstream import ScriptedUpstream

HOOK = """
import json, os, sys
sys.modules["uvloop"] = None
EVENTS = {"socket.connect": 1, "socket.sendto": 1, "socket.sendmsg": 1, "socket.getaddrinfo": 0,
          "socket.gethostbyname": 0, "subprocess.Popen": 0, "os.system": 0}
LOG = os.open(os.environ["CONNECTION_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def record(event, arguments):
    if event in EVENTS:
        os.write(LOG, json.dumps([event, repr(arguments[EVENTS[event]])]).encode() + b"\\n")

sys.addaudithook(record)
"""
ROUTES = """
[[routes]]
model = "*"
targets = [{ upstream = "chat" }]
"""
TEXT = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)
BODY = json.dumps(
    {"model": "chat-hi", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
).encode()
PAGES = (
    "/admin/",
    "/admin/live/",
    "/admin/proxy/exchange/",
    "/admin/proxy/upstream/",
    "/api/v1/docs/",
)


def recorded_gateway(folder: Path, **options: Any) -> Gateway:
    """Return a gateway whose processes record their connections in ``folder/connections``."""
    (folder / "hook").mkdir(parents=True)
    (folder / "hook/sitecustomize.py").write_text(HOOK, encoding="utf-8")
    environment = {
        "PYTHONPATH": str(folder / "hook"),
        "CONNECTION_LOG": str(folder / "connections"),
    }
    return Gateway(folder, environment=environment, **options)


def events_in(folder: Path) -> dict[str, set[str]]:
    """Return what was recorded: the addresses, host names or programs of each kind of event."""
    found: dict[str, set[str]] = {}
    for line in (folder / "connections").read_text(encoding="utf-8").splitlines():
        event, target = json.loads(line)
        found.setdefault(event, set()).add(target)
    return found


def use(gateway: Gateway, model: str, password: str = ADMIN_PASSWORD) -> None:
    """Use the gateway as clients, an admin and an operator do."""
    body = BODY.replace(b"chat-hi", model.encode())
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert gateway.request("POST", path, body).status == 200
    session = WebSession(gateway).sign_in("admin", password)
    for page in PAGES:
        assert session.send("GET", page).status in {200, 404}, page
    doctor = gateway.run_command("doctor", OWN_PROCESS="1")
    assert doctor.returncode in {0, 1}, doctor.stderr


def test_connections_go_to_the_upstream_only(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream:
        upstream.choose(lambda _: script_steps.stream(TEXT))
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with recorded_gateway(tmp_path, config=config) as gateway:
            use(gateway, "chat-hi")
            allowed = {repr(("127.0.0.1", port)) for port in (upstream.port, gateway.port)}
        found = events_in(tmp_path)

    assert repr(("127.0.0.1", upstream.port)) in found["socket.connect"]
    assert found.pop("socket.connect") <= allowed
    assert found.pop("socket.getaddrinfo", set()) <= {repr("127.0.0.1"), repr(b"127.0.0.1")}
    assert found == {}


@pytest.mark.slow
def test_the_first_start_without_a_configuration_connects_to_the_sandbox_only(
    tmp_path: Path,
) -> None:
    with recorded_gateway(tmp_path, migrated=False) as gateway:
        gateway.key = re.search(r"sk-br-[\w-]{20,}", gateway.log)[0]
        use(gateway, "sandbox-text", re.search(r"user admin, password (\S+)", gateway.log)[1])
    found = events_in(tmp_path)

    assert found["socket.connect"], "the sandbox was not recorded"
    assert all(each.startswith("('127.0.0.1', ") for each in found.pop("socket.connect"))
    assert found.pop("socket.getaddrinfo", set()) <= {repr("127.0.0.1"), repr(b"127.0.0.1")}
    assert found == {}
