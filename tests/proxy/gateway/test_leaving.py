"""A client leaves in the middle, and its upstream bills the whole answer: ``drain`` hears it out."""

import itertools
import threading
import time

import pytest

from proxy.live.running import RUNNING
from proxy.models import Leaving, RouteTarget, Upstream
from tests.fakes.steps import (
    LAST_CHUNK,
    Close,
    Hold,
    Script,
    Send,
    Step,
    chunk,
    json_answer,
    stream_head,
)
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, read_until
from .conftest import DIALECTS, add_route, add_upstream, message, newest_row

SPEAKERS = {
    "chat": scripts.chat_events,
    "responses": scripts.responses_events,
    "anthropic": scripts.claude_events,
}
BILLED = (12, 5)  # input and output, as those scripts tell them
numbers = itertools.count()


@pytest.fixture
def drained(gateway: Browser, scripted: ScriptedUpstream, reload):
    """Upstreams that bill whole answers, one a dialect: a model's name begins with ``drain-``."""
    made = []
    for dialect in DIALECTS:
        base_url = scripted.url if dialect == "anthropic" else scripted.base_url
        upstream = add_upstream(
            f"drain-{dialect}", dialect, base_url, when_client_leaves=Leaving.DRAIN
        )
        made.append(add_route(f"drain-{dialect}-*", upstream))
    reload()
    yield
    for route in made:
        route.delete()
    Upstream.objects.filter(name__startswith="drain-").delete()
    reload()


def held(pieces: list[bytes], gate: threading.Event, said: int, *ending: Step) -> Script:
    """An event stream that waits for the gate when it has said the first few pieces.

    The rest comes at once: who hears the last event and no end for a while hangs up.
    """
    told = [chunk(piece) for piece in pieces]
    rest = Send(scripts.answered([*told[said:], LAST_CHUNK]))
    return [stream_head(), *told[:said], Hold(gate), *(ending or (rest,))]


def leave(
    gateway: Browser, scripted: ScriptedUpstream, model: str, until: bytes, headers=None, **fields
) -> None:
    """Ask, read so far, leave; returns when the gateway has seen that."""
    with gateway.open(message(model, **fields), **(headers or {})) as client:
        if until:
            read_until(client, until)
        else:
            scripted.wait_until(lambda asked: any(each.model == model for each in asked))
        entry = next(one for one in RUNNING.values() if one.model == model)
    deadline = time.monotonic() + 60
    while entry.consumer.unheard_from is None:
        assert time.monotonic() < deadline, "the gateway did not see the client leave"
        time.sleep(0.005)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_what_the_upstream_bills_is_what_the_row_tells(gateway, scripted, drained, dialect, stream):
    model, gate = f"drain-{dialect}-{next(numbers)}", threading.Event()
    scripted.on(model, held(SPEAKERS[dialect](), gate, 4))

    leave(gateway, scripted, model, b"content_block_delta" if stream else b"", stream=stream)
    gate.set()

    kept = newest_row(model_requested=model)
    assert (kept.outcome, kept.status, kept.delivered) == ("client_gone", 499, False)
    assert (kept.input_tokens, kept.output_tokens) == BILLED
    assert (kept.input_source, kept.output_source) == ("reported", "reported")
    assert (kept.stop_reason, kept.detail) == ("end_turn", "heard_out")
    assert "the client left" in kept.notes[0]["reason"]
    scripted.wait_until(lambda _: scripted.asked_for(model)[0].ending)
    assert scripted.asked_for(model)[0].ending == "answered"


def test_it_counts_the_bytes_that_the_client_was_told(gateway, scripted, drained):
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    scripted.on(model, held(scripts.chat_events(["w" * 1000] * 50), gate, 2))

    leave(gateway, scripted, model, b"content_block_delta", stream=True)
    gate.set()

    assert newest_row(model_requested=model).response_bytes < 3_000


def test_one_that_then_breaks_off_is_still_a_client_that_left(gateway, scripted, drained):
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    scripted.on(model, held(scripts.chat_events(), gate, 3, Close()))

    leave(gateway, scripted, model, b"content_block_delta", stream=True)
    gate.set()

    kept = newest_row(model_requested=model)
    assert (kept.outcome, kept.status, kept.stop_reason) == ("client_gone", 499, "")
    assert kept.output_source == "estimated"


def test_nobody_else_is_asked_for_a_client_that_left(gateway, scripted, drained):
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    route = RouteTarget.objects.get(upstream__name="drain-chat").route
    RouteTarget.objects.create(
        route=route, upstream=Upstream.objects.get(name="drain-chat"), model="other", position=1
    )
    scripted.on(model, [Hold(gate), *json_answer({"error": {"message": "down"}}, 500)])

    leave(gateway, scripted, model, b"", stream=True)
    gate.set()

    kept = newest_row(model_requested=model)
    assert (kept.outcome, kept.status, len(kept.attempts)) == ("client_gone", 499, 1)
    assert not scripted.asked_for("other")


def test_nothing_is_tried_again_for_a_client_that_left(gateway, scripted, drained):
    """A refusal that a request without the field would not get: with a client it is mended."""
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    error = {"message": "Unsupported parameter: 'top_p'", "code": "unsupported_parameter",
             "param": "top_p", "type": "invalid_request_error"}  # fmt: skip
    refusal = json_answer({"error": error}, 400)
    scripted.on(f"{model}-heard", refusal, scripts.chat())
    mended = gateway.post(message(f"{model}-heard", top_p=0.5))
    scripted.on(model, [Hold(gate), *refusal], scripts.chat())

    leave(gateway, scripted, model, b"", stream=True, top_p=0.5)
    gate.set()

    kept = newest_row(model_requested=model, outcome="client_gone")
    assert mended.status == 200
    assert len(scripted.asked_for(f"{model}-heard")) == 2
    assert len(scripted.asked_for(model)) == len(kept.attempts) == 1


def test_who_comes_back_with_the_same_idempotency_key_gets_the_answer(gateway, scripted, drained):
    model, gate = f"drain-chat-{next(numbers)}", threading.Event()
    key = {"idempotency-key": model}
    scripted.on(model, held(scripts.chat_events(), gate, 3))

    leave(gateway, scripted, model, b"", key)
    gate.set()
    newest_row(model_requested=model, outcome="client_gone")
    again = gateway.post(message(model), **key)

    assert again.json["content"][0]["text"] == "Hello there."
    assert len(scripted.asked_for(model)) == 1
