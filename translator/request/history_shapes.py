"""Change the shape of a history for chat templates that accept only some shapes.

A template turns messages into the prompt of one model. Some raise an error for histories that the
API allows: user text after a tool result (Mistral, Gemma), several calls in one message (Llama
3.1), a system message (Gemma 2). The request builder applies these functions if the profile
requires it; a repair applies them after the server's error.

The functions take Chat Completions messages and input items of the Responses API, because vLLM,
llama.cpp and Ollama serve ``/responses`` with the same templates.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

Entry = dict[str, Any]
"""A message of Chat Completions, or an input item of the Responses API."""
Body = dict[str, Any]

NO_IMAGE: Final = "[image omitted: this model takes no images]"
OLD_IMAGE: Final = "[image omitted: this model takes fewer images]"
NO_FILE: Final = "[file omitted: this model takes no files]"
IMAGE_PARTS: Final = frozenset({"image_url", "input_image"})
FILE_PARTS: Final = frozenset({"file", "input_file"})
SYSTEM_ROLES: Final = frozenset({"system", "developer"})


def merge_turns(entries: Sequence[Entry]) -> list[Entry]:
    """Merge consecutive messages of one role, and user text after a tool result into the result.

    A user message with other parts than text stays after the tool result.
    """
    merged: list[Entry] = []
    contents: list[_Content] = []
    calls: list[list[Any]] = []
    for entry in entries:
        role, last = entry.get("role"), merged[-1] if merged else {}
        if role in ("user", "assistant") and role == last.get("role"):
            merged[-1] = {**last, **entry}
            contents[-1].add(entry.get("content"), entry)
            calls[-1] += entry.get("tool_calls") or ()
        elif (
            role == "user"
            and _is_result(last)
            and (all("text" in part for part in _parts(entry["content"], entry)))
        ):
            contents[-1].add(_text_of(entry["content"]), entry)
        else:
            merged.append(entry)
            contents.append(_Content(entry))
            calls.append([*(entry.get("tool_calls") or ())])
    for number, content in enumerate(contents):
        if content.is_joined:
            made = {"tool_calls": calls[number]} if calls[number] else {}
            merged[number] = {**merged[number], content.field: content.value(), **made}
    return merged


def split_calls(entries: Sequence[Entry]) -> list[Entry]:
    """Put each call into an entry of its own, followed by its result."""
    results = {entry.get("tool_call_id") or entry.get("call_id"): entry for entry in entries
               if _is_result(entry)}  # fmt: skip
    split: list[Entry] = []
    moved: set[int] = set()
    for entry in entries:
        calls = entry.get("tool_calls") or []
        if id(entry) in moved:
            continue
        single = [(entry, entry.get("call_id"))]
        if entry.get("type") != "function_call" and len(calls) < 2:
            split.append(entry)
            continue
        for number, call in enumerate(calls):
            head = {"role": "assistant", "content": ""} if number else entry
            single[number:] = [({**head, "tool_calls": [call]}, call.get("id"))]
        for one, call_id in single:
            split.append(one)
            if (result := results.get(call_id)) is not None:
                split.append(result)
                moved.add(id(result))
    return split


def write_calls_as_text(entries: Sequence[Entry]) -> list[Entry]:
    """Write tool calls and their results as text, for templates without tool messages."""
    written: list[Entry] = []
    for entry in entries:
        match entry:
            case {"role": "tool"}:
                written.append({"role": "user", "content": f"[tool result] {entry['content']}"})
            case {"tool_calls": [*calls]} if calls:
                functions = [call["function"] for call in calls]
                lines = [f"[tool call] {f['name']}({f['arguments']})" for f in functions]
                others = {name: value for name, value in entry.items() if name != "tool_calls"}
                text = "\n".join([entry.get("content") or "", *lines]).lstrip()
                written.append({**others, "content": text})
            case {"type": "function_call"}:
                text = f"[tool call] {entry['name']}({entry['arguments']})"
                written.append({"type": "message", "role": "assistant", "content": text})
            case {"type": "function_call_output"}:
                parts = [{"type": "input_text", "text": "[tool result]"}]
                parts += _parts(entry["output"], entry)
                written.append({"type": "message", "role": "user", "content": parts})
            case _:
                written.append(entry)
    return merge_turns(written)


def move_system_text(entries: Sequence[Entry]) -> list[Entry]:
    """Put the text of system messages before the first user message's own text."""
    system, others = _split_system(entries)
    if not system:
        return others
    first = next((n for n, entry in enumerate(others) if entry.get("role") == "user"), None)
    user = others[first] if first is not None else {**system[-1], "role": "user", "content": []}
    parts = [part for entry in system for part in _parts(entry["content"], user)]
    if user["content"]:
        parts += _parts(user["content"], user)
    user = {**user, "content": parts if "type" in user else join_texts(parts)}
    return [user, *others] if first is None else [*others[:first], user, *others[first + 1 :]]


