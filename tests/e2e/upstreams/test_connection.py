"""The way to an upstream: forward proxy, private CA, client certificate, headers, and their faults.

The upstream speaks TLS with a certificate of a private CA, and requires a client certificate.
"""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.servers.forward_proxies import (
    CREDENTIALS,
)
from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.script_steps import Close
from tests.fakes.upstreams.upstream import ScriptedUpstream

from .connection_requests import ANSWER, HEADER_SECRET, send_question


def test_a_request_goes_through_the_proxy_with_certificate_and_headers(
    gateway, secure_upstream, tinyproxy
):
    client_headers = {"x-project": "apollo", "x-corp-cost": "7", "x-other": "no"}
    for _ in range(2):
        status, _, body = send_question(gateway, "all", **client_headers)

        assert (status, body["content"][0]["type"]) == (200, "text"), body
    received = secure_upstream.requests[-1].headers
    sent = {name: received.get(name) for name in ("x-team", "x-secret", *client_headers)}
    assert sent == {
        "x-team": "platform",
        "x-secret": HEADER_SECRET,
        "x-project": "apollo",
        "x-corp-cost": "7",
        "x-other": None,
    }
    assert received["user-agent"].startswith("messages-bridge/")
    assert not {"proxy-authorization", "x-api-key", "authorization"} & set(received)
    first, second = secure_upstream.requests[-2:]
    assert first.connection == second.connection, "the tunnel was not reused"
    assert f"CONNECT 127.0.0.1:{secure_upstream.port}" in tinyproxy.log


def test_an_http_request_is_forwarded_by_the_proxy(gateway, plain_upstream, tinyproxy):
    """Common proxies open tunnels only to port 443."""
    for _ in range(2):
        status, _, body = send_question(gateway, "plain")

        assert status == 200, body
        assert body["content"][0]["type"] == "text"
    received = plain_upstream.requests[-1]
    assert (received.path, received.model) == ("/v1/chat/completions", "m")
    assert received.headers["host"] == f"127.0.0.1:{plain_upstream.port}"
    assert not {"proxy-authorization", "authorization"} & set(received.headers)
    assert f"POST http://127.0.0.1:{plain_upstream.port}/v1/chat/completions" in tinyproxy.log
    assert f"CONNECT 127.0.0.1:{plain_upstream.port}" not in tinyproxy.log


def test_a_proxy_s_password_is_redacted_from_a_forwarded_response(gateway):
    _, _, body = send_question(gateway, "echo")

    encoded = base64.b64encode(CREDENTIALS.encode()).decode()
    assert body["content"][0]["text"] == f"It is Basic {'*' * len(encoded)}."


def test_the_proxy_is_the_only_way_to_the_upstream(gateway, plain_upstream):
    count = len(plain_upstream.requests)

    status, _, body = send_question(gateway, "plain-direct")

    assert (status, body["error"]["message"]) == (502, LOST)
    assert len(plain_upstream.requests) == count


@pytest.mark.parametrize("model", ["tls-proxy", "plain-tls-proxy"])
def test_a_proxy_that_speaks_tls(gateway, secure_upstream, plain_upstream, model):
    upstream = plain_upstream if model == "plain-tls-proxy" else secure_upstream
    for _ in range(2):
        status, _, body = send_question(gateway, model)

        assert (status, body["content"][0]["type"]) == (200, "text"), body
    first, second = upstream.requests[-2:]
    assert first.headers["user-agent"].startswith("messages-bridge/")
    assert upstream is plain_upstream or first.connection == second.connection


def test_a_header_s_secret_is_redacted_from_the_response(gateway):
    _, _, body = send_question(gateway, "all")

    assert HEADER_SECRET not in json.dumps(body)
    assert "The header is ***" in body["content"][0]["text"]


def test_upstreams_with_the_same_address_share_no_connection(gateway, secure_upstream):
    send_question(gateway, "all")
    send_question(gateway, "direct")

    through_proxy, direct = secure_upstream.requests[-2:]
    assert through_proxy.connection != direct.connection
    assert "x-team" not in direct.headers


NO_TLS = "no trusted TLS connection to the upstream"
UNREACHABLE = "cannot reach the upstream"
UNTRUSTED = "no trusted TLS connection to the proxy before the upstream"
NO_PROXY = "cannot reach the proxy before the upstream"
REFUSED = "the proxy before the upstream refused the connection"
LOST = "the upstream closed the connection"


