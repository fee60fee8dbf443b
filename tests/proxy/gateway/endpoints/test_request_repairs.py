"""Requests that an upstream rejects are repaired and sent again, through the running gateway."""

from proxy.gateway.upstream.attempt import MAX_REPAIRS
from proxy.gateway.upstream.model_memory import memory
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Send,
    Sleep,
    chunk,
    head,
    json_response,
    stream,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient

OVERFLOW = (
    "This model's maximum context length is 40960 tokens. However, you requested 146000 tokens"
    " (18000 in the messages, 128000 in the completion)."
)
QUOTA = (
    "Request too large for model `m` on tokens per minute (TPM): Limit 40976, Requested 146000,"
    " please reduce your message size and try again."
)
CLAMPED = {"path": "max_tokens", "fate": "clamped"}


def refusal(text: str, status: int = 400):
    return json_response({"error": {"message": text, "type": "BadRequestError"}}, status)


def error_event(text: str):
    """Return a response with status 200 whose first event is an error, as SGLang and TGI send."""
    body = {"error": {"message": text, "http_status_code": 422, "type": "BadRequestError"}}
    return stream(upstream_scripts.sse(body))


WORDS = b"unknown field `stream_options`, expected `model` or `messages`"
PLAIN = [head(422, {"content-length": str(len(WORDS))}), Send(WORDS)]
BEGUN = [
    stream_head(),
    chunk(upstream_scripts.chat_chunk({"role": "assistant", "content": ""})),
    Sleep(0.2),  # so that the gateway may read the start alone
    chunk(upstream_scripts.sse({"error": {"message": "Unknown parameter: 'stream_options'."}})),
    LAST_CHUNK,
]


@for_each("streaming", [True, False])
@for_each(
    ("name", "script"),
    [("plain-text", PLAIN), ("after-the-start", BEGUN)],
)
def test_a_refusal_is_read_from_plain_text_and_after_a_stream_s_start(
    gateway: GatewayClient, scripted: ScriptedUpstream, name, script, streaming
):
    model = f"chat-refused-{name}-{streaming}".lower()
    scripted.on(model, script, upstream_scripts.chat())

    reply = gateway.post(message(model, stream=streaming))

    assert reply.status == 200
    assert (reply.body.count(b"message_start"), reply.body.count(b"Hello")) == (
        (2, 1) if streaming else (0, 1)  # an event's name, and its type
    )
    assert "stream_options" not in scripted.requests_for(model)[1].json


@for_each("streaming", [True, False])
@for_each(
    ("name", "script"),
    [
        ("status-400", refusal(OVERFLOW)),
        ("status-500", refusal(OVERFLOW, 500)),
        ("error-event", error_event(OVERFLOW)),
        ("quota-413", refusal(QUOTA, 413)),
        ("quota-429", refusal(QUOTA, 429)),
    ],
)
def test_output_that_does_not_fit_the_window_is_clamped_and_requested_again(
    gateway: GatewayClient, scripted: ScriptedUpstream, name, script, streaming
):
    model = f"chat-window-{name}-{streaming}".lower()
    scripted.on(model, script, upstream_scripts.chat())

    reply = gateway.post(message(model, max_tokens=128_000, stream=streaming))

    assert reply.status == 200
    assert b"Hello" in reply.body
    first, second = scripted.requests_for(model)
    assert first.json["max_tokens"] == 128_000
    assert second.json == {**first.json, "max_tokens": 22_960}
    exchange = row(reply.id, outcome="completed", status=200)
    assert CLAMPED.items() <= exchange.notes[-1].items()
    assert len(exchange.attempts) == 2


