"""A running request is stopped from outside: its client, its upstream, its row, in every dialect."""

import itertools
import threading
import time

import pytest

from proxy.live.running import RUNNING, glances, stop_here
from tests.fakes.steps import LAST_CHUNK, Stall, chunk, stream_head
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, read_until
from .conftest import UPSTREAM_SECRET, add_route, add_upstream, message, row

assert UPSTREAM_SECRET  # in the environment of the fixtures
numbers = itertools.count()
SPEAKERS = {
    "chat": scripts.chat_events,
    "responses": scripts.responses_events,
    "anthropic": scripts.claude_events,
}


WITHIN_S = 60


def until(true):
    """Poll until it is so; what it was then."""
    deadline = time.monotonic() + WITHIN_S
    while not (told := true()):
        assert time.monotonic() < deadline, f"not so after {WITHIN_S} s: {glances()}"
        time.sleep(0.01)
    return told


def running(model):
    """The id of the request for this model, once it is more than its head."""

    def found():
        seen = [(name, one.glance()) for name, one in list(RUNNING.items())]
        return [
            name for name, told in seen if told["model"] == model and told["state"] != "arriving"
        ]

    return until(found)[0]


@pytest.mark.parametrize("dialect", SPEAKERS)
def test_a_stream_ends_in_an_error_and_its_upstream_is_let_go(gateway, scripted, reload, dialect):
    reload()
    model = f"{dialect}-stopped-{next(numbers)}"
    said = SPEAKERS[dialect]()[:-4]
    scripted.on(model, [stream_head(), *(chunk(piece) for piece in said), Stall()])

    with gateway.open(message(model, stream=True)) as client:
        read_until(client, b"content_block_delta")
        request_id = running(model)
        assert stop_here(request_id, "ada")
        assert not stop_here("req_nobody", "ada")
        told = read_until(client, b'"permission_error"')

    assert b"message_stop" not in told
    kept = row(request_id, outcome="refused", status=200, detail="stopped")
    assert (kept.error_type, kept.error_source) == ("permission_error", "gateway")
    assert kept.stop_reason == ""
    assert "stopped by ada in the admin" in [note["reason"] for note in kept.notes]
    assert ending_of(scripted, model) == "client_gone"
    until(lambda: glances() == [])


def ending_of(scripted: ScriptedUpstream, model: str):
    """How the upstream's connection for this model ended."""
    (asked,) = scripted.asked_for(model)
    return until(lambda: asked.ending)


def test_what_nobody_answered_yet_goes_to_no_other_target(gateway, scripted, reload):
    first, second = (
        add_upstream(f"stop-{n}", "chat", scripted.base_url) for n in ("first", "second")
    )
    model = f"stopped-{next(numbers)}"
    add_route(model, first, second)
    reload()
    scripted.on(model, [Stall()])
    replies = []
    asking = threading.Thread(target=lambda: replies.append(gateway.post(message(model))))
    asking.start()
    until(lambda: scripted.asked_for(model))

    stop_here(running(model), "ada")
    asking.join(WITHIN_S)

    assert replies[0].status == 403
    assert replies[0].headers["x-should-retry"] == "false"
    assert len([one for one in scripted.asked if one.model == model]) == 1
    row(replies[0].id, outcome="refused", status=403, detail="stopped", error_source="gateway")


def test_a_stop_that_comes_twice_is_one(gateway, scripted, reload):
    reload()
    model = f"chat-stopped-{next(numbers)}"
    scripted.on(model, [stream_head(), chunk(b"".join(scripts.chat_events()[:-3])), Stall()])

    with gateway.open(message(model, stream=True)) as client:
        read_until(client, b"content_block_delta")
        request_id = running(model)
        for who in ("ada", "ben", "ada"):
            stop_here(request_id, who)
        read_until(client, b"event: error")

    kept = row(request_id, outcome="refused")
    assert [note["reason"] for note in kept.notes].count("stopped by ada in the admin") == 1
    assert "ben" not in str(kept.notes)


def test_a_glance_tells_what_is_known_so_far(gateway: Browser, scripted, reload):
    reload()
    model = f"chat-glanced-{next(numbers)}"
    words = ["word "] * 80
    scripted.on(model, [stream_head(), chunk(b"".join(scripts.chat_events(words)[:-3])), Stall()])

    with gateway.open(message(model, stream=True), x_claude_code_session_id="s-9") as client:
        read_until(client, b'"text":"word "')
        until(lambda: [one["output_tokens"] >= 100 for one in glances()] == [True])
        (seen,) = glances()
        again = glances()[0]["output_tokens"]

    assert (seen["output_tokens"], again) == (100, 100)  # 400 characters
    assert seen["estimated"]
    assert (seen["state"], seen["session"], seen["stream"]) == ("answering", "s-9", True)
    assert (seen["team"], seen["key"]) == ("platform", "ada")
    assert (seen["upstream"], seen["upstream_model"]) == ("chat", model)
    assert not {"secret", "Say hello."} & set(map(str, seen.values()))


def test_nothing_stays_behind(gateway: Browser, scripted, reload):
    reload()
    model = f"chat-quick-{next(numbers)}"
    scripted.on(model, [stream_head(), chunk(b"".join(scripts.chat_events())), LAST_CHUNK])

    assert gateway.post(message(model, stream=True)).status == 200
    assert gateway.post(message("nobody-knows-this")).status == 404
    assert gateway.post(b"{").status == 400

    until(lambda: not RUNNING)
