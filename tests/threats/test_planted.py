"""Faults planted in thirty places of ours: the client is told a number, the row the rest (T51, P13)."""

import importlib

import pytest

from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import message, row

SECRET = "planted-secret /usr/lib/python3/secret.py line 7"
PLACES = (
    "proxy.gateway.consumer:parse_messages_request", "proxy.gateway.consumer:choose_route", "proxy.gateway.consumer:answer",
    "proxy.gateway.consumer:_check_wishes", "proxy.gateway.consumer:decode_object", "proxy.gateway.consumer:parsed",
    "proxy.gateway.consumer:budgets.reserve", "proxy.gateway.ledger:open_record", "proxy.gateway.ledger:Exchange.accept",
    "proxy.gateway.ledger:Exchange.received", "proxy.gateway.ledger:Exchange.dialled", "proxy.gateway.ledger:Exchange.said",
    "proxy.gateway.ledger:Exchange.spoke", "proxy.gateway.ledger:Exchange.read", "proxy.gateway.ledger:Exchange.session_id",
    "proxy.gateway.pump:Attempt.translated", "proxy.gateway.pump:Attempt._called", "proxy.gateway.pump:Attempt._dial",
    "proxy.gateway.pump:Attempt.deliver", "proxy.gateway.pump:Attempt.relay_events", "proxy.gateway.pump:Hearing.feed",
    "proxy.gateway.pump:GrammarGuard.sound", "translator.anthropic.fold:MessageFold.feed",
    "translator.openai_chat.stream:ChatStream.feed", "proxy.gateway.outlets:Committed.take", "proxy.gateway.base:inflated",
    "translator.anthropic.composer:Composer.start", "translator.anthropic.writer:MessageWriter.start",
    "translator.openai_chat.stream:ChatStream.end", "proxy.gateway.head:Head.text",
)  # fmt: skip


def planted(place):
    """The object and the name in it that a place means; None where there is no such place."""
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *steps, name = path.split(".")
    for step in steps:
        owner = getattr(owner, step, None)
    return (owner, name) if hasattr(owner, name) else None


FOUND = [place for place in PLACES if planted(place)]


def test_most_places_are_still_there():
    assert len(FOUND) >= 22, sorted(set(PLACES) - set(FOUND))


@pytest.mark.parametrize("place", FOUND)
@pytest.mark.parametrize("ask", [{"stream": True}, {}], ids=["stream", "whole"])
def test_a_fault_of_ours_tells_a_client_its_number_only(gateway, scripted, monkeypatch, place, ask):
    scripted.on("chat-planted", scripts.chat())
    owner, name = planted(place)

    def fault(*_: object, **__: object):
        raise ZeroDivisionError(SECRET)

    with monkeypatch.context() as during:
        during.setattr(owner, name, fault)
        reply = gateway.post(message("chat-planted", **ask))

    body = reply.body.decode()
    assert reply.status in {200, 400, 500, 502}
    for told in ("planted-secret", "Traceback", "ZeroDivision", "/usr/lib", ".py"):
        assert told not in body
    if reply.status == 200 and "message_stop" not in body:
        assert body.rstrip().rpartition("event: error")[1] or '"type":"message"' in body
    if reply.status >= 400:
        assert reply.json["request_id"] == reply.id
    healthy = gateway.post(message("chat-planted", **ask))
    assert healthy.status == 200
    row(healthy.id, outcome="completed")
