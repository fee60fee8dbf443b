"""After a client disconnect, ``drain`` reads the rest of a response that is billed in full."""

import itertools
import threading
import time

import pytest

from proxy.live.running_requests import RUNNING
from proxy.models import OnClientDisconnect, RouteTarget, Upstream
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Close,
    Script,
    Send,
    Step,
    WaitForGate,
    chunk,
    json_response,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import DIALECTS, add_route, add_upstream, message, newest_row
from tests.proxy.gateway.http_client import GatewayClient, read_until

EVENTS_BY_DIALECT = {
    "chat": upstream_scripts.chat_events,
    "responses": upstream_scripts.responses_events,
    "anthropic": upstream_scripts.claude_events,
}
BILLED = (12, 5)  # input and output tokens of these scripts
numbers = itertools.count()


@pytest.fixture
def drained(gateway: GatewayClient, scripted: ScriptedUpstream, reload):
    """Upstreams with ``drain``, one for each dialect, for models named ``drain-*``."""
    routes = []
    for dialect in DIALECTS:
        base_url = scripted.url if dialect == "anthropic" else scripted.base_url
        upstream = add_upstream(
            f"drain-{dialect}", dialect, base_url, when_client_leaves=OnClientDisconnect.DRAIN
        )
        routes.append(add_route(f"drain-{dialect}-*", upstream))
    reload()
    yield
    for route in routes:
        route.delete()
    Upstream.objects.filter(name__startswith="drain-").delete()
    reload()


def gated_script(pieces: list[bytes], gate: threading.Event, sent: int, *ending: Step) -> Script:
    """Return an event stream that waits for ``gate`` after the first ``sent`` pieces.

    The other pieces are sent in one write, because the gateway disconnects if the end of the
    stream does not follow its last event soon.
    """
    chunks = [chunk(piece) for piece in pieces]
    rest = Send(upstream_scripts.sent_bytes([*chunks[sent:], LAST_CHUNK]))
    return [stream_head(), *chunks[:sent], WaitForGate(gate), *(ending or (rest,))]


def leave(
    gateway: GatewayClient,
    scripted: ScriptedUpstream,
    model: str,
    until: bytes,
    headers=None,
    **fields,
) -> None:
    """Send, read up to ``until``, disconnect; return when the gateway has noticed it."""
    with gateway.open(message(model, **fields), **(headers or {})) as client:
        if until:
            read_until(client, until)
        else:
            scripted.wait_until(lambda requests: any(each.model == model for each in requests))
        request = next(one for one in RUNNING.values() if one.model == model)
    deadline = time.monotonic() + 60
    while request.response.bytes_at_disconnect is None:
        assert time.monotonic() < deadline, "the gateway did not notice the disconnect"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("dialect", "stream"),
    [
        ("chat", True),
        ("responses", False),
        ("anthropic", True),
        pytest.param("chat", False, marks=pytest.mark.slow),
        pytest.param("responses", True, marks=pytest.mark.slow),
        pytest.param("anthropic", False, marks=pytest.mark.slow),
    ],
)
def test_the_row_has_the_usage_that_the_upstream_bills(gateway, scripted, drained, dialect, stream):
    model, gate = f"drain-{dialect}-{next(numbers)}", threading.Event()
    scripted.on(model, gated_script(EVENTS_BY_DIALECT[dialect](), gate, 4))

    leave(gateway, scripted, model, b"content_block_delta" if stream else b"", stream=stream)
    gate.set()

    stored = newest_row(model_requested=model)
    assert (stored.outcome, stored.status, stored.delivered) == ("client_gone", 499, False)
    assert (stored.input_tokens, stored.output_tokens) == BILLED
    assert (stored.input_source, stored.output_source) == ("reported", "reported")
    assert (stored.stop_reason, stored.detail) == ("end_turn", "read_to_end")
    assert "the client left" in stored.notes[0]["reason"]
    scripted.wait_until(lambda _: scripted.requests_for(model)[0].ending)
    assert scripted.requests_for(model)[0].ending == "answered"


def test_the_row_counts_the_bytes_sent_to_the_client(gateway, scripted, drained):
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    scripted.on(model, gated_script(upstream_scripts.chat_events(["w" * 1000] * 50), gate, 2))

    leave(gateway, scripted, model, b"content_block_delta", stream=True)
    gate.set()

    assert newest_row(model_requested=model).response_bytes < 3_000


def test_a_stream_cut_after_the_disconnect_is_still_recorded_as_client_gone(
    gateway, scripted, drained
):
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    scripted.on(model, gated_script(upstream_scripts.chat_events(), gate, 3, Close()))

    leave(gateway, scripted, model, b"content_block_delta", stream=True)
    gate.set()

    stored = newest_row(model_requested=model)
    assert (stored.outcome, stored.status, stored.stop_reason) == ("client_gone", 499, "")
    assert stored.output_source == "estimated"


def test_no_other_target_is_tried_after_a_disconnect(gateway, scripted, drained):
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    route = RouteTarget.objects.get(upstream__name="drain-chat").route
    RouteTarget.objects.create(
        route=route, upstream=Upstream.objects.get(name="drain-chat"), model="other", position=1
    )
    scripted.on(model, [WaitForGate(gate), *json_response({"error": {"message": "down"}}, 500)])

    leave(gateway, scripted, model, b"", stream=True)
    gate.set()

    stored = newest_row(model_requested=model)
    assert (stored.outcome, stored.status, len(stored.attempts)) == ("client_gone", 499, 1)
    assert not scripted.requests_for("other")


def test_no_repaired_request_is_sent_after_a_disconnect(gateway, scripted, drained):
    """With a connected client, the refused field is removed and the request is sent again."""
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    error = {"message": "Unsupported parameter: 'top_p'", "code": "unsupported_parameter",
             "param": "top_p", "type": "invalid_request_error"}  # fmt: skip
    refusal = json_response({"error": error}, 400)
    scripted.on(f"{model}-connected", refusal, upstream_scripts.chat())
    repaired = gateway.post(message(f"{model}-connected", top_p=0.5))
    scripted.on(model, [WaitForGate(gate), *refusal], upstream_scripts.chat())

    leave(gateway, scripted, model, b"", stream=True, top_p=0.5)
    gate.set()

    stored = newest_row(model_requested=model, outcome="client_gone")
    assert repaired.status == 200
    assert len(scripted.requests_for(f"{model}-connected")) == 2
    assert len(scripted.requests_for(model)) == len(stored.attempts) == 1
