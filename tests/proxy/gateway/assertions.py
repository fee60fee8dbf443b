"""Assertions for errors, as HTTP responses and as the end of a stream."""

from typing import Any

from .conftest import UPSTREAM_SECRET
from .http_client import Reply


def assert_error(reply: Reply, status: int, error_type: str) -> dict[str, Any]:
    """Check an error response against Anthropic's format; return its ``error`` object."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json) == {"type", "error", "request_id"}
    assert reply.json["request_id"] == reply.id
    assert reply.json["error"]["type"] == error_type
    assert UPSTREAM_SECRET not in reply.body.decode()
    error: dict[str, Any] = reply.json["error"]
    return error


def assert_stream_error(reply: Reply, error_type: str) -> None:
    """Check that a stream closes its block and ends in an error event."""
    assert reply.status == 200
    kinds = [kind for kind in reply.kinds if kind != "ping"]
    assert kinds[-2:] == ["content_block_stop", "error"]
    assert "message_stop" not in kinds
    assert reply.events[-1]["error"]["type"] == error_type
    assert reply.events[-1]["request_id"] == reply.id
