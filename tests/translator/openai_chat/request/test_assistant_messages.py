"""Assistant turns of the history, with blocks of other providers."""

import json

from tests.fakes.anthropic_requests import (
    BROKEN_INPUTS,
    assistant,
    call,
    make_request,
    result,
    text,
    user,
)
from tests.for_each import for_each
from tests.translator.openai_chat.requests import body, fates, sent

SEARCH = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://example.org", "title": "Ex"}],
}
GO_ON = user("Go on.")


def assistant_message(*blocks, **overrides):
    """Return the assistant message for these blocks."""
    return sent(user("Hi."), assistant(*blocks), GO_ON, **overrides)[1]


def test_text_around_a_call_moves_before_it_with_a_note():
    history = (user("Hi."), assistant(text("One."), call(), text("Two.")), user(result("Sun.")))

    assert sent(*history)[1]["content"] == "One.\n\nTwo."
    assert fates(make_request(*history)) == {"messages.1.content.2": "emulated"}


def test_blank_text_after_a_call_is_dropped():
    history = (user("Hi."), assistant(call(), text(" ")), user(result("Sun.")))

    assert fates(make_request(*history)) == {}


@for_each(("broken", "whole"), BROKEN_INPUTS)
def test_arguments_that_are_no_object_are_sent_as_one(broken, whole):
    history = (user("Hi."), assistant(call() | {"input": broken}), user(result("Sun.")))

    arguments = sent(*history)[1]["tool_calls"][0]["function"]["arguments"]

    assert json.loads(arguments) == whole
    assert fates(make_request(*history)) == {"messages.1.content.0.input": "repaired"}


def test_arguments_are_compact_json_without_escapes():
    history = (user("Hi."), assistant(call(city="Tromsø", n=[1, 2])), user(result("Sun.")))

    function = sent(*history)[1]["tool_calls"][0]["function"]

    assert function["arguments"] == '{"city":"Tromsø","n":[1,2]}'


@for_each("kind", ["fallback", "mcp_tool_listing", "server_tool_use"])
def test_blocks_without_meaning_for_the_upstream_are_dropped(kind):
    block = {"type": kind, "id": "x", "name": "web_search", "input": {}}

    assert assistant_message(text("Hello."), block) == {"role": "assistant", "content": "Hello."}


def test_server_tool_results_become_text():
    request = make_request(user("Hi."), assistant(SEARCH), GO_ON)

    assert "https://example.org" in body(request)["messages"][1]["content"]
    assert fates(request) == {"messages.1.content.0": "emulated"}


def test_an_empty_server_tool_result_adds_no_text():
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}

    failed = SEARCH | {"content": error}
    assert assistant_message(text("Hello."), failed)["content"] == "Hello."
    assert fates(make_request(user("Hi."), assistant(failed), GO_ON)) == {
        "messages.1.content.0": "ignored"
    }


def test_a_turn_with_only_reasoning_is_dropped_with_a_note():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}

    assert fates(make_request(user("Hi."), assistant(thought), GO_ON)) == {"messages.1": "ignored"}


@for_each(("second", "sent"), [("B", "A\nB"), ("A", "A")])
def test_several_results_of_a_call_are_sent_as_one_with_a_note(second, sent):
    request = make_request(user("Hi."), assistant(call()), user(result("A"), result(second)))

    assert body(request)["messages"][2]["content"] == sent
    assert fates(request) == {"messages.2.content.1": "repaired"}


def test_a_document_in_an_assistant_turn_becomes_text():
    source = {"type": "text", "media_type": "text/plain", "data": "Sun tomorrow."}

    assert "Sun tomorrow." in assistant_message({"type": "document", "source": source})["content"]


def test_a_compaction_becomes_its_summary_before_the_turn():
    summary = {"type": "compaction", "content": "They said hello."}
    empty = {"type": "compaction", "content": None}

    in_place = sent(user("Hi."), assistant(summary, text("Yes?")), GO_ON, profile="openai")
    hoisted = sent(user("Hi."), assistant(empty, summary, text("Yes?")), GO_ON)

    assert in_place[1] == {"role": "developer", "content": "They said hello."}
    assert hoisted[0] == {"role": "system", "content": "They said hello."}
