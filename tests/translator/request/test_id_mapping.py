import re

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.dialect import TranslationTarget
from translator.message_stream.response_stream import message_id
from translator.request.id_mapping import (
    ENCODED,
    carried_fields,
    client_call_id,
    upstream_call_id,
    upstream_name,
)

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
CLIENT_LEGAL = re.compile(r"[A-Za-z0-9_-]+")
HERE = TranslationTarget(upstream="local", model="m")
ELSEWHERE = TranslationTarget(upstream="other", model="m")
ANY = st.text(max_size=200) | st.text(alphabet="ab._-", min_size=60, max_size=70)


@given(name=ANY)
def test_name_mapping_is_idempotent(name):
    made = upstream_name(name)

    assert LEGAL.fullmatch(made)
    assert upstream_name(made) == made
    assert (made == name) == bool(LEGAL.fullmatch(name))


@given(one=ANY, other=ANY)
def test_different_names_stay_different(one, other):
    assert (upstream_name(one) == upstream_name(other)) == (one == other)


@given(ids=st.lists(ANY, max_size=12))
def test_ids_for_clients_are_legal_and_unique(ids):
    taken: list[str] = []
    for each in ids:
        taken.append(client_call_id(each, taken, HERE).id)

    assert len(set(taken)) == len(ids)
    assert all(CLIENT_LEGAL.fullmatch(each) for each in taken)


@given(id_=ANY.filter(bool), fields=st.dictionaries(st.text(max_size=9), st.text(max_size=99)))
def test_an_id_returns_unchanged_to_its_upstream_and_valid_to_others(id_, fields):
    made = client_call_id(id_, (), HERE, fields).id

    assert upstream_call_id(made, HERE) == id_
    assert carried_fields(made, HERE) == fields
    assert LEGAL.fullmatch(upstream_call_id(made, ELSEWHERE))
    assert carried_fields(made, ELSEWHERE) == {}


def test_an_ordinary_id_that_a_client_may_not_accept_stays_short():
    assert len(client_call_id("functions.get_weather:0", (), HERE).id) <= 64


@for_each("content", ["", "!", "x", "WzFd", "eyJ9", "W1tbW1tb", "W10", "eNo" * 99])
def test_an_encoded_id_that_a_client_changed_becomes_a_valid_id(content):
    start = client_call_id("a:1", (), HERE).id[: len(ENCODED) + 9]

    assert LEGAL.fullmatch(upstream_call_id(start + content, HERE))
    assert carried_fields(start + content, HERE) == {}


def test_a_long_name_preserves_its_prefix():
    name = "mcp__" + "x" * 80

    assert upstream_name(name) == f"{name[:55]}_{upstream_name(name)[-8:]}"


def test_a_call_and_its_output_are_clamped_alike():
    shortened = upstream_call_id("call.1", HERE)

    assert shortened == upstream_call_id("call.1", HERE) != upstream_call_id("call_1", HERE)


@for_each(
    ("id_", "taken", "given_"),
    [("call_1", [], "call_1"), ("call_1", ["call_1"], "call_1_2"), ("", [], "toolu")],
)
def test_valid_ids_are_preserved(id_, taken, given_):
    assert client_call_id(id_, taken, HERE) == (given_, None)


def test_a_taken_id_of_full_length_stays_within_the_limit():
    assert client_call_id("x" * 64, {"x" * 64}, HERE).id == "x" * 62 + "_2"


def test_message_ids_look_like_anthropic_s_and_do_not_change():
    assert re.fullmatch(r"msg_[0-9a-f]{24}", message_id("resp_1"))
    assert message_id("resp_1") == message_id("resp_1") != message_id("resp_2")
    assert message_id("\ud83d")
