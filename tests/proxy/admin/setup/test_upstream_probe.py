"""“Test this upstream” with a scripted upstream: its results, hidden secrets and permissions."""

import json
import os
from html import unescape

import pytest

from proxy.gateway.upstream.probe import send_questions
from proxy.models import Exchange, Route, RouteTarget, Upstream
from proxy.upstream_probe import QUESTIONS
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Close,
    Send,
    Stall,
    chunk,
    head,
    json_response,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.admin import factories
from tests.proxy.gateway import upstream_scripts

pytestmark = pytest.mark.django_db

SECRET = "sk-upstream-canary-0123456789"


@pytest.fixture(scope="module")
def scripted():
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture
def upstream(scripted, monkeypatch):
    monkeypatch.setitem(os.environ, "PROBE_TESTS_SECRET", SECRET)
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url=scripted.base_url, profile="generic",
        secret={"env": "PROBE_TESTS_SECRET"},
    )  # fmt: skip
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream, model="qwen3")
    return upstream


@pytest.fixture
def owner(client):
    client.force_login(factories.staff("ada", groups=("owner",)))
    return client


def url_of(upstream):
    return f"/admin/proxy/upstream/{upstream.pk}/test/"


def test(client, upstream, model):
    answer = client.post(url_of(upstream), {"model": model})
    assert answer.status_code == 200
    return answer, unescape(answer.content.decode())


test.__test__ = False


def tool_call_chunks():
    """Return the chunks of a stream with one tool call."""
    call = {"index": 0, "id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}  # fmt: skip
    return [
        upstream_scripts.chat_chunk({"role": "assistant", "content": "", "tool_calls": [call]}),
        upstream_scripts.chat_chunk(finish="tool_calls"),
        b"data: [DONE]\n\n",
    ]


def test_it_shows_the_real_response_to_each_request(owner, upstream, scripted):
    scripted.on("talks", upstream_scripts.chat("ready"))

    answer, page = test(owner, upstream, "talks")

    words, tool = answer.context["findings"]
    assert (words["ok"], words["status"], words["result"]) == (
        True, 200, "It answered in words. Stop reason: end_turn.",
    )  # fmt: skip
    assert (tool["ok"], tool["result"]) == (
        False, "It answered, but called no tool. Stop reason: end_turn.",
    )  # fmt: skip
    assert words["answer"] == "ready"
    assert '"content": "ready"' in page  # the response
    assert '"type":"text_delta","text":"ready"' in page  # the response to a client
    assert "get_weather" in page  # the request
    sent = [request for request in scripted.requests if request.model == "talks"]
    assert [request.json["stream"] for request in sent] == [True, True]
    assert sent[0].headers["authorization"] == f"Bearer {SECRET}"


def test_a_model_that_calls_tools_passes_both(owner, upstream, scripted):
    scripted.on("calls", [stream_head(), chunk(b"".join(tool_call_chunks())), LAST_CHUNK])

    answer, _ = test(owner, upstream, "calls")

    assert [finding["ok"] for finding in answer.context["findings"]] == [False, True]
    tool = answer.context["findings"][1]
    assert tool["result"] == "It called the tool. Stop reason: tool_use."
    assert tool["answer"] == 'get_weather({"city":"Oslo"})'


@pytest.mark.parametrize("dialect", ["responses", "anthropic"])
def test_every_dialect_can_be_tested(owner, upstream, scripted, dialect):
    raw = (
        upstream_scripts.responses_events()
        if dialect == "responses"
        else upstream_scripts.claude_events()
    )
    scripted.on(f"{dialect}-talks", [stream_head(), chunk(b"".join(raw)), LAST_CHUNK])
    upstream.dialect = dialect
    upstream.base_url = scripted.url if dialect == "anthropic" else scripted.base_url
    upstream.profile = "anthropic" if dialect == "anthropic" else "openai"
    upstream.save()

    answer, _ = test(owner, upstream, f"{dialect}-talks")

    assert answer.context["findings"][0]["ok"]


@pytest.mark.parametrize(
    ("takes", "profile", "found"),
    [
        (True, "generic", (True, "It accepts this: set unsigned_thinking = true.")),
        (True, "llamacpp", (True, "It accepts this: as configured.")),
        (False, "anthropic", (True, "It refuses this: as configured.")),
        (False, "llamacpp", (False, "It refuses this: set unsigned_thinking = false.")),
    ],
)
def test_it_finds_whether_unsigned_thinking_may_be_sent_back(
    owner, upstream, scripted, *, takes, profile, found
):
    raw = [stream_head(), chunk(b"".join(upstream_scripts.claude_events())), LAST_CHUNK]
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "signature"}}
    model = f"thinks-{profile}-{takes}"
    scripted.on(model, raw, raw, raw if takes else json_response(error, status=400))
    upstream.dialect, upstream.base_url, upstream.profile = "anthropic", scripted.url, profile
    upstream.save()

    answer, _ = test(owner, upstream, model)

    finding = answer.context["findings"][2]
    assert (finding["ok"], finding["result"]) == found
    assert scripted.requests_for(model)[2].json["messages"][1]["content"][0]["type"] == "thinking"


