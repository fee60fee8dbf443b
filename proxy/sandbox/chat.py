"""The sandbox in the Chat Completions dialect, thinking as ``reasoning_content``.

Source: https://platform.openai.com/docs/api-reference/chat-streaming; the reasoning field is the
one that DeepSeek and llama.cpp use.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .script import Ask, Scene, is_returned, pieces, usage_of


def read_ask(body: Mapping[str, Any], size: int) -> Ask:
    """What the script needs of a ``POST /v1/chat/completions`` body."""
    messages = [entry for entry in body.get("messages") or () if isinstance(entry, dict)]
    said = next((_text(entry) for entry in reversed(messages) if entry.get("role") == "user"), "")
    choice = body.get("tool_choice")
    functions = [tool["function"] for tool in body.get("tools") or () if "function" in tool]
    return Ask(
        model=str(body.get("model", "")),
        said=said,
        tools=[
            (function["name"], function.get("parameters") or {})
            for function in functions
            if choice != "none"
        ],
        wanted_tool=choice["function"]["name"] if isinstance(choice, dict) else "",
        required=choice == "required",
        returned=is_returned([entry.get("role") for entry in messages]),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        size=size,
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text", "") for part in content or () if isinstance(part, dict)]
    return parts[-1] if parts else ""


class Told:
    """One scene as chunks; ``whole`` is the completion they amount to."""

    def __init__(self, ask: Ask, scene: Scene, ident: str) -> None:
        self._scene = scene
        before, after, reasoning = usage_of(ask, scene)
        self._usage = {
            "prompt_tokens": before,
            "completion_tokens": after,
            "total_tokens": before + after,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        self._head = {"id": f"chatcmpl-{ident}", "created": 1_767_225_600, "model": ask.model}
        self._calls: list[dict[str, Any]] = [
            {
                "id": f"call_{ident}_{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(scene.calls)
        ]
        self._reason = "length" if scene.truncated else "tool_calls" if scene.calls else "stop"
        message = {
            "role": "assistant",
            "content": scene.text or None,
            **({"reasoning_content": scene.thinking} if scene.thinking else {}),
            **({"tool_calls": self._calls} if self._calls else {}),
        }
        choice = {"index": 0, "message": message, "finish_reason": self._reason}
        self.whole: dict[str, Any] = {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage,
        }

    def events(self) -> Iterator[dict[str, Any]]:
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in pieces(self._scene.thinking):
            yield self._chunk({"reasoning_content": piece})
        for piece in pieces(self._scene.text):
            yield self._chunk({"content": piece})
        for place, call in enumerate(self._calls):
            opened = {**call, "index": place, "function": {**call["function"], "arguments": ""}}
            yield self._chunk({"tool_calls": [opened]})
            for piece in pieces(call["function"]["arguments"]):
                delta = {"index": place, "function": {"arguments": piece}}
                yield self._chunk({"tool_calls": [delta]})
        yield self._chunk({}, self._reason)
        yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage}

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
