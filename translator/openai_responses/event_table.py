"""Every event type of a Responses API stream, with its handler or as an ignored type.

The tables contain the 59 types of OpenAI's list and those in recorded streams; a test compares the
tables with the installed SDK. Source: docs/mapping.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .output_blocks import OutputBlocks
from .output_items import ItemState

EventHandler = Callable[[OutputBlocks, ItemState, int, Any], object]


@dataclass(frozen=True, slots=True)
class EventMapping:
    """An event type's item type, its fields for the part number and the value, its handler."""

    item_type: str
    number_field: str
    field: str
    handler: EventHandler


EVENT_MAPPINGS: Final[Mapping[str, EventMapping]] = {
    # From OpenRouter's documentation of streaming
    "response.content_part.delta": EventMapping(
        "message", "content_index", "delta", OutputBlocks.add_text
    ),
    "response.content_part.done": EventMapping(
        "message", "content_index", "part", OutputBlocks.finish_part
    ),
    "response.custom_tool_call_input.delta": EventMapping(
        "custom_tool_call", "", "delta", OutputBlocks.add_input_text
    ),
    "response.custom_tool_call_input.done": EventMapping(
        "custom_tool_call", "", "input", OutputBlocks.finish_input
    ),
    "response.function_call_arguments.delta": EventMapping(
        "function_call", "", "delta", OutputBlocks.add_arguments
    ),
    "response.function_call_arguments.done": EventMapping(
        "function_call", "", "arguments", OutputBlocks.finish_arguments
    ),
    "response.output_text.annotation.added": EventMapping(
        "message", "content_index", "annotation", OutputBlocks.add_citation
    ),
    "response.output_text.delta": EventMapping(
        "message", "content_index", "delta", OutputBlocks.add_text
    ),
    "response.output_text.done": EventMapping(
        "message", "content_index", "text", OutputBlocks.finish_text
    ),
    # From the Open Responses specification; not in OpenAI's list
    "response.reasoning.delta": EventMapping(
        "reasoning", "content_index", "delta", OutputBlocks.add_reasoning_text
    ),
    "response.reasoning.done": EventMapping(
        "reasoning", "content_index", "text", OutputBlocks.finish_reasoning_text
    ),
    "response.reasoning_summary_text.delta": EventMapping(
        "reasoning", "summary_index", "delta", OutputBlocks.add_summary
    ),
    "response.reasoning_summary_text.done": EventMapping(
        "reasoning", "summary_index", "text", OutputBlocks.finish_summary
    ),
    "response.reasoning_text.delta": EventMapping(
        "reasoning", "content_index", "delta", OutputBlocks.add_reasoning_text
    ),
    "response.reasoning_text.done": EventMapping(
        "reasoning", "content_index", "text", OutputBlocks.finish_reasoning_text
    ),
    "response.refusal.delta": EventMapping(
        "message", "content_index", "delta", OutputBlocks.add_refusal
    ),
    "response.refusal.done": EventMapping(
        "message", "content_index", "refusal", OutputBlocks.finish_refusal
    ),
}

PART_ADDED: Final[Mapping[str, str]] = {
    "response.content_part.added": "content_index",
    # Open models send this type, which OpenAI's list does not have.
    "response.reasoning_part.added": "content_index",
    "response.reasoning_summary_part.added": "summary_index",
}
"""Events that add a part, usually without text, and the field that contains the part's number."""

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
"""Events that become a ``ping`` event, because clients close a stream that sends nothing."""

IGNORED: Final = frozenset(
    {
        # Other events repeat the content of these events.
        *PART_ADDED,
        "response.reasoning_part.done",
        "response.reasoning_summary_part.done",
        # The finished item repeats the content of these events.
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.mcp_call.completed",
        "response.mcp_call.failed",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_list_tools.completed",
        "response.mcp_list_tools.failed",
        "response.mcp_list_tools.in_progress",
        # Events of tools and modalities that the gateway never requests.
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
