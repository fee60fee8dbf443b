"""The running gateway accepts every recorded request body in both dialects."""

import json
from pathlib import Path

import pytest

from tests.fakes.upstreams import recordings, script_steps
from tests.fakes.upstreams.grammar import faults_of_bytes
from tests.for_each import for_each

from .test_stream_bytes import TEXT

BODIES = recordings.recordings("anthropic-requests")
RESPONSES_TEXT = b"".join(
    b"data: %b\n\n" % json.dumps(event).encode()
    for event in (
        {"type": "response.created", "response": {"id": "resp_1", "model": "m", "output": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hello there"},
        {
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "status": "completed",
                "output": [],
                "usage": {"input_tokens": 7, "output_tokens": 2},
            },
        },
    )
)  # fmt: skip
STREAMS_BY_DIALECT = {"responses": RESPONSES_TEXT, "chat": TEXT}

COMPUTER = "fantasy__TestAnthropicComputerUse-claude-sonnet-4-computer_use__i1"
UPLOAD = (
    "pydantic-ai__test_code_execution_files_vcr-test_anthropic_code_execution_files_cache_prefix_"
    "stable-messa-75daf394"
)
UNSUPPORTED = {
    **{(COMPUTER, dialect): "tools.0.type" for dialect in STREAMS_BY_DIALECT},  # it has coordinates
    # a file in Anthropic's file store, for code execution
    **{(UPLOAD, dialect): "messages.0.content.1.type" for dialect in STREAMS_BY_DIALECT},
    ("pydantic-ai__test_anthropic-test_anthropic_mcp_servers__i1", "chat"): "mcp_servers",
}
"""Features that the upstream API lacks are rejected with their path, never dropped silently."""


def ids(path: Path) -> str:
    return path.stem


@pytest.mark.skipif(not BODIES, reason=recordings.ABSENT)
@for_each("dialect", STREAMS_BY_DIALECT)
@for_each("path", BODIES, ids=ids)
def test_recorded_request_is_accepted(gateway, shared_upstream, path, dialect):
    entry = recordings.index()[f"anthropic-requests/{path.name}"]
    counting = "count_tokens" in str(entry.get("endpoint"))
    body = json.loads(path.read_bytes())
    body["model"] = f"{dialect}-accepts"
    shared_upstream.on(body["model"], script_steps.stream(STREAMS_BY_DIALECT[dialect], "lines"))
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    url = "/v1/messages/count_tokens" if counting else "/v1/messages"

    reply = gateway.request("POST", url, json.dumps(body).encode(), headers)

    if unsupported_path := UNSUPPORTED.get((path.stem, dialect)):
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["message"].startswith(unsupported_path)
        return
    assert reply.status == 200, reply.body
    if counting:
        assert json.loads(reply.body)["input_tokens"] > 0
    elif body.get("stream"):
        assert faults_of_bytes(reply.body) == []
    else:
        message = json.loads(reply.body)
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["model"] == body["model"]
