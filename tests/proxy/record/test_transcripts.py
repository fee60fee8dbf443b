"""Bodies come back as they were sent, and what is resent is stored once."""

import hashlib
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.models import Exchange, Part, Transcript
from proxy.record import frames, parts, transcripts
from proxy.record.conversation import (
    Conversation,
    FailedAttempt,
    differences,
    summed,
    unpack,
)
from proxy.record.parts import Piece

from .making import exchange_id

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "anthropic-requests"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

texts = st.text(max_size=12)
marks = st.fixed_dictionaries({"type": st.just("ephemeral")}, optional={"ttl": st.just("1h")})
block = st.dictionaries(
    st.sampled_from(["type", "text", "cache_control", "content", "input", "id"]),
    st.one_of(
        texts, marks, st.lists(st.fixed_dictionaries({"text": texts, "cache_control": marks}))
    ),
)
content = st.one_of(texts, st.lists(st.one_of(block, texts, st.none()), max_size=4), st.none())
message = st.dictionaries(st.sampled_from(["role", "content", "cache_control"]), content)
requests = st.dictionaries(
    st.sampled_from(["model", "system", "messages", "tools", "metadata", "stream"]),
    st.one_of(texts, st.integers(), st.none(), st.lists(st.one_of(message, block), max_size=4)),
)


def rejoined(body: bytes) -> dict:
    one = parts.take_apart(body)
    values = {
        name: json.loads(held.text)
        if isinstance(held, parts.Piece)
        else [json.loads(piece.text) for piece in held]
        for name, held in one.fields.items()
    }
    return parts.put_together(json.loads(one.envelope.text), values, one.marks)


@given(requests)
def test_taking_apart_and_putting_together_keeps_every_body_and_its_order(request: dict) -> None:
    text = json.dumps(request)

    assert json.dumps(rejoined(text.encode())) == text


def recorded() -> list:
    if not CORPUS.is_dir():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no corpus at {CORPUS}"))]
    return [pytest.param(path, id=path.stem[:60]) for path in sorted(CORPUS.glob("*.json"))]


@pytest.mark.parametrize("path", recorded())
def test_recorded_bodies_come_back_as_they_were(path: Path) -> None:
    request = json.loads(path.read_bytes())

    assert json.dumps(rejoined(path.read_bytes())) == json.dumps(request)


def test_a_cache_mark_that_moves_makes_no_new_piece() -> None:
    def turn(marked: int) -> bytes:
        blocks = [[{"type": "text", "text": f"m{n}"}] for n in range(3)]
        blocks[marked][0]["cache_control"] = {"type": "ephemeral"}
        return json.dumps({"messages": [{"role": "user", "content": b} for b in blocks]}).encode()

    first, second = parts.take_apart(turn(1)), parts.take_apart(turn(2))

    assert first.fields == second.fields
    assert first.envelope == second.envelope
    assert first.marks != second.marks


@given(st.lists(st.integers(min_value=0, max_value=2**40)))
def test_differences_and_sums_are_each_others_inverse(numbers: list[int]) -> None:
    assert summed(differences(numbers)) == numbers


def conversation(number: int, turns: int) -> Conversation:
    said = []
    for turn in range(turns):
        said.append({"role": "user", "content": f"question {turn} " + "lorem ipsum " * 30})
        said.append({"role": "assistant", "content": [{"type": "text", "text": f"answer {turn}"}]})
    body = {"model": "m", "system": "be brief", "tools": [{"name": "Read"}], "messages": said[:-1]}
    one = Conversation.of(exchange_id(number), NOW, json.dumps(body).encode())
    one.take_answer({"id": "msg", "content": said[-1]["content"], "stop_reason": "end_turn"})
    one.reads = [(10.0 * n, b"data: {...}\n\n") for n in range(5)]
    one.target = {"upstream": "openai", "dialect": "responses"}
    return one


def keep(*conversations: Conversation) -> None:
    for one in conversations:
        Exchange.objects.create(id=one.exchange_id, created=NOW, team="t", key_name="k")
    transcripts.store(conversations, NOW)


