"""``doctor`` proves each step of a cloud: credential, reachability, model and streamed answer."""

import contextlib
import http.server
import json
import sys
import threading

import pytest

from proxy.gateway.credentials.registry import CREDENTIALS
from tests.fakes.upstreams import amazon_event_stream
from tests.proxy.gateway.upstream_scripts import claude_events

from .test_doctor import findings, route_to

pytestmark = pytest.mark.django_db


class Vertex(http.server.BaseHTTPRequestHandler):
    """A cloud that answers one streamed request, if it has the token of ``TOKEN``."""

    def do_GET(self):
        self._send(404, b"{}", "application/json")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if (
            self.headers["authorization"] != "Bearer cloud-token"
            or "/model-x:stream" not in self.path
        ):
            self._send(
                404, b'[{"error": {"code": 404, "message": "no such model"}}]', "application/json"
            )
            return
        self._send(200, b"".join(claude_events()), "text/event-stream")

    def _send(self, status, body, kind):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def cloud():
    """Return a function that starts a cloud and returns its URL."""
    with contextlib.ExitStack() as stack:

        def start(handler):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            for end in (server.server_close, thread.join, server.shutdown):
                stack.callback(end)
            return f"http://127.0.0.1:{server.server_port}"

        yield start
        CREDENTIALS.keep(())


@pytest.fixture
def vertex(cloud):
    return f"{cloud(Vertex)}/v1/projects/p/locations/l"


class Bedrock(Vertex):
    """Amazon Bedrock: a signed request, and an answer of binary frames."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        is_signed = (
            self.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIATEST/")
            and self.headers["x-amz-security-token"] == "session-token"
        )
        if not is_signed or self.path != "/model/model-x/invoke-with-response-stream":
            self._send(403, b'{"message": "not authorized"}', "application/json")
            return
        events = [json.loads(raw.partition(b"data: ")[2]) for raw in claude_events()]
        frames = b"".join(map(amazon_event_stream.event, events))
        self._send(200, frames, "application/vnd.amazon.eventstream")


class Foundry(Vertex):
    """Microsoft Foundry: Anthropic's own paths below the base URL."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        has_token = self.headers["x-api-key"] == "cloud-token"
        if not has_token or self.path != "/anthropic/v1/messages":
            self._send(401, b'{"error": {"message": "denied"}}', "application/json")
            return
        self._send(200, b"".join(claude_events()), "text/event-stream")


AWS_KEYS = {
    "AccessKeyId": "AKIATEST", "SecretAccessKey": "cloud-secret", "SessionToken": "session-token",
}  # fmt: skip


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("handler", "profile", "path"),
    [(Bedrock, "bedrock", ""), (Foundry, "foundry", "/anthropic")],
)
def test_each_step_of_another_cloud_is_proven(cloud, monkeypatch, handler, profile, path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", AWS_KEYS["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_KEYS["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", AWS_KEYS["SessionToken"])
    aws = {"kind": "aws", "region": "eu-central-1"}
    fields = {"credentials": aws} if profile == "bedrock" else {}
    cloud_of(f"{cloud(handler)}{path}", profile=profile, **fields)

    reachable, answered = findings("upstream own")
    (credential,) = findings("credential of own")

    assert (credential.ok, reachable.ok, answered.ok) == (True, True, True)
    assert "It answered in words" in answered.text
    assert not {"cloud-token", *AWS_KEYS.values()} & {*str([credential, answered]).split()}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("handler", "profile", "hint"),
    [
        (Bedrock, "bedrock", "The role lacks the permission to call the model"),
        (Foundry, "foundry", "The cloud rejects the credential."),
    ],
)
def test_a_cloud_that_refuses_has_a_remedy(cloud, handler, profile, hint):
    script = 'print(\'{"token": "wrong"}\')'
    cloud_of(f"{cloud(handler)}/anthropic", profile=profile, script=script)

    _, answered = findings("upstream own")

    assert answered.ok is False
    assert answered.hint.startswith(hint)


def cloud_of(
    base_url,
    model="model-x",
    script='print(\'{"token": "cloud-token"}\')',
    profile="vertex",
    credentials=None,
):
    credentials = credentials or {"kind": "command", "command": [sys.executable, "-c", script]}
    route_to(
        base_url,
        dialect="anthropic",
        model=model,
        profile=profile,
        managed=True,
        credentials=credentials,
    )


@pytest.mark.django_db(transaction=True)
def test_each_step_of_a_cloud_is_proven(vertex):
    cloud_of(vertex)

    reachable, answered = findings("upstream own")
    (credential,) = findings("credential of own")

    assert credential.text.startswith("found: command ")
    assert credential.text.endswith("does not expire")
    assert (credential.ok, reachable.ok, answered.ok) == (True, True, True)
    assert "It answered in words" in answered.text
    assert "cloud-token" not in f"{credential}{reachable}{answered}"


@pytest.mark.django_db(transaction=True)
def test_a_model_that_the_cloud_does_not_have_gets_a_hint(vertex):
    cloud_of(vertex, model="model-y")

    _, answered = findings("upstream own")

    assert answered.ok is False
    assert answered.hint.startswith("The model does not exist in this region")


def test_a_credential_that_cannot_be_fetched_is_one_finding(vertex):
    cloud_of(vertex, script="raise SystemExit(4)")

    (finding,) = findings("upstream own")

    assert finding.ok is False
    assert "ended with exit code 4" in finding.text
