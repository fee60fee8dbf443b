"""The body of an upstream's error response is stored unchanged, for the analysis of failures."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.gateway.upstream.client import ERROR_BODY_BYTES
from proxy.ledger.maintenance.replay_comparison import CannotReplay, compare
from proxy.ledger.transcripts.encoding import MAX_FAILED_BYTES
from proxy.ledger.transcripts.storage import StoredTranscript, read
from proxy.models import ApiKey, Team
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Script,
    html_response,
    json_response,
    response,
)
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import (
    DIALECTS,
    UPSTREAM_SECRET,
    add_route,
    add_upstream,
    message,
    row,
)
from tests.proxy.gateway.http_client import GatewayClient

ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy é", "extra": [1]}}
STARS = "*" * len(UPSTREAM_SECRET)


def stored_transcript(request_id: str, **expected: Any) -> StoredTranscript:
    row(request_id, **expected)
    transcript = read(request_id)
    assert transcript is not None
    return transcript


def failed_attempts(transcript: StoredTranscript) -> list[tuple[int, str, int]]:
    return [(each.number, each.upstream, each.status) for each in transcript.failed]


@for_each("dialect", DIALECTS)
@for_each(
    "script",
    [json_response(ERROR, 529), html_response(502), json_response(ERROR, 401), html_response(206)],
    ids=["529", "page", "401", "206"],
)
def test_an_error_body_is_stored_byte_for_byte_and_not_as_a_stream(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str, script: Script
):
    scripted.on(f"{dialect}-errs", script)

    reply = gateway.post(message(f"{dialect}-errs", stream=True))

    transcript = stored_transcript(reply.id, outcome="upstream_error")
    sent = upstream_scripts.sent_bytes(script)
    assert transcript.upstream_body == sent.partition(b"\r\n\r\n")[2]
    assert transcript.upstream_reads == []
    status = int(sent.split()[1])
    assert failed_attempts(transcript) == [(0, dialect, status)]
    with pytest.raises(CannotReplay, match=f"answered with status {status}"):
        compare(transcript)


@for_each("dialect", DIALECTS)
def test_the_upstream_key_in_an_error_body_is_masked_also_at_the_size_limit(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str
):
    words = f"{{{UPSTREAM_SECRET}}} "
    until = "x" * (
        ERROR_BODY_BYTES - len(words) - 12
    )  # twelve characters of the key are within the limit
    body = f"{words}{until}{UPSTREAM_SECRET} and more".encode()
    scripted.on(f"{dialect}-repeats", response(500, body, "text/plain"))

    reply = gateway.post(message(f"{dialect}-repeats"))

    transcript = stored_transcript(reply.id, outcome="upstream_error").upstream_body
    assert transcript.decode() == f"{{{STARS}}} {until}{'*' * 12}"
    assert len(transcript) == ERROR_BODY_BYTES == MAX_FAILED_BYTES


def test_a_web_page_with_status_200_is_stored_as_the_response(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-page-200", html_response(200))

    reply = gateway.post(message("chat-page-200"))

    transcript = stored_transcript(reply.id, outcome="upstream_error", detail="bad_type")
    assert transcript.upstream_body.startswith(b"<!DOCTYPE html>")
    assert compare(transcript).replayed.events[-1]["type"] == "error"


@pytest.fixture
def routed(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
) -> Iterator[Callable[..., None]]:
    """Return a function that sets the scripts of ``a`` and ``b``, the targets of ``fall-*``."""
    upstreams = [add_upstream(n, "chat", f"{scripted.url}/{n}") for n in ("a", "b")]
    route = add_route("fall-*", *upstreams)
    reload()

    def set_scripts(a: Script, b: Script) -> None:
        def choose(request: ReceivedRequest) -> Script | None:
            return {"a": a, "b": b}.get(request.path.split("/")[1])

        scripted.choose(choose)

    yield set_scripts
    scripted.choose(lambda _: None)
    route.delete()
    for upstream in upstreams:
        upstream.delete()
    reload()


@pytest.mark.parametrize("streaming", [True, False])
def test_the_error_of_the_first_target_and_the_stream_of_the_second_are_stored(
    gateway: GatewayClient, routed: Callable[..., None], streaming: bool
):
    busy = html_response(503)
    routed(busy, upstream_scripts.chat())

    reply = gateway.post(message("fall-good", stream=streaming))

    transcript = stored_transcript(reply.id, outcome="completed", upstream="b")
    assert transcript.upstream_body == b"".join(upstream_scripts.chat_events())
    assert failed_attempts(transcript) == [(0, "a", 503)]
    assert (
        transcript.failed[0].body.text
        == upstream_scripts.sent_bytes(busy).partition(b"\r\n\r\n")[2]
    )
    assert compare(transcript).same


def test_the_error_of_each_target_is_stored(gateway: GatewayClient, routed: Callable[..., None]):
    routed(
        json_response({"error": {"message": "first"}}, 503), json_response({"error": "second"}, 500)
    )

    reply = gateway.post(message("fall-bad"))

    transcript = stored_transcript(reply.id, outcome="upstream_error", upstream="b")
    assert failed_attempts(transcript) == [(0, "a", 503), (1, "b", 500)]
    assert transcript.upstream_body == b'{"error": "second"}'
    assert b"first" in transcript.failed[0].body.text


def test_a_failed_stream_is_not_stored_as_the_next_target_s(
    gateway: GatewayClient, routed: Callable[..., None]
):
    broken = [upstream_scripts.sse({"error": {"message": "overloaded", "code": 529}})]
    routed(upstream_scripts.pieces(broken, LAST_CHUNK), json_response({"error": "second"}, 500))

    reply = gateway.post(message("fall-worse", stream=True))

    transcript = stored_transcript(reply.id, outcome="upstream_error", upstream="b")
    assert failed_attempts(transcript) == [(0, "a", 200), (1, "b", 500)]
    assert transcript.failed[0].body.text == broken[0]
    assert transcript.upstream_reads == []


def test_the_refusal_before_a_repaired_request_is_stored(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    error = {"message": "Unsupported parameter: 'top_p'", "code": "unsupported_parameter",
             "param": "top_p"}  # fmt: skip
    scripted.on("chat-repairs", json_response({"error": error}, 400), upstream_scripts.chat())

    reply = gateway.post(message("chat-repairs", top_p=0.5, stream=True))

    transcript = stored_transcript(reply.id, outcome="completed")
    assert failed_attempts(transcript) == [(0, "chat", 400)]
    assert json.loads(transcript.failed[0].body.text) == {"error": error}
    assert transcript.upstream_body == b"".join(upstream_scripts.chat_events())


def test_a_team_that_stores_metadata_only_stores_no_error_body(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    team = Team.objects.create(name="wordless", store="metadata")
    _, secret = ApiKey.issue(team, "quiet", scopes=["messages"])
    reload()
    scripted.on("chat-wordless", json_response(ERROR, 529))

    reply = gateway.post(message("chat-wordless"), x_api_key=secret)

    row(reply.id, outcome="upstream_error", upstream_status=529)
    assert read(reply.id) is None
