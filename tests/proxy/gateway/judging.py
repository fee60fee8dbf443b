"""What every error must be, as an HTTP answer and as the end of a stream."""

from typing import Any

from .browser import Reply
from .conftest import UPSTREAM_SECRET


def failed(reply: Reply, status: int, error_type: str) -> dict[str, Any]:
    """The error of an HTTP answer, which must be Anthropic's in every part."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json) == {"type", "error", "request_id"}
    assert reply.json["request_id"] == reply.id
    assert reply.json["error"]["type"] == error_type
    assert UPSTREAM_SECRET not in reply.body.decode()
    error: dict[str, Any] = reply.json["error"]
    return error


def broken_off(reply: Reply, error_type: str) -> None:
    """A stream that ends in an error: block closed, then the error, nothing after."""
    assert reply.status == 200
    kinds = [kind for kind in reply.kinds if kind != "ping"]
    assert kinds[-2:] == ["content_block_stop", "error"]
    assert "message_stop" not in kinds
    assert reply.events[-1]["error"]["type"] == error_type
    assert reply.events[-1]["request_id"] == reply.id
