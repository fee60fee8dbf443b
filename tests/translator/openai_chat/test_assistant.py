"""Assistant turns of the history, with the blocks that other providers left in them."""

import pytest

from tests.translator.openai_chat.requests import body, fates, sent
from tests.translator.requests import ask, assistant, call, result, text, user
from translator.openai_chat.assistant import ASSISTANT_BLOCKS

SEARCH = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://example.org", "title": "Ex"}],
}
GO_ON = user("Go on.")


def said(*blocks, **overrides):
    """The assistant message that these blocks become."""
    return sent(user("Hi."), assistant(*blocks), GO_ON, **overrides)[1]


def test_text_around_a_call_stands_before_it_and_that_is_told():
    history = (user("Hi."), assistant(text("One."), call(), text("Two.")), user(result("Sun.")))

    assert sent(*history)[1]["content"] == "One.\n\nTwo."
    assert fates(ask(*history)) == {"messages.1.content.2": "emulated"}


def test_blank_text_after_a_call_is_nothing():
    history = (user("Hi."), assistant(call(), text(" ")), user(result("Sun.")))

    assert fates(ask(*history)) == {}


def test_arguments_that_were_broken_json_go_back_as_they_were():
    broken = call() | {"input": "{oops"}
    history = (user("Hi."), assistant(broken), user(result("Sun.")))

    assert sent(*history)[1]["tool_calls"][0]["function"]["arguments"] == "{oops"


def test_arguments_are_written_compactly_with_their_letters():
    history = (user("Hi."), assistant(call(city="Tromsø", n=[1, 2])), user(result("Sun.")))

    function = sent(*history)[1]["tool_calls"][0]["function"]

    assert function["arguments"] == '{"city":"Tromsø","n":[1,2]}'


@pytest.mark.parametrize(
    "kind", [kind for kind, how in ASSISTANT_BLOCKS.items() if how.__name__ == "_omitted"]
)
def test_what_means_nothing_here_is_left_out(kind):
    block = {"type": kind, "id": "x", "name": "web_search", "input": {}}

    assert said(text("Hello."), block) == {"role": "assistant", "content": "Hello."}


def test_results_of_server_tools_are_told_as_text():
    request = ask(user("Hi."), assistant(SEARCH), GO_ON)

    assert "https://example.org" in body(request)["messages"][1]["content"]
    assert fates(request) == {"messages.1.content.0": "emulated"}


def test_a_result_with_nothing_to_tell_adds_nothing():
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}

    failed = SEARCH | {"content": error}
    assert said(text("Hello."), failed)["content"] == "Hello."
    assert fates(ask(user("Hi."), assistant(failed), GO_ON)) == {"messages.1.content.0": "ignored"}


def test_a_turn_of_nothing_but_reasoning_stays_behind_and_that_is_told():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}

    assert fates(ask(user("Hi."), assistant(thought), GO_ON)) == {"messages.1": "ignored"}


def test_the_last_of_two_results_of_one_call_counts_and_that_is_told():
    request = ask(user("Hi."), assistant(call()), user(result("A"), result("B")))

    assert body(request)["messages"][2]["content"] == "B"
    assert fates(request) == {"messages.2.content.1": "repaired"}


def test_a_document_in_an_assistant_turn_is_told_as_text():
    source = {"type": "text", "media_type": "text/plain", "data": "Sun tomorrow."}

    assert "Sun tomorrow." in said({"type": "document", "source": source})["content"]


def test_a_compaction_is_told_as_its_summary_before_the_turn():
    summary = {"type": "compaction", "content": "They said hello."}
    empty = {"type": "compaction", "content": None}

    in_place = sent(user("Hi."), assistant(summary, text("Yes?")), GO_ON, profile="openai")
    hoisted = sent(user("Hi."), assistant(empty, summary, text("Yes?")), GO_ON)

    assert in_place[1] == {"role": "developer", "content": "They said hello."}
    assert hoisted[0] == {"role": "system", "content": "They said hello."}
