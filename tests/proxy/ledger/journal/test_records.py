"""What a record carries, it carries through the journal; what MessagePack refuses becomes text."""

from proxy.ledger.journal.records import (
    Chunk,
    CloseRecord,
    OpenRecord,
    decode,
    encode,
    to_msgpack_safe,
)
from tests.for_each import for_each
from tests.proxy.ledger.factories import closing, opening


@for_each("record", [opening(), Chunk(id="req_1", reads=[(0.5, b"x")]), closing()])
def test_record_encoded_and_decoded_is_equal(record: OpenRecord | Chunk | CloseRecord) -> None:
    assert decode(encode(record)) == record


@for_each(
    ("value", "stored"),
    [
        (2**64 - 1, 2**64 - 1),
        (2**64, "18446744073709551616"),
        (-(2**63), -(2**63)),
        (-(2**63) - 1, "-9223372036854775809"),
        (-127, -127),
        ({"a": ("\ud800é", [2**70])}, {"a": ["\\ud800é", [str(2**70)]]}),
        ({"\ud800": None}, {"\\ud800": None}),
        (b"bytes", b"bytes"),
        (1.5, 1.5),
    ],
)
def test_value_that_messagepack_refuses_is_stored_as_text(value: object, stored: object) -> None:
    assert to_msgpack_safe(value) == stored
    record = closing(answer={"content": 2**70, "input": value})
    assert decode(encode(record)).answer == {"content": str(2**70), "input": stored}
