"""Fifty clients that do not read their endless streams do not delay a new connection."""

import contextlib
import http.client
import json
import socket
from pathlib import Path

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import chunk, stream_head
from tests.fakes.upstreams.upstream import ScriptedUpstream

ROUTES = """
[[routes]]
model = "endless"
targets = [{ upstream = "chat" }]
"""
STREAMS = 50
MAX_CPU_S = 5.0
"""Of the gateway until it answers; the load of the machine does not change it. The event loop
accepts one connection in an iteration: if each iteration translates a large read of each stream,
the new connection, which is the 51st, waits for 50 * 51 / 2 reads of some 10 ms."""
DELTA = {
    "id": "c", "object": "chat.completion.chunk", "model": "endless",
    "choices": [{"index": 0, "delta": {"content": "words"}, "finish_reason": None}],
}  # fmt: skip
EVENT = b"data: " + json.dumps(DELTA).encode() + b"\n\n"
REQUEST = {
    "model": "endless", "max_tokens": 9, "stream": True,
    "messages": [{"role": "user", "content": "Hello"}],
}  # fmt: skip


@pytest.mark.slow
def test_a_new_connection_is_served_while_fifty_endless_streams_are_unread(tmp_path: Path):
    with ScriptedUpstream() as upstream, contextlib.ExitStack() as stack:
        upstream.on("endless", [stream_head(), *[chunk(EVENT * 400)] * 2_000])
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        gateway = stack.enter_context(Gateway(tmp_path / "g", config, {"BRIDGE_DRAIN_S": "1"}))
        body = json.dumps(REQUEST).encode()
        head = (
            f"POST /v1/messages HTTP/1.1\r\nhost: t\r\nx-api-key: {gateway.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        before = gateway.cpu_s
        clients = []
        for _ in range(STREAMS):
            client = socket.create_connection(("127.0.0.1", gateway.port))
            clients.append(stack.enter_context(client))
            client.sendall(head + body)
        health = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=90)
        with contextlib.closing(health):
            health.request("GET", "/healthz")
            status = health.getresponse().status
        spent = gateway.cpu_s - before
        heads = [client.recv(12) for client in clients]

    assert status == 200
    assert heads == [b"HTTP/1.1 200"] * STREAMS
    assert spent < MAX_CPU_S
