"""The sandbox's Responses API, with the same events as OpenAI's server.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
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

Event = dict[str, Any]


def parse_request(body: Mapping[str, Any], size: int) -> SandboxRequest:
    """Parse the body of ``POST /v1/responses``; ``size`` is its length."""
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    items = [item for item in items or () if isinstance(item, dict)]
    choice = body.get("tool_choice")
    offered = [] if choice == "none" else body.get("tools") or []
    return SandboxRequest(
        model=str(body.get("model", "")),
        prompt=_last_prompt(items),
        tools=[
            (tool["name"], tool.get("parameters") or {})
            for tool in offered
            if tool.get("type") == "function"
        ],
        forced_tool=choice.get("name", "") if isinstance(choice, dict) else "",
        required=choice == "required",
        has_tool_result=ends_with_tool_result([_author(item) for item in items]),
        max_tokens=body.get("max_output_tokens"),
        size=size,
    )


def _author(item: dict[str, Any]) -> Any:
    """Return the role of an input item; for calls and reasoning, which have none, "assistant"."""
    is_output = item.get("type") == "function_call_output"
    return "tool" if is_output else item.get("role", "assistant")


def _last_prompt(items: list[dict[str, Any]]) -> str:
    """Return the text of the last user message in the request's input."""
    for item in reversed(items):
        if item.get("role") == "user":
            content = item.get("content")
            if isinstance(content, str):
                return content
            parts = [part.get("text", "") for part in content or () if isinstance(part, dict)]
            return parts[-1] if parts else ""
    return ""


class ResponsesResponse:
    """A response as numbered stream events; ``whole`` returns the same as one response object."""

    def __init__(
        self, request: SandboxRequest, response: SandboxResponse, response_id: str
    ) -> None:
        self._response_id = response_id
        self._response = response
        self._count = 0
        input_tokens, output_tokens, reasoning = token_usage(request, response)
        self._common = {
            "id": f"resp_{response_id}",
            "object": "response",
            "created_at": 1_767_225_600,
            "model": request.model,
            "metadata": {"upstream": "sandbox: a script, not a model"},
            "error": None,
        }
        self.whole: dict[str, Any] = {
            **self._common,
            "status": "incomplete" if response.truncated else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if response.truncated else None,
            "output": list(self._items()),
            "usage": {
                "input_tokens": input_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": output_tokens,
                "output_tokens_details": {"reasoning_tokens": reasoning},
                "total_tokens": input_tokens + output_tokens,
            },
        }

    def _items(self) -> Iterator[dict[str, Any]]:
        response, response_id = self._response, self._response_id
        if response.thinking:
            summary = [{"type": "summary_text", "text": response.thinking}]
            yield {
                "type": "reasoning",
                "id": f"rs_{response_id}",
                "summary": summary,
                "encrypted_content": f"sandbox-reasoning-{response_id}",
            }
        if response.text:
            content = {"type": "output_text", "text": response.text, "annotations": []}
            yield {
                "type": "message",
                "id": f"msg_{response_id}",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        for index, call in enumerate(response.calls):
            yield {
                "type": "function_call",
                "id": f"fc_{response_id}_{index}",
                "call_id": f"call_{response_id}_{index}",
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }

    def events(self) -> Iterator[Event]:
        in_progress = {**self._common, "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=in_progress)
        yield self._event("response.in_progress", response=in_progress)
        for index, item in enumerate(self.whole["output"]):
            yield from EVENT_WRITERS[item["type"]](self, index, item)
        yield self._event(f"response.{self.whole['status']}", response=self.whole)

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._count = self._count, self._count + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _reasoning(self, index: int, item: dict[str, Any]) -> Iterator[Event]:
        location = {"item_id": item["id"], "output_index": index, "summary_index": 0}
        empty = {"type": "summary_text", "text": ""}
        (part,) = item["summary"]
        started_item = {**item, "summary": []}
        yield self._event("response.output_item.added", output_index=index, item=started_item)
        yield self._event("response.reasoning_summary_part.added", **location, part=empty)
        for delta in split_deltas(part["text"]):
            yield self._event("response.reasoning_summary_text.delta", **location, delta=delta)
        yield self._event("response.reasoning_summary_text.done", **location, text=part["text"])
        yield self._event("response.reasoning_summary_part.done", **location, part=part)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _message(self, index: int, item: dict[str, Any]) -> Iterator[Event]:
        location = {"item_id": item["id"], "output_index": index, "content_index": 0}
        (part,) = item["content"]
        started_item = {**item, "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=index, item=started_item)
        yield self._event("response.content_part.added", **location, part={**part, "text": ""})
        for delta in split_deltas(part["text"]):
            yield self._event("response.output_text.delta", **location, delta=delta)
        yield self._event("response.output_text.done", **location, text=part["text"])
        yield self._event("response.content_part.done", **location, part=part)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _call(self, index: int, item: dict[str, Any]) -> Iterator[Event]:
        location = {"item_id": item["id"], "output_index": index}
        started_item = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=index, item=started_item)
        for delta in split_deltas(item["arguments"]):
            yield self._event("response.function_call_arguments.delta", **location, delta=delta)
        done = item["arguments"]
        yield self._event("response.function_call_arguments.done", **location, arguments=done)
        yield self._event("response.output_item.done", output_index=index, item=item)


EVENT_WRITERS = {
    "reasoning": ResponsesResponse._reasoning,  # noqa: SLF001  (a method table of the same class)
    "message": ResponsesResponse._message,  # noqa: SLF001  (as above)
    "function_call": ResponsesResponse._call,  # noqa: SLF001  (as above)
}
