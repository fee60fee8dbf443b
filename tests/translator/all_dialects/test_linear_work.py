"""A request of four times the size takes about four times the work.

Otherwise one request within the size limit could block a worker for minutes.
"""

import contextlib
import gc
import json
import time

import pytest

from translator import openai_chat, openai_responses
from translator.anthropic.request_validation import parse_messages_request
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.errors import BadRequest
from translator.request.history_shapes import merge_turns
from translator.web_search.request import offer_search

SMALL = 6_000
QUADRATIC = 10  # times the work for four times the size: 4 is linear, 16 is quadratic
EFFORT = {"output_config": {"effort": "low"}}


def emitted(*content):
    return {"messages": [{"role": "user", "content": list(content)}]}


def system_messages(count):
    """Return system messages with an effort each and without a user message after them."""
    changes = [{"role": "system", "content": "x", **EFFORT} for _ in range(count)]
    return {"messages": [{"role": "user", "content": "hi"}, *changes]}


def cleared_messages(count):
    each = {"role": "system", "content": "x", "clear_at": "next_user_message"}
    return {"messages": [{"role": "user", "content": "hi"}, *[each] * count]}


def blocks_with_notes(count):
    text = [{"type": "text", "text": "x"}]
    found = {"type": "search_result", "source": "s", "title": "t", "content": text}
    return emitted(*[found] * count)


def servers(count):
    names = [f"server{number}" for number in range(count)]
    return {
        **emitted({"type": "text", "text": "hi"}),
        "mcp_servers": [{"type": "url", "name": name, "url": "https://mcp"} for name in names],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": name} for name in names],
    }


def results_of_one_call(count):
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": f"{number} {'x' * 99}"}
        for number in range(count)
    ]
    first = {"role": "user", "content": "hi"}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": results}]
    return {"messages": [first, *turns]}


def with_tool(schema, **fields):
    tool = {"name": "f", "input_schema": {"type": "object", **schema}, **fields}
    return {**emitted({"type": "text", "text": "hi"}), "tools": [tool]}


def required_by_two_branches(count):
    names = [f"p{number}" for number in range(2 * count)]
    elsewhere = {"type": "object", "patternProperties": {}}  # the names need no properties here
    branches = [{**elsewhere, "required": each} for each in (names, names[::-1])]
    return with_tool({"anyOf": branches})


def required_of_a_strict_tool(count):
    properties = {f"p{number}": {"type": "string"} for number in range(count // 6)}
    return with_tool({"properties": properties, "required": [*properties] * 6}, strict=True)


def references_to_definitions(count):
    definitions = {f"d{number}": {} for number in range(count)}
    branches = [{"$ref": "#/$defs/d1"}] * (count // 60)
    return with_tool({"$defs": definitions, "anyOf": branches})


REQUESTS = {made.__name__: made for made in (
    system_messages, cleared_messages, blocks_with_notes, servers, required_by_two_branches,
    required_of_a_strict_tool, references_to_definitions, results_of_one_call,
)}  # fmt: skip


def cpu_of(dialect, request):
    """Return the minimum CPU seconds of three runs."""
    body = {"model": "m", "max_tokens": 9, **request}
    target = TranslationTarget(upstream="u", model="m", profile=PROFILES["openai"])
    runs = []
    for _ in range(3):
        began = time.process_time()
        with contextlib.suppress(
            BadRequest
        ):  # this many servers are rejected after each is checked
            dialect.build_request(body, target)
        runs.append(time.process_time() - began)
    return min(runs)


DIALECTS = {"chat": openai_chat, "responses": openai_responses}
IN_FAST_LANE = {
    ("chat", "system_messages"), ("chat", "blocks_with_notes"), ("chat", "results_of_one_call"),
    ("responses", "cleared_messages"), ("responses", "servers"),
    *(("responses", made) for made in REQUESTS if "require" in made or "references" in made),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "made"),
    [
        pytest.param(
            DIALECTS[dialect], REQUESTS[made], id=f"{dialect}-{made}",
            marks=() if (dialect, made) in IN_FAST_LANE else pytest.mark.slow,
        )
        for dialect in DIALECTS
        for made in REQUESTS
    ],
)  # fmt: skip
def test_four_times_the_request_is_about_four_times_the_work(dialect, made):
    gc.disable()
    try:
        small, large = cpu_of(dialect, made(SMALL)), cpu_of(dialect, made(4 * SMALL))
    finally:
        gc.enable()

    assert large < QUADRATIC * max(small, 0.001)


def test_a_repeated_tool_name_is_found_in_about_four_times_the_work():
    def cpu(count):
        names = [*range(count), count - 1]
        body = {"model": "m", "max_tokens": 9, **emitted({"type": "text", "text": "hi"})}
        body["tools"] = [{"name": f"t{number}"} for number in names]
        began = time.process_time()
        with pytest.raises(BadRequest, match="unique"):
            parse_messages_request(body)
        return time.process_time() - began

    assert cpu(4 * SMALL) < QUADRATIC * max(min(cpu(SMALL) for _ in range(3)), 0.002)


@pytest.mark.parametrize("strict", [True, False])
def test_many_references_to_one_large_definition_are_not_expanded(strict):
    """Otherwise a body of some 100 KB would become one of gigabytes."""
    words = [f"word {number}" for number in range(10_000)]
    large = {"type": "object", "properties": {"w": {"type": "string", "enum": words}},
             "required": ["w"]}  # fmt: skip
    schema = {
        "$defs": {"large": large},
        "properties": {f"p{number}": {"$ref": "#/$defs/large"} for number in range(1_000)},
    }
    body = {"model": "m", "max_tokens": 9, **with_tool(schema, strict=strict)}
    target = TranslationTarget(upstream="u", model="m", profile=PROFILES["openai"])

    built = openai_responses.DIALECT.build_request(body, target)

    assert len(json.dumps(built.body)) < 2 * len(json.dumps(body))


def test_the_searches_of_one_turn_are_read_in_about_four_times_the_work():
    tool = {"type": "web_search_20250305", "name": "web_search"}

    def cpu(count):
        ids = [f"srvtoolu_{number}" for number in range(count)]
        calls = [
            {"type": "server_tool_use", "id": id_, "name": "web_search", "input": {}} for id_ in ids
        ]
        results = [
            {"type": "web_search_tool_result", "tool_use_id": id_, "content": []} for id_ in ids
        ]
        turn = {"role": "assistant", "content": [*calls, *results]}
        began = time.process_time()
        offer_search({"messages": [turn], "tools": [tool]}, tool)
        return time.process_time() - began

    assert cpu(4 * SMALL) < QUADRATIC * max(min(cpu(SMALL) for _ in range(3)), 0.002)


@pytest.mark.parametrize("first", [[], [{"role": "tool", "content": "r"}]], ids=["user", "result"])
def test_turns_of_one_role_are_merged_in_about_four_times_the_work(first):
    def cpu(count):
        began = time.process_time()
        (merged,) = merge_turns([*first, *[{"role": "user", "content": "x" * 50}] * count])
        assert len(merged["content"]) >= 52 * count - 2
        return time.process_time() - began

    assert cpu(4 * SMALL) < QUADRATIC * max(min(cpu(SMALL) for _ in range(3)), 0.005)
