"""The tables of the request: one fate per field, and what each field becomes."""

from collections import Counter

import pytest
from anthropic.types import message_create_params as stable
from anthropic.types.beta import message_create_params as beta

from tests.translator.openai_responses.requests import body, build, fates, said
from tests.translator.requests import WEATHER, ask, assistant, call, result, text, user
from translator.dialect import Target
from translator.errors import BadRequest
from translator.openai_responses import request as tables
from translator.profiles import PROFILES

from .strict_types import assert_valid

OLD_FIELDS = {"temperature", "top_p", "top_k", "stream", "output_format"}
"""What SDK 2.x types no longer list and older clients still send."""

FIELDS = {
    *stable.MessageCreateParamsBase.__annotations__,
    *beta.MessageCreateParamsBase.__annotations__,
    *OLD_FIELDS,
}

OFF = {"thinking": {"type": "disabled"}}
ON = {"thinking": {"type": "enabled", "budget_tokens": 8000}, "max_tokens": 9000}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_each_field_has_exactly_one_fate():
    fates = Counter(
        [*tables.COPIED, *tables.RENAMED, *tables.BUILT, *tables.DROPPED, *tables.REFUSED]
    )

    assert set(fates) == FIELDS
    assert max(fates.values()) == 1


def test_the_smallest_request_has_the_smallest_body():
    assert body(ask(), "generic") == {
        "store": False,
        "model": "gpt-5.2",
        "input": [said("user", "Hello.")],
        "max_output_tokens": 100,
    }


def test_a_target_without_a_model_keeps_the_name_the_client_sent():
    assert tables.build_request(ask(), Target()).body["model"] == "claude-bridge"


def test_openai_is_asked_for_encrypted_reasoning_and_plain_streams():
    sent = body(ask(stream=True))

    assert sent["include"] == ["reasoning.encrypted_content"]
    assert sent["stream_options"] == {"include_obfuscation": False}
    assert "stream_options" not in body(ask(stream=False))
    assert "stream_options" not in body(ask(stream=True), "azure")


# System


def test_a_system_text_becomes_instructions():
    assert body(ask(system="Be brief."))["instructions"] == "Be brief."
    assert body(ask(system=[text("A"), text(" "), text("B")]))["instructions"] == "A\n\nB"
    assert "instructions" not in body(ask(system=""))


def test_a_marked_system_prompt_becomes_a_developer_message():
    marked = [text("A"), text("B", cache_control={"type": "ephemeral"})]

    sent = body(ask(system=marked))

    assert sent["input"] == [said("developer", "A", "B"), said("user", "Hello.")]
    assert "instructions" not in sent


def test_the_billing_header_is_left_out_with_a_note():
    header = text("x-anthropic-billing-header: cch=abc")

    assert "instructions" not in body(ask(system=[header]))
    assert fates(ask(system=[header])) == {"system.0": "ignored"}


# Cache


def breakpoints(request, **overrides):
    parts = [
        part
        for item in body(request, cache_breakpoints=True, **overrides)["input"]
        if isinstance(item.get("content"), list)
        for part in item["content"]
    ]
    return {
        p["text"]: p["prompt_cache_breakpoint"] for p in parts if "prompt_cache_breakpoint" in p
    }


def test_marked_blocks_become_breakpoints():
    short, long = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    request = ask(user(text("A", cache_control=short), text("B", cache_control=long), text("C")))

    assert breakpoints(request) == {
        "A": {"mode": "explicit"},
        "B": {"mode": "explicit", "ttl": "12h"},
    }
    assert_valid(body(request, cache_breakpoints=True))


def test_an_automatic_breakpoint_ends_with_what_the_user_said_last():
    request = ask(user("A"), assistant("B"), user("C", "D"), cache_control={"type": "ephemeral"})
    request["messages"][2] = user(text("C"), text("D"))

    assert breakpoints(request) == {"D": {"mode": "explicit"}}


def test_an_automatic_breakpoint_leaves_a_mark_of_the_client_s_own_as_it_is():
    own = text("A", cache_control={"type": "ephemeral", "ttl": "1h"})
    request = ask(user(own), cache_control={"type": "ephemeral"})

    assert breakpoints(request) == {"A": {"mode": "explicit", "ttl": "12h"}}


