"""Concurrent requests receive only their own text, and no text of a request is executed."""

import asyncio
import json
import re
import sys

import pytest

from tests.fakes.upstreams.script_steps import LAST_CHUNK, Sleep, chunk, json_response, stream_head
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message
from tests.slow.threats import raw_http

CLIENTS = 200
MARK = re.compile(rb"mark(\d+)x")
PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn"}


def echo(request):
    """Let the upstream send the mark of its request in small pieces with pauses."""
    found = MARK.search(request.body)
    if found is None:
        return None
    mark = f"mark{int(found[1])}x "
    pieces = [chunk(upstream_scripts.chat_chunk({"content": mark})) for _ in range(8)]
    steps = [step for piece in pieces for step in (piece, Sleep(0.005))]
    end = b"".join(upstream_scripts.chat_events(())[-3:])
    return [stream_head(), *steps, chunk(end), LAST_CHUNK]


async def send_marked(gateway, n):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = raw_http.messages_body(model=f"chat-mark{n}x", stream=True)
    writer.write(
        raw_http.post(gateway.key, body, f"content-length: {len(body)}", "connection: close")
    )
    received = await reader.read(-1)
    writer.close()
    return received


@pytest.mark.timeout(300)
def test_concurrent_requests_receive_only_their_own_text(gateway, scripted):
    scripted.choose(echo)

    async def all_at_once():
        return await asyncio.gather(*(send_marked(gateway, n) for n in range(CLIENTS)))

    try:
        received = asyncio.run(all_at_once())
    finally:
        scripted.choose(lambda _: None)

    for n, raw in enumerate(received):
        assert b"message_stop" in raw, raw[-300:]
        assert {int(mark) for mark in MARK.findall(raw)} == {n}
    names = [re.search(rb"request-id: (\S+)", raw)[1] for raw in received]
    assert len(set(names)) == CLIENTS


def test_request_text_is_never_executed(gateway, scripted):
    """Record Python's audit events while requests with code in every field are served."""
    calls = []

    def audit(event, arguments):
        if audit.on and (event in PROGRAMS or (event == "exec" and audit.on)):
            calls.append((event, repr(arguments)[:200]))

    audit.on = False
    sys.addaudithook(audit)  # audit hooks cannot be removed; ``on`` disables it
    code = ["__import__('os').system('id')", "{{7*7}}", "${7*7}", "<%= 7*7 %>", "{% load os %}", "!!python/object:os.system",
            "cos\nsystem\n(S'id'\ntR.", "'; import os #", "`id`", "$(id)", "eval(1)"]  # fmt: skip
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "t", "arguments": json.dumps({"x": code[0]})},
    }
    body = {
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {"role": "assistant", "tool_calls": [call]},
            }
        ]
    }
    scripted.on("chat-code", json_response(body))
    gateway.post(message("chat-code"))  # imports on first use happen here
    audit.on = True
    try:
        for text in code:
            request = message("chat-code", system=text, messages=[{"role": "user", "content": text}],
                           tools=[{"name": "t", "description": text, "input_schema": {"type": "object"}}])  # fmt: skip
            assert gateway.post(request, x_gateway_tags=f"a={text.splitlines()[0]}").status == 200
            gateway.post(request | {"stream": True})
    finally:
        audit.on = False

    assert calls == []
