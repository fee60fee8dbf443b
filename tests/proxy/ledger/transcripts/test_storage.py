"""Transcripts are read back as they were stored; repeated parts are stored once."""

import hashlib
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ledger.database.bulk_sql import MAX_KEYS
from proxy.ledger.transcripts import body_parts, part_codec, storage
from proxy.ledger.transcripts.body_parts import Piece
from proxy.ledger.transcripts.encoding import (
    ANSWER,
    Conversation,
    FailedAttempt,
    differences,
    running_totals,
    unpack,
)
from proxy.models import Exchange, Part, Transcript
from tests.for_each import for_each
from tests.proxy.ledger.factories import exchange_id

CORPUS = Path(__file__).resolve().parents[5] / "shared" / "corpus" / "anthropic-requests"
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


def split_and_join(body: bytes) -> dict:
    one = body_parts.split_body(body)
    values = {
        name: json.loads(value.text)
        if isinstance(value, body_parts.Piece)
        else [json.loads(piece.text) for piece in value]
        for name, value in one.fields.items()
    }
    return body_parts.join_body(json.loads(one.envelope.text), values, one.marks)


@given(requests)
def test_a_split_and_joined_body_equals_the_original(request: dict) -> None:
    text = json.dumps(request)

    assert json.dumps(split_and_join(text.encode())) == text


def recorded() -> list:
    if not CORPUS.is_dir():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no corpus at {CORPUS}"))]
    return [pytest.param(path, id=path.stem[:60]) for path in sorted(CORPUS.glob("*.json"))]


@for_each("path", recorded())
def test_recorded_bodies_are_split_and_joined_without_change(path: Path) -> None:
    request = json.loads(path.read_bytes())

    assert json.dumps(split_and_join(path.read_bytes())) == json.dumps(request)


def test_a_moved_cache_mark_creates_no_new_piece() -> None:
    def turn(marked: int) -> bytes:
        blocks = [[{"type": "text", "text": f"m{n}"}] for n in range(3)]
        blocks[marked][0]["cache_control"] = {"type": "ephemeral"}
        return json.dumps({"messages": [{"role": "user", "content": b} for b in blocks]}).encode()

    first, second = body_parts.split_body(turn(1)), body_parts.split_body(turn(2))

    assert first.fields == second.fields
    assert first.envelope == second.envelope
    assert first.marks != second.marks


@given(st.lists(st.integers(min_value=0, max_value=2**40)))
def test_running_totals_are_the_inverse_of_differences(numbers: list[int]) -> None:
    assert running_totals(differences(numbers)) == numbers


def conversation(number: int, turns: int) -> Conversation:
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn} " + "lorem ipsum " * 30})
        messages.append(
            {"role": "assistant", "content": [{"type": "text", "text": f"answer {turn}"}]}
        )
    body = {
        "model": "m",
        "system": "be brief",
        "tools": [{"name": "Read"}],
        "messages": messages[:-1],
    }
    one = Conversation.from_body(exchange_id(number), NOW, json.dumps(body).encode())
    one.set_answer({"id": "msg", "content": messages[-1]["content"], "stop_reason": "end_turn"})
    one.reads = [(10.0 * n, b"data: {...}\n\n") for n in range(5)]
    one.target = {"upstream": "openai", "dialect": "responses"}
    return one


def store(*conversations: Conversation) -> None:
    for one in conversations:
        Exchange.objects.create(id=one.exchange_id, created=NOW, team="t", key_name="k")
    storage.store(conversations, NOW)


@pytest.mark.django_db
def test_a_stored_conversation_is_read_back_completely() -> None:
    one = conversation(1, 3)
    reads = one.reads

    store(one)

    stored = storage.read(one.exchange_id)
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
def test_responses_of_failed_attempts_are_read_back_and_part_of_the_digest() -> None:
    one, other, different = (conversation(number, 1) for number in (1, 2, 3))
    for each in (one, other):
        body = b"<p>\xff</p>"  # the same page is stored once
        page = Piece(hashlib.sha256(body).digest(), body)
        each.failed = [FailedAttempt(0, "openai", "gpt-5.2", 502, page)]

    other.reads = []

    store(one, other, different)

    stored = storage.read(one.exchange_id)
    assert stored is not None
    assert stored.failed == one.failed
    assert stored.upstream_body == b"data: {...}\n\n" * 5  # of the last attempt
    assert stored.conversation.digest() == one.digest() != different.digest()
    manifests = [unpack(part_codec.decompress(bytes(t.manifest))) for t in Transcript.objects.all()]
    named = set().union(*map(storage.part_ids_in, manifests))
    assert named == set(Part.objects.values_list("pk", flat=True))
    assert ["failed" in manifest for manifest in manifests] == [True, True, False]
    unanswered = storage.read(other.exchange_id)
    assert unanswered is not None
    assert unanswered.upstream_body == b"<p>\xff</p>"


