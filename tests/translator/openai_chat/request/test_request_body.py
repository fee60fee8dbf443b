"""The tables of the request: the mapping of each field and its result."""

from collections import Counter

import pytest
from anthropic.types import message_create_params as stable
from anthropic.types.beta import message_create_params as beta

from tests.fakes.anthropic_requests import assistant, call, make_request, result, text, user
from tests.for_each import for_each
from tests.translator.openai_chat.requests import body, build, fates
from tests.translator.openai_chat.responses import chunk, message
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.errors import BadRequest
from translator.message_stream.events_to_message import fold
from translator.openai_chat import request_body as tables
from translator.openai_chat.chat_stream import ChatStream
from translator.request.unsent_fields import DROPPED, HARMLESS

OLD_FIELDS = {"temperature", "top_p", "top_k", "stream", "output_format"}
"""Fields that the types of SDK 2.x no longer list but older clients still send."""

FIELDS = {
    *stable.MessageCreateParamsBase.__annotations__,
    *beta.MessageCreateParamsBase.__annotations__,
    *OLD_FIELDS,
    "safeguards",  # of Claude Code, in no type of the SDK
    "tags",
}

OFF = {"thinking": {"type": "disabled"}}


def test_each_field_has_exactly_one_fate():
    fates = Counter([*tables.COPIED, *tables.RENAMED, *tables.BUILT, *DROPPED, *tables.REFUSED])

    assert set(fates) == FIELDS
    assert max(fates.values()) == 1


def test_the_smallest_request_has_the_smallest_body():
    assert body(make_request()) == {
        "model": "m1",
        "messages": [{"role": "user", "content": "Hello."}],
        "max_tokens": 100,
    }


def test_a_target_without_a_model_uses_the_clients_model_name():
    assert (
        tables.build_request(make_request(), TranslationTarget()).body["model"] == "claude-bridge"
    )


@for_each(("profile", "field"), [("generic", "max_tokens"), ("openai", "max_completion_tokens")])
def test_max_tokens_has_one_name_per_profile(profile, field):
    names = set(body(make_request(), profile)) & {"max_tokens", "max_completion_tokens"}

    assert names == {field}


def test_a_request_for_zero_tokens_gets_a_local_response():
    built = build(make_request(max_tokens=0))
    decoder = ChatStream(built.response_context)

    reply = fold(decoder.feed_body(built.local_response))

    assert (reply["content"], reply["stop_reason"]) == ([], "max_tokens")
    assert (reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]) == (0, 0)
    assert fates(make_request(max_tokens=0)) == {"max_tokens": "emulated"}
    assert build(make_request(max_tokens=1)).local_response is None


def test_requested_context_edits_are_reported_as_not_applied():
    built = build(
        make_request(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})
    )
    plain = build(make_request())

    reply = message(
        chunk("stop", content="Hi"), reported_fields=built.response_context.reported_fields
    )

    assert reply["context_management"] == {"applied_edits": []}
    assert not plain.response_context.reported_fields
    assert "context_management" not in message(chunk("stop", content="Hi"))


def test_each_upstream_message_has_its_source_path():
    history = [
        user("a"),
        assistant(call()),
        user(result("sunny"), text("b")),
        assistant("c"),
        user("d"),
    ]

    built = build(make_request(*history, system="be kind"), merge_users=False)
    merged = build(make_request(*history), merge_users=True)

    assert [m["role"] for m in built.body["messages"]] == [
        "system", "user", "assistant", "tool", "user", "assistant", "user",
    ]  # fmt: skip
    assert [one.path for one in built.origins] == [
        "system", "messages.0", "messages.1", "messages.2.content.0.tool_result", "messages.2",
        "messages.3", "messages.4",
    ]  # fmt: skip
    assert built.origins[2].calls == ("messages.1.content.0.tool_use",)
    assert merged.origins[2].path == ""


def test_a_request_to_count_tokens_has_no_limit():
    counted = make_request()
    del counted["max_tokens"]

    built = build(counted)

    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(built.body)
    assert built.response_context.max_tokens is None


def test_a_stream_requests_usage_if_the_server_supports_it():
    known, unknown = (
        body(make_request(stream=True)),
        body(make_request(stream=True), stream_options=False),
    )

    assert known["stream_options"] == {"include_usage": True}
    assert unknown["stream"] is True
    assert "stream_options" not in unknown
    assert "stream" not in body(make_request(stream=False))


def test_sampling_fields_are_sent_to_servers_that_accept_them():
    sampling = {"temperature": 0.0, "top_p": 0.9, "top_k": 40}

    assert body(make_request(**sampling), "vllm").items() >= sampling.items()
    assert fates(make_request(**sampling), "generic") == {"top_k": "dropped"}


