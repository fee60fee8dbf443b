"""JSON types of the Responses API that this package reads and writes, with OpenAI's names.

Source: https://platform.openai.com/docs/api-reference/responses
"""

from typing import Any, Required, TypedDict

UpstreamEvent = dict[str, Any]
"""One event of a response stream; any field may be missing or have a wrong type."""

OutputItem = dict[str, Any]
"""One entry of ``response.output``; any field may be missing or have a wrong type."""


class ResponseRead(TypedDict, total=False):
    """The fields of a response that are decoded; its copy of instructions and tools is skipped."""

    code: Any
    error: Any
    id: Any
    incomplete_details: Any
    max_output_tokens: Any
    message: Any
    model: Any
    output: Any
    output_text: Any
    param: Any
    service_tier: Any
    status: Any
    tool_usage: Any
    usage: Any


class EventRead(TypedDict, total=False):
    """The fields of an event that are decoded; padding and copies of the request are skipped."""

    type: Required[str]
    response: ResponseRead
    item_id: Any
    call_id: Any
    output_index: Any
    content_index: Any
    delta: Any
    text: Any
    part: Any
    item: Any
    arguments: Any
    summary_index: Any
    annotation: Any
    input: Any
    refusal: Any
    error: Any
    code: Any
    message: Any
    param: Any
    status: Any
