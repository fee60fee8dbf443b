"""Events of Amazon Bedrock as Anthropic's SSE frames."""

import base64
import json

import pytest

from tests.fakes.upstreams.amazon_event_stream import event, exception, frame
from tests.for_each import for_each
from translator.anthropic_upstream.bedrock_events import BedrockEvents
from translator.errors import BadUpstream

CHUNK = {":message-type": "event", ":event-type": "chunk"}


def test_an_event_is_relayed_under_its_type():
    event_fields = {"type": "content_block_delta", "index": 0}

    assert BedrockEvents().feed(event(event_fields)) == (
        b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0}\n\n'
    )


def test_the_type_may_follow_other_fields():
    assert BedrockEvents().feed(event({"index": 0, "type": "ping"})).startswith(b"event: ping\n")


def test_events_of_other_types_are_skipped():
    other = frame({":message-type": "event", ":event-type": "novelty"}, b"{}")

    assert BedrockEvents().feed(other + event({"type": "ping"})).startswith(b"event: ping\n")


@for_each(
    ("raw", "kind", "text"),
    [
        (exception("throttlingException", "Too many tokens"), "rate_limit_error", "Too many tokens"),
        (exception("modelTimeoutException", ""), "timeout_error", "ended the stream"),
        (exception("newException", "for arn:aws:iam::1:role/x"), "api_error", "for"),
        (frame({":message-type": "error", ":error-code": "InternalError", ":error-message": "x"}, b""),
         "api_error", "x"),
    ],
)  # fmt: skip
def test_an_exception_becomes_an_error_event(raw, kind, text):
    name, _, data = BedrockEvents().feed(raw).decode().partition("\ndata: ")

    error = json.loads(data)["error"]
    assert (name, error["type"]) == ("event: error", kind)
    assert text in error["message"]
    assert "role/x" not in error["message"]


@for_each(
    "payload",
    [
        b"",
        b"[]",
        b'{"bytes": 1}',
        b'{"bytes": "***"}',
        json.dumps({"bytes": base64.b64encode(b'{"a": 1}').decode()}).encode(),
        json.dumps({"bytes": base64.b64encode(b'{"type": "a b"}').decode()}).encode(),
        json.dumps({"bytes": base64.b64encode(b'{"type":"a"}\n\ndata: x').decode()}).encode(),
    ],
)
def test_a_chunk_without_an_event_is_an_error(payload):
    with pytest.raises(BadUpstream):
        BedrockEvents().feed(frame(CHUNK, payload))
