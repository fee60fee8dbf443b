"""The request of the tests of connections, and the answer of their upstreams."""

import json
from typing import Any

from tests.fakes.servers.gateway import Gateway

HEADER_SECRET = "secret-of-the-header-4711"
ANSWER = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": f"The header is {HEADER_SECRET}."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16},
}


def send_question(gateway: Gateway, model: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    body = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
    fields = {"content-type": "application/json", **headers}
    reply = gateway.request("POST", "/v1/messages", json.dumps(body).encode(), fields)
    return reply.status, reply.headers, json.loads(reply.body)
