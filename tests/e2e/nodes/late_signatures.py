"""Check that late thought signatures return through other processes of the gateway."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway.upstream_scripts import THOUGHT_SIGNATURE

REQUEST: dict[str, Any] = {
    "model": "late",
    "max_tokens": 100,
    "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
}


def assert_signature_returns(
    upstream: ScriptedUpstream, gateways: Sequence[Gateway], headers: Mapping[str, str]
) -> None:
    """Send the first request to the first gateway, and the second one to each of the others."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    first, *others = gateways
    content = _content(first, history, headers)
    result = {"type": "tool_result", "tool_use_id": content[0]["id"], "content": "ok"}
    history += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]

    for other in others:
        _content(other, history, headers)
        sent = upstream.requests_for("late")[-1].json["messages"][1]["tool_calls"]
        assert [call["extra_content"] for call in sent] == [THOUGHT_SIGNATURE]


def _content(
    gateway: Gateway, history: list[dict[str, Any]], headers: Mapping[str, str]
) -> list[dict[str, Any]]:
    body = json.dumps(REQUEST | {"messages": history}).encode()
    all_headers = {"content-type": "application/json", **headers}
    reply = gateway.request("POST", "/v1/messages", body, all_headers, authorized=False)
    assert reply.status == 200, reply.body
    content: list[dict[str, Any]] = json.loads(reply.body)["content"]
    return content
