"""Each section of docs/guides/clouds.md works to the letter: ``doctor`` proves every step.

The configurations are used unchanged, but for the names in capitals. The gateway reaches the hosts
of the clouds through a forward proxy of the environment, which opens its tunnels to local fakes
with certificates of a private CA.
"""

import json
import re
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.fakes.servers.cloud_identity import CloudIdentity
from tests.fakes.servers.forward_proxies import RedirectingProxy
from tests.fakes.servers.gateway import TEAM, Gateway, Reply
from tests.fakes.upstreams import amazon_event_stream as amazon
from tests.fakes.upstreams.script_steps import Script, Sleep, json_response
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.proxy.gateway import upstream_scripts

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs/guides/clouds.md"
NAMES = {"RESOURCE": "acme", "PROJECT": "p", "DEPLOYMENT": "gpt-x", '"MODEL"': '"m"'}
HOSTS = (
    "bedrock-runtime.us-east-1.amazonaws.com",
    "us-east5-aiplatform.googleapis.com",
    "acme.services.ai.azure.com",
    "acme.openai.azure.com",
    "llm.example.com",
)
TOKEN_HOST = "oauth2.googleapis.com"
CLAUDE = [json.loads(raw.partition(b"data: ")[2]) for raw in upstream_scripts.claude_events()]
AWS_KEY = "AKIDEXAMPLE"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": AWS_KEY,
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "AZURE_OPENAI_API_KEY": "key-of-azure",
    "NO_PROXY": "localhost,127.0.0.1",
}
SIGNED = rf"AWS4-HMAC-SHA256 Credential={AWS_KEY}/\d{{8}}/us-east-1/bedrock/aws4_request, .*"


