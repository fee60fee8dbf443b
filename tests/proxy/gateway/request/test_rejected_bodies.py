"""An invalid body is stored unchanged, and is never parsed as a request."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.gateway.admission.rate_limits import Bucket
from proxy.gateway.request import request as request_module
from proxy.gateway.request.request import NOT_STORED, Request
from proxy.ledger.transcripts.storage import StoredTranscript, read
from proxy.models import ApiKey, Team
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient

USER = {"role": "user", "content": "Say hello."}
FAULTY: list[Any] = [
    b'{"model": "chat-invalid", "messages": [',
    b'{"model": "chat-invalid", "model": "chat-invalid"}',
    b"\xff\xfe no JSON",
    b'{"model": "chat-invalid", "messages": ' + b"[" * 200 + b"]" * 200 + b"}",
    {"model": "chat-invalid", "max_tokens": 5, "messages": [{"role": "user", "content": 5}]},
    {
        "model": "chat-invalid",
        "max_tokens": -1,
        "messages": [USER],
        "metadata": {"user_id": 7},
    },
]


@pytest.fixture(autouse=True)
def limit():
    """Reset the limit, which other tests may have used up."""
    request_module.shared_room.left = request_module.BYTES_A_MINUTE


def transcript_of(request_id: str) -> StoredTranscript:
    row(request_id, outcome="refused", status=400, upstream="")
    transcript = read(request_id)
    assert transcript is not None
    return transcript


@pytest.mark.parametrize("body", FAULTY, ids=range(len(FAULTY)))
def test_an_invalid_body_is_stored_unchanged(
    gateway: GatewayClient, scripted: ScriptedUpstream, body: Any
):
    reply = gateway.post(body)

    transcript = transcript_of(reply.id)
    assert transcript.conversation.raw_body is not None
    raw = transcript.conversation.raw_body.text
    assert raw == body if isinstance(body, bytes) else b'"chat-invalid"' in raw
    assert (transcript.request, transcript.answer) == (
        {"raw": raw.decode("utf-8", "replace")},
        None,
    )
    assert transcript.conversation.messages == []
    assert not scripted.requests_for("chat-invalid")


def test_a_body_refused_by_strict_mode_is_stored(gateway: GatewayClient):
    body = message("chat-invalid", field_of_a_strict_test=1)

    reply = gateway.post(body, x_bridge_strict="true")

    assert "field_of_a_strict_test" in transcript_of(reply.id).request["raw"]
    assert row(reply.id).message_count == 1


def test_a_request_refused_for_another_reason_stores_no_body(gateway: GatewayClient):
    reply = gateway.post(message("unknown-model"))

    row(reply.id, outcome="refused", status=404)
    assert read(reply.id) is None


def test_a_team_without_stored_content_stores_no_rejected_body(gateway: GatewayClient, reload):
    team = Team.objects.create(name="faultless", store="metadata")
    _, secret = ApiKey.issue(team, "quiet", scopes=["messages"])
    reload()

    reply = gateway.post(FAULTY[0], x_api_key=secret)

    row(reply.id, outcome="refused", notes=[])
    assert read(reply.id) is None


def test_a_body_beyond_the_limit_is_not_stored_and_noted(gateway: GatewayClient):
    long, short = b"[" + b" " * request_module.MOST_BYTES + b"]", b"[]"

    replies = [gateway.post(body) for body in (long, short)]

    reasons = [note["reason"] for note in row(replies[0].id, outcome="refused").notes]
    assert reasons == [NOT_STORED.reason]
    assert read(replies[0].id) is None
    assert transcript_of(replies[1].id).request == {"raw": "[]"}


def test_the_limit_refills_within_a_minute():
    team = SimpleNamespace(store_full=True)
    request: Any = SimpleNamespace(
        rejected_body=b"x" * 600,
        notes=[],
        caller=SimpleNamespace(team=team),
    )
    limit = Bucket(1_000, 1_000, time.monotonic())

    assert Request.body_to_store(request, limit) == request.rejected_body
    assert Request.body_to_store(request, limit) is None
    assert request.notes == [NOT_STORED]
    limit.at -= 60
    assert Request.body_to_store(request, limit) == request.rejected_body
