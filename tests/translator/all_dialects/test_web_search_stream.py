"""Several upstream responses as one legal Anthropic stream."""

from tests.fakes.upstreams.grammar import faults_of_events
from translator.anthropic.usage import Usage, add_usage
from translator.dialect import ResponseContext, UpstreamError
from translator.message_stream.events_to_message import fold
from translator.openai_chat.stream.chat_stream import ChatStream
from translator.web_search.stream import WebSearchStream

CONTEXT = ResponseContext(message_id="msg_1", model="m")
USAGE = {"prompt_tokens": 10, "completion_tokens": 4}


def chunk(finish: str | None = None, **delta) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(name: str, arguments: str, index: int = 0) -> dict:
    function = {"name": name, "arguments": arguments}
    return chunk(tool_calls=[{"index": index, "id": f"c{index}", "function": function}])


def respond(stream: WebSearchStream, *chunks: dict, finish: str = "tool_calls") -> list[dict]:
    stream.continue_with(ChatStream(stream._context))
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
