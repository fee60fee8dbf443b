"""The tables of the request: one fate per field, and what each field becomes."""

from collections import Counter

import pytest
from anthropic.types import message_create_params as stable
from anthropic.types.beta import message_create_params as beta

from tests.translator.openai_chat.answers import chunk, message
from tests.translator.openai_chat.requests import body, build, fates
from tests.translator.requests import ask, assistant, call, result, text, user
from translator.anthropic.fold import fold
from translator.dialect import Target
from translator.errors import BadRequest
from translator.openai_chat import request as tables
from translator.openai_chat.stream import ChatStream
from translator.profiles import PROFILES

OLD_FIELDS = {"temperature", "top_p", "top_k", "stream", "output_format"}
"""What SDK 2.x types no longer list and older clients still send."""

FIELDS = {
    *stable.MessageCreateParamsBase.__annotations__,
    *beta.MessageCreateParamsBase.__annotations__,
    *OLD_FIELDS,
}

OFF = {"thinking": {"type": "disabled"}}


def test_each_field_has_exactly_one_fate():
    fates = Counter(
        [*tables.COPIED, *tables.RENAMED, *tables.BUILT, *tables.DROPPED, *tables.REFUSED]
    )

    assert set(fates) == FIELDS
    assert max(fates.values()) == 1


def test_the_smallest_request_has_the_smallest_body():
    assert body(ask()) == {
        "model": "m1",
        "messages": [{"role": "user", "content": "Hello."}],
        "max_tokens": 100,
    }


def test_a_target_without_a_model_keeps_the_name_the_client_sent():
    assert tables.build_request(ask(), Target()).body["model"] == "claude-bridge"


@pytest.mark.parametrize(
    ("profile", "field"), [("generic", "max_tokens"), ("openai", "max_completion_tokens")]
)
def test_max_tokens_has_one_name_per_profile(profile, field):
    names = set(body(ask(), profile)) & {"max_tokens", "max_completion_tokens"}

    assert names == {field}


def test_a_request_for_no_tokens_is_answered_here():
    built = build(ask(max_tokens=0))
    heard = ChatStream(built.answer)

    told = fold(heard.feed_whole(built.known_answer))

    assert (told["content"], told["stop_reason"]) == ([], "max_tokens")
    assert told["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert fates(ask(max_tokens=0)) == {"max_tokens": "emulated"}
    assert build(ask(max_tokens=1)).known_answer is None


def test_edits_that_nobody_made_are_told_to_who_asked_for_them():
    built = build(ask(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}))
    plain = build(ask())

    told = message(chunk("stop", content="Hi"), answered=built.answer.answered)

    assert told["context_management"] == {"applied_edits": []}
    assert not plain.answer.answered
    assert "context_management" not in message(chunk("stop", content="Hi"))


def test_each_message_knows_where_it_comes_from():
    history = [
        user("a"),
        assistant(call()),
        user(result("sunny"), text("b")),
        assistant("c"),
        user("d"),
    ]

    built = build(ask(*history, system="be kind"), merge_users=False)
    merged = build(ask(*history), merge_users=True)

    assert [m["role"] for m in built.body["messages"]] == [
        "system", "user", "assistant", "tool", "user", "assistant", "user",
    ]  # fmt: skip
    assert built.origins == (-1, 0, 1, 2, 2, 3, 4)
    assert merged.origins == ()


def test_a_request_to_count_tokens_has_no_limit():
    counted = ask()
    del counted["max_tokens"]

    built = build(counted)

    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(built.body)
    assert built.answer.max_tokens is None


def test_a_stream_asks_for_usage_where_the_server_knows_how():
    known, unknown = body(ask(stream=True)), body(ask(stream=True), stream_options=False)

    assert known["stream_options"] == {"include_usage": True}
    assert unknown["stream"] is True
    assert "stream_options" not in unknown
    assert "stream" not in body(ask(stream=False))


def test_sampling_reaches_servers_that_take_it():
    sampling = {"temperature": 0.0, "top_p": 0.9, "top_k": 40}

    assert body(ask(**sampling), "vllm").items() >= sampling.items()
    assert fates(ask(**sampling), "generic") == {"top_k": "dropped"}


