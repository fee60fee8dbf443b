"""Features of request and response: local responses, source paths, returned compactions."""

import dataclasses

from tests.fakes.anthropic_requests import assistant, call, make_request, result, text, user
from tests.translator.openai_responses.requests import build, fates, input_message, sent, target
from translator.message_stream.events_to_message import fold
from translator.openai_responses import DIALECT, ResponsesStream

from .responses import completed, created, incomplete, message, notes, output_message
from .responses import text as delta


def test_a_request_for_zero_tokens_is_answered_locally_without_cache_support():
    built = build(make_request(max_tokens=0))

    reply = fold(ResponsesStream(built.response_context).feed_body(built.local_response))

    assert (reply["content"], reply["stop_reason"]) == ([], "max_tokens")
    assert (reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]) == (0, 0)
    assert fates(make_request(max_tokens=0)) == {"max_tokens": "emulated"}
    assert build(make_request(max_tokens=0), prewarm=True).local_response is None
    assert build(make_request(max_tokens=1)).local_response is None


def test_each_input_item_has_its_source_path():
    marked = {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}
    history = [user("a"), assistant(call()), user(result("sunny"), text("b")), assistant("c")]

    built = build(make_request(*history, system=[marked]))

    assert [i.get("role", i["type"]) for i in built.body["input"]] == [
        "developer", "user", "function_call", "function_call_output", "user", "assistant",
        "developer",
    ]  # fmt: skip
    assert [one.path for one in built.origins] == [
        "system", "messages.0", "messages.1.content.0.tool_use",
        "messages.2.content.0.tool_result", "messages.2", "messages.3", "",
    ]  # fmt: skip
    assert built.origins[4].parts == ("messages.2.content.1.text",)


COMPACT = {"edits": [{"type": "compact_20260112"}]}


def test_a_compaction_returns_only_to_its_upstream():
    built = build(make_request(context_management=COMPACT), compaction=True)
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}

    (block,) = fold(
        ResponsesStream(built.response_context).feed_body({"status": "completed", "output": [item]})
    )["content"]

    assert (block["type"], block["content"]) == ("compaction", None)
    assert sent(user("a"), assistant(block), user("b"))[1] == item
    forged = {**block, "encrypted_content": block["encrypted_content"][:-4] + "AAAA"}
    reply = {**forged, "content": "They said a."}
    assert [i.get("role") for i in sent(user("a"), assistant(forged), user("b"))] == ["user"] * 2
    assert sent(user("a"), assistant(reply), user("b"))[1] == input_message(
        "developer", "They said a."
    )


def test_a_compaction_without_id_keys_or_request_is_dropped():
    with_compaction, plain = make_request(context_management=COMPACT), make_request()
    item = {"type": "compaction", "encrypted_content": "gAAA"}
    whole = {"status": "completed", "output": [item]}

    def blocks_of(request, **fields):
        answer = build(request, compaction=True).response_context
        answer = dataclasses.replace(answer, target=target(**fields))
        return fold(ResponsesStream(answer).feed_body(whole))["content"]

    (block,) = blocks_of(with_compaction)
    assert sent(user("a"), assistant(block), user("b"))[1] == item
    assert blocks_of(with_compaction, keys=None) == []
    assert blocks_of(plain) == []
    unsigned = DIALECT.build_request(
        make_request(user("a"), assistant(block), user("b")), target(keys=None)
    )
    assert [item["role"] for item in unsigned.body["input"]] == ["user", "user"]


def test_a_repeated_loss_is_noted_once():
    unknown_item = {"type": "hologram", "id": "h_1"}
    stream = ResponsesStream(build(make_request()).response_context)

    stream.feed_body(
        {"status": "completed", "output": [unknown_item, {**unknown_item, "id": "h_2"}]}
    )

    assert [note.reason for note in stream.notes if note.path == "content"] == [
        "an output item of type 'hologram' has no block"
    ]


def test_a_completed_empty_response_is_noted():
    def unknown_item(*events):
        return [each for each in notes(*events) if each.startswith("empty_output")]

    assert message(created(), completed())["content"] == []
    assert len(unknown_item(created(), completed())) == 1
    assert unknown_item(created(), completed(output_message("Hi."))) == []
    assert unknown_item(created(), delta("Hi."), completed()) == []
    assert unknown_item(created(), incomplete("max_output_tokens")) == []