def test_an_automatic_breakpoint_needs_a_user_who_said_something():
    request = ask(user(text(" ")), assistant("B"), cache_control={"type": "ephemeral"})

    assert breakpoints(request) == {}


@pytest.mark.parametrize("nothing", [" ", ""])
def test_a_conversation_without_a_word_is_refused(nothing):
    with pytest.raises(BadRequest, match="must be non-empty") as caught:
        body(ask(user(text(nothing)), system="Be kind."))

    assert caught.value.path == "messages"


def test_the_latest_four_breakpoints_count():
    marked = [text(name, cache_control={"type": "ephemeral"}) for name in "ABCDEF"]

    assert set(breakpoints(ask(user(*marked)))) == set("CDEF")


def test_servers_without_breakpoints_see_none():
    marked = text("A", cache_control={"type": "ephemeral"})

    assert body(ask(user(marked)))["input"] == [said("user", "A")]


# Numbers


@pytest.mark.parametrize(
    ("wanted", "sent", "noted"), [(100, 100, {}), (16, 16, {}), (1, 16, {"max_tokens": "clamped"})]
)
def test_max_tokens_has_a_lower_limit(wanted, sent, noted):
    assert body(ask(max_tokens=wanted))["max_output_tokens"] == sent
    assert fates(ask(max_tokens=wanted)) == noted


def test_a_cache_is_warmed_where_the_server_can():
    assert body(ask(max_tokens=0), prewarm=True)["prompt_cache_options"] == {"prewarm": True}
    assert_valid(body(ask(max_tokens=0), prewarm=True))


def test_sampling_reaches_servers_that_take_it():
    sampling = {"temperature": 0.0, "top_p": 0.9, "top_k": 40}

    sent = body(ask(**sampling), "generic")

    assert (sent["temperature"], sent["top_p"]) == (0.0, 0.9)
    assert "top_k" not in sent
    assert fates(ask(**sampling), "generic") == {"top_k": "dropped"}


def test_reasoning_models_take_no_sampling_unless_reasoning_is_off():
    assert "temperature" not in body(ask(temperature=0.5))
    assert fates(ask(temperature=0.5)) == {"temperature": "dropped"}
    assert body(ask(temperature=0.5, **OFF))["temperature"] == 0.5


def test_a_request_to_count_tokens_has_no_limit():
    request = ask()
    del request["max_tokens"]

    assert "max_output_tokens" not in body(request)
    assert build(request).answer.max_tokens is None


def test_stop_sequences_are_found_by_us():
    built = build(ask(stop_sequences=["END"]))

    assert "stop" not in built.body
    assert built.answer.stop_sequences == ("END",)
    assert [(note.path, note.fate, note.reason) for note in built.notes] == [
        ("stop_sequences", "emulated", "found in the answer by the gateway")
    ]


# Reasoning


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({}, None),
        (OFF, {"effort": "none"}),
        ({"thinking": {"type": "between_tools"}}, {"effort": "none"}),
        ({"thinking": {"type": "adaptive"}}, {"summary": "auto"}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None),
        (ON, {"effort": "medium", "summary": "auto"}),
        (ON | {"output_config": {"effort": "high"}}, {"effort": "high", "summary": "auto"}),
        ({"output_config": {"effort": "max"}}, {"effort": "xhigh"}),
    ],
)
def test_thinking_becomes_reasoning(fields, reasoning):
    assert body(ask(**fields)).get("reasoning") == reasoning


def test_an_effort_that_the_server_lacks_is_told():
    assert fates(ask(output_config={"effort": "max"})) == {"output_config.effort": "clamped"}
    assert "reasoning" not in body(ask(**ON), "generic")


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "hidden"),
        (ON, "shown"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "omitted"),
    ],
)
def test_the_answer_knows_what_the_client_wants_to_see(fields, shown):
    assert build(ask(**fields)).answer.thinking == shown


