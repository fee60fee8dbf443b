"""A request of four times the size takes about four times the work.

Otherwise one request within the size limit could block a worker for minutes.
"""

import contextlib
import gc
import time

import pytest

from translator import openai_chat, openai_responses
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.errors import BadRequest

SMALL = 6_000
QUADRATIC = 10  # times the work for four times the size: 4 is linear, 16 is quadratic
EFFORT = {"output_config": {"effort": "low"}}


def emitted(*content):
    return {"messages": [{"role": "user", "content": list(content)}]}


def system_messages(count):
    """Return system messages with an effort each and without a user message after them."""
    changes = [{"role": "system", "content": "x", **EFFORT} for _ in range(count)]
    return {"messages": [{"role": "user", "content": "hi"}, *changes]}


def cleared_messages(count):
    each = {"role": "system", "content": "x", "clear_at": "next_user_message"}
    return {"messages": [{"role": "user", "content": "hi"}, *[each] * count]}


def blocks_with_notes(count):
    text = [{"type": "text", "text": "x"}]
    found = {"type": "search_result", "source": "s", "title": "t", "content": text}
    return emitted(*[found] * count)


def servers(count):
    names = [f"server{number}" for number in range(count)]
    return {
        **emitted({"type": "text", "text": "hi"}),
        "mcp_servers": [{"type": "url", "name": name, "url": "https://mcp"} for name in names],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": name} for name in names],
    }


REQUESTS = {made.__name__: made for made in (
    system_messages, cleared_messages, blocks_with_notes, servers,
)}  # fmt: skip


def cpu_of(dialect, request):
    """Return the minimum CPU seconds of three runs."""
    body = {"model": "m", "max_tokens": 9, **request}
    target = TranslationTarget(upstream="u", model="m", profile=PROFILES["openai"])
    runs = []
    for _ in range(3):
        began = time.process_time()
        with contextlib.suppress(
            BadRequest
        ):  # this many servers are rejected after each is checked
            dialect.build_request(body, target)
        runs.append(time.process_time() - began)
    return min(runs)


DIALECTS = {"chat": openai_chat, "responses": openai_responses}
IN_FAST_LANE = {
    ("chat", "system_messages"), ("chat", "blocks_with_notes"),
    ("responses", "cleared_messages"), ("responses", "servers"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "made"),
    [
        pytest.param(
            DIALECTS[dialect], REQUESTS[made], id=f"{dialect}-{made}",
            marks=() if (dialect, made) in IN_FAST_LANE else pytest.mark.slow,
        )
        for dialect in DIALECTS
        for made in REQUESTS
    ],
)  # fmt: skip
def test_four_times_the_request_is_about_four_times_the_work(dialect, made):
    gc.disable()
    try:
        small, large = cpu_of(dialect, made(SMALL)), cpu_of(dialect, made(4 * SMALL))
    finally:
        gc.enable()

    assert large < QUADRATIC * max(small, 0.001)
