"""Failures of an upstream before its first byte, and the failover."""

import json
import socket

import pytest

from tests.fakes.upstreams.script_steps import (
    Close,
    Reset,
    Send,
    Stall,
    chunk,
    head,
    html_response,
    json_response,
    not_http,
    response,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.assertions import assert_error
from tests.proxy.gateway.conftest import (
    PATIENT,
    UPSTREAM_SECRET,
    add_route,
    add_upstream,
    message,
    newest_row,
    row,
)
from tests.proxy.gateway.http_client import GatewayClient


@for_each(
    ("status", "error", "expected"),
    [
        (400, {"message": "bad field"}, (400, "invalid_request_error")),
        (401, {"message": "bad key"}, (500, "api_error")),
        (404, {"message": "no", "code": "model_not_found"}, (404, "not_found_error")),
        (429, {"message": "slow", "code": "rate_limit_exceeded"}, (429, "rate_limit_error")),
        (429, {"message": "pay", "code": "insufficient_quota"}, (402, "billing_error")),
        (500, {"message": "oops"}, (500, "api_error")),
        (503, {"message": "busy"}, (529, "overloaded_error")),
        (504, {"message": "late"}, (504, "timeout_error")),
        (529, {"message": "busy"}, (529, "overloaded_error")),
    ],
)
def test_an_error_status_is_mapped_to_an_anthropic_error(
    gateway: GatewayClient,
    scripted: ScriptedUpstream,
    status: int,
    error,
    expected: tuple[int, str],
):
    scripted.on("chat-status", json_response({"error": error}, status))

    reply = gateway.post(message("chat-status", stream=True))

    assert_error(reply, *expected)
    stored = row(reply.id, outcome="upstream_error", status=expected[0], upstream_status=status)
    assert len(stored.attempts) == 1
    assert (stored.input_tokens, stored.output_tokens) == (None, None)


@for_each(
    ("given", "expected"),
    [("2", "2"), ("999999", "60"), ("-1", "5"), ("nan", "5"), (None, "5")],
)
def test_retry_after_is_clamped(
    gateway: GatewayClient, scripted: ScriptedUpstream, given, expected
):
    headers = {} if given is None else {"retry-after": given}
    scripted.on("chat-429", json_response({"error": {"message": "slow"}}, 429, headers))

    reply = gateway.post(message("chat-429"))

    assert_error(reply, 429, "rate_limit_error")
    assert reply.headers["retry-after"] == expected


def test_retry_after_is_read_from_the_header_before_the_text(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    error = {"error": {"message": "slow. Please retry after 40 seconds.", "code": "429"}}
    scripted.on("chat-both", json_response(error, 429, {"retry-after": "7"}))
    scripted.on("chat-text", json_response(error, 429))

    assert gateway.post(message("chat-both")).headers["retry-after"] == "7"
    assert gateway.post(message("chat-text")).headers["retry-after"] == "40"


def test_an_unknown_upstream_model_is_reported_by_the_client_s_model_name(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    error = {"message": "The model `gpt-9` does not exist", "code": "model_not_found"}
    scripted.on("chat-lacking", json_response({"error": error}, 404))

    reply = gateway.post(message("chat-lacking"))

    assert_error(reply, 404, "not_found_error")
    assert reply.json["error"]["message"] == "model: chat-lacking"


@for_each("status", [204, 206, 302, 307, 418, 599])
def test_an_unexpected_status_is_a_bad_gateway(
    gateway: GatewayClient, scripted: ScriptedUpstream, status: int
):
    elsewhere = {"location": f"{scripted.url}/sink"}
    scripted.on("chat-unexpected", response(status, b"", "text/plain", elsewhere))

    reply = gateway.post(message("chat-unexpected"))

    assert reply.status in {400, 502}
    assert not [each for each in scripted.requests if each.path == "/sink"]


def test_a_web_page_never_reaches_the_client(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-html-502", html_response(502, size=200_000))
    scripted.on("chat-html-200", html_response(200))

    for model in ("chat-html-502", "chat-html-200"):
        reply = gateway.post(message(model, stream=True))

        assert_error(reply, 502, "api_error")
        assert b"<" not in reply.body


@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
def test_the_log_mentions_a_web_page_without_its_text(
    gateway: GatewayClient,
    scripted: ScriptedUpstream,
    caplog: pytest.LogCaptureFixture,
    dialect: str,
):
    page = f"<html>{UPSTREAM_SECRET} <p>no backend</p>{'x' * 3_000}".encode()
    scripted.on(f"{dialect}-page", response(502, page, "text/html"))
    scripted.on(f"{dialect}-no-page", json_response({"error": {"message": "oops"}}, 502))
    caplog.set_level("INFO", "proxy.gateway")

    reply = gateway.post(message(f"{dialect}-page"))
    assert_error(gateway.post(message(f"{dialect}-no-page")), 502, "api_error")

    assert_error(reply, 502, "api_error")
    assert reply.json["error"]["message"] == "upstream returned HTTP 502 (text/html)"
    (logged,) = [each.getMessage() for each in caplog.records if "no JSON" in each.getMessage()]
    assert logged == f"{dialect} answered with status 502 and no JSON: {len(page)} bytes"
    assert "no backend" not in caplog.text
    assert "oops" not in caplog.text


def test_an_endless_error_body_is_not_awaited(gateway: GatewayClient, scripted: ScriptedUpstream):
    script = [head(500, {"transfer-encoding": "chunked"}), *[chunk(b"x" * 65_536)] * 40, Stall()]
    scripted.on("chat-endless", script)

    assert_error(gateway.post(message("chat-endless")), 500, "api_error")


@for_each("raw", [b"", b'{"error": {"mess', b"\xff\xfe\x00"])
def test_a_malformed_error_body_is_mapped_by_its_status(
    gateway: GatewayClient, scripted: ScriptedUpstream, raw: bytes
):
    scripted.on("chat-broken-error", response(500, raw, "application/json"))

    assert_error(gateway.post(message("chat-broken-error")), 500, "api_error")


def test_a_closed_port_is_a_bad_gateway(gateway: GatewayClient, reload):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # stays bound, so that no other process gets it
        port = unused.getsockname()[1]
        add_route("refused-*", add_upstream("refused", "chat", f"http://127.0.0.1:{port}/v1"))
        reload()

        reply = gateway.post(message("refused-x"))

    error = assert_error(reply, 502, "api_error")
    assert reply.headers["x-should-retry"] == "true"
    assert str(port) not in error["message"]
    stored = row(reply.id, outcome="upstream_error", status=502)
    assert len(stored.attempts) == 2


def test_a_host_name_that_does_not_resolve_is_an_error(gateway: GatewayClient, reload):
    brief = PATIENT | {"connect_s": 5}  # some resolvers are slow to fail
    nowhere = add_upstream(
        "nowhere", "chat", "http://no-such-host.invalid/v1", timeouts=brief, allow_http=True
    )
    add_route("nowhere-*", nowhere)
    reload()

    reply = gateway.post(message("nowhere-x"))

    assert reply.status in {502, 504}
    assert "invalid" not in reply.json["error"]["message"].split()
    assert len(row(reply.id).attempts) == 2


@for_each("script", [not_http(), [Reset()], [Close()], [Stall()]])
def test_a_failure_on_a_new_connection_is_not_retried(gateway: GatewayClient, script, reload):
    with ScriptedUpstream() as mute:  # an upstream of its own has no pooled connection yet
        mute.on("mute-x", script)
        brief = PATIENT | {"first_byte_s": 1}
        upstream = add_upstream("mute", "chat", mute.base_url, timeouts=brief)
        route = add_route("mute-*", upstream)
        reload()

        reply = gateway.post(message("mute-x"))

        assert reply.status in {502, 504}
        assert len(mute.requests) == 1
    row(reply.id, status=reply.status)
    route.delete()
    upstream.delete()


def test_silence_before_the_head_is_a_timeout(
    gateway: GatewayClient, scripted: ScriptedUpstream, deadlines
):
    deadlines(first_byte_s=0.3)
    scripted.on("chat-never", [Stall()])

    reply = gateway.post(message("chat-never", stream=True))

    assert_error(reply, 504, "timeout_error")
    row(reply.id, outcome="upstream_timeout", status=504)
    scripted.wait_until(lambda requests: requests[-1].ending == "client_gone")


def test_a_connection_is_reused_and_a_closed_one_is_replaced(gateway: GatewayClient, reload):
    with ScriptedUpstream() as own:  # its own: no pooled connection
        # One write: without an end soon after the last event, the connection is closed.
        chat = Send(upstream_scripts.sent_bytes(upstream_scripts.chat()))
        own.on("own-x", [chat], [chat], [chat, Close()], [chat])
        upstream = add_upstream("own", "chat", own.base_url)
        route = add_route("own-*", upstream)
        reload()

        for _ in range(4):
            reply = gateway.post(message("own-x"))
            assert reply.status == 200
            row(reply.id)  # the connection is in the pool again

        assert [request.connection for request in own.requests] == [0, 0, 0, 1]
    route.delete()
    upstream.delete()


@pytest.fixture
def two_targets(gateway: GatewayClient, scripted: ScriptedUpstream, reload):
    """A route ``two-*`` to ``first``, then to ``second``."""
    upstreams = [add_upstream(n, "chat", f"{scripted.url}/{n}") for n in ("first", "second")]
    route = add_route("two-*", *upstreams)
    reload()
    yield
    scripted.choose(lambda _: None)
    route.delete()
    for upstream in upstreams:
        upstream.delete()


def test_the_next_target_is_used_when_the_first_fails_early(
    gateway: GatewayClient, scripted: ScriptedUpstream, two_targets
):
    scripted.choose(
        lambda request: (
            json_response({"error": {"message": "busy"}}, 503)
            if request.path.startswith("/first")
            else None
        )
    )
    scripted.on("two-x", upstream_scripts.chat())

    reply = gateway.post(message("two-x", stream=True))

    assert reply.text == "Hello there."
    stored = row(reply.id, outcome="completed", upstream="second")
    assert [each["upstream"] for each in stored.attempts] == ["first", "second"]
    assert [each["status"] for each in stored.attempts] == [503, 200]


def test_the_next_target_is_used_for_a_request_beyond_the_quota_of_the_first(
    gateway: GatewayClient, scripted: ScriptedUpstream, two_targets
):
    text = "Request too large for m on tokens per min (TPM): Limit 30, Requested 9000."
    error = {"message": text, "code": "rate_limit_exceeded"}
    scripted.choose(
        lambda request: (
            json_response({"error": error}, 429) if request.path.startswith("/first") else None
        )
    )
    scripted.on("two-large", upstream_scripts.chat())

    replies = [gateway.post(message("two-large")) for _ in range(4)]

    assert [reply.status for reply in replies] == [200] * 4
    stored = row(replies[3].id, outcome="completed", upstream="second")
    # one large request does not let the target cool down for others
    assert [each["upstream"] for each in stored.attempts] == ["first", "second"]


def test_the_next_target_is_not_tried_for_an_invalid_request(
    gateway: GatewayClient, scripted: ScriptedUpstream, two_targets
):
    bad = {"error": {"message": "no", "type": "invalid_request_error"}}
    scripted.on("two-bad", json_response(bad, 400))

    reply = gateway.post(message("two-bad", stream=True))

    assert_error(reply, 400, "invalid_request_error")
    assert len(scripted.requests_for("two-bad")) == 1


def test_an_upstream_error_about_its_key_is_not_relayed(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    text = f"Incorrect key {UPSTREAM_SECRET} at https://internal.example.com/v1"
    scripted.on("chat-leak", json_response({"error": {"message": text}}, 400))

    error = assert_error(gateway.post(message("chat-leak")), 400, "invalid_request_error")

    assert "internal.example" not in error["message"]
    assert "canary" not in json.dumps(error)


def test_a_refused_prompt_is_a_response_with_stop_reason_refusal(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    inner = {"code": "ResponsibleAIPolicyViolation"}
    error = {"message": "filtered", "code": "content_filter", "status": 400, "innererror": inner}
    scripted.on("chat-filtered", json_response({"error": error}, 400))

    reply = gateway.post(message("chat-filtered"))

    assert reply.status == 200
    assert reply.json["stop_reason"] == "refusal"
    row(reply.id, outcome="completed", stop_reason="refusal")


def test_a_refused_prompt_is_an_error_if_configured(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    strict = add_upstream(
        "filters", "chat", scripted.base_url, capabilities={"refused_prompt": "error"}
    )
    route = add_route("filtered", strict)
    reload()
    inner = {"content_filter_result": {"hate": {"filtered": True}, "violence": {"filtered": False}}}
    error = {"message": "filtered", "code": "content_filter", "innererror": inner}
    scripted.on("filtered", json_response({"error": error}, 400))

    reply = gateway.post(message("filtered"))

    assert_error(reply, 400, "invalid_request_error")
    assert reply.json["error"]["message"].endswith("refused the prompt: hate")
    route.delete()
    strict.delete()
    reload()


def test_a_client_disconnect_before_the_first_byte_is_recorded(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-left-early", [Stall()])

    with gateway.open(message("chat-left-early", stream=True)):
        scripted.wait_until(lambda requests: requests and requests[-1].model == "chat-left-early")

    scripted.wait_until(lambda requests: requests[-1].ending == "client_gone")
    stored = newest_row(model_requested="chat-left-early")
    assert (stored.outcome, stored.output_tokens) == ("client_gone", None)


def test_a_malformed_status_line_is_a_bad_gateway(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-rubbish", [Send(b"HTTP/1.1 abc\r\n\r\n"), Close()])

    assert_error(gateway.post(message("chat-rubbish")), 502, "api_error")


def test_a_request_that_was_read_before_the_reset_is_not_sent_again(gateway: GatewayClient, reload):
    """The upstream may have answered and charged it, even on a connection from the pool."""
    with ScriptedUpstream() as tired:
        chat = [Send(upstream_scripts.sent_bytes(upstream_scripts.chat()))]
        tired.on("tired-x", chat, [Reset()], chat)
        upstream = add_upstream("tired", "chat", tired.base_url)
        route = add_route("tired-*", upstream)
        reload()

        first = gateway.post(message("tired-x"))
        row(first.id)  # the connection is in the pool again
        second = gateway.post(message("tired-x"))

        assert (first.status, second.status) == (200, 502)
        assert [request.connection for request in tired.requests] == [0, 0]
    stored = row(second.id, outcome="upstream_error", detail="no_answer")
    assert len(stored.attempts) == 1
    route.delete()
    upstream.delete()
