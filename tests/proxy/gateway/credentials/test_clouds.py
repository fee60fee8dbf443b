"""Anthropic's models on Amazon Bedrock, Vertex AI and Foundry, and OpenAI's on Azure."""

import base64
import json

import pytest

from proxy.models import Revision, Upstream
from tests.fakes.upstreams import amazon_event_stream as amazon
from tests.fakes.upstreams.script_steps import Close, json_response
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import UPSTREAM_SECRET, add_route, add_upstream, message, row

EVENTS = [json.loads(raw.partition(b"data: ")[2]) for raw in upstream_scripts.claude_events()]
SSE = b"".join(upstream_scripts.claude_events())
WHOLE = {
    "id": "msg_upstream", "type": "message", "role": "assistant", "model": "claude-x",
    "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 5},
}  # fmt: skip
MODEL = "global.anthropic.claude-x-v1:0"
VERTEX = "/v1/projects/p/locations/us-east5/publishers/anthropic/models"
BETAS = "context-1m-2025-08-07,advanced-tool-use-2025-11-20,oauth-2025-04-20"


@pytest.fixture(scope="module")
def clouds(world, scripted):
    """One upstream of each cloud, each with the route ``<profile>-x``."""
    bases = {
        "bedrock": scripted.url,
        "bedrock_messages": f"{scripted.url}/anthropic",
        "vertex": f"{scripted.url}/v1/projects/p/locations/us-east5",
        "foundry": f"{scripted.url}/foundry",
    }
    for profile, base_url in bases.items():
        upstream = add_upstream(profile, "anthropic", base_url, profile)
        route = add_route(f"{profile}-x", upstream)
        route.targets.update(model=MODEL if "bedrock" in profile else "claude-x@20260101")
    Revision.bump()


@pytest.fixture
def client(gateway, clouds, reload):
    reload()
    return gateway


def sent(scripted, path: str):
    found = [each for each in scripted.requests if each.path == path]
    return found[-1]


def test_bedrock_streams_the_events_of_its_binary_frames(client, scripted):
    path = f"/model/{MODEL.replace(':', '%3A')}/invoke-with-response-stream"
    raw = b"".join(map(amazon.event, EVENTS))
    scripted.on(path, amazon.script([raw[n : n + 97] for n in range(0, len(raw), 97)]))

    reply = client.post(
        message("bedrock-x", stream=True, service_tier="auto"),
        "/v1/messages?beta=true",
        anthropic_beta=BETAS,
        x_app="cli",
    )

    assert reply.status == 200
    assert reply.text == "Hello there."
    assert reply.events == EVENTS
    stored = row(
        reply.id, outcome="completed", stop_reason="end_turn", upstream_request_id="amazon-1"
    )
    assert (stored.input_tokens, stored.output_tokens) == (12, 5)
    received = sent(scripted, path)
    assert received.json == {
        "max_tokens": 100,
        "messages": message("x")["messages"],
        "anthropic_version": "bedrock-2023-05-31",
        "anthropic_beta": ["context-1m-2025-08-07", "tool-search-tool-2025-10-19"],
    }
    assert received.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert not {"anthropic-beta", "anthropic-version", "x-app"} & received.headers.keys()
    notes = {(note["path"], note["reason"].partition(":")[0]) for note in stored.notes}
    assert ("anthropic-beta", "oauth-2025-04-20") in notes


def test_bedrock_answers_whole(client, scripted):
    path = f"/model/{MODEL.replace(':', '%3A')}/invoke"
    scripted.on(path, json_response(WHOLE))

    reply = client.post(message("bedrock-x"))

    assert (reply.status, reply.json) == (200, WHOLE)
    row(reply.id, outcome="completed")


@for_each(
    ("ending", "kind", "text"),
    [
        ([amazon.exception("throttlingException", "Too many")], "rate_limit_error", "Too many"),
        ([b"\0" * 64], "api_error", "checksum"),
        ([amazon.event(EVENTS[1])[:-8]], "api_error", "ended early"),
    ],
    ids=["exception", "damaged", "cut"],
)
def test_a_bedrock_stream_that_fails_ends_in_an_error(client, scripted, ending, kind, text):
    path = f"/model/{MODEL.replace(':', '%3A')}/invoke-with-response-stream"
    scripted.on(path, amazon.script([amazon.event(EVENTS[0]), *ending]))

    reply = client.post(message("bedrock-x", stream=True))

    if reply.status == 200:
        assert reply.kinds[-1] == "error"
        assert "message_stop" not in reply.kinds
        error = reply.events[-1]["error"]
    else:
        error = reply.json["error"]
    assert error["type"] == kind
    assert text in error["message"]
    row(reply.id, outcome="upstream_error")


@for_each(
    ("status", "answer", "expected"),
    [
        (400, {"message": "max_tokens: too large"}, (400, "invalid_request_error")),
        (429, {"message": "Too many requests"}, (429, "rate_limit_error")),
        (424, {"message": "the model failed"}, (502, "api_error")),
        (503, {"Message": "unavailable"}, (503, "overloaded_error")),
        (404, [{"error": {"code": 404, "message": "no model", "status": "NOT_FOUND"}}],
         (404, "not_found_error")),
    ],
)  # fmt: skip
def test_errors_of_clouds_are_in_anthropics_words(client, scripted, status, answer, expected):
    scripted.on(f"/model/{MODEL.replace(':', '%3A')}/invoke", json_response(answer, status=status))

    reply = client.post(message("bedrock-x"))

    assert (reply.status, reply.json["error"]["type"]) == expected