@pytest.mark.django_db
def test_a_stored_conversation_is_read_back_whole() -> None:
    one = conversation(1, 3)
    reads = one.reads

    keep(one)

    stored = transcripts.read(one.exchange_id)
    assert stored is not None
    assert [m["role"] for m in stored.request["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert stored.request["system"] == "be brief"
    assert stored.request["tools"] == [{"name": "Read"}]
    assert stored.answer == {
        "id": "msg",
        "content": [{"type": "text", "text": "answer 2"}],
        "stop_reason": "end_turn",
    }
    assert list(stored.answer) == ["id", "content", "stop_reason"]
    assert stored.upstream_reads == reads
    assert stored.target == one.target
    assert stored.conversation.digest() == one.digest()


@pytest.mark.django_db
def test_what_failing_attempts_were_told_is_read_back_and_is_part_of_the_digest() -> None:
    one, other, plain = (conversation(number, 1) for number in (1, 2, 3))
    for each in (one, other):
        body = b"<p>\xff</p>"  # the same page each time: it is there once
        page = Piece(hashlib.sha256(body).digest(), body)
        each.failed = [FailedAttempt(0, "openai", "gpt-5.2", 502, page)]

    other.reads = []

    keep(one, other, plain)

    stored = transcripts.read(one.exchange_id)
    assert stored is not None
    assert stored.failed == one.failed
    assert stored.upstream_body == b"data: {...}\n\n" * 5  # of who answered in the end
    assert stored.conversation.digest() == one.digest() != plain.digest()
    manifests = [unpack(frames.plain(bytes(t.manifest))) for t in Transcript.objects.all()]
    named = set().union(*map(transcripts.named_by, manifests))
    assert named == set(Part.objects.values_list("pk", flat=True))
    assert ["failed" in manifest for manifest in manifests] == [True, True, False]
    unanswered = transcripts.read(other.exchange_id)
    assert unanswered is not None
    assert unanswered.upstream_body == b"<p>\xff</p>"


@pytest.mark.django_db
def test_a_turn_adds_only_what_was_not_said_before() -> None:
    keep(conversation(1, 1))
    before = Part.objects.count()

    keep(*(conversation(turns, turns) for turns in range(2, 21)))

    # Each turn brings one question and one answer; the answer comes back in the next request.
    assert Part.objects.count() == before + 19 * 2


@pytest.mark.django_db
def test_storing_again_replaces_and_does_not_double() -> None:
    keep(conversation(1, 2))
    count = Part.objects.count()

    transcripts.store([conversation(1, 2)], NOW)

    assert Part.objects.count() == count
    assert Transcript.objects.count() == 1


@pytest.mark.django_db
def test_a_flipped_byte_never_reads_as_the_original() -> None:
    one = conversation(1, 2)
    keep(one)
    chance = random.Random(3)  # noqa: S311 -- chance, not secrecy
    for part in Part.objects.all():
        whole = bytes(part.data)
        place = chance.randrange(len(whole))
        broken = bytearray(whole)
        broken[place] ^= 0x10
        Part.objects.filter(pk=part.pk).update(data=bytes(broken))

        try:
            stored = transcripts.read(one.exchange_id)
            assert stored is not None
            assert stored.conversation.digest() != one.digest() or bytes(broken) == whole
        except transcripts.BrokenTranscript:
            pass
        Part.objects.filter(pk=part.pk).update(data=whole)


def test_manifests_are_small() -> None:
    ids = list(range(5000, 5200))

    packed = msgspec.msgpack.encode(differences(ids))

    assert len(packed) < 250


@pytest.mark.django_db
def test_a_transcript_keeps_the_hour_the_place_and_the_names_of_its_parts(monkeypatch) -> None:
    monkeypatch.setattr(transcripts, "MOST_KEYS", 2)  # it is asked for in several queries
    one = conversation(1, 3)
    one.upstream_request_sha256 = "5ea1"
    keep(one)

    row = Transcript.objects.get()
    manifest = msgspec.msgpack.decode(frames.plain(bytes(row.manifest)))
    assert manifest["v"] == 1
    assert (row.created, bytes(row.prefix)) == (NOW, one.chain[-1])
    assert transcripts.named_by(manifest) == set(Part.objects.values_list("pk", flat=True))
    assert {part.used for part in Part.objects.all()} == {NOW}
    for part in Part.objects.all():
        plain = frames.plain(bytes(part.data))
        assert (part.size, bytes(part.digest)) == (len(plain), hashlib.sha256(plain).digest())

    for later, used in ((90, 60), (59, 60), (61, 60)):
        transcripts.store([one], NOW + timedelta(minutes=later))
        assert {part.used for part in Part.objects.all()} == {NOW + timedelta(minutes=used)}
    stored = transcripts.read(one.exchange_id)
    assert stored is not None
    assert (stored.exchange_id, stored.upstream_request_sha256) == (one.exchange_id, "5ea1")
    assert stored.conversation.created == NOW
    assert transcripts.read("req_unknown") is None


@pytest.mark.django_db
def test_a_body_that_is_no_json_comes_back_as_text_and_without_an_answer() -> None:
    one = Conversation.of(exchange_id(1), NOW, b"\xff no json")

    keep(one)

    row = Transcript.objects.get()
    stored = transcripts.read(one.exchange_id)
    assert stored is not None
    assert (bytes(row.prefix), row.stream) == (bytes(16), None)
    assert (stored.request, stored.answer) == ({"raw": "\ufffd no json"}, None)
    assert (stored.upstream_reads, stored.target) == ([], {})
    assert (list(stored.failed), stored.upstream_body) == ([], b"")
    assert stored.conversation.digest() == one.digest()
    manifest = msgspec.msgpack.decode(frames.plain(bytes(row.manifest)))
    assert transcripts.named_by(manifest) == {Part.objects.get().pk}
    assert transcripts.named_by({"said": 3, "fields": {"tools": 4, "messages": [5, 1]}}) == {
        3, 4, 5, 6
    }  # fmt: skip
    assert transcripts.named_by({}) == set()


@pytest.mark.django_db
def test_an_answer_without_content_stays_without_it() -> None:
    one = conversation(1, 1)
    one.take_answer({"id": "msg", "content": None})
    keep(one)

    stored = transcripts.read(one.exchange_id)

    assert stored is not None
    assert stored.answer == {"id": "msg", "content": None}


@pytest.mark.django_db
def test_a_part_that_is_gone_is_told_and_not_made_up() -> None:
    keep(conversation(1, 1))
    Part.objects.all().delete()

    with pytest.raises(transcripts.BrokenTranscript, match="its transcript cannot be read: "):
        transcripts.read(exchange_id(1))
