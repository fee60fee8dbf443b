"""Several upstream responses as one legal Anthropic stream."""

from tests.fakes.upstreams.grammar import faults_of_events
from translator import openai_responses
from translator.anthropic.usage import Iteration, Usage, add_usage, billed_usage
from translator.dialect import ResponseContext, UpstreamError
from translator.message_stream.events_to_message import fold
from translator.openai_chat.chat_stream import ChatStream
from translator.web_search.stream import WebSearchStream

CONTEXT = ResponseContext(message_id="msg_1", model="m")
USAGE = {"prompt_tokens": 10, "completion_tokens": 4}


def chunk(finish: str | None = None, **delta) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(name: str, arguments: str, index: int = 0) -> dict:
    function = {"name": name, "arguments": arguments}
    return chunk(tool_calls=[{"index": index, "id": f"c{index}", "function": function}])


def respond(stream: WebSearchStream, *chunks: dict, finish: str = "tool_calls") -> list[dict]:
    stream.continue_with(ChatStream(stream.context))
    usage = {"choices": [], "usage": USAGE}
    return stream.feed(*chunks, chunk(finish), usage) + stream.end()


def test_a_search_with_two_responses_is_one_legal_stream():
    stream = WebSearchStream(ResponseContext(finished_blocks=True), "web_search")

    events = respond(stream, chunk(content="a"), call("web_search", '{"query":"x"}'))
    assert (stream.response_finished, stream.finished) == (True, False)
    (search,) = stream.searches
    assert search == ("srvtoolu_c0", "x")
    events += stream.add_result(search, [])
    events += respond(stream, chunk(content="b"), finish="stop")

    assert stream.finished
    assert faults_of_events(events, extras=True) == []
    message = fold(events)
    assert [block["type"] for block in message["content"]] == [
        "text", "server_tool_use", "web_search_tool_result", "text",
    ]  # fmt: skip
    assert message["usage"]["output_tokens"] == 8
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 1
    stops = [e["content_block"] for e in events if e["type"] == "content_block_stop"]
    assert stops == message["content"]


def test_the_output_limit_ends_the_message_without_a_search():
    stream = WebSearchStream(CONTEXT, "web_search")

    events = respond(stream, call("web_search", '{"query'), finish="length")

    assert stream.finished
    assert stream.stop_reason == "max_tokens"
    assert faults_of_events(events, raw_tool_input=True) == []


