"""What an open stream keeps in memory: thousands may be open, and each began with a large body."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.steps import LAST_CHUNK, Hold, chunk, json_answer, stream_head
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, read_until

LARGE = 300_000


def held() -> Iterator[tuple[str, int]]:
    """Large texts and bytes, each with who holds it; the client's and the upstream's are left out."""
    for holder in gc.get_objects():
        name = f"{type(holder).__name__} {getattr(holder, '__qualname__', '')}"
        if name in {"generator Browser.open", "Asked "}:
            continue
        for value in gc.get_referents(holder):
            if type(value) in (bytes, str, bytearray) and len(value) > LARGE:
                yield name, id(value)


def holders() -> set[str]:
    return {name for name, _ in held()}


def copies() -> set[int]:
    return {which for _, which in held()}


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_a_stream_that_speaks_has_let_go_of_its_request(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str
) -> None:
    words, gate = ["Hello", *["still"] * 20], threading.Event()
    told = scripts.chat_events(words) if dialect == "chat" else scripts.responses_events(words)
    first = next(n for n, event in enumerate(told, start=1) if b"Hello" in event)
    steps = [*map(chunk, told[:first]), Hold(gate), *map(chunk, told[first:]), LAST_CHUNK]
    scripted.on(f"{dialect}-large", [stream_head(), *steps])
    message = {"role": "user", "content": "x" * (LARGE + 10_000)}
    request: dict[str, Any] = {
        "model": f"{dialect}-large", "max_tokens": 9, "stream": True, "messages": [message],
    }  # fmt: skip
    before = holders()

    with gateway.open(request) as connection:
        read_until(connection, b"Hello")
        deadline = time.monotonic() + 40  # the ledger's threads may still be at work on it
        while (left := holders() - before) and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        read_until(connection, b"still")  # all that while it was open

    assert left == set()


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_a_request_whose_upstream_thinks_is_in_memory_once(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str
) -> None:
    model, gate = f"{dialect}-thinks", threading.Event()
    scripted.on(model, [Hold(gate), *json_answer({"error": {"message": "no"}}, 500)])
    message = {"role": "user", "content": "x" * (LARGE + 10_000)}
    request = {"model": model, "max_tokens": 9, "stream": True, "messages": [message]}
    before = copies()

    with gateway.open(request) as connection:
        deadline = time.monotonic() + 40  # the ledger's threads may still be at work on it
        while not scripted.asked_for(model) and time.monotonic() < deadline:
            time.sleep(0.05)
        while len(left := copies() - before) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        read_until(connection, b"api_error")

    assert len(left) == 1  # as the upstream is told it, should it have to be told again
