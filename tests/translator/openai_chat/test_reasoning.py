"""Requested reasoning effort, and earlier reasoning that is sent back."""

from tests.fakes.anthropic_requests import KEYS, assistant, call, make_request, result, text, user
from tests.for_each import for_each
from tests.translator.openai_chat.requests import body, build, fates, target
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import fold
from translator.openai_chat import DIALECT
from translator.stream.reasoning_signature import SignedReasoning, sign

DETAILS = [{"type": "reasoning.encrypted", "data": "gAAAA", "id": "rs_1", "index": 0}]


def signature(**fields):
    own = {"upstream": "local", "model": "m1", "api": "chat"}
    return sign(SignedReasoning(**(own | fields)), KEYS)


def thought(value="7*13", signed=None):
    return {
        "type": "thinking",
        "thinking": value,
        "signature": signature() if signed is None else signed,
    }


def history(*blocks, calls=True):
    turn = assistant(*blocks, call()) if calls else assistant(*blocks, text("No."))
    return make_request(user("Prime?"), turn, user(result("Sun.")) if calls else user("Sure?"))


def restored(request, profile, *, keys=KEYS, **overrides):
    """Return the fields of the assistant message except role, content and calls."""
    message = build(request, profile, keys=keys, **overrides).body["messages"][1]
    return {k: v for k, v in message.items() if k not in {"role", "content", "tool_calls"}}


@for_each(
    ("thinking", "switch"),
    [
        ({"type": "disabled"}, False),
        ({"type": "between_tools"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "enabled", "budget_tokens": 2048}, True),
    ],
)
def test_a_vendor_s_switch_follows_the_thinking_mode(thinking, switch):
    request = make_request(thinking=thinking)

    assert body(request, "deepseek")["thinking"] == {"type": "enabled" if switch else "disabled"}
    assert body(request, "vllm")["chat_template_kwargs"] == {"enable_thinking": switch}


def test_no_thinking_no_switch():
    assert {"thinking", "chat_template_kwargs", "reasoning_effort"}.isdisjoint(
        [
            *body(make_request(), "deepseek"),
            *body(make_request(), "vllm"),
            *body(make_request(), "openai"),
        ]
    )


def test_an_effort_goes_where_the_server_knows_efforts():
    request = make_request(output_config={"effort": "medium"})

    assert body(request, "openai")["reasoning_effort"] == "medium"
    assert "reasoning_effort" not in body(request, "generic")


def test_switched_off_thinking_takes_its_effort_along():
    request = make_request(thinking={"type": "disabled"}, output_config={"effort": "high"})

    assert "reasoning_effort" not in body(request, "vllm")
    assert fates(request, "vllm") == {}  # reasoning is off, as requested


def test_own_reasoning_goes_back_under_the_vendor_s_name():
    assert restored(history(thought()), "deepseek") == {"reasoning_content": "7*13"}
    assert restored(history(thought()), "vllm") == {"reasoning": "7*13"}
    assert restored(history(thought()), "openrouter") == {"reasoning": "7*13"}


def test_opaque_details_go_back_verbatim():
    carried = thought("", signature(details=DETAILS))
    redacted = {"type": "redacted_thinking", "data": carried["signature"]}

    assert restored(history(carried), "openrouter") == {"reasoning_details": DETAILS}
    assert restored(history(redacted), "openrouter") == {"reasoning_details": DETAILS}


def test_text_that_was_not_shown_comes_back_out_of_its_carrier():
    hidden = thought("", signature(details={"text": "7*13"}))

    assert restored(history(hidden), "deepseek") == {"reasoning_content": "7*13"}


@for_each(
    "signed",
    [
        "EqQBCkYIAxgCKkD",
        "",
        "brg1.k1.forged.forged",
        signature(upstream="other"),
        signature(model="m2"),
        signature(api="responses"),
    ],
    ids=["anthropic", "unsigned", "forged", "other upstream", "other model", "other dialect"],
)
def test_reasoning_of_another_vendor_is_dropped(signed):
    request = history(thought(signed=signed))

    assert restored(request, "vllm") == {}
    assert fates(request, "vllm", keys=KEYS) == {"messages.1": "ignored"}


def test_a_server_that_takes_no_reasoning_gets_none():
    assert restored(history(thought()), "openai") == {}
    assert fates(history(thought()), "openai", keys=KEYS) == {"messages.1": "ignored"}


def test_deepseek_gets_an_empty_field_where_its_reasoning_is_gone():
    gone = history(thought(signed="EqQB"))

    assert restored(gone, "deepseek") == {"reasoning_content": ""}
    assert restored(history(calls=False), "deepseek") == {}
    assert fates(gone, "deepseek")["messages.1"] == "emulated"


