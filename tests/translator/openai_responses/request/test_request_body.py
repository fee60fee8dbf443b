"""The tables of the request: the mapping of each field and its result."""

from collections import Counter

import pytest
from anthropic.types import message_create_params as stable
from anthropic.types.beta import message_create_params as beta

from tests.fakes.anthropic_requests import (
    WEATHER,
    assistant,
    call,
    make_request,
    result,
    text,
    user,
)
from tests.for_each import for_each
from tests.translator.openai_responses.requests import body, build, fates, input_message
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.errors import BadRequest
from translator.openai_responses import request_body as tables
from translator.request.unsent_fields import DROPPED, HARMLESS

from .strict_types import assert_valid

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
ON = {"thinking": {"type": "enabled", "budget_tokens": 8000}, "max_tokens": 9000}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_each_field_has_exactly_one_fate():
    fates = Counter([*tables.COPIED, *tables.RENAMED, *tables.BUILT, *DROPPED, *tables.REFUSED])

    assert set(fates) == FIELDS
    assert max(fates.values()) == 1


def test_the_smallest_request_has_the_smallest_body():
    assert body(make_request(), "generic") == {
        "store": False,
        "model": "gpt-5.2",
        "input": [input_message("user", "Hello.")],
        "max_output_tokens": 100,
    }


def test_a_target_without_a_model_uses_the_clients_model_name():
    assert (
        tables.build_request(make_request(), TranslationTarget()).body["model"] == "claude-bridge"
    )


def test_openai_requests_include_encrypted_reasoning_and_no_obfuscation():
    sent = body(make_request(stream=True))

    assert sent["include"] == ["reasoning.encrypted_content"]
    assert sent["stream_options"] == {"include_obfuscation": False}
    assert "stream_options" not in body(make_request(stream=False))
    assert "stream_options" not in body(make_request(stream=True), "azure")


# System


def test_a_system_text_becomes_instructions():
    assert body(make_request(system="Be brief."))["instructions"] == "Be brief."
    assert body(make_request(system=[text("A"), text(" "), text("B")]))["instructions"] == "A\n\nB"
    assert "instructions" not in body(make_request(system=""))


def test_a_marked_system_prompt_becomes_a_developer_message():
    marked = [text("A"), text("B", cache_control={"type": "ephemeral"})]

    sent = body(make_request(system=marked))

    assert sent["input"] == [input_message("developer", "A", "B"), input_message("user", "Hello.")]
    assert "instructions" not in sent


def test_the_billing_header_is_left_out_with_a_note():
    header = text("x-anthropic-billing-header: cch=abc")

    assert "instructions" not in body(make_request(system=[header]))
    assert fates(make_request(system=[header])) == {"system.0": "ignored"}


# Numeric fields


@for_each(
    ("expected_name", "sent", "noted"),
    [(100, 100, {}), (16, 16, {}), (1, 16, {"max_tokens": "clamped"})],
)
def test_max_tokens_has_a_lower_limit(expected_name, sent, noted):
    assert body(make_request(max_tokens=expected_name))["max_output_tokens"] == sent
    assert fates(make_request(max_tokens=expected_name)) == noted


def test_only_openai_and_azure_have_that_lower_limit():
    assert body(make_request(max_tokens=1), "llamacpp")["max_output_tokens"] == 1
    assert body(make_request(max_tokens=1), "azure")["max_output_tokens"] == 16


def test_a_request_for_zero_tokens_prewarms_the_cache_if_supported():
    assert body(make_request(max_tokens=0), prewarm=True)["prompt_cache_options"] == {
        "prewarm": True
    }
    assert_valid(body(make_request(max_tokens=0), prewarm=True))


def test_sampling_fields_are_sent_to_servers_that_accept_them():
    sampling = {"temperature": 0.0, "top_p": 0.9, "top_k": 40}

    sent = body(make_request(**sampling), "generic")

    assert (sent["temperature"], sent["top_p"]) == (0.0, 0.9)
    assert "top_k" not in sent
    assert fates(make_request(**sampling), "generic") == {"top_k": "dropped"}


def test_sampling_is_sent_unless_configured_otherwise():
    request, off = make_request(temperature=0.5), make_request(temperature=0.5, **OFF)
    without = {"sampling_with_reasoning": False, "efforts": ("none", "low")}

    assert body(request)["temperature"] == 0.5
    assert fates(request) == {}
    assert "temperature" not in build(request, **without).body
    assert build(off, **without).body["temperature"] == 0.5


def test_a_request_to_count_tokens_has_no_limit():
    request = make_request()
    del request["max_tokens"]

    assert "max_output_tokens" not in body(request)
    assert build(request).response_context.max_tokens is None


def test_stop_sequences_are_found_by_us():
    built = build(make_request(stop_sequences=["END"]))

    assert "stop" not in built.body
    assert built.response_context.stop_sequences == ("END",)
    assert [(note.path, note.fate, note.reason) for note in built.notes] == [
        ("stop_sequences", "emulated", "found in the response by the gateway")
    ]


