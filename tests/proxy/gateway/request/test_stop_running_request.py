"""Stop a running request from the admin: client, upstream and row, in each dialect."""

import itertools
import threading

from proxy.live.running_requests import RUNNING, running_rows, stop_here
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Stall, chunk, stream_head
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import UPSTREAM_SECRET, add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient, read_until
from tests.waiting import until

assert UPSTREAM_SECRET  # in the environment of the fixtures
numbers = itertools.count()
EVENTS = {
    "chat": upstream_scripts.chat_events,
    "responses": upstream_scripts.responses_events,
    "anthropic": upstream_scripts.claude_events,
}


WITHIN_S = 60


def running(model):
    """Return the id of the running request for this model, once its body is parsed."""

    def found():
        rows = [(name, context.live_row()) for name, context in list(RUNNING.items())]
        return [name for name, row in rows if row["model"] == model and row["state"] != "arriving"]

    return until(found)[0]


@for_each("dialect", EVENTS)
def test_a_stopped_stream_ends_in_an_error_and_closes_the_upstream_connection(
    gateway, scripted, reload, dialect
):
    reload()
    model = f"{dialect}-stopped-{next(numbers)}"
    events = EVENTS[dialect]()[:-4]
    scripted.on(model, [stream_head(), *(chunk(piece) for piece in events), Stall()])

    with gateway.open(message(model, stream=True)) as client:
        read_until(client, b"content_block_delta")
        request_id = running(model)
        assert stop_here(request_id, "ada")
        assert not stop_here("req_unknown", "ada")
        received = read_until(client, b'"permission_error"')

    assert b"message_stop" not in received
    exchange = row(request_id, outcome="refused", status=200, detail="stopped")
    assert (exchange.error_type, exchange.error_source) == ("permission_error", "gateway")
    assert exchange.stop_reason == ""
    assert "stopped by ada" in [note["reason"] for note in exchange.notes]
    assert ending_of(scripted, model) == "client_gone"
    until(lambda: running_rows() == [])


def ending_of(scripted: ScriptedUpstream, model: str):
    """Return how the upstream's connection for this model ended."""
    (request,) = scripted.requests_for(model)
    return until(lambda: request.ending)


def test_a_stopped_request_without_a_response_tries_no_other_target(gateway, scripted, reload):
    first, second = (
        add_upstream(f"stop-{n}", "chat", scripted.base_url) for n in ("first", "second")
    )
    model = f"stopped-{next(numbers)}"
    add_route(model, first, second)
    reload()
    scripted.on(model, [Stall()])
    replies = []
    thread = threading.Thread(target=lambda: replies.append(gateway.post(message(model))))
    thread.start()
    until(lambda: scripted.requests_for(model))

    stop_here(running(model), "ada")
    thread.join(WITHIN_S)

    assert replies[0].status == 403
    assert replies[0].headers["x-should-retry"] == "false"
    assert len([each for each in scripted.requests if each.model == model]) == 1
    row(replies[0].id, outcome="refused", status=403, detail="stopped", error_source="gateway")


def test_repeated_stops_are_recorded_once(gateway, scripted, reload):
    reload()
    model = f"chat-stopped-{next(numbers)}"
    scripted.on(
        model, [stream_head(), chunk(b"".join(upstream_scripts.chat_events()[:-3])), Stall()]
    )

    with gateway.open(message(model, stream=True)) as client:
        read_until(client, b"content_block_delta")
        request_id = running(model)
        for username in ("ada", "ben", "ada"):
            stop_here(request_id, username)
        read_until(client, b"event: error")

    exchange = row(request_id, outcome="refused")
    assert [note["reason"] for note in exchange.notes].count("stopped by ada") == 1
    assert "ben" not in str(exchange.notes)


def test_a_live_row_shows_the_current_state(gateway: GatewayClient, scripted, reload):
    reload()
    model = f"chat-live-{next(numbers)}"
    words = ["word "] * 80
    scripted.on(
        model, [stream_head(), chunk(b"".join(upstream_scripts.chat_events(words)[:-3])), Stall()]
    )

    request = message(model, stream=True, speed="fast")
    with gateway.open(request, x_claude_code_session_id="s-9") as client:
        read_until(client, b'"text":"word "')
        until(lambda: [each["output_tokens"] >= 100 for each in running_rows()] == [True])
        (live,) = running_rows()
        again = running_rows()[0]["output_tokens"]

    assert (live["output_tokens"], again) == (118, 118)  # 400 characters
    assert live["estimated"]
    assert (live["state"], live["session"], live["stream"]) == ("answering", "s-9", True)
    assert (live["team"], live["key"]) == ("platform", "ada")
    assert (live["speed"], live["inference_geo"]) == ("fast", "")
    assert (live["upstream"], live["upstream_model"]) == ("chat", model)
    assert not {"secret", "Say hello."} & set(map(str, live.values()))


def test_no_live_row_stays_after_the_request(gateway: GatewayClient, scripted, reload):
    reload()
    model = f"chat-quick-{next(numbers)}"
    scripted.on(model, [stream_head(), chunk(b"".join(upstream_scripts.chat_events())), LAST_CHUNK])

    assert gateway.post(message(model, stream=True)).status == 200
    assert gateway.post(message("unknown-model")).status == 404
    assert gateway.post(b"{").status == 400

    until(lambda: not RUNNING)