def test_an_error_is_shown_with_its_body_and_without_the_secret(owner, upstream, scripted):
    body = {"error": {"message": f"no: <script>{SECRET}</script>", "type": "invalid_request_error"}}
    scripted.on("refuses", json_response(body, status=400))

    answer, page = test(owner, upstream, "refuses")

    first = answer.context["findings"][0]
    assert (first["ok"], first["status"]) == (False, 400)
    assert first["result"].startswith("invalid_request_error")
    assert SECRET not in answer.content.decode()
    assert f"no: <script>{'*' * len(SECRET)}</script>" in page
    assert "<script>**" not in answer.content.decode()


INVALID_RESPONSES = {
    "cut": (
        [stream_head(), chunk(upstream_scripts.chat_chunk({"content": "a"})), Close()],
        "api_error",
    ),
    "page": ([head(200, {"content-type": "text/html"}), Send(b"<html>"), Close()], "web page"),
    "moved": (
        [head(302, {"location": "http://127.0.0.1:1/", "content-length": "0"})],
        "status 302",
    ),
}


@pytest.mark.parametrize("name", INVALID_RESPONSES)
def test_an_invalid_response_fails_the_test(owner, upstream, scripted, name):
    script, result = INVALID_RESPONSES[name]
    scripted.on(name, script)

    answer, _ = test(owner, upstream, name)

    first = answer.context["findings"][0]
    assert not first["ok"]
    assert result in first["result"]


def test_a_silent_upstream_times_out(upstream, scripted):
    scripted.on("silent", [Stall()])

    findings = send_questions(upstream, "silent", QUESTIONS, timeout_s=0.3)

    assert [(one.ok, one.summary) for one in findings] == [
        (False, "No whole answer within 0.3 seconds.")
    ] * len(QUESTIONS)


def test_an_unreachable_upstream_fails_the_test(owner, upstream):
    upstream.base_url = "http://127.0.0.1:9/v1"
    upstream.save()

    answer, _ = test(owner, upstream, "m")

    first = answer.context["findings"][0]
    assert (first["status"], first["result"]) == (None, "api_error: cannot reach the upstream.")


def test_a_forbidden_address_gets_no_request(owner, upstream, scripted):
    Upstream.objects.filter(pk=upstream.pk).update(base_url="http://user:pass@example.com/v1")

    answer, page = test(owner, upstream, "m")

    assert answer.context["findings"] == []
    assert "No request was sent." in page


def test_a_missing_secret_is_named_and_no_request_is_sent(owner, upstream, monkeypatch):
    monkeypatch.delitem(os.environ, "PROBE_TESTS_SECRET")

    answer, page = test(owner, upstream, "m")

    assert answer.context["findings"] == []
    assert "PROBE_TESTS_SECRET" in page


def test_a_test_is_in_the_audit_trail_and_not_in_reports(owner, upstream, scripted):
    scripted.on("talks", upstream_scripts.chat("ready"))

    test(owner, upstream, "talks")

    (entry,) = factories.audit()
    assert (entry.action, entry.object_id) == ("test", str(upstream.pk))
    assert entry.detail.startswith("model talks: text 200 in ")
    assert "passed; tool 200 in " in entry.detail
    assert not Exchange.objects.exists()


def test_opening_the_page_sends_no_request(owner, upstream, scripted):
    before = len(scripted.requests)

    page = owner.get(url_of(upstream)).content.decode()

    assert len(scripted.requests) == before
    assert 'value="qwen3"' in page
    assert factories.audit() == []


@pytest.mark.parametrize("model", ["", "x" * 201])
def test_a_model_is_required(owner, upstream, scripted, model):
    before = len(scripted.requests)

    answer, _ = test(owner, upstream, model)

    assert answer.context["findings"] == []
    assert len(scripted.requests) == before


@pytest.mark.parametrize("groups", [("auditor",), ("member",), ()])
def test_the_test_needs_its_permission(client, upstream, scripted, groups):
    before = len(scripted.requests)
    client.force_login(factories.staff("eve", groups=groups))

    assert client.post(url_of(upstream), {"model": "talks"}).status_code == 403
    assert client.get(url_of(upstream)).status_code == 403
    assert (
        "Test this upstream"
        not in client.get(
            f"/admin/proxy/upstream/{upstream.pk}/change/", follow=True
        ).content.decode()
    )
    assert len(scripted.requests) == before


def test_an_owner_sees_the_button(owner, upstream):
    page = owner.get(f"/admin/proxy/upstream/{upstream.pk}/change/").content.decode()

    assert url_of(upstream) in page


def test_a_response_without_a_stream_is_shown_as_json(owner, upstream, scripted):
    scripted.on("whole", json_response({"id": "c", "object": "chat.completion", "model": "m", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ready"}}]}))  # fmt: skip

    answer, _ = test(owner, upstream, "whole")

    assert answer.context["findings"][0]["ok"]
    assert json.loads(answer.context["findings"][0]["sides"][1][1])["id"] == "c"
