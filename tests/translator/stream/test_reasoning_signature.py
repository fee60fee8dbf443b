"""A signed carrier verifies to its exact content; any other text is rejected."""

import base64
import zlib

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.stream import reasoning_signature
from translator.stream.reasoning_signature import SignedReasoning, SigningKeys

KEYS = SigningKeys("k2", {"k1": b"old" * 11, "k2": b"new" * 11})
ITEM = SignedReasoning(
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
    return f"{sealed}.{reasoning_signature.mac_of(sealed, KEYS.keys['k2'])}"


@given(
    reasoning=st.builds(
        SignedReasoning,
        upstream=st.text(max_size=9),
        model=st.text(max_size=9),
        api=st.sampled_from(["responses", "chat"]),
        item_id=st.text(max_size=9),
        encrypted_content=st.none() | st.text(min_size=1, max_size=99),
        part_lengths=st.lists(st.integers(0, 999), max_size=4).map(tuple),
        text_kind=st.sampled_from(["summary", "content"]),
        phase=st.none() | st.just("final_answer"),
        details=st.none() | st.lists(st.dictionaries(st.text(max_size=3), st.text()), min_size=1),
    )
)
def test_a_signed_carrier_verifies_to_the_same_content(reasoning):
    assert reasoning_signature.verify(reasoning_signature.sign(reasoning, KEYS), KEYS) == reasoning


def test_equal_reasoning_gives_an_equal_signature_since_prompt_caches_need_stability():
    assert reasoning_signature.sign(ITEM, KEYS) == reasoning_signature.sign(ITEM, KEYS)


def test_a_key_that_no_longer_signs_still_verifies():
    signature = reasoning_signature.sign(ITEM, SigningKeys("k1", KEYS.keys))

    assert reasoning_signature.verify(signature, KEYS) == ITEM


def test_a_signature_travels_in_headers_and_json_unescaped():
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")

    assert set(reasoning_signature.sign(ITEM, KEYS)) <= allowed


@for_each("position", range(0, 240, 7))
def test_a_carrier_with_one_other_character_is_a_forgery(position):
    signature = reasoning_signature.sign(ITEM, KEYS)
    at = position % len(signature)
    forged = signature[:at] + ("B" if signature[at] != "B" else "C") + signature[at + 1 :]

    assert reasoning_signature.verify(forged, KEYS) is None


@for_each("length", [0, 4, 5, 7, 8, 40, -1, -22, -23])
def test_a_truncated_carrier_is_rejected(length):
    assert reasoning_signature.verify(reasoning_signature.sign(ITEM, KEYS)[:length], KEYS) is None


@for_each("foreign", ["", "ErUBCkYIBhgCIkD", "brg1.k9.e30.AAAA", "brg1.", "a.b.c.d", "brg1.k2.é.ü"])
def test_a_foreign_signature_is_rejected(foreign):
    assert reasoning_signature.verify(foreign, KEYS) is None


def test_a_carrier_of_another_installation_is_rejected():
    elsewhere = SigningKeys("k2", {"k2": b"another house's key"})

    assert reasoning_signature.verify(reasoning_signature.sign(ITEM, elsewhere), KEYS) is None


@for_each(
    "payload",
    [b"not zlib", zlib.compress(b"not json"), zlib.compress(b"[1]"), zlib.compress(b'{"v":2}')],
)
def test_an_unknown_payload_version_is_rejected(payload):
    assert reasoning_signature.verify(signed_by_us(payload), KEYS) is None


def test_a_carrier_that_names_its_vendors_field_as_older_ones_do_is_believed():
    payload = zlib.compress(b'{"v":1,"u":"local","m":"m1","a":"chat","r":"reasoning_content"}')

    reasoning = reasoning_signature.verify(signed_by_us(payload), KEYS)

    assert reasoning == SignedReasoning(upstream="local", model="m1", api="chat")


def test_a_payload_that_is_not_base64_is_rejected():
    sealed = "brg1.k2.*"

    assert (
        reasoning_signature.verify(
            f"{sealed}.{reasoning_signature.mac_of(sealed, KEYS.keys['k2'])}", KEYS
        )
        is None
    )


def test_the_prefix_marks_a_gateway_signature():
    assert reasoning_signature.is_own_signature(reasoning_signature.sign(ITEM, KEYS))
    assert not reasoning_signature.is_own_signature("ErUBCkYIBhgCIkD")


def test_the_keys_do_not_appear_in_a_repr():
    assert "new" not in repr(KEYS)