def test_without_keys_only_the_unsigned_can_be_ours():
    assert restored(history(thought(signed="")), "vllm", keys=None) == {"reasoning": "7*13"}
    assert restored(history(thought(signed="EqQB")), "vllm", keys=None) == {}


@for_each("display", ["shown", "omitted"])
def test_reasoning_survives_a_round_trip(display):
    """The vendor receives its own reasoning in the next request."""
    context = ResponseContext(target=target("deepseek", keys=KEYS), thinking=display)
    stream = DIALECT.stream(context)
    whole = {"id": "c", "choices": [{"message": {"reasoning_content": "7*13", "content": "No."}}]}

    block = signed_block(stream.feed_body(whole))

    assert restored(history(block), "deepseek") == {"reasoning_content": "7*13"}


def test_without_a_field_for_it_nothing_can_be_required():
    assert restored(history(), "deepseek", reasoning_field="") == {}
    assert fates(history(), "deepseek", reasoning_field="") == {}


def blocks_of(*deltas):
    """Return the content blocks for these deltas from a generic server."""
    stream = DIALECT.stream(ResponseContext(target=target("generic", keys=KEYS)))
    chunks = [{"choices": [{"delta": delta}]} for delta in (*deltas, {"content": "No."})]
    events = [event for chunk in chunks for event in stream.feed(chunk)]
    return fold([*events, *stream.feed({"choices": [{"finish_reason": "stop"}]})])["content"]


@for_each(
    "deltas",
    [
        [{"reasoning_text": "7*13"}, {"reasoning_opaque": "b3BhcXVl"}],
        [{"reasoning_text": "7*"}, {"reasoning_text": "13", "reasoning_opaque": "b3BhcXVl"}],
        [{"reasoning_text": "7*13"}, {"content": "So"}, {"reasoning_opaque": "b3BhcXVl"}],
    ],
)
@for_each("profile", ["generic", "deepseek"])
def test_copilots_opaque_reasoning_returns_with_its_text(deltas, profile):
    blocks = blocks_of(*deltas)

    beside = {"reasoning_text": "7*13", "reasoning_opaque": "b3BhcXVl"}
    assert restored(history(*blocks), profile) == beside
    assert fates(history(*blocks), profile, keys=KEYS) == {}


def test_copilots_opaque_reasoning_needs_no_text_and_goes_to_copilot_only():
    thoughts = [b for b in blocks_of({"reasoning_opaque": "b3BhcXVl"}) if b["type"] == "thinking"]
    alien = thought(
        "", signature(upstream="other", details=[{"type": "reasoning_opaque", "data": "x"}])
    )

    assert restored(history(*thoughts), "generic") == {"reasoning_opaque": "b3BhcXVl"}
    assert restored(history(alien), "generic") == {}


def test_details_survive_a_round_trip_joined():
    stream = DIALECT.stream(ResponseContext(target=target("openrouter", keys=KEYS)))
    fragments = [
        {"type": "reasoning.text", "text": "7", "index": 0, "signature": None},
        {"type": "reasoning.text", "text": "*13", "index": 0},
        {"type": "reasoning.text", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "gAAAA", "index": 1},
    ]
    events = [
        event
        for fragment in fragments
        for event in stream.feed({"choices": [{"delta": {"reasoning_details": [fragment]}}]})
    ]
    events += stream.feed({"choices": [{"delta": {"content": "No."}}]})

    block = signed_block(events)
    assert restored(history(block), "openrouter") == {
        "reasoning_details": [
            {"type": "reasoning.text", "text": "7*13", "index": 0, "signature": "sig"},
            {"type": "reasoning.encrypted", "data": "gAAAA", "index": 1},
        ]
    }


def signed_block(events):
    """Return the signed thinking block for these events."""
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return {
        "type": "thinking",
        "thinking": "".join(delta.get("thinking", "") for delta in deltas),
        "signature": next(d["signature"] for d in deltas if d["type"] == "signature_delta"),
    }


def test_a_budget_is_sent_to_a_server_that_has_a_field_for_it():
    thinking = {"type": "enabled", "budget_tokens": 2048}
    request = make_request(user("a"), thinking=thinking)

    assert body(request, "llamacpp")["thinking_budget_tokens"] == 2048
    assert "thinking_budget_tokens" not in body(request, "vllm")
    off = make_request(user("a"), thinking={"type": "disabled"})
    assert "thinking_budget_tokens" not in body(off, "llamacpp")
