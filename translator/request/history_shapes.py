"""Change the shape of a Chat Completions history for chat templates that accept only some shapes.

A template turns messages into the prompt of one model. Some raise an error for histories that the
API allows: user text after a tool result (Mistral, Gemma), several calls in one message (Llama
3.1), a system message (Gemma 2). The request builder applies these functions if the profile
requires it; a repair applies them after the server's error.

Change the shape of Responses API input for servers that put it through a chat template.

vLLM, llama.cpp and Ollama serve ``/responses`` with the templates of Chat Completions, so the
refusals of ``history_shapes`` occur here as well. A body has its system prompt in ``instructions``
and as messages with the role ``system`` or ``developer``.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

Message = dict[str, Any]

NO_IMAGE: Final = "[image omitted: this model takes no images]"
OLD_IMAGE: Final = "[image omitted: this model takes fewer images]"
NO_FILE: Final = "[file omitted: this model takes no files]"
IMAGE_PARTS: Final = frozenset({"image_url", "input_image"})
FILE_PARTS: Final = frozenset({"file", "input_file"})


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Merge consecutive messages of one role, and user text after a tool result into the result.

    A user message with other parts than text stays after the tool result.
    """
    result: list[Message] = []
    for message in messages:
        role, last = message["role"], result[-1] if result else None
        if last is None or role not in ("user", "assistant"):
            result.append(message)
        elif role == last["role"] == "assistant":
            result[-1] = _merge_assistants(last, message)
        elif role == last["role"]:
            parts = [*_parts(last), *_parts(message)]
            result[-1] = {**last, "content": join_texts(parts)}
        elif (role, last["role"]) == ("user", "tool") and _is_text(message):
            text = join_texts([*_parts(last), *_parts(message)])
            result[-1] = {**last, "content": text}
        else:
            result.append(message)
    return result


def split_calls(messages: Sequence[Message]) -> list[Message]:
    """Send each call of an assistant message in a message of its own, followed by its result."""
    outputs = {m.get("tool_call_id"): m for m in messages if m["role"] == "tool"}
    result: list[Message] = []
    moved: set[int] = set()
    for message in messages:
        calls = message.get("tool_calls") or []
        if message["role"] != "assistant" or len(calls) < 2:
            if id(message) not in moved:
                result.append(message)
            continue
        for number, call in enumerate(calls):
            head = {"role": "assistant", "content": ""} if number else message
            result.append({**head, "tool_calls": [call]})
            output = outputs.get(call.get("id"))
            if output is not None:
                result.append(output)
                moved.add(id(output))
    return result


def write_calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Write tool calls and their results as text, for templates without tool messages."""
    result: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls") or []
        if message["role"] == "tool":
            result.append({"role": "user", "content": f"[tool result] {message['content']}"})
        elif calls:
            functions = [call["function"] for call in calls]
            lines = [f"[tool call] {f['name']}({f['arguments']})" for f in functions]
            others = {name: value for name, value in message.items() if name != "tool_calls"}
            text = "\n".join([message.get("content") or "", *lines]).lstrip()
            result.append({**others, "content": text})
        else:
            result.append(message)
    return merge_turns(result)


def move_system_text(messages: Sequence[Message]) -> list[Message]:
    """Put the text of system messages before the first user message's own text."""
    system = [m for m in messages if m["role"] in ("system", "developer")]
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    if not system:
        return others
    parts = [part for message in system for part in _parts(message)]
    first = next((n for n, m in enumerate(others) if m["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": join_texts(parts)}, *others]
    user = {**others[first], "content": join_texts([*parts, *_parts(others[first])])}
    return [*others[:first], user, *others[first + 1 :]]


def hoist_system_text(messages: Sequence[Message]) -> list[Message]:
    """Put the text of all system messages into the first message."""
    system = [m for m in messages if m["role"] in ("system", "developer")]
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    if not system or not others:
        return [*messages]
    content = join_texts([part for message in system for part in _parts(message)])
    return [{**system[0], "content": content}, *others]


def parts_of(value: Any, kinds: frozenset[str]) -> Iterator[Message]:
    """Yield the images or files in messages or input items, in their order."""
    if isinstance(value, list):
        for item in value:
            yield from parts_of(item, kinds)
    elif isinstance(value, dict) and value.get("type") in kinds:
        yield value
    elif isinstance(value, dict):
        yield from parts_of(value.get("content"), kinds)
        yield from parts_of(value.get("output"), kinds)


def count_parts(value: Any, kinds: frozenset[str]) -> int:
    return sum(1 for _ in parts_of(value, kinds))


def without_parts(value: Any, kinds: frozenset[str], text: str, keep: int = 0) -> Any:
    """Return messages or input items with a text in place of each part but the last ``keep``.

    Content that is only text then becomes one string, which is all that some servers take.
    """
    surplus = count_parts(value, kinds) - keep

    def replaced(part: Any) -> Any:
        nonlocal surplus
        if isinstance(part, list):
            return [replaced(item) for item in part]
        if not isinstance(part, dict):
            return part
        if part.get("type") in kinds:
            surplus -= 1
            if surplus < 0:
                return part
            kind = "input_text" if part["type"].startswith("input_") else "text"
            return {"type": kind, "text": text}
        return {
            name: join_text_parts(replaced(inner))
            if name == "content" and count_parts(inner, kinds)
            else replaced(inner)
            if name == "output"
            else inner
            for name, inner in part.items()
        }

    def join_text_parts(parts: Any) -> Any:
        is_chat = all(part.get("type") == "text" for part in parts)
        return join_texts(parts) if is_chat else parts

    return replaced(value)


def join_texts(parts: list[Any]) -> Any:
    """Return one string if all parts are plain text, because many local servers accept no list."""
    for part in parts:
        if "text" not in part or "prompt_cache_breakpoint" in part:
            return parts
    return "\n\n".join([part["text"] for part in parts])


def _merge_assistants(first: Message, second: Message) -> Message:
    texts = [m["content"] for m in (first, second) if m.get("content")]
    merged = {**first, **second, "content": "\n\n".join(texts) if texts else first.get("content")}
    calls = [call for m in (first, second) for call in m.get("tool_calls") or ()]
    return {**merged, "tool_calls": calls} if calls else merged


def _is_text(message: Message) -> bool:
    return all("text" in part for part in _parts(message))


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


Item = dict[str, Any]
Body = dict[str, Any]

SYSTEM_ROLES: Final = frozenset({"system", "developer"})


def hoist_system_items(body: Body) -> Body:
    """Move the text of all system messages to ``instructions``, which are the first message."""
    items = body["input"]
    moved = [item for item in items if item.get("role") in SYSTEM_ROLES]
    texts = [text for item in moved if (text := _item_text(item["content"]))]
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
        user = {**items[first], "content": [part, *_item_parts(items[first]["content"])]}
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
        elif role == "user" and last.get("type") == "function_call_output" and _is_text_item(item):
            output = last["output"]
            text = _item_text(item["content"])
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
                content = [part, *_item_parts(item["output"])]
                result.append({"type": "message", "role": "user", "content": content})
            case _:
                result.append(item)
    return merge_items(result)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_item_parts(first), *_item_parts(second)]


def _item_parts(content: Any) -> list[Item]:
    return content if isinstance(content, list) else [{"type": "input_text", "text": content or ""}]


def _item_text(content: Any) -> str:
    return "\n\n".join([part["text"] for part in _item_parts(content) if part.get("text")])


def _is_text_item(item: Item) -> bool:
    return all("text" in part for part in _item_parts(item["content"]))
