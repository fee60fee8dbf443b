"""Apply an administrator's rules to the content block types and roles of a conversation."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from translator.anthropic.content_blocks import BLOCKS_BY_ROLE, RESULT_PARTS
from translator.errors import BadRequest
from translator.notes import Note

Action = Literal["pass", "drop", "refuse"]
REASON: Final = "this upstream's policy"
KNOWN: Final = {
    "block": frozenset(RESULT_PARTS).union(*BLOCKS_BY_ROLE.values()),
    "role": frozenset(BLOCKS_BY_ROLE),
}
PLACEHOLDER: Final = {"type": "text", "text": "-"}


def is_known(kind: str, name: str) -> bool:
    return name in KNOWN[kind]


class ContentFilter:
    """Filters the messages of one request for one upstream.

    Messages and blocks that no rule changes are returned as the same objects.
    """

    def __init__(self, action_for: Callable[[str, str], Action]) -> None:
        self._action_for = action_for
        self._actions: dict[tuple[str, str], Action] = {}
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._first_paths: dict[tuple[str, str], str] = {}

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages without dropped blocks and roles.

        Raises BadRequest for a block type or role that a rule refuses.
        """
        allowed = [
            self._message(message, f"messages.{number}")
            for number, message in enumerate(messages)
            if self._passes("role", _name_in(message, "role"), f"messages.{number}", ".role")
        ]
        if messages and not allowed:
            raise BadRequest("messages", f"all of them are dropped by {REASON}")
        return messages if _is_unchanged(allowed, messages) else allowed

    def notes(self) -> Iterator[Note]:
        """Yield a note for each dropped block type or role, with the path where it occurs first."""
        for (kind, name), times in self._dropped.items():
            text = f"{kind} {name}" + (f", {times} times" if times > 1 else "")
            yield Note(self._first_paths[kind, name], "dropped", f"{text}: {REASON}")

    def _message(self, message: dict[str, Any], path: str) -> dict[str, Any]:
        if not isinstance(message, dict):
            return message
        content = self._content(message.get("content"), f"{path}.content")
        return message if content is message.get("content") else {**message, "content": content}

    def _content(self, content: Any, path: str) -> Any:
        if not isinstance(content, list):
            return content
        allowed = [
            self._block(block, f"{path}.{number}")
            for number, block in enumerate(content)
            if self._passes("block", _block_type(block), f"{path}.{number}", ".type")
        ]
        if _is_unchanged(allowed, content):
            return content
        # Upstreams reject a message without content. It cannot be removed either, since roles must
        # alternate.
        left_out = f"[{_block_type(content[0])} left out]"
        return allowed or [{"type": "text", "text": left_out}]

    def _block(self, block: dict[str, Any], path: str) -> dict[str, Any]:
        inner = block.get("content") if _block_type(block) == "tool_result" else None
        allowed = self._content(inner, f"{path}.content")
        return block if allowed is inner else {**block, "content": allowed}

    def _passes(self, kind: str, name: str, path: str, field: str) -> bool:
        key = (kind, name)
        action = self._actions.get(key)
        if action is None:
            action = self._actions[key] = self._action_for(kind, name)
        if action == "refuse":
            raise BadRequest(path + field, f"`{name[:60]}` is not permitted by {REASON}")
        if action == "drop":
            self._dropped[key] += 1
            self._first_paths.setdefault(key, path)
        return action == "pass"


def _is_unchanged(filtered: list[Any], original: list[Any]) -> bool:
    return len(filtered) == len(original) and all(
        a is b for a, b in zip(filtered, original, strict=True)
    )


def filter_unknown_content(raw: Any, is_allowed: Callable[[str, str], bool]) -> Any:
    """Return the request for validation, with placeholders for allowed blocks and roles.

    A block or role that ``is_allowed`` accepts is replaced by a known one at the same position. So
    the path in a validation error is also correct for the client's body.
    """
    messages = raw.get("messages") if isinstance(raw, dict) else None
    if not isinstance(messages, list):
        return raw
    return {**raw, "messages": [_replace_in_message(message, is_allowed) for message in messages]}


def _replace_in_message(message: Any, is_allowed: Callable[[str, str], bool]) -> Any:
    if not isinstance(message, dict):
        return message
    content = _replace_in_content(message.get("content"), is_allowed)
    role = message.get("role")
    if isinstance(role, str) and is_allowed("role", role):
        return {**message, "role": "user", "content": content}
    return message if content is message.get("content") else {**message, "content": content}


def _replace_in_content(content: Any, is_allowed: Callable[[str, str], bool]) -> Any:
    if not isinstance(content, list):
        return content
    return [_replace_block(block, is_allowed) for block in content]


def _replace_block(block: Any, is_allowed: Callable[[str, str], bool]) -> Any:
    kind = _block_type(block)
    if kind and is_allowed("block", kind):
        return PLACEHOLDER
    if kind == "tool_result" and isinstance(block.get("content"), list):
        return {**block, "content": _replace_in_content(block["content"], is_allowed)}
    return block


def _block_type(block: Any) -> str:
    return _name_in(block, "type")


def _name_in(value: Any, field: str) -> str:
    """Return a field of a part of the request; "" if the part has any other shape."""
    name = value.get(field) if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""
