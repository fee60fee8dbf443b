"""Wire types of Chat Completions, as OpenAI's documentation spells them.

Compatible servers add their own words; those that we read or write stand beside the official
ones. Source: https://platform.openai.com/docs/api-reference/chat
"""

from typing import Any, Literal, Required, TypedDict

ContentPart = dict[str, Any]
"""One part of a message's content: ``text``, ``image_url`` or ``file``."""


class FunctionCall(TypedDict, total=False):
    name: str
    arguments: str | dict[str, Any] | None  # an object at Ollama-like servers


class ToolCall(TypedDict, total=False):
    index: int  # only in streams; missing or always 0 at some servers
    id: str | None
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(TypedDict, total=False):
    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: str | list[ContentPart] | None
    tool_calls: list[ToolCall]
    tool_call_id: str
    reasoning_content: str  # DeepSeek, Kimi, GLM, Qwen, llama.cpp, older vLLM
    reasoning: str  # vLLM, Groq, OpenRouter, Ollama
    reasoning_details: list[dict[str, Any]]  # OpenRouter: opaque, echoed verbatim


class Delta(TypedDict, total=False):
    role: str | None
    content: str | list[ContentPart] | None  # a list at Mistral
    refusal: str | None
    tool_calls: list[ToolCall] | None
    function_call: FunctionCall | None  # before tool calls existed
    annotations: list[dict[str, Any]]
    reasoning_content: str | None
    reasoning: str | None
    reasoning_details: list[dict[str, Any]]


class Choice(TypedDict, total=False):
    index: int
    delta: Delta
    message: Delta  # whole answers, and pseudo-streams
    finish_reason: str | None
    stop_reason: str | int | None  # vLLM: the stop string that matched
    error: dict[str, Any]  # OpenRouter


class ChatChunk(TypedDict, total=False):
    """One event of a stream, or, with ``message`` in its choice, a whole answer."""

    id: str
    model: str
    choices: list[Choice]
    usage: dict[str, Any] | None
    error: Any
