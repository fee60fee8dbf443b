"""JSON of clients: what is refused, and that all valid objects are accepted."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.http.request_body import DEPTH_BYTES, decode_object, depth_at_start
from tests.for_each import for_each
from translator.errors import BadRequest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=6)


@given(
    OBJECTS,
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
    st.sampled_from([None, (",", ":")]),  # compact like the encoder, or spaced
)
def test_a_valid_object_decodes_as_by_the_json_module(value, ascii_only, indent, separators):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return  # an unpaired surrogate cannot be encoded

    if "\\ud" in text:
        return  # an escaped one is refused by the decoder

    assert decode_object(body) == value


@given(OBJECTS.filter(bool), st.data())
def test_a_duplicate_key_is_refused_at_any_place(value, data):
    duplicate = data.draw(st.sampled_from(sorted(value)))
    pairs = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
    place = data.draw(st.integers(0, len(pairs)))
    pairs.insert(place, f"{json.dumps(duplicate)} : null")
    inner = "{" + ", ".join(pairs) + "}"

    for text in (inner, f'{{"a": [{inner}]}}'):
        with pytest.raises(BadRequest):
            decode_object(text.encode())


def test_a_duplicate_key_among_100000_is_found_in_one_pass():
    """One pass for each name would take minutes."""
    names = ", ".join(f'"{number}": 0' for number in range(100_000))

    with pytest.raises(BadRequest, match="'last' is written twice"):
        decode_object(f'{{{names}, "last": 0, "last": 1}}'.encode())


@for_each(
    ("body", "depth"),
    [
        (b"{}", 1), (b'{"a": [[], {}]}', 3), (b'{"[[": "{{\\"[[", "b": "\\\\"}', 1),
        (b"[" * 1_000_000, DEPTH_BYTES), (b"[" * 500, 500), (b"[]" * 500, 1),
    ],
)  # fmt: skip
def test_the_nesting_depth_at_the_start_of_a_body_is_measured(body, depth):
    assert depth_at_start(body) == depth


def test_an_escaped_quote_does_not_hide_a_duplicate_key():
    with pytest.raises(BadRequest, match="'k' is written twice"):
        decode_object(b'{"k": "\\u0022\\u0022", "k": 1}')


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_an_object_or_are_refused(body):
    with contextlib.suppress(BadRequest):
        assert isinstance(decode_object(body), dict)


@for_each(("levels", "valid"), [(99, True), (100, False), (300, False)])
@for_each("innermost", ["[]", "{}", "[1]", '{"a":1}'])
@for_each(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('{"b":{},"a":', "}")])
def test_the_depth_is_counted_from_the_object(levels, valid, innermost, begin, end):
    inside = begin * (levels - 1) + innermost + end * (levels - 1)
    body = f'{{"a":{inside}}}'.encode()

    if valid:
        assert decode_object(body)
    else:
        with pytest.raises(BadRequest, match="100 levels"):
            decode_object(body)
