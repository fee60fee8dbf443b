"""A second response in the stream of the first, and responses of reasoning alone."""

from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    added,
    arguments,
    call,
    completed,
    created,
    done,
    incomplete,
    output_message,
    reasoning,
    stream,
    text,
)
from translator.message_stream.events_to_message import fold
from translator.message_stream.message_composer import REASONING_AS_TEXT
from translator.message_stream.response_stream import FIRST_DROPPED, SPLICED

STARTED = [created(id="resp_1"), added(0, **output_message()), text("one")]
SECOND = [
    created(id="resp_2", model="m2"),
    added(0, **output_message()),
    text("two"),
    completed(output_message("two")),
]


@for_each(
    ("events", "is_spliced"),
    [
        ([*STARTED, *SECOND], True),
        ([*STARTED, {**SECOND[0], "type": "response.in_progress"}, *SECOND[1:]], True),
        (
            [
                created(id="resp_1"),
                {**SECOND[0], "type": "response.in_progress"},
                *STARTED[1:],
                completed(),
            ],
            False,
        ),
        ([created(id="resp_1"), *SECOND], False),  # nothing came of the first
        ([*STARTED, created(id="resp_1"), text(" two"), completed()], False),
        ([*STARTED, created(), text(" two"), completed()], False),  # without an id
        ([*STARTED, text(" two"), completed(id="resp_3")], False),  # servers with varying ids
    ],
)
def test_another_response_after_content_is_a_second_one(events, is_spliced):
    machine = stream()
    sent = machine.feed(*events)

    assert (machine.error is SPLICED) == is_spliced
    assert (sent[-1]["type"] == "error") == is_spliced


def test_a_whole_answer_is_the_second_response_alone():
    machine = stream(whole=True)
    cut = [added(1, **call()), arguments('{"a":', 1)]

    message = fold([e for event in (*STARTED, *cut, *SECOND) for e in machine.feed(event)])

    assert [block["text"] for block in message["content"]] == ["two"]
    assert message["stop_reason"] == "end_turn"
    assert (machine.upstream_id, machine.upstream_model) == ("resp_2", "m2")
    assert FIRST_DROPPED in machine.notes
    assert machine.error is None


THOUGHT = reasoning(content=[{"type": "reasoning_text", "text": " It is 4. "}])
SUMMARY = reasoning("It is 4.")


@for_each(
    ("events", "content"),
    [
        ([done(0, **THOUGHT), completed(THOUGHT)], ["It is 4."]),
        ([completed(THOUGHT)], ["It is 4."]),
        ([completed(SUMMARY)], ["It is 4."]),
        ([completed(THOUGHT, output_message(" "))], ["It is 4."]),
        ([completed(THOUGHT, output_message("4"))], ["4"]),
        ([incomplete("max_output_tokens", THOUGHT)], []),
        ([completed(reasoning(content=[{"type": "reasoning_text", "text": "\n"}]))], []),
    ],
)
def test_a_response_of_reasoning_alone_is_shown_to_a_client_without_thinking(events, content):
    machine = stream(thinking="hidden")
    message = fold(machine.feed(created(), *events))

    assert [block["text"] for block in message["content"]] == content
    assert (REASONING_AS_TEXT in machine.notes) == (content == ["It is 4."])
