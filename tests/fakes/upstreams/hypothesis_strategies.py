"""Hypothesis strategies for invalid upstream events.

The events use the names of the dialects, so that they reach the code behind each name. Fields are
missing, have a wrong type, or refer to items that do not exist.
"""

from typing import Any

from hypothesis import strategies as st

INDICES = st.sampled_from([0, 1, 2, None, "0", -1])
IDS = st.sampled_from(["item_0", "item_1", "", None, 7])
WORDS = st.sampled_from(
    ["", "a", "grüße", '{"a":', '{"a":1}', "1}", "{}", "null", "[1]", "🙂", "<thought>", "</think>"]
)
WRONG_TYPES: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", 0, 1.5, True, [], {}, "x", [None], [[]], {"a": None}]
)

RESPONSES_TYPES = st.sampled_from(
    [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.delta",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_text.annotation.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning.delta",
        "response.reasoning.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.web_search_call.searching",
        "response.completed",
        "response.done",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "response.invented",
        "ping",
        "keepalive",
        "error",
    ]
)
ITEM_TYPES = st.sampled_from(
    [
        "message",
        "function_call",
        "reasoning",
        "web_search_call",
        "code_interpreter_call",
        "custom_tool_call",
        "mcp_call",
        "image_generation_call",
        "compaction",
        "hologram",
        None,
    ]
)
PART_TYPES = st.sampled_from(["output_text", "refusal", "reasoning_text", "summary_text", "x"])


def _sometimes(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Include each field or not; in one of four draws one field has a wrong type."""
    # One number encodes the choice: a draw for each field takes longer than the law itself.
    return _chosen(fields, st.integers(0, 2 ** len(fields) * 4 * len(fields) - 1))


@st.composite
def _chosen(
    draw: st.DrawFn, fields: dict[str, st.SearchStrategy[Any]], choices: st.SearchStrategy[int]
) -> dict[str, Any]:
    fault, present = divmod(draw(choices), 2 ** len(fields))
    value = {name: draw(kind) for n, (name, kind) in enumerate(fields.items()) if present >> n & 1}
    if fault >= 3 * len(fields):
        value[list(fields)[fault - 3 * len(fields)]] = draw(WRONG_TYPES)
    return value


PARTS = st.lists(_sometimes({"type": PART_TYPES, "text": WORDS, "refusal": WORDS}), max_size=2)
ITEMS = _sometimes(
    {
        "type": ITEM_TYPES,
        "id": IDS,
        "call_id": st.sampled_from(["call_1", "call_2", "", None]),
        "name": st.sampled_from(["bash", "search", "", None]),
        "arguments": WORDS,
        "input": WORDS,
        "content": PARTS,
        "summary": PARTS,
        "encrypted_content": st.sampled_from(["enc", None]),
        "status": st.sampled_from(["completed", "failed", "incomplete"]),
        "action": _sometimes({"type": st.sampled_from(["search", "open_page"]), "query": WORDS}),
    }
)
COUNTS = st.sampled_from([0, 1, 12, -1, 10**18, None, "12", 1.5, True])
RESPONSES = _sometimes(
    {
        "id": IDS,
        "model": WORDS,
        "status": st.sampled_from(["completed", "incomplete", "failed", "queued"]),
        "output": st.lists(ITEMS, max_size=3),
        "usage": _sometimes(
            {
                "input_tokens": COUNTS,
                "output_tokens": COUNTS,
                "input_tokens_details": _sometimes({"cached_tokens": COUNTS}),
                "output_tokens_details": _sometimes({"reasoning_tokens": COUNTS}),
            }
        ),
        "incomplete_details": _sometimes(
            {"reason": st.sampled_from(["max_output_tokens", "content_filter", "unknown"])}
        ),
        "error": _sometimes({"code": WORDS, "message": WORDS}),
    }
)
RESPONSES_EVENTS = st.builds(
    lambda kind, rest: {"type": kind} | rest,
    RESPONSES_TYPES,
    _sometimes(
        {
            "output_index": INDICES,
            "item_id": IDS,
            "content_index": INDICES,
            "summary_index": INDICES,
            "delta": WORDS,
            "text": WORDS,
            "refusal": WORDS,
            "arguments": WORDS,
            "input": WORDS,
            "item": ITEMS,
            "part": _sometimes({"type": PART_TYPES, "text": WORDS}),
            "annotation": _sometimes({"type": st.just("url_citation"), "url": WORDS}),
            "response": RESPONSES,
            "code": WORDS,
            "message": WORDS,
        }
    ),
)

CALLS = _sometimes(
    {
        "index": INDICES,
        "id": st.sampled_from(["call_1", "call_2", "functions.Bash:0", "", None]),
        "type": st.just("function"),
        "function": _sometimes(
            {
                "name": st.sampled_from(["bash", "get_", "weather", "", None]),
                "arguments": st.one_of(WORDS, st.just({"a": 1})),
            }
        ),
    }
)
DELTAS = _sometimes(
    {
        "role": st.just("assistant"),
        "content": st.one_of(
            WORDS,
            st.lists(
                _sometimes(
                    {
                        "type": st.sampled_from(["text", "thinking", "reasoning", None]),
                        "text": WORDS,
                        "thinking": st.lists(_sometimes({"text": WORDS}), max_size=2),
                    }
                ),
                max_size=2,
            ),
        ),
        "reasoning_content": WORDS,
        "reasoning": st.one_of(WORDS, _sometimes({"content": WORDS})),
        "extra_content": st.sampled_from([{"google": {"thought": True}}, {"google": None}]),
        "reasoning_details": st.lists(_sometimes({"type": WORDS, "text": WORDS}), max_size=2),
        "refusal": WORDS,
        "tool_calls": st.one_of(st.lists(CALLS, max_size=2), CALLS),
        "function_call": _sometimes({"name": WORDS, "arguments": WORDS}),
        "annotations": st.lists(
            _sometimes({"type": WORDS, "url_citation": WRONG_TYPES}), max_size=1
        ),
    }
)
FINISHES = st.sampled_from(
    [None, None, "stop", "length", "tool_calls", "content_filter", "function_call", "error", "eos"]
)
CHOICES = _sometimes(
    {
        "index": INDICES,
        "delta": DELTAS,
        "message": DELTAS,
        "text": WORDS,
        "finish_reason": FINISHES,
    }
)
CHAT_CHUNKS = _sometimes(
    {
        "id": IDS,
        "model": WORDS,
        "choices": st.lists(CHOICES, max_size=2),
        "usage": _sometimes({"prompt_tokens": COUNTS, "completion_tokens": COUNTS}),
        "error": _sometimes({"message": WORDS, "code": st.sampled_from([429, "x", None])}),
    }
).filter(
    lambda chunk: "error" not in chunk or len(chunk) > 3
)  # rare, because an error ends the stream
