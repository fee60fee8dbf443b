"""``doctor`` proves each step of a cloud: credential, reachability, model and streamed answer."""

import http.server
import sys
import threading

import pytest

from proxy.gateway.credentials.registry import CREDENTIALS
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
def vertex():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Vertex)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/projects/p/locations/l"
    CREDENTIALS.keep(())
    server.shutdown()
    thread.join()
    server.server_close()


def cloud_of(base_url, model="model-x", script='print(\'{"token": "cloud-token"}\')'):
    credentials = {"kind": "command", "command": [sys.executable, "-c", script]}
    route_to(
        base_url,
        dialect="anthropic",
        model=model,
        profile="vertex",
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
