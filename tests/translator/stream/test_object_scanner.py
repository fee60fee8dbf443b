import json

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.stream.tool_arguments import MAX_DEPTH, ObjectScanner

TEXTS = st.dictionaries(st.text('a{}"\\[]', max_size=4), st.text('b{}"\\', max_size=6), max_size=4)


def end_of(text, cuts):
    """Return where the object ends in ``text``, fed in pieces; None if it does not end."""
    scanner, at = ObjectScanner(), 0
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        at += scanner.feed(text[start:end])
    return at if scanner.ended else None


@given(value=TEXTS, behind=st.text('}{" x\\', max_size=5), data=st.data())
def test_the_end_of_an_object_is_found_however_it_is_cut(value, behind, data):
    text = json.dumps(value)
    whole = f" {text}{behind}"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))

    assert end_of(whole, cuts) == 1 + len(text)
    assert end_of(text[:-1], []) is None


@for_each("text", ["", " ", "[{}]", '"{}"', "```{}", '{"a":' * (MAX_DEPTH + 1) + "}" * 999])
def test_other_texts_and_deep_nesting_do_not_end(text):
    assert end_of(text, []) is None
    assert end_of(text, range(len(text))) is None
