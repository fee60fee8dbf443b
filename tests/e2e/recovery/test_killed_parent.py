"""A kill of the parent process of several workers: they must not serve on without it."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
from pathlib import Path

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import LAST_CHUNK, WaitForGate, chunk, stream_head
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

ROUTES = """
[[routes]]
model = "m"
targets = [{ upstream = "chat" }]
"""
REQUEST = {
    "model": "m", "max_tokens": 100, "stream": True,
    "messages": [{"role": "user", "content": "Hello"}],
}  # fmt: skip


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def workers_of(pid: int) -> list[int]:
    """Return the children of a process that serve, and not Python's resource tracker."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    lines = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, line in lines.items() if b"spawn_main" in line]


def test_workers_finish_their_streams_and_end_when_their_parent_is_killed(tmp_path: Path):
    gate = threading.Event()
    events = upstream_scripts.chat_events()
    with ScriptedUpstream() as upstream:
        upstream.on(
            "m",
            [stream_head(), *map(chunk, events[:2]), WaitForGate(gate), *map(chunk, events[2:]),
             LAST_CHUNK],
        )  # fmt: skip
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with Gateway(tmp_path / "gateway", config, workers=2) as gateway:
            workers = workers_of(gateway.process.pid)
            assert len(workers) == 2
            client = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
            with contextlib.closing(client):
                headers = {"x-api-key": gateway.key, "content-type": "application/json"}
                client.request("POST", "/v1/messages", json.dumps(REQUEST), headers)
                response = client.getresponse()
                begin = response.readline()

                os.kill(gateway.process.pid, signal.SIGKILL)
                gateway.process.wait(60)
                until(lambda: not is_listening(gateway.port), within_s=30)
                gate.set()
                rest = response.read()

            assert begin == b"event: message_start\n"
            assert rest.rstrip().endswith(b'{"type":"message_stop"}')
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
            gateway.start()
            (row,) = gateway.closed_rows(response.headers["request-id"]).values()
            assert row["outcome"] == "completed"
