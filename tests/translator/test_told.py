"""What is told of a request, word for word: notes and refusals, of both dialects and of servers that
can much and little.

``pytest --rewrite-cases`` writes ``tests/cases/told.json`` anew; a human reads the difference.
"""

import json
from pathlib import Path

import pytest

from tests.translator.requests import (
    KEYS,
    PDF,
    WEATHER,
    ask,
    assistant,
    call,
    image,
    result,
    system,
    text,
    user,
)
from translator import openai_chat, openai_responses
from translator.dialect import Target
from translator.errors import BadRequest
from translator.profiles import PROFILES

GOLDEN = Path(__file__).parents[1] / "cases/told.json"
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
    return ask(user("Go."), assistant(*blocks), user("On."))


def answered(*blocks, **fields):
    return ask(user("Go."), assistant(call()), user(result(*blocks, **fields)))


REQUESTS = {
    "sampling": ask(temperature=0.5, top_p=0.9, top_k=5),
    "sampling and reasoning": ask(temperature=0.5, top_p=0.9, thinking={"type": "adaptive"}),
    "stop sequences": ask(stop_sequences=["END"]),
    "a small budget": ask(thinking={"type": "enabled", "budget_tokens": 1024}),
    "the most effort": ask(output_config={"effort": "max"}),
    "no thinking": ask(thinking={"type": "disabled"}),
    "metadata": ask(metadata={"user_id": "u" * 100}),
    "a tier": ask(service_tier="standard_only", speed="fast"),
    "a container": ask(container="c_1"),
    "edits of the context": ask(
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}
    ),
    "compaction": ask(context_management={"edits": [{"type": "compact_20260112"}]}),
    "servers of tools": ask(mcp_servers=[{"type": "url", "url": "https://a.example", "name": "a"}]),
    "a task's budget": ask(
        output_config={"task_budget": {"type": "tokens", "total": 9}, "effort": "low"}
    ),
    "a loose format": ask(output_config={"format": {"type": "json_schema", "schema": LOOSE}}),
    "a format": ask(
        output_config={"format": {"type": "json_schema", "schema": WEATHER["input_schema"]}}
    ),
    "a strict tool that cannot be": ask(
        tools=[{**WEATHER, "name": n, "input_schema": schema, "strict": True}
               for n, schema in (("a", LOOSE), ("b", TREE))]
    ),
    "a tool with all its fields": ask(
        tools=[{
            **WEATHER, "name": "n" * 70, "defer_loading": True, "eager_input_streaming": True,
            "input_examples": [{"city": "Oslo"}], "cache_control": {"type": "ephemeral"},
            "allowed_callers": ["direct"], "type": "custom",
        }],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ),
    "tools of the provider": ask(
        tools=[
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            {"type": "memory_20250818", "name": "memory"},
        ]
    ),
    **{
        kind: ask(tools=[WEATHER, {"type": kind, "name": kind.rsplit("_", 1)[0], **fields}])
        for kind, fields in {
            "web_search_20250305": {"max_uses": 3, "blocked_domains": ["a.example"]},
            "web_fetch_20250910": {},
            "code_execution_20250825": {},
            "computer_20250124": {"display_width_px": 1, "display_height_px": 1},
            "tool_search_tool_regex_20251119": {},
            "advisor_20260301": {"model": "m"},
        }.items()
    },
    "a choice among tools that are gone": ask(
        tools=[{"type": "tool_search_tool_regex_20251119", "name": "s"}],
        tool_choice={"type": "any"},
    ),
    "an image that is scaled": ask(
        user({**image(), "transformations": {"oversized_image": "error"}})
    ),
    "an image by its file": ask(user(image(type="file", file_id="file_1"))),
    "documents": ask(user(DOCUMENT, TEXTS)),
    "a document by its address": ask(
        user({"type": "document", "source": {"type": "url", "url": "https://a.example/a.pdf"}})
    ),
    "an upload": ask(user({"type": "container_upload", "file_id": "file_1"})),
    "a search result": ask(
        user({"type": "search_result", "source": "https://a.example", "title": "A",
              "content": [text("x")], "citations": {"enabled": True}})
    ),
    "marks of the cache": ask(
        user(text("x", cache_control={"type": "ephemeral", "ttl": "1h"})),
        system=[text("y", cache_control={"type": "ephemeral"})],
        cache_control={"type": "ephemeral"},
    ),
    "a system message on the way": ask(
        user("Go."), assistant("Ok."), system("Now.", output_config={"effort": "low"}), user("On.")
    ),
    "a tool for programs": ask(
        tools=[{**WEATHER, "allowed_callers": ["code_execution_20250825"]}]
    ),
    "a prefill": ask(user("Go."), assistant("It is")),
    "reasoning of others": turn(
        {"type": "thinking", "thinking": "Hm.", "signature": "ErUBCkYIBhgC"}, text("Ok.")
    ),
    "hidden reasoning of others": turn({"type": "redacted_thinking", "data": "EmwK"}, text("Ok.")),
    "a search of the provider": turn(SEARCH, FOUND, text("Ok.")),
    "a document of the assistant's": turn(TEXTS, text("Ok.")),
    "text between calls": ask(
        user("Go."),
        assistant(text("a"), call(), text("b"), call("toolu_2")),
        user(result("x"), result("y", call_id="toolu_2")),
    ),
    "a compaction": turn({"type": "compaction", "content": "They met."}, text("Ok.")),
    "a call without its result": ask(user("Go."), assistant(call()), user("On.")),
    "a result without its call": ask(user("Go."), assistant("Ok."), user(result("x"))),
    "a failed call": answered("no", is_error=True),
    "an image of a tool": answered(text("Shot."), image()),
    "a document of a tool": answered(text("Read."), DOCUMENT),
    "a reference to a tool": answered({"type": "tool_reference", "tool_name": "get_weather"}),
}  # fmt: skip


def told(request, dialect, server):
    target = Target(upstream="local", model="m1", profile=PROFILES[server], carrier_keys=KEYS)
    try:
        notes = DIALECTS[dialect].build_request(request, target).notes
    except BadRequest as refused:
        return [f"refused: {refused}"]
    return [f"{note.path} {note.fate}: {note.reason}" for note in notes]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("server", SERVERS)
def test_every_word_that_is_told_of_a_request(dialect, server, request):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    column = f"{dialect} {server}"

    heard = {name: told(asked, dialect, server) for name, asked in REQUESTS.items()}

    if request.config.getoption("--rewrite-cases"):
        whole = {**golden, column: {name: lines for name, lines in heard.items() if lines}}
        lines = json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True)
        GOLDEN.write_text(lines + "\n", encoding="utf-8")
    else:
        assert {name: lines for name, lines in heard.items() if lines} == golden[column]
