import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.anthropic.request_validation import (
    FIELDS,
    MAX_MESSAGES,
    MAX_STOP_SEQUENCE,
    WITHOUT_SAMPLING,
    check_for_routing,
    check_for_translation,
    parse_count_tokens_request,
    parse_messages_request,
    unknown_fields,
)
from translator.errors import BadRequest

CORPUS = Path(__file__).parents[4] / "shared" / "corpus" / "anthropic-requests"

USER = {"role": "user", "content": "Hello."}
SMALL = {"model": "claude-x", "max_tokens": 100, "messages": [USER]}
THINKING = {"type": "enabled", "budget_tokens": 1024}


def refusal(request, **options) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse_messages_request(request, **options)
    return caught.value


def added(tool):
    return {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}


def removed(tool):
    return {"role": "system", "content": [{"type": "tool_removal", "tool": tool}]}


def test_every_recorded_request_is_accepted_unchanged():
    if not CORPUS.is_dir():
        pytest.skip(
            "NO RECORDED REQUESTS: ../shared/corpus is not here, only small cases are tried"
        )
    for file in sorted(CORPUS.glob("*.json")):
        body = json.loads(file.read_text())
        before = copy.deepcopy(body)
        counting = "count_tokens" in file.name
        parse = parse_count_tokens_request if counting else parse_messages_request

        assert parse(body) is body
        assert body == before
        assert unknown_fields(body) == []


@for_each(
    "more",
    [
        {},
        {"max_tokens": 0},
        {"system": "x", "stream": True, "metadata": {"user_id": "u"}},
        {"system": [{"type": "text", "text": "x"}], "tools": None, "metadata": None},
        {"temperature": 1, "top_p": 0.5, "top_k": 3, "stop_sequences": ["STOP"]},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "tools": [{"name": "f"}]},
        {
            "thinking": {"type": "disabled"},
            "tools": [{"name": "f"}],
            "tool_choice": {"type": "any"},
        },
        {"output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {}}}},
        {"messages": [{"role": "system", "content": "x"}, USER]},
        {"thread": None, "tomorrow": 1},
        {"tools": [{"type": "mcp_toolset", "mcp_server_name": "a", "configs": {}}]},
        {
            "messages": [USER, removed({"name": "g"})],
            "tools": [{"type": "mcp_toolset", "mcp_server_name": "a"}],
            "tool_choice": {"type": "tool", "name": "f"},
        },
    ],
)
def test_a_valid_request_is_accepted(more):
    request = {**SMALL, **more}

    assert parse_messages_request(request) is request


@for_each(
    ("more", "path", "words"),
    [
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": "100"}, "max_tokens", "valid integer"),
        ({"max_tokens": True}, "max_tokens", "valid integer"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": "Hello."}, "messages", "valid list"),
        ({"messages": [USER] * (MAX_MESSAGES + 1)}, "messages", "100000"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'assistant'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", '"user" role'),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages", '"user" role'),
        (
            {"messages": [USER, USER, {"role": "user", "content": [{"type": "vidéo"}]}]},
            "messages.2.content.0.type",
            "'vidéo' does not match",
        ),
        ({"model": ""}, "model", "at least 1 character"),
        ({"model": "m" * 201}, "model", "at most 200 characters"),
        ({"tools": [{"name": "t" * 257}]}, "tools.0.name", "at most 256 characters"),
        ({"system": 5}, "system", "valid list"),
        ({"system": [{"type": "image"}]}, "system.0.type", "'text'"),
        ({"stream": "yes"}, "stream", "valid boolean"),
        ({"temperature": 2}, "temperature", "between 0 and 1"),
        ({"stop_sequences": [" \n"]}, "stop_sequences.0", "non-whitespace"),
        ({"stop_sequences": ["x" * (MAX_STOP_SEQUENCE + 1)]}, "stop_sequences.0", "at most"),
        ({"metadata": {"user_id": "x" * 257}}, "metadata.user_id", "at most 256"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "required"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1023}},
            "thinking.budget_tokens",
            "1024",
        ),
        ({"thinking": THINKING}, "max_tokens", "must be greater than `thinking.budget_tokens`"),
        *(
            (
                {
                    "thinking": THINKING,
                    "max_tokens": 2000,
                    "tools": [{"name": "f"}],
                    "tool_choice": choice,
                },
                "thinking",
                "forces tool use",
            )
            for choice in ({"type": "any"}, {"type": "tool", "name": "f"})
        ),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "tools.1.name", "unique"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name", "'f' not found"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "'low'"),
        (
            {"messages": [{"role": "system", "content": [], "output_config": {"effort": "huge"}}]},
            "messages.0.output_config.effort",
            "'low'",
        ),
        ({"cache_control": {"type": "forever"}}, "cache_control.type", "'ephemeral'"),
        ({"context_management": {"edits": "all"}}, "context_management.edits", "valid list"),
        (
            {"context_management": {"edits": [{"type": "compact_20260112", "trigger": {}}]}},
            "context_management.edits.0.trigger.type",
            "required",
        ),
        (
            {"mcp_servers": [{"type": "url", "url": "https://a.test"}]},
            "mcp_servers.0.name",
            "required",
        ),
        (
            {"mcp_servers": [{"name": "a", "url": "https://a.test", "tool_configuration": "all"}]},
            "mcp_servers.0.tool_configuration",
            "an object",
        ),
        (
            {"tools": [{"type": "mcp_toolset", "mcp_server_name": "a", "configs": {"f": "on"}}]},
            "tools.0.configs.f",
            "an object",
        ),
        (
            {"tools": [{"type": "mcp_toolset", "mcp_server_name": "a", "name": {}}]},
            "tools.0.name",
            "valid string",
        ),
        (
            {"tools": [{"type": "mcp_toolset", "mcp_server_name": "a", "configs": ["f"]}]},
            "tools.0.configs",
            "an object",
        ),
        ({"messages": [USER, added({"type": {}})]}, "messages.1.content.0.tool.type", "string"),
        (
            {"messages": [USER, added({"type": "tool_definition"})]},
            "messages.1.content.0.tool.definition",
            "required",
        ),
        (
            {"messages": [USER, added({"type": "tool_definition", "definition": {"name": 3}})]},
            "messages.1.content.0.tool.definition.name",
            "valid string",
        ),
    ],
)
def test_a_bad_request_is_rejected_with_its_path(more, path, words):
    fault = refusal({**SMALL, **more})

    assert (fault.path, fault.status, fault.error_type) == (path, 400, "invalid_request_error")
    assert words in str(fault)
    assert str(fault).startswith(f"{path}: ")


