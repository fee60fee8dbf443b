"""An ended stream leaves no object in memory that waits for the garbage collector.

The collector runs rarely (``lifespan.settle_garbage``), and a failed request may have 32 MB.
"""

import gc
import time
from collections.abc import Iterator

import pytest

from proxy.gateway.request.request import Request
from proxy.gateway.upstream.connections import UpstreamConnection
from tests.fakes.upstreams.script_steps import (
    Close,
    Reset,
    chunk,
    json_response,
    stream,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.http_client import GatewayClient

KINDS = (Request, UpstreamConnection)


def present() -> list[Request | UpstreamConnection]:
    return [each for each in gc.get_objects() if type(each) in KINDS]


@pytest.fixture
def others() -> Iterator[list[Request | UpstreamConnection]]:
    """The objects that exist before the test; the garbage collector is off from here on."""
    gc.collect()
    before = present()
    gc.disable()
    yield before
    gc.enable()


def left_by(others: list[Request | UpstreamConnection]) -> list[str]:
    """Return the new requests and broken connections that are still in memory."""
    known = {id(each) for each in others}
    return [
        type(each).__name__
        for each in present()
        if id(each) not in known and (type(each) is Request or each._fault is not None)
    ]


ENDINGS = {
    "whole": upstream_scripts.chat("Hello"),
    "refused": json_response({"error": {"message": "no", "type": "server_error"}}, 500),
    "unanswered": [Reset()],
    "cut": stream(upstream_scripts.chat_chunk({"content": "Hello"}), ending=[Close()]),
    "broken": [stream_head(), chunk(b"data: {\n\n"), Close()],
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ended_stream_leaves_nothing_for_the_garbage_collector(
    gateway: GatewayClient,
    scripted: ScriptedUpstream,
    others: list[Request | UpstreamConnection],
    ending: str,
) -> None:
    model = f"chat-ended-{ending}"
    scripted.on(model, ENDINGS[ending])
    user_message = {"role": "user", "content": "Hi."}
    request = {"model": model, "max_tokens": 9, "stream": True, "messages": [user_message]}

    gateway.post(request)

    deadline = time.monotonic() + 60  # its connection and its records may still be in use
    while (left := left_by(others)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
