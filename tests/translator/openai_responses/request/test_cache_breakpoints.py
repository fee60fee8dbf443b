"""Cache breakpoints of the Responses request."""

import pytest

from tests.fakes.anthropic_requests import (
    assistant,
    make_request,
    text,
    user,
)
from tests.for_each import for_each
from tests.translator.openai_responses.requests import body, input_message
from translator.errors import BadRequest

from .strict_types import assert_valid


def breakpoints(request, **overrides):
    parts = [
        part
        for item in body(request, cache_breakpoints=True, **overrides)["input"]
        if isinstance(item.get("content"), list)
        for part in item["content"]
    ]
    return {
        p["text"]: p["prompt_cache_breakpoint"] for p in parts if "prompt_cache_breakpoint" in p
    }


def test_marked_blocks_become_breakpoints():
    short, long = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    request = make_request(
        user(text("A", cache_control=short), text("B", cache_control=long), text("C"))
    )

    assert breakpoints(request) == {
        "A": {"mode": "explicit"},
        "B": {"mode": "explicit", "ttl": "12h"},
    }
    assert_valid(body(request, cache_breakpoints=True))


def test_an_automatic_breakpoint_is_on_the_last_user_content():
    request = make_request(
        user("A"), assistant("B"), user("C", "D"), cache_control={"type": "ephemeral"}
    )
    request["messages"][2] = user(text("C"), text("D"))

    assert breakpoints(request) == {"D": {"mode": "explicit"}}


def test_an_automatic_breakpoint_preserves_the_clients_mark():
    own = text("A", cache_control={"type": "ephemeral", "ttl": "1h"})
    request = make_request(user(own), cache_control={"type": "ephemeral"})

    assert breakpoints(request) == {"A": {"mode": "explicit", "ttl": "12h"}}


def test_an_automatic_breakpoint_needs_user_content():
    request = make_request(user(text(" ")), assistant("B"), cache_control={"type": "ephemeral"})

    assert breakpoints(request) == {}


@for_each("nothing", [" ", ""])
def test_a_conversation_without_text_is_rejected(nothing):
    with pytest.raises(BadRequest, match="must be non-empty") as caught:
        body(make_request(user(text(nothing)), system="Be kind."))

    assert caught.value.path == "messages"


def test_the_latest_four_breakpoints_count():
    marked = [text(name, cache_control={"type": "ephemeral"}) for name in "ABCDEF"]

    assert set(breakpoints(make_request(user(*marked)))) == set("CDEF")


def test_servers_without_breakpoints_see_none():
    marked = text("A", cache_control={"type": "ephemeral"})

    assert body(make_request(user(marked)))["input"] == [input_message("user", "A")]
