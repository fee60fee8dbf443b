"""Tokens that expire while requests run: no request fails, and no request waits for a refresh.

The slow lane rotates 1,000 tokens.
"""

import json
import threading
import time

import pytest

from proxy.live.credential_states import STATES
from proxy.models import Revision, Upstream
from tests.fakes.servers.cloud_identity import CloudIdentity
from tests.fakes.upstreams.script_steps import json_response
from tests.lanes import repeat
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, message

ROTATIONS = repeat(fast=1, slow=1_000)
UPSTREAMS = repeat(fast=1, slow=30)
CLIENTS = 4
BETWEEN_REQUESTS_S = repeat(fast=0.1, slow=0.0)
EXPIRED = json_response({"error": {"message": "expired"}}, status=401)
LIFETIME_S = repeat(fast=3, slow=5)
"""Seconds. On a busy machine, a refresh may take one of them."""


@pytest.fixture
def rotating(world, scripted, reload, tmp_path):
    """Upstreams whose Google tokens live for seconds. Yields the identity server."""
    with CloudIdentity() as identity:
        identity.lifetime_s = LIFETIME_S
        (tmp_path / "jwt").write_text("subject-token")
        file = tmp_path / "external.json"
        file.write_text(json.dumps({
            "type": "external_account", "audience": "//iam.googleapis.com/x",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{identity.url}/google/token",
            "credential_source": {"file": str(tmp_path / "jwt")},
        }))  # fmt: skip
        rows = []
        for number in range(UPSTREAMS):
            upstream = Upstream.objects.create(
                name=f"short-{number}", dialect="chat", base_url=scripted.base_url,
                credentials={"kind": "google", "file": str(file)},
            )  # fmt: skip
            rows += [add_route(upstream.name, upstream), upstream]
        Revision.bump()
        reload()
        yield identity
        for row in rows:
            row.delete()
        reload()


@pytest.mark.repeated
@pytest.mark.timeout(600)
def test_no_request_fails_while_tokens_expire(gateway, scripted, rotating):
    def script(request):
        if not request.model.startswith("short-"):
            return None
        is_valid = rotating.accepts(request.headers.get("authorization", ""))
        return upstream_scripts.chat() if is_valid else EXPIRED

    failures, answers = [], []
    ended = threading.Event()

    def send_requests(number: int) -> None:
        turn = number
        while not ended.wait(BETWEEN_REQUESTS_S):
            reply = gateway.post(message(f"short-{turn % UPSTREAMS}"))
            answers.append(reply.status)
            if reply.status != 200:
                failures.append((reply.status, reply.body))
            turn += 1

    scripted.choose(script)
    clients = [threading.Thread(target=send_requests, args=(n,)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    deadline = time.monotonic() + 500
    while rotating.number < ROTATIONS + UPSTREAMS and time.monotonic() < deadline:
        time.sleep(0.02)
    ended.set()
    for client in clients:
        client.join(60)
    scripted.choose(lambda _: None)

    assert rotating.number >= ROTATIONS + UPSTREAMS
    assert failures == []
    assert len(answers) > ROTATIONS
    assert all(STATES[f"short-{n}"].fault == "" for n in range(UPSTREAMS))
