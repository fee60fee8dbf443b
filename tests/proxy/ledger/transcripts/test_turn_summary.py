"""The summary of what a request adds to its conversation."""

import json

from proxy.ledger.transcripts.body_parts import split_body
from proxy.ledger.transcripts.turn_summary import MAX_SUMMARY, cut_middle, summarize_turn
from tests.for_each import for_each

PROMPT = {"role": "user", "content": "Fix the\n  tile cache."}
SYSTEM = {"role": "system", "content": "The available agents."}


def call(ident, name, **tool_input):
    return {"type": "tool_use", "id": ident, "name": name, "input": tool_input}


def answer(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def results(*idents, **more):
    blocks = [{"type": "tool_result", "tool_use_id": one, "content": "x", **more} for one in idents]
    return {"role": "user", "content": blocks}


REMINDER = {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>"}
CALLS = answer(
    call("a", "Bash", description="Run", command="make -C tiles"),
    call("b", "Read", file_path="a.py"),
)


@for_each(
    ("messages", "preview", "prompt"),
    [
        ([PROMPT], "Fix the tile cache.", "Fix the tile cache."),
        ([PROMPT, SYSTEM], "Fix the tile cache.", "Fix the tile cache."),
        ([PROMPT, CALLS, results("a", "b")], "Bash make -C tiles · Read a.py", "Fix the tile cache."),
        ([PROMPT, CALLS, results("a", is_error=True), SYSTEM], "Bash make -C tiles (failed)", "Fix the tile cache."),
        ([PROMPT, answer(call("c", "mcp__x", n=1, area="north")), results("c")], "mcp__x north", "Fix the tile cache."),
        ([PROMPT, answer(call("c", "Wait")), results("c")], "Wait", "Fix the tile cache."),
        ([PROMPT, results("unknown")], "[tool result]", "Fix the tile cache."),
        ([PROMPT, CALLS, {"role": "user", "content": [*results("a")["content"], REMINDER, {"type": "text", "text": "Stop."}]}],
         "Stop.", "Stop."),
        ([{"role": "user", "content": [REMINDER]}], "<system-reminder> Today is Friday. </system-reminder>", ""),
        ([{"role": "user", "content": [{"type": "image"}]}], "[image]", ""),
        ([SYSTEM], "The available agents.", ""),
        ([], "", ""),
    ],
)  # fmt: skip
def test_a_summary_has_new_words_or_calls_and_the_last_prompt(messages, preview, prompt):
    assert summarize_turn(messages) == (preview, prompt)


def test_many_results_and_long_targets_are_cut():
    calls = [call(str(n), "Read", file_path=f"/{'long/' * 40}{n}.py") for n in range(9)]

    preview = summarize_turn([PROMPT, answer(*calls), results(*map(str, range(9)))]).preview

    assert len(preview) == MAX_SUMMARY
    assert preview.endswith(" and 5 more")
    assert "long/0.py · Read /long" in preview


@for_each("strange", [None, 7, "text", [], {}, [[]], [None], [{"content": 5}], [{"role": [], "content": [7]}],
                                     [PROMPT, {"content": [{"type": "tool_use", "id": [], "input": []}]}, results("a")]])  # fmt: skip
def test_messages_of_any_shape_are_summarized(strange):
    split = split_body(json.dumps({"messages": strange}).encode())

    assert all(isinstance(text, str) for text in split.summary)


@for_each(("limit", "cut"), [(6, "abcdef"), (5, "ab…ef"), (4, "ab…f"), (2, "a…")])
def test_a_text_is_cut_in_the_middle(limit, cut):
    assert len(cut_middle("abcdef", limit)) <= limit
    if limit > 2:
        assert cut_middle("abcdef", limit) == cut
