"""Compare every note and error message about a request with its expected text, in both dialects.

``pytest --rewrite-cases`` writes ``tests/cases/client_messages.json`` again; review the difference.
"""

import json
from pathlib import Path

import pytest

from tests.fakes.anthropic_requests import (
    KEYS,
    PDF,
    WEATHER,
    assistant,
    call,
    image,
    make_request,
    result,
    system,
    text,
    user,
)
from translator import openai_chat, openai_responses
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.errors import BadRequest

GOLDEN = Path(__file__).parents[2] / "cases/client_messages.json"
DIALECTS = {"chat": openai_chat.DIALECT, "responses": openai_responses.DIALECT}
SERVERS = ("openai", "generic", "deepseek")
LOOSE = {"type": "object", "additionalProperties": {"type": "string"}}
TREE = {"type": "object", "properties": {"sub": {"$ref": "#"}}, "minProperties": 2}
SEARCH = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "x"},
}
FOUND = {
    "type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://a.example", "title": "A"}],
}  # fmt: skip
DOCUMENT = {"type": "document", "source": PDF, "title": "R", "citations": {"enabled": True}}
TEXTS = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}


def turn(*blocks):
    return make_request(user("Go."), assistant(*blocks), user("On."))


def answered(*blocks, **fields):
    return make_request(user("Go."), assistant(call()), user(result(*blocks, **fields)))


REQUESTS = {
    "sampling": make_request(temperature=0.5, top_p=0.9, top_k=5),
    "sampling and reasoning": make_request(temperature=0.5, top_p=0.9, thinking={"type": "adaptive"}),
    "stop sequences": make_request(stop_sequences=["END"]),
    "a small budget": make_request(thinking={"type": "enabled", "budget_tokens": 1024}),
    "the most effort": make_request(output_config={"effort": "max"}),
    "no thinking": make_request(thinking={"type": "disabled"}),
    "metadata": make_request(metadata={"user_id": "u" * 100}),
    "a tier": make_request(service_tier="standard_only", speed="fast"),
    "a container": make_request(container="c_1"),
    "edits of the context": make_request(
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}
    ),
    "compaction": make_request(context_management={"edits": [{"type": "compact_20260112"}]}),
    "servers of tools": make_request(mcp_servers=[{"type": "url", "url": "https://a.example", "name": "a"}]),
    "a task's budget": make_request(
        output_config={"task_budget": {"type": "tokens", "total": 9}, "effort": "low"}
    ),
    "a loose format": make_request(output_config={"format": {"type": "json_schema", "schema": LOOSE}}),
    "a format": make_request(
        output_config={"format": {"type": "json_schema", "schema": WEATHER["input_schema"]}}
    ),
    "a strict tool that cannot be": make_request(
        tools=[{**WEATHER, "name": n, "input_schema": schema, "strict": True}
               for n, schema in (("a", LOOSE), ("b", TREE))]
    ),
    "a tool with all its fields": make_request(
        tools=[{
            **WEATHER, "name": "n" * 70, "eager_input_streaming": True,
            "input_examples": [{"city": "Oslo"}], "cache_control": {"type": "ephemeral"},
            "allowed_callers": ["direct"], "type": "custom",
        }],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ),
    "tools of the provider": make_request(
        tools=[
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            {"type": "memory_20250818", "name": "memory"},
        ]
    ),
    **{
        kind: make_request(tools=[WEATHER, {"type": kind, "name": kind.rsplit("_", 1)[0], **fields}])
        for kind, fields in {
            "web_search_20250305": {"max_uses": 3, "blocked_domains": ["a.example"]},
            "web_fetch_20250910": {},
            "code_execution_20250825": {},
            "computer_20250124": {"display_width_px": 1, "display_height_px": 1},
            "tool_search_tool_regex_20251119": {},
            "advisor_20260301": {"model": "m"},
        }.items()
    },
    "a choice among tools that are gone": make_request(
        tools=[{"type": "tool_search_tool_regex_20251119", "name": "s"}],
        tool_choice={"type": "any"},
    ),
    "an image that is scaled": make_request(
        user({**image(), "transformations": {"oversized_image": "error"}})
    ),
    "an image by its file": make_request(user(image(type="file", file_id="file_1"))),
    "documents": make_request(user(DOCUMENT, TEXTS)),
    "a document by its address": make_request(
        user({"type": "document", "source": {"type": "url", "url": "https://a.example/a.pdf"}})
    ),
    "an upload": make_request(user({"type": "container_upload", "file_id": "file_1"})),
    "a search result": make_request(
        user({"type": "search_result", "source": "https://a.example", "title": "A",
              "content": [text("x")], "citations": {"enabled": True}})
    ),
    "marks of the cache": make_request(
        user(text("x", cache_control={"type": "ephemeral", "ttl": "1h"})),
        system=[text("y", cache_control={"type": "ephemeral"})],
        cache_control={"type": "ephemeral"},
    ),
    "a system message on the way": make_request(
        user("Go."), assistant("Ok."), system("Now.", output_config={"effort": "low"}), user("On.")
    ),
    "a tool for programs": make_request(
        tools=[{**WEATHER, "allowed_callers": ["code_execution_20250825"]}]
    ),
    "a prefill": make_request(user("Go."), assistant("It is")),
    "reasoning of others": turn(
        {"type": "thinking", "thinking": "Hm.", "signature": "ErUBCkYIBhgC"}, text("Ok.")
    ),
    "hidden reasoning of others": turn({"type": "redacted_thinking", "data": "EmwK"}, text("Ok.")),
    "a search of the provider": turn(SEARCH, FOUND, text("Ok.")),
    "a document of the assistant's": turn(TEXTS, text("Ok.")),
    "text between calls": make_request(
        user("Go."),
        assistant(text("a"), call(), text("b"), call("toolu_2")),
        user(result("x"), result("y", call_id="toolu_2")),
    ),
    "a compaction": turn({"type": "compaction", "content": "They met."}, text("Ok.")),
    "a call without its result": make_request(user("Go."), assistant(call()), user("On.")),
    "a result without its call": make_request(user("Go."), assistant("Ok."), user(result("x"))),
    "a failed call": answered("no", is_error=True),
    "an image of a tool": answered(text("Shot."), image()),
    "a document of a tool": answered(text("Read."), DOCUMENT),
    "a reference to a tool": answered({"type": "tool_reference", "tool_name": "get_weather"}),
}  # fmt: skip


def messages_of(request, dialect, server):
    target = TranslationTarget(
        upstream="local", model="m1", profile=PROFILES[server], signing_keys=KEYS
    )
    try:
        notes = DIALECTS[dialect].build_request(request, target).notes
    except BadRequest as refused:
        return [f"refused: {refused}"]
    return [f"{note.path} {note.fate}: {note.reason}" for note in notes]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("server", SERVERS)
def test_every_message_about_a_request(dialect, server, request):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    column = f"{dialect} {server}"

    decoder = {
        name: messages_of(requested, dialect, server) for name, requested in REQUESTS.items()
    }

    if request.config.getoption("--rewrite-cases"):
        whole = {**golden, column: {name: lines for name, lines in decoder.items() if lines}}
        lines = json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True)
        GOLDEN.write_text(lines + "\n", encoding="utf-8")
    else:
        assert {name: lines for name, lines in decoder.items() if lines} == golden[column]
