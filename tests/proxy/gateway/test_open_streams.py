"""What an open stream keeps in memory: thousands may be open, and each began with a large body."""

import gc
import threading
import time
from typing import Any

import pytest

from tests.fakes.steps import LAST_CHUNK, Hold, chunk, stream_head
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, read_until

LARGE = 300_000


def holders() -> set[str]:
    """Who holds a large text or bytes: the type and name of each; client and upstream are left out."""
    found = {
        f"{type(holder).__name__} {getattr(holder, '__qualname__', '')}"
        for holder in gc.get_objects()
        for value in gc.get_referents(holder)
        if type(value) in (bytes, str, bytearray) and len(value) > LARGE
    }
    return found - {"generator Browser.open", "Asked "}


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
        while (held := holders() - before) and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        read_until(connection, b"still")  # all that while it was open

    assert held == set()