FAULTS = {
    "wrong-ca": (NO_TLS, "false"),
    "public-ca": (NO_TLS, "false"),
    "no-password": (REFUSED, "false"),
    "upstream-down": (UNREACHABLE, "true"),
    "proxy-down": (NO_PROXY, "true"),
    "no-http": (NO_PROXY, "true"),
    "too-early": (NO_PROXY, "true"),
    "endless-head": (NO_PROXY, "true"),
    "garbage-for-tls": (NO_TLS, "false"),
    "untrusted-proxy": (UNTRUSTED, "false"),
    "plain-no-password": (REFUSED, "false"),
    "plain-refused": (REFUSED, "false"),
}
"""The error message of each faulty way and whether clients may retry."""


@pytest.fixture(scope="module")
def faulty(gateway: Gateway, secure_upstream: ScriptedUpstream) -> dict[str, Any]:
    """Send a request on each faulty way; return responses, rows and what reached the upstream."""
    count = len(secure_upstream.requests)
    with ThreadPoolExecutor(len(FAULTS)) as pool:  # some wait for a time limit
        replies = dict(zip(FAULTS, pool.map(partial(send_question, gateway), FAULTS), strict=True))
    ids = {model: headers["request-id"] for model, (_, headers, _) in replies.items()}
    rows = gateway.closed_rows(*ids.values())
    return {
        "replies": replies,
        "rows": {model: rows[id_] for model, id_ in ids.items()},
        "received": len(secure_upstream.requests) - count,
    }


@pytest.mark.parametrize("model", FAULTS)
def test_a_fault_on_the_way_is_named_and_nothing_is_sent(faulty, model):
    message, retry = FAULTS[model]
    status, headers, body = faulty["replies"][model]

    assert (status, body["error"]["type"], body["error"]["message"]) == (502, "api_error", message)
    assert headers["x-should-retry"] == retry
    assert faulty["received"] == 0
    row = faulty["rows"][model]
    attempts = 1 if message == NO_TLS else 2  # what was not delivered is sent once more
    assert (row["outcome"], row["status"], row["attempts"]) == ("upstream_error", 502, attempts)
    assert row["usage_source"] == "none"
    assert {name: row["error"][name] for name in ("type", "message", "source")} == {
        "type": "api_error",
        "message": message,
        "source": "upstream",
    }


def test_an_upstream_that_requires_a_certificate_gets_no_request_without_one(
    gateway, secure_upstream
):
    """With TLS 1.3 the refusal arrives after the handshake, as the answer to the request."""
    count = len(secure_upstream.requests)

    status, _, body = send_question(gateway, "no-certificate")

    assert (status, body["error"]["type"]) == (502, "api_error")
    assert body["error"]["message"] in (NO_TLS, LOST)
    assert len(secure_upstream.requests) == count


def test_doctor_takes_the_same_way(gateway, secure_upstream, tinyproxy, certificates):
    findings = json.loads(gateway.run_command("doctor", "--json").stdout)

    by_upstream: dict[str, list[str]] = {}
    for finding in findings:
        subject = finding["subject"].removeprefix("upstream ")
        by_upstream.setdefault(subject, []).append(f"{finding['says']} {finding['hint']}")
    way = f"through the proxy 127.0.0.1:{tinyproxy.port} with credentials"
    assert way in by_upstream["all"][0]
    assert certificates["ca"] in by_upstream["all"][0]
    assert "reachable, status 200" in by_upstream["all"][1]
    assert "connection.ca_file" in by_upstream["wrong-ca"][1]
    assert "connection.proxy_auth" in by_upstream["no-password"][1]
    assert "connection.proxy_auth" in by_upstream["plain-no-password"][1]
    assert "reachable, status 200" in by_upstream["plain"][1]
    assert "reachable, status 200" in by_upstream["tls-proxy"][1]
    assert "connection.ca_file" in by_upstream["untrusted-proxy"][1]
    assert "the HTTP proxy" in by_upstream["proxy-down"][1]
    assert HEADER_SECRET not in json.dumps(findings)
    assert "pass-of-the-proxy" not in json.dumps(findings)


def test_no_secret_of_the_way_is_in_the_log(gateway):
    assert "pass-of-the-proxy" not in gateway.log
    assert HEADER_SECRET not in gateway.log


def test_a_renewed_certificate_is_used_without_a_restart(gateway, certificates, secure_upstream):
    authority_file = Path(certificates["ca"])
    authority = authority_file.read_bytes()
    authority_file.write_bytes(Path(certificates["other-ca"]).read_bytes())
    try:
        secure_upstream.choose(lambda _: [*script_steps.json_response(ANSWER), Close()])
        send_question(gateway, "direct")  # closes the connection of an earlier request
        send_question(gateway, "direct")
        status, _, body = send_question(gateway, "direct")
    finally:
        secure_upstream.choose(lambda _: script_steps.json_response(ANSWER))
        authority_file.write_bytes(authority)

    assert (status, body["error"]["message"]) == (502, NO_TLS)
    assert send_question(gateway, "direct")[0] == 200
