"""What answers at which path, and what every answer carries, through the whole application."""

import re

import httpx
import pytest

from bridge_project.asgi import application
from proxy.gateway.lifespan import stop_parts

OUT_OF_THE_HOUSE = "http://evil.example"


@pytest.fixture(autouse=True)
async def stopped():
    """What an answer has started ends with its test."""
    yield
    await stop_parts()


async def ask(path, base="http://localhost", method="GET"):
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        return await client.request(method, base + path)  # as it is: "//" begins no host


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/nope", "/api/v1/nope", "/v1/nope", "/v1/organizations/nope"]
)
async def test_every_answer_carries_its_id_under_both_names(path):
    answer = await ask(path)

    assert re.fullmatch(r"req_[0-9A-Z]{26}", answer.headers["request-id"])
    assert answer.headers["x-bridge-request-id"] == answer.headers["request-id"]
    if path.endswith("/nope"):
        assert answer.json()["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/nope", "/v1/organization/usage/completions", "/v1/organizations/nope"],
)
async def test_no_unknown_path_under_v1_answers_html(path):
    answer = await ask(path)

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/messages", "the base URL of this client must end with /v1"),
        ("/models", "the base URL of this client must end with /v1"),
        ("//v1/messages", "the base URL must not end with a slash"),
        ("/chat/completions", "the Messages API here"),
        ("/anthropic/v1/messages", "no such path: '/anthropic/v1/messages'"),
        ("/v1/v1/messages", "the base URL must end before /v1"),
        ("/v1/messages/batches/msgbatch_1", "send each request to /v1/messages"),
        ("/v1/files", "send them inside the request"),
        ("/v1/complete", "the Messages API here"),
        ("/v1/chat/completions", "the Messages API here"),
    ],
)
async def test_what_sdks_ask_for_that_is_not_here_is_told_in_words_that_help(path, hint):
    answer = await ask(path, method="POST")

    assert answer.status_code == 404
    assert hint in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/organizations/me", "/api/v1/summary"])
async def test_a_host_that_is_not_ours_is_told_so_in_json(path):
    answer = await ask(path, base=OUT_OF_THE_HOUSE)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "'evil.example' is not served here; BRIDGE_ALLOWED_HOSTS" in answer.text


async def test_a_host_that_is_not_ours_gets_a_page_where_pages_are():
    answer = await ask("/admin/", base=OUT_OF_THE_HOUSE)

    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_hello_of_claude_code_loads_no_page(method):
    assert (await ask("/api/hello", method=method)).status_code == 200
