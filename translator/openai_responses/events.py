"""Every event of a response stream: who says what it brings, or why it is passed over.

The 59 types of OpenAI's list and those seen in the wild; a test compares the tables with the
installed SDK. Source: mapping.md 4.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .items import Item
from .speech import Speech

Say = Callable[[Speech, Item, int, Any], object]


@dataclass(frozen=True, slots=True)
class Words:
    """Where an event keeps what it says: of which type of item, which part, in which field."""

    item_type: str
    number: str
    field: str
    say: Say


SAID: Final[Mapping[str, Words]] = {
    # OpenRouter's page on streaming
    "response.content_part.delta": Words("message", "content_index", "delta", Speech.text),
    "response.content_part.done": Words("message", "content_index", "part", Speech.whole_part),
    "response.custom_tool_call_input.delta": Words(
        "custom_tool_call", "", "delta", Speech.input_text
    ),
    "response.custom_tool_call_input.done": Words(
        "custom_tool_call", "", "input", Speech.whole_input
    ),
    "response.function_call_arguments.delta": Words("function_call", "", "delta", Speech.arguments),
    "response.function_call_arguments.done": Words(
        "function_call", "", "arguments", Speech.whole_arguments
    ),
    "response.output_text.annotation.added": Words(
        "message", "content_index", "annotation", Speech.cite
    ),
    "response.output_text.delta": Words("message", "content_index", "delta", Speech.text),
    "response.output_text.done": Words("message", "content_index", "text", Speech.whole_text),
    # The Open Responses specification; not in OpenAI's own list
    "response.reasoning.delta": Words("reasoning", "content_index", "delta", Speech.thought),
    "response.reasoning.done": Words("reasoning", "content_index", "text", Speech.whole_thought),
    "response.reasoning_summary_text.delta": Words(
        "reasoning", "summary_index", "delta", Speech.summary
    ),
    "response.reasoning_summary_text.done": Words(
        "reasoning", "summary_index", "text", Speech.whole_summary
    ),
    "response.reasoning_text.delta": Words("reasoning", "content_index", "delta", Speech.thought),
    "response.reasoning_text.done": Words(
        "reasoning", "content_index", "text", Speech.whole_thought
    ),
    "response.refusal.delta": Words("message", "content_index", "delta", Speech.refuse),
    "response.refusal.done": Words("message", "content_index", "refusal", Speech.whole_refusal),
}

ADDED: Final[Mapping[str, str]] = {
    "response.content_part.added": "content_index",
    "response.reasoning_part.added": "content_index",  # open models; not in OpenAI's own list
    "response.reasoning_summary_part.added": "summary_index",
}
"""A part begins, mostly without a word: where its number stands."""

PINGS: Final = frozenset(
    {
        "keepalive",
        "ping",
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
        "response.compaction.compacting",
        "response.mcp_call.in_progress",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
    }
)
"""Signs of life while the upstream works silently; clients give up on silence."""

IGNORED: Final = frozenset(
    {
        # Said again, and better, by other events.
        *ADDED,
        "response.reasoning_part.done",
        "response.reasoning_summary_part.done",
        # Told by the finished item.
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.mcp_call.completed",
        "response.mcp_call.failed",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_list_tools.completed",
        "response.mcp_list_tools.failed",
        "response.mcp_list_tools.in_progress",
        # Of tools and modalities that we never ask for.
        "response.apply_patch_call_operation_diff.delta",
        "response.apply_patch_call_operation_diff.done",
        "response.audio.delta",
        "response.audio.done",
        "response.audio.transcript.delta",
        "response.audio.transcript.done",
        "response.file_search_call.completed",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.image_generation_call.completed",
        "response.image_generation_call.generating",
        "response.image_generation_call.in_progress",
        "response.image_generation_call.partial_image",
        "response.shell_call_command.added",
        "response.shell_call_command.delta",
        "response.shell_call_command.done",
        "response.shell_call_output_content.delta",
        "response.shell_call_output_content.done",
    }
)