@pytest.mark.django_db
def test_a_turn_adds_only_its_new_messages() -> None:
    store(conversation(1, 1))
    before = Part.objects.count()

    store(*(conversation(turns, turns) for turns in range(2, 21)))

    # Each turn adds a question and an answer; the next request repeats the answer.
    assert Part.objects.count() == before + 19 * 2


@pytest.mark.django_db
def test_storing_again_replaces_the_transcript() -> None:
    store(conversation(1, 2))
    count = Part.objects.count()

    storage.store([conversation(1, 2)], NOW)

    assert Part.objects.count() == count
    assert Transcript.objects.count() == 1


@pytest.mark.django_db
def test_a_flipped_byte_changes_the_digest_or_is_an_error() -> None:
    one = conversation(1, 2)
    store(one)
    generator = random.Random(3)  # noqa: S311 -- test data
    assert Part.objects.exists()
    for part in Part.objects.all():
        whole = bytes(part.data)
        place = generator.randrange(len(whole))
        broken = bytearray(whole)
        broken[place] ^= 0x10
        Part.objects.filter(pk=part.pk).update(data=bytes(broken))

        try:
            stored = storage.read(one.exchange_id)
            assert stored is not None
            assert stored.conversation.digest() != one.digest() or bytes(broken) == whole
        except storage.BrokenTranscript:
            pass
        Part.objects.filter(pk=part.pk).update(data=whole)


def test_manifests_are_small() -> None:
    ids = list(range(5000, 5200))

    packed = msgspec.msgpack.encode(differences(ids))

    assert len(packed) < 250


@pytest.mark.django_db
def test_a_transcript_has_its_prefix_and_updates_the_use_of_its_parts() -> None:
    one = conversation(1, MAX_KEYS // 2 + 1)  # its parts need several queries
    one.upstream_request_sha256 = "5ea1"
    store(one)

    row = Transcript.objects.get()
    manifest = msgspec.msgpack.decode(part_codec.decompress(bytes(row.manifest)))
    assert manifest["v"] == 1
    assert (row.created, bytes(row.prefix)) == (NOW, one.chain[-1])
    assert storage.part_ids_in(manifest) == set(Part.objects.values_list("pk", flat=True))
    assert {part.used for part in Part.objects.all()} == {NOW}
    for part in Part.objects.all():
        text = part_codec.decompress(bytes(part.data))
        assert (part.size, bytes(part.digest)) == (len(text), hashlib.sha256(text).digest())

    for later, used in ((90, 60), (59, 60), (61, 60)):
        storage.store([one], NOW + timedelta(minutes=later))
        assert {part.used for part in Part.objects.all()} == {NOW + timedelta(minutes=used)}
    stored = storage.read(one.exchange_id)
    assert stored is not None
    assert (stored.exchange_id, stored.upstream_request_sha256) == (one.exchange_id, "5ea1")
    assert stored.conversation.created == NOW
    assert storage.read("req_unknown") is None


@pytest.mark.django_db
def test_a_body_that_is_not_json_is_read_back_as_text() -> None:
    one = Conversation.from_body(exchange_id(1), NOW, b"\xff no json")

    store(one)

    row = Transcript.objects.get()
    stored = storage.read(one.exchange_id)
    assert stored is not None
    assert (bytes(row.prefix), row.stream) == (bytes(16), None)
    assert (stored.request, stored.answer) == ({"raw": "\ufffd no json"}, None)
    assert (stored.upstream_reads, stored.target) == ([], {})
    assert (list(stored.failed), stored.upstream_body) == ([], b"")
    assert stored.conversation.digest() == one.digest()
    manifest = msgspec.msgpack.decode(part_codec.decompress(bytes(row.manifest)))
    assert storage.part_ids_in(manifest) == {Part.objects.get().pk}
    assert storage.part_ids_in({ANSWER: 3, "fields": {"tools": 4, "messages": [5, 1]}}) == {
        3, 4, 5, 6
    }  # fmt: skip
    assert storage.part_ids_in({}) == set()


@pytest.mark.django_db
def test_a_response_without_content_is_read_back_without_it() -> None:
    one = conversation(1, 1)
    one.set_answer({"id": "msg", "content": None})
    store(one)

    stored = storage.read(one.exchange_id)

    assert stored is not None
    assert stored.answer == {"id": "msg", "content": None}


@pytest.mark.django_db
def test_a_missing_part_is_an_error() -> None:
    store(conversation(1, 1))
    Part.objects.all().delete()

    with pytest.raises(storage.BrokenTranscript, match="its transcript cannot be read: "):
        storage.read(exchange_id(1))
