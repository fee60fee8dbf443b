"""A request is sent once more with another credential, if the upstream says that it expired."""

import sys
import threading
from pathlib import Path

import pytest

from proxy.models import Revision, Upstream
from tests.fakes.upstreams.script_steps import json_response
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, message, row

COUNTER = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
number = int(path.read_text()) + 1
path.write_text(str(number))
print(json.dumps({"token": f"token-number-{number}"}))
"""
EXPIRED = json_response({"error": {"message": "The access token expired"}}, status=401)
DENIED = json_response(
    {"Message": "User: arn:aws:iam::123456789012:role/x is not authorized"}, status=403
)


@pytest.fixture
def count(tmp_path: Path) -> Path:
    path = tmp_path / "count"
    path.write_text("0")
    return path


@pytest.fixture
def rotating(world, scripted, reload, count):
    """An upstream whose token comes from a program. Yields the name of its model."""
    upstream = Upstream.objects.create(
        name=f"rotating-{count.parent.name}",
        dialect="chat",
        base_url=scripted.base_url,
        managed=True,
        credentials={"kind": "command", "command": [sys.executable, "-c", COUNTER, str(count)]},
    )
    route = add_route(upstream.name, upstream)
    Revision.bump()
    reload()
    yield upstream.name
    route.delete()
    upstream.delete()
    reload()


def tokens(scripted, model: str) -> list[str]:
    return [each.headers["authorization"] for each in scripted.requests_for(model)]


def test_an_expired_token_is_replaced_and_the_request_repeated(gateway, scripted, rotating):
    scripted.on(rotating, EXPIRED, upstream_scripts.chat())

    reply = gateway.post(message(rotating, stream=True))

    assert reply.status == 200
    assert tokens(scripted, rotating) == ["Bearer token-number-1", "Bearer token-number-2"]
    stored = row(reply.id, outcome="completed")
    assert [each["status"] for each in stored.attempts] == [401, 200]


def test_a_second_rejection_is_the_answer(gateway, scripted, rotating, count):
    scripted.on(rotating, EXPIRED)

    first, second = (gateway.post(message(rotating)) for _ in range(2))

    assert (first.status, second.status) == (500, 500)
    assert len(tokens(scripted, rotating)) == 3, "the second request causes no further refresh"
    assert count.read_text() == "2"
    assert b"token-number" not in first.body


def test_a_denied_role_is_not_repeated(gateway, scripted, rotating, count):
    scripted.on(rotating, DENIED)

    reply = gateway.post(message(rotating))

    assert len(tokens(scripted, rotating)) == 1
    assert count.read_text() == "1"
    assert (reply.status, reply.json["error"]["message"]) == (
        500,
        "the upstream denies the gateway's role access",
    )


def test_many_requests_with_an_expired_token_share_one_refresh(gateway, scripted, rotating, count):
    def script(request):
        if request.model != rotating:
            return None
        is_first = request.headers["authorization"].endswith("-1")
        return EXPIRED if is_first else upstream_scripts.chat()

    scripted.choose(script)
    replies = []
    clients = [
        threading.Thread(target=lambda: replies.append(gateway.post(message(rotating))))
        for _ in range(8)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    scripted.choose(lambda _: None)

    assert [reply.status for reply in replies] == [200] * 8
    assert count.read_text() == "2"


def test_no_credential_is_an_error_and_readiness_names_the_upstream(
    gateway, scripted, rotating, count, reload
):
    count.unlink()
    Upstream.objects.filter(name=rotating).update(allow_http=True, profile="vllm")
    Revision.bump()
    reload()

    reply = gateway.post(message(rotating))

    assert reply.status == 502
    assert reply.json["error"]["message"].startswith("the gateway has no valid")
    row(reply.id, outcome="upstream_error", detail="no_credential")
    degraded = gateway.request("GET", "/readyz").json["degraded"]
    assert f"upstream {rotating} has no valid credential: its refresh fails" in degraded
    count.write_text("0")


def test_a_replaced_key_file_is_read_again(world, gateway, scripted, reload, tmp_path):
    file = tmp_path / "key"
    file.write_text("key-before-rotation")
    upstream = Upstream.objects.create(
        name="keyfile", dialect="chat", base_url=scripted.base_url, secret={"file": str(file)}
    )
    add_route("keyfile", upstream)
    Revision.bump()
    reload()

    def script(request):
        if request.model != "keyfile":
            return None
        return upstream_scripts.chat() if "after" in request.headers["authorization"] else EXPIRED

    scripted.choose(script)
    file.write_text("key-after-rotation")
    reply = gateway.post(message("keyfile"))
    scripted.choose(lambda _: None)

    assert reply.status == 200
