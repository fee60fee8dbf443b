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

KINDS = (Exchange, Wire)


def present() -> list[Exchange | Wire]:
    return [each for each in gc.get_objects() if type(each) in KINDS]


@pytest.fixture
def others() -> Iterator[list[Exchange | Wire]]:
    """What was there before, and is kept; from here on what only the collector finds stays."""
    gc.collect()
    before = present()
    gc.disable()
    yield before
    gc.enable()


def left_by(others: list[Exchange | Wire]) -> list[str]:
    """The exchanges that have come since and are still in memory, and the broken connections."""
    known = {id(each) for each in others}
    return [
        type(each).__name__
        for each in present()
        if id(each) not in known and (type(each) is Exchange or each._fault is not None)
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
    gateway: Browser, scripted: ScriptedUpstream, others: list[Exchange | Wire], ending: str
) -> None:
    model = f"chat-ended-{ending}"
    scripted.on(model, ENDINGS[ending])
    said = {"role": "user", "content": "Hi."}
    request = {"model": model, "max_tokens": 9, "stream": True, "messages": [said]}

    gateway.post(request)

    deadline = time.monotonic() + 60  # its connection and its record may still be at work
    while (left := left_by(others)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
