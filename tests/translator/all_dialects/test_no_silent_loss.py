"""Each request field is translated, noted or rejected.

The table contains every field of a request with a meaningful value. Unknown top-level
fields are accepted with a note.
"""

import copy
import json
from typing import Any

import pytest

from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.anthropic.request_validation import FIELDS, parse_messages_request
from translator.capabilities import PROFILES, profile_with
from translator.dialect import TranslationTarget
from translator.errors import BadRequest

DIALECTS = {"chat": openai_chat.DIALECT, "responses": openai_responses.DIALECT}
MARK = {"type": "ephemeral"}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
TEXT = {"type": "text", "text": "Words."}
CALL = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "Seen."}
LOOK = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
MCP = [{"name": "s", "type": "url", "url": "https://mcp.example.com"}]
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "s"}
USER = {"role": "user", "content": "Hello."}

TOP: dict[str, Any] = {
    "betas": ["b"],
    "billing_policy": {"type": "x"},
    "cache_control": MARK,
    "compaction": {"type": "summarize"},
    "container": "container_1",
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "diagnostics": {"previous_message_id": "msg_1"},
    "fallback_credit_token": "t",
    "fallbacks": [{"model": "m"}],
    "inference_geo": "us",
    "max_tokens": 77,
    "mcp_servers": MCP,
    "messages": [{"role": "user", "content": "Something else."}],
    "metadata": {"user_id": "u"},
    "model": "another",
    "output_config": {"effort": "low"},
    "output_format": {"type": "json_schema", "schema": {"type": "object"}},
    "safeguards": [{"type": "dangerous_tool_use"}],
    "service_tier": "standard_only",
    "speed": "fast",
    "stop_sequences": ["END"],
    "stream": True,
    "system": "Be kind.",
    "tags": ["billing"],
    "temperature": 0.5,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "thread": {"type": "create"},
    "tool_choice": {"type": "any"},
    "tools": [LOOK],
    "top_k": 5,
    "top_p": 0.5,
    "user_profile_id": "p",
    "workspace_id": "w",
    "unknown_field": 1,
}
BESIDE = {  # other fields that a field needs to be valid
    "tool_choice": {"tools": [LOOK]},
    "mcp_servers": {"tools": [TOOLSET]},
    "thinking": {"max_tokens": 4096},
}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def reply(block: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation whose assistant turn has this block."""
    turns = [USER, {"role": "assistant", "content": [TEXT, block]}]
    if block["type"] == "tool_use":
        turns.append({"role": "user", "content": [RESULT, TEXT]})
    return {"messages": [*turns, USER]}


def answered(result: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation with this tool result."""
    turn = {"role": "assistant", "content": [CALL]}
    return {"messages": [USER, turn, {"role": "user", "content": [result, TEXT]}]}


def tools(*each: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [USER], "tools": list(each), **fields}


def document(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "document", "source": source}


INSIDE: dict[str, tuple[dict[str, Any], tuple[Any, ...], Any]] = {
    # name: (request, path of the field, value)
    "text.cache_control": (user(TEXT), ("messages", 0, "content", 0, "cache_control"), MARK),
    "text.citations": (
        reply(TEXT),
        ("messages", 1, "content", 1, "citations"),
        [{"type": "char_location", "cited_text": "x"}],
    ),
    "assistant text.cache_control": (
        reply(TEXT), ("messages", 1, "content", 1, "cache_control"), MARK,
    ),
    "system.cache_control": (
        {"messages": [USER], "system": [TEXT]}, ("system", 0, "cache_control"), MARK,
    ),
    "system message.cache_control": (
        {"messages": [USER, {"role": "system", "content": [TEXT]}]},
        ("messages", 1, "content", 0, "cache_control"),
        MARK,
    ),
    "image.cache_control": (
        user({"type": "image", "source": PIXEL}),
        ("messages", 0, "content", 0, "cache_control"),
        MARK,
    ),
    "image.transformations": (
        user({"type": "image", "source": PIXEL}),
        ("messages", 0, "content", 0, "transformations"),
        {"oversized_image": "error"},
    ),
    **{
        f"{kind} document.{name}": (
            user(document(source)), ("messages", 0, "content", 0, name), value,
        )
        for kind, source in {
            "pdf": PDF,
            "linked": {"type": "url", "url": "https://example.com/a.pdf"},
            "plain": {"type": "text", "media_type": "text/plain", "data": "Words."},
            "block": {"type": "content", "content": [TEXT]},
        }.items()
        for name, value in {
            "cache_control": MARK,
            "citations": {"enabled": True},
            "context": "From the archive.",
            "title": "A title",
        }.items()
    },
    "document part.cache_control": (
        user(document({"type": "content", "content": [TEXT]})),
        ("messages", 0, "content", 0, "source", "content", 0, "cache_control"),
        MARK,
    ),
    **{
        f"search_result.{name}": (
            user({"type": "search_result", "content": [TEXT], "source": "s", "title": "t"}),
            ("messages", 0, "content", 0, name),
            value,
        )
        for name, value in {"cache_control": MARK, "citations": {"enabled": True}}.items()
    },
    "search_result part.cache_control": (
        user({"type": "search_result", "content": [TEXT], "source": "s", "title": "t"}),
        ("messages", 0, "content", 0, "content", 0, "cache_control"),
        MARK,
    ),
    "tool_use.cache_control": (reply(CALL), ("messages", 1, "content", 1, "cache_control"), MARK),
    "tool_result.cache_control": (
        answered(RESULT), ("messages", 2, "content", 0, "cache_control"), MARK,
    ),
    "tool_result.is_error": (answered(RESULT), ("messages", 2, "content", 0, "is_error"), True),
    "tool_result part.cache_control": (
        answered({**RESULT, "content": [TEXT]}),
        ("messages", 2, "content", 0, "content", 0, "cache_control"),
        MARK,
    ),
    "message.clear_at": (
        {"messages": [{"role": "system", "content": "Now."}, USER]},
        ("messages", 0, "clear_at"),
        "next_user_message",
    ),
    "message.output_config": (
        {"messages": [USER, {"role": "system", "content": "Now."}, USER]},
        ("messages", 1, "output_config"),
        {"effort": "low"},
    ),
    "metadata.user_id": ({"messages": [USER], "metadata": {}}, ("metadata", "user_id"), "u"),
    "output_config.format": (
        {"messages": [USER], "output_config": {}},
        ("output_config", "format"),
        {"type": "json_schema", "schema": {"type": "object"}},
    ),
    "output_config.task_budget": (
        {"messages": [USER], "output_config": {}}, ("output_config", "task_budget"), {"total": 9},
    ),
    "thinking.display": (
        {"messages": [USER], "thinking": {"type": "adaptive"}}, ("thinking", "display"), "omitted",
    ),
    "thinking.block_binding": (
        {"messages": [USER], "thinking": {"type": "adaptive"}},
        ("thinking", "block_binding"),
        "strict",
    ),
    **{
        f"tool.{name}": (tools(LOOK), ("tools", 0, name), value)
        for name, value in {
            "allowed_callers": ["direct", "code_execution_20250825"],
            "cache_control": MARK,
            "defer_loading": True,
            "eager_input_streaming": True,
            "input_examples": [{"path": "a"}],
            "strict": True,
        }.items()
    },
    "text_editor.max_characters": (
        tools({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}),
        ("tools", 0, "max_characters"),
        9,
    ),
    "bash.cache_control": (
        tools({"type": "bash_20250124", "name": "bash"}), ("tools", 0, "cache_control"), MARK,
    ),
    **{
        f"web_search.{name}": (tools(LOOK, SEARCH), ("tools", 1, name), value)
        for name, value in {
            "allowed_domains": ["a.example"],
            "blocked_domains": ["a.example"],
            "cache_control": MARK,
            "max_uses": 3,
            "response_inclusion": "excluded",
            "user_location": {"type": "approximate", "city": "Bonn"},
        }.items()
    },
    **{
        f"mcp_toolset.{name}": (
            tools(TOOLSET, mcp_servers=MCP), ("tools", 0, name), value,
        )
        for name, value in {
            "cache_control": MARK,
            "configs": {"a": {"defer_loading": True}},
            "default_config": {"defer_loading": True},
        }.items()
    },
    "tool_choice.disable_parallel_tool_use": (
        tools(LOOK, tool_choice={"type": "auto"}),
        ("tool_choice", "disable_parallel_tool_use"),
        True,
    ),
    "context_management edit of thinking": (
        {"messages": [USER], "context_management": {"edits": []}},
        ("context_management", "edits"),
        [{"type": "clear_thinking_20251015"}],
    ),
}  # fmt: skip

HERE = {
    "generic": PROFILES["generic"],
    "openai": PROFILES["openai"],
    "vllm": PROFILES["vllm"],
    "all": profile_with(
        "openai",
        {"cache_breakpoints": True, "web_search": True, "mcp": True, "compaction": True},
    ),
}


def built(request: dict[str, Any], dialect: str, profile: str):
    """Return the body, the notes and the response context; None: the request is rejected."""
    requested = {"model": "m", "max_tokens": 2048, **request}
    try:
        made = DIALECTS[dialect].build_request(
            parse_messages_request(requested),
            TranslationTarget(upstream="u", profile=HERE[profile]),
        )
    except BadRequest:
        return None
    return made.body, made.notes, made.response_context


def put(request: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(request)
    inside: Any = changed
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = value
    return changed


@for_each("profile", HERE)
@for_each("dialect", DIALECTS)
@for_each("name", TOP)
def test_a_field_of_the_request_is_translated_noted_or_refused(name, dialect, profile):
    without = {"messages": [USER], **BESIDE.get(name, {})}

    before = built(without, dialect, profile)
    after = built({**without, name: TOP[name]}, dialect, profile)

    assert after is None or after != before, f"{name} disappears"


@for_each("profile", HERE)
@for_each("dialect", DIALECTS)
@for_each("name", INSIDE)
def test_a_field_inside_is_translated_noted_or_refused(name, dialect, profile):
    without, place, value = INSIDE[name]

    before = built(without, dialect, profile)
    after = built(put(without, place, value), dialect, profile)

    inside = ".".join(map(str, place))
    gone = after is not None and any(
        note.fate == "dropped" and inside.startswith(f"{note.path}.") for note in after[1]
    )
    assert after is None or gone or after != before, f"{name} disappears"


def test_the_table_has_every_field():
    assert FIELDS.keys() <= TOP.keys()


def test_several_dropped_cache_marks_have_one_note():
    request = user(*[{**TEXT, "cache_control": MARK}] * 5) | {"cache_control": MARK}

    for dialect in DIALECTS:
        notes = [one for one in built(request, dialect, "openai")[1] if one.fate == "dropped"]
        assert [one.path for one in notes] == ["messages.0.content.0.cache_control"]
        assert notes[0].reason == "this upstream does not accept a cache mark here (6 in all)"


def test_a_server_that_takes_marks_loses_those_that_are_too_many():
    request = user(*[{**TEXT, "cache_control": MARK} for _ in range(6)])

    body, notes, _ = built(request, "responses", "all")

    parts = body["input"][0]["content"]
    assert ["prompt_cache_breakpoint" in part for part in parts] == [False] * 2 + [True] * 4
    assert [(one.path, one.fate) for one in notes] == [
        ("messages.0.content.0.cache_control", "dropped")
    ]
    assert notes[0].reason.endswith("(2 in all)")


@for_each("dialect", DIALECTS)
def test_supported_cache_marks_are_sent_without_a_note(dialect):
    request = user({**TEXT, "cache_control": MARK})

    for requested in (request, {"messages": [USER], "cache_control": MARK}):
        body, notes, _ = built(requested, dialect, "all")
        assert "prompt_cache_breakpoint" in str(body)
        assert notes == ()


def test_an_hour_in_the_cache_is_half_an_hour_in_chat():
    request = user({**TEXT, "cache_control": {**MARK, "ttl": "1h"}})

    assert built(request, "responses", "all")[1] == ()
    (note,) = built(request, "chat", "all")[1]
    assert (note.path, note.fate) == ("messages.0.content.0.cache_control.ttl", "clamped")


def test_a_tool_that_may_not_be_called_is_not_sent_as_one_that_may():
    request = tools({**TOOLSET, "configs": {"rm": {"enabled": False}}}, mcp_servers=MCP)

    assert built(request, "responses", "all") is None


def whole(request: dict[str, Any], dialect: str, profile: str):
    """Return the body and the notes of a request that must not be rejected."""
    target = TranslationTarget(profile=PROFILES[profile])
    requested = parse_messages_request({"model": "m", "max_tokens": 2048, **request})
    made = DIALECTS[dialect].build_request(requested, target)
    return made.body, made.notes


@for_each("dialect", DIALECTS)
def test_a_safety_check_that_nobody_runs_is_refused_by_its_name(dialect):
    request = {"messages": [USER], "safeguards": [{"type": "dangerous_tool_use"}]}

    with pytest.raises(BadRequest, match=r"^safeguards: "):
        whole(request, dialect, "openai")


@for_each("dialect", DIALECTS)
def test_parameters_that_are_not_set_are_not_sent(dialect):
    request = {"messages": [USER], "top_k": -1, "top_p": -1, "temperature": 0.5}

    body, notes = whole(request, dialect, "vllm")

    assert body.keys() & {"top_k", "top_p", "temperature"} == {"temperature"}
    assert [(note.path, note.fate) for note in notes] == [
        ("top_p", "ignored"), ("top_k", "ignored"),
    ]  # fmt: skip


@for_each("dialect", DIALECTS)
@for_each("profile", PROFILES)
def test_there_is_no_limit_of_tools_unless_one_is_set(profile, dialect):
    many = tools(*[{**LOOK, "name": f"look_{n}"} for n in range(300)])

    assert len(whole(many, dialect, profile)[0]["tools"]) == 300


@for_each("dialect", DIALECTS)
def test_a_call_without_arguments_has_an_empty_object(dialect):
    bare = {name: value for name, value in CALL.items() if name != "input"}

    body, notes = whole(reply(bare), dialect, "openai")

    assert '"arguments": "{}"' in json.dumps(body)
    assert ("messages.1.content.1.input", "repaired") in [(n.path, n.fate) for n in notes]


@for_each("dialect", DIALECTS)
def test_the_caller_of_a_call_comes_back_unseen(dialect):
    direct = {**CALL, "caller": {"type": "direct"}}

    assert whole(reply(direct), dialect, "openai") == whole(reply(CALL), dialect, "openai")
