"""Routing by path, errors of unknown paths and the id headers, through the ASGI application."""

import re

import httpx
import pytest

from bridge_project.asgi import application
from proxy.gateway.endpoints.lifespan import stop_services

WRONG_HOST = "http://evil.example"


@pytest.fixture(autouse=True)
async def stop_after_test():
    """Stop the parts of the gateway that a request has started."""
    yield
    await stop_services()


async def request(path, base="http://localhost", method="GET"):
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        return await client.request(method, base + path)  # "//" must not start a host


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/nope", "/api/v1/nope", "/v1/nope", "/v1/organizations/nope"]
)
async def test_every_response_has_its_id_in_both_headers(path):
    response = await request(path)

    assert re.fullmatch(r"req_[0-9A-Z]{26}", response.headers["request-id"])
    assert response.headers["x-bridge-request-id"] == response.headers["request-id"]
    if path.endswith("/nope"):
        assert response.json()["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/nope", "/v1/organization/usage/completions", "/v1/organizations/nope"],
)
async def test_an_unknown_path_under_v1_gets_a_json_error(path):
    response = await request(path)

    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


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
async def test_an_unsupported_sdk_path_gets_a_hint(path, hint):
    response = await request(path, method="POST")

    assert response.status_code == 404
    assert hint in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/organizations/me", "/api/v1/summary"])
async def test_a_wrong_host_gets_a_json_error_on_api_paths(path):
    response = await request(path, base=WRONG_HOST)

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "'evil.example' is not served here; BRIDGE_ALLOWED_HOSTS" in response.text


async def test_a_wrong_host_gets_an_html_error_in_the_admin():
    response = await request("/admin/", base=WRONG_HOST)

    assert response.status_code == 400
    assert response.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_hello_request_of_claude_code_gets_a_200(method):
    assert (await request("/api/hello", method=method)).status_code == 200
