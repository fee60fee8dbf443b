"""The memory of open streams: thousands may be open, each with a large request body."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    WaitForGate,
    chunk,
    json_response,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.http_client import GatewayClient, read_until

LARGE = 300_000


def large_values() -> Iterator[tuple[str, int]]:
    """Yield the holder and the id of each large text, except those of the test's client and upstream."""
    for holder in gc.get_objects():
        name = f"{type(holder).__name__} {getattr(holder, '__qualname__', '')}"
        if name in {"generator GatewayClient.open", "ReceivedRequest "}:
            continue
        for value in gc.get_referents(holder):
            if type(value) in (bytes, str, bytearray) and len(value) > LARGE:
                yield name, id(value)


def holders() -> set[str]:
    return {name for name, _ in large_values()}


def copies() -> set[int]:
    return {which for _, which in large_values()}


@for_each("dialect", ["chat", "responses"])
def test_a_stream_frees_its_request_body_at_the_first_text(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str
) -> None:
    words, gate = ["Hello", *["still"] * 20], threading.Event()
    events = (
        upstream_scripts.chat_events(words)
        if dialect == "chat"
        else upstream_scripts.responses_events(words)
    )
    first = next(n for n, event in enumerate(events, start=1) if b"Hello" in event)
    steps = [
        *map(chunk, events[:first]),
        WaitForGate(gate),
        *map(chunk, events[first:]),
        LAST_CHUNK,
    ]
    scripted.on(f"{dialect}-large", [stream_head(), *steps])
    message = {"role": "user", "content": "x" * (LARGE + 10_000)}
    request: dict[str, Any] = {
        "model": f"{dialect}-large", "max_tokens": 9, "stream": True, "messages": [message],
    }  # fmt: skip
    before = holders()

    with gateway.open(request) as connection:
        read_until(connection, b"Hello")
        deadline = time.monotonic() + 40  # threads of the ledger may still use it
        while (left := holders() - before) and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        read_until(connection, b"still")  # the stream is still open

    assert left == set()


@for_each("dialect", ["chat", "responses", "anthropic"])
def test_a_request_that_waits_for_its_upstream_is_in_memory_once(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str
) -> None:
    model, gate = f"{dialect}-thinks", threading.Event()
    scripted.on(model, [WaitForGate(gate), *json_response({"error": {"message": "no"}}, 500)])
    message = {"role": "user", "content": "x" * (LARGE + 10_000)}
    request = {"model": model, "max_tokens": 9, "stream": True, "messages": [message]}
    before = copies()

    with gateway.open(request) as connection:
        deadline = time.monotonic() + 40  # threads of the ledger may still use it
        while not scripted.requests_for(model) and time.monotonic() < deadline:
            time.sleep(0.05)
        while len(left := copies() - before) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        read_until(connection, b"api_error")

    assert len(left) == 1  # the copy for another attempt