def test_a_failure_between_two_responses_is_an_error_event():
    stream = WebSearchStream(CONTEXT, "web_search")
    events = respond(stream, call("web_search", '{"query":"x"}'))
    failure = UpstreamError(status=503, error_type="overloaded_error", message="busy")

    events += stream.fail(failure)

    assert events[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    assert (stream.finished, stream.error, stream.fail(failure)) == (True, failure, [])


def test_calls_of_the_client_end_the_message_after_the_results():
    stream = WebSearchStream(CONTEXT, "web_search")
    both = call("web_search", '{"query":"x"}'), call("f", "{}", index=1)
    events = respond(stream, *both)
    (search,) = stream.searches

    events += stream.add_result(search, [])
    events += stream.end_message()

    assert (stream.has_client_calls, stream.finished) == (True, True)
    assert faults_of_events(events) == []
    message = fold(events)
    assert [block["type"] for block in message["content"]] == [
        "server_tool_use", "tool_use", "web_search_tool_result",
    ]  # fmt: skip
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 1


def test_whole_responses_are_one_legal_stream():
    stream = WebSearchStream(CONTEXT, "web_search")
    function = {"name": "web_search", "arguments": '{"query":"x"}'}
    calling = {"tool_calls": [{"id": "c0", "function": function}]}
    bodies = [
        {"choices": [{"message": message, "finish_reason": finish}], "usage": USAGE}
        for message, finish in [(calling, "tool_calls"), ({"content": "b"}, "stop")]
    ]

    stream.continue_with(ChatStream(CONTEXT))
    events = stream.feed_body(bodies[0])
    events += stream.add_result(stream.searches[0], [])
    stream.continue_with(ChatStream(CONTEXT))
    events += stream.feed_body(bodies[1])

    assert stream.finished
    assert faults_of_events(events) == []
    assert fold(events)["usage"]["output_tokens"] == 8


def test_text_deltas_after_a_search_extend_the_block_of_their_response():
    stream = WebSearchStream(CONTEXT, "web_search")
    events = respond(stream, call("web_search", '{"query":"x"}'))
    events += stream.add_result(stream.searches[0], [])
    stream.continue_with(ChatStream(CONTEXT))
    assert not stream.started
    events += stream.feed(chunk(content="b"))
    assert stream.started

    events += stream.feed_text(("", 0, 0), "c")
    events += stream.feed(chunk("stop")) + stream.end()

    assert faults_of_events(events) == []
    assert fold(events)["content"][-1] == {"type": "text", "text": "bc", "citations": None}


def test_a_ping_of_a_response_goes_to_the_client():
    stream = WebSearchStream(CONTEXT, "web_search")
    stream.continue_with(openai_responses.DIALECT.stream(CONTEXT))

    events = stream.feed(
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.web_search_call.searching", "item_id": "s"},
    )

    assert [event["type"] for event in events] == ["message_start", "ping"]


def test_a_response_that_breaks_off_after_a_search_ends_the_stream_with_an_error():
    stream = WebSearchStream(ResponseContext(input_estimate=20), "web_search")
    events = respond(stream, call("web_search", '{"query":"x"}'))
    events += stream.add_result(stream.searches[0], [{"encrypted_content": "x" * 9_000}])
    stream.continue_with(ChatStream(CONTEXT))
    failure = UpstreamError(status=504, error_type="timeout_error", message="late")

    events += stream.feed(chunk(content="12345")) + stream.fail(failure)

    assert faults_of_events(events) == []
    assert events[-1]["error"] == {"type": "timeout_error", "message": "late"}
    assert (stream.finished, stream.error) == (True, failure)
    usage = stream.usage
    assert (usage.input, usage.output, usage.web_searches) == (10 + 20, 4 + 2, 1)
    assert usage.source == "estimated"


def test_a_response_that_fails_before_it_starts_adds_only_the_usage_that_it_reports():
    stream = WebSearchStream(CONTEXT, "web_search")
    respond(stream, call("web_search", '{"query":"x"}'))
    stream.continue_with(ChatStream(CONTEXT))
    assert stream.usage.input == 10

    (event,) = stream.feed({"error": {"message": "busy", "code": 503}, "usage": USAGE})

    assert event["type"] == "error"
    assert (stream.usage.input, stream.usage.source) == (20, "reported")


def test_notes_and_unknown_events_of_all_responses_are_kept():
    stream = WebSearchStream(CONTEXT, "web_search")
    first = {**call("web_search", '{"query":"x"}'), "citations": ["https://a.example"]}

    respond(stream, first, chunk(surprise=1))
    respond(stream, chunk(content="b"), chunk(surprise=1), finish="stop")

    assert [note.path for note in stream.notes] == ["citations"]
    assert stream.unknown == {"delta.surprise": 2}


def test_usage_is_unknown_only_where_no_response_reported_it():
    one = Usage(input=1, output=2, cache_read=3, source="reported")

    both = add_usage(one, Usage(input=1, output=1, source="reported", service_tier="standard"))
    assert (both.input, both.output, both.cache_read, both.reasoning) == (2, 3, 3, None)
    assert (both.source, both.service_tier) == ("reported", "standard")
    assert add_usage(one, Usage(source="estimated")).source == "estimated"
    assert add_usage(Usage(), one).source == "missing"


def test_the_iterations_of_several_responses_are_joined():
    compaction, sampling = (
        Iteration(type="compaction", input=90),
        Iteration(type="message", input=5, output=2),
    )
    one = Usage(input=5, output=2, source="reported", iterations=(compaction, sampling))
    plain = Usage(input=7, output=1, cache_read=4, source="reported")

    both = add_usage(one, plain)

    later = Iteration(type="message", input=7, output=1, cache_read=4)
    assert both.iterations == (compaction, sampling, later)
    assert add_usage(plain, one).iterations == (later, compaction, sampling)
    assert add_usage(one, Usage(web_searches=1)).iterations == one.iterations
    assert add_usage(plain, plain).iterations == ()
    assert billed_usage(both).input == 102
