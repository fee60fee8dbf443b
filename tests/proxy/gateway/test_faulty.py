"""A body that is refused for what it says is kept as it came, and is never taken for a request."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.gateway import faulty
from proxy.gateway.faulty import NO_ROOM
from proxy.gateway.limits import Bucket
from proxy.models import ApiKey, Team
from proxy.record.transcripts import StoredTranscript, read
from tests.fakes.upstream import ScriptedUpstream

from .browser import Browser
from .conftest import message, row

WORDS = {"role": "user", "content": "Say hello."}
FAULTY: list[Any] = [
    b'{"model": "chat-faulty", "messages": [',
    b'{"model": "chat-faulty", "model": "chat-faulty"}',
    b"\xff\xfe no JSON",
    b'{"model": "chat-faulty", "messages": ' + b"[" * 200 + b"]" * 200 + b"}",
    {"model": "chat-faulty", "max_tokens": 5, "messages": [{"role": "user", "content": 5}]},
    {"model": "chat-faulty", "max_tokens": -1, "messages": [WORDS], "metadata": {"user_id": 7}},
]


@pytest.fixture(autouse=True)
def room():
    """Whatever other tests had refused."""
    faulty._room.left = faulty.BYTES_A_MINUTE


def kept_of(request_id: str) -> StoredTranscript:
    row(request_id, outcome="refused", status=400, upstream="")
    kept = read(request_id)
    assert kept is not None
    return kept


@pytest.mark.parametrize("body", FAULTY, ids=range(len(FAULTY)))
def test_what_was_at_fault_is_kept_byte_for_byte(
    gateway: Browser, scripted: ScriptedUpstream, body: Any
):
    reply = gateway.post(body)

    kept = kept_of(reply.id)
    assert kept.conversation.raw is not None
    raw = kept.conversation.raw.text
    assert raw == body if isinstance(body, bytes) else b'"chat-faulty"' in raw
    assert (kept.request, kept.answer) == ({"raw": raw.decode("utf-8", "replace")}, None)
    assert kept.conversation.messages == []
    assert not scripted.asked_for("chat-faulty")


def test_a_field_that_strict_mode_refuses_is_kept(gateway: Browser):
    odd = message("chat-faulty", field_of_a_strict_test=1)

    reply = gateway.post(odd, x_bridge_strict="true")

    assert "field_of_a_strict_test" in kept_of(reply.id).request["raw"]
    assert row(reply.id).message_count == 1


def test_what_is_refused_for_another_reason_keeps_no_body(gateway: Browser):
    reply = gateway.post(message("nobody-has-this-model"))

    row(reply.id, outcome="refused", status=404)
    assert read(reply.id) is None


def test_who_keeps_no_words_keeps_no_faulty_ones(gateway: Browser, reload):
    team = Team.objects.create(name="faultless", store="metadata")
    _, secret = ApiKey.issue(team, "quiet", scopes=["messages"])
    reload()

    reply = gateway.post(FAULTY[0], x_api_key=secret)

    row(reply.id, outcome="refused", notes=[])
    assert read(reply.id) is None


def test_more_than_there_is_room_for_is_not_kept_and_a_note_says_so(gateway: Browser, monkeypatch):
    monkeypatch.setattr(faulty, "MOST_BYTES", 300)
    long, short = b"[" + b" " * 300 + b"]", b"[]"

    replies = [gateway.post(body) for body in (long, short)]

    told = [note["reason"] for note in row(replies[0].id, outcome="refused").notes]
    assert told == [NO_ROOM.reason]
    assert read(replies[0].id) is None
    assert kept_of(replies[1].id).request == {"raw": "[]"}


def test_the_room_is_for_a_minute():
    team = SimpleNamespace(store_full=True)
    asked: Any = SimpleNamespace(faulty=b"x" * 600, remarks=[], caller=SimpleNamespace(team=team))
    room = Bucket(1_000, 1_000, time.monotonic())

    assert faulty.kept_of(asked, room) == asked.faulty
    assert faulty.kept_of(asked, room) is None
    assert asked.remarks == [NO_ROOM]
    room.at -= 60
    assert faulty.kept_of(asked, room) == asked.faulty