@for_each("profile", ["openai", "azure", "generic"])
def test_sampling_is_sent_unless_configured_otherwise(profile):
    request = make_request(temperature=0.5)
    without = {"sampling_with_reasoning": False, "efforts": ("none", "low")}

    assert body(request, profile)["temperature"] == 0.5
    assert fates(request, profile) == {}
    assert "temperature" not in build(request, **without).body
    assert build(request | OFF, **without).body["temperature"] == 0.5


def test_stop_sequences_are_matched_locally():
    built = build(make_request(stop_sequences=["END"]))

    assert "stop" not in built.body
    assert built.response_context.stop_sequences == ("END",)
    assert [note.fate for note in built.notes] == ["emulated"]


CLAUDE_CODE_USER = "user_" + "a" * 64 + "_account__session_0b1c"


@for_each("user_id", [CLAUDE_CODE_USER, '{"session_id":"0b1c"}'])
def test_the_user_id_is_sent_as_a_hash_and_its_session_as_a_cache_key(user_id):
    built = body(make_request(metadata={"user_id": user_id}), "openai")

    assert user_id not in str(built)
    assert len(built["safety_identifier"]) == 64
    assert len(built["prompt_cache_key"]) == 64


@for_each("user_id", ["ada", "{ada", "[{}]", '{"session_id":7}'])
def test_a_user_id_without_a_session_makes_no_cache_key(user_id):
    assert "prompt_cache_key" not in body(make_request(metadata={"user_id": user_id}), "openai")


def test_the_old_user_field_carries_the_hash_without_safety_identifier():
    assert len(body(make_request(metadata={"user_id": "ada"}), "openrouter")["user"]) == 64
    assert fates(make_request(metadata={"user_id": "ada"}), "generic") == {
        "metadata.user_id": "ignored"
    }
    assert body(make_request(metadata={}), "openrouter") == body(make_request(), "openrouter")


@for_each(
    ("fields", "tier"),
    [
        ({"service_tier": "auto"}, "auto"),
        ({"service_tier": "standard_only"}, "default"),
        ({"speed": "fast"}, "fast"),
        ({"speed": "standard"}, None),
    ],
)
def test_tier_and_speed_share_one_field(fields, tier):
    assert body(make_request(**fields), "openai").get("service_tier") == tier


def test_service_tier_is_dropped_for_servers_without_tiers():
    request = make_request(service_tier="auto", speed="fast")

    assert "service_tier" not in body(request)
    assert fates(request) == {"service_tier": "ignored", "speed": "dropped"}


def test_a_named_container_is_dropped_and_skills_are_refused():
    assert fates(make_request(container="container_1")) == {"container": "dropped"}
    assert body(make_request(container=None)) == body(make_request())
    with pytest.raises(BadRequest, match=r"^container\.skills"):
        build(make_request(container={"skills": [{"skill_id": "pptx"}]}))


@for_each("field", tables.REFUSED)
def test_a_field_that_must_not_be_ignored_is_rejected(field):
    with pytest.raises(BadRequest, match=f"^{field}: "):
        build(make_request(**{field: {"any": "thing"}}))


@for_each("field", DROPPED)
def test_a_dropped_field_is_noted(field):
    fate = fates(make_request(**{field: ["any"]}))[field]

    assert fate == ("ignored" if field in HARMLESS else "dropped")


def test_a_task_budget_is_ignored_as_a_hint():
    request = make_request(output_config={"task_budget": {"total": 1000}})

    assert fates(request) == {"output_config.task_budget": "ignored"}


def test_the_response_context_contains_the_request_options():
    choice = {"type": "auto", "disable_parallel_tool_use": True}

    answer = build(make_request(tool_choice=choice)).response_context

    assert answer.model == "claude-bridge"
    assert answer.single_tool_call
    assert answer.max_tokens == 100
    assert answer.target.upstream == "local"


def test_vllm_continues_a_prefill_and_others_refuse_it():
    request = make_request(user("Hello."), assistant("Hi, I"))

    continued = body(request, "vllm")

    assert continued["messages"][-1] == {"role": "assistant", "content": "Hi, I"}
    assert (continued["continue_final_message"], continued["add_generation_prompt"]) == (
        True,
        False,
    )
    with pytest.raises(BadRequest, match=r"^messages\.1: .*prefill"):
        build(request)


@for_each("profile", PROFILES)
def test_the_same_request_makes_the_same_bytes(profile):
    request = make_request(stream=True, metadata={"user_id": "ada"})

    assert str(body(request, profile)) == str(body(request, profile))


def test_counts_in_each_chunk_are_requested_where_the_gateway_may_end_the_response():
    request = make_request(user("a"), stop_sequences=["END"])

    assert body(request, "llamacpp")["timings_per_token"] is True
    assert "timings_per_token" not in body(request, "vllm")
    assert "timings_per_token" not in body(make_request(user("a")), "llamacpp")