def test_reasoning_models_take_no_sampling_unless_reasoning_is_off():
    request = ask(temperature=0.5)

    assert "temperature" not in body(request, "openai")
    assert fates(request, "openai") == {"temperature": "dropped"}
    assert body(request | OFF, "openai")["temperature"] == 0.5


def test_stop_sequences_stay_here_and_are_looked_for_in_the_answer():
    built = build(ask(stop_sequences=["END"]))

    assert "stop" not in built.body
    assert built.answer.stop_sequences == ("END",)
    assert [note.fate for note in built.notes] == ["emulated"]


CLAUDE_CODE_USER = "user_" + "a" * 64 + "_account__session_0b1c"


@pytest.mark.parametrize("user_id", [CLAUDE_CODE_USER, '{"session_id":"0b1c"}'])
def test_the_user_id_leaves_as_a_hash_and_its_session_as_a_cache_key(user_id):
    built = body(ask(metadata={"user_id": user_id}), "openai")

    assert user_id not in str(built)
    assert len(built["safety_identifier"]) == 64
    assert len(built["prompt_cache_key"]) == 64


@pytest.mark.parametrize("user_id", ["ada", "{ada", "[{}]", '{"session_id":7}'])
def test_a_user_id_without_a_session_makes_no_cache_key(user_id):
    assert "prompt_cache_key" not in body(ask(metadata={"user_id": user_id}), "openai")


def test_the_old_user_field_takes_the_hash_where_no_better_one_is():
    assert len(body(ask(metadata={"user_id": "ada"}), "openrouter")["user"]) == 64
    assert fates(ask(metadata={"user_id": "ada"}), "generic") == {"metadata.user_id": "ignored"}
    assert body(ask(metadata={}), "openrouter") == body(ask(), "openrouter")


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({"service_tier": "auto"}, "auto"),
        ({"service_tier": "standard_only"}, "default"),
        ({"speed": "fast"}, "fast"),
        ({"speed": "standard"}, None),
    ],
)
def test_tier_and_speed_share_one_field(fields, tier):
    assert body(ask(**fields), "openai").get("service_tier") == tier


def test_tiers_of_servers_that_have_none():
    request = ask(service_tier="auto", speed="fast")

    assert "service_tier" not in body(request)
    assert fates(request) == {"service_tier": "ignored", "speed": "dropped"}


def test_a_named_container_is_dropped_and_skills_are_refused():
    assert fates(ask(container="container_1")) == {"container": "dropped"}
    assert body(ask(container=None)) == body(ask())
    with pytest.raises(BadRequest, match=r"^container\.skills"):
        build(ask(container={"skills": [{"skill_id": "pptx"}]}))


@pytest.mark.parametrize("field", tables.REFUSED)
def test_it_refuses_what_must_not_be_ignored(field):
    with pytest.raises(BadRequest, match=f"^{field}: "):
        build(ask(**{field: {"any": "thing"}}))


@pytest.mark.parametrize("field", tables.DROPPED)
def test_what_is_dropped_is_told(field):
    fate = fates(ask(**{field: ["any"]}))[field]

    assert fate == ("ignored" if field in tables.HARMLESS else "dropped")


def test_a_task_budget_is_a_hint_and_no_loss():
    request = ask(output_config={"task_budget": {"total": 1000}})

    assert fates(request) == {"output_config.task_budget": "ignored"}


def test_the_answer_knows_what_it_needs_of_the_request():
    choice = {"type": "auto", "disable_parallel_tool_use": True}

    answer = build(ask(tool_choice=choice)).answer

    assert answer.model == "claude-bridge"
    assert answer.single_tool_call
    assert answer.max_tokens == 100
    assert answer.target.upstream == "local"


def test_vllm_continues_a_prefill_and_others_refuse_it():
    request = ask(user("Hello."), assistant("Hi, I"))

    continued = body(request, "vllm")

    assert continued["messages"][-1] == {"role": "assistant", "content": "Hi, I"}
    assert (continued["continue_final_message"], continued["add_generation_prompt"]) == (
        True,
        False,
    )
    with pytest.raises(BadRequest, match=r"^messages\.1: .*prefill"):
        build(request)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_request_makes_the_same_bytes(profile):
    request = ask(stream=True, metadata={"user_id": "ada"})

    assert str(body(request, profile)) == str(body(request, profile))
