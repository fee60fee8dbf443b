"""Exceptions injected in thirty functions: the client sees only the request id (T51, P13)."""

import importlib
from datetime import UTC, datetime

import pytest

from proxy.gateway.snapshot.config_snapshot import directory
from proxy.models import Budget, Price, Team, Upstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row

SECRET = "injected-secret /usr/lib/python3/secret.py line 7"
PLACES = (
    "proxy.gateway.endpoints.messages:parse_messages_request", "proxy.gateway.endpoints.messages:choose_route", "proxy.gateway.endpoints.messages:try_targets",
    "proxy.gateway.endpoints.messages:ClientOptions.of", "proxy.gateway.endpoints.messages:decode_object", "proxy.gateway.endpoints.messages:parse_body",
    "proxy.gateway.endpoints.messages:budgets.reserve", "proxy.gateway.request.request:open_record", "proxy.gateway.request.request:Request.accept",
    "proxy.gateway.request.request:Request.set_body", "proxy.gateway.request.request:Request.attempt_started", "proxy.gateway.request.request:Request.wait_until_recorded",
    "proxy.gateway.request.request:Request.first_content_sent", "proxy.gateway.request.request:Request.store_upstream_bytes", "proxy.gateway.request.request:session_id_in",
    "proxy.gateway.upstream.attempt:Attempt.build_upstream_request", "proxy.gateway.upstream.attempt:Attempt._post", "proxy.gateway.upstream.attempt:Attempt._post_once",
    "proxy.gateway.upstream.attempt:Attempt.deliver", "proxy.gateway.upstream.attempt:Attempt.relay_events", "proxy.gateway.upstream.attempt:ResponseDecoder.feed",
    "proxy.gateway.request.attempts:StoredReads.add", "translator.message_stream.events_to_message:MessageFold.feed",
    "translator.openai_chat.chat_stream:ChatStream.feed", "proxy.gateway.upstream.response_writers:StreamingResponseWriter.write_events", "proxy.gateway.endpoints.http_consumer:gunzip_limited",
    "translator.message_stream.message_composer:MessageComposer.start", "translator.message_stream.stream_grammar:MessageWriter.start",
    "translator.openai_chat.chat_stream:ChatStream.end", "proxy.gateway.http.request_headers:RequestHeaders.text",
)  # fmt: skip
"""Functions of the gateway, as ``module:path``. A request of this test calls each of them."""
STREAM_ONLY = "proxy.gateway.upstream.response_writers:StreamingResponseWriter.write_events"


def resolve(place):
    """Return the object and the attribute name of a place."""
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *steps, name = path.split(".")
    for step in steps:
        owner = getattr(owner, step)
    assert callable(getattr(owner, name)), place
    return owner, name


CASES = [
    pytest.param(place, fields, id=f"{name}-{place}")
    for name, fields in {"stream": {"stream": True}, "whole": {}}.items()
    for place in PLACES
    if name == "stream" or place != STREAM_ONLY
]


@pytest.fixture(scope="module", autouse=True)
def budget(gateway):
    """A budget that is never used up, so that requests reserve their cost."""
    chat, since = Upstream.objects.get(name="chat"), datetime(2026, 1, 1, tzinfo=UTC).date()
    Price.objects.create(upstream=chat, model="chat-planted", since=since, input=1, output=1)
    Budget.objects.create(team=Team.objects.get(name="platform"), usd=1_000_000, period="month")
    directory.poll()


@pytest.mark.parametrize(("place", "fields"), CASES)
def test_client_sees_only_the_request_id_of_an_internal_error(
    gateway, scripted, monkeypatch, place, fields
):
    scripted.on("chat-planted", upstream_scripts.chat())
    request = message("chat-planted", metadata={"user_id": "user_1"}, **fields)
    owner, name = resolve(place)
    calls = []

    def fault(*_: object, **__: object):
        calls.append(place)
        raise ZeroDivisionError(SECRET)

    # A bug is planted: no request can cause one.
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fault)
        reply = gateway.post(request, packed=True)

    assert calls, f"the request did not call {place}"
    body = reply.body.decode()
    assert reply.status in {200, 400, 500, 502}
    for leak in ("injected-secret", "Traceback", "ZeroDivision", "/usr/lib", ".py"):
        assert leak not in body
    if reply.status == 200 and "message_stop" not in body:
        assert body.rstrip().rpartition("event: error")[1] or '"type":"message"' in body
    if reply.status >= 400:
        assert reply.json["request_id"] == reply.id
    healthy = gateway.post(request)
    assert healthy.status == 200
    row(healthy.id, outcome="completed")
