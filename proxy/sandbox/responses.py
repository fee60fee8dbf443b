"""The sandbox in the Responses dialect: events as OpenAI's own server sends them.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .script import Ask, Scene, is_returned, pieces, usage_of

Event = dict[str, Any]


def read_ask(body: Mapping[str, Any], size: int) -> Ask:
    """What the script needs of a ``POST /v1/responses`` body."""
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    items = [item for item in items or () if isinstance(item, dict)]
    choice = body.get("tool_choice")
    offered = [] if choice == "none" else body.get("tools") or []
    return Ask(
        model=str(body.get("model", "")),
        said=_said(items),
        tools=[
            (tool["name"], tool.get("parameters") or {})
            for tool in offered
            if tool.get("type") == "function"
        ],
        wanted_tool=choice.get("name", "") if isinstance(choice, dict) else "",
        required=choice == "required",
        returned=is_returned([_kind(item) for item in items]),
        max_tokens=body.get("max_output_tokens"),
        size=size,
    )


def _kind(item: dict[str, Any]) -> Any:
    """Who wrote it; calls and reasoning have no role."""
    called = item.get("type") == "function_call_output"
    return "tool" if called else item.get("role", "assistant")


def _said(items: list[dict[str, Any]]) -> str:
    """The text of the last user message."""
    for item in reversed(items):
        if item.get("role") == "user":
            content = item.get("content")
            if isinstance(content, str):
                return content
            parts = [part.get("text", "") for part in content or () if isinstance(part, dict)]
            return parts[-1] if parts else ""
    return ""


class Told:
    """One scene as the list of its events, numbered; ``whole`` is what they amount to."""

    def __init__(self, ask: Ask, scene: Scene, ident: str) -> None:
        self._ident = ident
        self._scene = scene
        self._count = 0
        before, after, reasoning = usage_of(ask, scene)
        self._blank = {
            "id": f"resp_{ident}",
            "object": "response",
            "created_at": 1_767_225_600,
            "model": ask.model,
            "metadata": {"upstream": "sandbox: a script, not a model"},
            "error": None,
        }
        self.whole: dict[str, Any] = {
            **self._blank,
            "status": "incomplete" if scene.truncated else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if scene.truncated else None,
            "output": list(self._items()),
            "usage": {
                "input_tokens": before,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": after,
                "output_tokens_details": {"reasoning_tokens": reasoning},
                "total_tokens": before + after,
            },
        }

    def _items(self) -> Iterator[dict[str, Any]]:
        scene, ident = self._scene, self._ident
        if scene.thinking:
            summary = [{"type": "summary_text", "text": scene.thinking}]
            yield {
                "type": "reasoning",
                "id": f"rs_{ident}",
                "summary": summary,
                "encrypted_content": f"sandbox-reasoning-{ident}",
            }
        if scene.text:
            content = {"type": "output_text", "text": scene.text, "annotations": []}
            yield {
                "type": "message",
                "id": f"msg_{ident}",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        for place, call in enumerate(scene.calls):
            yield {
                "type": "function_call",
                "id": f"fc_{ident}_{place}",
                "call_id": f"call_{ident}_{place}",
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }

    def events(self) -> Iterator[Event]:
        started = {**self._blank, "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=started)
        yield self._event("response.in_progress", response=started)
        for place, item in enumerate(self.whole["output"]):
            yield from TELLERS[item["type"]](self, place, item)
        yield self._event(f"response.{self.whole['status']}", response=self.whole)

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._count = self._count, self._count + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _reasoning(self, place: int, item: dict[str, Any]) -> Iterator[Event]:
        at = {"item_id": item["id"], "output_index": place, "summary_index": 0}
        empty = {"type": "summary_text", "text": ""}
        (full,) = item["summary"]
        opened = {**item, "summary": []}
        yield self._event("response.output_item.added", output_index=place, item=opened)
        yield self._event("response.reasoning_summary_part.added", **at, part=empty)
        for delta in pieces(full["text"]):
            yield self._event("response.reasoning_summary_text.delta", **at, delta=delta)
        yield self._event("response.reasoning_summary_text.done", **at, text=full["text"])
        yield self._event("response.reasoning_summary_part.done", **at, part=full)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _message(self, place: int, item: dict[str, Any]) -> Iterator[Event]:
        at = {"item_id": item["id"], "output_index": place, "content_index": 0}
        (full,) = item["content"]
        opened = {**item, "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=place, item=opened)
        yield self._event("response.content_part.added", **at, part={**full, "text": ""})
        for delta in pieces(full["text"]):
            yield self._event("response.output_text.delta", **at, delta=delta)
        yield self._event("response.output_text.done", **at, text=full["text"])
        yield self._event("response.content_part.done", **at, part=full)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _call(self, place: int, item: dict[str, Any]) -> Iterator[Event]:
        at = {"item_id": item["id"], "output_index": place}
        opened = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=place, item=opened)
        for delta in pieces(item["arguments"]):
            yield self._event("response.function_call_arguments.delta", **at, delta=delta)
        done = item["arguments"]
        yield self._event("response.function_call_arguments.done", **at, arguments=done)
        yield self._event("response.output_item.done", output_index=place, item=item)


TELLERS = {
    "reasoning": Told._reasoning,  # noqa: SLF001  (the class's own table)
    "message": Told._message,  # noqa: SLF001  (the same)
    "function_call": Told._call,  # noqa: SLF001  (the same)
}