@for_each("name", ["model", "messages", "max_tokens"])
def test_a_missing_required_field_is_rejected(name):
    request = {key: value for key, value in SMALL.items() if key != name}

    assert str(refusal(request)) == f"{name}: Field required"


@for_each("body", [None, [], "x", 5])
def test_a_body_that_is_not_an_object_is_rejected(body):
    assert refusal(body).path == ""


def test_threads_are_refused_with_the_code_that_makes_the_sdk_resend():
    fault = refusal({**SMALL, "thread": {"type": "create"}})

    assert (fault.path, fault.error_code) == ("thread", "thread_unsupported_request")


CITED = {"type": "text", "text": "x", "citations": [{"type": "char_location"}]}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}


@for_each(
    ("more", "path"),
    [
        ({"temperature": 1.0}, "temperature"),
        ({"top_p": 1}, "top_p"),
        ({"top_k": 1}, "top_k"),
        (
            {"messages": [USER, {"role": "assistant", "content": [DOCUMENT]}]},
            "messages.1.content.0",
        ),
        ({"messages": [{"role": "user", "content": [CITED]}]}, "messages.0.content.0.citations"),
    ],
)
def test_the_newer_version_rejects_removed_fields(more, path):
    request = {**SMALL, **more}

    parse_messages_request(request, version="2023-06-01")
    assert refusal(request, version=WITHOUT_SAMPLING).path == path


@for_each("version", ["", "latest", "2024-01-01"])
def test_an_unknown_version_has_the_older_rules(version):
    request = {**SMALL, "temperature": 0.5}

    assert parse_messages_request(request, version=version) is request
    with pytest.raises(BadRequest):
        parse_messages_request(request, version="2027-01-01")


def test_the_newer_version_accepts_null_for_removed_fields():
    request = {**SMALL, "temperature": None, "top_p": None, "top_k": None}

    assert parse_messages_request(request, version=WITHOUT_SAMPLING) is request


def test_the_newer_version_accepts_an_assistant_message_first():
    request = {**SMALL, "messages": [{"role": "assistant", "content": [CITED]}, USER]}

    assert parse_messages_request(request, version=WITHOUT_SAMPLING) is request


def test_count_tokens_needs_no_max_tokens_and_translation_no_model():
    parse_count_tokens_request({"model": "m", "messages": [USER]})
    check_for_translation({"messages": [USER]})
    with pytest.raises(BadRequest):
        check_for_translation({})


def test_routing_needs_only_a_model():
    body = {"model": "m", "messages": "checked by the upstream"}

    assert check_for_routing(body) is body
    with pytest.raises(BadRequest, match="model"):
        check_for_routing({"messages": [USER]})


def test_unknown_fields_are_noted_and_not_rejected():
    assert unknown_fields({**SMALL, "tomorrow": 1, "thinking": None}) == ["tomorrow"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "name"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(
    name=st.sampled_from(sorted(FIELDS)), value=JSON, version=st.sampled_from(["", "2026-10-21"])
)
def test_any_value_of_a_field_is_accepted_or_rejected_with_its_name(name, value, version):
    request = {**SMALL, name: value}

    try:
        parse_messages_request(request, version=version)
    except BadRequest as fault:
        assert fault.path.split(".")[0] in (name, "messages", "max_tokens")  # noqa: PT017 - both ways are fine


@for_each("name", ["top_k", "top_p"])
def test_minus_one_is_a_parameter_that_is_not_set(name):
    for version in ("2023-06-01", "2026-10-21"):
        parse_messages_request({**SMALL, name: -1}, version=version)
    with pytest.raises(BadRequest, match=rf"^{name}: "):
        parse_messages_request({**SMALL, name: -2})