@for_each("stream", [True, False])
def test_vertex_gets_the_model_in_the_path(client, scripted, stream):
    method = "streamRawPredict" if stream else "rawPredict"
    path = f"{VERTEX}/claude-x%4020260101:{method}"
    scripted.on(
        path, upstream_scripts.pieces([SSE], amazon.LAST_CHUNK) if stream else json_response(WHOLE)
    )

    reply = client.post(message("vertex-x", stream=stream), anthropic_beta=BETAS)

    assert reply.status == 200
    received = sent(scripted, path)
    assert received.json == {
        "max_tokens": 100,
        "messages": message("x")["messages"],
        "stream": stream,
        "anthropic_version": "vertex-2023-10-16",
    }
    assert received.headers["anthropic-beta"] == "context-1m-2025-08-07,tool-search-tool-2025-10-19"


@for_each("cloud", ["foundry", "bedrock_messages"])
def test_a_cloud_with_anthropics_own_endpoint_gets_anthropics_request(client, scripted, cloud):
    base = {"foundry": "/foundry", "bedrock_messages": "/anthropic"}[cloud]
    scripted.on(f"{base}/v1/messages", upstream_scripts.pieces([SSE], amazon.LAST_CHUNK))

    reply = client.post(message(f"{cloud}-x", stream=True), anthropic_beta=BETAS)

    assert reply.body == SSE
    received = sent(scripted, f"{base}/v1/messages")
    assert received.json["model"] in {MODEL, "claude-x@20260101"}
    assert received.headers["anthropic-version"]
    assert "oauth" not in received.headers["anthropic-beta"]
    bearer = cloud == "bedrock_messages"
    assert received.headers.get("x-api-key") == (None if bearer else UPSTREAM_SECRET)


def test_tokens_are_counted_by_the_clouds(client, scripted):
    bedrock = f"/model/{MODEL.replace(':', '%3A')}/count-tokens"
    scripted.on(bedrock, json_response({"inputTokens": 21}))
    scripted.on(f"{VERTEX}/count-tokens:rawPredict", json_response({"input_tokens": 22}))
    scripted.on("/foundry/v1/messages/count_tokens", json_response({"input_tokens": 23}))
    question = {"messages": message("x")["messages"]}

    counts = {
        cloud: client.post({"model": f"{cloud}-x", **question}, "/v1/messages/count_tokens").json
        for cloud in ("bedrock", "vertex", "foundry")
    }

    assert counts == {
        "bedrock": {"input_tokens": 21},
        "vertex": {"input_tokens": 22},
        "foundry": {"input_tokens": 23},
    }
    wrapped = sent(scripted, bedrock).json["input"]["invokeModel"]["body"]
    assert json.loads(base64.b64decode(wrapped)) == {
        "max_tokens": 1, "anthropic_version": "bedrock-2023-05-31", **question,
    }  # fmt: skip
    assert sent(scripted, f"{VERTEX}/count-tokens:rawPredict").json["model"] == "claude-x@20260101"


@pytest.mark.parametrize("name", ["..", "."])
def test_a_model_name_cannot_change_the_path(client, scripted, reload, name):
    add_route(name, Upstream.objects.get(name="bedrock"))
    reload()

    reply = client.post(message(name))

    assert reply.status == 400
    assert "is not a model name" in reply.json["error"]["message"]


def test_a_model_name_with_a_slash_stays_one_segment(client, scripted, reload):
    add_route("arn:*", Upstream.objects.get(name="bedrock"))
    reload()
    path = "/model/arn%3Aaws%3Abedrock%3A%3A1%3Aprofile%2Fx%3Fy/invoke"
    scripted.on(path, json_response(WHOLE))

    assert client.post(message("arn:aws:bedrock::1:profile/x?y")).status == 200


@pytest.mark.parametrize(
    "case",
    [
        ("chat", "", "/openai/v1", "/openai/v1/chat/completions"),
        ("chat", "preview", "/openai/v1", "/openai/v1/chat/completions?api-version=preview"),
        ("chat", "2024-10-21", "/openai", "/openai/deployments/gpt-x/chat/completions?api-version=2024-10-21"),
        ("responses", "2025-04-01-preview", "/openai", "/openai/responses?api-version=2025-04-01-preview"),
    ],
)  # fmt: skip
def test_azure_openai_by_key(client, scripted, reload, case):
    dialect, version, base, path = case
    name = f"azure-{dialect}-{version or 'v1'}"
    upstream = add_upstream(name, dialect, f"{scripted.url}{base}", "azure", api_version=version)
    add_route(name, upstream).targets.update(model="gpt-x")
    Revision.bump()
    reload()
    events = (
        upstream_scripts.chat_events() if dialect == "chat" else upstream_scripts.responses_events()
    )
    scripted.on(path, upstream_scripts.pieces(events, amazon.LAST_CHUNK))

    reply = client.post(message(name, stream=True))

    assert reply.text == "Hello there."
    received = sent(scripted, path)
    assert received.json["model"] == "gpt-x"
    assert received.headers["api-key"] == UPSTREAM_SECRET


def test_a_closed_connection_in_a_bedrock_stream_is_an_error(client, scripted):
    path = f"/model/{MODEL.replace(':', '%3A')}/invoke-with-response-stream"
    scripted.on(path, amazon.script([*map(amazon.event, EVENTS[:3])], Close()))

    reply = client.post(message("bedrock-x", stream=True))

    assert reply.kinds[-1] == "error"
    row(reply.id, outcome="upstream_error", detail="cut")