# Structured output


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_a_schema_of_the_output_becomes_a_strict_text_format(fields):
    wanted = body(ask(**fields))["text"]["format"]

    assert (wanted["type"], wanted["name"], wanted["strict"]) == (
        "json_schema",
        "structured_output",
        True,
    )
    assert wanted["schema"]["additionalProperties"] is False


def test_a_schema_with_optional_properties_is_not_strict():
    loose = SCHEMA | {"required": []}
    fields = {"output_config": {"format": {"type": "json_schema", "schema": loose}}}

    assert body(ask(**fields))["text"]["format"]["strict"] is False
    assert body(ask(**fields), "generic")["text"]["format"]["strict"] is False


def test_a_server_without_schemas_is_told_nothing_and_the_note_says_so():
    fields = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}

    assert "text" not in body(ask(**fields), json_schema=False)
    assert fates(ask(**fields), json_schema=False) == {"output_config.format": "dropped"}


def test_a_task_budget_is_a_hint_for_somebody_else():
    assert fates(ask(output_config={"task_budget": {"type": "tokens", "total": 1}})) == {
        "output_config.task_budget": "ignored"
    }


# Tier, context


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, None),
        ({"service_tier": "auto"}, "auto"),
        ({"service_tier": "standard_only"}, "default"),
        ({"speed": "fast"}, "fast"),
        ({"speed": "standard"}, None),
    ],
)
def test_tiers_are_told_in_openais_words(fields, tier):
    assert body(ask(**fields)).get("service_tier") == tier


def test_a_server_without_tiers_gets_none():
    both = {"service_tier": "auto", "speed": "fast"}

    assert "service_tier" not in body(ask(**both), "generic")
    assert fates(ask(**both), "generic") == {"service_tier": "ignored", "speed": "dropped"}
    assert fates(ask(speed="standard"), "generic") == {}


def test_compaction_is_asked_for_where_the_server_compacts():
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
    request = ask(context_management={"edits": [{"type": "clear_tool_uses_20250919"}, edit]})

    sent = body(request, compaction=True)

    assert sent["context_management"] == [{"type": "compaction", "compact_threshold": 50_000}]
    assert_valid(sent)
    assert fates(request) == {
        "context_management.edits.0": "dropped",
        "context_management.edits.1": "dropped",
    }
    bare = ask(context_management={"edits": [{"type": "compact_20260112"}]})
    assert body(bare, compaction=True)["context_management"] == [{"type": "compaction"}]


def test_a_container_stays_behind_and_skills_are_refused():
    assert fates(ask(container="container_1")) == {"container": "dropped"}
    assert fates(ask(container={"id": "container_1", "skills": []})) == {"container": "dropped"}
    with pytest.raises(BadRequest, match=r"container\.skills"):
        build(ask(container={"skills": [{"skill_id": "pdf"}]}))


@pytest.mark.parametrize("field", tables.REFUSED)
def test_what_must_not_be_ignored_is_refused_by_name(field):
    with pytest.raises(BadRequest) as refused:
        build(ask(**{field: "x"}))

    assert refused.value.path == field


@pytest.mark.parametrize("field", tables.DROPPED)
def test_what_is_dropped_is_noted(field):
    expected = "ignored" if field in tables.HARMLESS else "dropped"

    assert fates(ask(**{field: "x"})) == {field: expected}


def test_empty_fields_have_no_fate_worth_a_note():
    assert fates(ask(**dict.fromkeys([*tables.DROPPED, *tables.REFUSED]))) == {}


# The way back


def test_the_answer_knows_what_the_request_was():
    long = "a" * 70
    history = [
        user("Go."),
        assistant(text("Hm."), call("toolu_7")),
        user(result("x", call_id="toolu_7")),
    ]
    request = ask(
        *history,
        assistant("Done."),
        user("Again."),
        tools=[WEATHER, WEATHER | {"name": long}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )

    answer = build(request).answer

    assert list(answer.tool_names.values()) == [long]
    assert answer.call_ids == {"toolu_7"}
    assert answer.single_tool_call
    assert answer.max_tokens == 100
    assert answer.model == "claude-bridge"
    assert answer.target.profile == PROFILES["openai"]
