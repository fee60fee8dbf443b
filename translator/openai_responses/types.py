"""JSON types of the Responses API that this package reads and writes, with OpenAI's names.

Source: https://platform.openai.com/docs/api-reference/responses
"""

from typing import Any, Literal, NotRequired, Required, TypedDict

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


class CacheBreakpoint(TypedDict):
    mode: Literal["explicit"]
    ttl: NotRequired[Literal["30m", "12h"]]


class InputText(TypedDict):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: NotRequired[CacheBreakpoint]


class InputImage(TypedDict):
    type: Literal["input_image"]
    detail: Literal["auto", "low", "high"]
    image_url: NotRequired[str]
    file_id: NotRequired[str]
    prompt_cache_breakpoint: NotRequired[CacheBreakpoint]


class InputFile(TypedDict):
    type: Literal["input_file"]
    filename: NotRequired[str]
    file_data: NotRequired[str]
    file_url: NotRequired[str]
    file_id: NotRequired[str]
    prompt_cache_breakpoint: NotRequired[CacheBreakpoint]


InputPart = InputText | InputImage | InputFile


class InputMessage(TypedDict):
    """A message; an assistant message has a plain string, since parts would need message ids."""

    type: Literal["message"]
    role: Literal["user", "assistant", "developer"]
    content: str | list[InputPart]
    phase: NotRequired[Literal["commentary", "final_answer"]]


class FunctionCall(TypedDict):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(TypedDict):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputPart]


class ReasoningText(TypedDict):
    type: Literal["summary_text", "reasoning_text"]
    text: str


class ReasoningItem(TypedDict):
    type: Literal["reasoning"]
    id: str
    summary: list[ReasoningText]
    content: NotRequired[list[ReasoningText]]
    encrypted_content: str


class FunctionTool(TypedDict):
    type: Literal["function"]
    name: str
    description: NotRequired[str]
    parameters: dict[str, Any]
    strict: bool


InputItem = dict[str, Any]
"""One entry of ``input``: an InputMessage, FunctionCall, FunctionCallOutput or ReasoningItem."""