# Reasoning


@for_each(
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
    assert body(make_request(**fields)).get("reasoning") == reasoning


def test_an_unsupported_effort_is_noted():
    assert fates(make_request(output_config={"effort": "max"})) == {
        "output_config.effort": "clamped"
    }
    assert "reasoning" not in body(make_request(**ON), "generic")


@for_each(
    ("fields", "shown"),
    [
        ({}, "hidden"),
        (ON, "shown"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "omitted"),
    ],
)
def test_the_response_context_has_the_thinking_display(fields, shown):
    assert build(make_request(**fields)).response_context.thinking == shown


# Structured output


@for_each(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_a_schema_of_the_output_becomes_a_strict_text_format(fields):
    expected_name = body(make_request(**fields))["text"]["format"]

    assert (expected_name["type"], expected_name["name"], expected_name["strict"]) == (
        "json_schema",
        "structured_output",
        True,
    )
    assert expected_name["schema"]["additionalProperties"] is False


def test_a_schema_with_optional_properties_stays_strict():
    loose = SCHEMA | {"required": []}
    fields = {"output_config": {"format": {"type": "json_schema", "schema": loose}}}

    assert body(make_request(**fields))["text"]["format"]["strict"] is True
    assert body(make_request(**fields), "generic")["text"]["format"]["strict"] is False


def test_a_schema_for_a_server_without_schemas_is_dropped_with_a_note():
    fields = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}

    assert "text" not in body(make_request(**fields), json_schema=False)
    assert fates(make_request(**fields), json_schema=False) == {"output_config.format": "dropped"}


def test_a_task_budget_is_ignored_as_a_hint():
    assert fates(make_request(output_config={"task_budget": {"type": "tokens", "total": 1}})) == {
        "output_config.task_budget": "ignored"
    }


# Tier, context


@for_each(
    ("fields", "tier"),
    [
        ({}, None),
        ({"service_tier": "auto"}, "auto"),
        ({"service_tier": "standard_only"}, "default"),
        ({"speed": "fast"}, "fast"),
        ({"speed": "standard"}, None),
    ],
)
def test_tiers_are_mapped_to_openais_names(fields, tier):
    assert body(make_request(**fields)).get("service_tier") == tier


def test_a_server_without_tiers_gets_none():
    both = {"service_tier": "auto", "speed": "fast"}

    assert "service_tier" not in body(make_request(**both), "generic")
    assert fates(make_request(**both), "generic") == {"service_tier": "ignored", "speed": "dropped"}
    assert fates(make_request(speed="standard"), "generic") == {}


def test_compaction_is_requested_if_the_server_supports_it():
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
    request = make_request(
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}, edit]}
    )

    sent = body(request, compaction=True)

    assert sent["context_management"] == [{"type": "compaction", "compact_threshold": 50_000}]
    assert_valid(sent)
    assert fates(request) == {
        "context_management.edits.0": "dropped",
        "context_management.edits.1": "dropped",
    }
    bare = make_request(context_management={"edits": [{"type": "compact_20260112"}]})
    assert body(bare, compaction=True)["context_management"] == [{"type": "compaction"}]


def test_a_container_is_dropped_and_skills_are_rejected():
    assert fates(make_request(container="container_1")) == {"container": "dropped"}
    assert fates(make_request(container={"id": "container_1", "skills": []})) == {
        "container": "dropped"
    }
    with pytest.raises(BadRequest, match=r"container\.skills"):
        build(make_request(container={"skills": [{"skill_id": "pdf"}]}))


@for_each("field", tables.REFUSED)
def test_what_must_not_be_ignored_is_refused_by_name(field):
    with pytest.raises(BadRequest) as refused:
        build(make_request(**{field: "x"}))

    assert refused.value.path == field


@for_each("field", DROPPED)
def test_what_is_dropped_is_noted(field):
    expected = "ignored" if field in HARMLESS else "dropped"

    assert fates(make_request(**{field: "x"})) == {field: expected}


def test_empty_fields_are_not_noted():
    assert fates(make_request(**dict.fromkeys([*DROPPED, *tables.REFUSED]))) == {}


# Response context


def test_the_response_context_describes_the_request():
    long = "a" * 70
    history = [
        user("Go."),
        assistant(text("Hm."), call("toolu_7")),
        user(result("x", call_id="toolu_7")),
    ]
    request = make_request(
        *history,
        assistant("Done."),
        user("Again."),
        tools=[WEATHER, WEATHER | {"name": long}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )

    answer = build(request).response_context

    assert list(answer.tool_names.values()) == [long]
    assert answer.call_ids == {"toolu_7"}
    assert answer.single_tool_call
    assert answer.max_tokens == 100
    assert answer.model == "claude-bridge"
    assert answer.target.profile == PROFILES["openai"]
