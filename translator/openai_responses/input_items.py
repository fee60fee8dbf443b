"""The conversation: Anthropic's turns -> ``input`` items, in the order that Responses demands.

Between two assistant turns the results of the first one's calls come first, one for each, then
what was said, in its order. Source: mapping.md 1.3.
"""

from typing import Any, Final

from translator.draft import Draft
from translator.names import upstream_call_id
from translator.render import tool_error_text
from translator.tool_changes import CHANGES

from .assistant import assistant_turn
from .parts import PARTS
from .types import InputItem, InputPart

NO_RESULT: Final = "[no result recorded]"
MEDIA_PLACEHOLDER: Final = "[image or file: in the next user message]"
CONTINUE: Final = (
    "Your last message is unfinished. Continue it exactly where it ends, and repeat nothing of it."
)
MAX_BREAKPOINTS: Final = 4  # that one request may write

Output = str | list[InputPart]


class Between:
    """What stands between two assistant turns; results are sorted to its front."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls  # ids of the assistant turn before it
        self.results: dict[str, Output] = {}
        self.media: list[InputPart] = []  # out of results that take only text
        self.spoken: list[InputItem] = []  # of user and system, in order


def build_input(draft: Draft) -> list[InputItem]:
    """All turns of the request, without the top-level system prompt."""
    items: list[InputItem] = []
    origins = draft.origins
    between = Between([])
    for number, message in enumerate(draft.request["messages"]):
        path = f"messages.{number}"
        match message["role"]:
            case "assistant":
                turn = assistant_turn(message["content"], path, draft)
                settled = _settled(between, path, draft)
                items += settled
                items += turn.items
                origins += [number - 1] * len(settled)
                origins += [number] * len(turn.items)
                between = Between(turn.calls)
            case "system":
                _system(message, number, between, draft)
            case _:
                _user(message, path, between, draft)
    items += _settled(between, "messages", draft)
    origins += [number] * (len(items) - len(origins))
    _mark_last_user(items, draft)
    if items and items[-1].get("role") == "assistant":
        # Responses begins a new turn after it; the model must be told to go on instead.
        draft.note(path, "emulated", "the answer is asked to continue the prefilled text")
        told: InputItem = {"type": "message", "role": "developer"}
        items.append({**told, "content": [PARTS.text(CONTINUE)]})
        origins.append(number)
    return items


def limit_breakpoints(items: list[InputItem]) -> None:
    """Keep the latest four breakpoints, which cover the longest prefixes."""
    marked = [
        part
        for item in items
        if isinstance(content := item.get("content"), list)
        for part in content
        if "prompt_cache_breakpoint" in part
    ]
    for part in marked[:-MAX_BREAKPOINTS]:
        del part["prompt_cache_breakpoint"]


def _user(message: dict[str, Any], path: str, between: Between, draft: Draft) -> None:
    content = message["content"]
    if isinstance(content, str):
        parts = PARTS.of_content(content, path, draft)
    else:
        parts = []
        for number, block in enumerate(content):
            here = f"{path}.content.{number}"
            if block["type"] == "tool_result":
                _tool_result(block, here, between, draft)
            else:
                parts += PARTS.of_block(block, here, draft)
    if parts:
        between.spoken.append({"type": "message", "role": "user", "content": parts})


def _tool_result(block: dict[str, Any], path: str, between: Between, draft: Draft) -> None:
    parts = PARTS.of_content(block.get("content"), path, draft)
    texts: list[str] = []
    media: list[InputPart] = []
    for part in parts:
        if "prompt_cache_breakpoint" in part:
            del part["prompt_cache_breakpoint"]
        if part["type"] == "input_text":
            texts.append(part["text"])
        else:
            media.append(part)
    if media and not draft.profile.media_in_tool_output:
        between.media += media
        texts += [MEDIA_PLACEHOLDER] * len(media)
        media = []
        draft.note(path, "emulated", "media of a tool result moved to a user message")
    output: Output = "\n".join(texts)
    if block.get("is_error"):
        # There is no field for failure, and the model must not take it for a result.
        draft.note(f"{path}.is_error", "emulated", "told at the beginning of the output")
        parts = [PARTS.text(tool_error_text("")), *parts]
        output = tool_error_text("\n".join(texts))
    if media:
        output = parts
    call_id = upstream_call_id(block["tool_use_id"])
    if call_id in between.results:
        draft.note(path, "repaired", "another result of the same call replaces the first one")
    between.results[call_id] = output


def _system(message: dict[str, Any], number: int, between: Between, draft: Draft) -> None:
    """A system message in mid conversation becomes a developer message in its place."""
    path = f"messages.{number}"
    if message.get("clear_at") == "next_user_message" and number < draft.last_user_message:
        draft.note(path, "emulated", "cleared: a user message follows")
        return
    effort = (message.get("output_config") or {}).get("effort")
    if effort and effort in draft.profile.efforts and draft.profile.configuration_update:
        between.spoken.append({"type": "configuration_update", "reasoning": {"effort": effort}})
    elif effort and number < draft.effort_until:
        draft.effort = (effort, f"{path}.output_config.effort")
    content = message["content"]
    if not isinstance(content, str):
        content = [block for block in content if block.get("type") not in CHANGES]
    parts = PARTS.of_content(content, path, draft)
    if parts:
        between.spoken.append({"type": "message", "role": "developer", "content": parts})


def _settled(between: Between, path: str, draft: Draft) -> list[InputItem]:
    """Results first and complete, then what does not fit into them, then what was said."""
    items: list[InputItem] = []
    for call_id in between.calls:
        if call_id not in between.results:
            draft.note(path, "repaired", "a tool call without its result")
        output = between.results.pop(call_id, NO_RESULT)
        items.append({"type": "function_call_output", "call_id": call_id, "output": output})
    if not between.results and not between.media:
        return items + between.spoken
    first = [*between.media]
    for orphan in between.results.values():
        draft.note(path, "repaired", "a tool result without its call is told by the user")
        first.append(PARTS.text("[tool result]"))
        first += [PARTS.text(orphan)] if isinstance(orphan, str) else orphan
    said = between.spoken
    if said and said[0].get("role") == "user":
        first += said[0]["content"]
        said = said[1:]
    return [*items, {"type": "message", "role": "user", "content": first}, *said]


def _mark_last_user(items: list[InputItem], draft: Draft) -> None:
    """The automatic breakpoint, asked for at the top level: the last part that the user said."""
    automatic = draft.request.get("cache_control")
    if not automatic or not draft.profile.cache_breakpoints:
        return
    said = [item for item in items if item.get("role") == "user"]
    # A part that the client marked itself keeps its own mark, which may last longer.
    if said and "prompt_cache_breakpoint" not in said[-1]["content"][-1]:
        PARTS.mark(said[-1]["content"][-1], automatic)
