"""Carriers: what was minted comes back exactly; nothing else is believed."""

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translator import carrier
from translator.carrier import CarrierKeys, Reasoning

KEYS = CarrierKeys("k2", {"k1": b"old" * 11, "k2": b"new" * 11})
ITEM = Reasoning(
    upstream="openai",
    model="gpt-5.2",
    api="responses",
    item_id="rs_0123",
    encrypted_content="gAAAAA" + "x" * 900,
    part_lengths=(12, 40),
    phase="commentary",
)


def signed_by_us(payload: bytes) -> str:
    sealed = f"brg1.k2.{base64.urlsafe_b64encode(payload).rstrip(b'=').decode()}"
    return f"{sealed}.{carrier._mac(sealed, KEYS.keys['k2'])}"


@given(
    reasoning=st.builds(
        Reasoning,
        upstream=st.text(max_size=9),
        model=st.text(max_size=9),
        api=st.sampled_from(["responses", "chat"]),
        item_id=st.text(max_size=9),
        encrypted_content=st.none() | st.text(min_size=1, max_size=99),
        part_lengths=st.lists(st.integers(0, 999), max_size=4).map(tuple),
        text_is=st.sampled_from(["summary", "content"]),
        phase=st.none() | st.just("final_answer"),
        details=st.none() | st.lists(st.dictionaries(st.text(max_size=3), st.text()), min_size=1),
    )
)
def test_what_was_minted_comes_back_exactly(reasoning):
    assert carrier.unseal(carrier.mint(reasoning, KEYS), KEYS) == reasoning


def test_equal_reasoning_gives_an_equal_signature_since_prompt_caches_need_stability():
    assert carrier.mint(ITEM, KEYS) == carrier.mint(ITEM, KEYS)


def test_a_key_that_no_longer_signs_still_verifies():
    signature = carrier.mint(ITEM, CarrierKeys("k1", KEYS.keys))

    assert carrier.unseal(signature, KEYS) == ITEM


def test_a_signature_travels_in_headers_and_json_unescaped():
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")

    assert set(carrier.mint(ITEM, KEYS)) <= allowed


@pytest.mark.parametrize("position", range(0, 240, 7))
def test_a_carrier_with_one_other_character_is_a_forgery(position):
    signature = carrier.mint(ITEM, KEYS)
    at = position % len(signature)
    forged = signature[:at] + ("B" if signature[at] != "B" else "C") + signature[at + 1 :]

    assert carrier.unseal(forged, KEYS) is None


@pytest.mark.parametrize("length", [0, 4, 5, 7, 8, 40, -1, -22, -23])
def test_a_truncated_carrier_is_not_believed(length):
    assert carrier.unseal(carrier.mint(ITEM, KEYS)[:length], KEYS) is None


@pytest.mark.parametrize(
    "foreign", ["", "ErUBCkYIBhgCIkD", "brg1.k9.e30.AAAA", "brg1.", "a.b.c.d", "brg1.k2.é.ü"]
)
def test_a_foreign_signature_is_not_believed(foreign):
    assert carrier.unseal(foreign, KEYS) is None


def test_a_carrier_of_another_house_is_not_believed():
    elsewhere = CarrierKeys("k2", {"k2": b"another house's key"})

    assert carrier.unseal(carrier.mint(ITEM, elsewhere), KEYS) is None


@pytest.mark.parametrize(
    "payload",
    [b"not zlib", zlib.compress(b"not json"), zlib.compress(b"[1]"), zlib.compress(b'{"v":2}')],
)
def test_a_payload_that_this_version_did_not_write_is_not_believed(payload):
    assert carrier.unseal(signed_by_us(payload), KEYS) is None


def test_a_carrier_that_names_its_vendors_field_as_older_ones_do_is_believed():
    payload = zlib.compress(b'{"v":1,"u":"local","m":"m1","a":"chat","r":"reasoning_content"}')

    reasoning = carrier.unseal(signed_by_us(payload), KEYS)

    assert reasoning == Reasoning(upstream="local", model="m1", api="chat")


def test_a_payload_that_is_not_base64_is_not_believed():
    sealed = "brg1.k2.*"

    assert carrier.unseal(f"{sealed}.{carrier._mac(sealed, KEYS.keys['k2'])}", KEYS) is None


def test_only_the_prefix_tells_whether_a_signature_claims_to_be_ours():
    assert carrier.is_carrier(carrier.mint(ITEM, KEYS))
    assert not carrier.is_carrier("ErUBCkYIBhgCIkD")


def test_the_keys_do_not_appear_in_a_repr():
    assert "new" not in repr(KEYS)
