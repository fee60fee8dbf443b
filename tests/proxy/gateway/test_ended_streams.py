"""What is left of a stream that has ended: nothing, and nothing waits for the collector.

It looks seldom (``lifespan.settle_garbage``), and a failed request may be 32 MB.
"""

import gc
import time
from collections.abc import Iterator

import pytest

from proxy.gateway.ledger import Exchange
from proxy.gateway.wire import Wire
from tests.fakes.steps import Close, Reset, chunk, json_answer, stream, stream_head
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What only the collector would find stays; what was there before is not ours."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left_of(model: str) -> list[str]:
    """The exchanges about a model that are still in memory, and connections that are broken."""
    return [
        type(each).__name__
        for each in gc.get_objects()
        if (isinstance(each, Exchange) and each.model == model)
        or (isinstance(each, Wire) and each._fault is not None)
    ]


ENDINGS = {
    "whole": scripts.chat("Hello"),
    "refused": json_answer({"error": {"message": "no", "type": "server_error"}}, 500),
    "unheard": [Reset()],
    "cut": stream(scripts.chat_chunk({"content": "Hello"}), ending=[Close()]),
    "broken": [stream_head(), chunk(b"data: {\n\n"), Close()],
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_has_ended_does_not_wait_for_the_collector(
    gateway: Browser, scripted: ScriptedUpstream, no_collector: None, ending: str
) -> None:
    model = f"chat-ended-{ending}"
    scripted.on(model, ENDINGS[ending])
    said = {"role": "user", "content": "Hi."}
    request = {"model": model, "max_tokens": 9, "stream": True, "messages": [said]}

    gateway.post(request)

    deadline = time.monotonic() + 30  # its connection and its record may still be at work
    while (left := left_of(model)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