def blocks() -> dict[str, str]:
    """Return the configurations of the page, by the name of their upstream."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"```toml\n(\[\[upstreams\]\].*?)```", text, re.DOTALL)
    return {re.search(r'name = "([\w-]+)"', block)[1]: block for block in found}


BLOCKS = blocks()
AUTHORIZATION = {
    "bedrock": ("authorization", SIGNED),
    "vertex": ("authorization", r"Bearer token-\d+"),
    "foundry": ("authorization", r"Bearer token-\d+"),
    "azure": ("api-key", "key-of-azure"),
    "azure-dated": ("api-key", "key-of-azure"),
    "internal": ("authorization", "Bearer printed-token"),
}
"""By upstream: the header that authenticates the gateway, and its value."""
PATHS = {
    "bedrock": "/invoke-with-response-stream",
    "vertex": "claude-sonnet-4-5%4020250929:streamRawPredict",
    "foundry": "/anthropic/v1/messages",
    "azure": "/openai/v1/responses",
    "azure-dated": "/openai/deployments/gpt-x/chat/completions?api-version=2024-10-21",
    "internal": "/v1/chat/completions",
}
"""By upstream: a part of the path of its requests."""
ORIGINS = {
    "bedrock": "AWS, environment variables; does not expire",
    "vertex": "Google, the key of a service account; expires at",
    "foundry": "Entra ID, managed identity; expires at",
    "internal": "command ",
}
"""By upstream: the finding of doctor about a credential that is fetched."""


def pieces(events: list[bytes], *ending: Any) -> Script:
    """Return a stream in two parts, so that doctor sees that no proxy buffers it."""
    script = upstream_scripts.pieces(events, *ending)
    return [*script[:3], Sleep(0.05), *script[3:]]


SCRIPTS = {
    PATHS["bedrock"]: amazon.script(map(amazon.event, CLAUDE)),
    PATHS["vertex"]: pieces(upstream_scripts.claude_events(), amazon.LAST_CHUNK),
    PATHS["foundry"]: pieces(upstream_scripts.claude_events(), amazon.LAST_CHUNK),
    PATHS["azure"]: pieces(upstream_scripts.responses_events(), amazon.LAST_CHUNK),
    PATHS["azure-dated"]: pieces(upstream_scripts.chat_events(), amazon.LAST_CHUNK),
    PATHS["internal"]: pieces(upstream_scripts.chat_events(), amazon.LAST_CHUNK),
}


def answer(request: ReceivedRequest) -> Script:
    """Answer as the cloud whose path the request has."""
    if request.method == "GET":
        return json_response({"data": []})
    for part, script in SCRIPTS.items():
        if part in request.path:
            return script
    return json_response({"error": {"message": f"no such path {request.path}"}}, status=404)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> tuple[trustme.CA, str]:
    """Return a private CA and the path of its certificate."""
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return authority, str(path)


def server_context(authority: trustme.CA, *hosts: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*hosts).configure_cert(context)
    return context


@pytest.fixture(scope="module")
def cloud(authority) -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream(tls=server_context(authority[0], *HOSTS)) as running:
        running.choose(answer)
        yield running


@pytest.fixture(scope="module")
def gateway(authority, cloud, tmp_path_factory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("clouds")
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "google.json").write_text(json.dumps({
        "type": "service_account", "project_id": "p", "private_key_id": "1",
        "private_key": key.decode(), "client_email": "bridge@p.test", "client_id": "1",
        "token_uri": f"https://{TOKEN_HOST}/google/token",
    }))  # fmt: skip
    program = folder / "print-token"
    program.write_text('#!/bin/sh\necho \'{"token": "printed-token"}\'\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    tls = server_context(authority[0], TOKEN_HOST)
    with CloudIdentity(tls) as tokens, CloudIdentity() as machine:
        ports = dict.fromkeys(HOSTS, cloud.port)
        ports[TOKEN_HOST] = int(tokens.host.rpartition(":")[2])
        with RedirectingProxy(ports) as proxy:
            environment = {
                **ENVIRONMENT,
                "HTTPS_PROXY": proxy.url,
                "SSL_CERT_FILE": authority[1],
                "REQUESTS_CA_BUNDLE": authority[1],
                "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "google.json"),
                "IDENTITY_ENDPOINT": f"{machine.url}/msi/token",
                "IDENTITY_HEADER": "x",
            }
            with Gateway(folder / "gateway", config=TEAM, environment=environment) as running:
                yield running


def test_the_page_has_a_section_for_each_cloud():
    assert list(BLOCKS) == list(AUTHORIZATION)


@pytest.mark.parametrize("name", BLOCKS)
def test_doctor_proves_each_step_and_a_request_is_answered(gateway, cloud, name):
    text = BLOCKS[name].replace("/usr/local/bin", str(gateway.folder.parent))
    for word, value in NAMES.items():
        text = text.replace(word, value)
    file = gateway.folder / f"{name}.toml"
    file.write_text(text + TEAM)
    gateway.manage("applyconfig", str(file))

    findings = json.loads(gateway.run_command("doctor", "--json").stdout)

    subjects = (f"upstream {name}", f"credential of {name}")
    own = [finding for finding in findings if finding["subject"] in subjects]
    assert [finding for finding in own if finding["ok"] is not True] == []
    texts = "\n".join(finding["says"] for finding in own)
    assert "through the proxy 127.0.0.1" in texts
    assert "reachable" in texts
    assert "It answered in words" in texts or "sent a stream in" in texts
    if name in ORIGINS:
        assert f"found: {ORIGINS[name]}" in texts

    reply = send_when_configured(
        gateway, cloud, name, "claude-x" if "claude-*" in text else "gpt-x"
    )
    assert [json.loads(data)["delta"]["text"] for data in TEXT.findall(reply.body.decode())] == [
        "Hello", " there", ".",
    ]  # fmt: skip
    assert gateway.request("GET", "/readyz").status == 200


TEXT = re.compile(r'^data: (.*"text_delta".*)$', re.MULTILINE)


def send_when_configured(gateway: Gateway, cloud: ScriptedUpstream, name: str, model: str) -> Reply:
    """Send requests until the gateway has read the new configuration; return the last response.

    Then this cloud receives the request, with its credential and on the path that it expects.
    """
    message = {"role": "user", "content": "Hi"}
    body = {"model": model, "max_tokens": 50, "stream": True, "messages": [message]}
    header, value = AUTHORIZATION[name]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        earlier = len(cloud.requests)
        reply = gateway.request(
            "POST", "/v1/messages", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        if reply.status == 200 and any(
            re.fullmatch(value, received.headers.get(header, "")) and PATHS[name] in received.path
            for received in cloud.requests[earlier:]
        ):
            return reply
        time.sleep(0.1)
    raise AssertionError(f"{reply}, {cloud.requests[-1]}")
