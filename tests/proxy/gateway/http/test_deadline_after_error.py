"""A deadline that expires while an error response is sent does not cancel it."""

import asyncio
import json
from typing import Any

from proxy.gateway.endpoints.http_consumer import StreamingHttpConsumer
from proxy.gateway.http.deadlines import CancelReason
from proxy.gateway.http.errors import HttpError
from proxy.models.setup.columns import Timeouts
from tests.proxy.gateway.http_client import GatewayClient

LIMIT_S = 0.05
SCOPE = {
    "type": "http", "method": "POST", "path": "/v1/messages", "query_string": b"",
    "client": ("127.0.0.1", 1), "headers": [],
}  # fmt: skip


class RefusingConsumer(StreamingHttpConsumer):
    """Raises an error while a short deadline runs."""

    probe = True

    async def handle(self) -> None:
        limits = Timeouts(first_byte_s=LIMIT_S, idle_s=LIMIT_S, total_s=LIMIT_S)
        self.deadlines.begin(limits, LIMIT_S, lambda _: None, LIMIT_S)
        self.deadlines.start_wait(CancelReason.FIRST_BYTE)
        raise HttpError(529, "overloaded_error", "no")


async def test_an_error_response_reaches_a_slow_client_after_the_deadline(gateway: GatewayClient):
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(LIMIT_S * 3)
        sent.append(message)

    await RefusingConsumer()(SCOPE, receive, send)

    head, *rest = sent
    assert head["status"] == 529
    assert json.loads(b"".join(each["body"] for each in rest))["error"]["message"] == "no"
    assert not rest[-1].get("more_body", False)
