"""A deadline that ends while a refusal is told has nothing to say any more."""

import asyncio
import json
from typing import Any

from proxy.gateway.base import StreamingHttpConsumer
from proxy.gateway.refusals import Refusal
from proxy.gateway.targets import Timeouts
from proxy.gateway.watch import Stop

from .browser import Browser

LIMIT_S = 0.05
SCOPE = {
    "type": "http", "method": "POST", "path": "/v1/messages", "query_string": b"",
    "client": ("127.0.0.1", 1), "extensions": {}, "headers": [],
}  # fmt: skip


class Refused(StreamingHttpConsumer):
    """Its upstream says no just before the time for it is over."""

    probe = True

    async def handle(self) -> None:
        limits = Timeouts(first_byte_s=LIMIT_S, idle_s=LIMIT_S, total_s=LIMIT_S)
        self.watch.begin(limits, LIMIT_S, lambda _: None, LIMIT_S)
        self.watch.expect(Stop.FIRST_BYTE)
        raise Refusal(529, "overloaded_error", "no")


async def test_a_refusal_reaches_a_slow_client(gateway: Browser):
    heard: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(LIMIT_S * 3)
        heard.append(message)

    await Refused()(SCOPE, receive, send)

    head, *rest = heard
    assert head["status"] == 529
    assert json.loads(b"".join(each["body"] for each in rest))["error"]["message"] == "no"
    assert not rest[-1].get("more_body", False)
