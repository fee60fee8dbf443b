"""JSON types of Chat Completions, with the field names of OpenAI's documentation.

The types also have fields of compatible servers that this package reads or writes. Source:
https://platform.openai.com/docs/api-reference/chat
"""

from typing import Any, Literal, Required, TypedDict

ContentPart = dict[str, Any]
"""One part of a message's content: ``text``, ``image_url`` or ``file``."""


class FunctionCall(TypedDict, total=False):
    name: str
    arguments: str | dict[str, Any] | None  # an object from Ollama-like servers


class ToolCall(TypedDict, total=False):
    index: int  # this occurs only in streams; some servers omit it or always send 0
    id: str | None
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(TypedDict, total=False):
    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: str | list[ContentPart] | None
    tool_calls: list[ToolCall]
    tool_call_id: str
    reasoning_content: str  # DeepSeek, Kimi, GLM, Qwen, llama.cpp and older vLLM send this
    reasoning: str  # vLLM, Groq, OpenRouter and Ollama send this
    reasoning_details: list[dict[str, Any]]  # OpenRouter: later requests must repeat it unchanged


class Delta(TypedDict, total=False):
    role: str | None
    content: str | list[ContentPart] | None  # Mistral sends a list
    refusal: str | None
    tool_calls: list[ToolCall] | None
    function_call: FunctionCall | None  # the field of OpenAI's older API, before tool_calls
    annotations: list[dict[str, Any]]
    reasoning_content: str | None
    reasoning: str | None
    reasoning_details: list[dict[str, Any]]


class Choice(TypedDict, total=False):
    index: int
    delta: Delta
    message: Delta  # this occurs in responses that are not streamed; some servers also stream it
    finish_reason: str | None
    stop_reason: str | int | None  # vLLM: the stop string that matched
    error: dict[str, Any]  # only OpenRouter sends this


class ChatChunk(TypedDict, total=False):
    """One chunk of a stream, or a complete response if its choice contains ``message``."""

    id: str
    model: str
    choices: list[Choice]
    usage: dict[str, Any] | None
    error: Any
