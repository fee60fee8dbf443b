"""What the builders of a request share, in both dialects."""

import pytest

from translator.dialect import Target
from translator.openai_chat import request as chat
from translator.openai_responses import request as responses

SMALLEST = {
    "model": "claude-bridge",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hello."}],
}


@pytest.mark.parametrize("tables", [chat, responses])
def test_a_field_that_is_null_or_empty_is_as_good_as_none(tables):
    nulls = SMALLEST | dict.fromkeys(tables.BUILT.keys() - SMALLEST.keys())
    smallest = tables.build_request(SMALLEST, Target())

    null = tables.build_request(nulls, Target())
    empty = tables.build_request(nulls | {"stop_sequences": []}, Target())
    uncounted = tables.build_request(nulls | {"max_tokens": None}, Target())

    assert (null.body, null.notes) == (empty.body, empty.notes) == (smallest.body, ())
    assert uncounted.body == {n: v for n, v in null.body.items() if not n.startswith("max_")}


@pytest.mark.parametrize("tables", [chat, responses])
def test_each_builder_is_called_once_and_in_the_order_of_its_table(tables):
    builders = [build for build, _ in tables.BUILDERS]

    assert builders == list(dict.fromkeys(tables.BUILT.values()))
    for build, names in tables.BUILDERS:
        assert {n for n, each in tables.BUILT.items() if each is build} <= {*names}