def test_a_prompt_whose_length_is_unknown_is_repaired_in_steps(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on(
        "chat-window-steps",
        refusal("max_tokens=128000 cannot be greater than max_model_len=16384."),
        refusal(
            "This model's maximum context length is 16384 tokens. However, your prompt contains at"
            " least 73 input tokens. Please reduce the number of requested output tokens."
        ),
        upstream_scripts.chat(),
    )

    reply = gateway.post(message("chat-window-steps", max_tokens=128_000))

    sent = [each.json["max_tokens"] for each in scripted.requests_for("chat-window-steps")]
    assert reply.status == 200
    assert sent[0] == 128_000
    assert 16_000 < sent[1] < 16_384
    assert sent[2:] == [1_024]


def test_a_strict_client_receives_the_counts_to_request_less(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-window-strict", refusal(OVERFLOW))

    reply = gateway.post(message("chat-window-strict", max_tokens=128_000), x_bridge_strict="true")

    assert reply.status == 400
    assert reply.json["error"]["message"] == (
        "input length and `max_tokens` exceed context limit: 18000 + 128000 > 40960, decrease input"
        " length or `max_tokens` and try again"
    )
    assert len(scripted.requests_for("chat-window-strict")) == 1


def test_an_error_event_about_the_prompt_is_a_400_before_the_first_byte(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    text = "The number of tokens to keep from the initial prompt is greater than the context length"
    body = {"error": {"message": text}, "message": text}
    scripted.on("chat-window-keep", stream(upstream_scripts.sse(body, "error")))

    reply = gateway.post(message("chat-window-keep", stream=True))

    assert (reply.status, reply.headers["x-should-retry"]) == (400, "false")
    assert reply.json["error"]["message"] == f"prompt is too long: {text}"


def test_a_request_is_repaired_a_few_times_at_most(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    model = "chat-repairs-bound"
    rooms = (f"max_tokens must be less than or equal to `{5_000 - n}`" for n in range(20))
    scripted.on(model, *map(refusal, rooms))

    reply = gateway.post(message(model, max_tokens=9_000))

    assert reply.status == 400
    assert len(scripted.requests_for(model)) == MAX_REPAIRS + 1


def test_fields_that_a_model_refuses_one_after_the_other_are_all_remembered(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    model = "chat-fresh-model"
    fields = ("temperature", "top_p", "stream_options")
    refusals = [refusal(f"Unsupported parameter: '{name}'") for name in fields]
    scripted.on(model, *refusals, upstream_scripts.chat(), upstream_scripts.chat())
    body = message(model, temperature=0.5, top_p=0.5)

    first, second = gateway.post(body), gateway.post(body)

    assert (first.status, second.status) == (200, 200)
    sent = [request.json for request in scripted.requests_for(model)]
    assert len(sent) == 5
    assert sent[3] == sent[4]
    assert not {*fields} & sent[4].keys()
    noted = {note["path"] for note in row(second.id).notes if note["fate"] == "dropped"}
    assert noted == {"temperature", "top_p"}


# What a model lacks is remembered

ALTERNATE = refusal("Jinja Exception: Conversation roles must alternate user/assistant", 500)
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
HISTORY = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": [CALL]},
    {"role": "user", "content": [RESULT, {"type": "text", "text": "and now?"}]},
]


def test_a_shape_that_a_template_requires_is_remembered_for_the_model(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-template", ALTERNATE, upstream_scripts.chat(), upstream_scripts.chat())
    scripted.on("chat-template-other", upstream_scripts.chat())

    first = gateway.post(message("chat-template", messages=HISTORY))
    second = gateway.post(message("chat-template", messages=HISTORY))
    gateway.post(message("chat-template-other", messages=HISTORY))

    assert (first.status, second.status) == (200, 200)
    refused, repaired, remembered = scripted.requests_for("chat-template")
    assert refused.json["messages"][-1] == {"role": "user", "content": "and now?"}
    assert repaired.json["messages"] == remembered.json["messages"]
    assert repaired.json["messages"][-1]["content"] == "done\n\nand now?"
    (other,) = scripted.requests_for("chat-template-other")
    assert other.json["messages"] == refused.json["messages"]
    assert "emulated" in {note["fate"] for note in row(second.id, status=200).notes}


def test_a_shape_that_did_not_help_is_not_remembered(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-template-third", ALTERNATE)

    reply = gateway.post(message("chat-template-third", messages=HISTORY))

    assert (reply.status, reply.headers["x-should-retry"]) == (400, "false")
    assert len(scripted.requests_for("chat-template-third")) == 3
    assert not [key for key in memory.by_model if key[2] == "chat-template-third"]


def test_an_image_for_a_model_without_vision_is_dropped_with_a_note(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-blind", refusal("image input is not supported", 500), upstream_scripts.chat())
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    body = message("chat-blind", messages=[{"role": "user", "content": content}])

    reply = gateway.post(body)
    strict = gateway.post(body, x_bridge_strict="true")

    assert (reply.status, strict.status) == (200, 400)
    sent = scripted.requests_for("chat-blind")[1].json["messages"][0]["content"]
    assert "image omitted" in str(sent)
    assert {"path": "messages", "fate": "dropped"}.items() <= row(reply.id).notes[-1].items()
