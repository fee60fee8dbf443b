"""The sandbox's Chat Completions API, with thinking in the field ``reasoning_content``.

Source: https://platform.openai.com/docs/api-reference/chat-streaming. DeepSeek and llama.cpp use
the same field for reasoning; OpenAI has none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .script import (
    SandboxRequest,
    SandboxResponse,
    ends_with_tool_result,
    split_deltas,
    token_usage,
)


def parse_request(body: Mapping[str, Any], size: int) -> SandboxRequest:
    """Parse the body of ``POST /v1/chat/completions``; ``size`` is its length."""
    messages = [entry for entry in body.get("messages") or () if isinstance(entry, dict)]
    prompt = next((_text(entry) for entry in reversed(messages) if entry.get("role") == "user"), "")
    choice = body.get("tool_choice")
    functions = [tool["function"] for tool in body.get("tools") or () if "function" in tool]
    return SandboxRequest(
        model=str(body.get("model", "")),
        prompt=prompt,
        tools=[
            (function["name"], function.get("parameters") or {})
            for function in functions
            if choice != "none"
        ],
        forced_tool=choice["function"]["name"] if isinstance(choice, dict) else "",
        required=choice == "required",
        has_tool_result=ends_with_tool_result([entry.get("role") for entry in messages]),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        size=size,
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text", "") for part in content or () if isinstance(part, dict)]
    return parts[-1] if parts else ""


class ChatResponse:
    """A response as stream chunks; ``whole`` returns the same response as one object."""

    def __init__(
        self, request: SandboxRequest, response: SandboxResponse, response_id: str
    ) -> None:
        self._response = response
        input_tokens, output_tokens, reasoning = token_usage(request, response)
        self._usage = {
            "prompt_tokens": input_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        self._common = {
            "id": f"chatcmpl-{response_id}",
            "created": 1_767_225_600,
            "model": request.model,
        }
        self._calls: list[dict[str, Any]] = [
            {
                "id": f"call_{response_id}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(response.calls)
        ]
        self._finish_reason = (
            "length" if response.truncated else "tool_calls" if response.calls else "stop"
        )
        message = {
            "role": "assistant",
            "content": response.text or None,
            **({"reasoning_content": response.thinking} if response.thinking else {}),
            **({"tool_calls": self._calls} if self._calls else {}),
        }
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        self.whole: dict[str, Any] = {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage,
        }

    def events(self) -> Iterator[dict[str, Any]]:
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in split_deltas(self._response.thinking):
            yield self._chunk({"reasoning_content": piece})
        for piece in split_deltas(self._response.text):
            yield self._chunk({"content": piece})
        for index, call in enumerate(self._calls):
            opened = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
            yield self._chunk({"tool_calls": [opened]})
            for piece in split_deltas(call["function"]["arguments"]):
                delta = {"index": index, "function": {"arguments": piece}}
                yield self._chunk({"tool_calls": [delta]})
        yield self._chunk({}, self._finish_reason)
        yield {
            **self._common,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": self._usage,
        }

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self._common, "object": "chat.completion.chunk", "choices": [choice]}
