"""Every way an upstream can fail before it speaks (promises 3.1 and 3.2), and who is tried next."""

import json
import socket

import pytest

from tests.fakes.steps import (
    Close,
    Reset,
    Send,
    Stall,
    answer,
    chunk,
    garbage,
    head,
    html_answer,
    json_answer,
)
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import PATIENT, UPSTREAM_SECRET, add_route, add_upstream, message, newest_row, row
from .judging import failed


@pytest.mark.parametrize(
    ("status", "error", "told"),
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
def test_an_error_status_becomes_the_right_error(
    gateway: Browser, scripted: ScriptedUpstream, status: int, error, told: tuple[int, str]
):
    scripted.on("chat-status", json_answer({"error": error}, status))

    reply = gateway.post(message("chat-status", stream=True))

    failed(reply, *told)
    kept = row(reply.id, outcome="upstream_error", status=told[0], upstream_status=status)
    assert len(kept.attempts) == 1
    assert (kept.input_tokens, kept.output_tokens) == (None, None)


@pytest.mark.parametrize(
    ("given", "told"),
    [("2", "2"), ("999999", "60"), ("-1", "5"), ("nan", "5"), (None, "5")],
)
def test_retry_after_is_sane(gateway: Browser, scripted: ScriptedUpstream, given, told):
    headers = {} if given is None else {"retry-after": given}
    scripted.on("chat-429", json_answer({"error": {"message": "slow"}}, 429, headers))

    reply = gateway.post(message("chat-429"))

    failed(reply, 429, "rate_limit_error")
    assert reply.headers["retry-after"] == told


def test_a_header_says_when_to_come_back_and_a_text_only_without_one(
    gateway: Browser, scripted: ScriptedUpstream
):
    error = {"error": {"message": "slow. Please retry after 40 seconds.", "code": "429"}}
    scripted.on("chat-both", json_answer(error, 429, {"retry-after": "7"}))
    scripted.on("chat-text", json_answer(error, 429))

    assert gateway.post(message("chat-both")).headers["retry-after"] == "7"
    assert gateway.post(message("chat-text")).headers["retry-after"] == "40"


def test_a_model_that_its_upstream_lacks_is_told_by_the_client_s_name(
    gateway: Browser, scripted: ScriptedUpstream
):
    error = {"message": "The model `gpt-9` does not exist", "code": "model_not_found"}
    scripted.on("chat-lacking", json_answer({"error": error}, 404))

    reply = gateway.post(message("chat-lacking"))

    failed(reply, 404, "not_found_error")
    assert reply.json["error"]["message"] == "model: chat-lacking"


@pytest.mark.parametrize("status", [204, 206, 302, 307, 418, 599])
def test_a_status_that_makes_no_sense_is_a_bad_gateway(
    gateway: Browser, scripted: ScriptedUpstream, status: int
):
    elsewhere = {"location": f"{scripted.url}/sink"}
    scripted.on("chat-odd", answer(status, b"", "text/plain", elsewhere))

    reply = gateway.post(message("chat-odd"))

    assert reply.status in {400, 502}
    assert not [each for each in scripted.asked if each.path == "/sink"]


def test_a_web_page_never_reaches_the_client(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-html-502", html_answer(502, size=200_000))
    scripted.on("chat-html-200", html_answer(200))

    for model in ("chat-html-502", "chat-html-200"):
        reply = gateway.post(message(model, stream=True))

        failed(reply, 502, "api_error")
        assert b"<" not in reply.body


@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
def test_the_log_notes_a_web_page_and_no_word_of_it(
    gateway: Browser, scripted: ScriptedUpstream, caplog: pytest.LogCaptureFixture, dialect: str
):
    page = f"<html>{UPSTREAM_SECRET} <p>no backend</p>{'x' * 3_000}".encode()
    scripted.on(f"{dialect}-page", answer(502, page, "text/html"))
    scripted.on(f"{dialect}-no-page", json_answer({"error": {"message": "oops"}}, 502))
    caplog.set_level("INFO", "proxy.gateway")

    reply = gateway.post(message(f"{dialect}-page"))
    failed(gateway.post(message(f"{dialect}-no-page")), 502, "api_error")

    failed(reply, 502, "api_error")
    assert reply.json["error"]["message"] == "upstream returned HTTP 502 (text/html)"
    (told,) = [each.getMessage() for each in caplog.records if "no JSON" in each.getMessage()]
    assert told == f"{dialect} answered with status 502 and no JSON: {len(page)} bytes"
    assert "no backend" not in caplog.text
    assert "oops" not in caplog.text


def test_an_endless_error_body_is_not_waited_for(gateway: Browser, scripted: ScriptedUpstream):
    script = [head(500, {"transfer-encoding": "chunked"}), *[chunk(b"x" * 65_536)] * 40, Stall()]
    scripted.on("chat-endless", script)

    failed(gateway.post(message("chat-endless")), 500, "api_error")


@pytest.mark.parametrize("raw", [b"", b'{"error": {"mess', b"\xff\xfe\x00"])
def test_a_broken_error_body_is_judged_by_its_status(
    gateway: Browser, scripted: ScriptedUpstream, raw: bytes
):
    scripted.on("chat-broken-error", answer(500, raw, "application/json"))

    failed(gateway.post(message("chat-broken-error")), 500, "api_error")


def test_nobody_listens(gateway: Browser, reload):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and kept, so that nobody else is given it
        port = unused.getsockname()[1]
        add_route("refused-*", add_upstream("refused", "chat", f"http://127.0.0.1:{port}/v1"))
        reload()

        reply = gateway.post(message("refused-x"))

    error = failed(reply, 502, "api_error")
    assert reply.headers["x-should-retry"] == "true"
    assert str(port) not in error["message"]
    kept = row(reply.id, outcome="upstream_error", status=502)
    assert len(kept.attempts) == 2


def test_a_name_that_does_not_resolve(gateway: Browser, reload):
    brief = PATIENT | {"connect_s": 5}  # some resolvers take their time to say so
    nowhere = add_upstream(
        "nowhere", "chat", "http://no-such-host.invalid/v1", timeouts=brief, allow_http=True
    )
    add_route("nowhere-*", nowhere)
    reload()

    reply = gateway.post(message("nowhere-x"))

    assert reply.status in {502, 504}
    assert "invalid" not in reply.json["error"]["message"].split()
    assert len(row(reply.id).attempts) == 2


@pytest.mark.parametrize("script", [garbage(), [Reset()], [Close()], [Stall()]])
def test_no_answer_on_a_fresh_connection_is_not_asked_for_twice(gateway: Browser, script, reload):
    with ScriptedUpstream() as mute:  # of its own: nothing is pooled for it
        mute.on("mute-x", script)
        brief = PATIENT | {"first_byte_s": 1}
        upstream = add_upstream("mute", "chat", mute.base_url, timeouts=brief)
        route = add_route("mute-*", upstream)
        reload()

        reply = gateway.post(message("mute-x"))

        assert reply.status in {502, 504}
        assert len(mute.asked) == 1
    row(reply.id, status=reply.status)
    route.delete()
    upstream.delete()


def test_silence_before_the_head_is_a_timeout(
    gateway: Browser, scripted: ScriptedUpstream, deadlines
):
    deadlines(first_byte_s=1)
    scripted.on("chat-never", [Stall()])

    reply = gateway.post(message("chat-never", stream=True))

    failed(reply, 504, "timeout_error")
    row(reply.id, outcome="upstream_timeout", status=504)
    scripted.wait_until(lambda asked: asked[-1].ending == "client_gone")


def test_a_connection_is_used_again_and_a_closed_one_replaced(gateway: Browser, reload):
    with ScriptedUpstream() as own:  # of its own: nobody else's connections are pooled for it
        # At once: who hears the last event and no end for a while lets go of the connection.
        chat = Send(scripts.answered(scripts.chat()))
        own.on("own-x", [chat], [chat], [chat, Close()], [chat])
        upstream = add_upstream("own", "chat", own.base_url)
        route = add_route("own-*", upstream)
        reload()

        for _ in range(4):
            reply = gateway.post(message("own-x"))
            assert reply.status == 200
            row(reply.id)  # by now its connection is back in the pool

        assert [asked.connection for asked in own.asked] == [0, 0, 0, 1]
    route.delete()
    upstream.delete()


@pytest.fixture
def two_targets(gateway: Browser, scripted: ScriptedUpstream, reload):
    """A route ``two-*`` to ``first``, then to ``second``."""
    upstreams = [add_upstream(n, "chat", f"{scripted.url}/{n}") for n in ("first", "second")]
    route = add_route("two-*", *upstreams)
    reload()
    yield
    scripted.choose(lambda _: None)
    route.delete()
    for upstream in upstreams:
        upstream.delete()


def test_the_next_target_answers_when_the_first_fails_early(
    gateway: Browser, scripted: ScriptedUpstream, two_targets
):
    scripted.choose(
        lambda asked: (
            json_answer({"error": {"message": "busy"}}, 503)
            if asked.path.startswith("/first")
            else None
        )
    )
    scripted.on("two-x", scripts.chat())

    reply = gateway.post(message("two-x", stream=True))

    assert reply.text == "Hello there."
    kept = row(reply.id, outcome="completed", upstream="second")
    assert [each["upstream"] for each in kept.attempts] == ["first", "second"]
    assert [each["status"] for each in kept.attempts] == [503, 200]


def test_the_next_target_is_not_asked_when_the_request_is_at_fault(
    gateway: Browser, scripted: ScriptedUpstream, two_targets
):
    bad = {"error": {"message": "no", "type": "invalid_request_error"}}
    scripted.on("two-bad", json_answer(bad, 400))

    reply = gateway.post(message("two-bad", stream=True))

    failed(reply, 400, "invalid_request_error")
    assert len(scripted.asked_for("two-bad")) == 1


def test_what_an_upstream_says_of_our_key_stays_here(gateway: Browser, scripted: ScriptedUpstream):
    told = f"Incorrect key {UPSTREAM_SECRET} at https://internal.example.com/v1"
    scripted.on("chat-leak", json_answer({"error": {"message": told}}, 400))

    error = failed(gateway.post(message("chat-leak")), 400, "invalid_request_error")

    assert "internal.example" not in error["message"]
    assert "canary" not in json.dumps(error)


def test_a_refused_prompt_is_an_answer(gateway: Browser, scripted: ScriptedUpstream):
    inner = {"code": "ResponsibleAIPolicyViolation"}
    error = {"message": "filtered", "code": "content_filter", "status": 400, "innererror": inner}
    scripted.on("chat-filtered", json_answer({"error": error}, 400))

    reply = gateway.post(message("chat-filtered"))

    assert reply.status == 200
    assert reply.json["stop_reason"] == "refusal"
    row(reply.id, outcome="completed", stop_reason="refusal")


def test_a_refused_prompt_is_an_error_where_the_operator_says_so(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    strict = add_upstream(
        "filters", "chat", scripted.base_url, capabilities={"refused_prompt": "error"}
    )
    route = add_route("filtered", strict)
    reload()
    inner = {"content_filter_result": {"hate": {"filtered": True}, "violence": {"filtered": False}}}
    error = {"message": "filtered", "code": "content_filter", "innererror": inner}
    scripted.on("filtered", json_answer({"error": error}, 400))

    reply = gateway.post(message("filtered"))

    failed(reply, 400, "invalid_request_error")
    assert reply.json["error"]["message"].endswith("refused the prompt: hate")
    route.delete()
    strict.delete()
    reload()


def test_a_client_that_leaves_before_the_first_byte(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-left-early", [Stall()])

    with gateway.open(message("chat-left-early", stream=True)):
        scripted.wait_until(lambda asked: asked and asked[-1].model == "chat-left-early")

    scripted.wait_until(lambda asked: asked[-1].ending == "client_gone")
    kept = newest_row(model_requested="chat-left-early")
    assert (kept.outcome, kept.output_tokens) == ("client_gone", None)


def test_a_script_of_rubbish_before_the_status_line(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-rubbish", [Send(b"HTTP/1.1 abc\r\n\r\n"), Close()])

    failed(gateway.post(message("chat-rubbish")), 502, "api_error")


def test_a_request_lost_on_a_stale_connection_is_sent_again(gateway: Browser, reload):
    with ScriptedUpstream() as tired:
        chat = [Send(scripts.answered(scripts.chat()))]
        tired.on("tired-x", chat, [Reset()], chat)
        upstream = add_upstream("tired", "chat", tired.base_url)
        route = add_route("tired-*", upstream)
        reload()

        first = gateway.post(message("tired-x"))
        row(first.id)  # by now its connection is back in the pool
        second = gateway.post(message("tired-x"))

        assert (first.status, second.status) == (200, 200)
        assert [asked.connection for asked in tired.asked] == [0, 0, 1]
    assert len(row(second.id, outcome="completed").attempts) == 2
    route.delete()
    upstream.delete()