def hoist_system_text(entries: Sequence[Entry]) -> list[Entry]:
    """Put the text of all system messages into the first message."""
    system, others = _split_system(entries)
    if not system or not others:
        return [*entries]
    content = join_texts([part for entry in system for part in _parts(entry["content"], entry)])
    return [{**system[0], "content": content}, *others]


def reshape_input(body: Body, shape: Callable[[Sequence[Entry]], list[Entry]]) -> Body:
    """Return a body of the Responses API with its system prompt in another shape.

    The system prompt is in ``instructions``, which are the first message of the template, and in
    messages.
    """
    instructions = body.get("instructions")
    prompt = {"type": "message", "role": "system", "content": instructions}
    entries = shape([prompt, *body["input"]] if instructions else body["input"])
    rest = {name: value for name, value in body.items() if name != "instructions"}
    if entries and entries[0].get("role") in SYSTEM_ROLES and len(entries) > 1:
        return {**rest, "instructions": _text_of(entries[0]["content"]), "input": entries[1:]}
    return {**rest, "input": entries}


def parts_of(value: Any, kinds: frozenset[str]) -> Iterator[Entry]:
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
    if not all(map(_is_plain_text, parts)):
        return parts
    return "\n\n".join([part["text"] for part in parts])


def _split_system(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    system = [entry for entry in entries if entry.get("role") in SYSTEM_ROLES]
    return system, [entry for entry in entries if entry.get("role") not in SYSTEM_ROLES]


def _is_result(entry: Entry) -> bool:
    return entry.get("role") == "tool" or entry.get("type") == "function_call_output"


class _Content:
    """The content of an entry, to which others are joined: each step takes time for its own alone.

    It is text (``_parts`` is None) as long as all that is joined is plain text.
    """

    def __init__(self, entry: Entry) -> None:
        self.field = "output" if _is_result(entry) and "content" not in entry else "content"
        self.is_joined = False
        self._first = entry.get(self.field)
        self._texts = [self._first] if self._first and isinstance(self._first, str) else []
        self._parts = [*self._first] if isinstance(self._first, list) else None
        self._is_plain = all(map(_is_plain_text, self._parts or ()))

    def add(self, content: Any, entry: Entry) -> None:
        """Join a content, for a history with entries like ``entry``."""
        self.is_joined = True
        if self._parts is None and not isinstance(content, list):
            self._texts += [content] if content else []
            return
        added = _parts(content, entry)
        self._is_plain = self._is_plain and all(map(_is_plain_text, added))
        if self._is_plain and "type" not in entry:
            if self._parts is not None:
                self._texts, self._parts = [part["text"] for part in self._parts], None
            elif not self._texts:
                self._texts = [""]
            self._texts += [part["text"] for part in added]
            if self._texts in ([], [""]):
                self._texts, self._first = [], ""
            return
        if self._parts is None:
            self._parts = [*_parts("\n\n".join(self._texts), entry)]
        self._parts += added

    def value(self) -> Any:
        if self._parts is not None:
            return self._parts
        return "\n\n".join(self._texts) or self._first


def _is_plain_text(part: Any) -> bool:
    return "text" in part and "prompt_cache_breakpoint" not in part


def _parts(content: Any, entry: Entry) -> list[Any]:
    kind = "input_text" if "type" in entry else "text"
    return content if isinstance(content, list) else [{"type": kind, "text": content or ""}]


def _text_of(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content}]
    return "\n\n".join([part["text"] for part in parts if part.get("text")])
