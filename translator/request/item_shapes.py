"""Change the shape of Responses API input for servers that put it through a chat template.

vLLM, llama.cpp and Ollama serve ``/responses`` with the templates of Chat Completions, so the
refusals of ``history_shapes`` occur here as well. A body has its system prompt in ``instructions``
and as messages with the role ``system`` or ``developer``.
"""

from collections.abc import Sequence
from typing import Any, Final

Item = dict[str, Any]
Body = dict[str, Any]

SYSTEM_ROLES: Final = frozenset({"system", "developer"})


def hoist_system_items(body: Body) -> Body:
    """Move the text of all system messages to ``instructions``, which are the first message."""
    items = body["input"]
    moved = [item for item in items if item.get("role") in SYSTEM_ROLES]
    texts = [text for item in moved if (text := _text(item["content"]))]
    rest = [item for item in items if item.get("role") not in SYSTEM_ROLES]
    if not moved or not rest:
        return body
    instructions = "\n\n".join(filter(None, [body.get("instructions"), *texts]))
    return {**body, "instructions": instructions, "input": rest}


def move_system_items(body: Body) -> Body:
    """Put all system text before the first user message's own text."""
    hoisted = hoist_system_items(body)
    text = hoisted.get("instructions")
    if not text:
        return body
    rest = {name: value for name, value in hoisted.items() if name != "instructions"}
    items = rest["input"]
    part = {"type": "input_text", "text": text}
    first = next((n for n, item in enumerate(items) if item.get("role") == "user"), None)
    if first is None:
        items = [{"type": "message", "role": "user", "content": [part]}, *items]
    else:
        user = {**items[first], "content": [part, *_parts(items[first]["content"])]}
        items = [*items[:first], user, *items[first + 1 :]]
    return {**rest, "input": items}


def merge_items(items: Sequence[Item]) -> list[Item]:
    """Merge consecutive messages of one role, and user text after an output into the output."""
    result: list[Item] = []
    for item in items:
        last = result[-1] if result else {}
        role = item.get("role")
        if role in ("user", "assistant") and last.get("role") == role:
            result[-1] = {**last, "content": _joined(last["content"], item["content"])}
        elif role == "user" and last.get("type") == "function_call_output" and _is_text(item):
            output = last["output"]
            text = _text(item["content"])
            joined = f"{output}\n\n{text}" if isinstance(output, str) else _joined(output, text)
            result[-1] = {**last, "output": joined}
        else:
            result.append(item)
    return result


def split_call_items(items: Sequence[Item]) -> list[Item]:
    """Put each call's output right behind the call."""
    outputs = {i.get("call_id"): i for i in items if i.get("type") == "function_call_output"}
    result: list[Item] = []
    moved: set[int] = set()
    for item in items:
        if id(item) in moved:
            continue
        result.append(item)
        output = outputs.get(item.get("call_id")) if item.get("type") == "function_call" else None
        if output is not None:
            result.append(output)
            moved.add(id(output))
    return result


def write_call_items_as_text(items: Sequence[Item]) -> list[Item]:
    """Write calls and their outputs as text, for templates without tool messages."""
    result: list[Item] = []
    for item in items:
        match item.get("type"):
            case "function_call":
                text = f"[tool call] {item['name']}({item['arguments']})"
                result.append({"type": "message", "role": "assistant", "content": text})
            case "function_call_output":
                part = {"type": "input_text", "text": "[tool result]"}
                content = [part, *_parts(item["output"])]
                result.append({"type": "message", "role": "user", "content": content})
            case _:
                result.append(item)
    return merge_items(result)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Item]:
    return content if isinstance(content, list) else [{"type": "input_text", "text": content or ""}]


def _text(content: Any) -> str:
    return "\n\n".join([part["text"] for part in _parts(content) if part.get("text")])


def _is_text(item: Item) -> bool:
    return all("text" in part for part in _parts(item["content"]))
