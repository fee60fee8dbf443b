"""Many at once: nobody hears a word of another; and nothing that is said is run."""

import asyncio
import json
import re
import sys

import pytest

from tests.fakes.steps import LAST_CHUNK, Sleep, chunk, json_answer, stream_head
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import message

from . import wire

CROWD = 200
MARK = re.compile(rb"mark(\d+)x")
PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn"}


def echo(asked):
    """An upstream that says, in small pieces with pauses, the mark that it was asked with."""
    found = MARK.search(asked.body)
    if found is None:
        return None
    mark = f"mark{int(found[1])}x "
    pieces = [chunk(scripts.chat_chunk({"content": mark})) for _ in range(8)]
    steps = [step for piece in pieces for step in (piece, Sleep(0.005))]
    end = b"".join(scripts.chat_events(())[-3:])
    return [stream_head(), *steps, chunk(end), LAST_CHUNK]


async def one(gateway, n):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    said = wire.question(model=f"chat-mark{n}x", stream=True)
    writer.write(wire.post(gateway.key, said, f"content-length: {len(said)}", "connection: close"))
    heard = await reader.read(-1)
    writer.close()
    return heard


@pytest.mark.timeout(300)
def test_nobody_hears_a_word_of_another(gateway, scripted, tuned):
    scripted.choose(echo)

    async def all_at_once():
        return await asyncio.gather(*(one(gateway, n) for n in range(CROWD)))

    try:
        heard = asyncio.run(all_at_once())
    finally:
        scripted.choose(lambda _: None)

    for n, raw in enumerate(heard):
        assert b"message_stop" in raw, raw[-300:]
        assert {int(mark) for mark in MARK.findall(raw)} == {n}
    names = [re.search(rb"request-id: (\S+)", raw)[1] for raw in heard]
    assert len(set(names)) == CROWD


def test_a_request_runs_no_code_and_no_program(gateway, scripted):
    """Python's own audit hook, while requests full of code pass."""
    ran = []

    def watch(event, arguments):
        if watch.on and (event in PROGRAMS or (event == "exec" and watch.on)):
            ran.append((event, repr(arguments)[:200]))

    watch.on = False
    sys.addaudithook(watch)  # for good: it looks away when it is not on
    code = ["__import__('os').system('id')", "{{7*7}}", "${7*7}", "<%= 7*7 %>", "{% load os %}", "!!python/object:os.system",
            "cos\nsystem\n(S'id'\ntR.", "'; import os #", "`id`", "$(id)", "eval(1)"]  # fmt: skip
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "t", "arguments": json.dumps({"x": code[0]})},
    }
    said = {
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {"role": "assistant", "tool_calls": [call]},
            }
        ]
    }
    scripted.on("chat-code", json_answer(said))
    gateway.post(message("chat-code"))  # what is imported late is imported now
    watch.on = True
    try:
        for text in code:
            told = message("chat-code", system=text, messages=[{"role": "user", "content": text}],
                           tools=[{"name": "t", "description": text, "input_schema": {"type": "object"}}])  # fmt: skip
            assert gateway.post(told, x_gateway_tags=f"a={text.splitlines()[0]}").status == 200
            gateway.post(told | {"stream": True})
    finally:
        watch.on = False

    assert ran == []
